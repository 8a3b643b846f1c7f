//! Snapshots of several volumes at one instant.
//!
//! Each member is a snapshot of its own, and is copied like one. Only the clones of the images and the last passes over
//! the files run together, while the pods of all sources are stopped. The records of one instant have the same time,
//! which is written if the pods have not run meanwhile. Images and files of a run that ended before that are cloned
//! again. When all members have the time, each of them gets the mark of a complete snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

use dir::Ensured;
use fsquota::ProjectId;
use reflink::{CompleteTree, TreeClone, TreeError};
use tracing::{info, warn};
use units::Bytes;

use crate::error::{ActError, Error, SourceError, refused};
use crate::execution::Execution;
use crate::freezing::FreezeError;
use crate::index::Known;
use crate::passes::{Copying, Taken};
use crate::plan::{self, Step};
use crate::record::{Cloning, Mode, Record, State};
use crate::snapshot::{ANY, SnapshotRequest};
use crate::store::Store;
use crate::{PodFreezer, Request, VolumeGuard, VolumeId, tree};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRequest {
    /// ID of the group, for errors.
    pub id: VolumeId,
    pub members: BTreeMap<VolumeId, SnapshotRequest>,
    /// The longest time for which the pods of all sources may be stopped.
    pub max_pause: Duration,
}

impl GroupRequest {
    fn sources(&self) -> BTreeSet<VolumeId> {
        self.members.values().map(|member| member.source.clone()).collect()
    }
}

impl Store {
    /// Takes the snapshots of a group. Each snapshot is locked before its source, as for a single one. The order of the
    /// IDs prevents a deadlock of two groups. [`Store::lock_source`] prevents that of a group and a new volume.
    pub(crate) fn take_group(&self, want: &GroupRequest) -> Result<Ensured<Taken<BTreeMap<VolumeId, Record>>>, Error> {
        let _guards: Vec<VolumeGuard> = want.members.keys().map(|id| self.locks.blocking_lock(id)).collect();
        let record_of = |id: &VolumeId| match self.known(id)? {
            Some(Known { record, .. }) => Ok((id.clone(), record)),
            None => Err(Error::Unknown { id: id.clone() }),
        };
        let records = || want.members.keys().map(record_of).collect::<Result<BTreeMap<_, _>, Error>>();
        let before = records().ok();
        if !self.is_of_one_instant(want)? {
            self.begin_group(want)?;
        }
        let are_new = !want.members.keys().all(|id| self.is_reported(id));
        self.complete_group(want)?;
        let copying = match self.copy_group(want) {
            // The snapshots are taken. The next pass returns the error of the copy.
            Err(_) if are_new && want.members.iter().all(|member| self.is_taken(member)) => Some(Copying::InPart),
            copied => copied?,
        };
        Ok(Taken::since(before, records()?, copying))
    }

    /// Writes into the records that the members are complete. All have their content, of one instant, so the next call
    /// continues if this one ends in between.
    fn complete_group(&self, want: &GroupRequest) -> Result<(), Error> {
        for id in want.members.keys() {
            let known = self.known(id)?;
            if known.as_ref().is_some_and(|known| known.record.mode.is_complete_early(&known.record.owner)) {
                Execution::new(self, id, None, known).run(&[Step::Complete])?;
            }
        }
        Ok(())
    }

    /// Runs one pass over the first member that shares blocks. The last pass announces all members.
    fn copy_group(&self, want: &GroupRequest) -> Result<Option<Copying>, Error> {
        let mut copying = None;
        let complete = |id: &VolumeId, member: &SnapshotRequest| {
            let Some(Known { record, .. }) = self.known(id)? else { return Err(Error::Unknown { id: id.clone() }) };
            self.provision(id, &member.of((record.mode, record.size)), member.max_pause)
        };
        for (id, member) in &want.members {
            let (_, seen) = self.look(id)?;
            // An earlier pass has completed this member.
            if seen.live.is_present() {
                continue;
            }
            match complete(id, member) {
                Ok(_) => {}
                // The other members need not wait for the writers of this source.
                Err(error) if error.copying() == Some(Copying::Waits) => copying = Some(Copying::Waits),
                Err(Error::Copying { .. }) => return Ok(Some(Copying::InPart)),
                Err(error) => {
                    // The store has undone a thin member. A new one would have a later instant, so the group is undone.
                    // A complete member stays.
                    let is_undone = matches!(self.cloned(id, member), Ok(None));
                    if is_undone && !want.members.keys().any(|id| self.is_reported(id)) {
                        self.undo_group(want);
                    }
                    return Err(error);
                }
            }
        }
        if copying.is_none() {
            for (id, member) in &want.members {
                // The name of the member may not be durable yet.
                complete(id, member)?;
                self.announce_durably(id)?;
            }
        }
        Ok(copying)
    }

