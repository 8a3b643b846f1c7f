//! Volumes and snapshots that begin with the content of another volume. [`crate::tree`] clones files.
//!
//! An image is cloned in an instant, and then shares its blocks with the image of its source. A write to a shared block
//! needs a new block, which the source's project may not have: a loop device would lose buffered writes. Therefore the
//! source's limit is raised while blocks are shared, and the clone becomes live only when it shares none.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use dir::{Dir, OFlag};
use fsquota::{Limits, SetError};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, PosixFadviseAdvice, fallocate, posix_fadvise};
use nix::unistd::{fdatasync, ftruncate, syncfs};
use reflink::Extent;
use tracing::warn;
use units::Bytes;

use crate::anchor::Anchor;
use crate::duty_cycle::{Clock, DutyCycle};
use crate::error::{ActError, Error, SourceError};
use crate::execution::{Execution, is_confined};
use crate::flush::Flush;
use crate::index::{Entry, Known};
use crate::record::{Cloning, Record, State};
use crate::store::Store;
use crate::{Allocation, Mode, Request, VolumeGuard, VolumeId, image, image_file};

/// Size of the pieces in which blocks are copied. XFS reserves quota for the copy and for the range itself: both fit
/// into the blocks that the limit of an image has beside its size ([`image::taken`]).
pub(crate) const PIECE: Bytes = Bytes::MIB;

/// Allocation size of XFS for writes to blocks that a thin snapshot shares; the default is 128 KiB. An image that is
/// overwritten in any order then has one extent per MiB, and a snapshot takes time for each extent. A larger size would
/// allocate more space that no write uses, for as long as the image is open.
const COW_EXTENT: Bytes = Bytes::MIB;

/// Limits for the extension of a pass by its scan. A scan within the first limit extends no pass, and no scan extends a
/// pass beyond the second limit. The supervisor reports passes of five minutes.
const SCAN_EXTENSION: [Duration; 2] = [Duration::from_secs(1), Duration::from_mins(1)];

/// Range of an image that the clone does not own yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// The range shares blocks.
    Copy { start: Bytes, length: Bytes },
    /// The range is a hole of a thick image, which has blocks everywhere. `FICLONE` clones only extents with data.
    Allocate { start: Bytes, length: Bytes },
}

impl Store {
    /// Locks the source. If the source cannot be cloned, or needs more than the reserved space, the work of earlier
    /// calls is undone.
    pub(crate) fn begin_clone(
        &self,
        execution: &mut Execution<'_>,
        source: &VolumeId,
        want: &Request,
    ) -> Result<VolumeGuard, Error> {
        let id = execution.id;
        let locked = self.lock_source(source, want).and_then(|(guard, cloning)| {
            let begun = execution.known.as_ref().and_then(|known| known.record.cloning.as_ref());
            match begun.filter(|begun| begun.headroom < cloning.headroom) {
                Some(_) => Err(SourceError::Grown { volume: source.clone() }),
                None => Ok((guard, cloning)),
            }
        });
        match locked {
            Ok((guard, cloning)) => {
                execution.cloning = Some(cloning);
                Ok(guard)
            }
            Err(source) => {
                self.undo_known(id)?;
                let source = match source {
                    // A snapshot has the size that its source had at the first call.
                    SourceError::Larger { volume, .. } if want.mode.is_snapshot() => SourceError::Grown { volume },
                    source => source,
                };
                Err(Error::Source { id: id.clone(), source })
            }
        }
    }

