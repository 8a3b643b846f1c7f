//! The remaining steps, from the observed state. Pure.
//!
//! A volume's directory goes `staging` → `live` → `trash`, always by a rename, and always with a record beside it: the
//! record is written before the first and removed after the last. Every [`Step`] may run twice, and a run may end
//! between any two: the next plan begins where it ended.

use std::mem::discriminant;

use units::Bytes;

use crate::disk_state::{DiskState, Place, Where};
use crate::record::{Claim, Owner, Record, State};
use crate::{IoRejection, Request, VolumeId};

/// One change. Each may run twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Allocate a project and write the record, durable before anything that comes after it.
    WriteRecord,
    MakeStaging,
    /// Limits first, then the project on the directory: it is never there without them.
    Limit,
    /// Clone the image of the source, whose limit is raised first.
    CloneImage,
    /// Clone all files of the source, whose limit is raised first, and write into the record that they are complete.
    CloneTree,
    /// Create the image with its full size, or extend a cloned one.
    MakeImage,
    /// Copy the blocks that the image or the files share, as many as one pass may.
    CopyBlocks,
    /// Write into the record that nothing is shared, durably, and lower the limit of the source.
    EndSharing,
    /// From staging to live: from now on it is a volume.
    Publish,
    /// Make that rename durable, and with it everything before.
    SyncLive,
    /// Allow as much as a volume of this size may take.
    RaiseLimits(Bytes),
    /// Extend the image to this size.
    GrowImage(Bytes),
    /// Write into the record that this is the size, durably, and with it the limits and the image that were raised before.
    RaiseRecord(Bytes),
    /// Take loop devices off the image.
    DetachLoops(Where),
    /// Out of the way of everyone: from now on it is none any more.
    Trash(Where),
    SyncTrash,
    /// From the trash to live: it is a volume again. Its limits and its mode first, if its removal had begun.
    Restore,
    /// Remove the incomplete directory and its content.
    RemoveStaging,
    /// Remove the directory in the trash, and everything in it: as much as one pass may. The limits are lowered first.
    RemoveData,
    /// Take the limits off the project that nothing carries any more.
    ClearLimits,
    /// Remove the record, durably, and with it everything before: from now on nothing is known of the volume.
    RemoveRecord,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeRefusal {
    #[error("something without a matching record has the volume's name on the disk; it is kept, move it away by hand")]
    Foreign,
    #[error("the volume on the disk was made for claim {claim} ({uid}) with {size}; delete that volume first")]
    Differs { claim: String, uid: String, size: Bytes },
    #[error("the volume was announced, but its data is not on the disk; restore it, or delete its PV")]
    Lost,
    #[error("the volume is not in the trash; delete its PV first")]
    NotRetired,
    #[error("the volume is not announced yet; try again")]
    NotAnnounced,
    #[error("it is a snapshot; delete its VolumeSnapshot, or its VolumeSnapshotContent")]
    Snapshot,
    #[error("it is a volume and no snapshot; correct the snapshot handle of the VolumeSnapshotContent")]
    Volume,
    #[error("the rollback of volume {0} to another snapshot is not finished; try again")]
    RollingBack(VolumeId),
    #[error("the volume cannot have the limits of its VolumeAttributesClass: {0}")]
    Io(IoRejection),
}

