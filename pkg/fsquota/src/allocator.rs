//! [`Allocator`].

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Mutex, PoisonError};

use nix::fcntl::{OFlag, openat};
use nix::libc;
use nix::sys::stat::Mode;

use crate::directory::Directory;
use crate::error::{AllocateError, FsError};
use crate::filesystem::FileSystem;
use crate::project::ProjectId;

/// Name of the counter file.
const FILE: &str = "next-project-id";

/// Number of IDs per durable write of the counter. A restart skips the unused ones, which is acceptable: there are
/// 2^32.
const BATCH: u32 = 32;

/// Allocates project IDs of one file system, each once.
///
/// The file `next-project-id` contains a counter that only increases. It is changed under `flock`, which excludes other
/// threads and processes, and is durable before its IDs are used. Most allocations only change memory; one in 32 writes
/// the counter. The cost does not depend on the number of projects.
///
/// IDs that have limits or usage in the quota records of the file system, for example because an administrator assigned
/// them or the counter file was lost, are skipped.
#[derive(Debug)]
pub struct Allocator {
    dir: Directory,
    /// Initial value of a new counter.
    first: ProjectId,
    reserved: Mutex<Reserved>,
}

/// IDs that are allocated in the counter file but not used yet.
#[derive(Debug)]
struct Reserved {
    ids: Range<u32>,
    /// Process ID of the owner: a forked child has a copy of the IDs and must not use them.
    process: u32,
}

impl Allocator {
    /// Opens or creates the counter in a directory of the file system that the IDs are for. Use one directory per file
    /// system, and keep other programs from writing to it.
    ///
    /// # Errors
    /// [`AllocateError::Fs`]: not an XFS with project quotas. [`AllocateError::Counter`].
    pub fn open(dir: impl AsFd) -> Result<Self, AllocateError> {
        Self::open_from(dir, ProjectId::FIRST)
    }

    /// Like [`Allocator::open`], for a file system on which other programs allocate IDs too: a new counter starts at
    /// `first`. Most programs start at 1 or slightly above, and some do not check whether an ID is in use.
    ///
    /// # Errors
    /// Those of [`Allocator::open`].
    pub fn open_from(dir: impl AsFd, first: ProjectId) -> Result<Self, AllocateError> {
        let dir = Directory::reopen(dir.as_fd())?;
        FileSystem::of(&dir)?;
        open_counter(&dir)?;
        Ok(Self { dir, first, reserved: Mutex::new(Reserved { ids: 0..0, process: 0 }) })
    }

    /// Allocates an ID that was never allocated before.
    ///
    /// # Errors
    /// [`AllocateError::Exhausted`], [`AllocateError::Damaged`], [`AllocateError::Counter`], [`AllocateError::Fs`].
    pub fn next(&self) -> Result<ProjectId, AllocateError> {
        // The range is valid at every point where a thread could have panicked.
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if reserved.ids.is_empty() || reserved.process != process {
            *reserved = Reserved { ids: self.reserve()?, process };
        }
        reserved.ids.next().and_then(ProjectId::new).ok_or(AllocateError::Exhausted)
    }

    pub(crate) fn device(&self) -> libc::dev_t {
        self.dir.device()
    }

    fn reserve(&self) -> Result<Range<u32>, AllocateError> {
        let counter = Locked::open(&self.dir)?;
        let fs = FileSystem::on_xfs(self.dir.as_fd())?;
        let mut text = [0; Counter::SIZE + 1];
        let length = read_all(&counter.0, &mut text).map_err(failed("read"))?;
        if length == 0 {
            // Sync the entry of a new counter file before its IDs are used.
            nix::unistd::fsync(&self.dir).map_err(FsError::system("fsync"))?;
        }
        let Counter(next) = Counter::parse(&text[..length], self.first).ok_or(AllocateError::Damaged { file: FILE })?;
        let taken_from = |id| fs.next_quota(id).map(|found| found.map(|quota| quota.id));
        let batch = free_batch(next, taken_from)?.ok_or(AllocateError::Exhausted)?;
        // The content is shorter than a sector and at a fixed offset, so this write is atomic.
        counter.0.write_all_at(&Counter(batch.end).text(), 0).map_err(failed("write"))?;
        counter.0.sync_data().map_err(failed("sync"))?;
        Ok(batch)
    }
}

