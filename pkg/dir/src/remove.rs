//! Removing a tree that someone else made.

use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::libc;
use nix::sys::stat::{Mode, fstatat};

use crate::{Dir, Error, Name, Operation, sys};

/// Descriptors held at once. The owner of a tree chooses its depth, beyond any stack and any limit of descriptors:
/// what is deeper is moved up first.
const MAX_DEPTH: usize = 24;

impl Dir {
    /// Removes `name` and everything below it, like `rm -r` but by descriptors: it follows no symbolic link and enters
    /// no other mount. A name that is not there is no error. Durable after [`Dir::sync`].
    ///
    /// A tree of any depth is removed with a bounded number of descriptors: what is too deep is moved into this
    /// directory, as `.NAME.NUMBER`. `name` itself goes last, so as long as it is there, something may be left to do,
    /// and the next call does it.
    ///
    /// Nobody may add to the tree meanwhile.
    ///
    /// # Errors
    /// `EXDEV` or `EBUSY` if something is mounted in the tree; `EPERM` for what is immutable, without the privilege to
    /// change that; `EIO`. What was not removed stays.
    pub fn remove_all(&self, name: &Name) -> Result<(), Error> {
        match self.insist(name, || self.remove_file(name)) {
            Ok(()) => return Ok(()),
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) if error.errno() == Errno::EISDIR => {}
            Err(error) => return Err(error),
        }
        self.empty_dir(name)?;
        self.insist(name, || self.remove_dir(name))
    }

    /// Takes the flags "immutable" and "append only" off `name`, so that it can be moved and removed. Returns whether it
    /// had one; what is neither a file nor a directory has none.
    ///
    /// # Errors
    /// `ENOENT`; `EPERM` without `CAP_LINUX_IMMUTABLE`.
    ///
    /// `FS_IOC_SETFLAGS`, ioctl_iflags(2).
    pub fn unprotect(&self, name: &Name) -> Result<bool, Error> {
        let failed = |errno| Error::new(Operation::SetFlags, name.as_os_str(), errno);
        let stat = fstatat(self, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW).map_err(failed)?;
        if !matches!(stat.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFDIR) {
            return Ok(false);
        }
        let inode = self.open_file(name, OFlag::O_RDONLY | OFlag::O_NONBLOCK, Mode::empty())?;
        sys::unprotect(inode.as_fd()).map_err(failed)
    }

    /// Once more without the flags that forbid it: who may set them may do so anywhere in a tree.
    fn insist(&self, name: &Name, remove: impl Fn() -> Result<(), Error>) -> Result<(), Error> {
        match remove() {
            Err(error) if error.errno() == Errno::EPERM => {
                // Those of the directory too. What the kernel says of the removal is the reason to tell.
                let here = sys::unprotect(self.as_fd()).unwrap_or(false);
                let there = self.unprotect(name).unwrap_or(false);
                if here || there { remove() } else { Err(error) }
            }
            done => done,
        }
    }

    /// Removes everything below the directory `name` as [`Dir::remove_all`] does, but not the directory itself.
    ///
    /// # Errors
    /// As [`Dir::remove_all`]; `ENOENT` if it is not there, `ENOTDIR` if it is no directory.
    pub fn empty_dir(&self, name: &Name) -> Result<(), Error> {
        let dir = self.open_dir(name)?;
        let mut deep = Deep::found_beside(self, name)?;
        deep.empty(&dir, 1)?;
        while let Some(moved) = deep.waiting()? {
            deep.empty(&self.open_dir(&moved)?, 1)?;
            self.insist(&moved, || self.remove_dir(&moved))?;
        }
        Ok(())
    }
}

/// The subtrees that were too deep, waiting beside the tree they come from. As many as the tree's owner likes: they are
/// remembered on the disk only.
struct Deep<'a> {
    beside: &'a Dir,
    prefix: Vec<u8>,
    next: u64,
}

impl<'a> Deep<'a> {
    /// With those that a cut run left.
    fn found_beside(beside: &'a Dir, name: &Name) -> Result<Self, Error> {
        let prefix = [b".", name.as_os_str().as_bytes(), b"."].concat();
        let mut deep = Self { beside, prefix, next: 0 };
        for entry in beside.stream()?.iter() {
            let entry = entry.map_err(|errno| Error::new(Operation::List, ".", errno))?;
            if let Some(number) = deep.number_of(entry.file_name().to_bytes()) {
                deep.next = deep.next.max(number.saturating_add(1));
            }
        }
        Ok(deep)
    }

    /// One of them, if there is any.
    fn waiting(&self) -> Result<Option<Name>, Error> {
        if self.next == 0 {
            return Ok(None);
        }
        for entry in self.beside.stream()?.iter() {
            let entry = entry.map_err(|errno| Error::new(Operation::List, ".", errno))?;
            let name = entry.file_name().to_bytes();
            if self.number_of(name).is_some() {
                return Ok(Name::try_from(OsStr::from_bytes(name)).ok());
            }
        }
        Ok(None)
    }

    fn number_of(&self, name: &[u8]) -> Option<u64> {
        let digits = name.strip_prefix(self.prefix.as_slice())?;
        if !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        str::from_utf8(digits).ok()?.parse().ok()
    }

