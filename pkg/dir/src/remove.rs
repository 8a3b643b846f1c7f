//! Removes trees that other users filled.

use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt;

use nix::dir::Type;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::libc;
use nix::sys::stat::{Mode, fchmod, fstatat};
use nix::unistd::{fchown, getegid, geteuid};

use crate::{Dir, Error, Name, Operation, sys};

/// Limit of open descriptors and recursion. The owner of a tree chooses its depth, so deeper subtrees are first moved
/// up.
const MAX_DEPTH: usize = 24;

/// Result of [`Dir::remove_all_within`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the tree may still be there"]
pub enum Progress {
    /// The tree is removed.
    Done,
    /// The steps are used up; the next call continues.
    Unfinished,
}

impl Dir {
    /// Removes `name` and everything below it, like `rm -r`. Follows no symbolic link and enters no other mount.
    /// Succeeds if `name` does not exist. Durable after [`Dir::sync`].
    ///
    /// The number of descriptors is bounded for trees of any depth: subtrees that are too deep are moved into the
    /// directory `.NAME.00` of this directory. A full disk has no space for that: then the ends of these subtrees are
    /// removed first. `name` itself is removed last, so while it exists, another call continues the removal.
    ///
    /// No other process may add to the tree meanwhile; otherwise use [`Dir::remove_all_within`].
    ///
    /// # Errors
    /// `EXDEV` or `EBUSY` if the tree contains a mount point; `EPERM` for immutable files without
    /// `CAP_LINUX_IMMUTABLE`; `ENOTEMPTY` if another process adds to the tree; `EIO`. The rest of the tree remains.
    pub fn remove_all(&self, name: &Name) -> Result<(), Error> {
        self.remove(name, None).map(drop)
    }

    /// Removes `name` like [`Dir::remove_all`], while other processes may have directories of the tree open and create,
    /// link and rename names in them. Takes at most `steps` steps, so that the call ends regardless of these processes:
    /// each name that a listing returns is a step, and so is each further attempt to remove a directory. A call with
    /// 100 steps or more removes or moves at least one name, if there is one. On a full disk, the last steps may be
    /// followed by a look at all directories on one path.
    ///
    /// From the top of the tree downwards, each directory is changed to the user and the group of this process and mode
    /// 0700 before it is listed. From then on, processes of other users without `CAP_DAC_OVERRIDE` get `EACCES` for
    /// each name in it, also through descriptors that they opened before. Names that disappear and directories that
    /// other processes move or replace cause no errors.
    ///
    /// # Errors
    /// Those of [`Dir::remove_all`] except `ENOTEMPTY`; `EPERM` without `CAP_CHOWN` and `CAP_FOWNER` if another user
    /// owns a directory of the tree.
    ///
    /// `openat2(2)`, Linux 5.6; `fchown(2)`, `fchmod(2)`.
    pub fn remove_all_within(&self, name: &Name, steps: u64) -> Result<Progress, Error> {
        self.remove(name, Some(steps))
    }

