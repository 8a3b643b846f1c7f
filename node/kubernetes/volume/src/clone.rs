//! Volumes and snapshots that begin with the content of another volume. [`crate::tree`] clones files.
//!
//! An image is cloned in an instant, and then shares its blocks with the image of its source. A write to a shared block
//! needs a new block, which the source's project may not have: a loop device would lose buffered writes. Therefore the
//! source's limit is raised while blocks are shared, and the clone becomes live only when it shares none.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dir::{Dir, OFlag};
use fsquota::{Limits, SetError};
use nix::unistd::{fdatasync, ftruncate, syncfs};
use tracing::warn;
use units::Bytes;

use crate::disk_state::is_confined;
use crate::error::{ActError, SourceError, clone_failed};
use crate::flush::Flush;
use crate::index::{Entry, Known};
use crate::record::{Cloning, Record, State};
use crate::store::Store;
use crate::{Allocation, Mode, Request, VolumeGuard, VolumeId, image, image_file};

/// Allocation size of XFS for writes to blocks that a thin snapshot shares; the default is 128 KiB. An image that is
/// overwritten in any order then has one extent per MiB, and a snapshot takes time for each extent. A larger size would
/// allocate more space that no write uses, for as long as the image is open.
const COW_EXTENT: Bytes = Bytes::MIB;

/// How long the end or the removal of a copy waits for other operations on the source. It has a place in the queue
/// meanwhile: without one, it would find no gap between clones that follow each other. A clone waits longer, and checks
/// after each such time that the source still exists.
const LOCKED: Duration = Duration::from_secs(1);

impl Store {
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
        // The source may be deleted meanwhile, and created again as a clone of another source that the caller has: this
        // creation waits for the caller, without a record of the new volume.
        let guard = self.locks.lock_while(source, LOCKED, || match check() {
            // An error of the disk may be temporary. The check after the lock returns one that stays.
            Ok(_) | Err(SourceError::Look { .. }) => Ok(()),
            Err(error) => Err(error),
        })?;
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
        ftruncate(&to, 0).map_err(clone_failed("truncate"))?;
        reflink::clone_file(&from, to).map_err(clone_failed("clone"))?;
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
    ///
    /// After a start with an unreadable record, the limit of an image is not lowered: its headroom may be that of the
    /// copy with this record. The size of an image limits its tenant.
    pub(crate) fn set_limits(&self, record: &Record, mut limits: Limits) -> Result<(), SetError> {
        if self.keeps_headroom && record.mode.is_block() {
            limits.bytes = limits.bytes.max(self.quotas.quota(record.project)?.limits.bytes);
        }
        let shown = record.shown(limits).bytes.unwrap_or_default();
        self.quotas.set_limits_showing(record.project, limits, shown)
    }

    /// Sets the limits of a source, or of another volume, whose lock the caller holds.
    pub(crate) fn limit_source(&self, source: &VolumeId) -> Result<(), ActError> {
        self.limit_without(source, Bytes::ZERO)
    }

    /// As [`Store::limit_source`], without this headroom of a copy that ends.
    fn limit_without(&self, source: &VolumeId, headroom: Bytes) -> Result<(), ActError> {
        let Some((record, limits)) = self.limits_without(source, headroom) else { return Ok(()) };
        // The removal of the volume has begun. Its limits mark that, and stay.
        if is_confined(self.quotas.quota(record.project).map_err(ActError::Quota)?) {
            return Ok(());
        }
        Ok(self.set_limits(&record, limits)?)
    }

    /// Record of a source, and its limits without this headroom of a copy that ends. They are never below its size.
    fn limits_without(&self, source: &VolumeId, headroom: Bytes) -> Option<(Record, Limits)> {
        let index = self.index();
        let Some(Entry::Known(Known { record, .. })) = index.volumes.get(source) else { return None };
        let Limits { bytes, inodes } = index.limits(source, record);
        let bytes = bytes.map(|bytes| bytes.saturating_sub(headroom)).max(record.limits().bytes);
        Some((record.clone(), Limits { bytes, inodes }))
    }