    /// Removes everything in `dir`, which is `depth` levels below the start.
    fn empty(&mut self, dir: &Dir, depth: usize) -> Result<(), Error> {
        loop {
            let mut removed = false;
            for entry in dir.stream()?.iter() {
                let entry = entry.map_err(|errno| Error::new(Operation::List, ".", errno))?;
                // Only `.` and `..` are no names.
                let Ok(name) = Name::try_from(OsStr::from_bytes(entry.file_name().to_bytes())) else { continue };
                match dir.insist(&name, || dir.remove_file(&name)) {
                    Ok(()) => {}
                    Err(error) if error.errno() == Errno::EISDIR => self.remove_subtree(dir, &name, depth)?,
                    Err(error) => return Err(error),
                }
                removed = true;
            }
            // While names are removed a reader may miss others, so only an empty pass ends.
            if !removed {
                return Ok(());
            }
        }
    }

    fn remove_subtree(&mut self, dir: &Dir, name: &Name, depth: usize) -> Result<(), Error> {
        match dir.insist(name, || dir.remove_dir(name)) {
            Err(error) if error.errno() == Errno::ENOTEMPTY => {}
            done => return done,
        }
        if depth < MAX_DEPTH {
            self.empty(&dir.open_dir(name)?, depth + 1)?;
            return dir.insist(name, || dir.remove_dir(name));
        }
        let moved = [self.prefix.as_slice(), self.next.to_string().as_bytes()].concat();
        let moved = Name::try_from(OsStr::from_bytes(&moved))
            .map_err(|_| Error::new(Operation::Rename, name.as_os_str(), Errno::ENAMETOOLONG))?;
        dir.insist(name, || dir.rename(name, self.beside, &moved))?;
        self.next += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn name(text: &str) -> Name {
        Name::try_from(text).expect("the test's names are good")
    }

    fn chain(top: &Dir, levels: usize) {
        let mut dir = top.try_clone().unwrap();
        for _ in 0..levels {
            dir = dir.create_dir(&name("d"), Mode::S_IRWXU).unwrap();
            dir.open_file(&name("f"), OFlag::O_CREAT | OFlag::O_WRONLY, Mode::S_IRWXU).unwrap();
        }
    }

    #[test]
    fn a_tree_with_links_is_removed_and_what_they_point_to_stays() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = Dir::open(scratch.path()).unwrap();
        fs::create_dir_all(scratch.path().join("tree/sub/empty")).unwrap();
        fs::create_dir(scratch.path().join("outside")).unwrap();
        fs::write(scratch.path().join("outside/kept"), b"x").unwrap();
        symlink("../outside", scratch.path().join("tree/link")).unwrap();
        symlink(scratch.path().join("outside"), scratch.path().join("tree/sub/absolute")).unwrap();
        dir.remove_all(&name("tree")).unwrap();
        assert_eq!(dir.names().unwrap(), vec![name("outside")]);
        assert!(scratch.path().join("outside/kept").exists());
    }

    #[test]
    fn a_tree_deeper_than_any_path_is_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = Dir::open(scratch.path()).unwrap();
        chain(&dir.create_dir(&name("tree"), Mode::S_IRWXU).unwrap(), 2500); // a path of 5000 bytes: over PATH_MAX
        dir.remove_all(&name("tree")).unwrap();
        assert!(dir.is_empty().unwrap());
    }

    #[test]
    fn many_trees_that_are_too_deep_are_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = Dir::open(scratch.path()).unwrap();
        let tree = dir.create_dir(&name("tree"), Mode::S_IRWXU).unwrap();
        for number in 0..12 {
            chain(&tree.create_dir(&name(&number.to_string()), Mode::S_IRWXU).unwrap(), 60);
        }
        dir.remove_all(&name("tree")).unwrap();
        assert!(dir.is_empty().unwrap());
    }

    #[test]
    fn what_a_cut_run_moved_up_is_removed_by_the_next() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = Dir::open(scratch.path()).unwrap();
        dir.create_dir(&name("tree"), Mode::S_IRWXU).unwrap();
        chain(&dir.create_dir(&name(".tree.7"), Mode::S_IRWXU).unwrap(), 60);
        dir.create_dir(&name(".tree.new"), Mode::S_IRWXU).unwrap();
        dir.create_dir(&name(".other.7"), Mode::S_IRWXU).unwrap();
        dir.remove_all(&name("tree")).unwrap();
        let mut left = dir.names().unwrap();
        left.sort();
        assert_eq!(left, vec![name(".other.7"), name(".tree.new")]);
    }

    #[test]
    fn a_large_directory_is_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = Dir::open(scratch.path()).unwrap();
        fs::create_dir(scratch.path().join("tree")).unwrap();
        for number in 0..3000 {
            fs::write(scratch.path().join(format!("tree/{number}")), b"").unwrap();
        }
        dir.remove_all(&name("tree")).unwrap();
        assert!(dir.is_empty().unwrap());
    }

    #[test]
    fn an_emptied_directory_stays() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = Dir::open(scratch.path()).unwrap();
        chain(&dir.create_dir(&name("tree"), Mode::S_IRWXU).unwrap(), 60);
        dir.empty_dir(&name("tree")).unwrap();
        assert_eq!(dir.names().unwrap(), vec![name("tree")]);
        assert!(dir.open_dir(&name("tree")).unwrap().is_empty().unwrap());
        assert!(dir.empty_dir(&name("missing")).unwrap_err().is_not_found());
    }

    #[test]
    fn a_file_and_a_missing_name_are_fine() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = Dir::open(scratch.path()).unwrap();
        dir.write(&name("file"), b"x", Mode::S_IRWXU).unwrap();
        dir.remove_all(&name("file")).unwrap();
        dir.remove_all(&name("file")).unwrap();
        assert!(dir.is_empty().unwrap());
    }
}
