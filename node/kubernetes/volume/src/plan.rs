//! What is left to do, from what is on the disk. Pure.
//!
//! A volume's directory goes `staging` → `live` → `trash`, always by a rename, and always with a record beside it: the
//! record is written before the first and removed after the last. Every [`Step`] may run twice, and a run may end
//! between any two: the next plan begins where it ended.

use fsquota::ProjectId;
use units::{Bytes, Inodes};

use crate::record::{Claim, Mode, Record, State, promised};

/// What a claim asks for, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who asks.
    pub claim: Claim,
    /// The claim's storage class.
    pub class: String,
    /// Directory or image.
    pub mode: Mode,
    /// Bytes, in whole blocks of the file system.
    pub size: Bytes,
    /// Files and directories.
    pub inodes: Inodes,
}

impl Request {
    /// What the volume may take from the disk at most, see [`Record::promised`].
    pub fn promised(&self) -> Bytes {
        promised(self.size, self.inodes)
    }

    /// The record of a volume made for this.
    pub(crate) fn record(&self, project: ProjectId) -> Record {
        let Self { claim, class, mode, size, inodes } = self.clone();
        Record { claim, class, mode, size, inodes, project, state: State::Staged }
    }
}

/// A directory that may be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It is not.
    Absent,
    /// It is, with this project.
    Present(Option<ProjectId>),
}

impl Place {
    const fn is_present(self) -> bool {
        matches!(self, Self::Present(_))
    }
}

/// What is on the disk of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its record.
    pub record: Option<Record>,
    /// Its directory while it is made.
    pub staging: Place,
    /// Its directory while it may be used.
    pub live: Place,
    /// Its directory while it is removed.
    pub trash: Place,
}

impl Seen {
    /// An announced volume without data anywhere: [`Step::RemoveData`] was the last step, or it was lost.
    pub(crate) fn is_emptied(&self) -> bool {
        let announced = self.record.as_ref().is_some_and(|record| record.state == State::Announced);
        announced && !self.staging.is_present() && !self.live.is_present() && !self.trash.is_present()
    }
}

/// One change. Each may run twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Allocate a project and write the record, durably.
    WriteRecord,
    /// Make the directory.
    MakeStaging,
    /// Limits first, then the project on the directory: it is never there without them.
    Limit,
    /// Put the directory itself and, with it, the quota's record into the log.
    SyncStaging,
    /// From staging to live: from now on it is a volume.
    Publish,
    /// Make that rename durable.
    SyncLive,
    /// Out of the way of everyone: from now on it is none any more.
    Trash(From),
    /// Make that rename durable.
    SyncTrash,
    /// Remove the directory and everything in it, durably.
    RemoveData,
    /// Take the limits off the project that nothing carries any more.
    ClearLimits,
    /// Remove the record, durably: from now on nothing is known of the volume.
    RemoveRecord,
}

/// Where [`Step::Trash`] finds the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// It was being made.
    Staging,
    /// It was in use.
    Live,
}

/// What stands on the disk must be kept as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Something has the volume's name and no record says that we made it.
    #[error("something without a matching record has the volume's name on the disk; it is kept, move it away by hand")]
    Foreign,
    /// The record speaks of another claim, or of another promise.
    #[error("the volume on the disk was made for claim {claim} ({uid}) with {size}; delete that volume first")]
    Differs {
        /// The other claim.
        claim: String,
        /// Its UID.
        uid: String,
        /// What it was promised.
        size: Bytes,
    },
    /// An empty volume in the place of a lost one would be silent data loss.
    #[error("the volume was announced, but its data is not on the disk; restore it, or delete its PV")]
    Lost,
    /// The volume is in use or being made.
    #[error("the volume is not in the trash; delete its PV first")]
    NotRetired,
}

