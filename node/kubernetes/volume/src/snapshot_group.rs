//! Snapshots of several block volumes at one instant.
//!
//! Each is a snapshot of its own, and is copied as one. Only their images are cloned together, while the pods of all sources are
//! stopped. The records of one instant have the same time: images of a run that ended in between are cloned again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

use dir::Ensured;
use tracing::{info, warn};
use units::Bytes;

use crate::error::{Error, SourceError};
use crate::execution::Execution;
use crate::freezing::FreezeError;
use crate::index::Known;
use crate::plan::{self, Step};
use crate::record::{Cloning, Mode, Record, State};
use crate::snapshot::{ANY, SnapshotRequest};
use crate::store::{Store, refused};
use crate::{Request, VolumeGuard, VolumeId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRequest {
    /// For errors.
    pub id: VolumeId,
    /// The snapshots, by their IDs.
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
    /// The snapshots are locked, each before its source, as for a single one. The order of the IDs prevents a deadlock of two
    /// groups.
    pub(crate) fn take_group(&self, want: &GroupRequest) -> Result<Ensured<BTreeMap<VolumeId, Record>>, Error> {
        let _guards: Vec<VolumeGuard> = want.members.keys().map(|id| self.locks.blocking_lock(id)).collect();
        if !self.is_of_one_instant(want)? {
            self.begin_group(want)?;
        }
        let (mut records, mut changed) = (BTreeMap::new(), false);
        for (id, member) in &want.members {
            let Some(Known { record, .. }) = self.known(id)? else { return Err(Error::Unknown { id: id.clone() }) };
            let is_busy = records.values().any(|record: &Record| record.state == State::Staged);
            let record = if is_busy {
                record
            } else {
                // One pass over the first that is not ready.
                let taken = self.take_snapshot(id, member)?;
                changed |= matches!(taken, Ensured::Created(_));
                taken.into_inner()
            };
            records.insert(id.clone(), record);
        }
        Ok(if changed { Ensured::Created(records) } else { Ensured::Unchanged(records) })
    }

    /// # Errors
    /// [`Error::Unknown`]: one is missing although others are ready. They are not removed.
    fn is_of_one_instant(&self, want: &GroupRequest) -> Result<bool, Error> {
        let (mut modes, mut ready, mut missing) = (BTreeSet::new(), false, None);
        for (id, member) in &want.members {
            let (known, seen) = self.look(id)?;
            let record = known.map(|known| known.record);
            ready |= record.as_ref().is_some_and(|record| record.state == State::Announced);
            let is_cloned = match &record {
                Some(record) => {
                    let steps = plan::provision(&member.of((record.mode, record.size)), &seen).map_err(refused(id))?;
                    !steps.iter().any(|step| matches!(step, Step::WriteRecord | Step::CloneImage))
                }
                None => false,
            };
            match record {
                Some(record) if is_cloned => drop(modes.insert(record.mode.taken())),
                _ => missing = missing.or(Some(id)),
            }
        }
        match missing {
            Some(id) if ready => Err(Error::Unknown { id: id.clone() }),
            missing => Ok(missing.is_none() && modes.len() == 1),
        }
    }

    /// Clones the images of all, or of none.
    fn begin_group(&self, want: &GroupRequest) -> Result<(), Error> {
        for id in want.members.keys() {
            // Of a run that ended.
            self.undo_known(id)?;
        }
        let begun = self.clone_all(want);
        if begun.is_err() {
            for id in want.members.keys() {
                let undone = match self.known(id) {
                    Ok(Some(_)) => self.undo_known(id).map(drop),
                    known => known.map(|_| self.index().ledger.release(id)),
                };
                if let Err(error) = undone {
                    let error: &dyn std::error::Error = &error;
                    warn!(volume = %id, error, "unfinished snapshot of a group stays until the next attempt");
                }
            }
        }
        begun
    }

    fn clone_all(&self, want: &GroupRequest) -> Result<(), Error> {
        let failed = |source| Error::Source { id: want.id.clone(), source };
        let mut locked = BTreeMap::new();
        for source in want.sources() {
            let found = self.lock_member_source(want, &source);
            locked.insert(source, found.map_err(failed)?);
        }
        let with_size = |(id, member): (_, &SnapshotRequest)| {
            let (_, cloning) = locked.get(&member.source)?;
            Some((id, member.of((SNAPSHOT, cloning.headroom)), cloning.clone()))
        };
        let requests: Vec<_> = want.members.iter().filter_map(with_size).collect();
        let spaces: Vec<_> = requests.iter().map(|(id, request, cloning)| (*id, space(request, cloning))).collect();
        let total = spaces.iter().map(|(_, space)| *space).sum();
        self.reserve(&want.id, total, |index, _, disk| index.ledger.reserve_all(&spaces, disk))?;
        let executions = requests.iter().map(|(id, request, cloning)| {
            let mut execution = Execution::new(self, id, Some(request), None);
            execution.cloning = Some(cloning.clone());
            execution
        });
        let mut executions: Vec<_> = executions.collect();
        let cloned = self.clone_images(want, &mut executions);
        // An undo locks the source again.
        drop(locked);
        cloned.map_err(|(failed, error)| match failed.map(|index| executions.swap_remove(index)) {
            Some(execution) => match execution.want {
                Some(request) => self.after_failed_provision(execution, request, error),
                None => error,
            },
            None => error,
        })
    }

    fn lock_member_source(
        &self,
        want: &GroupRequest,
        source: &VolumeId,
    ) -> Result<(VolumeGuard, Cloning), SourceError> {
        let (mode, _) = self.to_copy(source)?;
        if !mode.is_block() {
            return Err(SourceError::Ungrouped { volume: source.clone() });
        }
        let member = want.members.values().find(|member| member.source == *source);
        let request = member.map(|member| member.of((SNAPSHOT, ANY)));
        let request = request.ok_or_else(|| SourceError::Unknown { volume: source.clone() })?;
        self.lock_source(source, &request)
    }

    /// With all sources locked. An error has the index of the execution that failed.
    fn clone_images(
        &self,
        want: &GroupRequest,
        executions: &mut [Execution<'_>],
    ) -> Result<(), (Option<usize>, Error)> {
        each(executions, |execution| execution.run(&[Step::WriteRecord, Step::MakeStaging, Step::Limit]))?;
        // A clone writes the dirty pages of its source first: the pause is short if they are few.
        for source in want.sources() {
            self.flush_source(&source, true);
        }
        let taken = SystemTime::now();
        each(executions, |execution| execution.renew_instant(taken))?;
        let failed = |source| (None, Error::Freeze { id: want.id.clone(), source });
        let freezer = self.freezer().ok_or_else(|| failed(FreezeError::None))?;
        let sources: Vec<_> = want.sources().into_iter().collect();
        let begin = Instant::now();
        let frozen = freezer.freeze(&sources, want.max_pause).map_err(|cause| failed(FreezeError::Freeze(cause)))?;
        let cloned = each(executions, |execution| execution.run(&[Step::CloneImage]));
        let thawed = frozen.thaw();
        let pause = begin.elapsed();
        cloned?;
        thawed.map_err(|cause| failed(FreezeError::Thawed(cause)))?;
        // The API server gets the instant, which a power cut must not undo.
        each(executions, Execution::sync_image)?;
        info!(group = %want.id, snapshots = want.members.len(), ?pause, "snapshots of one instant taken");
        Ok(())
    }
}

/// A snapshot of a block volume, whose record gets the instant.
const SNAPSHOT: Mode = Mode::Snapshot { taken: SystemTime::UNIX_EPOCH };

/// The headroom of the source included.
fn space(request: &Request, cloning: &Cloning) -> Bytes {
    request.reserved().saturating_add(cloning.headroom)
}

fn each<'a>(
    executions: &mut [Execution<'a>],
    run: impl Fn(&mut Execution<'a>) -> Result<(), Error>,
) -> Result<(), (Option<usize>, Error)> {
    executions.iter_mut().enumerate().try_for_each(|(index, one)| run(one).map_err(|error| (Some(index), error)))
}
