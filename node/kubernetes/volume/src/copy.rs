//! Copies the blocks that an image shares with its source, in passes. [`crate::tree`] copies those of files.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use dir::{Dir, OFlag};
use nix::fcntl::{FallocateFlags, PosixFadviseAdvice, fallocate, posix_fadvise};
use nix::unistd::fdatasync;
use reflink::Extent;
use units::Bytes;

use crate::anchor::Anchor;
use crate::duty_cycle::{Clock, DutyCycle};
use crate::error::{ActError, clone_failed};
use crate::{Allocation, image_file};

/// Size of the pieces in which blocks are copied. XFS reserves quota for the copy and for the range itself: both fit
/// into the blocks that the limit of an image has beside its size ([`crate::image::taken`]).
pub(crate) const PIECE: Bytes = Bytes::MIB;

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
    let extents = |at| reflink::extents(image, at).map_err(clone_failed("examine"));
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
            fallocate(image, FallocateFlags::empty(), start, length).map_err(clone_failed("allocate"))
        }
    };
    let copied = one_pass(size, allocation, pass, extents, act, cycle);
    // If pieces were kept, the anchor has forced the log for them.
    if kept == Bytes::ZERO {
        fdatasync(image).map_err(clone_failed("sync"))?;
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
