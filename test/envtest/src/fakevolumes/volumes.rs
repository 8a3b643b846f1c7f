//! The trait [`Volumes`] of [`FakeVolumes`].

use std::collections::{BTreeMap, BTreeSet};

use dir::Ensured;
use fsquota::FsError;
use units::Bytes;
use volume::{
    Copying, DiskFault, DriftError, Drifted, Error, GroupRequest, IoLimits, ListError, LiveVolume, LiveVolumeError,
    LookError, OpenError, Operation, Record, Records, Request, RollbackRequest, SnapshotRequest, Space, State, Strays,
    Taken, ThrottleError, UsageError, VolumeCalls, VolumeId, VolumeUsage, Volumes,
};

use super::FakeVolumes;

impl Volumes for FakeVolumes {
    fn provision(&self, id: &VolumeId, want: &Request) -> Result<Ensured<Record>, Error> {
        self.calls.observe(Operation::Provision, || {
            let is_new = self.disk().look(id).is_none();
            if let Some(create) = self.create.as_ref().filter(|_| is_new) {
                create(id, want.size);
            }
            if is_new && want.source.is_some() {
                self.wait_while(|held| held.long);
            }
            let mut disk = self.disk();
            disk.check_volume(id)?;
            disk.provision(id, want)
        })
    }

    fn announce(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.change(Operation::Announce, id, |disk| disk.announce(id))
    }

    fn expand(&self, id: &VolumeId, to: Bytes) -> Result<Ensured<Record>, Error> {
        self.change(Operation::Expand, id, |disk| disk.expand(id, to))
    }

    fn limit_io(&self, id: &VolumeId, limits: IoLimits) -> Result<Ensured<Record>, Error> {
        self.change(Operation::LimitIo, id, |disk| disk.limit_io(id, limits))
    }

    fn check_io_limits(&self) -> Result<(), ThrottleError> {
        self.disk().check_io_limits()
    }

    fn retire(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.change(Operation::Retire, id, |disk| disk.retire_unpublished(id))
    }

    fn restore(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.change(Operation::Restore, id, |disk| disk.restore(id))
    }

    fn discard(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.wait_while(|held| held.discards.contains(id));
        self.change(Operation::Discard, id, |disk| disk.discard(id))
    }

    fn undo(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.change(Operation::Undo, id, |disk| disk.undo(id))
    }

    fn take_snapshot(&self, id: &VolumeId, want: &SnapshotRequest) -> Result<Taken<Record>, Error> {
        self.calls.observe(Operation::TakeSnapshot, || self.disk().take_snapshot(id, want)).map(Ensured::into_inner)
    }

    fn take_group(&self, want: &GroupRequest) -> Result<Taken<BTreeMap<VolumeId, Record>>, Error> {
        self.calls.observe(Operation::TakeGroup, || self.disk().take_group(want)).map(Ensured::into_inner)
    }

    fn copy_snapshot(&self, id: &VolumeId) -> Result<Option<Copying>, Error> {
        self.calls.observe(Operation::TakeSnapshot, || self.disk().copy_snapshot(id)).map(Ensured::into_inner)
    }

    fn takes_groups(&self) -> bool {
        true
    }

    fn remove_snapshot(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.wait_while(|held| held.long);
        self.calls.observe(Operation::RemoveSnapshot, || self.disk().remove_snapshot(id))
    }

    fn undo_snapshots(&self, ids: &BTreeSet<VolumeId>) -> Result<Ensured<()>, Error> {
        self.wait_while(|held| held.long);
        self.calls.observe(Operation::RemoveSnapshot, || self.disk().undo_snapshots(ids))
    }

    fn roll_back(&self, id: &VolumeId, want: &RollbackRequest) -> Result<Ensured<Record>, Error> {
        self.calls.observe(Operation::RollBack, || self.disk().roll_back(id, want))
    }

    fn end_rollback(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.calls.observe(Operation::RollBack, || self.disk().end_rollback(id))
    }

    fn live_volume(&self, id: &VolumeId) -> Result<LiveVolume, LiveVolumeError> {
        let disk = self.disk();
        match disk.look(id) {
            Some((record, _)) if record.mode.is_snapshot() => Err(OpenError::Unknown { id: id.clone() }.into()),
            Some((Record { state: State::Staged, .. }, _)) => Err(OpenError::NotAnnounced { id: id.clone() }.into()),
            Some((record, false)) => Ok(LiveVolume { size: record.size, attached: disk.attached.contains(id) }),
            None | Some((_, true)) => Err(OpenError::Unknown { id: id.clone() }.into()),
        }
    }

    fn record(&self, id: &VolumeId) -> Result<Option<Record>, Error> {
        Ok(self.disk().records.get(id).cloned())
    }

    fn records(&self) -> Result<Records, ListError> {
        Ok(Records { readable: self.disk().records.clone(), unreadable: BTreeMap::new() })
    }

    fn complete_snapshots(&self) -> BTreeMap<VolumeId, Record> {
        let mut disk = self.disk();
        disk.snapshot_lists += 1;
        let mut records = disk.records.clone();
        records.retain(|_, record| record.state == State::Complete);
        records
    }

    fn rollbacks(&self, volume: &VolumeId) -> Vec<VolumeId> {
        let disk = self.disk();
        let is_of_volume = |record: &Record| record.rollback().is_some_and(|rollback| rollback.volume == *volume);
        disk.records.iter().filter(|(_, record)| is_of_volume(record)).map(|(id, _)| id.clone()).collect()
    }

    fn strays(&self) -> Result<Strays, ListError> {
        Ok(Strays::default())
    }

    fn usage(&self) -> Result<Vec<VolumeUsage>, UsageError> {
        let disk = self.disk();
        let usage = |(id, record): (&VolumeId, &Record)| VolumeUsage {
            id: id.clone(),
            record: record.clone(),
            used: disk.used.get(id).copied().unwrap_or_default(),
            changed: disk.changed.get(id).copied(),
        };
        Ok(disk.records.iter().map(usage).collect())
    }

    fn retired(&self) -> Result<Vec<VolumeId>, ListError> {
        Ok(self.disk().trash.iter().cloned().collect())
    }

    fn drifted(&self, id: &VolumeId) -> Result<Drifted, DriftError> {
        self.wait_while(|held| held.checks.contains(id));
        Ok(self.disk().drifted.get(id).cloned().unwrap_or_default())
    }

    fn faults(&self) -> Result<Vec<DiskFault>, FsError> {
        Ok(self.disk().faults.clone())
    }

    fn space(&self) -> Result<Space, LookError> {
        Ok(self.disk().space())
    }

    fn calls(&self) -> &VolumeCalls {
        &self.calls
    }
}
