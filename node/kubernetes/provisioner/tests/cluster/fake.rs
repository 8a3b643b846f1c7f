//! Volumes without a disk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dir::Ensured;
use fsquota::ProjectId;
use provisioner::Volumes;
use units::Bytes;
use volume::{Error, ListError, LookError, Record, Refusal, Request, Space, State, VolumeId};

/// A node's volumes in memory. What a real [`volume::Store`] does with a disk is shown by its own kernel tests; this
/// one keeps the same records and gives the same answers.
pub struct FakeVolumes {
    size: Bytes,
    state: Mutex<Disk>,
}

#[derive(Default)]
struct Disk {
    records: BTreeMap<VolumeId, Record>,
    /// Those of the records whose data is in the trash.
    trash: BTreeSet<VolumeId>,
    projects: u32,
}

impl FakeVolumes {
    /// A disk that can promise so much.
    pub fn with_size(size: Bytes) -> Self {
        Self { size, state: Mutex::default() }
    }

    /// Puts a volume on the disk that some earlier run made.
    pub fn put(&self, id: &VolumeId, record: Record) {
        self.disk().records.insert(id.clone(), record);
    }

    /// The volumes whose data may be used.
    pub fn live(&self) -> Vec<VolumeId> {
        let disk = self.disk();
        disk.records.keys().filter(|id| !disk.trash.contains(*id)).cloned().collect()
    }

    /// The record of a volume.
    pub fn record(&self, id: &VolumeId) -> Option<Record> {
        self.disk().records.get(id).cloned()
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk {
    fn promised(&self) -> Bytes {
        self.records.values().map(Record::promised).sum()
    }

    fn space(&self, size: Bytes) -> Space {
        Space { size, promised: self.promised(), reserve: Bytes::ZERO }
    }

    fn retire(&mut self, id: &VolumeId) -> Ensured<()> {
        let there = self.records.contains_key(id);
        if there && self.trash.insert(id.clone()) { Ensured::Created(()) } else { Ensured::Unchanged(()) }
    }

    fn discard(&mut self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        if !self.records.contains_key(id) {
            return Ok(Ensured::Unchanged(()));
        }
        if !self.trash.remove(id) {
            return Err(Error::Refused { id: id.clone(), source: Refusal::NotRetired });
        }
        self.records.remove(id);
        Ok(Ensured::Created(()))
    }
}

impl Volumes for FakeVolumes {
    fn provision(&self, id: &VolumeId, want: &Request) -> Result<Ensured<Record>, Error> {
        let mut disk = self.disk();
        if let Some(record) = disk.records.get(id) {
            if record.claim.uid == want.claim.uid && record.size == want.size && !disk.trash.contains(id) {
                return Ok(Ensured::Unchanged(record.clone()));
            }
            let Record { claim, size, .. } = record;
            let source = Refusal::Differs { claim: claim.to_string(), uid: claim.uid.clone(), size: *size };
            return Err(Error::Refused { id: id.clone(), source });
        }
        let free = disk.space(self.size).free();
        if want.promised() > free {
            return Err(Error::Full { id: id.clone(), wanted: want.promised(), free });
        }
        disk.projects += 1;
        let project = ProjectId::new(disk.projects).expect("fewer volumes than IDs");
        let Request { claim, class, mode, size, inodes } = want.clone();
        let record = Record { claim, class, mode, size, inodes, project, state: State::Staged };
        disk.records.insert(id.clone(), record.clone());
        Ok(Ensured::Created(record))
    }

    fn announce(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        match self.disk().records.get_mut(id) {
            Some(record) if record.state == State::Staged => {
                record.state = State::Announced;
                Ok(Ensured::Created(()))
            }
            Some(_) | None => Ok(Ensured::Unchanged(())),
        }
    }

    fn retire(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        Ok(self.disk().retire(id))
    }

    fn discard(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.disk().discard(id)
    }

    fn undo(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        let mut disk = self.disk();
        if disk.records.get(id).is_some_and(|record| record.state == State::Announced) {
            return Err(Error::Announced { id: id.clone() });
        }
        disk.retire(id);
        disk.discard(id)
    }

    fn records(&self) -> Result<BTreeMap<VolumeId, Record>, ListError> {
        Ok(self.disk().records.clone())
    }

    fn retired(&self) -> Result<Vec<VolumeId>, ListError> {
        Ok(self.disk().trash.iter().cloned().collect())
    }

    fn space(&self) -> Result<Space, LookError> {
        Ok(self.disk().space(self.size))
    }
}
