//! Volumes without a disk, for tests and benchmarks of what the API server decides.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dir::Ensured;
use fsquota::ProjectId;
use provisioner::{Held, HeldError, Volumes};
use units::{Bytes, Inodes};
use volume::{
    Error, ListError, LookError, Mode, OpenError, Overcommit, Record, Records, Refusal, Request, Space, State, Strays,
    UsageError, VolumeId, VolumeUsage,
};

/// The file system's block: sizes are whole numbers of it.
const BLOCK: u64 = 4096;

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
    /// Those of the records that a pod has as a block device.
    attached: BTreeSet<VolumeId>,
    /// Those whose removal fails.
    stuck: BTreeSet<VolumeId>,
    strays: Strays,
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

    /// The volumes whose data is in the trash.
    pub fn retired(&self) -> Vec<VolumeId> {
        self.disk().trash.iter().cloned().collect()
    }

    /// Moves a volume's data into the trash, as a deletion does that was cut short.
    pub fn retire(&self, id: &VolumeId) {
        self.disk().retire(id);
    }

    /// A pod gets the volume's block device, or gives it back.
    pub fn set_attached(&self, id: &VolumeId, attached: bool) {
        let mut disk = self.disk();
        if attached {
            disk.attached.insert(id.clone());
        } else {
            disk.attached.remove(id);
        }
    }

    /// Something holds the volume's data so that it cannot be removed, or lets it go.
    pub fn set_stuck(&self, id: &VolumeId, stuck: bool) {
        let mut disk = self.disk();
        if stuck {
            disk.stuck.insert(id.clone());
        } else {
            disk.stuck.remove(id);
        }
    }

    /// Loses the volume: a disk was put in that does not have it.
    pub fn lose(&self, id: &VolumeId) {
        self.disk().records.remove(id);
    }

    /// What has no record.
    pub fn set_strays(&self, strays: Strays) {
        self.disk().strays = strays;
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
        Space { size, promised: self.promised(), reserve: Bytes::ZERO, overcommit: Overcommit::NONE }
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
        if self.stuck.contains(id) {
            self.trash.insert(id.clone());
            return Err(Error::Refused { id: id.clone(), source: Refusal::Foreign });
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
        let Request { claim, class, mode, size } = want.clone();
        let record = Record { claim, class, mode, size, project, state: State::Staged };
        disk.records.insert(id.clone(), record.clone());
        Ok(Ensured::Created(record))
    }

    fn announce(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        match self.disk().records.get_mut(id) {
            Some(record) if record.state == State::Staged => {
                record.state = State::Announced;
                Ok(Ensured::Created(()))
            }
            Some(_) => Ok(Ensured::Unchanged(())),
            None => Err(Error::Unknown { id: id.clone() }),
        }
    }

    fn expand(&self, id: &VolumeId, to: Bytes) -> Result<Ensured<Record>, Error> {
        let mut disk = self.disk();
        let Some(record) = disk.records.get(id).cloned() else { return Err(Error::Unknown { id: id.clone() }) };
        let to = to.round_up::<BLOCK>().ok_or(Error::TooLarge { id: id.clone(), wanted: to })?;
        if to <= record.size {
            return Ok(Ensured::Unchanged(record));
        }
        let mode = match record.mode {
            Mode::Filesystem { inodes } => {
                let share = u128::from(inodes.get()) * u128::from(to.get()) / u128::from(record.size.get().max(1));
                Mode::Filesystem { inodes: Inodes::new(u64::try_from(share).unwrap_or(u64::MAX)) }
            }
            block @ Mode::Block { .. } => block,
        };
        let (wanted, free) = (mode.promised(to).saturating_sub(record.promised()), disk.space(self.size).free());
        if wanted > free {
            return Err(Error::Full { id: id.clone(), wanted, free });
        }
        let record = Record { mode, size: to, ..record };
        disk.records.insert(id.clone(), record.clone());
        Ok(Ensured::Created(record))
    }

    fn restore(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        Ok(if self.disk().trash.remove(id) { Ensured::Created(()) } else { Ensured::Unchanged(()) })
    }

    fn held(&self, id: &VolumeId) -> Result<Held, HeldError> {
        let disk = self.disk();
        match disk.records.get(id).filter(|_| !disk.trash.contains(id)) {
            Some(record) if record.state == State::Staged => Err(OpenError::NotAnnounced { id: id.clone() }.into()),
            Some(record) => Ok(Held { size: record.size, attached: disk.attached.contains(id) }),
            None => Err(OpenError::Unknown { id: id.clone() }.into()),
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

    fn records(&self) -> Result<Records, ListError> {
        Ok(Records { readable: self.disk().records.clone(), unreadable: BTreeMap::new() })
    }

    fn strays(&self) -> Result<Strays, ListError> {
        Ok(self.disk().strays.clone())
    }

    fn usage(&self) -> Result<Vec<VolumeUsage>, UsageError> {
        let used = fsquota::Usage::default();
        let usage = |(id, record): (&VolumeId, &Record)| VolumeUsage { id: id.clone(), record: record.clone(), used };
        Ok(self.disk().records.iter().map(usage).collect())
    }

    fn retired(&self) -> Result<Vec<VolumeId>, ListError> {
        Ok(self.disk().trash.iter().cloned().collect())
    }

    fn space(&self) -> Result<Space, LookError> {
        Ok(self.disk().space(self.size))
    }
}
