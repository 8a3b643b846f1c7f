//! The operations on a node's volumes.

use std::collections::{BTreeMap, BTreeSet};

use dir::Ensured;
use fsquota::FsError;
use units::Bytes;

use crate::{
    Copying, DEFAULT_PAUSE, DiskFault, DriftError, Drifted, Error, GroupRequest, IoLimits, ListError, LiveVolume,
    LiveVolumeError, LookError, Operation, Record, Records, Request, RollbackRequest, SnapshotRequest, Space, Store,
    Strays, Taken, ThrottleError, UsageError, VolumeCalls, VolumeId, VolumeRefusal, VolumeUsage,
};

/// The volumes of a node: [`Store`] implements the operations on a disk. Tests of API behaviour use a fake.
///
/// All methods wait for the disk, and may be repeated after a failure, or after the process ended at any point.
/// Operations on one volume are serialized. Methods that change a volume reject snapshots, which have methods of their
/// own.
pub trait Volumes: Send + Sync + 'static {
    /// Creates the volume as requested, or continues what an earlier call began. When the method returns, the volume is
    /// durable and has its limits. `Created` if this call made it live.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Source`]: the call undoes what it began. [`Error::Refused`]: nothing has changed.
    /// [`Error::Copying`]: the next call continues; the volume has the content that its source had at the first call.
    fn provision(&self, id: &VolumeId, want: &Request) -> Result<Ensured<Record>, Error>;

    /// Records that the volume's PV exists: from now on only [`Volumes::retire`] ends it. The record is durable at the
    /// latest when the volume is first opened.
    fn announce(&self, id: &VolumeId) -> Result<Ensured<()>, Error>;

    /// Expands the volume to at least `to`, rounded up to 4 KiB; the inode limit grows in proportion. When the method
    /// returns, the new size is durable. A published block volume has it after its loop device was refreshed.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::TooLarge`]: nothing has changed. [`Error::Unknown`]; [`Error::Refused`].
    fn expand(&self, id: &VolumeId, to: Bytes) -> Result<Ensured<Record>, Error>;

    /// Limits the I/O of the pods that have the block volume, now and later. When the method returns, the limits are
    /// durable and in force. `Unchanged` if the record had these limits before; the method applies them to pods again.
    ///
    /// # Errors
    /// [`Error::Throttle`]: unless [`Error::is_infeasible`], the next call continues. [`Error::Refused`]: the volume is
    /// a filesystem volume. [`Error::Unknown`].
    fn limit_io(&self, id: &VolumeId, limits: IoLimits) -> Result<Ensured<Record>, Error>;

    /// Whether [`Volumes::limit_io`] can limit the I/O of a block volume on this node.
    ///
    /// # Errors
    /// [`ThrottleError::None`], [`ThrottleError::Unsupported`].
    fn check_io_limits(&self) -> Result<(), ThrottleError>;

    /// Moves the volume into the trash; its data stays until [`Volumes::discard`]. Idempotent: `Unchanged` if there is
    /// no such volume.
    ///
    /// # Errors
    /// [`Error::Published`]: a mount shows the volume; nothing has changed.
    /// [`ActError::InUse`](crate::ActError::InUse): a process has the volume's loop device open. [`Error::Refused`]:
    /// the directory has no record.
    fn retire(&self, id: &VolumeId) -> Result<Ensured<()>, Error>;

    /// Moves a retired volume out of the trash. If [`Volumes::discard`] has begun, files are missing, and the volume
    /// first gets back its limits, and the owner and mode of a new volume. For a volume that is not in the trash, the
    /// call costs one system call.
    ///
    /// # Errors
    /// [`Error::Refused`]: the entry in the trash is not the volume, or another entry is in the place of the volume.
    fn restore(&self, id: &VolumeId) -> Result<Ensured<()>, Error>;

    /// Removes a retired volume: its data, its limits, its record. Idempotent.
    ///
    /// Processes that still have a directory of the volume open can create nothing from this call on, and can enter no
    /// directory without `CAP_DAC_OVERRIDE`. A call does a bounded amount of work, whatever these processes do.
    ///
    /// # Errors
    /// [`Error::Unfinished`]: the next call continues. [`Error::Refused`] with
    /// [`VolumeRefusal::NotRetired`](crate::VolumeRefusal::NotRetired). [`Error::Published`]. [`Error::Act`] may be
    /// temporary: a program that still has a deleted file open keeps its project in use. To detect that, the call reads
    /// all inodes of the disk once, and again only when the number of these files has changed.
    fn discard(&self, id: &VolumeId) -> Result<Ensured<()>, Error>;

    /// Removes a volume that never had a PV.
    ///
    /// # Errors
    /// [`Error::Announced`]: the volume has, or had, a PV. Also the errors of [`Volumes::retire`] and
    /// [`Volumes::discard`].
    fn undo(&self, id: &VolumeId) -> Result<Ensured<()>, Error>;

    /// Takes a snapshot, or continues what an earlier call began. When the method returns, the instant and the content
    /// are durable, and the snapshot is complete ([`State::Complete`](crate::State::Complete)): only
    /// [`Volumes::remove_snapshot`] ends it. [`Taken::copying`] shows whether it shares blocks, and when the next call
    /// of this method or of [`Volumes::copy_snapshot`] continues. A thin snapshot is not copied.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Source`]: the call undoes what it began, unless the snapshot was complete before.
    /// [`Error::Refused`]: nothing has changed.
    fn take_snapshot(&self, id: &VolumeId, want: &SnapshotRequest) -> Result<Taken<Record>, Error>;

    /// Takes snapshots of several volumes at one instant, or continues what an earlier call began, like
    /// [`Volumes::take_snapshot`] for each of them. The next call copies more of their blocks. The pods that have one
    /// of the volumes are stopped once. All snapshots have the same instant; if an earlier call ended before it, they
    /// get a new one. When the method returns, all are complete.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Source`], [`Error::Freeze`]: the call undoes what it and earlier calls began, of all
    /// snapshots, unless they were complete before; the next call takes all again. [`Error::Removed`]: a snapshot was
    /// removed after others of the group were complete; nothing has changed. [`Error::Refused`]: nothing has changed.
    fn take_group(&self, want: &GroupRequest) -> Result<Taken<BTreeMap<VolumeId, Record>>, Error>;

    /// Copies more blocks of a complete snapshot, without its request. `None` when nothing is left to copy, and if `id`
    /// is not a complete snapshot.
    ///
    /// # Errors
    /// The snapshot stays, and the next call continues. [`Error::Full`]: the disk has no space for its blocks.
    fn copy_snapshot(&self, id: &VolumeId) -> Result<Option<Copying>, Error>;

    /// Whether this process can stop pods, which [`Volumes::take_group`] requires.
    fn takes_groups(&self) -> bool;

    /// Removes a snapshot, finished or not. Idempotent. Volumes that were created from it stay.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`VolumeRefusal::Volume`]: `id` is a volume; with [`VolumeRefusal::Restoring`]: the
    /// snapshot is thin, and a volume is being created from it. [`Error::Act`] with
    /// [`ActError::Busy`](crate::ActError::Busy) or [`ActError::Locked`](crate::ActError::Locked): the next call
    /// continues. Also the errors of [`Volumes::discard`].
    fn remove_snapshot(&self, id: &VolumeId) -> Result<Ensured<()>, Error>;

    /// Removes snapshots that were never reported: one, or members of a group, which is reported as a whole. A complete
    /// snapshot is removed only if another one of these is staged, or if its removal has begun. `Unchanged` if none is
    /// removed. Idempotent: after an error or a kill, the next call continues.
    ///
    /// # Errors
    /// Those of [`Volumes::remove_snapshot`]. A staged snapshot stays until all complete ones are removed.
    fn undo_snapshots(&self, ids: &BTreeSet<VolumeId>) -> Result<Ensured<()>, Error>;

    /// Gives a volume the content of a snapshot, or continues what an earlier call began. The former content of the
    /// volume becomes the snapshot `id`. When the method returns, both are durable. `Unchanged` if an earlier call did
    /// that. Until [`Volumes::end_rollback`], the snapshot cannot be removed, so that no call repeats the rollback.
    ///
    /// # Errors
    /// The volume still has its former content after these errors. [`Error::Copying`]: the next call continues.
    /// [`Error::Published`], and [`ActError::InUse`](crate::ActError::InUse): the next call exchanges the content if no
    /// pod has the volume. [`Error::Full`], [`Error::Source`]: the call undoes what it began. [`Error::Rollback`]; with
    /// [`RollbackError::Grown`](crate::RollbackError::Grown), the next call begins again only after
    /// [`Volumes::remove_snapshot`] has removed the copy. [`Error::Refused`].
    fn roll_back(&self, id: &VolumeId, want: &RollbackRequest) -> Result<Ensured<Record>, Error>;

    /// Ends a rollback: the snapshot that it has kept is an ordinary one from now on. Idempotent.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`VolumeRefusal::RollingBack`](crate::VolumeRefusal::RollingBack): the content is not
    /// exchanged.
    fn end_rollback(&self, id: &VolumeId) -> Result<Ensured<()>, Error>;

    /// Size of a live volume, and whether a loop device is attached to its image.
    fn live_volume(&self, id: &VolumeId) -> Result<LiveVolume, LiveVolumeError>;

    /// The record of a volume or snapshot, if it exists. Reads nothing from the disk.
    ///
    /// # Errors
    /// [`Error::Closed`].
    fn record(&self, id: &VolumeId) -> Result<Option<Record>, Error>;

    /// All records. Reads nothing from the disk.
    fn records(&self) -> Result<Records, ListError>;

    /// Snapshots with [`State::Complete`](crate::State::Complete), whose blocks are to be copied. Reads nothing from the
    /// disk, and takes no time for other volumes.
    fn complete_snapshots(&self) -> BTreeMap<VolumeId, Record>;

    /// Snapshots of a volume's rollbacks that have not ended. Reads nothing from the disk.
    fn rollbacks(&self, volume: &VolumeId) -> Vec<VolumeId>;

    /// Volumes whose removal has begun: those in the trash, and those without data whose limits and record stayed,
    /// because a program held a deleted file open, or because the power failed. A volume whose data was lost looks like
    /// the latter: a volume that still has a PV is not removed.
    fn retired(&self) -> Result<Vec<VolumeId>, ListError>;

    /// Directories and projects without a record.
    fn strays(&self) -> Result<Strays, ListError>;

    /// Reads each inode of a volume that is live or in the trash, at most a million, and changes nothing. An unknown
    /// volume has none.
    fn drifted(&self, id: &VolumeId) -> Result<Drifted, DriftError>;

    /// Faults of the disk since it was mounted.
    fn faults(&self) -> Result<Vec<DiskFault>, FsError>;

    /// Size of the disk, and the space that it can still allocate.
    fn space(&self) -> Result<Space, LookError>;

    /// Usage of every volume, from one sweep over the quotas.
    fn usage(&self) -> Result<Vec<VolumeUsage>, UsageError>;

    /// Metrics and notifications of the calls that change volumes.
    fn calls(&self) -> &VolumeCalls;
}

