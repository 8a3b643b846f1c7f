//! Snapshots, groups and rollbacks of [`FakeVolumes`](super::FakeVolumes).

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use dir::Ensured;
use units::Bytes;
use volume::{
    ActError, Allocation, Cloning, Copying, Error, FreezeError, GroupRequest, Mode, Owner, Record, Request, Rollback,
    RollbackError, RollbackRequest, Sharing, SnapshotRequest, SourceError, State, Step, Taken, VolumeId, VolumeRefusal,
};

use super::Disk;

impl Disk {
    pub(super) fn take_snapshot(
        &mut self,
        id: &VolumeId,
        want: &SnapshotRequest,
    ) -> Result<Ensured<Taken<Record>>, Error> {
        let SnapshotRequest { claim, owner, class, source, max_pause, sharing } = want.clone();
        let (mode, size) = match self.look(id) {
            Some((record, _)) => (record.mode, record.size),
            None if self.is_snapshot(&source) => {
                return Err(Error::Source { id: id.clone(), source: SourceError::Unknown { volume: source } });
            }
            None => {
                let checked = self.check_source(&source, Bytes::new(u64::MAX));
                checked.map_err(|source| Error::Source { id: id.clone(), source })?
            }
        };
        if !mode.is_block() {
            self.pauses.push(max_pause);
            if self.late && !self.records.contains_key(id) {
                let source = ActError::Late { budget: max_pause };
                return Err(Error::Act { id: id.clone(), step: Step::CloneTree, source });
            }
        }
        let mode = taken_at(mode, SystemTime::now(), sharing);
        let known = self.records.get(id).cloned();
        let copying = match self.provision(id, &Request { claim, owner, class, mode, size, source: Some(source) }) {
            Ok(_) => self.announce(id).map(|_| None)?,
            Err(error) => {
                let copying = error.copying().ok_or(error)?;
                self.records.entry(id.clone()).and_modify(|record| record.state = State::Complete);
                Some(copying)
            }
        };
        let (record, _) = self.look(id).ok_or_else(|| Error::Unknown { id: id.clone() })?;
        Ok(Taken::since(known, record, copying))
    }

    pub(super) fn copy_snapshot(&mut self, id: &VolumeId) -> Result<Ensured<Option<Copying>>, Error> {
        let record = match self.look(id) {
            Some((record, false)) if record.state == State::Complete => record,
            Some(_) | None => return Ok(Ensured::Unchanged(None)),
        };
        if self.full {
            return Err(Error::Full { id: id.clone(), wanted: record.mode.reserved(record.size), free: Bytes::ZERO });
        }
        match self.copy(id, record) {
            Ok(_) => self.announce(id).map(|announced| announced.map(|()| None)),
            Err(error) => match error.copying().ok_or(error)? {
                Copying::InPart => Ok(Ensured::Created(Some(Copying::InPart))),
                Copying::Waits => Ok(Ensured::Unchanged(Some(Copying::Waits))),
            },
        }
    }

    /// Takes a group of snapshots. A freezer and running pods make no difference.
    pub(super) fn take_group(
        &mut self,
        want: &GroupRequest,
    ) -> Result<Ensured<Taken<BTreeMap<VolumeId, Record>>>, Error> {
        self.pauses.push(want.max_pause);
        let records = |disk: &Self| -> Option<BTreeMap<_, _>> {
            want.members.keys().map(|id| Some((id.clone(), disk.records.get(id)?.clone()))).collect()
        };
        let known = records(self);
        if known.is_none() {
            if let Some(id) = want.members.keys().find(|id| !self.records.contains_key(*id))
                && self.records.iter().any(|(id, record)| want.members.contains_key(id) && record.state.is_reported())
            {
                return Err(Error::Removed { id: id.clone() });
            }
            let before = (self.records.clone(), self.sources.clone(), self.passes);
            let taken = SystemTime::now();
            self.passes = u32::MAX;
            let begun = want.members.iter().try_for_each(|(id, member)| {
                self.take_snapshot(id, member)?;
                let together = |record: &mut Record| record.mode = taken_at(record.mode, taken, member.sharing);
                self.records.entry(id.clone()).and_modify(together);
                Ok(())
            });
            match begun {
                Ok(()) => self.passes = before.2,
                Err(error) => {
                    (self.records, self.sources, self.passes) = before;
                    return Err(match error {
                        Error::Source { source, .. } => Error::Source { id: want.id.clone(), source },
                        Error::Act { source: ActError::Late { budget }, .. } => {
                            Error::Freeze { id: want.id.clone(), source: FreezeError::Late { budget } }
                        }
                        error => error,
                    });
                }
            }
        }
        for id in want.members.keys() {
            if let Some(record) = self.records.get_mut(id)
                && record.state == State::Staged
                && !record.mode.is_thin()
            {
                record.state = State::Complete;
            }
        }
        let mut copying = None;
        for (id, member) in &want.members {
            if copying.is_none() {
                copying = self.take_snapshot(id, member)?.into_inner().copying;
            }
        }
        let records = records(self).ok_or_else(|| Error::Unknown { id: want.id.clone() })?;
        Ok(Taken::since(known, records, copying))
    }

    pub(super) fn remove_snapshot(&mut self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        if self.records.contains_key(id) && !self.is_snapshot(id) {
            return Err(Error::Refused { id: id.clone(), source: VolumeRefusal::Volume });
        }
        if let Some(record) = self.records.get(id).filter(|record| record.is_exchanged())
            && let Some(Rollback { volume, .. }) = record.rollback()
            && self.records.contains_key(volume)
        {
            return Err(Error::Refused { id: id.clone(), source: VolumeRefusal::RollingBack(volume.clone()) });
        }
        self.retire(id);
        self.check_unlocked(id)?;
        self.discard(id)
    }