/// Creates the volume. After an empty plan, or one that only syncs, it exists as requested.
///
/// # Errors
/// [`VolumeRefusal::Foreign`], [`VolumeRefusal::Differs`], [`VolumeRefusal::Lost`]: nothing may be touched.
pub fn provision(want: &Request, seen: &DiskState) -> Result<Vec<Step>, VolumeRefusal> {
    use Step::{
        CloneImage, CloneTree, CopyBlocks, EndSharing, Limit, MakeImage, MakeStaging, RemoveStaging, SyncLive,
        WriteRecord,
    };

    let Some(record) = &seen.record else {
        if seen.is_anywhere() {
            return Err(VolumeRefusal::Foreign);
        }
        let image: &[Step] = match (&want.source, want.mode.is_block()) {
            (Some(_), true) => &[CloneImage, MakeImage, CopyBlocks, EndSharing],
            (Some(_), false) => &[CloneTree, CopyBlocks, EndSharing],
            (None, true) => &[MakeImage],
            (None, false) => &[],
        };
        return Ok([&[WriteRecord, MakeStaging, Limit][..], image, publish(&want.owner, false)].concat());
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
    let is_half_cloned = record.cloning.as_ref().is_some_and(|cloning| !cloning.complete);
    let image: &[Step] = match (record.mode.is_block(), seen.staging.image(), &record.cloning) {
        (false, ..) if is_half_cloned => &[CloneTree, CopyBlocks, EndSharing],
        // A clone that had all files was being undone.
        (false, ..) if want.source.is_some() && record.state == State::Staged && !seen.is_anywhere() => {
            let undone = DiskState { record: None, ..*seen };
            return Ok([undo(seen)?, provision(want, &undone)?].concat());
        }
        (false, _, Some(_)) => &[CopyBlocks, EndSharing],
        (false, _, None) => &[],
        (true, Some(image), None) if image == record.size => &[],
        // A clone that shared nothing any more was being undone: its content is gone.
        (true, _, None) if want.source.is_some() && is_only_staged(record, seen) => {
            let undone = DiskState { record: None, staging: Place::Absent, ..*seen };
            return Ok([undo(seen)?, provision(want, &undone)?].concat());
        }
        (true, _, None) => &[MakeImage],
        (true, Some(image), Some(_)) if image >= record.size => &[CopyBlocks, EndSharing],
        (true, Some(image), Some(cloning)) if image >= cloning.headroom => &[MakeImage, CopyBlocks, EndSharing],
        // XFS extends a clone with each extent: an image that is shorter than its source is a part of it.
        (true, _, Some(_)) => &[CloneImage, MakeImage, CopyBlocks, EndSharing],
    };
    let from = |begin: &[Step]| [begin, image, publish(&record.owner, record.is_exchanged())].concat();
    match (record.state, seen.staging, seen.live, seen.trash) {
        (State::Announced, Place::Absent, Place::Absent, _) => Err(VolumeRefusal::Lost),
        (State::Announced, Place::Absent, live, Place::Absent) if live.is_of(record) => Ok(vec![]),
        (State::Staged, Place::Absent, Place::Absent, Place::Absent) => Ok(from(&[MakeStaging, Limit])),
        // The steps after those that an earlier run did.
        (State::Staged, Place::Present { project: None, .. }, Place::Absent, Place::Absent) => Ok(from(&[Limit])),
        // Its files are of no instant.
        (State::Staged, staging, Place::Absent, Place::Absent)
            if staging.is_of(record) && !record.mode.is_block() && is_half_cloned =>
        {
            Ok(from(&[RemoveStaging, MakeStaging, Limit]))
        }
        (State::Staged, staging, Place::Absent, Place::Absent) if staging.is_of(record) => Ok(from(&[])),
        (State::Staged, Place::Absent, live, Place::Absent) if live.is_of(record) => Ok(vec![SyncLive]),
        // It was being undone because the disk was full; the claim requests it again.
        (State::Staged, Place::Absent, Place::Absent, Place::Present { .. }) => {
            let undone = DiskState { record: None, trash: Place::Absent, ..*seen };
            Ok([discard(seen)?, provision(want, &undone)?].concat())
        }
        _ => Err(VolumeRefusal::Foreign),
    }
}

/// The steps after the directory is complete. That of a rollback waits for the exchange.
fn publish(owner: &Owner, is_exchanged: bool) -> &'static [Step] {
    if matches!(owner, Owner::Rollback(_)) && !is_exchanged { &[] } else { &[Step::Publish, Step::SyncLive] }
}

/// Whether the volume was never live.
fn is_only_staged(record: &Record, seen: &DiskState) -> bool {
    record.state == State::Staged && !seen.live.is_present() && !seen.trash.is_present()
}