impl Store {
    fn locked<T>(
        &self,
        operation: Operation,
        id: &VolumeId,
        change: impl FnOnce() -> Result<Ensured<T>, Error>,
    ) -> Result<Ensured<T>, Error> {
        self.calls.observe(operation, || {
            let _guard = self.locks.blocking_lock(id);
            change()
        })
    }

    /// Runs a change of a volume, and rejects a snapshot.
    fn change<T>(
        &self,
        operation: Operation,
        id: &VolumeId,
        change: impl FnOnce() -> Result<Ensured<T>, Error>,
    ) -> Result<Ensured<T>, Error> {
        self.locked(operation, id, || {
            if self.is_snapshot(id) {
                return Err(Error::Refused { id: id.clone(), source: VolumeRefusal::Snapshot });
            }
            change()
        })
    }
}

impl Volumes for Store {
    fn provision(&self, id: &VolumeId, want: &Request) -> Result<Ensured<Record>, Error> {
        self.change(Operation::Provision, id, || self.provision(id, want, DEFAULT_PAUSE))
    }

    fn announce(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.change(Operation::Announce, id, || self.announce(id))
    }

    fn expand(&self, id: &VolumeId, to: Bytes) -> Result<Ensured<Record>, Error> {
        self.change(Operation::Expand, id, || self.expand(id, to))
    }