    /// Sets the limit of a locked source after the record of a clone or snapshot of it has changed, or could not be
    /// changed. A failure is logged: the next start sets all limits again. Until then, the size of the image limits a
    /// block volume, and [`Store::changed_limits`] reports the limits of a filesystem volume.
    pub(crate) fn settle_limit(&self, source: &VolumeId) {
        if let Err(error) = self.limit_source(source) {
            let reason: &dyn std::error::Error = &error;
            warn!(volume = %source, error = reason, "limit of a cloned volume is set again only by the next start");
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

    /// Writes the dirty pages of the source, if it exists.
    pub(crate) fn flush_source(&self, source: &VolumeId, is_block: bool) {
        let Ok(dir) = self.live.open_dir(source.name()) else { return };
        let synced = if is_block {
            let Ok(image) = image_file::open(&dir, OFlag::O_RDONLY) else { return };
            fdatasync(image)
        } else {
            syncfs(&dir)
        };
        // The source's own writers receive the error of the disk.
        if let Err(errno) = synced {
            warn!(volume = %source, %errno, "cloned volume cannot be synced");
        }
    }

    /// Releases the blocks that the source has only because its blocks were shared, locks it, and lowers its limit. XFS
    /// reserved new blocks for pages that were dirtied meanwhile, and allocated more in advance for the next writes.
    /// Without them, the source fits its own limit.
    ///
    /// The caller holds the lock until the record of the copy has no source, and then calls [`Store::settle_limit`],
    /// also if the record could not be changed. Until then, the records have the headroom of this copy, and the check
    /// of another copy that ends would count it.
    ///
    /// # Errors
    /// [`ActError::Locked`]: another operation, such as a clone, has the source for longer than a second.
    ///
    /// [`ActError::Busy`]: the source still has such blocks. A source with direct I/O in flight keeps them, and a write
    /// to a hole of an image could fail. Their release may continue after this call. A thick image has holes where its
    /// pod has discarded blocks; without holes, it needs no new blocks, and its copy does not wait for its writers. A
    /// source of files is flushed less and less often; between two flushes, its usage decides.
    pub(crate) fn release_headroom(&self, copy: &VolumeId, cloning: &Cloning) -> Result<VolumeGuard, ActError> {
        let (source, begin) = (&cloning.source, Instant::now());
        // Only the last comparisons, of the usage alone, have the lock: other operations on the source wait neither for
        // its dirty pages nor for the release of its blocks.
        let is_flushed = self.flush_overwritten(cloning);
        let fits = self.free_unused(copy, cloning)? && !self.exceeds(cloning)?;
        let is_whole = !fits && self.is_whole(source)?;
        let mut error = ActError::Busy { volume: source.clone() };
        if fits || is_whole {
            match self.locks.lock_within(source, LOCKED) {
                Some(guard) if (is_whole || !self.exceeds(cloning)?) && self.lower_limit(cloning, is_whole)? => {
                    return Ok(guard);
                }
                Some(_) => {}
                None => error = ActError::Locked { volume: source.clone() },
            }
        }
        if is_flushed {
            let mut index = self.index();
            // Another copy of the source may have flushed it meanwhile.
            let flush = Flush::after(index.flushes.get(source).copied(), begin, Instant::now());
            index.flushes.insert(source.clone(), flush);
        }
        Err(error)
    }

    /// Writes the dirty pages of a source with headroom. Returns whether this was the flush of a source of files, which
    /// is written only when its pause has ended.
    fn flush_overwritten(&self, cloning: &Cloning) -> bool {
        let Cloning { source, headroom, .. } = cloning;
        let (is_block, former) = {
            let index = self.index();
            (index.volumes.get(source).map(Entry::is_block), index.flushes.get(source).copied())
        };
        let Some(is_block) = is_block else { return false };
        if *headroom == Bytes::ZERO || !is_block && !Flush::is_due(former, Instant::now()) {
            return false;
        }
        self.flush_source(source, is_block);
        !is_block
    }

    /// Lowers the limit of a locked source before the record of the copy changes, which waits for the disk: a tenant
    /// could write beyond its size meanwhile. Returns false, with the limit raised, if it has done so after the check.
    /// The copy shares no blocks any more. If the process is killed, the start sets the limit of the records.
    fn lower_limit(&self, cloning: &Cloning, may_exceed: bool) -> Result<bool, ActError> {
        let Cloning { source, headroom, .. } = cloning;
        if *headroom == Bytes::ZERO {
            return Ok(true);
        }
        let lowered = self.limit_without(source, *headroom);
        let fits = lowered.and_then(|()| Ok(may_exceed || !self.exceeds(cloning)?));
        if !matches!(fits, Ok(true)) {
            self.settle_limit(source);
        }
        fits
    }

    /// Frees the blocks of the source that XFS has allocated in advance, for a copy that shares no block any more.
    /// Returns false if an image may still have them: they count, and a write to a hole cannot use them. In a
    /// filesystem volume, a write without space frees those of other files itself, and the usage decides.
    fn free_unused(&self, copy: &VolumeId, cloning: &Cloning) -> Result<bool, ActError> {
        let Some((record, _)) = self.raised(cloning) else { return Ok(true) };
        let is_block = record.mode.is_block();
        if !is_block && !self.exceeds(cloning)? {
            return Ok(true);
        }
        let quotas = Arc::clone(&self.quotas);
        let release = move || quotas.settled(record.project).map(drop);
        let freed = self.releases.run(&cloning.source, copy, &record.claim.namespace, release);
        Ok(freed.map_err(ActError::Quota)? || !is_block)
    }

    /// Whether the source exceeds its limit without the headroom of this copy. Its usage includes blocks that XFS has
    /// allocated in advance.
    fn exceeds(&self, cloning: &Cloning) -> Result<bool, ActError> {
        let Some((record, limits)) = self.raised(cloning) else { return Ok(false) };
        let used = self.quotas.quota(record.project).map_err(ActError::Quota)?.used.bytes;
        let alone = limits.bytes.unwrap_or_default();
        Ok(match record.mode {
            Mode::Block { .. } => used > alone,
            // Overwritten extents have enlarged the extent maps of the files.
            Mode::Filesystem { .. } => used > image::taken(alone),
            Mode::Snapshot { .. } | Mode::SnapshotTree { .. } => false,
        })
    }

    /// Record of the source, and its limits without the headroom of this copy. `None` if the copy has no headroom, or
    /// the source was deleted meanwhile.
    fn raised(&self, cloning: &Cloning) -> Option<(Record, Limits)> {
        let Cloning { source, headroom, .. } = cloning;
        if *headroom == Bytes::ZERO || self.live.open_dir(source.name()).is_err() {
            return None;
        }
        self.limits_without(source, *headroom)
    }

    /// Whether the source is a thick image without holes, which needs no new blocks. A pod can discard blocks after
    /// this check, also while the source is locked.
    fn is_whole(&self, source: &VolumeId) -> Result<bool, ActError> {
        let thick = Mode::Block { allocation: Allocation::Thick };
        let size = match self.index().volumes.get(source) {
            Some(Entry::Known(Known { record, .. })) if record.mode == thick => record.size,
            _ => return Ok(false),
        };
        // If the source was deleted meanwhile, the next check finds that.
        let Ok(dir) = self.live.open_dir(source.name()) else { return Ok(false) };
        has_hole(&dir, size).map(|has_hole| !has_hole)
    }
}

/// Whether a part of the image has no blocks. `st_blocks` does not show this: XFS includes blocks that it has allocated
/// in advance for copy-on-write. The call writes the dirty pages of the image (`FIEMAP_FLAG_SYNC`).
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