/// Makes the volume. After an empty plan, or one that only syncs, it is there as asked.
///
/// # Errors
/// [`Refusal::Foreign`], [`Refusal::Differs`], [`Refusal::Lost`]: nothing may be touched.
pub fn provision(want: &Request, seen: &Seen) -> Result<Vec<Step>, Refusal> {
    use Step::{Limit, MakeStaging, Publish, SyncLive, SyncStaging, WriteRecord};
    const MAKE: [Step; 5] = [MakeStaging, Limit, SyncStaging, Publish, SyncLive];

    let Some(record) = &seen.record else {
        if seen.staging.is_present() || seen.live.is_present() || seen.trash.is_present() {
            return Err(Refusal::Foreign);
        }
        return Ok([WriteRecord].into_iter().chain(MAKE).collect());
    };
    if record.claim.uid != want.claim.uid || record.mode != want.mode || record.size != want.size {
        let Claim { uid, .. } = &record.claim;
        return Err(Refusal::Differs { claim: record.claim.to_string(), uid: uid.clone(), size: record.size });
    }
    let project = Some(record.project);
    match (record.state, seen.staging, seen.live, seen.trash) {
        (State::Announced, Place::Absent, Place::Absent, _) => Err(Refusal::Lost),
        (State::Announced, Place::Absent, Place::Present(found), Place::Absent) if found == project => Ok(vec![]),
        (State::Staged, Place::Absent, Place::Absent, Place::Absent) => Ok(MAKE.to_vec()),
        // The steps after those that an earlier run did.
        (State::Staged, Place::Present(None), Place::Absent, Place::Absent) => Ok(MAKE[1..].to_vec()),
        (State::Staged, Place::Present(found), Place::Absent, Place::Absent) if found == project => {
            Ok(MAKE[2..].to_vec())
        }
        (State::Staged, Place::Absent, Place::Present(found), Place::Absent) if found == project => Ok(vec![SyncLive]),
        // It was being undone for want of room; the claim asks again.
        (State::Staged, Place::Absent, Place::Absent, Place::Present(_)) => {
            let undone = Seen { record: None, trash: Place::Absent, ..*seen };
            Ok([discard(seen)?, provision(want, &undone)?].concat())
        }
        _ => Err(Refusal::Foreign),
    }
}

/// Takes the volume, finished or half-made, out of use. The data is still there after it, in the trash, where only
/// [`discard`] looks.
///
/// # Errors
/// [`Refusal::Foreign`]: no record, so it is not ours to delete.
pub fn retire(seen: &Seen) -> Result<Vec<Step>, Refusal> {
    let here = (seen.staging.is_present(), seen.live.is_present(), seen.trash.is_present());
    match (&seen.record, here) {
        (_, (false, false, false)) => Ok(vec![]),
        (None, _) => Err(Refusal::Foreign),
        (Some(_), (true, false, false)) => Ok(vec![Step::Trash(From::Staging), Step::SyncTrash]),
        (Some(_), (false, true, false)) => Ok(vec![Step::Trash(From::Live), Step::SyncTrash]),
        // The rename of an earlier run may not be on the disk yet.
        (Some(_), (false, false, true)) => Ok(vec![Step::SyncTrash]),
        (Some(_), _) => Err(Refusal::Foreign),
    }
}