    /// Whether all members have their whole content, of one instant.
    ///
    /// # Errors
    /// [`Error::Removed`]: a member is missing although others are ready. The others are not removed.
    fn is_of_one_instant(&self, want: &GroupRequest) -> Result<bool, Error> {
        let (mut modes, mut ready, mut missing) = (BTreeSet::new(), false, None);
        for (id, member) in &want.members {
            ready |= self.is_reported(id);
            match self.cloned(id, member)? {
                Some(record) => drop(modes.insert(record.mode.taken())),
                None => missing = missing.or(Some(id)),
            }
        }
        match missing {
            Some(id) if ready => Err(Error::Removed { id: id.clone() }),
            missing => Ok(missing.is_none() && modes.len() == 1),
        }
    }

    /// The record of a member that has its whole content.
    fn cloned(&self, id: &VolumeId, member: &SnapshotRequest) -> Result<Option<Record>, Error> {
        let (Some(Known { record, .. }), seen) = self.look(id)? else { return Ok(None) };
        let steps = plan::provision(&member.of((record.mode, record.size)), &seen).map_err(refused(id))?;
        let clones = |step: &Step| matches!(step, Step::WriteRecord | Step::CloneImage | Step::CloneTree);
        Ok((!steps.iter().any(clones)).then_some(record))
    }

    fn is_taken(&self, (id, member): (&VolumeId, &SnapshotRequest)) -> bool {
        matches!(self.known(id), Ok(Some(Known { record, .. })) if record.is_taken_for(&member.claim.uid))
    }

    fn is_reported(&self, id: &VolumeId) -> bool {
        matches!(self.known(id), Ok(Some(Known { record, .. })) if record.state.is_reported())
    }

    /// Clones all members, or none.
    fn begin_group(&self, want: &GroupRequest) -> Result<(), Error> {
        for id in want.members.keys() {
            // An earlier run may have left a part of the member.
            self.undo_all(id)?;
        }
        let begun = self.clone_all(want);
        if begun.is_err() {
            self.undo_group(want);
        }
        begun
    }

    fn undo_group(&self, want: &GroupRequest) {
        for id in want.members.keys() {
            let undone = match self.known(id) {
                Ok(Some(_)) => self.undo_all(id).map(drop),
                known => known.map(|_| self.index().ledger.release(id)),
            };
            if let Err(error) = undone {
                let error: &dyn std::error::Error = &error;
                warn!(volume = %id, error, "unfinished snapshot of a group stays until the next attempt");
            }
        }
    }

    fn clone_all(&self, want: &GroupRequest) -> Result<(), Error> {
        let failed = |source| Error::Freeze { id: want.id.clone(), source };
        let freezer = self.freezer().ok_or_else(|| failed(FreezeError::None))?;
        let failed = |source| Error::Source { id: want.id.clone(), source };
        let mut locked = BTreeMap::new();
        for source in want.sources() {
            let found = self.lock_member_source(want, &source);
            locked.insert(source, found.map_err(failed)?);
        }
        let with_size = |(id, member): (_, &SnapshotRequest)| {
            let LockedSource { of, cloning, .. } = locked.get(&member.source)?;
            Some((id, member.of(*of), cloning.clone()))
        };
        let requests: Vec<_> = want.members.iter().filter_map(with_size).collect();
        let spaces: Vec<_> = requests.iter().map(|(id, request, cloning)| (*id, space(request, cloning))).collect();
        let total = spaces.iter().map(|(_, space)| *space).sum();
        self.reserve(&want.id, total, |index, _, disk| index.ledger.reserve_all(&spaces, disk))?;
        let members = requests.iter().map(|(id, request, cloning)| {
            let mut execution = Execution::new(self, id, Some(request), None);
            execution.cloning = Some(cloning.clone());
            Member { execution, request, tree: None, complete: None }
        });
        let mut members: Vec<_> = members.collect();
        let cloned = self.clone_together(want, &mut members, &*freezer);
        // The sources are unlocked first: an undo locks them again.
        drop(locked);
        cloned.map_err(|(failed, error)| match failed.map(|index| members.swap_remove(index)) {
            Some(Member { execution, request, .. }) => self.after_failed_provision(execution, request, error),
            None => error,
        })
    }

    fn lock_member_source(&self, want: &GroupRequest, source: &VolumeId) -> Result<LockedSource, SourceError> {
        let (mode, _) = self.to_copy(source)?;
        let member = want.members.values().find(|member| member.source == *source);
        let request = member.map(|member| member.of((mode, ANY)));
        let request = request.ok_or_else(|| SourceError::Unknown { volume: source.clone() })?;
        let (guard, cloning) = self.lock_source(source, &request)?;
        // The source may have grown before it was locked, and with it the number of its files.
        let of = self.to_copy(source)?;
        Ok(LockedSource { _guard: guard, of, cloning })
    }

