//! Descriptions of trees, for comparison.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{lgetxattr, llistxattr};
use units::Bytes;

/// An entry without its inode number. Times of access are left out, because reading the content changes them.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    mode: u32,
    owner: (u32, u32),
    modified: (i64, i64),
    device: u64,
    /// Number of links; 0 for a directory, because an unfinished clone has one more subdirectory.
    links: u64,
    /// The first path of the same inode.
    same_as: PathBuf,
    attributes: BTreeMap<String, Vec<u8>>,
    /// Content of a file, target of a symbolic link.
    content: Vec<u8>,
}

impl Entry {
    pub fn contains(&self, text: &[u8]) -> bool {
        self.content.windows(text.len()).any(|part| part == text)
    }
}

/// All entries by their path below the top, which has an empty path.
pub fn describe(top: &Path) -> BTreeMap<PathBuf, Entry> {
    let (mut entries, mut inodes) = (BTreeMap::new(), HashMap::new());
    visit(top, Path::new(""), &mut entries, &mut inodes);
    entries
}

fn visit(top: &Path, path: &Path, entries: &mut BTreeMap<PathBuf, Entry>, inodes: &mut HashMap<u64, PathBuf>) {
    let full = top.join(path);
    let stat = fs::symlink_metadata(&full).unwrap();
    let kind = stat.file_type();
    let mut below = Vec::new();
    let content = if kind.is_symlink() {
        fs::read_link(&full).unwrap().into_os_string().into_encoded_bytes()
    } else if kind.is_file() {
        fs::read(&full).unwrap()
    } else {
        if kind.is_dir() {
            below = fs::read_dir(&full).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        }
        Vec::new()
    };
    let is_device = kind.is_block_device() || kind.is_char_device();
    let entry = Entry {
        mode: stat.mode(),
        owner: (stat.uid(), stat.gid()),
        modified: (stat.mtime(), stat.mtime_nsec()),
        device: if is_device { stat.rdev() } else { 0 },
        links: if kind.is_dir() { 0 } else { stat.nlink() },
        same_as: inodes.entry(stat.ino()).or_insert_with(|| path.to_owned()).clone(),
        attributes: attributes(&full),
        content,
    };
    entries.insert(path.to_owned(), entry);
    below.sort();
    for name in below {
        // An unfinished clone has this directory.
        if !name.to_string_lossy().starts_with(".reflink-") {
            visit(top, &path.join(name), entries, inodes);
        }
    }
}

fn attributes(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut list = vec![0; 1 << 16];
    let length = llistxattr(path, &mut list[..]).unwrap();
    let names = list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 1 << 16];
        let length = lgetxattr(path, name, &mut value[..]).unwrap();
        value.truncate(length);
        (String::from_utf8_lossy(name).into_owned(), value)
    };
    names.map(value).collect()
}

/// Bytes that a file shares with others.
pub fn shared(path: &Path) -> u64 {
    let extents = reflink::extents(File::open(path).unwrap(), Bytes::ZERO).unwrap();
    extents.iter().filter(|extent| extent.shared).map(|extent| extent.length.get()).sum()
}