    /// An error if another operation has the source of the copy.
    pub(super) fn check_unlocked(&self, id: &VolumeId) -> Result<(), Error> {
        match self.records.get(id) {
            Some(Record { cloning: Some(Cloning { source, .. }), .. }) if self.locked.contains(source) => {
                let source = ActError::Locked { volume: source.clone() };
                Err(Error::Act { id: id.clone(), step: Step::RemoveRecord, source })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn undo_snapshots(&mut self, ids: &BTreeSet<VolumeId>) -> Result<Ensured<()>, Error> {
        let mut found: Vec<_> =
            ids.iter().filter_map(|id| Some((self.records.get(id)?.state == State::Staged, id))).collect();
        let is_incomplete = found.iter().any(|(is_staged, _)| *is_staged);
        found.retain(|(_, id)| is_incomplete || self.trash.contains(*id));
        found.sort_by_key(|(is_staged, _)| *is_staged);
        for (_, id) in &found {
            self.remove_snapshot(id)?;
        }
        Ok(if found.is_empty() { Ensured::Unchanged(()) } else { Ensured::Created(()) })
    }

    pub(super) fn roll_back(&mut self, id: &VolumeId, want: &RollbackRequest) -> Result<Ensured<Record>, Error> {
        let RollbackRequest { claim, volume, source } = want.clone();
        let failed = |source| Error::Rollback { id: volume.clone(), source };
        let (rollback, mode, size) = match self.look(id) {
            Some((record, _)) => match record.rollback() {
                Some(rollback) if rollback.volume == volume && rollback.source == source => {
                    let is_grown = self.look(&volume).is_some_and(|(former, _)| former.size != record.size);
                    if is_grown && !record.is_exchanged() {
                        return Err(failed(RollbackError::Grown));
                    }
                    (rollback.clone(), record.mode, record.size)
                }
                _ => {
                    let Record { claim, size, .. } = record;
                    let source = VolumeRefusal::Differs { claim: claim.to_string(), uid: claim.uid, size };
                    return Err(Error::Refused { id: id.clone(), source });
                }
            },
            None => {
                let (record, _) = self.look(&volume).ok_or_else(|| failed(RollbackError::Unknown))?;
                let allocation = match record.mode {
                    Mode::Block { allocation } => allocation,
                    Mode::Filesystem { .. } | Mode::Snapshot { .. } | Mode::SnapshotTree { .. } => {
                        Allocation::default()
                    }
                };
                match record.mode {
                    Mode::Block { .. } | Mode::Filesystem { .. } if record.state == State::Announced => {
                        let (volume, source, project) = (volume.clone(), source.clone(), record.project);
                        (Rollback { volume, source, project, allocation }, record.mode, record.size)
                    }
                    Mode::Block { .. } | Mode::Filesystem { .. } => {
                        return Err(Error::Refused { id: volume.clone(), source: VolumeRefusal::NotAnnounced });
                    }
                    Mode::Snapshot { .. } | Mode::SnapshotTree { .. } => {
                        return Err(Error::Refused { id: volume.clone(), source: VolumeRefusal::Snapshot });
                    }
                }
            }
        };
        let mode = taken_at(mode, SystemTime::now(), Sharing::Temporary);
        let owner = Owner::Rollback(rollback.clone());
        let request = Request { claim, owner, class: String::new(), mode, size, source: Some(source.clone()) };
        let record = self.provision(id, &request)?.into_inner();
        if !record.is_exchanged() {
            let Some((former, false)) = self.look(&volume) else { return Err(failed(RollbackError::Unknown)) };
            let is_of_volume = |cloning: &Cloning| cloning.source == volume;
            let unfinished = |record: &&Record| record.state != State::Announced;
            let mut copies = self.records.values().filter(unfinished).filter_map(|record| record.cloning.as_ref());
            if copies.any(is_of_volume) {
                return Err(failed(RollbackError::Shared));
            }
            if let Some(target) = self.published.get(&volume) {
                return Err(Error::Published { id: volume.clone(), target: target.clone() });
            }
            self.records.insert(volume.clone(), Record { project: record.project, ..former });
            self.records.insert(id.clone(), Record { project: rollback.project, ..record });
            self.sources.insert(volume, source);
        }
        let announced = self.announce(id)?;
        let (record, _) = self.look(id).ok_or_else(|| Error::Unknown { id: id.clone() })?;
        Ok(announced.map(|()| record))
    }

    pub(super) fn end_rollback(&mut self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        let Some(record) = self.records.get_mut(id) else { return Ok(Ensured::Unchanged(())) };
        let (is_exchanged, Some(Rollback { volume, .. })) = (record.is_exchanged(), record.rollback()) else {
            return Ok(Ensured::Unchanged(()));
        };
        if !is_exchanged || record.state == State::Staged {
            return Err(Error::Refused { id: id.clone(), source: VolumeRefusal::RollingBack(volume.clone()) });
        }
        record.owner = Owner::Provisioner;
        Ok(Ensured::Created(()))
    }
}

/// Mode of a snapshot with this time. `mode` is the mode of the volume or of another snapshot.
fn taken_at(mode: Mode, taken: SystemTime, sharing: Sharing) -> Mode {
    match mode {
        Mode::Filesystem { inodes } | Mode::SnapshotTree { inodes, .. } => {
            Mode::SnapshotTree { taken, inodes, sharing }
        }
        Mode::Block { .. } | Mode::Snapshot { .. } => Mode::Snapshot { taken, sharing },
    }
}
