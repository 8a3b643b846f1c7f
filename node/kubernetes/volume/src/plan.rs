//! Computes the remaining steps from the observed state. Pure.
//!
//! A volume's directory moves `staging` → `live` → `trash`, always by a rename, and always has a record: the store
//! writes the record first and removes it last. Every [`Step`] may run twice, and a run may end between any two steps:
//! the next plan begins where it ended.

use std::mem::discriminant;

use units::Bytes;

use crate::disk_state::{DiskState, Place, Where};
use crate::record::{Claim, Mode, Owner, Record, State};
use crate::{IoRejection, Request, VolumeId};

/// One change. Each may run twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Allocate a project and write the record, durable before anything that comes after it.
    WriteRecord,
    MakeStaging,
    /// Set the limits, and then the project of the directory: a directory never has the project without its limits.
    Limit,
    /// Clone the image of the source, whose limit is raised first.
    CloneImage,
    /// Clone all files of the source, whose limit is raised first, and write into the record that they are complete.
    CloneTree,
    /// Create the image with its full size, or extend a cloned one.
    MakeImage,
    /// Write into the record of a snapshot that it has its whole content, durably, and with it the content.
    Complete,
    /// Copy the blocks that the image or the files share, as many as one pass may.
    CopyBlocks,
    /// Write into the record that nothing is shared, durably, and lower the limit of the source.
    EndSharing,
    /// Move the directory from staging to live: from now on it is a volume.
    Publish,
    /// Make the rename to live durable, and with it all earlier changes.
    SyncLive,
    /// Raise the limits to those of a volume of this size.
    RaiseLimits(Bytes),
    GrowImage(Bytes),
    /// Write this size into the record, durably. The limits and the image, which were raised before, are then durable,
    /// too.
    RaiseRecord(Bytes),
    /// Detach loop devices from the image.
    DetachLoops(Where),
    /// Move the directory to the trash: from now on the volume cannot be used.
    Trash(Where),
    SyncTrash,
    /// Move the directory from the trash to live: it is a volume again. If its removal had begun, its limits and its
    /// mode are restored first.
    Restore,
    /// Remove the incomplete directory and its content.
    RemoveStaging,
    /// Remove the directory in the trash and its content, as much as one pass may. The limits are lowered first.
    RemoveData,
    /// Clear the limits of the project, which no inode has any more.
    ClearLimits,
    /// Remove the record, durably, and with it all earlier changes: from now on the store has nothing of the volume.
    RemoveRecord,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeRefusal {
    #[error("an entry without a matching record has the volume's name on the disk; back it up, then remove it")]
    Foreign,
    #[error("the volume on the disk belongs to claim {claim} ({uid}) with {size}; delete that volume first")]
    Differs { claim: String, uid: String, size: Bytes },
    #[error("the volume has a PV, but its data is not on the disk; restore the data, or delete the PV")]
    Lost,
    #[error("the volume is not in the trash; delete its PV first")]
    NotRetired,
    #[error("the volume is still being provisioned; try again")]
    NotAnnounced,
    #[error("the volume is a snapshot; delete its VolumeSnapshot, or its VolumeSnapshotContent")]
    Snapshot,
    #[error("the volume is not a snapshot; correct the snapshot handle of the VolumeSnapshotContent")]
    Volume,
    /// The volume may be that of a rollback, whose claim must stay.
    #[error("the blocks of the thin snapshot are being copied to volume {0}; try again when {0} is ready")]
    Restoring(VolumeId),
    #[error("the rollback of volume {0} to another snapshot is not finished; try again")]
    RollingBack(VolumeId),
    #[error("the volume cannot have the limits of its VolumeAttributesClass: {0}")]
    Io(IoRejection),
}