    /// Locks the source, so that it neither grows nor is deleted while it is cloned.
    pub(crate) fn lock_source(&self, source: &VolumeId, want: &Request) -> Result<(VolumeGuard, Cloning), SourceError> {
        // This check also runs before the lock: a volume that is not announced may itself be a clone, whose operation
        // waits for another lock.
        let check = || {
            let (mode, has) = self.check_source(source, want.size)?;
            match (mode.is_block(), want.mode.is_block()) {
                (true, false) => Err(SourceError::Block { volume: source.clone() }),
                (false, true) => Err(SourceError::Filesystem { volume: source.clone() }),
                (true, true) | (false, false) => Ok(has),
            }
        };
        check()?;
        let guard = self.locks.blocking_lock(source);
        let has = check()?;
        // With headroom, a tenant could store more files for as long as a thin snapshot exists. The size of an image
        // limits its tenant.
        let headroom = if want.mode.is_thin() && !want.mode.is_block() { Bytes::ZERO } else { has };
        Ok((guard, Cloning::new(source.clone(), headroom)))
    }

    /// The mode and the size of the source.
    pub(crate) fn check_source(&self, source: &VolumeId, size: Bytes) -> Result<(Mode, Bytes), SourceError> {
        let volume = || source.clone();
        let record = match self.index().volumes.get(source) {
            Some(Entry::Known(Known { record, .. })) if record.state == State::Announced => record.clone(),
            Some(Entry::Known(Known { record, .. })) if record.state == State::Complete => {
                return Err(SourceError::Copying { volume: volume() });
            }
            Some(Entry::Known(_)) => return Err(SourceError::NotAnnounced { volume: volume() }),
            Some(Entry::Closed { .. }) => return Err(SourceError::Closed { volume: volume() }),
            None => return Err(SourceError::Unknown { volume: volume() }),
        };
        if matches!(record.mode, Mode::Filesystem { .. }) && self.freezer().is_none() {
            return Err(SourceError::NoFreezer { volume: volume() });
        }
        let image = match self.live.open_dir(source.name()) {
            Ok(_) if !record.mode.is_block() => Some(record.size),
            Ok(dir) => image_file::size_in(&dir).map_err(|source| SourceError::Look { volume: volume(), source })?,
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(SourceError::Look { volume: volume(), source: error.into() }),
        };
        // The source was retired, or its data is lost.
        let Some(image) = image else { return Err(SourceError::Unknown { volume: volume() }) };
        let has = image.max(record.size);
        if has > size { Err(SourceError::Larger { volume: volume(), has, size }) } else { Ok((record.mode, has)) }
    }

    /// Clones the source's image into a new directory, with the source locked.
    pub(crate) fn clone_image(&self, staged: &Dir, cloning: &Cloning) -> Result<(), ActError> {
        self.limit_source(&cloning.source)?;
        let source = self.live.open_dir(cloning.source.name())?;
        let from = image_file::open(&source, OFlag::O_RDONLY)?;
        let to = image_file::create(staged)?;
        // A power cut or a kill between the transactions of an earlier clone leaves a partial image.
        ftruncate(&to, 0).map_err(failed("truncate"))?;
        reflink::clone_file(&from, to).map_err(failed("clone"))?;
        // A kill before this call leaves the default size until the next thin snapshot of the source: overwrites create
        // more extents.
        if self.index().has_thin_snapshot(&cloning.source, None) {
            fsquota::set_cow_extent_size(from, COW_EXTENT).map_err(ActError::CowExtentSize)?;
        }
        Ok(())
    }

    /// Limits of a volume: those of its size, and space to overwrite blocks that clones share with it.
    pub(crate) fn limits(&self, id: &VolumeId, record: &Record) -> Limits {
        self.index().limits(id, record)
    }

    /// Sets these limits of a volume. `statfs` in a filesystem volume shows its size.
    pub(crate) fn set_limits(&self, record: &Record, limits: Limits) -> Result<(), SetError> {
        let shown = record.shown(limits).bytes.unwrap_or_default();
        self.quotas.set_limits_showing(record.project, limits, shown)
    }

