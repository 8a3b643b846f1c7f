//! Clones of directory trees.

mod attributes;
mod entry;
mod error;
mod pass;
mod queue;
mod records;
mod scratch;
mod shared;

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::available_parallelism;
use std::time::Instant;

use nix::sys::stat::fstat;
use nix::unistd::syncfs;

use self::attributes::set_times;
use self::pass::{Pass, Source, open_below};
use self::records::Records;
use self::scratch::Scratch;

pub use self::error::{MAX_DEPTH, Task, TreeError};
pub use self::pass::Counts;
pub use self::shared::for_each_shared;

/// Maximum number of threads. More threads would wait for each other in the journal of the file system.
const MAX_THREADS: usize = 8;

/// A clone of a directory tree that is brought closer to its source by passes.
///
/// [`TreeClone::approach`] may run while other processes change the source; [`TreeClone::complete`] clones the rest
/// while they are stopped, for example frozen, and takes less time the less has changed in between:
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let stop_writers = || {}; let start_writers = || {};
/// let (from, to) = (std::fs::File::open("/data/volume")?, std::fs::File::open("/data/copy")?);
/// let mut clone = reflink::TreeClone::begin(&from, &to)?;
/// clone.approach(None)?;
/// clone.sync()?;
/// stop_writers();
/// let complete = clone.complete(None);
/// start_writers();
/// complete?.finish()?;
/// # Ok(())
/// # }
/// ```
///
/// # Copied
/// Names, types, content with holes, owners, modes, times of access and modification, extended attributes with POSIX
/// ACLs and file capabilities, hard links within the tree, symbolic links, pipes, sockets, devices, and the attributes
/// of the top directory. Each file shares its blocks with its source ([`clone_file`](crate::clone_file)). Not copied:
/// times of birth and change, the attribute `trusted.reflink.capability` of [`for_each_shared`], inode flags
/// (chattr(1)), project IDs: new inodes inherit the project of the target directory, which is charged in full.
///
/// # Safety from the owner of the source
/// Each name is opened relative to its open directory by one component, without following symbolic links or entering
/// other mounts: nothing outside the source is read, whatever other processes rename or replace meanwhile. Only regular
/// files and directories are opened; device nodes that replace a file between two calls are opened too unless the
/// source is mounted with `nodev`, which callers should do. Nothing but the target is written, which no other process
/// may change. Memory and descriptors are bounded: 2 descriptors for each of at most 128 levels and of 8 threads, and
/// records of 450,000 inodes; in larger trees, the other files are cloned again by each pass. Clones that exist at once
/// have fewer records each ([`TreeClone::one_of`]). A tree with more levels is an error.
///
/// # Failures
/// After an error, or a kill, the target has an incomplete tree and a directory `.reflink-…` at its top: remove both.
///
/// XFS with `reflink=1`; `openat2`, Linux 5.6; `/proc` mounted; `CAP_CHOWN`, `CAP_DAC_OVERRIDE`, `CAP_FOWNER`,
/// `CAP_FSETID`, `CAP_MKNOD`, `CAP_SETFCAP` and, for `trusted.*` attributes, `CAP_SYS_ADMIN`.
#[derive(Debug)]
pub struct TreeClone {
    from: OwnedFd,
    to: OwnedFd,
    scratch: Scratch,
    records: Records,
    threads: usize,
}

impl TreeClone {
    /// Begins a clone of the directory `from` in the empty directory `to` of the same file system. Clones nothing yet.
    ///
    /// # Errors
    /// [`TreeError::Entry`]: `from` or `to` is not a directory, or the target is full. [`TreeError::NotEmpty`].
    pub fn begin(from: impl AsFd, to: impl AsFd) -> Result<Self, TreeError> {
        let reopened = |task, dir| open_below(dir, c".").map_err(TreeError::at_top(task));
        let from = reopened(Task::Read, from.as_fd())?;
        let to = reopened(Task::Write, to.as_fd())?;
        let scratch = Scratch::create(&to)?;
        let threads = available_parallelism().map_or(1, NonZeroUsize::get).min(MAX_THREADS);
        Ok(Self { from, to, scratch, records: Records::default(), threads })
    }

    /// Divides the records among clones that exist at once, which together have records of 900,000 inodes. Call it
    /// before the first pass.
    #[must_use]
    pub fn one_of(self, clones: usize) -> Self {
        Self { records: Records::of_one(clones), ..self }
    }

    /// Clones all entries that differ, while other processes may change the source. Names that appear, disappear or
    /// change during the call, and those that cannot be read, are left for a later pass. Several passes may follow each
    /// other.
    ///
    /// # Errors
    /// [`TreeError`], about the target alone. [`TreeError::Late`]: `until` has passed; another call continues.
    pub fn approach(&mut self, until: Option<Instant>) -> Result<Counts, TreeError> {
        self.pass(Source::Changing, until)
    }

    /// Writes the changes of earlier passes, and all other dirty pages of the file system, to the disk, so that the
    /// last pass waits for fewer writes.
    ///
    /// # Errors
    /// `EIO` and `ENOSPC`.
    ///
    /// syncfs(2), Linux 2.6.39; errors since Linux 5.8.
    pub fn sync(&self) -> Result<(), TreeError> {
        syncfs(&self.to).map_err(TreeError::at_top(Task::Write))
    }

    /// Clones all entries that differ, and removes entries from the target that the source does not have. No process
    /// may change the source meanwhile. Afterwards both trees are equal. The clone is not durable until
    /// [`CompleteTree::finish`].
    ///
    /// # Errors
    /// [`TreeError`]. [`TreeError::Late`]: `until` has passed. The pass checks the time before each entry.
    pub fn complete(self, until: Option<Instant>) -> Result<CompleteTree, TreeError> {
        let counts = self.pass(Source::Still, until)?;
        Ok(CompleteTree { clone: self, counts })
    }

    fn pass(&self, source: Source, until: Option<Instant>) -> Result<Counts, TreeError> {
        Pass::new(self, source, until)?.run()
    }
}

/// A clone that is equal to its source but for a directory with removed files and links, which [`CompleteTree::finish`]
/// removes.
#[derive(Debug)]
#[must_use = "finish it"]
pub struct CompleteTree {
    clone: TreeClone,
    counts: Counts,
}

impl CompleteTree {
    /// Counts of the last pass.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Removes the directory with removed files and links, then writes everything to the disk. The removal takes time
    /// in proportion to the entries that earlier passes created and the source no longer has, and to the files with
    /// several names.
    ///
    /// # Errors
    /// [`TreeError::Entry`]: `EIO`.
    pub fn finish(self) -> Result<(), TreeError> {
        let TreeClone { to, scratch, .. } = &self.clone;
        let top = fstat(to).map_err(TreeError::at_top(Task::Write))?;
        scratch.remove(to)?;
        // The removal has changed the times of the top directory.
        set_times(to.as_fd(), &top).map_err(TreeError::at_top(Task::Write))?;
        self.clone.sync()
    }
}