/// Creates the volume. If the plan is empty, or only syncs, the volume exists as requested.
///
/// # Errors
/// [`VolumeRefusal::Foreign`], [`VolumeRefusal::Differs`], [`VolumeRefusal::Lost`]: nothing may be changed.
pub fn provision(want: &Request, seen: &DiskState) -> Result<Vec<Step>, VolumeRefusal> {
    use Step::{CloneImage, CloneTree, Limit, MakeImage, MakeStaging, RemoveStaging, SyncLive, WriteRecord};

    let Some(record) = &seen.record else {
        if seen.is_anywhere() {
            return Err(VolumeRefusal::Foreign);
        }
        let image: &[Step] = match (&want.source, want.mode.is_block()) {
            (Some(_), true) => &[CloneImage, MakeImage],
            (Some(_), false) => &[CloneTree],
            (None, true) => &[MakeImage],
            (None, false) => &[],
        };
        let copy = if want.source.is_some() { copy(want.mode) } else { NO_COPY };
        let begin: &[Step] = &[WriteRecord, MakeStaging, Limit];
        let (complete, publish) = (complete(want.mode, &want.owner), publish(&want.owner, false));
        return Ok([begin, image, complete, copy, publish].concat());
    };
    let other_source = record.cloning.as_ref().is_some_and(|cloning| want.source.as_ref() != Some(&cloning.source));
    if record.claim.uid != want.claim.uid
        || record.owner != want.owner
        || discriminant(&record.mode) != discriminant(&want.mode)
        || record.size != want.size
        || other_source
    {
        let Claim { uid, .. } = &record.claim;
        return Err(VolumeRefusal::Differs { claim: record.claim.to_string(), uid: uid.clone(), size: record.size });
    }
    if record.state == State::Complete {
        return finish(record, seen);
    }
    let is_half_cloned = record.cloning.as_ref().is_some_and(|cloning| !cloning.complete);
    let image: &[Step] = match (record.mode.is_block(), seen.staging.image(), &record.cloning) {
        (false, ..) if is_half_cloned => &[CloneTree],
        // An undo has removed a clone that had all files, but not its record: the clone begins again.
        (false, ..) if want.source.is_some() && record.state == State::Staged && !seen.is_anywhere() => {
            let undone = DiskState { record: None, ..*seen };
            return Ok([undo(seen)?, provision(want, &undone)?].concat());
        }
        (false, ..) => &[],
        (true, Some(image), None) if image == record.size => &[],
        // An undo has begun to remove a clone that shared nothing any more. Its content is gone, so the clone begins
        // again.
        (true, _, None) if want.source.is_some() && is_only_staged(record, seen) => {
            let undone = DiskState { record: None, staging: Place::Absent, ..*seen };
            return Ok([undo(seen)?, provision(want, &undone)?].concat());
        }
        (true, _, None) => &[MakeImage],
        (true, Some(image), Some(_)) if image >= record.size => &[],
        (true, Some(image), Some(cloning)) if image >= cloning.headroom => &[MakeImage],
        // XFS extends a clone with each extent: an image that is shorter than its source is a partial clone.
        (true, _, Some(_)) => &[CloneImage, MakeImage],
    };
    let copy = if record.cloning.is_some() { copy(record.mode) } else { NO_COPY };
    let complete = complete(record.mode, &record.owner);
    let from = |begin: &[Step]| [begin, image, complete, copy, publish(&record.owner, record.is_exchanged())].concat();
    match (record.state, seen.staging, seen.live, seen.trash) {
        (State::Announced, Place::Absent, Place::Absent, _) => Err(VolumeRefusal::Lost),
        (State::Announced, Place::Absent, live, Place::Absent) if live.is_of(record) => Ok(vec![]),
        (State::Staged, Place::Absent, Place::Absent, Place::Absent) => Ok(from(&[MakeStaging, Limit])),
        // An earlier run has completed the steps before these.
        (State::Staged, Place::Present { project: None, .. }, Place::Absent, Place::Absent) => Ok(from(&[Limit])),
        // The files of a partial clone have no common instant, so they are cloned again.
        (State::Staged, staging, Place::Absent, Place::Absent)
            if staging.is_of(record) && !record.mode.is_block() && is_half_cloned =>
        {
            Ok(from(&[RemoveStaging, MakeStaging, Limit]))
        }
        (State::Staged, staging, Place::Absent, Place::Absent) if staging.is_of(record) => Ok(from(&[])),
        (State::Staged, Place::Absent, live, Place::Absent) if live.is_of(record) => Ok(vec![SyncLive]),
        // The volume was being undone because the disk was full. The claim requests it again.
        (State::Staged, Place::Absent, Place::Absent, Place::Present { .. }) => {
            let undone = DiskState { record: None, trash: Place::Absent, ..*seen };
            Ok([discard(seen)?, provision(want, &undone)?].concat())
        }
        _ => Err(VolumeRefusal::Foreign),
    }
}