    /// Clones all members, with all sources locked. An error has the index of the member that failed.
    fn clone_together(
        &self,
        want: &GroupRequest,
        members: &mut [Member<'_>],
        freezer: &dyn PodFreezer,
    ) -> Result<(), (Option<usize>, Error)> {
        let failed = |source| (None, Error::Freeze { id: want.id.clone(), source });
        let trees = members.iter().filter(|member| !member.request.mode.is_block()).count();
        each(members, |member| member.begin(trees))?;
        approach_trees(members)?;
        // A clone first writes the dirty pages of its source, so the pause is short if these are few. The passes have
        // written those of files.
        for request in members.iter().map(|member| member.request).filter(|request| request.mode.is_block()) {
            if let Some(source) = &request.source {
                self.flush_source(source, true);
            }
        }
        let sources: Vec<_> = want.sources().into_iter().collect();
        let frozen = freezer.freeze(&sources, want.max_pause).map_err(|cause| failed(FreezeError::Freeze(cause)))?;
        // The instant is read after the freeze, which another snapshot of the pods may have delayed.
        let (taken, begin) = (SystemTime::now(), Instant::now());
        let deadline = frozen.deadline();
        let cloned = each(members, |member| member.clone_content(deadline));
        let thawed = frozen.thaw();
        let pause = begin.elapsed();
        match cloned {
            Err((_, Error::Act { source: ActError::Tree(TreeError::Late), .. })) => {
                return Err(failed(FreezeError::Late { budget: want.max_pause }));
            }
            cloned => cloned?,
        }
        thawed.map_err(|cause| failed(FreezeError::Thawed(cause)))?;
        // The API server receives the instant, so a power cut must not undo it.
        each(members, Member::sync)?;
        each(members, |member| member.complete(taken))?;
        info!(group = %want.id, snapshots = want.members.len(), ?pause, "members of a group taken");
        Ok(())
    }
}

/// Source of members that is locked.
struct LockedSource {
    _guard: VolumeGuard,
    /// Mode and size of the source.
    of: (Mode, Bytes),
    cloning: Cloning,
}

struct Member<'a> {
    execution: Execution<'a>,
    request: &'a Request,
    /// Clone of files before the last pass; `complete` is the clone after it.
    tree: Option<TreeClone>,
    complete: Option<CompleteTree>,
}

impl Member<'_> {
    /// Creates the record and the directory, and begins the clone of files. The group's `trees` share a memory limit,
    /// because a tenant chooses their number.
    fn begin(&mut self, trees: usize) -> Result<(), Error> {
        self.execution.run(&[Step::WriteRecord, Step::MakeStaging, Step::Limit])?;
        if !self.request.mode.is_block() {
            self.tree = Some(self.execution.attempt(Step::CloneTree, Execution::begin_tree)?.one_of(trees));
        }
        Ok(())
    }

    /// Clones the content while the pods are stopped.
    fn clone_content(&mut self, until: Option<Instant>) -> Result<(), Error> {
        let Some(tree) = self.tree.take() else { return self.execution.run(&[Step::CloneImage]) };
        self.complete = Some(self.execution.attempt(Step::CloneTree, |_| Ok(tree.complete(until)?))?);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Error> {
        match self.complete.take() {
            Some(tree) => self.execution.attempt(Step::CloneTree, |_| Ok(tree.finish()?)),
            None => self.execution.attempt(Step::CloneImage, Execution::sync_image),
        }
    }

    /// Writes the instant of the group into the record, after the pods did not run. Until then, the times of the
    /// members differ. An image is complete by its size, and files by the record.
    fn complete(&mut self, taken: SystemTime) -> Result<(), Error> {
        if self.request.mode.is_block() {
            return self.execution.renew_instant(taken);
        }
        self.execution.attempt(Step::CloneTree, |execution| execution.complete_tree(taken, State::Staged))
    }
}

/// Runs the passes over files while pods write.
fn approach_trees(members: &mut [Member<'_>]) -> Result<(), (Option<usize>, Error)> {
    let (mut indices, mut trees) = (Vec::new(), Vec::new());
    for (index, member) in members.iter_mut().enumerate() {
        if let Some(tree) = &mut member.tree {
            indices.push(index);
            trees.push(tree);
        }
    }
    let (at, error) = match tree::approach(&mut trees) {
        Ok(()) => return Ok(()),
        Err((at, error)) => (indices.get(at).copied().unwrap_or_default(), error),
    };
    Err((Some(at), members[at].execution.failed(Step::CloneTree, error.into())))
}

/// Space that a member reserves, with the headroom of the source.
fn space(request: &Request, cloning: &Cloning) -> Bytes {
    request.record(ProjectId::FIRST, Some(cloning.clone())).reserved()
}

fn each<'a>(
    members: &mut [Member<'a>],
    run: impl Fn(&mut Member<'a>) -> Result<(), Error>,
) -> Result<(), (Option<usize>, Error)> {
    members.iter_mut().enumerate().try_for_each(|(index, one)| run(one).map_err(|error| (Some(index), error)))
}
