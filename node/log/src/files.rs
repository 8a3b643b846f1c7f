//! Log files: numbered, limited in size and number.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use units::Bytes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub files: usize,
    /// Size up to which lines are added to a file.
    pub size: Bytes,
}

impl Bounds {
    /// Number of files for [`Bounds::within`].
    const FILES: usize = 8;

    /// Space that XFS reserves to create a file, for its inode and for splits of its trees (`XFS_CREATE_SPACE_RES`,
    /// about 40 blocks). It counts against the limit until the file is created.
    const RESERVED: u64 = 256 << 10;

    /// Bounds for a directory with this limit: eight files, and a ninth of the space for preallocation and extent
    /// records of XFS.
    pub const fn within(limit: Bytes) -> Self {
        let limit = limit.get();
        let usable = if limit > 2 * Self::RESERVED { limit - Self::RESERVED } else { limit / 2 };
        Self { files: Self::FILES, size: Bytes::new(usable / (Self::FILES as u64 + 1)) }
    }
}

/// File names are `00000042.jsonl`.
const EXTENSION: &str = "jsonl";

/// A directory of log files; lines are added to the last one.
#[derive(Debug)]
pub(crate) struct Files {
    directory: PathBuf,
    bounds: Bounds,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    number: u64,
    file: File,
    size: u64,
    /// The last line is incomplete because of a power failure or a full disk.
    is_torn: bool,
}

#[derive(Debug)]
pub(crate) struct Written {
    /// Bytes of complete lines that were written.
    pub(crate) bytes: usize,
    pub(crate) error: Option<io::Error>,
}

impl Files {
    /// Does not access the directory.
    pub(crate) fn new(directory: PathBuf, bounds: Bounds) -> Self {
        Self { directory, bounds, current: None }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Appends lines, to a new file if the last one is full. Lines that were not written can be appended again.
    ///
    /// Does not sync: the kernel writes the lines back within half a minute. An `fsync` would delay the writes of all
    /// volumes.
    pub(crate) fn append<'a>(&mut self, lines: impl IntoIterator<Item = &'a [u8]>) -> Written {
        let (mut lines, mut bytes) = (lines.into_iter().peekable(), 0);
        while lines.peek().is_some() {
            let (space, mut batch) = (self.space(), Vec::new());
            let fits = |batch: &Vec<u8>, line: &[u8]| batch.len() < BATCH && (batch.len() + line.len()) as u64 <= space;
            while let Some(line) = lines.next_if(|line| batch.is_empty() || fits(&batch, line)) {
                batch.extend_from_slice(line);
            }
            match self.write(&batch) {
                Ok(()) => bytes += batch.len(),
                Err((whole, error)) => return Written { bytes: bytes + whole, error: Some(error) },
            }
        }
        Written { bytes, error: None }
    }

    fn space(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| self.bounds.size.get().saturating_sub(current.size))
    }

    /// Writes complete lines. On an error, also returns the number of bytes of complete lines that were written.
    fn write(&mut self, lines: &[u8]) -> Result<(), (usize, io::Error)> {
        let current = self.current_for(lines.len() as u64).map_err(|error| (0, error))?;
        if current.is_torn {
            current.write(b"\n").map_err(|(_, error)| (0, error))?;
            current.is_torn = false;
        }
        current.write(lines).map_err(|(count, error)| {
            let whole = lines[..count].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            current.is_torn = whole < count;
            (whole, error)
        })
    }

    /// The file to which `length` bytes can be added: the last one, or a new one.
    fn current_for(&mut self, length: u64) -> io::Result<&mut Current> {
        let mut next = 0;
        if self.current.is_none()
            && let Some(&last) = numbers(&self.directory)?.last()
        {
            // A file that cannot be read because of broken sectors is not continued.
            self.current = self.open(last).ok();
            next = last.saturating_add(1);
        }
        let next = match self.current.take() {
            Some(current) if current.size == 0 || current.size.saturating_add(length) <= self.bounds.size.get() => {
                return Ok(self.current.insert(current));
            }
            Some(Current { number, .. }) => number.saturating_add(1),
            None => next,
        };
        // Remove before creating, so that the number of files never exceeds the limit. If a file cannot be removed, the
        // next one is removed instead.
        let numbers = numbers(&self.directory)?;
        let mut excess = (numbers.len() + 1).saturating_sub(self.bounds.files.max(1));
        for path in numbers.into_iter().map(|number| self.path(number)) {
            if excess == 0 {
                break;
            }
            // XFS frees the space of a removed file in the background, but that of a truncated file immediately.
            let truncated = File::options().write(true).truncate(true).open(&path);
            excess -= usize::from(truncated.and_then(|_| fs::remove_file(path)).is_ok());
        }
        let current = self.open(next)?;
        Ok(self.current.insert(current))
    }

    fn open(&self, number: u64) -> io::Result<Current> {
        let path = self.path(number);
        let file = OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(&path)?;
        let size = file.metadata()?.len();
        let mut last = [b'\n'];
        if size > 0 {
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut last, size - 1)?;
        }
        Ok(Current { number, file, size, is_torn: last != [b'\n'] })
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number:08}.{EXTENSION}"))
    }
}

const BATCH: usize = 64 << 10;