/// Copies the blocks of a snapshot that is complete, and announces it. Never takes it again.
///
/// # Errors
/// [`VolumeRefusal::Lost`]: its data is gone, or in the trash. [`VolumeRefusal::Foreign`].
pub fn finish(record: &Record, seen: &DiskState) -> Result<Vec<Step>, VolumeRefusal> {
    let copy = if record.cloning.is_some() { copy(record.mode) } else { NO_COPY };
    let has_content = !record.mode.is_block() || seen.staging.image() >= Some(record.size);
    match (seen.staging, seen.live, seen.trash) {
        (staging, Place::Absent, Place::Absent) if staging.is_of(record) && has_content => {
            Ok([copy, publish(&record.owner, false)].concat())
        }
        // An earlier run has moved it.
        (Place::Absent, live, Place::Absent) if live.is_of(record) => Ok(vec![Step::SyncLive]),
        (staging, Place::Absent, Place::Absent) if staging.is_of(record) => Err(VolumeRefusal::Lost),
        (Place::Absent, Place::Absent, _) => Err(VolumeRefusal::Lost),
        _ => Err(VolumeRefusal::Foreign),
    }
}

const NO_COPY: &[Step] = &[];

/// Step after a snapshot has the whole content of its source.
const fn complete(mode: Mode, owner: &Owner) -> &'static [Step] {
    if mode.is_complete_early(owner) { &[Step::Complete] } else { &[] }
}

/// Steps of a clone after it has the whole content of its source. A thin snapshot shares its blocks for as long as it
/// exists.
const fn copy(mode: Mode) -> &'static [Step] {
    if mode.is_thin() { NO_COPY } else { &[Step::CopyBlocks, Step::EndSharing] }
}

/// Steps after the directory is complete. The directory of a rollback waits for the exchange.
fn publish(owner: &Owner, is_exchanged: bool) -> &'static [Step] {
    if matches!(owner, Owner::Rollback(_)) && !is_exchanged { &[] } else { &[Step::Publish, Step::SyncLive] }
}

/// Whether the volume was never live.
fn is_only_staged(record: &Record, seen: &DiskState) -> bool {
    record.state == State::Staged && !seen.live.is_present() && !seen.trash.is_present()
}

/// Expands the volume to at least this size. An image that is larger than its record, because a run ended before it
/// wrote the record, is never truncated: the record gets its size.
///
/// # Errors
/// [`VolumeRefusal::NotAnnounced`], [`VolumeRefusal::Lost`], [`VolumeRefusal::Foreign`]: nothing may be changed.
pub fn expand(to: Bytes, seen: &DiskState) -> Result<Vec<Step>, VolumeRefusal> {
    let record = match &seen.record {
        Some(record) if record.state == State::Announced => record,
        Some(_) => return Err(VolumeRefusal::NotAnnounced),
        None if seen.is_anywhere() => return Err(VolumeRefusal::Foreign),
        None => return Err(VolumeRefusal::Lost),
    };
    if !seen.live.is_present() {
        return Err(VolumeRefusal::Lost);
    }
    if !seen.live.is_of(record) {
        return Err(VolumeRefusal::Foreign);
    }
    let size = record.size.max(to);
    let (size, image) = match (record.mode.is_block(), seen.live.image()) {
        (false, _) => (size, None),
        (true, None) => return Err(VolumeRefusal::Lost),
        (true, Some(image)) => (size.max(image), Some(image)),
    };
    let grow = image.filter(|image| *image < size).map(|_| Step::GrowImage(size));
    if size == record.size && grow.is_none() {
        return Ok(vec![]);
    }
    // The limits are raised before the image grows, which would not fit. The record is written after the image, so that
    // it never exceeds the image.
    let steps = [Step::RaiseLimits(size)].into_iter().chain(grow);
    Ok(steps.chain([Step::RaiseRecord(size)]).collect())
}

/// Moves the volume, finished or not, to the trash. Its data stays there, and only [`discard`] and [`restore`] use it.
///
/// # Errors
/// [`VolumeRefusal::Foreign`]: the entry has no record, so it is unmanaged.
pub fn retire(seen: &DiskState) -> Result<Vec<Step>, VolumeRefusal> {
    let here = (seen.staging.is_present(), seen.live.is_present(), seen.trash.is_present());
    match (&seen.record, here) {
        (_, (false, false, false)) => Ok(vec![]),
        (None, _) => Err(VolumeRefusal::Foreign),
        (Some(_), (true, false, false)) => Ok(vec![Step::Trash(Where::Staging), Step::SyncTrash]),
        (Some(record), (false, true, false)) => {
            Ok([detach(record, Where::Live), vec![Step::Trash(Where::Live), Step::SyncTrash]].concat())
        }
        // The rename of an earlier run may not be durable yet.
        (Some(_), (false, false, true)) => Ok(vec![Step::SyncTrash]),
        (Some(_), _) => Err(VolumeRefusal::Foreign),
    }
}

