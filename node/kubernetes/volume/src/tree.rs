//! Filesystem volumes and snapshots that begin with the files of another volume.
//!
//! The first passes over the files run while pods write. The pods are stopped for the last one, which is the instant of
//! the content. Then the copy shares its blocks with its source, as a cloned image does, until further passes have
//! copied them.

use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::slice;
use std::time::{Duration, Instant, SystemTime};

use dir::Dir;
use fsquota::{Limits, ProjectId, Quotas, Usage};
use nix::errno::Errno;
use nix::sys::stat::fstat;
use nix::unistd::syncfs;
use reflink::{CompleteTree, Extent, TreeClone, TreeError, for_each_shared};
use tracing::info;
use units::Bytes;

use crate::anchor::Anchor;
use crate::copy::{PIECE, end_of_pass};
use crate::duty_cycle::DutyCycle;
use crate::error::{ActError, clone_failed};
use crate::record::Cloning;
use crate::store::Store;

/// Longest time of the passes while pods write. A tenant can create files faster than a pass clones them.
const LONGEST: Duration = Duration::from_secs(600);

/// Longest pass, with its flush, that is not followed by another one. A longer pass is followed by one, so that the
/// last pass has less to do.
const SHORT: Duration = Duration::from_millis(200);

/// Passes before the last one. Each of them keeps former versions of changed files, for which the limit of the copy has
/// space once.
const PASSES: u32 = 2;

impl Store {
    /// Clones all files of the source into a new directory, with the source locked. Returns the instant of the content.
    pub(crate) fn clone_tree(
        &self,
        staged: &Dir,
        cloning: &Cloning,
        max_pause: Duration,
    ) -> Result<SystemTime, ActError> {
        let mut clone = self.begin_tree(staged, cloning)?;
        if self.is_snapshot(&cloning.source) {
            let taken = SystemTime::now();
            clone.complete(None)?.finish()?;
            return Ok(taken);
        }
        let freezer = self.freezer().ok_or(ActError::NoFreezer)?;
        approach(&mut [&mut clone]).map_err(|(_, error)| error)?;
        let frozen = freezer.freeze(slice::from_ref(&cloning.source), max_pause).map_err(ActError::Pods)?;
        let taken = SystemTime::now();
        let complete = clone.complete(frozen.deadline());
        let thawed = frozen.thaw();
        let complete: CompleteTree = match complete {
            Err(TreeError::Late) => return Err(ActError::Late { budget: max_pause }),
            complete => complete?,
        };
        thawed.map_err(ActError::Pods)?;
        info!(source = %cloning.source, counts = ?complete.counts(), "files of the volume cloned");
        complete.finish()?;
        Ok(taken)
    }

    /// Begins a clone of all files of the source in a new directory, with the source locked.
    pub(crate) fn begin_tree(&self, staged: &Dir, cloning: &Cloning) -> Result<TreeClone, ActError> {
        self.limit_source(&cloning.source)?;
        let source = self.live.open_dir(cloning.source.name())?;
        Ok(TreeClone::begin(&source, staged)?)
    }
}

/// Runs the passes over trees while pods write to them. Each pass covers all trees before the next pass begins: then
/// little has changed in each tree when the pods are stopped. An error has the index of its tree.
///
/// A clone writes the dirty pages of its file first, so each pass is followed by a flush. Pods change files during a
/// flush, too: the first flush writes most of the dirty pages of the disk, so that the flush before the freeze is
/// short.
pub(crate) fn approach(clones: &mut [&mut TreeClone]) -> Result<(), (usize, TreeError)> {
    let end = Instant::now() + LONGEST;
    for _ in 0..PASSES {
        let begin = Instant::now();
        for (index, clone) in clones.iter_mut().enumerate() {
            clone.approach(Some(end)).map_err(|error| (index, error))?;
        }
        // One flush covers the whole file system, which all trees share.
        if let Some(clone) = clones.first() {
            clone.sync().map_err(|error| (0_usize, error))?;
        }
        if begin.elapsed() < SHORT {
            break;
        }
    }
    Ok(())
}