    /// Sets the limits of a source, or of another volume, whose lock the caller holds.
    pub(crate) fn limit_source(&self, source: &VolumeId) -> Result<(), ActError> {
        let (record, limits) = {
            let index = self.index();
            let Some(Entry::Known(Known { record, .. })) = index.volumes.get(source) else { return Ok(()) };
            (record.clone(), index.limits(source, record))
        };
        // The removal of the volume has begun. Its limits mark that, and stay.
        if is_confined(self.quotas.quota(record.project).map_err(ActError::Quota)?) {
            return Ok(());
        }
        Ok(self.set_limits(&record, limits)?)
    }

    /// Lowers the limit of a source and resets its allocation size, after a clone or snapshot of it shares nothing any
    /// more.
    pub(crate) fn settle_source(&self, source: &VolumeId) {
        let _guard = self.locks.blocking_lock(source);
        self.lower_limit(source);
        self.settle_allocations(source, None);
    }

    /// Lowers the limit of a locked source after a clone or a thin snapshot of it has ended. A failure is logged: the
    /// next start sets all limits again. Until then, the size of the image limits a block volume, and
    /// [`Store::changed_limits`] reports the limits of a filesystem volume.
    pub(crate) fn lower_limit(&self, source: &VolumeId) {
        if let Err(error) = self.limit_source(source) {
            let reason: &dyn std::error::Error = &error;
            warn!(volume = %source, error = reason, "limit of a cloned volume stays raised until the next start");
        }
    }

    /// Sets the allocation size of a locked source that has an image: XFS allocates more at once for writes to the
    /// image while a thin snapshot other than `ended` shares it. A failure is logged.
    pub(crate) fn settle_allocations(&self, source: &VolumeId, ended: Option<&VolumeId>) {
        let (is_block, size) = {
            let index = self.index();
            let size = if index.has_thin_snapshot(source, ended) { COW_EXTENT } else { Bytes::ZERO };
            (index.volumes.get(source).is_some_and(Entry::is_block), size)
        };
        // Only a block volume has an image: a tenant may create a file of this name in a filesystem volume.
        if is_block
            && let Ok(image) = self.live.open_dir(source.name()).and_then(|dir| image_file::open(&dir, OFlag::O_RDONLY))
            && let Err(error) = fsquota::set_cow_extent_size(image, size)
        {
            let reason: &dyn std::error::Error = &error;
            warn!(volume = %source, error = reason, "writes to the image still allocate as for a thin snapshot");
        }
    }

    /// Writes the dirty pages of the source. `None` if it does not exist.
    pub(crate) fn flush_source(&self, source: &VolumeId, is_block: bool) -> Option<Dir> {
        let dir = self.live.open_dir(source.name()).ok()?;
        let synced = if is_block { fdatasync(&image_file::open(&dir, OFlag::O_RDONLY).ok()?) } else { syncfs(&dir) };
        // The source's own writers receive the error of the disk.
        if let Err(errno) = synced {
            warn!(volume = %source, %errno, "cloned volume cannot be synced");
        }
        Some(dir)
    }