/// Returns a retired volume to use, as it was.
pub fn restore(seen: &DiskState) -> Result<Vec<Step>, VolumeRefusal> {
    let record =
        seen.record.as_ref().ok_or(if seen.is_anywhere() { VolumeRefusal::Foreign } else { VolumeRefusal::Lost })?;
    match (record.state, seen.staging, seen.live, seen.trash) {
        (State::Staged | State::Complete, ..) => Err(VolumeRefusal::NotAnnounced),
        (State::Announced, Place::Absent, Place::Absent, Place::Absent) => Err(VolumeRefusal::Lost),
        (State::Announced, Place::Absent, live, Place::Absent) if live.is_of(record) => Ok(vec![]),
        (State::Announced, Place::Absent, Place::Absent, trash) if trash.is_of(record) => {
            Ok(vec![Step::Restore, Step::SyncLive])
        }
        (State::Announced, ..) => Err(VolumeRefusal::Foreign),
    }
}

/// Removes a volume that [`retire`] has moved to the trash: the data, then the limits, then the record.
pub fn discard(seen: &DiskState) -> Result<Vec<Step>, VolumeRefusal> {
    use Step::{ClearLimits, RemoveData, RemoveRecord};

    if seen.staging.is_present() || seen.live.is_present() {
        return Err(VolumeRefusal::NotRetired);
    }
    match (&seen.record, seen.trash) {
        (None, Place::Absent) => Ok(vec![]),
        (None, Place::Present { .. }) => Err(VolumeRefusal::Foreign),
        (Some(_), Place::Absent) => Ok(vec![ClearLimits, RemoveRecord]),
        (Some(record), Place::Present { .. }) => {
            Ok([detach(record, Where::Trash), sync(record), vec![RemoveData, ClearLimits, RemoveRecord]].concat())
        }
    }
}

/// Removes a volume without a PV, in any state. A directory with its name and another project stays.
///
/// # Errors
/// [`VolumeRefusal::Foreign`]: the entry in staging or in the trash is unmanaged. [`VolumeRefusal::RollingBack`]: the
/// directory has the content that a volume had before its rollback. [`VolumeRefusal::Snapshot`]: the snapshot is
/// complete, and only its deletion ends it.
pub fn undo(seen: &DiskState) -> Result<Vec<Step>, VolumeRefusal> {
    use Step::{ClearLimits, RemoveData, RemoveRecord, RemoveStaging, Trash};

    let Some(record) = &seen.record else {
        return if seen.is_anywhere() { Err(VolumeRefusal::Foreign) } else { Ok(vec![]) };
    };
    if let Some(rollback) = record.rollback().filter(|_| record.is_exchanged()) {
        return Err(VolumeRefusal::RollingBack(rollback.volume.clone()));
    }
    if record.state == State::Complete {
        return Err(VolumeRefusal::Snapshot);
    }
    let mut steps = Vec::new();
    let is_complete = match &record.cloning {
        Some(cloning) => record.mode.is_block() || cloning.complete,
        None => !record.mode.is_block(),
    };
    for (place, remove) in [(seen.staging, RemoveStaging), (seen.trash, RemoveData)] {
        match place {
            Place::Absent => {}
            // Files that are removed in part must not look complete to the next run.
            place if place == seen.staging && is_complete && place.is_of(record) && !seen.trash.is_present() => {
                steps.push(Trash(Where::Staging));
                steps.extend(sync(record));
                steps.push(RemoveData);
            }
            place if place.begins(record) => {
                steps.extend(if remove == RemoveData { sync(record) } else { vec![] });
                steps.push(remove);
            }
            Place::Present { .. } => return Err(VolumeRefusal::Foreign),
        }
    }
    if seen.live.is_of(record) {
        steps.push(Trash(Where::Live));
        // Only a thin snapshot is live while it shares blocks.
        steps.extend(sync(record));
        steps.push(RemoveData);
    }
    steps.extend([ClearLimits, RemoveRecord]);
    Ok(steps)
}

/// Makes the move to the trash durable before an unfinished copy or a thin snapshot releases its blocks. The source
/// overwrites these blocks at once, and a power cut must not return the copy to its place.
fn sync(record: &Record) -> Vec<Step> {
    if record.cloning.is_some() { vec![Step::SyncTrash] } else { vec![] }
}

fn detach(record: &Record, from: Where) -> Vec<Step> {
    if record.mode.is_block() { vec![Step::DetachLoops(from)] } else { vec![] }
}

#[cfg(test)]
mod tests;
