//! Owners of files and directories.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::unistd::{Gid, Uid, fchown, fchownat};

use crate::dir::errno_of;
use crate::{Dir, Error, Name, Operation};

/// Maximum number of levels of directories below the one that [`Dir::give_all`] is called with.
const DEPTH: usize = 16;

/// A user and a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The user.
    pub user: Uid,
    /// The group.
    pub group: Gid,
}

impl Owner {
    fn of(stat: &FileStat) -> Self {
        Self { user: Uid::from_raw(stat.st_uid), group: Gid::from_raw(stat.st_gid) }
    }
}

/// Action of [`Dir::give_all`] for an entry. The owner of a directory can prepare links; neither a symbolic link nor a
/// file that may have a name elsewhere is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The entry has the owner, or is neither a file nor a directory.
    Leave,
    Give,
    /// The entry is a directory.
    Enter,
    /// The entry is a file with several names.
    Reject,
}

fn plan(kind: SFlag, links: u64, owner: Owner, wanted: Owner) -> Step {
    match kind {
        SFlag::S_IFDIR => Step::Enter,
        SFlag::S_IFREG if owner == wanted => Step::Leave,
        SFlag::S_IFREG if links > 1 => Step::Reject,
        SFlag::S_IFREG => Step::Give,
        _ => Step::Leave,
    }
}

impl Dir {
    /// Makes `owner` the owner of the file `name`, if it is not yet.
    ///
    /// # Errors
    /// `ENOENT`; `EINVAL` if it is not a file; `EMLINK` for a file with several names; `EPERM`.
    pub fn give(&self, name: &Name, owner: Owner) -> Result<(), Error> {
        let (entry, stat) = self.entry(name)?;
        match plan(kind_of(&stat), stat.st_nlink, Owner::of(&stat), owner) {
            Step::Give => give(&entry, owner).map_err(|errno| Error::new(Operation::SetOwner, name.as_os_str(), errno)),
            Step::Reject => Err(Error::new(Operation::SetOwner, name.as_os_str(), Errno::EMLINK)),
            Step::Leave if kind_of(&stat) == SFlag::S_IFREG => Ok(()),
            Step::Leave | Step::Enter => Err(Error::new(Operation::SetOwner, name.as_os_str(), Errno::EINVAL)),
        }
    }

    /// Makes `owner` the owner of this directory and of all files and directories in it. Entries of other kinds, such
    /// as symbolic links, are left. A call that was cut short is completed by the next one.
    ///
    /// # Errors
    /// `EMLINK` for a file with several names; `ENAMETOOLONG` for directories in more than 16 levels; `EPERM`.
    pub fn give_all(&self, owner: Owner) -> Result<(), Error> {
        self.give_below(owner, DEPTH)
    }

    fn give_below(&self, owner: Owner, depth: usize) -> Result<(), Error> {
        for name in self.names()? {
            let (entry, stat) = self.entry(&name)?;
            let failed = |errno| Error::new(Operation::SetOwner, name.as_os_str(), errno);
            match plan(kind_of(&stat), stat.st_nlink, Owner::of(&stat), owner) {
                Step::Leave => {}
                Step::Give => give(&entry, owner).map_err(failed)?,
                Step::Enter if depth > 0 => self.open_dir(&name)?.give_below(owner, depth - 1)?,
                Step::Enter => return Err(failed(Errno::ENAMETOOLONG)),
                Step::Reject => return Err(failed(Errno::EMLINK)),
            }
        }
        let failed = |errno| Error::new(Operation::SetOwner, ".", errno);
        // The directory is changed last. A directory that has the owner has been completed, but files may have been
        // added since.
        if Owner::of(&fstat(self).map_err(failed)?) != owner {
            fchown(self, Some(owner.user), Some(owner.group)).map_err(failed)?;
        }
        Ok(())
    }

    /// Opens an entry of any kind, so that no other process can replace it between check and change.
    fn entry(&self, name: &Name) -> Result<(OwnedFd, FileStat), Error> {
        let entry = self.open_file(name, OFlag::O_PATH | OFlag::O_NOFOLLOW, Mode::empty())?;
        let stat = fstat(&entry).map_err(|errno| Error::new(Operation::Read, name.as_os_str(), errno))?;
        Ok((entry, stat))
    }