impl Current {
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), (usize, io::Error)> {
        let whole = bytes.len();
        while !bytes.is_empty() {
            let failed = |error| Err((whole - bytes.len(), error));
            match self.file.write(bytes) {
                Ok(0) => return failed(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.size += count as u64;
                    bytes = &bytes[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return failed(error),
            }
        }
        Ok(())
    }
}

/// Numbers of the existing files, oldest first. Ignores other names.
fn numbers(directory: &Path) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let digits = name.to_str().and_then(|name| name.strip_suffix(EXTENSION)?.strip_suffix('.'));
        let Some(digits) = digits.filter(|digits| digits.len() >= 8 && digits.bytes().all(|b| b.is_ascii_digit()))
        else {
            continue;
        };
        found.extend(digits.parse::<u64>());
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: Bounds = Bounds { files: 3, size: Bytes::new(100) };

    fn line(number: usize) -> Vec<u8> {
        format!("{number:09}\n").into_bytes()
    }

    fn append(files: &mut Files, numbers: impl IntoIterator<Item = usize>) -> usize {
        let lines: Vec<_> = numbers.into_iter().map(line).collect();
        let written = files.append(lines.iter().map(Vec::as_slice));
        assert!(written.error.is_none(), "{written:?}");
        written.bytes
    }

    fn lines(directory: &Path) -> Vec<String> {
        let numbers = numbers(directory).unwrap();
        let text = |number: u64| fs::read_to_string(directory.join(format!("{number:08}.jsonl"))).unwrap();
        numbers.into_iter().flat_map(|number| text(number).lines().map(str::to_owned).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn the_oldest_file_is_removed_first() {
        let scratch = tempfile::tempdir().unwrap();
        let mut files = Files::new(scratch.path().to_owned(), BOUNDS);
        assert_eq!(append(&mut files, 0..45), 450);
        assert_eq!(numbers(scratch.path()).unwrap(), [2, 3, 4]);
        assert_eq!(lines(scratch.path()), (20..45).map(|number| format!("{number:09}")).collect::<Vec<_>>());
    }

    #[test]
    fn the_next_boot_appends_to_the_last_file() {
        let scratch = tempfile::tempdir().unwrap();
        for boot in 0..5 {
            append(&mut Files::new(scratch.path().to_owned(), BOUNDS), [boot]);
        }
        assert_eq!(numbers(scratch.path()).unwrap(), [0]);
        assert_eq!(lines(scratch.path()).len(), 5);
    }

    #[test]
    fn an_incomplete_line_damages_no_other() {
        let scratch = tempfile::tempdir().unwrap();
        fs::write(scratch.path().join("00000007.jsonl"), "000000001\n0000").unwrap();
        append(&mut Files::new(scratch.path().to_owned(), BOUNDS), [2]);
        assert_eq!(lines(scratch.path()), ["000000001", "0000", "000000002"]);
    }

    /// Regression: nothing was logged to the disk any more. Like a broken file, a directory cannot be read.
    #[test]
    fn a_last_file_that_cannot_be_read_is_followed_by_another() {
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir(scratch.path().join("00000007.jsonl")).unwrap();
        let mut files = Files::new(scratch.path().to_owned(), BOUNDS);
        assert_eq!(append(&mut files, 0..2), 20);
        assert_eq!(fs::read_to_string(files.path(8)).unwrap(), "000000000\n000000001\n");
        assert_eq!(append(&mut files, 2..45), 430);
        assert_eq!(numbers(scratch.path()).unwrap(), [7, 11, 12], "the number of files is limited");
    }

    #[test]
    fn other_files_in_the_directory_remain() {
        let scratch = tempfile::tempdir().unwrap();
        for name in ["note.txt", "1.jsonl", "0000000x.jsonl", "00000001.json"] {
            fs::write(scratch.path().join(name), "x").unwrap();
        }
        append(&mut Files::new(scratch.path().to_owned(), BOUNDS), 0..100);
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 3 + 4);
    }

    #[test]
    fn lines_are_written_once_the_directory_exists() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("log");
        let mut files = Files::new(directory.clone(), BOUNDS);
        let one = line(1);
        let written = files.append([one.as_slice()]);
        assert_eq!((written.bytes, written.error.unwrap().kind()), (0, io::ErrorKind::NotFound));
        fs::create_dir(&directory).unwrap();
        assert_eq!(append(&mut files, [1]), 10);
        assert_eq!(lines(&directory), ["000000001"]);
    }

    #[test]
    fn the_bounds_leave_free_space_in_the_directory() {
        let bounds = Bounds::within(Bytes::new((9 << 20) + Bounds::RESERVED));
        assert_eq!(bounds, Bounds { files: 8, size: Bytes::MIB });
        assert_eq!(Bounds::within(Bytes::new(18 << 10)), Bounds { files: 8, size: Bytes::KIB });
    }

    proptest! {
        #[test]
        fn the_files_stay_within_bounds_and_lose_only_the_oldest(
            batches in prop::collection::vec(prop::collection::vec(1_usize..60, 0..12), 1..12),
            boots in prop::collection::vec(any::<bool>(), 12),
        ) {
            let scratch = tempfile::tempdir().unwrap();
            let new = || Files::new(scratch.path().to_owned(), BOUNDS);
            let (mut files, mut all, mut number) = (new(), Vec::new(), 0_usize);
            for (batch, boots) in batches.iter().zip(boots) {
                if boots {
                    files = new();
                }
                let lines: Vec<String> = batch.iter().map(|length| {
                    number += 1;
                    format!("{number}{}\n", "x".repeat(*length))
                }).collect();
                let written = files.append(lines.iter().map(String::as_bytes));
                prop_assert_eq!(written.bytes, lines.iter().map(String::len).sum::<usize>());
                all.extend(lines.iter().map(|line| line.trim_end().to_owned()));
                let there = numbers(scratch.path()).unwrap();
                prop_assert!(there.len() <= BOUNDS.files);
                for number in there {
                    let size = fs::metadata(files.path(number)).unwrap().len();
                    prop_assert!(size <= BOUNDS.size.get(), "{}", size);
                }
            }
            let left = lines(scratch.path());
            prop_assert!(all.ends_with(&left));
            prop_assert!(all.is_empty() || !left.is_empty());
        }
    }
}
