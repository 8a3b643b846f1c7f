//! One pass over both trees.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Whence, lseek};
use rustix::fs::RawDir;

use super::error::{Fault, MAX_DEPTH, Task, TreeError};
use super::queue::{Next, Queue};
use super::scratch::existing;
use super::{TreeClone, attributes};

/// Maximum number of names in one piece of work.
const BATCH: usize = 128;

/// Number of names up to which a thread does not share them with a waiting thread: waking that thread takes longer.
const ALONE: usize = 16;

/// Size in bytes of the buffer for the entries of a directory. One entry takes at most 280 bytes.
pub(super) const LISTING: usize = 8192;

/// Pieces of work per thread that may wait. Each holds two descriptors at most.
const WAITING: usize = 4;

/// Size in bytes of the stack of a thread: two frames for each level of directories, in builds without optimization.
const STACK: usize = 8 << 20;

/// Whether other processes may change the source during the pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Changing,
    Still,
}

/// Numbers of entries by the result of a pass. Each name counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries that were created or cloned again.
    pub cloned: u64,
    /// Entries that are equal since an earlier pass.
    pub unchanged: u64,
    /// Entries that were removed from the target; a directory counts once.
    pub removed: u64,
    /// Entries that are left for the next pass: they could not be read, or changed meanwhile.
    pub skipped: u64,
}

#[derive(Debug)]
pub(super) struct Pass<'a> {
    pub(super) clone: &'a TreeClone,
    pub(super) source: Source,
    until: Option<Instant>,
    /// Seconds and nanoseconds of `CLOCK_REALTIME`.
    pub(super) begin: (i64, i64),
    queue: Queue<Work>,
    cloned: AtomicU64,
    unchanged: AtomicU64,
    removed: AtomicU64,
    skipped: AtomicU64,
}

#[derive(Debug)]
enum Work {
    Directory(Directory),
    Entries(Arc<Directory>, Vec<CString>),
}

/// A directory in both trees. The last thread that holds it completes it.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) from: OwnedFd,
    pub(super) to: OwnedFd,
    path: PathBuf,
    depth: usize,
    /// Status of the source, read before it is listed.
    stat: FileStat,
    /// Inode number in the target.
    number: u64,
    /// This pass created the directory, so the target has no entries to remove.
    is_new: bool,
    /// The pass has changed entries of the target, and therefore the times of the directory.
    is_touched: AtomicBool,
}

impl Directory {
    fn open(from: OwnedFd, to: OwnedFd, path: PathBuf, depth: usize, is_new: bool) -> Result<Self, Fault> {
        let stat = fstat(&from).map_err(Fault::Source)?;
        let number = fstat(&to).map_err(Fault::Target)?.st_ino;
        Ok(Self { from, to, path, depth, stat, number, is_new, is_touched: AtomicBool::new(false) })
    }

    pub(super) fn touch(&self) {
        self.is_touched.store(true, Ordering::Relaxed);
    }

    fn path_of(&self, name: &CStr) -> PathBuf {
        self.path.join(OsStr::from_bytes(name.to_bytes()))
    }
}

impl<'a> Pass<'a> {
    pub(super) fn new(clone: &'a TreeClone, source: Source, until: Option<Instant>) -> Result<Self, TreeError> {
        let now = clock_gettime(ClockId::CLOCK_REALTIME).map_err(TreeError::at_top(Task::Read))?;
        // A new descriptor has its own offset, so each pass lists the directory from its start.
        let from = open_below(clone.from.as_fd(), c".").map_err(TreeError::at_top(Task::Read))?;
        let to = open_below(clone.to.as_fd(), c".").map_err(TreeError::at_top(Task::Write))?;
        let top = Directory::open(from, to, PathBuf::new(), 0, false).map_err(|fault| fault.at(Path::new("")))?;
        let [cloned, unchanged, removed, skipped] = [const { AtomicU64::new(0) }; 4];
        Ok(Self {
            clone,
            source,
            until,
            begin: (now.tv_sec(), now.tv_nsec()),
            queue: Queue::new(Work::Directory(top), clone.threads * WAITING),
            cloned,
            unchanged,
            removed,
            skipped,
        })
    }

    pub(super) fn run(self) -> Result<Counts, TreeError> {
        thread::scope(|scope| {
            let start =
                || thread::Builder::new().name("clone".into()).stack_size(STACK).spawn_scoped(scope, || self.work());
            let threads: Vec<_> = (0..self.clone.threads).map(|_| start()).collect();
            for started in threads {
                let ended = started.map_err(TreeError::Thread)?;
                // The thread has printed its panic.
                ended.join().map_err(|_| TreeError::Thread(std::io::Error::other("a thread panicked")))?;
            }
            Ok(())
        })?;
        let count = |counter: AtomicU64| counter.into_inner();
        let Self { queue, cloned, unchanged, removed, skipped, .. } = self;
        queue.result()?;
        Ok(Counts {
            cloned: count(cloned),
            unchanged: count(unchanged),
            removed: count(removed),
            skipped: count(skipped),
        })
    }

