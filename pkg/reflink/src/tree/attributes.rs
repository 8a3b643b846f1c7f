//! Owners, modes, times and extended attributes.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{
    FchmodatFlags, FileStat, Mode, SFlag, UtimensatFlags, fchmod, fchmodat, fstat, futimens, utimensat,
};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, fchown, fchownat};
use rustix::fs::{
    XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr, lgetxattr, llistxattr, lremovexattr, lsetxattr,
};

use super::error::Fault;

/// Size in bytes of the first buffer, sufficient for most lists and values.
const SMALL: usize = 256;
/// `XATTR_SIZE_MAX` and `XATTR_LIST_MAX`, include/uapi/linux/limits.h.
const LARGEST: usize = 1 << 16;

/// Prefix of the names that POSIX ACLs have on the disk. For root, XFS lists ACLs twice: also by these names.
const ACL_ON_DISK: &[u8] = b"trusted.SGI_ACL_";

/// The capability of a file, which the kernel removes before each write.
const CAPABILITY: &[u8] = b"security.capability";
/// Copy of the capability while the sharing of the file ends. A clone of the file never has it: privileged containers
/// can set any value, and the end of the sharing of the clone restores the value.
const KEPT: &[u8] = b"trusted.reflink.capability";

/// Copies the attributes of `from`, whose status is `stat`, to `to`. The content has to be copied before: a write
/// clears set-ID bits and capabilities, as a change of the owner does.
pub(super) fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>, stat: &FileStat) -> Result<(), Fault> {
    let has = fstat(to).map_err(Fault::Target)?;
    let is_owned = (has.st_uid, has.st_gid) == (stat.st_uid, stat.st_gid);
    if !is_owned {
        fchown(to, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid))).map_err(Fault::Target)?;
    }
    let is_extended = copy_extended(&Inode::Open(from), &Inode::Open(to))?;
    // A new owner or ACL has changed the mode, and inherited ACLs are removed by now. Avoid a call without effect,
    // which is a transaction too.
    if !is_owned || is_extended || has.st_mode != stat.st_mode {
        fchmod(to, mode(stat)).map_err(Fault::Target)?;
    }
    set_times(to, stat).map_err(Fault::Target)
}

