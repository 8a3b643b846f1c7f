//! System calls that make data durable.

use std::fmt;
use std::path::{Path, PathBuf};

/// A system call that makes data durable, with the path of its file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flush {
    /// `fsync` of this file or directory.
    Fsync(PathBuf),
    /// `fdatasync` of this file.
    Fdatasync(PathBuf),
    /// `syncfs` of the file system of this file or directory.
    Syncfs(PathBuf),
    /// A file in this directory is opened with `O_DIRECT`: its writes bypass the page cache.
    Direct(PathBuf),
}

impl Flush {
    pub fn path(&self) -> &Path {
        match self {
            Self::Fsync(path) | Self::Fdatasync(path) | Self::Syncfs(path) | Self::Direct(path) => path,
        }
    }
}

/// The name of the call, and the last component of the path.
impl fmt::Display for Flush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.path().file_name().unwrap_or_default().display();
        match self {
            Self::Fsync(_) => write!(f, "fsync of {name}"),
            Self::Fdatasync(_) => write!(f, "fdatasync of {name}"),
            Self::Syncfs(_) => write!(f, "syncfs of {name}"),
            Self::Direct(_) => write!(f, "O_DIRECT in {name}"),
        }
    }
}
