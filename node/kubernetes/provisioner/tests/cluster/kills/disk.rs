//! A disk whose changes are boundaries.

use std::collections::BTreeMap;
use std::sync::Arc;

use dir::Ensured;
use fsquota::FsError;
use units::Bytes;
use volume::{
    DiskFault, DriftError, Drifted, Error, GroupRequest, IoLimits, ListError, LiveVolume, LiveVolumeError, LookError,
    Record, Records, Request, RollbackRequest, SnapshotRequest, Space, Strays, ThrottleError, UsageError, VolumeCalls,
    VolumeId, VolumeUsage, Volumes,
};

use super::fuse::Fuse;

/// The volumes of one process. Those below stay when the process is killed.
pub struct Fused<V> {
    below: Arc<V>,
    fuse: Arc<Fuse>,
}

impl<V: Volumes> Fused<V> {
    pub fn new(below: Arc<V>, fuse: Arc<Fuse>) -> Self {
        Self { below, fuse }
    }

    /// Reads have no boundaries, because they change nothing.
    fn change<T>(&self, what: &str, change: impl FnOnce(&V) -> T) -> T {
        self.fuse.pass_blocking(&format!("before {what} on the disk"));
        let done = change(&self.below);
        self.fuse.pass_blocking(&format!("after {what} on the disk"));
        done
    }
}

impl<V: Volumes> Volumes for Fused<V> {
    fn provision(&self, id: &VolumeId, want: &Request) -> Result<Ensured<Record>, Error> {
        self.change("provision", |below| below.provision(id, want))
    }

    fn announce(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.change("announce", |below| below.announce(id))
    }

    fn expand(&self, id: &VolumeId, to: Bytes) -> Result<Ensured<Record>, Error> {
        self.change("expand", |below| below.expand(id, to))
    }

    fn limit_io(&self, id: &VolumeId, limits: IoLimits) -> Result<Ensured<Record>, Error> {
        self.change("limit the I/O", |below| below.limit_io(id, limits))
    }

    fn check_io_limits(&self) -> Result<(), ThrottleError> {
        self.below.check_io_limits()
    }

    fn retire(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.change("retire", |below| below.retire(id))
    }

    fn restore(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.change("restore", |below| below.restore(id))
    }

    fn discard(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.change("discard", |below| below.discard(id))
    }

    fn undo(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.change("undo", |below| below.undo(id))
    }

    fn roll_back(&self, id: &VolumeId, want: &RollbackRequest) -> Result<Ensured<Record>, Error> {
        self.change("roll back", |below| below.roll_back(id, want))
    }

    fn end_rollback(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.change("end the rollback", |below| below.end_rollback(id))
    }

    fn take_snapshot(&self, id: &VolumeId, want: &SnapshotRequest) -> Result<Ensured<Record>, Error> {
        self.change("take a snapshot", |below| below.take_snapshot(id, want))
    }

    fn take_group(&self, want: &GroupRequest) -> Result<Ensured<BTreeMap<VolumeId, Record>>, Error> {
        self.change("take a group of snapshots", |below| below.take_group(want))
    }

    fn takes_groups(&self) -> bool {
        self.below.takes_groups()
    }

    fn remove_snapshot(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.change("remove a snapshot", |below| below.remove_snapshot(id))
    }

    fn live_volume(&self, id: &VolumeId) -> Result<LiveVolume, LiveVolumeError> {
        self.below.live_volume(id)
    }

    fn record(&self, id: &VolumeId) -> Result<Option<Record>, Error> {
        self.below.record(id)
    }

    fn records(&self) -> Result<Records, ListError> {
        self.below.records()
    }

    fn retired(&self) -> Result<Vec<VolumeId>, ListError> {
        self.below.retired()
    }

    fn strays(&self) -> Result<Strays, ListError> {
        self.below.strays()
    }

    fn drifted(&self, id: &VolumeId) -> Result<Drifted, DriftError> {
        self.below.drifted(id)
    }

    fn faults(&self) -> Result<Vec<DiskFault>, FsError> {
        self.below.faults()
    }

    fn space(&self) -> Result<Space, LookError> {
        self.below.space()
    }

    fn usage(&self) -> Result<Vec<VolumeUsage>, UsageError> {
        self.below.usage()
    }

    fn calls(&self) -> &VolumeCalls {
        self.below.calls()
    }
}