/// Expands the volume to at least this size. An image that is larger than its record, because a run ended in between, is
/// never cut: the record follows.
///
/// # Errors
/// [`VolumeRefusal::NotAnnounced`], [`VolumeRefusal::Lost`], [`VolumeRefusal::Foreign`]: nothing may be touched.
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
    // The limits before the image, which would not fit; the record after it, so that it never exceeds the image.
    let steps = [Step::RaiseLimits(size)].into_iter().chain(grow);
    Ok(steps.chain([Step::RaiseRecord(size)]).collect())
}

/// Takes the volume, finished or half-made, out of use. The data is still there after it, in the trash, where only
/// [`discard`] and [`restore`] look.
///
/// # Errors
/// [`VolumeRefusal::Foreign`]: it has no record, so it is unmanaged.
pub fn retire(seen: &DiskState) -> Result<Vec<Step>, VolumeRefusal> {
    let here = (seen.staging.is_present(), seen.live.is_present(), seen.trash.is_present());
    match (&seen.record, here) {
        (_, (false, false, false)) => Ok(vec![]),
        (None, _) => Err(VolumeRefusal::Foreign),
        (Some(_), (true, false, false)) => Ok(vec![Step::Trash(Where::Staging), Step::SyncTrash]),
        (Some(record), (false, true, false)) => {
            Ok([detach(record, Where::Live), vec![Step::Trash(Where::Live), Step::SyncTrash]].concat())
        }
        // The rename of an earlier run may not be on the disk yet.
        (Some(_), (false, false, true)) => Ok(vec![Step::SyncTrash]),
        (Some(_), _) => Err(VolumeRefusal::Foreign),
    }
}

/// Takes a retired volume back into use, as it was.
pub fn restore(seen: &DiskState) -> Result<Vec<Step>, VolumeRefusal> {
    let record =
        seen.record.as_ref().ok_or(if seen.is_anywhere() { VolumeRefusal::Foreign } else { VolumeRefusal::Lost })?;
    match (record.state, seen.staging, seen.live, seen.trash) {
        (State::Staged, ..) => Err(VolumeRefusal::NotAnnounced),
        (State::Announced, Place::Absent, Place::Absent, Place::Absent) => Err(VolumeRefusal::Lost),
        (State::Announced, Place::Absent, live, Place::Absent) if live.is_of(record) => Ok(vec![]),
        (State::Announced, Place::Absent, Place::Absent, trash) if trash.is_of(record) => {
            Ok(vec![Step::Restore, Step::SyncLive])
        }
        (State::Announced, ..) => Err(VolumeRefusal::Foreign),
    }
}

/// Removes what [`retire`] put away: the data, then the limits, then the record.
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
            Ok([detach(record, Where::Trash), vec![RemoveData, ClearLimits, RemoveRecord]].concat())
        }
    }
}

/// Removes a volume without a PV, in any state. A directory with its name and another project stays.
///
/// # Errors
/// [`VolumeRefusal::Foreign`]: the entry in staging or in the trash is unmanaged. [`VolumeRefusal::RollingBack`]: the directory has
/// the content that a volume had before its rollback.
pub fn undo(seen: &DiskState) -> Result<Vec<Step>, VolumeRefusal> {
    use Step::{ClearLimits, RemoveData, RemoveRecord, RemoveStaging, Trash};

    let Some(record) = &seen.record else {
        return if seen.is_anywhere() { Err(VolumeRefusal::Foreign) } else { Ok(vec![]) };
    };
    if let Some(rollback) = record.rollback().filter(|_| record.is_exchanged()) {
        return Err(VolumeRefusal::RollingBack(rollback.volume.clone()));
    }
    let mut steps = Vec::new();
    let is_complete = !record.mode.is_block() && record.cloning.as_ref().is_none_or(|cloning| cloning.complete);
    for (place, remove) in [(seen.staging, RemoveStaging), (seen.trash, RemoveData)] {
        match place {
            Place::Absent => {}
            // Files that are removed in part must not look complete to the next run.
            place if place == seen.staging && is_complete && place.is_of(record) && !seen.trash.is_present() => {
                steps.extend([Trash(Where::Staging), RemoveData]);
            }
            place if place.begins(record) => steps.push(remove),
            Place::Present { .. } => return Err(VolumeRefusal::Foreign),
        }
    }
    if seen.live.is_of(record) {
        steps.extend([Trash(Where::Live), RemoveData]);
    }
    steps.extend([ClearLimits, RemoveRecord]);
    Ok(steps)
}