    fn limit_io(&self, id: &VolumeId, limits: IoLimits) -> Result<Ensured<Record>, Error> {
        self.change(Operation::LimitIo, id, || self.limit_io(id, limits))
    }

    fn check_io_limits(&self) -> Result<(), ThrottleError> {
        self.check_io_limits()
    }

    fn retire(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.change(Operation::Retire, id, || self.retire(id))
    }

    fn restore(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.change(Operation::Restore, id, || self.restore(id))
    }

    fn discard(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.change(Operation::Discard, id, || self.discard(id))
    }

    fn undo(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.change(Operation::Undo, id, || self.undo(id))
    }

    fn take_snapshot(&self, id: &VolumeId, want: &SnapshotRequest) -> Result<Taken<Record>, Error> {
        self.locked(Operation::TakeSnapshot, id, || self.take_snapshot(id, want)).map(Ensured::into_inner)
    }

    fn take_group(&self, want: &GroupRequest) -> Result<Taken<BTreeMap<VolumeId, Record>>, Error> {
        self.calls.observe(Operation::TakeGroup, || self.take_group(want)).map(Ensured::into_inner)
    }

    fn copy_snapshot(&self, id: &VolumeId) -> Result<Option<Copying>, Error> {
        self.locked(Operation::TakeSnapshot, id, || self.copy_snapshot(id)).map(Ensured::into_inner)
    }

