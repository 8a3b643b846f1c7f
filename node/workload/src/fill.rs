//! Writes until the first error.

use crate::CheckError;
use crate::finding::{Fill, FillInodes};
use crate::space;
use nix::errno::Errno;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Size of the largest write. Smaller writes fill the remaining space.
const CHUNK: usize = 1 << 20;
/// Content of the writes. A file system may store zeros as a hole.
pub(crate) static PATTERN: [u8; CHUNK] = [0xa5; CHUNK];
/// Size of the smallest write: a block, the allocation unit of the file system.
const BLOCK: usize = 4096;

pub(crate) fn bytes(directory: &Path, keep: bool) -> Result<Fill, CheckError> {
    let before = space::of(directory)?;
    let path = directory.join("fill");
    let mut file = File::create(&path).map_err(CheckError::of("create", &path))?;
    let (written, refusal) = write_until_error(&mut file, &PATTERN);
    let full = space::of(directory)?;
    if !keep {
        // XFS frees the space of a removed file in the background, and the space of a truncated file at once.
        file.set_len(0).map_err(CheckError::of("truncate", &path))?;
        drop(file);
        fs::remove_file(&path).map_err(CheckError::of("remove", &path))?;
    }
    Ok(Fill { before, written, errno: name(&refusal), full })
}

/// Repeats the content until the last block is written. Returns the number of bytes that `fsync` made durable, and the
/// error of the failed write.
pub(crate) fn write_until_error(file: &mut File, content: &[u8]) -> (u64, io::Error) {
    let (mut chunk, mut written, mut durable) = (content.len(), 0, 0);
    loop {
        match file.write(&content[..chunk]) {
            // A device may return 0 at its end.
            Ok(0) => return (durable, io::ErrorKind::WriteZero.into()),
            Ok(count) => written += count as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // XFS counts reserved blocks until writeback, so sync before trying smaller writes.
            Err(error) => match file.sync_data() {
                Ok(()) => {
                    durable = written;
                    if chunk <= BLOCK {
                        return (durable, error);
                    }
                    chunk = (chunk / 4).max(BLOCK);
                }
                Err(lost) => return (durable, lost),
            },
        }
    }
}

pub(crate) fn inodes(directory: &Path, keep: bool) -> Result<FillInodes, CheckError> {
    let before = space::of(directory)?;
    let files = directory.join("fill-inodes");
    fs::create_dir(&files).map_err(CheckError::of("create", &files))?;
    let mut created = 1;
    let refusal = loop {
        match File::create_new(files.join(created.to_string())) {
            Ok(_) => created += 1,
            Err(error) => break error,
        }
    };
    let full = space::of(directory)?;
    if !keep {
        fs::remove_dir_all(&files).map_err(CheckError::of("remove", &files))?;
    }
    Ok(FillInodes { before, created, errno: name(&refusal), full })
}

pub(crate) fn name(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.kind().to_string(), |raw| format!("{:?}", Errno::from_raw(raw)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_named_as_the_manual_pages_name_it() {
        assert_eq!(name(&io::Error::from_raw_os_error(28)), "ENOSPC");
        assert_eq!(name(&io::Error::from(io::ErrorKind::WriteZero)), "write zero");
    }
}
