use std::os::fd::{AsFd, BorrowedFd};

use nix::libc;
use nix::sys::statvfs::fstatvfs;

use crate::error::LookError;
use crate::{Attributes, sys};

/// Device and inode number. Equal for all mounts of an inode, different for different existing inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// `st_dev`: major and minor number.
    pub device: (u32, u32),
    /// `st_ino`.
    pub inode: u64,
}

/// File type, as far as it matters for mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A directory. Directories can only be mounted on directories.
    Directory,
    /// A regular file. All types except directories can be mounted on it.
    File,
    /// A block device with its major and minor number. Like a file for mounts.
    BlockDevice(u32, u32),
    /// A symbolic link. Nothing can be mounted on it.
    Link,
    /// A character device, socket or pipe. Like a file for mounts.
    Other,
}

/// File and mount of an open descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Inode; at a mount point, that of the mounted file or directory.
    pub identity: Identity,
    /// File type.
    pub kind: Kind,
    /// Size of a regular file in bytes; undefined for other types.
    pub size: u64,
    /// Mount ID, unique while the mount exists.
    pub mount: u64,
    /// Attributes of the mount if the descriptor refers to its root. `read_only` is also set for a writable mount of a
    /// read-only file system.
    pub mounted: Option<Attributes>,
    /// The inode has no name: a deleted file or directory that is still mounted or open.
    pub removed: bool,
}

/// File and mount of `file`, with at most two system calls, independent of the number of mounts. For the topmost mount
/// at a path, open the path with `O_PATH`. statx(2) with `STATX_MNT_ID` and `STATX_ATTR_MOUNT_ROOT`, fstatfs(2).
///
/// # Errors
/// [`LookError::KernelTooOld`] below Linux 5.8; [`LookError::Statx`], [`LookError::Statfs`] otherwise.
pub fn at(file: impl AsFd) -> Result<Place, LookError> {
    look(file.as_fd())
}

/// Device and inode number of `file`, with one system call.
pub fn identity(file: impl AsFd) -> Result<Identity, LookError> {
    Ok(identity_of(&sys::statx(file.as_fd()).map_err(LookError::Statx)?))
}

fn identity_of(found: &libc::statx) -> Identity {
    Identity { device: (found.stx_dev_major, found.stx_dev_minor), inode: found.stx_ino }
}

fn look(file: BorrowedFd<'_>) -> Result<Place, LookError> {
    const ROOT: u64 = libc::STATX_ATTR_MOUNT_ROOT as u64;
    let found = sys::statx(file).map_err(LookError::Statx)?;
    if found.stx_mask & libc::STATX_MNT_ID == 0 || found.stx_attributes_mask & ROOT == 0 {
        return Err(LookError::KernelTooOld);
    }
    let mounted = if found.stx_attributes & ROOT == 0 {
        None
    } else {
        Some(Attributes::of(fstatvfs(file).map_err(LookError::Statfs)?.flags()))
    };
    let kind = match libc::mode_t::from(found.stx_mode) & libc::S_IFMT {
        libc::S_IFDIR => Kind::Directory,
        libc::S_IFREG => Kind::File,
        libc::S_IFBLK => Kind::BlockDevice(found.stx_rdev_major, found.stx_rdev_minor),
        libc::S_IFLNK => Kind::Link,
        _ => Kind::Other,
    };
    let (identity, mount, removed) = (identity_of(&found), found.stx_mnt_id, found.stx_nlink == 0);
    Ok(Place { identity, kind, size: found.stx_size, mount, mounted, removed })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn the_root_is_a_mount_and_a_new_directory_is_none() {
        let root = File::open("/").expect("open /");
        assert!(at(&root).expect("look at /").mounted.is_some());

        let scratch = tempfile::tempdir().expect("a directory");
        let made = at(File::open(scratch.path()).expect("open it")).expect("look at it");
        assert_eq!((made.kind, made.mounted, made.removed), (Kind::Directory, None, false));
    }

    #[test]
    fn a_device_is_not_a_file() {
        let null = at(File::open("/dev/null").expect("open it")).expect("look at it");
        assert_eq!(null.kind, Kind::Other);
    }

    #[test]
    fn a_file_a_link_and_a_removed_directory_are_distinguished() {
        use nix::fcntl::{OFlag, open};
        use nix::sys::stat::Mode;

        let scratch = tempfile::tempdir().expect("a directory");
        let (file, link, gone) = (scratch.path().join("f"), scratch.path().join("l"), scratch.path().join("d"));
        fs::write(&file, "abc").expect("a file");
        std::os::unix::fs::symlink("f", &link).expect("a link");
        fs::create_dir(&gone).expect("a directory");

        let path = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let open = |name| open(name, path, Mode::empty()).expect("open it");
        assert_eq!(at(open(&file)).map(|place| (place.kind, place.size)), Ok((Kind::File, 3)));
        assert_eq!(at(open(&link)).map(|place| place.kind), Ok(Kind::Link));
        let held = open(&gone);
        fs::remove_dir(&gone).expect("remove it");
        assert_eq!(at(&held).map(|place| place.removed), Ok(true));
        assert_eq!(at(&held).map(|place| place.identity), identity(&held));
    }
}
