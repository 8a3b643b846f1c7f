//! A disk whose changes are boundaries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dir::Ensured;
use fsquota::FsError;
use units::Bytes;
use volume::{
    Copying, DiskFault, DriftError, Drifted, Error, GroupRequest, IoLimits, ListError, LiveVolume, LiveVolumeError,
    LookError, Record, Records, Request, RollbackRequest, SnapshotRequest, Space, Strays, Taken, ThrottleError,
    UsageError, VolumeCalls, VolumeId, VolumeUsage, Volumes,
};

use super::fuse::Fuse;

/// The volumes of one process. `below` stays when the process is killed.
pub struct Fused<V> {
    below: Arc<V>,
    fuse: Arc<Fuse>,
}

impl<V: Volumes> Fused<V> {
    pub fn new(below: Arc<V>, fuse: Arc<Fuse>) -> Self {
        Self { below, fuse }
    }

    /// Applies a change between two boundaries. Reads have no boundaries, because they change nothing.
    fn change<T>(&self, what: &str, change: impl FnOnce(&V) -> T) -> T {
        self.fuse.pass_blocking(&format!("before {what} on the disk"));
        let done = change(&self.below);
        self.fuse.pass_blocking(&format!("after {what} on the disk"));
        done
    }
}

macro_rules! changes {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty => $what:literal;)*) => {
        $(fn $name(&self, $($argument: $type),*) -> $result {
            self.change($what, |below| below.$name($($argument),*))
        })*
    };
}

macro_rules! reads {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($argument: $type),*) -> $result {
            self.below.$name($($argument),*)
        })*
    };
}

impl<V: Volumes> Volumes for Fused<V> {
    changes! {
        provision(id: &VolumeId, want: &Request) -> Result<Ensured<Record>, Error> => "provision";
        announce(id: &VolumeId) -> Result<Ensured<()>, Error> => "announce";
        expand(id: &VolumeId, to: Bytes) -> Result<Ensured<Record>, Error> => "expand";
        limit_io(id: &VolumeId, limits: IoLimits) -> Result<Ensured<Record>, Error> => "limit the I/O";
        retire(id: &VolumeId) -> Result<Ensured<()>, Error> => "retire";
        restore(id: &VolumeId) -> Result<Ensured<()>, Error> => "restore";
        discard(id: &VolumeId) -> Result<Ensured<()>, Error> => "discard";
        undo(id: &VolumeId) -> Result<Ensured<()>, Error> => "undo";
        roll_back(id: &VolumeId, want: &RollbackRequest) -> Result<Ensured<Record>, Error> => "roll back";
        end_rollback(id: &VolumeId) -> Result<Ensured<()>, Error> => "end the rollback";
        take_snapshot(id: &VolumeId, want: &SnapshotRequest) -> Result<Taken<Record>, Error> => "take a snapshot";
        take_group(want: &GroupRequest) -> Result<Taken<BTreeMap<VolumeId, Record>>, Error>
            => "take a group of snapshots";
        copy_snapshot(id: &VolumeId) -> Result<Option<Copying>, Error> => "copy a snapshot";
        remove_snapshot(id: &VolumeId) -> Result<Ensured<()>, Error> => "remove a snapshot";
        undo_snapshots(ids: &BTreeSet<VolumeId>) -> Result<Ensured<()>, Error> => "undo snapshots";
    }

    reads! {
        check_io_limits() -> Result<(), ThrottleError>;
        takes_groups() -> bool;
        live_volume(id: &VolumeId) -> Result<LiveVolume, LiveVolumeError>;
        record(id: &VolumeId) -> Result<Option<Record>, Error>;
        records() -> Result<Records, ListError>;
        complete_snapshots() -> BTreeMap<VolumeId, Record>;
        rollbacks(volume: &VolumeId) -> Vec<VolumeId>;
        retired() -> Result<Vec<VolumeId>, ListError>;
        strays() -> Result<Strays, ListError>;
        drifted(id: &VolumeId) -> Result<Drifted, DriftError>;
        faults() -> Result<Vec<DiskFault>, FsError>;
        space() -> Result<Space, LookError>;
        usage() -> Result<Vec<VolumeUsage>, UsageError>;
        calls() -> &VolumeCalls;
    }
}
