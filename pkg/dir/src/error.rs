//! [`Error`].

use std::fmt;
use std::path::PathBuf;

use nix::errno::Errno;

/// A failed operation on a directory or on a name in it. The errno is the source.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot {operation} {}", name.display())]
pub struct Error {
    operation: Operation,
    name: PathBuf,
    #[source]
    errno: Errno,
}

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are self-explanatory; Display has the text for messages")]
pub enum Operation {
    Open,
    CreateDir,
    SetMode,
    SetOwner,
    SetFlags,
    Read,
    Write,
    Rename,
    Sync,
    SyncFileSystem,
    List,
    Remove,
}

impl Error {
    pub(crate) fn new(operation: Operation, name: impl Into<PathBuf>, errno: Errno) -> Self {
        Self { operation, name: name.into(), errno }
    }

    /// The operation that failed.
    pub const fn operation(&self) -> Operation {
        self.operation
    }

    /// The errno of the system call.
    pub const fn errno(&self) -> Errno {
        self.errno
    }

    /// Whether the name does not exist (`ENOENT`).
    pub fn is_not_found(&self) -> bool {
        self.errno == Errno::ENOENT
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::CreateDir => "create directory",
            Self::SetMode => "set the mode of",
            Self::SetOwner => "set owner and mode of",
            Self::SetFlags => "set the flags of",
            Self::Read => "read",
            Self::Write => "write",
            Self::Rename => "rename",
            Self::Sync => "sync",
            Self::SyncFileSystem => "sync the file system of",
            Self::List => "list",
            Self::Remove => "remove",
        })
    }
}