    fn takes_groups(&self) -> bool {
        self.freezer().is_some()
    }

    fn remove_snapshot(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.locked(Operation::RemoveSnapshot, id, || self.remove_snapshot(id))
    }

    fn undo_snapshots(&self, ids: &BTreeSet<VolumeId>) -> Result<Ensured<()>, Error> {
        self.calls.observe(Operation::RemoveSnapshot, || self.undo_snapshots(ids))
    }

    fn roll_back(&self, id: &VolumeId, want: &RollbackRequest) -> Result<Ensured<Record>, Error> {
        self.locked(Operation::RollBack, id, || self.roll_back(id, want))
    }

    fn end_rollback(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.locked(Operation::RollBack, id, || self.end_rollback(id))
    }

    fn live_volume(&self, id: &VolumeId) -> Result<LiveVolume, LiveVolumeError> {
        self.live_volume(id)
    }

    fn record(&self, id: &VolumeId) -> Result<Option<Record>, Error> {
        Ok(self.known(id)?.map(|known| known.record))
    }

    fn records(&self) -> Result<Records, ListError> {
        Ok(self.records())
    }

    fn complete_snapshots(&self) -> BTreeMap<VolumeId, Record> {
        self.index().complete_snapshots()
    }

    fn rollbacks(&self, volume: &VolumeId) -> Vec<VolumeId> {
        self.index().rollbacks(volume)
    }

    fn retired(&self) -> Result<Vec<VolumeId>, ListError> {
        self.retired()
    }

    fn strays(&self) -> Result<Strays, ListError> {
        self.strays()
    }

    fn drifted(&self, id: &VolumeId) -> Result<Drifted, DriftError> {
        self.drifted(id)
    }

    fn faults(&self) -> Result<Vec<DiskFault>, FsError> {
        self.faults()
    }

    fn space(&self) -> Result<Space, LookError> {
        self.space()
    }

    fn usage(&self) -> Result<Vec<VolumeUsage>, UsageError> {
        self.usage()
    }

    fn calls(&self) -> &VolumeCalls {
        &self.calls
    }
}
