//! [`create_directory`]: the directory of a volume in a burst.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use fsquota::{Limits, ProjectId};
use units::Bytes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryLimit {
    /// A project quota of XFS.
    Quota,
    /// A file with the limit, which the kernel does not enforce.
    File,
}

impl DirectoryLimit {
    /// If the environment has this variable, the program `directory` sets a quota.
    pub const VARIABLE: &str = "BENCH_QUOTA";
}

/// Creates a directory with a limit. Both are durable when this returns.
pub fn create_directory(path: &Path, size: Bytes, limit: DirectoryLimit) -> io::Result<()> {
    fs::create_dir(path)?;
    let directory = File::open(path)?;
    match limit {
        DirectoryLimit::Quota => {
            // In an XFS of this size, inode numbers have 32 bits. No other directory has the same number.
            let id = u32::try_from(directory.metadata()?.ino()).ok().and_then(ProjectId::new);
            let id = id.ok_or_else(|| io::Error::other("the inode number is too large for a project ID"))?;
            fsquota::assign(&directory, id, Limits::for_size(size)).map_err(io::Error::other)?;
        }
        DirectoryLimit::File => {
            let mut file = File::create_new(path.join("limit"))?;
            file.write_all(size.get().to_string().as_bytes())?;
            file.sync_all()?;
        }
    }
    directory.sync_all()?;
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_replaces_the_quota() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("volume");
        create_directory(&path, Bytes::MIB, DirectoryLimit::File).unwrap();
        assert_eq!(fs::read_to_string(path.join("limit")).unwrap(), "1048576");
        let again = create_directory(&path, Bytes::MIB, DirectoryLimit::File).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
    }
}
