//! [`Dir`].

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::dir::Dir as Stream;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, RenameFlags, ResolveFlag, open, openat2, renameat, renameat2};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{UnlinkatFlags, fsync, syncfs, unlinkat};

use crate::{Error, Name, Operation};

/// The largest file that [`Dir::read`] reads, in bytes.
pub const MAX_READ: u64 = 1 << 20;

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY);

/// The result of an idempotent call that creates a `T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ensured<T> {
    /// This call created the object.
    Created(T),
    /// The object existed already.
    Unchanged(T),
}

impl<T> Ensured<T> {
    /// The object, new or not.
    pub fn into_inner(self) -> T {
        match self {
            Self::Created(inner) | Self::Unchanged(inner) => inner,
        }
    }

    /// Converts the object.
    pub fn map<U>(self, make: impl FnOnce(T) -> U) -> Ensured<U> {
        match self {
            Self::Created(inner) => Ensured::Created(make(inner)),
            Self::Unchanged(inner) => Ensured::Unchanged(make(inner)),
        }
    }
}

/// An open directory. The methods act on this directory even after it is renamed.
#[derive(Debug)]
pub struct Dir(OwnedFd);

/// Wraps an open descriptor. If it is not a directory, every method returns `ENOTDIR`.
impl From<OwnedFd> for Dir {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<Dir> for OwnedFd {
    fn from(dir: Dir) -> Self {
        dir.0
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Dir {
    /// Opens the directory at `path`, which must come from a trusted source: symbolic links are followed, except in the
    /// last component.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR` (also for a symbolic link), and the other errors of open(2).
    pub fn open(path: &Path) -> Result<Self, Error> {
        open(path, DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())
            .map(Self)
            .map_err(|errno| Error::new(Operation::Open, path, errno))
    }

    /// Duplicates the descriptor.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn try_clone(&self) -> Result<Self, Error> {
        match self.0.try_clone() {
            Ok(fd) => Ok(Self(fd)),
            Err(error) => Err(Error::new(Operation::Open, ".", errno_of(&error))),
        }
    }

    /// Opens the directory `name` below this one.
    ///
    /// # Errors
    /// `ENOENT`; `ENOTDIR` for a file; `ELOOP` for a symbolic link; `EXDEV` for a mount point.
    pub fn open_dir(&self, name: &Name) -> Result<Self, Error> {
        self.open_beneath(Path::new(name))
    }

    /// Opens the directory at the relative `path` below this one.
    ///
    /// # Errors
    /// Those of [`Dir::open_dir`] for every component; `EXDEV` if the path is absolute or leaves this directory by
    /// `..`.
    pub fn open_beneath(&self, path: &Path) -> Result<Self, Error> {
        self.resolve(path, DIRECTORY, Mode::empty()).map(Self).map_err(|errno| Error::new(Operation::Open, path, errno))
    }

    /// Opens the file `name` in this directory with `flags` and `O_CLOEXEC`. With `O_CREAT`, a new file gets `mode`
    /// without the bits of the umask.
    ///
    /// # Errors
    /// Those of [`Dir::open_dir`], and the errors of open(2) for the flags.
    pub fn open_file(&self, name: &Name, flags: OFlag, mode: Mode) -> Result<OwnedFd, Error> {
        self.resolve(Path::new(name), flags, mode).map_err(|errno| Error::new(Operation::Open, name.as_os_str(), errno))
    }

    /// Creates the directory `name` with exactly `mode`, regardless of the umask, and opens it. Durable after
    /// [`Dir::sync`] of both directories.
    ///
    /// # Errors
    /// `EEXIST`, `ENOSPC`, and the other errors of mkdir(2).
    pub fn create_dir(&self, name: &Name, mode: Mode) -> Result<Self, Error> {
        mkdirat(self, name.as_os_str(), mode)
            .map_err(|errno| Error::new(Operation::CreateDir, name.as_os_str(), errno))?;
        self.open_dir_with(name, mode)
    }

    /// Opens the directory `name`, creates it if it is missing, and sets exactly `mode`. Durable after [`Dir::sync`] of
    /// both directories.
    ///
    /// # Errors
    /// Those of [`Dir::open_dir`] and [`Dir::create_dir`].
    pub fn ensure_dir(&self, name: &Name, mode: Mode) -> Result<Ensured<Self>, Error> {
        match mkdirat(self, name.as_os_str(), mode) {
            Ok(()) => self.open_dir_with(name, mode).map(Ensured::Created),
            // Set the mode again: an earlier run may have stopped before it did.
            Err(Errno::EEXIST) => self.open_dir_with(name, mode).map(Ensured::Unchanged),
            Err(errno) => Err(Error::new(Operation::CreateDir, name.as_os_str(), errno)),
        }
    }

    /// The content of the file `name`; `None` if it does not exist.
    ///
    /// # Errors
    /// `EFBIG` beyond [`MAX_READ`]; `EISDIR`; `ELOOP` for a symbolic link; `EIO`.
    pub fn read(&self, name: &Name) -> Result<Option<Vec<u8>>, Error> {
        // Without O_NONBLOCK, opening a FIFO would wait for a writer.
        let file = match self.open_file(name, OFlag::O_RDONLY | OFlag::O_NONBLOCK, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut content = Vec::new();
        file.take(MAX_READ + 1)
            .read_to_end(&mut content)
            .map_err(|error| Error::new(Operation::Read, name.as_os_str(), errno_of(&error)))?;
        if content.len() as u64 > MAX_READ {
            return Err(Error::new(Operation::Read, name.as_os_str(), Errno::EFBIG));
        }
        Ok(Some(content))
    }

    /// Atomically creates or replaces the file `name`: after a power failure at any time the file has the old or the
    /// new content. When the call returns, the new content is durable and the file has exactly `mode`, regardless of
    /// the umask. A replaced file keeps its owner.
    ///
    /// Only one process may write a name at a time, because the content is first written to `.NAME.new`.
    ///
    /// # Errors
    /// `ENOSPC`, `EDQUOT`, `EIO`: the old file is unchanged. `ENAMETOOLONG` if `.NAME.new` is too long. `EPERM` if
    /// another user owns the old file and the process may not change owners.
    pub fn write(&self, name: &Name, content: &[u8], mode: Mode) -> Result<(), Error> {
        let failed = |operation| move |errno| Error::new(operation, name.as_os_str(), errno);
        let sibling = sibling_of(name);
        let create = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
        let mut file = match self.resolve(Path::new(&sibling), create, mode) {
            Err(Errno::EEXIST) => {
                // An interrupted run left the file, which is not reused because its mode may differ.
                unlinkat(self, sibling.as_os_str(), UnlinkatFlags::NoRemoveDir).map_err(failed(Operation::Remove))?;
                self.resolve(Path::new(&sibling), create, mode)
            }
            opened => opened,
        }
        .map(File::from)
        .map_err(failed(Operation::Write))?;

        file.write_all(content)
            .and_then(|()| self.keep_owner(name, &file).map_err(io::Error::from))
            // open(2) applies the umask; a write without CAP_FSETID clears the set-ID bits.
            .and_then(|()| fchmod(&file, mode).map_err(io::Error::from))
            .and_then(|()| file.sync_all())
            .map_err(|error| errno_of(&error))
            .and_then(|()| renameat(self, sibling.as_os_str(), self, name.as_os_str()))
            .map_err(|errno| {
                // Report the error of the write; the next write removes the sibling if this fails.
                let _ = unlinkat(self, sibling.as_os_str(), UnlinkatFlags::NoRemoveDir);
                failed(Operation::Write)(errno)
            })?;
        fsync(self).map_err(failed(Operation::Sync))
    }

    /// Renames `name` to `to/new_name` within the file system. Never replaces an existing name. Durable after
    /// [`Dir::sync`] of both directories.
    ///
    /// # Errors
    /// `EEXIST` if `new_name` exists; `EXDEV` for another file system, or on XFS if `to` makes new files inherit a
    /// project ID other than that of this directory.
    ///
    /// `RENAME_NOREPLACE`, Linux 3.15, rename(2).
    pub fn rename(&self, name: &Name, to: &Self, new_name: &Name) -> Result<(), Error> {
        renameat2(self, name.as_os_str(), to, new_name.as_os_str(), RenameFlags::RENAME_NOREPLACE)
            .map_err(|errno| Error::new(Operation::Rename, name.as_os_str(), errno))
    }

    /// Exchanges `name` and `to/other` within the file system, in one step. Durable after [`Dir::sync`] of both
    /// directories.
    ///
    /// # Errors
    /// `ENOENT` if one of both does not exist; `EXDEV` as for [`Dir::rename`], in both directions.
    ///
    /// `RENAME_EXCHANGE`, Linux 3.15, rename(2).
    pub fn exchange(&self, name: &Name, to: &Self, other: &Name) -> Result<(), Error> {
        renameat2(self, name.as_os_str(), to, other.as_os_str(), RenameFlags::RENAME_EXCHANGE)
            .map_err(|errno| Error::new(Operation::Rename, name.as_os_str(), errno))
    }

    /// Flushes the entries and attributes of this directory to the disk.
    ///
    /// # Errors
    /// `EIO`, `ENOSPC`.
    pub fn sync(&self) -> Result<(), Error> {
        fsync(self).map_err(|errno| Error::new(Operation::Sync, ".", errno))
    }

    /// Flushes the whole file system of this directory to the disk, including quota records.
    ///
    /// # Errors
    /// `EIO`, `ENOSPC`.
    pub fn syncfs(&self) -> Result<(), Error> {
        syncfs(self).map_err(|errno| Error::new(Operation::SyncFileSystem, ".", errno))
    }

    /// The names in this directory without `.` and `..`, in the order of the file system.
    ///
    /// # Errors
    /// `ENOTDIR`, `EIO`.
    pub fn names(&self) -> Result<Vec<Name>, Error> {
        let failed = |errno| Error::new(Operation::List, ".", errno);
        let mut names = Vec::new();
        for entry in self.stream()?.iter() {
            let entry = entry.map_err(failed)?;
            // The conversion fails only for `.` and `..`.
            names.extend(Name::try_from(OsStr::from_bytes(entry.file_name().to_bytes())).ok());
        }
        Ok(names)
    }

    /// Whether this directory has no entries.
    ///
    /// # Errors
    /// Those of [`Dir::names`].
    pub fn is_empty(&self) -> Result<bool, Error> {
        for entry in self.stream()?.iter() {
            let entry = entry.map_err(|errno| Error::new(Operation::List, ".", errno))?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes `name`, which must not be a directory.
    ///
    /// # Errors
    /// `ENOENT`; `EISDIR` for a directory; `EBUSY` for a mount point.
    pub fn remove_file(&self, name: &Name) -> Result<(), Error> {
        unlinkat(self, name.as_os_str(), UnlinkatFlags::NoRemoveDir)
            .map_err(|errno| Error::new(Operation::Remove, name.as_os_str(), errno))
    }

    /// Removes the empty directory `name`.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`; `ENOTEMPTY`; `EBUSY` for a mount point.
    pub fn remove_dir(&self, name: &Name) -> Result<(), Error> {
        unlinkat(self, name.as_os_str(), UnlinkatFlags::RemoveDir)
            .map_err(|errno| Error::new(Operation::Remove, name.as_os_str(), errno))
    }

    /// Opens this directory again, with an independent file offset.
    pub(crate) fn stream(&self) -> Result<Stream, Error> {
        self.resolve(Path::new("."), DIRECTORY, Mode::empty())
            .and_then(Stream::from_fd)
            .map_err(|errno| Error::new(Operation::List, ".", errno))
    }

    fn open_dir_with(&self, name: &Name, mode: Mode) -> Result<Self, Error> {
        let dir = self.open_dir(name)?;
        // mkdir(2) applies the umask.
        fchmod(&dir, mode).map_err(|errno| Error::new(Operation::SetMode, name.as_os_str(), errno))?;
        Ok(dir)
    }

    fn resolve(&self, path: &Path, flags: OFlag, mode: Mode) -> Result<OwnedFd, Errno> {
        // openat2(2) returns EINVAL for a mode without O_CREAT.
        let mode = if flags.intersects(OFlag::O_CREAT) { mode } else { Mode::empty() };
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .mode(mode)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV);
        openat2(self, path, how)
    }
}

fn sibling_of(name: &Name) -> OsString {
    let mut sibling = OsString::from(".");
    sibling.push(name);
    sibling.push(".new");
    sibling
}

/// The errno of a failed read or write; `EIO` for errors of the standard library, such as a short write.
pub(crate) fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use tempfile::TempDir;

    use super::*;

    struct Scratch {
        on_disk: TempDir,
        dir: Dir,
    }

    impl Scratch {
        fn new() -> Self {
            let on_disk = tempfile::tempdir().expect("create a temporary directory");
            let dir = Dir::open(on_disk.path()).expect("open the temporary directory");
            Self { on_disk, dir }
        }
    }

    fn name(text: &str) -> Name {
        Name::try_from(text).expect("valid name")
    }

    const PRIVATE: Mode = Mode::S_IRWXU;

    #[test]
    fn a_write_replaces_the_file_atomically() {
        let Scratch { on_disk, dir } = Scratch::new();
        dir.write(&name("a"), b"first", Mode::from_bits_truncate(0o600)).unwrap();
        let first = fs::metadata(on_disk.path().join("a")).unwrap();
        assert_eq!(first.mode() & 0o7777, 0o600);
        dir.write(&name("a"), b"second", Mode::from_bits_truncate(0o600)).unwrap();
        assert_eq!(dir.read(&name("a")).unwrap().unwrap(), b"second");
        assert_ne!(fs::metadata(on_disk.path().join("a")).unwrap().ino(), first.ino());
        assert_eq!(dir.names().unwrap(), vec![name("a")]);
    }

    #[test]
    fn a_write_succeeds_after_an_interrupted_one() {
        let Scratch { on_disk, dir } = Scratch::new();
        fs::write(on_disk.path().join(".a.new"), b"half").unwrap();
        dir.write(&name("a"), b"whole", PRIVATE).unwrap();
        assert_eq!(dir.read(&name("a")).unwrap().unwrap(), b"whole");
        assert_eq!(dir.names().unwrap(), vec![name("a")]);
    }

    #[test]
    fn a_failed_write_leaves_no_sibling() {
        let Scratch { on_disk, dir } = Scratch::new();
        fs::create_dir(on_disk.path().join("a")).unwrap();
        assert_eq!(dir.write(&name("a"), b"x", PRIVATE).unwrap_err().errno(), Errno::EISDIR);
        assert_eq!(dir.names().unwrap(), vec![name("a")]);
    }

    #[test]
    fn read_gives_none_if_missing_and_efbig_if_too_large() {
        let Scratch { on_disk, dir } = Scratch::new();
        assert_eq!(dir.read(&name("a")).unwrap(), None);
        File::create(on_disk.path().join("a")).unwrap().set_len(MAX_READ + 1).unwrap();
        assert_eq!(dir.read(&name("a")).unwrap_err().errno(), Errno::EFBIG);
        File::options().write(true).open(on_disk.path().join("a")).unwrap().set_len(MAX_READ).unwrap();
        assert_eq!(dir.read(&name("a")).unwrap().unwrap().len() as u64, MAX_READ);
    }

    #[test]
    fn symbolic_links_are_neither_opened_nor_read() {
        let Scratch { on_disk, dir } = Scratch::new();
        fs::create_dir(on_disk.path().join("real")).unwrap();
        fs::write(on_disk.path().join("secret"), b"x").unwrap();
        symlink("real", on_disk.path().join("link")).unwrap();
        symlink("secret", on_disk.path().join("file-link")).unwrap();
        assert_eq!(dir.open_dir(&name("link")).unwrap_err().errno(), Errno::ELOOP);
        assert_eq!(dir.open_beneath(Path::new("link/deeper")).unwrap_err().errno(), Errno::ELOOP);
        assert_eq!(dir.read(&name("file-link")).unwrap_err().errno(), Errno::ELOOP);
    }

    #[test]
    fn a_path_cannot_leave_the_directory() {
        let Scratch { on_disk, dir } = Scratch::new();
        fs::create_dir_all(on_disk.path().join("a/b")).unwrap();
        let a = dir.open_dir(&name("a")).unwrap();
        assert_eq!(a.open_beneath(Path::new("../a")).unwrap_err().errno(), Errno::EXDEV);
        assert_eq!(a.open_beneath(Path::new("/")).unwrap_err().errno(), Errno::EXDEV);
        assert!(dir.open_beneath(Path::new("a/b")).is_ok());
    }

    #[test]
    fn other_mounts_are_not_entered() {
        let root = Dir::open(Path::new("/")).unwrap();
        assert_eq!(root.open_dir(&name("proc")).unwrap_err().errno(), Errno::EXDEV);
    }

    #[test]
    fn a_rename_never_replaces_an_existing_name() {
        let Scratch { on_disk: _kept, dir } = Scratch::new();
        let from = dir.create_dir(&name("from"), PRIVATE).unwrap();
        let to = dir.create_dir(&name("to"), PRIVATE).unwrap();
        from.write(&name("a"), b"new", PRIVATE).unwrap();
        to.write(&name("a"), b"old", PRIVATE).unwrap();
        assert_eq!(from.rename(&name("a"), &to, &name("a")).unwrap_err().errno(), Errno::EEXIST);
        from.rename(&name("a"), &to, &name("b")).unwrap();
        assert_eq!(to.read(&name("a")).unwrap().unwrap(), b"old");
        assert_eq!(to.read(&name("b")).unwrap().unwrap(), b"new");
        assert!(from.is_empty().unwrap());
        assert!(!to.is_empty().unwrap());
    }

    #[test]
    fn an_exchange_needs_both_names() {
        let Scratch { on_disk: _kept, dir: from } = Scratch::new();
        let to = from.create_dir(&name("to"), PRIVATE).unwrap();
        from.write(&name("a"), b"1", PRIVATE).unwrap();
        assert_eq!(from.exchange(&name("a"), &to, &name("b")).unwrap_err().errno(), Errno::ENOENT);
        to.write(&name("b"), b"2", PRIVATE).unwrap();
        from.exchange(&name("a"), &to, &name("b")).unwrap();
        assert_eq!(from.read(&name("a")).unwrap().unwrap(), b"2");
        assert_eq!(to.read(&name("b")).unwrap().unwrap(), b"1");
    }

    #[test]
    fn ensure_dir_creates_once_and_sets_the_mode() {
        let Scratch { on_disk, dir } = Scratch::new();
        let mode = |on_disk: &TempDir| fs::metadata(on_disk.path().join("a")).unwrap().permissions().mode() & 0o7777;
        let open = Mode::from_bits_truncate(0o777);
        assert!(matches!(dir.ensure_dir(&name("a"), open).unwrap(), Ensured::Created(_)));
        assert_eq!(mode(&on_disk), 0o777); // regardless of the umask
        assert!(matches!(dir.ensure_dir(&name("a"), PRIVATE).unwrap(), Ensured::Unchanged(_)));
        assert_eq!(mode(&on_disk), 0o700);
        assert_eq!(dir.create_dir(&name("a"), open).unwrap_err().errno(), Errno::EEXIST);
    }

    #[test]
    fn remove_file_and_remove_dir_check_the_type() {
        let Scratch { on_disk: _kept, dir } = Scratch::new();
        dir.write(&name("file"), b"", PRIVATE).unwrap();
        let inner = dir.create_dir(&name("dir"), PRIVATE).unwrap();
        inner.write(&name("file"), b"", PRIVATE).unwrap();
        assert_eq!(dir.remove_file(&name("dir")).unwrap_err().errno(), Errno::EISDIR);
        assert_eq!(dir.remove_dir(&name("file")).unwrap_err().errno(), Errno::ENOTDIR);
        assert_eq!(dir.remove_dir(&name("dir")).unwrap_err().errno(), Errno::ENOTEMPTY);
        inner.remove_file(&name("file")).unwrap();
        dir.remove_dir(&name("dir")).unwrap();
        dir.remove_file(&name("file")).unwrap();
        assert!(dir.remove_file(&name("file")).unwrap_err().is_not_found());
    }

    #[test]
    fn an_error_names_the_operation_and_the_file() {
        let Scratch { on_disk: _kept, dir } = Scratch::new();
        let error = dir.open_dir(&name("missing")).unwrap_err();
        assert_eq!(error.operation(), Operation::Open);
        assert_eq!(error.to_string(), "cannot open missing");
        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), Errno::ENOENT.to_string());
    }
}
