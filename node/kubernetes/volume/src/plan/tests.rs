use fsquota::ProjectId;
use proptest::prelude::*;
use units::Inodes;

use super::*;
use crate::record::{Allocation, Cloning, Mode, Rollback, Sharing};

const PROJECT: ProjectId = ProjectId::new(7).unwrap();
const NOTHING: DiskState = DiskState::NOTHING;
const FILES: Mode = Mode::Filesystem { inodes: Inodes::new(524_288) };
const DISK: Mode = Mode::Block { allocation: Allocation::Thick };
const SNAPSHOT: Mode = DISK.snapshot(Sharing::Temporary);
const TREE: Mode = FILES.snapshot(Sharing::Temporary);
const THIN_SNAPSHOT: Mode = DISK.snapshot(Sharing::Permanent);
const THIN_TREE: Mode = FILES.snapshot(Sharing::Permanent);
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
            Step::Complete => self.record.as_mut().expect("a record").state = State::Complete,
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

    fn is_complete(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.state == State::Complete)
    }

    fn announced(mut self) -> Self {
        self.record = self.record.map(|record| Record { state: State::Announced, ..record });
        self
    }
}

/// Applies the first `cut` steps of provisioning.
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

/// Applies the steps of retire, then of discard, and stops before step number `left`.
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
    fn a_clone_is_live_only_with_its_content_and_unless_thin_when_it_shares_nothing(
        mode in prop_oneof![Just(DISK), Just(SNAPSHOT), Just(THIN_SNAPSHOT)],
        cuts in prop::collection::vec((0usize..10, any::<bool>()), 0..5),
    ) {
        let want = Request { mode, ..clone_of("pvc-source") };
        // Each image that a step creates must begin with the source's content.
        let mut seen = NOTHING;
        for (after, undone) in cuts {
            if undone && !seen.is_complete() {
                let steps = undo(&seen)?;
                seen = cut(seen, &steps, after);
            }
            let steps = provision(&want, &seen)?;
            let made = steps.iter().position(|step| *step == Step::MakeImage);
            let cloned = steps.iter().position(|step| *step == Step::CloneImage);
            prop_assert!(made.is_none() || cloned < made && cloned.is_some() || seen.staging.image() == Some(HALF));
            seen = made_for(&want, seen, after);
            let shares = seen.record.as_ref().is_some_and(|record| record.cloning.is_some());
            prop_assert!(!seen.live.is_present() || shares == mode.is_thin());
        }
        let seen = made_for(&want, seen, usize::MAX);
        prop_assert!(seen.live.is_of(seen.record.as_ref().unwrap()));
        prop_assert_eq!(seen.live.image(), Some(Bytes::GIB));
        prop_assert!(!changes(&provision(&want, &seen)?));
        prop_assert_eq!(provision(&want, &seen.announced())?, vec![]);
    }

    /// A run that wrote or removed only some files leaves no directory that the next run treats as complete.
    #[test]
    fn files_are_live_only_when_all_are_of_one_instant(
        mode in prop_oneof![Just(FILES), Just(TREE), Just(THIN_TREE)],
        cuts in prop::collection::vec((0usize..12, any::<bool>()), 0..6),
    ) {
        let want = Request { source: Some("pvc-source".parse().unwrap()), ..want(mode) };
        // Content of the staged directory: nothing, some files, or all.
        let (mut seen, mut whole) = (NOTHING, false);
        for (after, undone) in cuts.into_iter().chain([(usize::MAX, false)]) {
            let is_undone = undone && !seen.is_complete();
            let steps = if is_undone { undo(&seen)? } else { provision(&want, &seen)? };
            for (number, step) in steps.iter().enumerate() {
                match step {
                    Step::CloneTree => whole = number < after,
                    // An interrupted removal has removed some files.
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
            prop_assert!(!seen.live.is_present() || shares == mode.is_thin());
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
    fn a_retired_volume_can_be_restored_wherever_either_is_cut(
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
        // If the disk is full at this moment, an undo would remove the former content of the volume.
        assert_eq!(undo(&seen), Err(VolumeRefusal::RollingBack(rollback.volume.clone())));
    }
}

#[test]
fn a_complete_snapshot_is_copied_and_never_taken_again_or_undone() {
    use Step::{Complete, CopyBlocks, EndSharing, Publish, SyncLive};
    for mode in [SNAPSHOT, TREE] {
        let want = Request { mode, ..clone_of("pvc-source") };
        let steps = provision(&want, &NOTHING).unwrap();
        let complete = steps.iter().position(|step| *step == Complete).unwrap() + 1;
        assert_eq!(steps[complete..], [CopyBlocks, EndSharing, Publish, SyncLive]);
        let mut seen = made_for(&want, NOTHING, complete);
        for rest in [&steps[complete..], &[Publish, SyncLive], &[SyncLive]] {
            let record = seen.record.clone().unwrap();
            assert_eq!(provision(&want, &seen).unwrap(), rest);
            assert_eq!(finish(&record, &seen).unwrap(), rest);
            assert_eq!(undo(&seen), Err(VolumeRefusal::Snapshot));
            // Its deletion has begun, at any step.
            let retired = cut(seen.clone(), &retire(&seen).unwrap(), usize::MAX);
            for gone in [retired.clone(), DiskState { trash: Place::Absent, ..retired }] {
                assert_eq!(provision(&want, &gone), Err(VolumeRefusal::Lost));
                assert_eq!(cut(gone.clone(), &discard(&gone).unwrap(), usize::MAX), NOTHING);
            }
            // The next round begins after one more step that changes the state.
            let changing = rest.iter().position(|step| matches!(step, EndSharing | Publish));
            seen = cut(seen, rest, changing.map_or(0, |at| at + 1));
        }
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

/// Regression: blocks that a copy had released belonged to the source alone, and a power cut could return the copy with
/// them.
#[test]
fn a_copy_is_durably_in_the_trash_before_it_gives_up_blocks() {
    use Step::{ClearLimits, CloneImage, CloneTree, RemoveData, RemoveRecord, SyncTrash, Trash};
    for (mode, clone) in [(DISK, CloneImage), (SNAPSHOT, CloneImage), (TREE, CloneTree), (FILES, CloneTree)] {
        let want = Request { mode, ..clone_of("pvc-source") };
        let cloned = provision(&want, &NOTHING).unwrap().iter().position(|step| *step == clone).unwrap() + 1;
        let steps = undo(&made_for(&want, NOTHING, cloned)).unwrap();
        assert_eq!(steps, [Trash(Where::Staging), SyncTrash, RemoveData, ClearLimits, RemoveRecord]);
    }
}

#[test]
fn a_thin_snapshot_is_not_copied_and_durably_in_the_trash_before_it_gives_up_blocks() {
    use Step::{
        ClearLimits, CloneImage, CloneTree, Limit, MakeImage, MakeStaging, Publish, RemoveData, RemoveRecord, SyncLive,
        SyncTrash, Trash, WriteRecord,
    };
    for (mode, clone) in [(THIN_SNAPSHOT, &[CloneImage, MakeImage][..]), (THIN_TREE, &[CloneTree][..])] {
        let want = Request { mode, ..clone_of("pvc-source") };
        let steps = provision(&want, &NOTHING).unwrap();
        assert_eq!(steps, [&[WriteRecord, MakeStaging, Limit][..], clone, &[Publish, SyncLive]].concat());
        let whole = made_for(&want, NOTHING, usize::MAX);
        let steps = undo(&whole).unwrap();
        assert_eq!(steps, [Trash(Where::Live), SyncTrash, RemoveData, ClearLimits, RemoveRecord]);
        let retired = cut(whole.clone(), &retire(&whole.announced()).unwrap(), usize::MAX);
        assert!(discard(&retired).unwrap().ends_with(&[SyncTrash, RemoveData, ClearLimits, RemoveRecord]));
    }
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
fn an_entry_without_a_record_is_neither_adopted_nor_deleted() {
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
    assert_eq!(undone, [Step::ClearLimits, Step::RemoveRecord]); // the directory is unmanaged
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
fn data_in_use_is_not_discarded_and_a_volume_without_pv_does_not_grow() {
    assert_eq!(discard(&done(FILES)), Err(VolumeRefusal::NotRetired));
    assert_eq!(discard(&done(DISK).announced()), Err(VolumeRefusal::NotRetired));
    assert_eq!(expand(Bytes::TIB, &done(DISK)), Err(VolumeRefusal::NotAnnounced));
}