    /// Releases the blocks that the source has only because its blocks were shared. XFS reserved new blocks for pages
    /// that were dirtied meanwhile, and allocated more in advance for the next writes. Without them, the source fits
    /// its own limit.
    ///
    /// # Errors
    /// [`ActError::Busy`]: the source still has such blocks. A source with direct I/O in flight keeps them, and a write
    /// to a hole of an image could fail. A thick image has holes where its pod has discarded blocks; without holes, it
    /// needs no new blocks, and its copy does not wait for its writers. A source of files is flushed less and less
    /// often; between two flushes, its usage decides.
    pub(crate) fn release_headroom(&self, cloning: &Cloning) -> Result<(), ActError> {
        let Cloning { source, headroom, .. } = cloning;
        if *headroom == Bytes::ZERO {
            return Ok(());
        }
        let (record, limits, former) = {
            let index = self.index();
            // The source was deleted meanwhile.
            let Some(Entry::Known(Known { record, .. })) = index.volumes.get(source) else { return Ok(()) };
            (record.clone(), index.limits(source, record), index.flushes.get(source).copied())
        };
        let is_block = record.mode.is_block();
        let flushes = is_block || Flush::is_due(former, Instant::now());
        let dir = if flushes { self.flush_source(source, is_block) } else { self.live.open_dir(source.name()).ok() };
        let Some(dir) = dir else { return Ok(()) };
        let used = self.quotas.settled(record.project).map_err(ActError::Quota)?.used.bytes;
        let alone = limits.bytes.unwrap_or_default().saturating_sub(*headroom);
        let exceeds = match record.mode {
            Mode::Block { allocation: Allocation::Thin } => used > alone,
            Mode::Block { allocation: Allocation::Thick } => used > alone && has_hole(&dir, record.size)?,
            // Overwritten extents have enlarged the extent maps of the files.
            Mode::Filesystem { .. } => used > image::taken(alone),
            Mode::Snapshot { .. } | Mode::SnapshotTree { .. } => false,
        };
        if exceeds {
            if flushes && !is_block {
                self.index().flushes.insert(source.clone(), Flush::after(former, Instant::now()));
            }
            return Err(ActError::Busy { volume: source.clone() });
        }
        Ok(())
    }
}