fn open_counter(dir: &Directory) -> Result<File, AllocateError> {
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = openat(dir, FILE, flags, Mode::S_IRUSR | Mode::S_IWUSR).map_err(|errno| failed("open")(errno.into()))?;
    Ok(File::from(file))
}

/// The first range of consecutive free IDs at or after `next`, at most [`BATCH`] long; `None` if no ID is free.
/// `taken_from` returns the first used ID at or after its argument.
fn free_batch<E>(
    next: u32,
    mut taken_from: impl FnMut(ProjectId) -> Result<Option<ProjectId>, E>,
) -> Result<Option<Range<u32>>, E> {
    let mut first = next;
    while let Some(candidate) = ProjectId::new(first) {
        let taken = taken_from(candidate)?.map_or(u32::MAX, ProjectId::get);
        if taken > first {
            return Ok(Some(first..taken.min(first.saturating_add(BATCH))));
        }
        first += 1;
    }
    Ok(None)
}

/// Content of the counter file: the first ID that was not allocated yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter(u32);

impl Counter {
    /// Length of the content: ten digits and a line feed.
    const SIZE: usize = 11;

    /// Parses the content of the file. An empty file is a new counter.
    pub fn parse(text: &[u8], first: ProjectId) -> Option<Self> {
        if text.is_empty() {
            return Some(Self(first.get()));
        }
        let digits = text.strip_suffix(b"\n").filter(|digits| digits.len() + 1 == Self::SIZE)?;
        if !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let next = str::from_utf8(digits).ok()?.parse().ok()?;
        (next > 0).then_some(Self(next))
    }

    /// Formats the content of the file.
    pub fn text(self) -> Vec<u8> {
        format!("{:010}\n", self.0).into_bytes()
    }
}

/// The counter file, locked until it is dropped.
///
/// The file is opened for each lock, because a forked child would share the lock of an inherited descriptor.
struct Locked(File);

impl Locked {
    fn open(dir: &Directory) -> Result<Self, AllocateError> {
        loop {
            let file = open_counter(dir)?;
            match file.lock() {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed("lock")(error)),
            }
            // Another process deleted the file, as the error for a damaged counter advises, while this one waited for
            // the lock.
            if file.metadata().map_err(failed("stat"))?.nlink() > 0 {
                return Ok(Self(file));
            }
        }
    }
}

fn failed(step: &'static str) -> impl FnOnce(io::Error) -> AllocateError {
    move |source| AllocateError::Counter { step, file: FILE, source }
}

fn read_all(file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read_at(&mut buffer[length..], length as u64) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    fn batch(next: u32, taken: &BTreeSet<u32>) -> Option<Range<u32>> {
        let taken_from =
            |id: ProjectId| Ok::<_, Infallible>(taken.range(id.get()..).find_map(|id| ProjectId::new(*id)));
        free_batch(next, taken_from).unwrap()
    }

    #[test]
    fn a_damaged_counter_is_rejected() {
        for text in
            ["0000000000\n", "1\n", "0000000001", "000000000x\n", "9999999999\n", "+000000001\n", "0000000001\n\n"]
        {
            assert_eq!(Counter::parse(text.as_bytes(), ProjectId::FIRST), None, "{text:?}");
        }
    }

    #[test]
    fn only_a_new_counter_starts_at_the_given_id() {
        let first = ProjectId::new(1 << 20).unwrap();
        assert_eq!(Counter::parse(b"", first), Some(Counter(1 << 20)));
        assert_eq!(Counter::parse(b"0000000033\n", first), Some(Counter(33)));
    }

    proptest! {
        #[test]
        fn a_batch_is_free_ascending_and_maximal(
            next in 1_u32..300,
            taken in prop::collection::btree_set(1_u32..300, 0..200),
        ) {
            let batch = batch(next, &taken).unwrap();
            prop_assert!(batch.start >= next && !batch.is_empty() && batch.len() <= BATCH as usize);
            prop_assert!(batch.clone().all(|id| !taken.contains(&id)));
            prop_assert!((next..batch.start).all(|id| taken.contains(&id)));
            prop_assert!(batch.len() == BATCH as usize || taken.contains(&batch.end));
        }

        #[test]
        fn parsing_reverses_formatting(next in 1_u32..) {
            prop_assert_eq!(Counter::parse(&Counter(next).text(), ProjectId::MAX), Some(Counter(next)));
            prop_assert_eq!(Counter(next).text().len(), Counter::SIZE);
        }
    }
}
