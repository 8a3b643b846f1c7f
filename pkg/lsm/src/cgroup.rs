//! Cgroups, as BPF programs identify them.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlink};
use nix::sys::stat::{Mode, fstat};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, fstatfs};

use crate::sys;

/// Inode number of the root cgroup.
const ROOT: u64 = 1;

/// Limit of the level of a cgroup, above that of any hierarchy. The kernel's own limit for BPF programs is lower on
/// most machines.
const MAX_LEVEL: u32 = 256;

/// The kernel's ID of a cgroup of the unified hierarchy. A cgroup that is removed and created again has another ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupId(u64);

impl CgroupId {
    /// The ID of an open cgroup2 directory, which is its inode number (`name_to_handle_at`). [`CgroupError`] for any
    /// other file.
    pub fn of(directory: impl AsFd) -> Result<Self, CgroupError> {
        let directory = directory.as_fd();
        let kind = fstatfs(directory).map_err(CgroupError::system("fstatfs"))?.filesystem_type();
        if kind != CGROUP2_SUPER_MAGIC {
            return Err(CgroupError::NotCgroup2);
        }
        sys::kernfs_id(directory).map_err(CgroupError::system("name_to_handle_at")).map(Self)
    }

    /// Path of the cgroup's directory, found without a search (`open_by_handle_at`); `None` if the cgroup was removed.
    /// `hierarchy` is any open directory of cgroup2, and the path leads through its mount. Needs `CAP_DAC_READ_SEARCH`
    /// and `/proc`.
    pub fn path(self, hierarchy: impl AsFd) -> Result<Option<PathBuf>, CgroupError> {
        let directory = match sys::open_kernfs(hierarchy.as_fd(), self.0) {
            Ok(directory) => directory,
            Err(Errno::ESTALE) => return Ok(None),
            Err(source) => return Err(CgroupError::System { operation: "open_by_handle_at", source }),
        };
        let link = format!("/proc/self/fd/{}", directory.as_raw_fd());
        readlink(link.as_str()).map_err(CgroupError::system("readlink")).map(|path| Some(path.into()))
    }

    /// The plain number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Converts an ID that a program stored in a map.
    pub(crate) const fn from_kernel(id: u64) -> Self {
        Self(id)
    }
}

impl From<u64> for CgroupId {
    /// Converts the inode number of a cgroup's directory. The cgroup need not exist.
    fn from(inode: u64) -> Self {
        Self(inode)
    }
}

impl fmt::Display for CgroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A cgroup with its level below the root of the hierarchy. A program needs both to find it among a task's ancestors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cgroup {
    id: CgroupId,
    level: u32,
}

impl Cgroup {
    /// The cgroup of an open directory below the root of the hierarchy. The mount must show the root. [`CgroupError`]
    /// otherwise.
    pub fn of(directory: impl AsFd) -> Result<Self, CgroupError> {
        let directory = directory.as_fd();
        let id = CgroupId::of(directory)?;
        let level = level(directory)?;
        if level == 0 { Err(CgroupError::Root) } else { Ok(Self { id, level }) }
    }

    /// ID of the cgroup.
    pub const fn id(self) -> CgroupId {
        self.id
    }

    /// Number of cgroups above this one: 1 for a child of the root.
    pub const fn level(self) -> u32 {
        self.level
    }

    /// A cgroup for tests of programs. The cgroup need not exist.
    #[cfg(test)]
    pub(crate) const fn new(id: u64, level: u32) -> Self {
        Self { id: CgroupId(id), level }
    }
}

/// Number of levels below the root of the hierarchy, the only directory with inode number 1.
fn level(directory: BorrowedFd<'_>) -> Result<u32, CgroupError> {
    let start = fstat(directory).map_err(CgroupError::system("fstat"))?;
    let mut here = (start.st_dev, start.st_ino);
    let mut above: Option<OwnedFd> = None;
    for level in 0..MAX_LEVEL {
        if here.1 == ROOT {
            return Ok(level);
        }
        let below = above.as_ref().map_or(directory, AsFd::as_fd);
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let parent = openat(below, "..", flags, Mode::empty()).map_err(CgroupError::system("open"))?;
        let found = fstat(&parent).map_err(CgroupError::system("fstat"))?;
        if found.st_dev != here.0 {
            return Err(CgroupError::NotFromTheRoot);
        }
        here = (found.st_dev, found.st_ino);
        above = Some(parent);
    }
    Err(CgroupError::NotFromTheRoot)
}

/// A directory is not a cgroup that programs can be applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum CgroupError {
    /// The directory is on another file system.
    #[error("not a directory of cgroup2; mount it on /sys/fs/cgroup and open a cgroup there")]
    NotCgroup2,
    /// The root contains all tasks, including those of the node.
    #[error("the root of the hierarchy; only a cgroup below it can be restricted")]
    Root,
    /// The mount shows only a part of the hierarchy.
    #[error("the mount of cgroup2 does not show the root of the hierarchy; use the host's /sys/fs/cgroup")]
    NotFromTheRoot,
    /// A system call failed.
    #[error("{operation} of the cgroup failed")]
    System { operation: &'static str, source: Errno },
}

impl CgroupError {
    fn system(operation: &'static str) -> impl FnOnce(Errno) -> Self {
        move |source| Self::System { operation, source }
    }
}