fn detach(record: &Record, from: Where) -> Vec<Step> {
    if record.mode.is_block() { vec![Step::DetachLoops(from)] } else { vec![] }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use fsquota::ProjectId;
    use proptest::prelude::*;
    use units::Inodes;

    use super::*;
    use crate::record::{Allocation, Cloning, Mode, Rollback};

    const PROJECT: ProjectId = ProjectId::new(7).unwrap();
    const NOTHING: DiskState = DiskState::NOTHING;
    const FILES: Mode = Mode::Filesystem { inodes: Inodes::new(524_288) };
    const DISK: Mode = Mode::Block { allocation: Allocation::Thick };
    const SNAPSHOT: Mode = Mode::Snapshot { taken: SystemTime::UNIX_EPOCH };
    const TREE: Mode = Mode::SnapshotTree { taken: SystemTime::UNIX_EPOCH, inodes: Inodes::new(524_288) };
    /// The size of the source of a clone.
    const HALF: Bytes = Bytes::new(1 << 29);
    const SIZES: [Bytes; 3] = [Bytes::GIB, Bytes::new(2 << 30), Bytes::TIB];

    fn want(mode: Mode) -> Request {
        let claim = Claim { uid: "uid".into(), namespace: "default".into(), name: "data".into() };
        Request { claim, owner: Owner::Provisioner, class: "local".into(), mode, size: Bytes::GIB, source: None }
    }

    fn clone_of(source: &str) -> Request {
        Request { source: Some(source.parse().expect("an identifier")), ..want(DISK) }
    }

    fn modes() -> impl Strategy<Value = Mode> {
        prop_oneof![Just(FILES), Just(DISK)]
    }

    impl Place {
        fn take(&mut self) -> Self {
            std::mem::replace(self, Self::Absent)
        }

        fn set_image(&mut self, size: Bytes) {
            let Self::Present { image, .. } = self else { panic!("no directory") };
            *image = Some(size);
        }
    }

    impl DiskState {
        fn after(mut self, step: &Step) -> Self {
            self.do_step(*step);
            self
        }

        fn do_step(&mut self, step: Step) {
            let size = self.record.as_ref().map(|record| record.size);
            match step {
                Step::WriteRecord => panic!("needs the mode"),
                Step::MakeStaging => {
                    assert_eq!(self.staging, Place::Absent);
                    self.staging = Place::Present { project: None, image: None };
                }
                Step::Limit => self.staging = Place::Present { project: Some(PROJECT), image: None },
                Step::CloneImage => self.staging.set_image(HALF),
                Step::MakeImage => self.staging.set_image(size.expect("a record")),
                Step::CloneTree => {
                    assert!(self.staging.is_present());
                    self.record.as_mut().and_then(|record| record.cloning.as_mut()).expect("a clone").complete = true;
                }
                Step::EndSharing => self.record.as_mut().expect("a record").cloning = None,
                Step::Publish => self.live = self.staging.take(),
                Step::GrowImage(to) => {
                    assert!(self.live.image().is_some_and(|image| image < to), "never cut");
                    self.live.set_image(to);
                }
                Step::RaiseRecord(to) => self.record = self.record.take().map(|record| record.grown(to)),
                Step::Trash(from) => {
                    assert_eq!(self.trash, Place::Absent);
                    self.trash = if from == Where::Staging { self.staging.take() } else { self.live.take() };
                }
                Step::Restore => self.live = self.trash.take(),
                Step::RemoveStaging => self.staging = Place::Absent,
                Step::RemoveData => self.trash = Place::Absent,
                Step::RemoveRecord => self.record = None,
                Step::RaiseLimits(_)
                | Step::CopyBlocks
                | Step::ClearLimits
                | Step::DetachLoops(_)
                | Step::SyncLive
                | Step::SyncTrash => {}
            }
        }

        fn announced(mut self) -> Self {
            self.record = self.record.map(|record| Record { state: State::Announced, ..record });
            self
        }
    }

    /// The first `cut` steps of provisioning.
    fn made(mode: Mode, seen: DiskState, cut: usize) -> DiskState {
        made_for(&want(mode), seen, cut)
    }

    fn made_for(want: &Request, seen: DiskState, cut: usize) -> DiskState {
        let steps = provision(want, &seen).expect("it can be created");
        let cloning = want.source.clone().map(|source| Cloning::new(source, HALF));
        steps.iter().take(cut).fold(seen, |mut seen, step| {
            match step {
                Step::WriteRecord => seen.record = Some(want.record(PROJECT, cloning.clone())),
                step => seen.do_step(*step),
            }
            seen
        })
    }

    fn done(mode: Mode) -> DiskState {
        made(mode, NOTHING, usize::MAX)
    }

    fn cut(seen: DiskState, steps: &[Step], cut: usize) -> DiskState {
        steps.iter().take(cut).fold(seen, DiskState::after)
    }

    fn changes(steps: &[Step]) -> bool {
        steps.iter().any(|step| !matches!(step, Step::SyncLive | Step::SyncTrash))
    }

    /// Retire, then discard, stopping before step number `left`.
    fn delete(mut seen: DiskState, mut left: usize) -> Result<DiskState, VolumeRefusal> {
        for plan in [retire, discard] {
            let steps = plan(&seen)?;
            seen = cut(seen, &steps, left);
            if steps.len() > left {
                break;
            }
            left -= steps.len();
        }
        Ok(seen)
    }

    proptest! {
        #[test]
        fn wherever_provisioning_is_cut_the_next_call_finishes_and_one_more_changes_nothing(
            mode in modes(), cuts in prop::collection::vec(0usize..8, 0..4),
        ) {
            let seen = cuts.into_iter().fold(NOTHING, |seen, cut| made(mode, seen, cut));
            let seen = made(mode, seen, usize::MAX);
            prop_assert!(seen.live.is_of(seen.record.as_ref().unwrap()));
            prop_assert_eq!(seen.live.image(), mode.is_block().then_some(Bytes::GIB));
            prop_assert!(!changes(&provision(&want(mode), &seen)?));
            prop_assert_eq!(provision(&want(mode), &seen.announced())?, vec![]);
        }

        #[test]
        fn wherever_expansion_is_cut_the_next_call_finishes_and_one_more_does_nothing(
            mode in modes(), cuts in prop::collection::vec((0usize..6, 0usize..3), 0..6), last in 0usize..3,
        ) {
            let mut seen = done(mode).announced();
            for (after, to) in cuts {
                let before = seen.clone();
                let steps = expand(SIZES[to], &seen)?;
                seen = cut(seen, &steps, after);
                prop_assert!(seen.live.image() >= before.live.image());
                prop_assert!(seen.record.as_ref().unwrap().size >= before.record.unwrap().size);
            }
            let image = seen.live.image();
            let steps = expand(SIZES[last], &seen)?;
            let seen = cut(seen, &steps, usize::MAX);
            let record = seen.record.as_ref().unwrap();
            prop_assert!(record.size >= SIZES[last] && Some(record.size) >= image);
            prop_assert_eq!(seen.live.image(), mode.is_block().then_some(record.size));
            prop_assert_eq!(expand(SIZES[last], &seen)?, vec![]);
        }

        #[test]
        fn wherever_deletion_is_cut_the_next_call_finishes_and_one_more_does_nothing(
            mode in modes(), steps in 0usize..8, announced: bool, cuts in prop::collection::vec(0usize..9, 0..4),
        ) {
            let mut seen = made(mode, NOTHING, steps);
            if announced {
                seen = seen.announced();
            }
            for cut in cuts {
                seen = delete(seen, cut)?;
            }
            let seen = delete(seen, usize::MAX)?;
            prop_assert_eq!(&seen, &NOTHING);
            prop_assert_eq!(retire(&seen)?, vec![]);
            prop_assert_eq!(discard(&seen)?, vec![]);
        }

        #[test]
        fn wherever_undoing_is_cut_the_next_call_finishes_and_one_more_does_nothing(
            mode in modes(), steps in 0usize..8, cuts in prop::collection::vec(0usize..6, 0..4), half_deleted in 0usize..9,
        ) {
            let mut seen = delete(made(mode, NOTHING, steps), half_deleted)?;
            for after in cuts {
                let steps = undo(&seen)?;
                seen = cut(seen, &steps, after);
            }
            let steps = undo(&seen)?;
            let seen = cut(seen, &steps, usize::MAX);
            prop_assert_eq!(&seen, &NOTHING);
            prop_assert_eq!(undo(&seen)?, vec![]);
        }

        #[test]
        fn a_clone_is_live_only_with_its_content_and_when_it_shares_nothing(
            mode in prop_oneof![Just(DISK), Just(SNAPSHOT)],
            cuts in prop::collection::vec((0usize..10, any::<bool>()), 0..5),
        ) {
            let want = Request { mode, ..clone_of("pvc-source") };
            // The image of each step that creates one from nothing begins with the source's content.
            let mut seen = NOTHING;
            for (after, undone) in cuts {
                if undone {
                    let steps = undo(&seen)?;
                    seen = cut(seen, &steps, after);
                }
                let steps = provision(&want, &seen)?;
                let made = steps.iter().position(|step| *step == Step::MakeImage);
                let cloned = steps.iter().position(|step| *step == Step::CloneImage);
                prop_assert!(made.is_none() || cloned < made && cloned.is_some() || seen.staging.image() == Some(HALF));
                seen = made_for(&want, seen, after);
                let shares = seen.record.as_ref().is_some_and(|record| record.cloning.is_some());
                prop_assert!(!seen.live.is_present() || !shares);
            }
            let seen = made_for(&want, seen, usize::MAX);
            prop_assert!(seen.live.is_of(seen.record.as_ref().unwrap()));
            prop_assert_eq!(seen.live.image(), Some(Bytes::GIB));
            prop_assert!(!changes(&provision(&want, &seen)?));
            prop_assert_eq!(provision(&want, &seen.announced())?, vec![]);
        }

        /// A directory with files is never taken for a complete one after a run that wrote or removed some of them.
        #[test]
        fn files_are_live_only_when_all_are_of_one_instant(
            mode in prop_oneof![Just(FILES), Just(TREE)],
            cuts in prop::collection::vec((0usize..12, any::<bool>()), 0..6),
        ) {
            let want = Request { source: Some("pvc-source".parse().unwrap()), ..want(mode) };
            // Content of the staged directory: nothing, some files, or all.
            let (mut seen, mut whole) = (NOTHING, false);
            for (after, undone) in cuts.into_iter().chain([(usize::MAX, false)]) {
                let steps = if undone { undo(&seen)? } else { provision(&want, &seen)? };
                for (number, step) in steps.iter().enumerate() {
                    match step {
                        Step::CloneTree => whole = number < after,
                        // Cut within, it removes some.
                        Step::RemoveStaging => whole = false,
                        Step::Publish if number < after => prop_assert!(whole, "{:?}", steps),
                        _ => {}
                    }
                    if number >= after {
                        break;
                    }
                    match step {
                        Step::WriteRecord => {
                            let cloning = Cloning::new("pvc-source".parse().unwrap(), HALF);
                            seen.record = Some(want.record(PROJECT, Some(cloning)));
                        }
                        Step::Trash(Where::Staging) => {
                            whole = false;
                            seen.do_step(*step);
                        }
                        step => seen.do_step(*step),
                    }
                }
                let shares = seen.record.as_ref().is_some_and(|record| record.cloning.is_some());
                prop_assert!(!seen.live.is_present() || !shares);
            }
            prop_assert!(seen.live.is_of(seen.record.as_ref().unwrap()));
            prop_assert!(!changes(&provision(&want, &seen)?));
        }

        #[test]
        fn a_volume_that_is_half_undone_is_created_again(mode in modes(), steps in 0usize..8, cut in 0usize..9) {
            let seen = delete(made(mode, NOTHING, steps), cut)?;
            prop_assert_eq!(made(mode, seen, usize::MAX), done(mode));
        }

        #[test]
        fn what_was_retired_can_be_restored_wherever_either_is_cut(
            mode in modes(), retired in 0usize..4, restored in 0usize..3,
        ) {
            let whole = done(mode).announced();
            let steps = retire(&whole)?;
            let seen = cut(whole.clone(), &steps, retired);
            let steps = restore(&seen)?;
            let seen = cut(seen, &steps, restored);
            let steps = restore(&seen)?;
            let seen = cut(seen, &steps, usize::MAX);
            prop_assert_eq!(&seen, &whole);
            prop_assert_eq!(restore(&seen)?, vec![]);
        }

        #[test]
        fn a_directory_is_live_only_when_it_is_whole_and_while_there_is_a_record(mode in modes(), cut in 0usize..8) {
            let seen = made(mode, NOTHING, cut);
            prop_assert!(!seen.live.is_present() || seen.live == done(mode).live);
            prop_assert!(seen.record.is_some() || seen == NOTHING);
        }
    }

    #[test]
    fn the_snapshot_of_a_rollback_is_published_after_the_exchange() {
        use Step::{Publish, SyncLive};
        let project = ProjectId::new(8).unwrap();
        let [volume, source] = ["pvc-1", "snapshot-1"].map(|text| text.parse().unwrap());
        let rollback = Rollback { volume, source, project, allocation: Allocation::Thick };
        for (mode, image) in [(SNAPSHOT, Some(Bytes::GIB)), (TREE, None)] {
            let want = Request { mode, owner: Owner::Rollback(rollback.clone()), ..clone_of("snapshot-1") };
            let mut seen = made_for(&want, NOTHING, usize::MAX);
            assert_eq!((seen.live, seen.staging.image()), (Place::Absent, image));
            assert_eq!(provision(&want, &seen).unwrap(), []);
            assert!(!undo(&seen).unwrap().is_empty(), "it is a copy of a snapshot");
            seen.record.as_mut().unwrap().project = project;
            seen.staging = Place::Present { project: Some(project), image };
            assert_eq!(provision(&want, &seen).unwrap(), [Publish, SyncLive]);
            // A disk that is full at this moment would remove the former content of the volume.
            assert_eq!(undo(&seen), Err(VolumeRefusal::RollingBack(rollback.volume.clone())));
        }
    }

    #[test]
    fn limits_go_before_data_and_the_record_before_all() {
        use Step::{Limit, MakeImage, MakeStaging, Publish, SyncLive, WriteRecord};
        let steps = provision(&want(FILES), &NOTHING).unwrap();
        assert_eq!(steps, [WriteRecord, MakeStaging, Limit, Publish, SyncLive]);
        let steps = provision(&want(DISK), &NOTHING).unwrap();
        assert_eq!(steps, [WriteRecord, MakeStaging, Limit, MakeImage, Publish, SyncLive]);
    }

    #[test]
    fn data_goes_before_its_limits_and_the_record_last() {
        use Step::{ClearLimits, DetachLoops, RemoveData, RemoveRecord, SyncTrash, Trash};
        let steps = retire(&done(DISK)).unwrap();
        assert_eq!(steps, [DetachLoops(Where::Live), Trash(Where::Live), SyncTrash]);
        let seen = cut(done(DISK), &steps, usize::MAX);
        assert_eq!(discard(&seen).unwrap(), [DetachLoops(Where::Trash), RemoveData, ClearLimits, RemoveRecord]);
    }

    #[test]
    fn the_record_follows_the_image() {
        use Step::{GrowImage, RaiseLimits, RaiseRecord};
        let to = Bytes::TIB;
        let steps = expand(to, &done(DISK).announced()).unwrap();
        assert_eq!(steps, [RaiseLimits(to), GrowImage(to), RaiseRecord(to)]);
        let steps = expand(to, &done(FILES).announced()).unwrap();
        assert_eq!(steps, [RaiseLimits(to), RaiseRecord(to)]);
    }

    #[test]
    fn what_has_no_record_is_neither_adopted_nor_deleted() {
        let (bare, limited) = (Place::Present { project: None, image: None }, done(DISK).live);
        for seen in [
            DiskState { live: bare, ..NOTHING },
            DiskState { live: limited, ..NOTHING },
            DiskState { staging: bare, ..NOTHING },
            DiskState { trash: bare, ..NOTHING },
        ] {
            assert_eq!(provision(&want(FILES), &seen), Err(VolumeRefusal::Foreign));
            assert_eq!(expand(Bytes::TIB, &seen), Err(VolumeRefusal::Foreign));
            assert_eq!(retire(&seen), Err(VolumeRefusal::Foreign));
            assert_eq!(restore(&seen), Err(VolumeRefusal::Foreign));
            assert_eq!(undo(&seen), Err(VolumeRefusal::Foreign));
            assert!(matches!(discard(&seen), Err(VolumeRefusal::NotRetired | VolumeRefusal::Foreign)));
        }
    }

    #[test]
    fn a_directory_with_another_project_is_neither_adopted_nor_undone() {
        let other = Place::Present { project: ProjectId::new(9), image: None };
        let bare = Place::Present { project: None, image: None };
        assert_eq!(provision(&want(FILES), &DiskState { live: other, ..done(FILES) }), Err(VolumeRefusal::Foreign));
        assert_eq!(provision(&want(FILES), &DiskState { live: bare, ..done(FILES) }), Err(VolumeRefusal::Foreign));
        let staging = DiskState { live: Place::Absent, staging: other, ..done(FILES) };
        assert_eq!(provision(&want(FILES), &staging), Err(VolumeRefusal::Foreign));
        assert_eq!(undo(&staging), Err(VolumeRefusal::Foreign));
        let undone = undo(&DiskState { live: other, ..done(FILES) }).unwrap();
        assert_eq!(undone, [Step::ClearLimits, Step::RemoveRecord]); // only what is ours
    }

    #[test]
    fn a_volume_of_another_claim_size_or_kind_is_not_adopted() {
        let mut other = want(FILES);
        other.claim.uid = "another".into();
        assert!(matches!(provision(&other, &done(FILES)), Err(VolumeRefusal::Differs { uid, .. }) if uid == "uid"));
        let larger = Request { size: Bytes::TIB, ..want(FILES) };
        assert!(matches!(provision(&larger, &done(FILES)), Err(VolumeRefusal::Differs { size: Bytes::GIB, .. })));
        assert!(matches!(provision(&want(DISK), &done(FILES)), Err(VolumeRefusal::Differs { .. })));
        assert!(matches!(provision(&want(SNAPSHOT), &done(DISK)), Err(VolumeRefusal::Differs { .. })));
    }

    #[test]
    fn a_clone_of_another_source_is_not_adopted() {
        let half = made_for(&clone_of("pvc-source"), NOTHING, 4);
        assert!(matches!(provision(&clone_of("pvc-other"), &half), Err(VolumeRefusal::Differs { .. })));
        assert!(matches!(provision(&want(DISK), &half), Err(VolumeRefusal::Differs { .. })));
    }

    #[test]
    fn a_lost_volume_is_not_replaced_by_an_empty_one_and_can_be_deleted() {
        let lost = DiskState { live: Place::Absent, ..done(FILES).announced() };
        assert_eq!(provision(&want(FILES), &lost), Err(VolumeRefusal::Lost));
        assert_eq!(expand(Bytes::TIB, &lost), Err(VolumeRefusal::Lost));
        assert_eq!(restore(&lost), Err(VolumeRefusal::Lost));
        assert_eq!(retire(&lost), Ok(vec![]));
        assert_eq!(discard(&lost), Ok(vec![Step::ClearLimits, Step::RemoveRecord]));
    }

    #[test]
    fn data_in_use_is_not_discarded_and_what_has_no_pv_does_not_grow() {
        assert_eq!(discard(&done(FILES)), Err(VolumeRefusal::NotRetired));
        assert_eq!(discard(&done(DISK).announced()), Err(VolumeRefusal::NotRetired));
        assert_eq!(expand(Bytes::TIB, &done(DISK)), Err(VolumeRefusal::NotAnnounced));
    }
}
