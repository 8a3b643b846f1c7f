//! Error numbers of the kernel.

use core::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub(crate) u16);

macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        impl Errno {
            $($(#[$doc])* pub const $name: Self = Self($number);)*
        }

        impl fmt::Display for Errno {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$name => f.write_str(stringify!($name)),)*
                    Self(other) => write!(f, "errno {other}"),
                }
            }
        }
    };
}

errnos! {
    /// Operation not permitted. The protections return this error.
    EPERM = 1,
    ENOENT = 2,
    ENXIO = 6,
    /// Exec format error: the file is not a valid module or kernel.
    ENOEXEC = 8,
    EBADF = 9,
    /// Resource temporarily unavailable: `fork` reached the limit of a pids cgroup.
    EAGAIN = 11,
    EACCES = 13,
    EBUSY = 16,
    EEXIST = 17,
    EINVAL = 22,
    /// No space left on device: the project reached its XFS limit.
    ENOSPC = 28,
    ENOSYS = 38,
    EOPNOTSUPP = 95,
    EDQUOT = 122,
    /// Key was rejected by service: the kernel requires signed modules.
    EKEYREJECTED = 129,
}