/// Removes what [`retire`] put away: the data, then the limits, then the record.
///
/// # Errors
/// [`Refusal::NotRetired`]; [`Refusal::Foreign`].
pub fn discard(seen: &Seen) -> Result<Vec<Step>, Refusal> {
    use Step::{ClearLimits, RemoveData, RemoveRecord};

    if seen.staging.is_present() || seen.live.is_present() {
        return Err(Refusal::NotRetired);
    }
    match (&seen.record, seen.trash) {
        (None, Place::Absent) => Ok(vec![]),
        (None, Place::Present(_)) => Err(Refusal::Foreign),
        (Some(_), Place::Absent) => Ok(vec![ClearLimits, RemoveRecord]),
        (Some(_), Place::Present(_)) => Ok(vec![RemoveData, ClearLimits, RemoveRecord]),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PROJECT: ProjectId = ProjectId::new(7).unwrap();

    fn want() -> Request {
        Request {
            claim: Claim { uid: "uid".into(), namespace: "default".into(), name: "data".into() },
            class: "local".into(),
            mode: Mode::Filesystem,
            size: Bytes::GIB,
            inodes: Inodes::new(524_288),
        }
    }

    const NOTHING: Seen = Seen { record: None, staging: Place::Absent, live: Place::Absent, trash: Place::Absent };

    impl Seen {
        fn after(mut self, step: &Step) -> Self {
            match step {
                Step::WriteRecord => self.record = Some(want().record(PROJECT)),
                Step::MakeStaging => self.staging = Place::Present(None),
                Step::Limit => self.staging = Place::Present(Some(PROJECT)),
                Step::Publish => {
                    self.live = self.staging;
                    self.staging = Place::Absent;
                }
                Step::Trash(From::Staging) => {
                    self.trash = self.staging;
                    self.staging = Place::Absent;
                }
                Step::Trash(From::Live) => {
                    self.trash = self.live;
                    self.live = Place::Absent;
                }
                Step::RemoveData => self.trash = Place::Absent,
                Step::RemoveRecord => self.record = None,
                Step::ClearLimits | Step::SyncStaging | Step::SyncLive | Step::SyncTrash => {}
            }
            self
        }

        fn announced(mut self) -> Self {
            self.record = self.record.map(|record| Record { state: State::Announced, ..record });
            self
        }
    }

    fn changes(steps: &[Step]) -> bool {
        !steps.iter().all(|step| matches!(step, Step::SyncStaging | Step::SyncLive | Step::SyncTrash))
    }

    fn done() -> Seen {
        provision(&want(), &NOTHING).unwrap().iter().fold(NOTHING, Seen::after)
    }

    /// Retire, then discard, stopping before step number `cut`; the rest of the cut.
    fn delete(seen: Seen, cut: usize) -> Result<(Seen, usize), Refusal> {
        let mut left = cut;
        let mut after = |seen: Seen, steps: Vec<Step>| {
            let run = steps.len().min(left);
            left -= run;
            let ended = run < steps.len();
            (steps[..run].iter().fold(seen, Seen::after), ended)
        };
        let steps = retire(&seen)?;
        let (seen, ended) = after(seen, steps);
        if ended {
            return Ok((seen, 0));
        }
        let steps = discard(&seen)?;
        let (seen, _) = after(seen, steps);
        Ok((seen, left))
    }

    proptest! {
        #[test]
        fn wherever_provisioning_is_cut_the_next_call_finishes_and_one_more_changes_nothing(cuts in prop::collection::vec(0usize..7, 0..4)) {
            let mut seen = NOTHING;
            for cut in cuts {
                seen = provision(&want(), &seen)?.iter().take(cut).fold(seen, Seen::after);
            }
            let done = provision(&want(), &seen)?.iter().fold(seen, Seen::after);
            prop_assert_eq!(done.live, Place::Present(Some(PROJECT)));
            prop_assert!(!changes(&provision(&want(), &done)?));
            prop_assert_eq!(provision(&want(), &done.announced())?, vec![]);
        }

        #[test]
        fn wherever_deletion_is_cut_the_next_call_finishes_and_one_more_does_nothing(
            made in 0usize..7, announced: bool, cuts in prop::collection::vec(0usize..8, 0..4),
        ) {
            let mut seen = provision(&want(), &NOTHING)?.iter().take(made).fold(NOTHING, Seen::after);
            if announced {
                seen = seen.announced();
            }
            for cut in cuts {
                seen = delete(seen, cut)?.0;
            }
            let (seen, _) = delete(seen, usize::MAX)?;
            prop_assert_eq!(&seen, &NOTHING);
            prop_assert_eq!(retire(&seen)?, vec![]);
            prop_assert_eq!(discard(&seen)?, vec![]);
        }

        #[test]
        fn a_volume_that_is_half_undone_is_made_again(made in 0usize..7, cut in 0usize..8) {
            let seen = provision(&want(), &NOTHING)?.iter().take(made).fold(NOTHING, Seen::after);
            let (seen, _) = delete(seen, cut)?;
            let done = provision(&want(), &seen)?.iter().fold(seen, Seen::after);
            prop_assert_eq!(done, super::tests::done());
        }

        #[test]
        fn a_directory_is_live_only_with_its_limits_and_while_there_is_a_record(cut in 0usize..7) {
            let seen = provision(&want(), &NOTHING)?.iter().take(cut).fold(NOTHING, Seen::after);
            prop_assert!(!seen.live.is_present() || seen.live == Place::Present(Some(PROJECT)));
            prop_assert!(seen.record.is_some() || seen == NOTHING);
        }
    }

    #[test]
    fn limits_go_before_the_rename_and_the_record_before_all() {
        use Step::{Limit, MakeStaging, Publish, SyncLive, SyncStaging, WriteRecord};
        let steps = provision(&want(), &NOTHING).unwrap();
        assert_eq!(steps, [WriteRecord, MakeStaging, Limit, SyncStaging, Publish, SyncLive]);
    }

    #[test]
    fn data_goes_before_its_limits_and_the_record_last() {
        use Step::{ClearLimits, RemoveData, RemoveRecord};
        let seen = retire(&done()).unwrap().iter().fold(done(), Seen::after);
        assert_eq!(discard(&seen).unwrap(), [RemoveData, ClearLimits, RemoveRecord]);
    }

    #[test]
    fn what_has_no_record_is_neither_adopted_nor_deleted() {
        for seen in [
            Seen { live: Place::Present(None), ..NOTHING },
            Seen { live: Place::Present(Some(PROJECT)), ..NOTHING },
            Seen { staging: Place::Present(None), ..NOTHING },
        ] {
            assert_eq!(provision(&want(), &seen), Err(Refusal::Foreign));
            assert_eq!(retire(&seen), Err(Refusal::Foreign));
            assert_eq!(discard(&seen), Err(Refusal::NotRetired));
        }
        let seen = Seen { trash: Place::Present(None), ..NOTHING };
        assert_eq!(retire(&seen), Err(Refusal::Foreign));
        assert_eq!(discard(&seen), Err(Refusal::Foreign));
    }

    #[test]
    fn a_directory_with_another_project_is_not_adopted() {
        let other = Place::Present(ProjectId::new(9));
        assert_eq!(provision(&want(), &Seen { live: other, ..done() }), Err(Refusal::Foreign));
        assert_eq!(provision(&want(), &Seen { live: Place::Present(None), ..done() }), Err(Refusal::Foreign));
        let staging = Seen { live: Place::Absent, staging: other, ..done() };
        assert_eq!(provision(&want(), &staging), Err(Refusal::Foreign));
    }

    #[test]
    fn a_volume_of_another_claim_or_size_is_not_adopted() {
        let mut other = want();
        other.claim.uid = "another".into();
        assert!(matches!(provision(&other, &done()), Err(Refusal::Differs { uid, .. }) if uid == "uid"));
        let larger = Request { size: Bytes::TIB, ..want() };
        assert!(matches!(provision(&larger, &done()), Err(Refusal::Differs { size: Bytes::GIB, .. })));
    }

    #[test]
    fn a_lost_volume_is_not_replaced_by_an_empty_one_and_can_be_deleted() {
        let lost = Seen { live: Place::Absent, ..done().announced() };
        assert_eq!(provision(&want(), &lost), Err(Refusal::Lost));
        assert_eq!(retire(&lost), Ok(vec![]));
        assert_eq!(discard(&lost), Ok(vec![Step::ClearLimits, Step::RemoveRecord]));
    }

    #[test]
    fn data_in_use_is_not_discarded() {
        assert_eq!(discard(&done()), Err(Refusal::NotRetired));
        assert_eq!(discard(&done().announced()), Err(Refusal::NotRetired));
    }
}