/// Like [`copy`], for an entry that cannot be opened, by its name in both directories.
pub(super) fn copy_entry(
    from: (BorrowedFd<'_>, &CStr),
    to: (BorrowedFd<'_>, &CStr),
    stat: &FileStat,
) -> Result<(), Fault> {
    let (dir, name) = to;
    let (user, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    fchownat(dir, name, Some(user), Some(group), AtFlags::AT_SYMLINK_NOFOLLOW).map_err(Fault::Target)?;
    copy_extended(&Inode::entry(from), &Inode::entry(to))?;
    // The mode of a symbolic link is fixed.
    if kind(stat) != SFlag::S_IFLNK {
        fchmodat(dir, name, mode(stat), FchmodatFlags::FollowSymlink).map_err(Fault::Target)?;
    }
    let (access, modification) = times(stat);
    utimensat(dir, name, &access, &modification, UtimensatFlags::NoFollowSymlink).map_err(Fault::Target)
}

/// Keeps the capability of a file, if it has one, during writes.
///
/// XFS logs the changes of a file in their order: after a kill or a power cut at any moment, the file has the
/// capability, or the copy, or both.
pub(super) fn keep_capability(file: BorrowedFd<'_>) -> Result<(), Errno> {
    duplicate(&Inode::Open(file), CAPABILITY, KEPT).map(drop)
}

/// Restores the capability that [`keep_capability`] has kept, if any.
pub(super) fn restore_capability(file: BorrowedFd<'_>) -> Result<(), Errno> {
    let file = Inode::Open(file);
    if duplicate(&file, KEPT, CAPABILITY)? { file.remove(KEPT) } else { Ok(()) }
}

/// Sets an attribute to the value of another one, if the file has that one. Returns whether it has.
fn duplicate(file: &Inode<'_>, from: &[u8], to: &[u8]) -> Result<bool, Errno> {
    match file.get(from) {
        Err(Errno::ENODATA) => Ok(false),
        value => file.set(to, &value?).map(|()| true),
    }
}

pub(super) fn set_times(inode: BorrowedFd<'_>, stat: &FileStat) -> Result<(), Errno> {
    let (access, modification) = times(stat);
    futimens(inode, &access, &modification)
}

pub(super) fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

fn mode(stat: &FileStat) -> Mode {
    Mode::from_bits_truncate(stat.st_mode)
}

fn times(stat: &FileStat) -> (TimeSpec, TimeSpec) {
    (TimeSpec::new(stat.st_atime, stat.st_atime_nsec), TimeSpec::new(stat.st_mtime, stat.st_mtime_nsec))
}

/// An inode whose extended attributes are read or set.
enum Inode<'a> {
    Open(BorrowedFd<'a>),
    /// Path of an entry through its open directory, because `f*xattr` rejects `O_PATH`. A symbolic link is not
    /// followed.
    Path(CString),
}

impl Inode<'_> {
    fn entry((dir, name): (BorrowedFd<'_>, &CStr)) -> Self {
        let path = [format!("/proc/self/fd/{}/", dir.as_raw_fd()).as_bytes(), name.to_bytes()].concat();
        Self::Path(CString::new(path).unwrap_or_default())
    }

    fn list(&self) -> Result<Vec<u8>, Errno> {
        read(|buffer| match self {
            Self::Open(inode) => flistxattr(inode, buffer),
            Self::Path(path) => llistxattr(path, buffer),
        })
    }

    fn get(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        read(|buffer| match self {
            Self::Open(inode) => fgetxattr(inode, name, buffer),
            Self::Path(path) => lgetxattr(path, name, buffer),
        })
    }

    fn set(&self, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        let set = match self {
            Self::Open(inode) => fsetxattr(inode, name, value, XattrFlags::empty()),
            Self::Path(path) => lsetxattr(path, name, value, XattrFlags::empty()),
        };
        set.map_err(errno)
    }

    fn remove(&self, name: &[u8]) -> Result<(), Errno> {
        let removed = match self {
            Self::Open(inode) => fremovexattr(inode, name),
            Self::Path(path) => lremovexattr(path, name),
        };
        removed.map_err(errno)
    }
}

/// Copies the extended attributes, and returns whether `to` has changed.
fn copy_extended(from: &Inode<'_>, to: &Inode<'_>) -> Result<bool, Fault> {
    let wanted = from.list().map_err(Fault::Source)?;
    let present = to.list().map_err(Fault::Target)?;
    let mut is_changed = false;
    for name in names(&wanted) {
        let value = from.get(name).map_err(Fault::Source)?;
        let is_equal = names(&present).any(|other| other == name) && to.get(name).as_ref() == Ok(&value);
        if !is_equal {
            to.set(name, &value).map_err(Fault::Target)?;
            is_changed = true;
        }
    }
    for name in names(&present).filter(|name| names(&wanted).all(|other| other != *name)) {
        to.remove(name).map_err(Fault::Target)?;
        is_changed = true;
    }
    Ok(is_changed)
}

/// Names of the attributes to copy in a list, in which a zero byte follows each name.
fn names(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let is_copied = |name: &&[u8]| !name.is_empty() && !name.starts_with(ACL_ON_DISK) && *name != KEPT;
    list.split(|byte| *byte == 0).filter(is_copied)
}

fn read(mut call: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>) -> Result<Vec<u8>, Errno> {
    for size in [SMALL, LARGEST] {
        let mut buffer = vec![0; size];
        match call(&mut buffer) {
            Err(rustix::io::Errno::RANGE) => {}
            length => {
                buffer.truncate(length.map_err(errno)?);
                return Ok(buffer);
            }
        }
    }
    // The list or value is larger than the largest buffer.
    Err(Errno::ERANGE)
}

fn errno(error: rustix::io::Errno) -> Errno {
    io::Error::from(error).raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acls_are_listed_once_and_kept_capabilities_never() {
        let list = b"user.a\0system.posix_acl_access\0trusted.SGI_ACL_FILE\0trusted.reflink.capability\0trusted.b\0";
        let expected: [&[u8]; 3] = [b"user.a", b"system.posix_acl_access", b"trusted.b"];
        assert!(names(list).eq(expected));
        assert_eq!(names(b"").count(), 0);
    }
}