    fn remove(&self, name: &Name, steps: Option<u64>) -> Result<Progress, Error> {
        match self.retry_unprotected(name, || self.remove_file(name)) {
            Ok(()) => return Ok(Progress::Done),
            Err(error) if error.is_not_found() => return Ok(Progress::Done),
            Err(error) if error.errno() == Errno::EISDIR => {}
            Err(error) => return Err(error),
        }
        match Removal::continue_beside(self, name, steps)?.run(name) {
            Ok(()) => Ok(Progress::Done),
            Err(Stop::Spent) => Ok(Progress::Unfinished),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    /// Clears the flags "immutable" and "append only" of `name`, so that it can be moved and removed. Returns whether
    /// one was set. Succeeds for names that are neither files nor directories; they have no flags.
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

    /// Calls `remove`; on `EPERM`, clears the flags of the name and of the directory and calls `remove` again.
    fn retry_unprotected(&self, name: &Name, remove: impl Fn() -> Result<(), Error>) -> Result<(), Error> {
        match remove() {
            Err(error) if error.errno() == Errno::EPERM => {
                // Report the error of the removal, not of the ioctl.
                let here = sys::unprotect(self.as_fd()).unwrap_or(false);
                let there = self.unprotect(name).unwrap_or(false);
                if here || there { remove() } else { Err(error) }
            }
            done => done,
        }
    }

    /// Makes this process the owner of the directory and sets mode 0700.
    fn make_private(&self) -> Result<(), Error> {
        let own = || fchown(self, Some(geteuid()), Some(getegid())).and_then(|()| fchmod(self, Mode::S_IRWXU));
        let owned = match own() {
            Err(Errno::EPERM) if sys::unprotect(self.as_fd()).unwrap_or(false) => own(),
            done => done,
        };
        owned.map_err(|errno| Error::new(Operation::SetOwner, ".", errno))
    }
}

/// Reason why a removal stops.
enum Stop {
    /// The steps are used up.
    Spent,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A removal. Subtrees that were too deep are moved to a directory beside the tree. The tree's owner determines their
/// number, so they are recorded on the disk only, and not beside the tree, where other removals list them.
struct Removal<'a> {
    beside: &'a Dir,
    prefix: Vec<u8>,
    /// Whether an entry beside the tree may have subtrees of it.
    has_moved: bool,
    /// The directory for subtrees, open until it is removed.
    moved: Option<Dir>,
    /// Remaining steps; `None` if no other process may change the tree.
    left: Option<u64>,
}

impl<'a> Removal<'a> {
    /// Starts a removal, continuing with the subtrees that an interrupted run moved up.
    fn continue_beside(beside: &'a Dir, name: &Name, left: Option<u64>) -> Result<Self, Error> {
        let prefix = [b".", name.as_os_str().as_bytes(), b"."].concat();
        let mut removal = Self { beside, prefix, has_moved: true, moved: None, left };
        removal.has_moved = removal.waiting()?.is_some();
        Ok(removal)
    }

    fn run(mut self, name: &Name) -> Result<(), Stop> {
        let mut emptied = false;
        loop {
            while let Some(moved) = self.waiting()? {
                self.remove(self.beside, &moved, 0)?;
                self.moved = None;
            }
            if self.is_removed(self.beside, name)? {
                return Ok(());
            }
            if emptied {
                self.expect_changes(name)?;
            }
            self.empty_below(self.beside, name, 0)?;
            emptied = true;
        }
    }

    /// An entry beside the tree that has subtrees of it, if there is one: the directory for them, or a subtree that an
    /// earlier release moved.
    fn waiting(&self) -> Result<Option<Name>, Error> {
        if !self.has_moved {
            return Ok(None);
        }
        for entry in self.beside.stream()?.iter() {
            let entry = entry.map_err(|errno| Error::new(Operation::List, ".", errno))?;
            let name = entry.file_name().to_bytes();
            if self.is_moved(name) {
                return Ok(Name::try_from(OsStr::from_bytes(name)).ok());
            }
        }
        Ok(None)
    }

    fn is_moved(&self, name: &[u8]) -> bool {
        let digits = name.strip_prefix(self.prefix.as_slice()).unwrap_or_default();
        !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
    }

    /// Removes `name` and everything below it. `dir` is `depth` levels below the top.
    fn remove(&mut self, dir: &Dir, name: &Name, depth: usize) -> Result<(), Stop> {
        if self.is_removed(dir, name)? {
            return Ok(());
        }
        if depth == MAX_DEPTH {
            return self.move_up(dir, name);
        }
        self.empty_below(dir, name, depth)?;
        if self.is_removed(dir, name)? { Ok(()) } else { self.expect_changes(name) }
    }

    /// Removes `name` unless it is a directory with entries. Returns whether it is removed. Takes one step.
    fn is_removed(&mut self, dir: &Dir, name: &Name) -> Result<bool, Stop> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(1).ok_or(Stop::Spent)?;
        }
        let removed = match dir.retry_unprotected(name, || dir.remove_file(name)) {
            Err(error) if error.errno() == Errno::EISDIR => dir.retry_unprotected(name, || dir.remove_dir(name)),
            removed => removed,
        };
        match removed {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_found() => Ok(true),
            // Another process replaced the directory with a file; the next listing returns it.
            Err(error) if matches!(error.errno(), Errno::ENOTEMPTY | Errno::ENOTDIR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes everything in the directory `name`. If `name` is not a directory any more, the next listing handles it.
    fn empty_below(&mut self, dir: &Dir, name: &Name, depth: usize) -> Result<(), Stop> {
        enter(dir, name)?.map_or(Ok(()), |below| self.empty(&below, depth + 1))
    }

    /// Removes everything in `dir`, which is `depth` levels below the top.
    fn empty(&mut self, dir: &Dir, depth: usize) -> Result<(), Stop> {
        if self.left.is_some() {
            dir.make_private()?;
        }
        loop {
            let mut found = false;
            for entry in dir.stream()?.iter() {
                let entry = match entry {
                    Ok(entry) => entry,
                    // Another process removed the directory.
                    Err(Errno::ENOENT) => return Ok(()),
                    Err(errno) => return Err(Error::new(Operation::List, ".", errno).into()),
                };
                // The conversion fails only for `.` and `..`.
                let Ok(name) = Name::try_from(OsStr::from_bytes(entry.file_name().to_bytes())) else { continue };
                found = true;
                self.remove(dir, &name, depth)?;
            }
            // A listing may skip names while others are removed, so only a pass without entries ends the loop.
            if !found {
                return Ok(());
            }
        }
    }

    /// Moves a subtree that is too deep to the directory for subtrees. Removes its ends while the disk has no space for
    /// that.
    fn move_up(&mut self, dir: &Dir, name: &Name) -> Result<(), Stop> {
        loop {
            match self.try_move_up(dir, name) {
                Err(error) if matches!(error.errno(), Errno::ENOSPC | Errno::EDQUOT) => {}
                moved => return Ok(moved?),
            }
            let levels = self.remove_end(dir, name)?;
            if levels == 0 {
                return Ok(());
            }
            if let Some(left) = &mut self.left {
                *left = left.checked_sub(levels).ok_or(Stop::Spent)?;
            }
        }
    }

    /// Removes the directory at the end of one path down the subtree, and the files on this path. XFS needs no space
    /// for that. The path may have more levels than the call has steps, so they count afterwards. Returns their number.
    /// If `name` is not a directory any more, the next listing handles it.
    fn remove_end(&mut self, dir: &Dir, name: &Name) -> Result<u64, Stop> {
        let (mut above, mut name, mut levels) = (dir.try_clone()?, name.clone(), 0);
        while let Some(below) = enter(&above, &name)? {
            levels += 1;
            let Some(next) = self.remove_files(&below)? else {
                if !self.is_removed(&above, &name)? {
                    self.expect_changes(&name)?;
                }
                break;
            };
            (above, name) = (below, next);
        }
        Ok(levels)
    }

    /// Removes everything in `dir` except directories, and returns one of these.
    fn remove_files(&mut self, dir: &Dir) -> Result<Option<Name>, Stop> {
        if self.left.is_some() {
            dir.make_private()?;
        }
        loop {
            let (mut found, mut directory) = (false, None);
            for entry in dir.stream()?.iter() {
                let entry = match entry {
                    Ok(entry) => entry,
                    Err(Errno::ENOENT) => return Ok(None),
                    Err(errno) => return Err(Error::new(Operation::List, ".", errno).into()),
                };
                let Ok(name) = Name::try_from(OsStr::from_bytes(entry.file_name().to_bytes())) else { continue };
                found = true;
                if entry.file_type() == Some(Type::Directory) || !self.is_removed(dir, &name)? {
                    directory.get_or_insert(name);
                }
            }
            // As in `empty`, a listing may skip names.
            if directory.is_some() || !found {
                return Ok(directory);
            }
        }
    }

    fn try_move_up(&mut self, dir: &Dir, name: &Name) -> Result<(), Error> {
        let failed = |errno| Error::new(Operation::Rename, name.as_os_str(), errno);
        let to = match self.moved.take() {
            Some(to) => to,
            None => self.beside.ensure_dir(&self.moved_name()?, Mode::S_IRWXU)?.into_inner(),
        };
        let to: &Dir = self.moved.insert(to);
        self.has_moved = true;
        // No other entry of the directory has this name: each has the number of its inode.
        let number = match fstatat(dir, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => return Ok(()),
            stat => stat.map_err(failed)?.st_ino.to_string(),
        };
        let moved = Name::try_from(number.as_str()).map_err(|_| failed(Errno::EINVAL))?;
        match dir.retry_unprotected(name, || dir.rename(name, to, &moved)) {
            Err(error) if error.is_not_found() => Ok(()),
            // Another process replaced the subtree after the look at its number. The next listing returns the name.
            Err(error) if error.errno() == Errno::EEXIST && self.left.is_some() => Ok(()),
            done => done,
        }
    }

    /// Name of the directory for subtrees. An earlier release never gave this name to a subtree, and removes the
    /// directory like one.
    fn moved_name(&self) -> Result<Name, Error> {
        let name = [self.prefix.as_slice(), b"00"].concat();
        let name = OsStr::from_bytes(&name);
        Name::try_from(name).map_err(|_| Error::new(Operation::CreateDir, name, Errno::ENAMETOOLONG))
    }

    /// Returns `ENOTEMPTY` if no other process may change the tree. Called when a directory that was listed as empty
    /// has entries.
    fn expect_changes(&self, name: &Name) -> Result<(), Stop> {
        match self.left {
            Some(_) => Ok(()),
            None => Err(Error::new(Operation::Remove, name.as_os_str(), Errno::ENOTEMPTY).into()),
        }
    }
}

/// Opens the directory `name`. `None` if it is not a directory any more.
fn enter(dir: &Dir, name: &Name) -> Result<Option<Dir>, Error> {
    match dir.open_dir(name) {
        Ok(below) => Ok(Some(below)),
        Err(error) if matches!(error.errno(), Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn name(text: &str) -> Name {
        Name::try_from(text).expect("valid name")
    }

    fn scratch() -> (tempfile::TempDir, Dir) {
        let scratch = tempfile::tempdir().unwrap();
        let dir = Dir::open(scratch.path()).unwrap();
        (scratch, dir)
    }

    fn chain(top: &Dir, levels: usize) {
        let mut dir = top.try_clone().unwrap();
        for _ in 0..levels {
            dir = dir.create_dir(&name("d"), Mode::S_IRWXU).unwrap();
            dir.open_file(&name("f"), OFlag::O_CREAT | OFlag::O_WRONLY, Mode::S_IRWXU).unwrap();
        }
    }

    #[test]
    fn targets_of_links_in_a_removed_tree_remain() {
        let (scratch, dir) = scratch();
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
        let (_scratch, dir) = scratch();
        chain(&dir.create_dir(&name("tree"), Mode::S_IRWXU).unwrap(), 2500); // a path of 5000 bytes exceeds PATH_MAX
        dir.remove_all(&name("tree")).unwrap();
        assert!(dir.is_empty().unwrap());
    }

    #[test]
    fn subtrees_moved_up_by_an_interrupted_run_are_removed() {
        let (_scratch, dir) = scratch();
        dir.create_dir(&name("tree"), Mode::S_IRWXU).unwrap();
        chain(&dir.create_dir(&name(".tree.7"), Mode::S_IRWXU).unwrap(), 60);
        dir.create_dir(&name(".tree.new"), Mode::S_IRWXU).unwrap();
        dir.create_dir(&name(".other.7"), Mode::S_IRWXU).unwrap();
        dir.remove_all(&name("tree")).unwrap();
        let mut left = dir.names().unwrap();
        left.sort();
        assert_eq!(left, vec![name(".other.7"), name(".tree.new")]);
    }

    /// Regression: each subtree was moved beside the tree, where other removals list it.
    #[test]
    fn deep_subtrees_take_one_name_beside_the_tree() {
        let (_scratch, dir) = scratch();
        let mut deep = dir.create_dir(&name("tree"), Mode::S_IRWXU).unwrap();
        for _ in 1..MAX_DEPTH {
            deep = deep.create_dir(&name("d"), Mode::S_IRWXU).unwrap();
        }
        for number in 0..60 {
            chain(&deep.create_dir(&name(&number.to_string()), Mode::S_IRWXU).unwrap(), 2 * MAX_DEPTH);
        }
        while dir.remove_all_within(&name("tree"), 100).unwrap() == Progress::Unfinished {
            let names = dir.names().unwrap();
            assert!(names.len() <= 2 && names.contains(&name("tree")), "{names:?}");
        }
        assert!(dir.is_empty().unwrap());
    }

    #[test]
    fn a_large_directory_is_removed() {
        let (scratch, dir) = scratch();
        fs::create_dir(scratch.path().join("tree")).unwrap();
        for number in 0..3000 {
            fs::write(scratch.path().join(format!("tree/{number}")), b"").unwrap();
        }
        dir.remove_all(&name("tree")).unwrap();
        assert!(dir.is_empty().unwrap());
    }

    #[test]
    fn a_removal_stops_after_its_steps_and_the_next_continues() {
        let (_scratch, dir) = scratch();
        let make = || {
            let tree = dir.create_dir(&name("tree"), Mode::S_IRWXU).unwrap();
            for number in 0..3 {
                chain(&tree.create_dir(&name(&number.to_string()), Mode::S_IRWXU).unwrap(), 60);
            }
        };
        make();
        dir.remove_all(&name("tree")).unwrap();
        assert!(dir.is_empty().unwrap());

        make();
        let mut calls = 0;
        while dir.remove_all_within(&name("tree"), 40).unwrap() == Progress::Unfinished {
            calls += 1;
            assert!(dir.names().unwrap().contains(&name("tree")), "the tree itself is removed last");
            assert!(calls < 1000, "no end after {calls} calls");
        }
        // Two names on each of 60 levels of each chain.
        assert!(calls >= 3 * 60 * 2 / 40, "{calls} calls");
        assert!(dir.is_empty().unwrap());
    }

    #[test]
    fn a_directory_becomes_private_before_it_is_listed() {
        let (scratch, dir) = scratch();
        let tree = dir.create_dir(&name("tree"), Mode::from_bits_truncate(0o777)).unwrap();
        chain(&tree, 2);
        // The first step finds that the tree is not empty.
        assert_eq!(dir.remove_all_within(&name("tree"), 1).unwrap(), Progress::Unfinished);
        let mode = fs::metadata(scratch.path().join("tree")).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o700);
    }

    /// Regression: the removal never ended.
    #[test]
    fn a_removal_ends_while_another_process_adds_names() {
        const STEPS: u64 = 2000;
        let (_scratch, dir) = scratch();
        let tree = dir.create_dir(&name("tree"), Mode::S_IRWXU).unwrap();
        let end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0_u64.. {
                    let flags = OFlag::O_CREAT | OFlag::O_WRONLY;
                    // ENOENT once the directory is removed.
                    let made = tree.open_file(&name(&number.to_string()), flags, Mode::S_IRWXU);
                    if made.is_err() || end.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let ended = dir.remove_all_within(&name("tree"), STEPS);
            end.store(true, Ordering::Relaxed);
            // Either result is valid: the removal may finish before the other thread adds names.
            let _: Progress = ended.unwrap();
        });
        drop(tree);
        dir.remove_all(&name("tree")).unwrap();
        assert!(dir.is_empty().unwrap());
    }

    #[test]
    fn remove_all_accepts_a_file_and_a_missing_name() {
        let (_scratch, dir) = scratch();
        dir.write(&name("file"), b"x", Mode::S_IRWXU).unwrap();
        dir.remove_all(&name("file")).unwrap();
        dir.remove_all(&name("file")).unwrap();
        assert!(dir.is_empty().unwrap());
    }
}
