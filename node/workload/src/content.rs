//! Marker text. One tenant writes the text to a whole volume, and the next tenant searches its own volume for the text.

use crate::CheckError;
use crate::fill;
use crate::finding::{Paint, Scan};
use crate::space;
use nix::fcntl::{FallocateFlags, fallocate};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

const CHUNK: usize = 1 << 20;
/// Unit in which [`look`] counts blocks that contain other bytes than zeros.
const BLOCK: usize = 4096;
/// Smallest piece of space that [`fill_free_space`] allocates, in bytes.
const PIECE: i64 = 4096;

/// Repeats the text in the file or device until the first error.
pub(crate) fn paint(path: &Path, text: &str) -> Result<Paint, CheckError> {
    let file = if path.is_dir() { path.join("paint") } else { path.to_path_buf() };
    let mut options = OpenOptions::new();
    let open = options.write(true).create(true).truncate(false).open(&file);
    let mut file = open.map_err(CheckError::of("open", &file))?;
    let pattern: Vec<u8> = text.bytes().cycle().take(CHUNK).collect();
    let (written, refusal) = fill::write_until_error(&mut file, &pattern);
    Ok(Paint { written, errno: fill::name(&refusal) })
}

pub(crate) fn scan(path: &Path, text: &str) -> Result<Scan, CheckError> {
    let mut found = Scan { bytes: 0, data: 0, found: 0 };
    if path.is_dir() {
        let rest = fill_free_space(path)?;
        tree(path, text.as_bytes(), &mut found)?;
        if let Some(rest) = rest {
            fs::remove_file(&rest).map_err(CheckError::of("remove", &rest))?;
        }
    } else {
        file(path, text.as_bytes(), &mut found)?;
    }
    Ok(found)
}

/// Allocates all free space to a file, so that [`scan`] can search it for data of other tenants. `None` if there is no
/// free space.
fn fill_free_space(directory: &Path) -> Result<Option<PathBuf>, CheckError> {
    let path = directory.join("rest");
    let file = match File::create(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(None),
        Err(error) => return Err(CheckError::of("create", &path)(error)),
    };
    // The file's metadata uses the same space, so retry a failed allocation with half the size.
    let (mut end, mut piece) = (0, i64::try_from(space::of(directory)?.free).unwrap_or(i64::MAX));
    while piece >= PIECE {
        if fallocate(&file, FallocateFlags::empty(), end, piece).is_ok() {
            end += piece;
        } else {
            piece /= 2;
        }
    }
    if end > 0 {
        return Ok(Some(path));
    }
    fs::remove_file(&path).map_err(CheckError::of("remove", &path))?;
    Ok(None)
}

fn tree(directory: &Path, text: &[u8], found: &mut Scan) -> Result<(), CheckError> {
    for entry in fs::read_dir(directory).map_err(CheckError::of("list", directory))? {
        let entry = entry.map_err(CheckError::of("list", directory))?;
        let kind = entry.file_type().map_err(CheckError::of("stat", &entry.path()))?;
        if kind.is_dir() {
            tree(&entry.path(), text, found)?;
        } else if kind.is_file() {
            file(&entry.path(), text, found)?;
        }
    }
    Ok(())
}

fn file(path: &Path, text: &[u8], found: &mut Scan) -> Result<(), CheckError> {
    let mut file = File::open(path).map_err(CheckError::of("open", path))?;
    look(&mut file, text, found).map_err(CheckError::of("read", path))
}

/// Reads to the end. The window keeps the end of the previous chunk, because the text may lie across two chunks.
fn look(source: &mut impl Read, text: &[u8], found: &mut Scan) -> io::Result<()> {
    let overlap = text.len().saturating_sub(1);
    let mut chunk = vec![0; CHUNK];
    let mut window = Vec::new();
    loop {
        let count = match source.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let new = &chunk[..count];
        found.bytes += count as u64;
        let data: usize = new.chunks(BLOCK).filter(|block| **block != [0; BLOCK][..block.len()]).map(<[u8]>::len).sum();
        found.data += data as u64;
        window.extend_from_slice(new);
        if window.iter().any(|byte| *byte != 0) && !text.is_empty() {
            found.found += window.windows(text.len()).filter(|part| *part == text).count() as u64;
        }
        let keep = overlap.min(window.len());
        window.drain(..window.len() - keep);
    }
}

/// Content of a file or device up to the first zero byte.
pub(crate) fn beginning(path: &Path, limit: u64) -> Result<String, CheckError> {
    let mut content = Vec::new();
    File::open(path)
        .and_then(|file| file.take(limit).read_to_end(&mut content))
        .map_err(CheckError::of("read", path))?;
    let end = content.iter().position(|byte| *byte == 0).unwrap_or(content.len());
    Ok(String::from_utf8_lossy(&content[..end]).into_owned())
}

pub(crate) fn begin(path: &Path, text: &str) -> Result<(), CheckError> {
    let mut content = text.as_bytes().to_vec();
    // A zero byte ends the text. The bytes behind it may be of an earlier text.
    content.push(0);
    let mut device = OpenOptions::new().write(true).open(path).map_err(CheckError::of("open", path))?;
    device.write_all(&content).map_err(CheckError::of("write", path))?;
    device.sync_all().map_err(CheckError::of("sync", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look_in(content: &[u8], text: &str) -> Scan {
        let mut found = Scan { bytes: 0, data: 0, found: 0 };
        look(&mut &*content, text.as_bytes(), &mut found).unwrap();
        found
    }

    #[test]
    fn a_text_across_two_chunks_is_found_once() {
        let mut content = vec![0; 2 * CHUNK];
        content[CHUNK - 3..CHUNK + 3].copy_from_slice(b"secret");
        assert_eq!(look_in(&content, "secret"), Scan { bytes: 2 << 20, data: 2 * 4096, found: 1 });
    }

    #[test]
    fn zeros_are_not_data() {
        assert_eq!(look_in(&[0; 10_000], "secret"), Scan { bytes: 10_000, data: 0, found: 0 });
    }

    #[test]
    fn a_directory_is_looked_through_with_the_space_that_is_left() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("below")).unwrap();
        fs::write(directory.path().join("below/note"), "a secret and a secret").unwrap();
        let mut found = Scan { bytes: 0, data: 0, found: 0 };
        tree(directory.path(), b"secret", &mut found).unwrap();
        assert_eq!((found.found, found.bytes), (2, 21));
    }
}
