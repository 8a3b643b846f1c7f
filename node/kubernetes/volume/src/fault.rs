//! Faults of the data disk.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};

use fsquota::Fault;

/// A fault of the disk that the volumes are on, as the kernel has detected it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskFault {
    FileSystem(Fault),
    /// Requests to the disk that failed with a medium or I/O error since the boot.
    Requests(NonZeroU64),
    /// Critical warnings of the disk's controller, and their text.
    Warnings {
        count: NonZeroU32,
        text: String,
    },
}

/// Detects faults of the disk itself.
pub trait DiskObserver: fmt::Debug + Send + Sync {
    fn faults(&self) -> Vec<DiskFault>;
}

impl DiskFault {
    pub const KINDS: [&str; 5] = ["shutdown", "metadata", "groups", "io", "smart"];

    /// Label of metrics, and key of events.
    pub const fn kind(&self) -> &'static str {
        let [shutdown, metadata, groups, io, smart] = Self::KINDS;
        match self {
            Self::FileSystem(Fault::ShutDown) => shutdown,
            Self::FileSystem(Fault::Metadata) => metadata,
            Self::FileSystem(Fault::Groups { .. }) => groups,
            Self::Requests(_) => io,
            Self::Warnings { .. } => smart,
        }
    }

    /// Number of groups, requests or warnings; 1 for other faults.
    pub const fn count(&self) -> u64 {
        match self {
            Self::FileSystem(Fault::ShutDown | Fault::Metadata) => 1,
            Self::FileSystem(Fault::Groups { damaged, .. }) => damaged.get() as u64,
            Self::Requests(failed) => failed.get(),
            Self::Warnings { count, .. } => count.get() as u64,
        }
    }
}

impl fmt::Display for DiskFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FileSystem(fault) => fault.fmt(f),
            Self::Requests(failed) => write!(f, "{failed} requests to the disk failed with medium or I/O errors"),
            Self::Warnings { text, .. } => write!(f, "the controller of the disk warns about {text}"),
        }
    }
}
