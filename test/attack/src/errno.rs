//! Errors of the kernel.

use core::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub(crate) u16);

impl Errno {
    /// Operation not permitted: what the protections return.
    pub const EPERM: Self = Self(1);
    pub const ENOENT: Self = Self(2);
    pub const ENXIO: Self = Self(6);
    pub const EBADF: Self = Self(9);
    /// Resource temporarily unavailable: `fork` at the limit of a pids cgroup.
    pub const EAGAIN: Self = Self(11);
    pub const EACCES: Self = Self(13);
    pub const EBUSY: Self = Self(16);
    pub const EEXIST: Self = Self(17);
    pub const EINVAL: Self = Self(22);
    /// No space left on device: XFS at the limit of a project.
    pub const ENOSPC: Self = Self(28);
    pub const ENOSYS: Self = Self(38);
    pub const EOPNOTSUPP: Self = Self(95);
    pub const EDQUOT: Self = Self(122);
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::EPERM => "EPERM",
            Self::ENOENT => "ENOENT",
            Self::ENXIO => "ENXIO",
            Self::EBADF => "EBADF",
            Self::EAGAIN => "EAGAIN",
            Self::EACCES => "EACCES",
            Self::EBUSY => "EBUSY",
            Self::EEXIST => "EEXIST",
            Self::EINVAL => "EINVAL",
            Self::ENOSPC => "ENOSPC",
            Self::ENOSYS => "ENOSYS",
            Self::EOPNOTSUPP => "EOPNOTSUPP",
            Self::EDQUOT => "EDQUOT",
            Self(other) => return write!(f, "errno {other}"),
        })
    }
}