    pub(super) fn count_cloned(&self) {
        self.cloned.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_unchanged(&self) {
        self.unchanged.fetch_add(1, Ordering::Relaxed);
    }

    fn work(&self) {
        // A panic of this thread must not leave the other threads waiting.
        let mut unfinished = Unfinished(&self.queue, false);
        while let Some(work) = self.queue.next() {
            unfinished.1 = true;
            let result = self.act(work);
            unfinished.1 = false;
            self.queue.done(result);
        }
    }

    fn act(&self, work: Work) -> Result<(), TreeError> {
        match work {
            Work::Directory(directory) => self.directory(directory),
            Work::Entries(directory, names) => self.entries(directory, &names),
        }
    }

    /// Leaves the work to another thread, or does it if the queue is full.
    fn share(&self, work: Work) -> Result<(), TreeError> {
        self.queue.offer(work).map_or(Ok(()), |work| self.act(work))
    }

    fn directory(&self, directory: Directory) -> Result<(), TreeError> {
        let directory = Arc::new(directory);
        let mut buffer = Vec::with_capacity(LISTING);
        let mut listing = RawDir::new(&directory.from, buffer.spare_capacity_mut());
        let mut names = Vec::new();
        loop {
            match listing.next() {
                Some(Ok(entry)) if is_entry(entry.file_name()) => names.push(entry.file_name().to_owned()),
                Some(Ok(_)) => continue,
                Some(Err(error)) => {
                    self.settle(&directory.path, Err(Fault::Source(Errno::from_raw(error.raw_os_error()))))?;
                    break;
                }
                None => break,
            }
            if names.len() == BATCH {
                self.share(Work::Entries(Arc::clone(&directory), std::mem::take(&mut names)))?;
            }
        }
        if !self.is_equal(&directory) && !directory.is_new {
            self.remove_vanished(&directory)?;
        }
        self.entries(directory, &names)
    }

    fn entries(&self, directory: Arc<Directory>, mut names: &[CString]) -> Result<(), TreeError> {
        while let Some((name, mut left)) = names.split_first() {
            match self.queue.check() {
                Next::Stop => return Ok(()),
                Next::Share if left.len() > ALONE => {
                    let (first, second) = left.split_at(left.len() / 2);
                    let second = Work::Entries(Arc::clone(&directory), second.to_vec());
                    if self.queue.offer(second).is_none() {
                        left = first;
                    }
                }
                Next::Share | Next::Continue => {}
            }
            names = left;
            self.check_time()?;
            match self.entry(&directory, name) {
                Ok(None) => {}
                Ok(Some(below)) => self.share(Work::Directory(below))?,
                Err(Failure::Tree(error)) => return Err(error),
                Err(Failure::Entry(fault)) => self.settle(&directory.path_of(name), Err(fault))?,
            }
        }
        match Arc::into_inner(directory) {
            Some(directory) => self.finish(&directory),
            None => Ok(()),
        }
    }

    /// Copies the attributes of a directory. The entries come first, because they change the times of the directory.
    fn finish(&self, directory: &Directory) -> Result<(), TreeError> {
        if self.is_equal(directory) && !directory.is_touched.load(Ordering::Relaxed) {
            return Ok(());
        }
        let copied = attributes::copy(directory.from.as_fd(), directory.to.as_fd(), &directory.stat);
        if copied.is_ok() {
            self.clone.records.insert(directory.number, &directory.stat, self.begin);
        }
        self.settle(&directory.path, copied)
    }

    /// Whether neither the entries nor the attributes of the directory have changed since an earlier pass.
    fn is_equal(&self, directory: &Directory) -> bool {
        self.clone.records.is_equal(directory.number, &directory.stat)
    }

    /// Clones an entry. A directory is opened and returned instead.
    fn entry(&self, directory: &Directory, name: &CStr) -> Result<Option<Directory>, Failure> {
        if self.is_reserved(directory, name) {
            return Err(Fault::Source(Errno::EEXIST).into());
        }
        let stat = existing(directory.from.as_fd(), name).map_err(Fault::Source)?;
        let stat = stat.ok_or(Fault::Source(Errno::ENOENT))?;
        if attributes::kind(&stat) == SFlag::S_IFDIR {
            return self.enter(directory, name).map(Some);
        }
        self.inode(directory, name, &stat)?;
        Ok(None)
    }

    fn enter(&self, above: &Directory, name: &CStr) -> Result<Directory, Failure> {
        let (path, depth) = (above.path_of(name), above.depth + 1);
        if depth > MAX_DEPTH {
            return Err(Failure::Tree(TreeError::TooDeep { path }));
        }
        let from = open_below(above.from.as_fd(), name).map_err(Fault::Source)?;
        let created = match mkdirat(&above.to, name, Mode::S_IRWXU) {
            Err(Errno::EEXIST) => false,
            created => created.map(|()| true).map_err(Fault::Target)?,
        };
        let (to, is_new) = match open_below(above.to.as_fd(), name) {
            // The entry was not a directory in an earlier pass.
            Err(Errno::ENOTDIR | Errno::ELOOP) => {
                self.clone.scratch.take(above.to.as_fd(), name).map_err(Fault::Target)?;
                mkdirat(&above.to, name, Mode::S_IRWXU).map_err(Fault::Target)?;
                above.touch();
                (open_below(above.to.as_fd(), name).map_err(Fault::Target)?, true)
            }
            opened => (opened.map_err(Fault::Target)?, created),
        };
        if is_new {
            above.touch();
            self.count_cloned();
        } else {
            self.count_unchanged();
        }
        Ok(Directory::open(from, to, path, depth, is_new)?)
    }

    /// Removes entries of the target that the source does not have. Entries of other types are replaced when they are
    /// cloned.
    fn remove_vanished(&self, directory: &Directory) -> Result<(), TreeError> {
        loop {
            let failed = |errno| Fault::Target(errno).at(&directory.path);
            lseek(&directory.to, 0, Whence::SeekSet).map_err(failed)?;
            let mut buffer = Vec::with_capacity(LISTING);
            let mut listing = RawDir::new(&directory.to, buffer.spare_capacity_mut());
            let mut removed = 0;
            while let Some(entry) = listing.next() {
                let entry = entry.map_err(|error| failed(Errno::from_raw(error.raw_os_error())))?;
                let name = entry.file_name();
                if !is_entry(name) || self.is_reserved(directory, name) {
                    continue;
                }
                self.check_time()?;
                let exists = match existing(directory.from.as_fd(), name) {
                    Ok(found) => found.is_some(),
                    Err(errno) => {
                        self.settle(&directory.path_of(name), Err(Fault::Source(errno)))?;
                        true
                    }
                };
                if exists {
                    continue;
                }
                directory.touch();
                match self.clone.scratch.take(directory.to.as_fd(), name) {
                    Ok(()) => removed += 1,
                    Err(errno) => self.settle(&directory.path_of(name), Err(Fault::Target(errno)))?,
                }
            }
            self.removed.fetch_add(removed, Ordering::Relaxed);
            // A listing may leave out names while others are removed.
            if removed == 0 {
                return Ok(());
            }
        }
    }

    fn check_time(&self) -> Result<(), TreeError> {
        let is_late = self.until.is_some_and(|until| Instant::now() >= until);
        if is_late { Err(TreeError::Late) } else { Ok(()) }
    }

    /// While the source changes, entries that cannot be read are left for a later pass.
    fn settle(&self, path: &Path, result: Result<(), Fault>) -> Result<(), TreeError> {
        match result {
            Ok(()) => Ok(()),
            Err(fault) if self.source == Source::Changing && fault.is_transient() => {
                self.skipped.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(fault) => Err(fault.at(path)),
        }
    }

    fn is_reserved(&self, directory: &Directory, name: &CStr) -> bool {
        directory.depth == 0 && self.clone.scratch.is_named(name)
    }
}

/// An error of an entry, or of the whole pass.
enum Failure {
    Entry(Fault),
    Tree(TreeError),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Entry(fault)
    }
}

/// Guard of a thread; `true` while the thread has work. If the thread panics with work, the guard ends the pass,
/// because the other threads would wait.
struct Unfinished<'a>(&'a Queue<Work>, bool);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if self.1 {
            self.0.done(Err(TreeError::Thread(std::io::Error::other("a thread panicked"))));
        }
    }
}

pub(super) fn is_entry(name: &CStr) -> bool {
    !matches!(name.to_bytes(), b"." | b"..")
}

/// Opens a directory below another one.
pub(super) fn open_below(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    open(dir, name, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOATIME)
}

/// Opens an entry that is neither a symbolic link nor on another mount.
pub(super) fn open(dir: BorrowedFd<'_>, name: &CStr, flags: OFlag) -> Result<OwnedFd, Errno> {
    let scope = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV;
    let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mode = if flags.contains(OFlag::O_CREAT) { Mode::S_IRUSR | Mode::S_IWUSR } else { Mode::empty() };
    openat2(dir, name, OpenHow::new().flags(flags).mode(mode).resolve(scope))
}