/// Runs one pass over a cloned image, until it shares no block and, if it is thick, has all its blocks. The image and
/// its instant are durable at the end of each pass: the API server receives the instant of a snapshot after the first
/// pass.
///
/// # Errors
/// [`ActError::Copying`]: the next pass continues.
pub(crate) fn end_sharing(
    dir: &Dir,
    anchor: Anchor<'_>,
    size: Bytes,
    allocation: Allocation,
    pass: Duration,
    cycle: &DutyCycle<'_>,
) -> Result<(), ActError> {
    let image = image_file::open(dir, OFlag::O_RDWR)?;
    // `FICLONE` copies the allocation size of the source, but the limit of the copy has space for pieces only.
    fsquota::set_cow_extent_size(&image, Bytes::ZERO).map_err(ActError::CowExtentSize)?;
    let done = anchor.during(cycle, |anchor| copy(&image, anchor, size, allocation, pass, cycle));
    // The page cache of the copy is clean, and pods read other data first.
    let _ = posix_fadvise(image.as_fd(), 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    done
}

fn copy(
    image: &OwnedFd,
    anchor: &mut Anchor<'_>,
    size: Bytes,
    allocation: Allocation,
    pass: Duration,
    cycle: &DutyCycle<'_>,
) -> Result<(), ActError> {
    let extents = |at| reflink::extents(image, at).map_err(failed("examine"));
    let mut kept = Bytes::ZERO;
    let act = |work, looked: Bytes| match work {
        Work::Copy { start, length } => {
            if start.saturating_add(length) > kept {
                // One clone call keeps small extents that are near each other. It ends within the scanned extents: a
                // later scan would report kept blocks as shared, and they would be copied.
                let near = looked.min(size).saturating_sub(start).clamp(length, PIECE);
                kept = match anchor.keep(image, start, near) {
                    Ok(()) => start.saturating_add(near),
                    // For several extents, `FICLONERANGE` may return `EINVAL` instead of `ENOSPC` after it has cloned a
                    // part.
                    Err(_) => {
                        anchor.keep(image, start, length)?;
                        start.saturating_add(length)
                    }
                };
            }
            anchor.unshare(image, start, length)
        }
        Work::Allocate { start, length } => {
            let [start, length] = [start, length].map(|number| number.get().cast_signed());
            fallocate(image, FallocateFlags::empty(), start, length).map_err(failed("allocate"))
        }
    };
    let copied = one_pass(size, allocation, pass, extents, act, cycle);
    // If pieces were kept, the anchor has forced the log for them.
    if kept == Bytes::ZERO {
        fdatasync(image).map_err(failed("sync"))?;
    }
    copied
}

/// End of the pass that began at `start` and found its first shared block at `first`. Each pass first scans the extents
/// that earlier passes have copied, which takes minutes for millions of extents or files. It then copies for about as
/// long as this scan took, but a minute at most: otherwise most passes would only scan.
pub(crate) fn end_of_pass(start: Instant, first: Instant, pass: Duration) -> Instant {
    let look = first.saturating_duration_since(start).saturating_sub(SCAN_EXTENSION[0]);
    first + pass.max(look.min(SCAN_EXTENSION[1]))
}

/// Runs one pass with the given operations on the image. `act` also receives the end of the scanned extents.
fn one_pass(
    size: Bytes,
    allocation: Allocation,
    pass: Duration,
    extents: impl Fn(Bytes) -> Result<Vec<Extent>, ActError>,
    mut act: impl FnMut(Work, Bytes) -> Result<(), ActError>,
    cycle: &DutyCycle<'_, impl Clock>,
) -> Result<(), ActError> {
    let (start, mut end, mut at) = (cycle.now(), None, Bytes::ZERO);
    loop {
        let batch = extents(at)?;
        let looked = batch.last().map_or(at, |last| last.end());
        for work in remaining(at, &batch, size, allocation) {
            let end = *end.get_or_insert_with(|| end_of_pass(start, cycle.now(), pass));
            // Each pass copies at least one piece.
            cycle.run(|| act(work, looked))?;
            if cycle.now() >= end {
                let (Work::Copy { start, .. } | Work::Allocate { start, .. }) = work;
                return Err(ActError::Copying { left: size.saturating_sub(start) });
            }
        }
        if batch.is_empty() {
            return Ok(());
        }
        at = looked;
    }
}

/// Work for a batch of extents after `at`. An empty batch marks the end of the image.
fn remaining(at: Bytes, batch: &[Extent], size: Bytes, allocation: Allocation) -> Vec<Work> {
    let (mut work, mut position) = (Vec::new(), at);
    let hole = |from: Bytes, to: Bytes| {
        let length = to.saturating_sub(from);
        (allocation == Allocation::Thick && length > Bytes::ZERO).then_some(Work::Allocate { start: from, length })
    };
    for extent in batch {
        let (start, end) = (extent.start.max(position), extent.end().min(size));
        work.extend(hole(position, start.min(size)));
        let mut piece = start;
        while extent.shared && piece < end {
            let length = end.saturating_sub(piece).min(PIECE);
            work.push(Work::Copy { start: piece, length });
            piece = piece.saturating_add(length);
        }
        position = position.max(end);
    }
    if batch.is_empty() {
        work.extend(hole(position, size));
    }
    work
}

/// Whether a part of the image has no blocks. `st_blocks` does not show this: XFS includes blocks that it has allocated
/// in advance for copy-on-write.
fn has_hole(dir: &Dir, size: Bytes) -> Result<bool, ActError> {
    let image = image_file::open(dir, OFlag::O_RDONLY)?;
    let mut mapped = Bytes::ZERO;
    while mapped < size {
        let batch = reflink::extents(&image, mapped).map_err(|errno| ActError::Image { step: "examine", errno })?;
        let end = batch.iter().fold(mapped, |end, extent| if extent.start > end { end } else { extent.end() });
        if end == mapped {
            return Ok(true);
        }
        mapped = end;
    }
    Ok(false)
}

pub(crate) fn failed(step: &'static str) -> impl Fn(Errno) -> ActError {
    move |errno| ActError::Clone { step, errno }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;
    use crate::duty_cycle::{BackgroundCopies, FakeClock};

    const BLOCK: u64 = 4096;

    fn blocks(count: u64) -> Bytes {
        Bytes::new(count * BLOCK)
    }

    /// Regression: the time of a pass was used up by the extents that earlier passes had copied, so that each pass
    /// copied one more. The snapshot of an image with millions of them did not get ready.
    #[test]
    fn a_pass_over_many_extents_copies_more_than_one() {
        const COUNT: u64 = 1000;
        let extent = |number: u64| Extent { start: blocks(2 * number), length: blocks(1), shared: number >= COUNT / 2 };
        let (clock, copies, copied) = (FakeClock::start(), BackgroundCopies::default(), Cell::new(0));
        let extents = |at: Bytes| {
            clock.pass(Duration::from_millis(500));
            Ok((0..COUNT).map(extent).filter(|extent| extent.end() > at).take(64).collect())
        };
        let act = |_, _| {
            clock.pass(Duration::from_millis(5));
            copied.set(copied.get() + 1);
            Ok(())
        };
        let (second, cycle) = (Duration::from_secs(1), copies.begin_with(&clock));
        let done = one_pass(blocks(2 * COUNT), Allocation::Thin, second, extents, act, &cycle);
        assert!(matches!(done, Err(ActError::Copying { .. })), "{done:?}");
        // The scan has taken four seconds.
        assert!(copied.get() > 100, "{}", copied.get());
    }

    #[test]
    fn a_pass_in_the_background_leaves_half_of_its_time() {
        let (clock, copies, copied) = (FakeClock::start(), BackgroundCopies::default(), Cell::new(0));
        let image = Extent { start: Bytes::ZERO, length: Bytes::GIB, shared: true };
        let extents = |at: Bytes| Ok(if at < image.end() { vec![image] } else { Vec::new() });
        let act = |_, _| {
            clock.pass(Duration::from_millis(10));
            copied.set(copied.get() + 1);
            Ok(())
        };
        let cycle = copies.begin_with(&clock);
        let done = one_pass(Bytes::GIB, Allocation::Thin, Duration::from_secs(1), extents, act, &cycle);
        assert!(matches!(done, Err(ActError::Copying { .. })), "{done:?}");
        assert_eq!(copied.get(), 50);
    }

    /// Extents with holes between them, and the size of the image.
    fn image() -> impl Strategy<Value = (Vec<Extent>, Bytes)> {
        (prop::collection::vec((0u64..3, 1u64..600, any::<bool>()), 0..20), 0u64..3).prop_map(|(all, tail)| {
            let (mut extents, mut at) = (Vec::new(), 0);
            for (gap, length, shared) in all {
                extents.push(Extent { start: blocks(at + gap), length: blocks(length), shared });
                at += gap + length;
            }
            (extents, blocks(at + tail))
        })
    }

    proptest! {
        #[test]
        fn the_work_is_every_shared_block_and_every_hole_of_a_thick_image((extents, size) in image(), batch in 1usize..9) {
            for allocation in [Allocation::Thick, Allocation::Thin] {
                let (mut at, mut work) = (Bytes::ZERO, Vec::new());
                for batch in extents.chunks(batch).chain([&[][..]]) {
                    work.extend(remaining(at, batch, size, allocation));
                    at = batch.last().map_or(at, |last| last.end());
                }
                let [mut copied, mut allocated] = [Bytes::ZERO; 2];
                let mut end = Bytes::ZERO;
                for one in work {
                    let (Work::Copy { start, length } | Work::Allocate { start, length }) = one;
                    prop_assert!(start >= end && length > Bytes::ZERO);
                    end = start.saturating_add(length);
                    match one {
                        Work::Copy { .. } => {
                            prop_assert!(length <= PIECE);
                            copied = copied.saturating_add(length);
                        }
                        Work::Allocate { .. } => allocated = allocated.saturating_add(length),
                    }
                }
                prop_assert!(end <= size);
                let shared: Bytes = extents.iter().filter(|extent| extent.shared).map(|extent| extent.length).sum();
                let mapped: Bytes = extents.iter().map(|extent| extent.length).sum();
                prop_assert_eq!(copied, shared);
                let holes = if allocation == Allocation::Thick { size.saturating_sub(mapped) } else { Bytes::ZERO };
                prop_assert_eq!(allocated, holes);
            }
        }
    }
}