/// Whether the usage of a copy is within these limits. The limit of its source was raised while it was copied.
pub(crate) fn fits(used: Usage, limits: Limits) -> bool {
    limits.bytes.is_none_or(|bytes| used.bytes <= bytes) && limits.inodes.is_none_or(|inodes| used.inodes <= inodes)
}

/// Runs one pass over a cloned tree, until its files share no block. The time of the pass begins with the first shared
/// block, so that each pass copies some blocks.
///
/// The files keep their times of access and modification, and without a capability that of change. A pass that a kill
/// or a power cut ends can leave one file without its capability, which the next pass restores ([`for_each_shared`]).
/// No tenant reads such a file: until a pass over all files has ended, the copy is in `staging`, and it is not the
/// source of another copy.
///
/// # Errors
/// [`ActError::Copying`]: the next pass continues.
pub(crate) fn end_sharing(
    dir: &Dir,
    anchor: &mut Anchor<'_>,
    quotas: &Quotas,
    project: ProjectId,
    size: Bytes,
    pass: Duration,
    cycle: &DutyCycle<'_>,
) -> Result<(), ActError> {
    // XFS allocates 128 KiB for a smaller piece, and the quota counts them: small files would not fit. XFS keeps these
    // blocks of files that were written since the last writeback of all files.
    let free = || {
        syncfs(dir).map_err(clone_failed("sync"))?;
        quotas.settled(project).map(drop).map_err(ActError::Quota)
    };
    let (start, mut end) = (Instant::now(), None);
    let mut visit = || {
        let visited = for_each_shared(dir, |file, extent| {
            let end = *end.get_or_insert_with(|| end_of_pass(start, Instant::now(), pass));
            let copied = match unshare(file, anchor, extent, end, cycle) {
                Err(error) if error.is_full() => free().and_then(|()| unshare(file, anchor, extent, end, cycle)),
                copied => copied,
            };
            match copied {
                Ok(true) => ControlFlow::Continue(()),
                Ok(false) => ControlFlow::Break(ActError::Copying { left: size }),
                Err(error) => ControlFlow::Break(error),
            }
        });
        visited.map_err(|error| match error {
            // The disk is full: the files have fitted into the limits of the copy when they were cloned.
            TreeError::Entry { errno: errno @ (Errno::ENOSPC | Errno::EDQUOT), .. } => clone_failed("copy")(errno),
            error => error.into(),
        })
    };
    let visited = match visit() {
        // A capability did not fit.
        Err(error) if error.is_full() => free().and_then(|()| visit()),
        visited => visited,
    };
    match visited? {
        ControlFlow::Continue(()) => free(),
        ControlFlow::Break(error) => Err(error),
    }
}

/// Copies the blocks of an extent in pieces, until `end`, and at least one. Returns whether all are copied, before
/// `end`.
fn unshare(
    file: BorrowedFd<'_>,
    anchor: &mut Anchor<'_>,
    extent: Extent,
    end: Instant,
    cycle: &DutyCycle<'_>,
) -> Result<bool, ActError> {
    let stat = fstat(file).map_err(clone_failed("examine"))?;
    let size = Bytes::new(u64::try_from(stat.st_size).unwrap_or_default());
    let mut at = extent.start;
    loop {
        let length = extent.end().saturating_sub(at).min(PIECE);
        cycle.run(|| {
            // The last shared block of a file may be behind the end of its content.
            let kept = match size.saturating_sub(at).min(length) {
                Bytes::ZERO => Ok(()),
                within => anchor.keep(file, at, within),
            };
            kept.and_then(|()| anchor.unshare(file, at, length))
        })?;
        at = at.saturating_add(length);
        let is_late = Instant::now() >= end;
        if is_late || at >= extent.end() {
            return Ok(!is_late);
        }
    }
}