    /// Gives a new file the owner of the file `name`, if that exists.
    pub(crate) fn keep_owner(&self, name: &Name, new: &File) -> Result<(), Errno> {
        let owner = match fstatat(self, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Owner::of(&stat),
            Err(Errno::ENOENT) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        let found = new.metadata().map_err(|error| errno_of(&error))?;
        if (found.uid(), found.gid()) == (owner.user.as_raw(), owner.group.as_raw()) {
            return Ok(());
        }
        fchown(new, Some(owner.user), Some(owner.group))
    }
}

fn kind_of(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

/// Changes the owner through a descriptor that was opened with `O_PATH`, which fchown(2) rejects.
fn give(entry: impl AsFd, owner: Owner) -> Result<(), Errno> {
    fchownat(entry, "", Some(owner.user), Some(owner.group), AtFlags::AT_EMPTY_PATH)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use nix::unistd::{getegid, geteuid};

    use super::*;

    const ROOT: Owner = Owner { user: Uid::from_raw(0), group: Gid::from_raw(0) };
    const OTHER: Owner = Owner { user: Uid::from_raw(7), group: Gid::from_raw(7) };

    #[test]
    fn files_and_directories_alone_get_the_owner() {
        assert_eq!(plan(SFlag::S_IFREG, 1, ROOT, OTHER), Step::Give);
        assert_eq!(plan(SFlag::S_IFREG, 1, OTHER, OTHER), Step::Leave);
        // A directory that has the owner may have files that do not.
        assert_eq!(plan(SFlag::S_IFDIR, 2, OTHER, OTHER), Step::Enter);
        for kind in [SFlag::S_IFLNK, SFlag::S_IFIFO, SFlag::S_IFSOCK, SFlag::S_IFBLK, SFlag::S_IFCHR] {
            assert_eq!(plan(kind, 1, ROOT, OTHER), Step::Leave);
        }
    }

    #[test]
    fn a_file_with_another_name_elsewhere_does_not_get_the_owner() {
        assert_eq!(plan(SFlag::S_IFREG, 2, ROOT, OTHER), Step::Reject);
        let scratch = tempfile::tempdir().unwrap();
        let mine = fs::metadata(scratch.path()).unwrap();
        let other = Owner { user: Uid::from_raw(mine.uid() + 1), group: Gid::from_raw(mine.gid()) };
        fs::write(scratch.path().join("one"), "").unwrap();
        fs::hard_link(scratch.path().join("one"), scratch.path().join("two")).unwrap();
        let error = Dir::open(scratch.path()).unwrap().give_all(other).unwrap_err();
        assert_eq!(error.errno(), Errno::EMLINK);
    }

    #[test]
    fn what_has_the_owner_is_left_and_a_link_is_not_followed() {
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir_all(scratch.path().join("a/b")).unwrap();
        fs::write(scratch.path().join("a/b/file"), "").unwrap();
        symlink("/", scratch.path().join("a/root")).unwrap();
        symlink("b/file", scratch.path().join("a/link")).unwrap();
        let mine = Owner { user: geteuid(), group: getegid() };
        let dir = Dir::open(scratch.path()).unwrap();
        dir.give_all(mine).unwrap();
        let a = dir.open_dir(&Name::try_from("a").unwrap()).unwrap();
        for (name, errno) in [("link", Errno::EINVAL), ("b", Errno::EINVAL), ("missing", Errno::ENOENT)] {
            assert_eq!(a.give(&Name::try_from(name).unwrap(), mine).unwrap_err().errno(), errno, "{name}");
        }
    }

    #[test]
    fn directories_in_too_many_levels_are_an_error() {
        let scratch = tempfile::tempdir().unwrap();
        let deep = "d/".repeat(DEPTH + 1);
        fs::create_dir_all(scratch.path().join(deep)).unwrap();
        let mine = Owner { user: geteuid(), group: getegid() };
        let error = Dir::open(scratch.path()).unwrap().give_all(mine).unwrap_err();
        assert_eq!(error.errno(), Errno::ENAMETOOLONG);
    }
}
