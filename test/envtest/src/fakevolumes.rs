//! Volumes without a disk, for tests and benchmarks of the API server's decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::discriminant;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dir::Ensured;
use fsquota::{Fault, Limits, ProjectId, Usage};
use units::{Bytes, Inodes};
use volume::{
    Cloning, DiskFault, Drifted, Error, IoLimits, IoRejection, Mode, Operation, Overcommit, Record, Request,
    SourceError, Space, State, ThrottleError, VolumeCalls, VolumeId, VolumeRefusal,
};

mod snapshots;
mod volumes;

/// Block size of the file system. Sizes are multiples of it.
const BLOCK: u64 = 4096;

/// A node's volumes in memory. `//node/kubernetes/provisioner:volumes_ktest` compares this implementation with
/// [`volume::Store`] on a disk.
pub struct FakeVolumes {
    disk: Mutex<Disk>,
    calls: VolumeCalls,
    /// Creates the parts of a volume outside of memory.
    create: Option<Box<Create>>,
    held: Mutex<HeldCalls>,
    released: Condvar,
}

#[derive(Default)]
struct HeldCalls {
    /// Whether new clones and removals of snapshots wait.
    long: bool,
    /// Volumes whose removals wait.
    discards: BTreeSet<VolumeId>,
    /// Volumes whose checks wait.
    checks: BTreeSet<VolumeId>,
}

/// Maximum duration of [`FakeVolumes::hold`], [`FakeVolumes::set_hanging`] and [`FakeVolumes::set_checking`]. It is
/// longer than a test waits, and it ends the threads of a finished test.
const HELD: Duration = Duration::from_secs(300);

type Create = dyn Fn(&VolumeId, Bytes) + Send + Sync;

/// A fault of each kind, in the order of [`DiskFault::KINDS`].
pub fn faults_of_each_kind() -> Vec<DiskFault> {
    const GROUPS: NonZeroU32 = NonZeroU32::new(2).unwrap();
    const WARNINGS: NonZeroU32 = NonZeroU32::new(3).unwrap();
    const REQUESTS: NonZeroU64 = NonZeroU64::new(7).unwrap();
    let of_file_system = [Fault::ShutDown, Fault::Metadata, Fault::Groups { damaged: GROUPS, first: 5 }];
    let of_disk = [
        DiskFault::Requests(REQUESTS),
        DiskFault::Warnings { count: WARNINGS, text: "nvme0n1: three warnings".to_owned() },
    ];
    let all: Vec<_> = of_file_system.map(DiskFault::FileSystem).into_iter().chain(of_disk).collect();
    assert!(all.iter().map(DiskFault::kind).eq(DiskFault::KINDS));
    all
}

#[derive(Default)]
struct Disk {
    size: Bytes,
    records: BTreeMap<VolumeId, Record>,
    /// Volumes in `records` whose data is in the trash.
    trash: BTreeSet<VolumeId>,
    /// Volumes in `records` that a pod uses as a block device.
    attached: BTreeSet<VolumeId>,
    /// Volumes in `records` that a pod uses, with the mount paths.
    published: BTreeMap<VolumeId, PathBuf>,
    stuck: BTreeSet<VolumeId>,
    /// Sources on which operations of other clients run.
    locked: BTreeSet<VolumeId>,
    /// Volumes with inodes that do not count to their projects.
    drifted: BTreeMap<VolumeId, Drifted>,
    used: BTreeMap<VolumeId, Usage>,
    /// Volumes whose limits another program has changed.
    changed: BTreeMap<VolumeId, Limits>,
    faults: Vec<DiskFault>,
    projects: u32,
    sources: BTreeMap<VolumeId, VolumeId>,
    /// Number of passes that do not complete a clone.
    passes: u32,
    /// Whether the disk has no space for the blocks of complete snapshots.
    full: bool,
    /// Number of passes that do not complete an undo.
    undo_passes: u32,
    /// Volumes whose pods exceed their sizes, each with the number of copy passes that have waited for it.
    overfull: BTreeMap<VolumeId, u32>,
    /// Whether the node lacks I/O limits.
    unthrottled: bool,
    /// Longest pauses that groups and snapshots of filesystem volumes allowed.
    pauses: Vec<Duration>,
    /// Whether snapshots of filesystem volumes need longer pauses than allowed.
    late: bool,
    /// Number of lists of complete snapshots.
    snapshot_lists: u32,
}

impl FakeVolumes {
    /// Creates a disk with `size` bytes for volumes.
    pub fn with_size(size: Bytes) -> Self {
        Self {
            disk: Mutex::new(Disk { size, ..Disk::default() }),
            calls: VolumeCalls::default(),
            create: None,
            held: Mutex::default(),
            released: Condvar::new(),
        }
    }

    /// Calls `create` before a new volume is recorded. Calls for several volumes may run in parallel.
    #[must_use]
    pub fn creating(self, create: impl Fn(&VolumeId, Bytes) + Send + Sync + 'static) -> Self {
        Self { create: Some(Box::new(create)), ..self }
    }

    pub fn put(&self, id: &VolumeId, record: Record) {
        self.disk().records.insert(id.clone(), record);
    }

    pub fn live(&self) -> Vec<VolumeId> {
        let disk = self.disk();
        disk.records.keys().filter(|id| !disk.trash.contains(*id)).cloned().collect()
    }

    pub fn record(&self, id: &VolumeId) -> Option<Record> {
        self.disk().records.get(id).cloned()
    }

    pub fn retired(&self) -> Vec<VolumeId> {
        self.disk().trash.iter().cloned().collect()
    }

    /// Moves a volume's data into the trash, like an interrupted deletion.
    pub fn retire(&self, id: &VolumeId) {
        self.disk().retire(id);
    }

    /// Simulates that a pod's block device of the volume is attached or detached.
    pub fn set_attached(&self, id: &VolumeId, attached: bool) {
        set(&mut self.disk().attached, id, attached);
    }

    /// Simulates that a pod's volume is published at this path, or unpublished.
    pub fn set_published(&self, id: &VolumeId, target: Option<&Path>) {
        match target {
            Some(target) => drop(self.disk().published.insert(id.clone(), target.to_owned())),
            None => {
                self.disk().published.remove(id);
                self.calls.unpublished(id);
            }
        }
    }

    /// Simulates that the volume's data is in use and cannot be removed, or can be removed again.
    pub fn set_stuck(&self, id: &VolumeId, stuck: bool) {
        set(&mut self.disk().stuck, id, stuck);
    }

    /// Simulates that an operation of another client runs on the source of snapshots, or has ended.
    pub fn set_locked(&self, source: &VolumeId, locked: bool) {
        set(&mut self.disk().locked, source, locked);
    }

    /// Simulates that a tenant has changed the project of the volume's inodes.
    pub fn set_drifted(&self, id: &VolumeId, drifted: Drifted) {
        self.disk().drifted.insert(id.clone(), drifted);
    }

    pub fn set_used(&self, id: &VolumeId, used: Usage) {
        self.disk().used.insert(id.clone(), used);
    }

    pub fn set_changed(&self, id: &VolumeId, limits: Limits) {
        self.disk().changed.insert(id.clone(), limits);
    }

    pub fn set_faults(&self, faults: Vec<DiskFault>) {
        self.disk().faults = faults;
    }

    /// Sets whether new clones and removals of snapshots block, like those of many files do.
    pub fn hold(&self, held: bool) {
        self.held().long = held;
        self.released.notify_all();
    }

    /// Sets whether the removal of the volume blocks, as by the lock of one of its files.
    pub fn set_hanging(&self, id: &VolumeId, hanging: bool) {
        set(&mut self.held().discards, id, hanging);
        self.released.notify_all();
    }

    /// Sets whether the check of the volume's projects blocks, like that of many inodes does.
    pub fn set_checking(&self, id: &VolumeId, checking: bool) {
        set(&mut self.held().checks, id, checking);
        self.released.notify_all();
    }

    fn wait_while(&self, is_held: impl Fn(&HeldCalls) -> bool) {
        let waited = self.released.wait_timeout_while(self.held(), HELD, |held| is_held(held));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn held(&self) -> MutexGuard<'_, HeldCalls> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the number of passes that do not complete a clone.
    pub fn set_passes(&self, passes: u32) {
        self.disk().passes = passes;
    }

    /// Sets whether the disk has no space for the blocks of complete snapshots, as an overcommitted one.
    pub fn set_full(&self, full: bool) {
        self.disk().full = full;
    }

    pub fn set_undo_passes(&self, passes: u32) {
        self.disk().undo_passes = passes;
    }

    /// Sets whether the volume's pods exceed its size, so that copy passes wait for the volume.
    pub fn set_overfull(&self, id: &VolumeId, overfull: bool) {
        let mut disk = self.disk();
        disk.overfull.remove(id);
        disk.overfull.extend(overfull.then(|| (id.clone(), 0)));
    }

    /// Number of copy passes that have waited for a volume that exceeds its size.
    pub fn waited(&self, id: &VolumeId) -> u32 {
        self.disk().overfull.get(id).copied().unwrap_or_default()
    }

    /// Sets whether the node lacks the I/O controller.
    pub fn set_unthrottled(&self, unthrottled: bool) {
        self.disk().unthrottled = unthrottled;
    }

    /// Sets whether new snapshots of filesystem volumes would freeze pods for longer than allowed.
    pub fn set_late(&self, late: bool) {
        self.disk().late = late;
    }

    pub fn source(&self, id: &VolumeId) -> Option<VolumeId> {
        self.disk().sources.get(id).cloned()
    }

    /// Longest allowed pause of each snapshot of a filesystem volume.
    pub fn pauses(&self) -> Vec<Duration> {
        self.disk().pauses.clone()
    }

    /// Number of lists of complete snapshots.
    pub fn snapshot_lists(&self) -> u32 {
        self.disk().snapshot_lists
    }

    /// Simulates a replaced disk, which does not contain the volume.
    pub fn lose(&self, id: &VolumeId) {
        self.disk().records.remove(id);
    }

    fn change<T>(
        &self,
        operation: Operation,
        id: &VolumeId,
        change: impl FnOnce(&mut Disk) -> Result<Ensured<T>, Error>,
    ) -> Result<Ensured<T>, Error> {
        self.calls.observe(operation, || {
            let mut disk = self.disk();
            disk.check_volume(id)?;
            change(&mut disk)
        })
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn set(all: &mut BTreeSet<VolumeId>, id: &VolumeId, is_in: bool) {
    all.remove(id);
    all.extend(is_in.then(|| id.clone()));
}

impl Disk {
    fn space(&self) -> Space {
        let reserved = self.records.values().map(Record::reserved).sum();
        Space { size: self.size, reserved, reserve: Bytes::ZERO, overcommit: Overcommit::NONE }
    }

    fn look(&self, id: &VolumeId) -> Option<(Record, bool)> {
        self.records.get(id).map(|record| (record.clone(), self.trash.contains(id)))
    }

    fn retire(&mut self, id: &VolumeId) -> Ensured<()> {
        let there = self.records.contains_key(id);
        if there && self.trash.insert(id.clone()) { Ensured::Created(()) } else { Ensured::Unchanged(()) }
    }

    fn discard(&mut self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        let source = match self.look(id) {
            None => return Ok(Ensured::Unchanged(())),
            Some((_, false)) => VolumeRefusal::NotRetired,
            Some((_, true)) if self.stuck.contains(id) => VolumeRefusal::Foreign,
            Some((_, true)) => {
                self.trash.remove(id);
                self.records.remove(id);
                return Ok(Ensured::Created(()));
            }
        };
        Err(Error::Refused { id: id.clone(), source })
    }

    fn provision(&mut self, id: &VolumeId, want: &Request) -> Result<Ensured<Record>, Error> {
        let refused = |source| Err(Error::Refused { id: id.clone(), source });
        match self.look(id) {
            None => {}
            Some((Record { claim, mode, size, .. }, _))
                if claim.uid != want.claim.uid
                    || discriminant(&mode) != discriminant(&want.mode)
                    || size != want.size =>
            {
                return refused(VolumeRefusal::Differs { claim: claim.to_string(), uid: claim.uid, size });
            }
            Some((record, false)) if record.cloning.is_some() && !record.mode.is_thin() => {
                return self.copy(id, record);
            }
            Some((record, false)) => return Ok(Ensured::Unchanged(record)),
            Some((Record { state: State::Complete | State::Announced, .. }, true)) => {
                return refused(VolumeRefusal::Lost);
            }
            // An earlier call was undoing the volume.
            Some((Record { state: State::Staged, .. }, true)) => drop(self.discard(id)?),
        }
        let cloning = match &want.source {
            Some(source) => {
                let checked = self.check_source(source, want.size).and_then(|(mode, headroom)| {
                    match (mode.is_block(), want.mode.is_block()) {
                        (true, false) => Err(SourceError::Block { volume: source.clone() }),
                        (false, true) => Err(SourceError::Filesystem { volume: source.clone() }),
                        (true, true) | (false, false) => Ok(headroom),
                    }
                });
                let headroom = checked.map_err(|source| Error::Source { id: id.clone(), source })?;
                Some(Cloning::new(source.clone(), headroom))
            }
            None => None,
        };
        let project = ProjectId::new(self.projects + 1).expect("fewer volumes than IDs");
        let Request { claim, owner, class, mode, size, source: _ } = want.clone();
        let io = IoLimits::NONE;
        let record = Record { claim, owner, class, mode, size, project, cloning, io, state: State::Staged };
        let (wanted, free) = (record.reserved(), self.space().free());
        if wanted > free {
            return Err(Error::Full { id: id.clone(), wanted, free });
        }
        self.projects += 1;
        self.records.insert(id.clone(), record.clone());
        match &record.cloning {
            Some(Cloning { source, .. }) => {
                self.sources.insert(id.clone(), source.clone());
                if record.mode.is_thin() { Ok(Ensured::Created(record)) } else { self.copy(id, record) }
            }
            None => Ok(Ensured::Created(record)),
        }
    }

    /// Runs one copy pass of a clone.
    fn copy(&mut self, id: &VolumeId, record: Record) -> Result<Ensured<Record>, Error> {
        if self.passes > 0 {
            self.passes -= 1;
            return Err(Error::Copying { id: id.clone(), left: record.size });
        }
        let waited = record.cloning.as_ref().and_then(|cloning| self.overfull.get_mut(&cloning.source));
        if let Some(waited) = waited {
            *waited += 1;
            return Err(Error::Copying { id: id.clone(), left: Bytes::ZERO });
        }
        let record = Record { cloning: None, ..record };
        self.records.insert(id.clone(), record.clone());
        Ok(Ensured::Created(record))
    }

    /// Rejects snapshots, because the operation is for volumes.
    fn check_volume(&self, id: &VolumeId) -> Result<(), Error> {
        if self.is_snapshot(id) {
            return Err(Error::Refused { id: id.clone(), source: VolumeRefusal::Snapshot });
        }
        Ok(())
    }

    fn is_snapshot(&self, id: &VolumeId) -> bool {
        self.records.get(id).is_some_and(|record| record.mode.is_snapshot())
    }

    /// Mode and size of the volume, if it can be cloned into a volume of this size.
    fn check_source(&self, id: &VolumeId, size: Bytes) -> Result<(Mode, Bytes), SourceError> {
        let volume = id.clone();
        match self.look(id) {
            Some((Record { state: State::Staged, .. }, _)) => Err(SourceError::NotAnnounced { volume }),
            Some((Record { state: State::Complete, .. }, _)) => Err(SourceError::Copying { volume }),
            Some((record, false)) if record.size > size => Err(SourceError::Larger { volume, has: record.size, size }),
            Some((record, false)) => Ok((record.mode, record.size)),
            None | Some((_, true)) => Err(SourceError::Unknown { volume }),
        }
    }

    fn announce(&mut self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        match self.records.get_mut(id) {
            Some(record) if record.state != State::Announced => {
                record.state = State::Announced;
                Ok(Ensured::Created(()))
            }
            Some(_) => Ok(Ensured::Unchanged(())),
            None => Err(Error::Unknown { id: id.clone() }),
        }
    }

    fn expand(&mut self, id: &VolumeId, to: Bytes) -> Result<Ensured<Record>, Error> {
        let too_large = || Error::TooLarge { id: id.clone(), wanted: to };
        let size = to.round_up::<BLOCK>().filter(|size| i64::try_from(size.get()).is_ok()).ok_or_else(too_large)?;
        let source = match self.look(id) {
            None => return Err(Error::Unknown { id: id.clone() }),
            Some((Record { state: State::Staged, .. }, _)) => VolumeRefusal::NotAnnounced,
            Some((_, true)) => VolumeRefusal::Lost,
            Some((record, false)) if size <= record.size => return Ok(Ensured::Unchanged(record)),
            Some(_) if size > Limits::MAX_BYTES => return Err(too_large()),
            Some((record, false)) => {
                let mode = grown(record.mode, record.size, size);
                let wanted = mode.reserved(size).saturating_sub(record.reserved());
                let free = self.space().free();
                if wanted > free {
                    return Err(Error::Full { id: id.clone(), wanted, free });
                }
                let record = Record { mode, size, ..record };
                self.records.insert(id.clone(), record.clone());
                return Ok(Ensured::Created(record));
            }
        };
        Err(Error::Refused { id: id.clone(), source })
    }

    fn check_io_limits(&self) -> Result<(), ThrottleError> {
        if self.unthrottled { Err(ThrottleError::Unsupported("the io controller is missing".into())) } else { Ok(()) }
    }

    fn limit_io(&mut self, id: &VolumeId, limits: IoLimits) -> Result<Ensured<Record>, Error> {
        let Some((record, _)) = self.look(id) else { return Err(Error::Unknown { id: id.clone() }) };
        if !record.mode.is_block() && !limits.is_none() {
            let source = VolumeRefusal::Io(IoRejection::Filesystem);
            return Err(Error::Refused { id: id.clone(), source });
        }
        if !limits.is_none() {
            self.check_io_limits().map_err(|source| Error::Throttle { id: id.clone(), source })?;
        }
        if record.io == limits {
            return Ok(Ensured::Unchanged(record));
        }
        let record = Record { io: limits, ..record };
        self.records.insert(id.clone(), record.clone());
        Ok(Ensured::Created(record))
    }

    fn restore(&mut self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        match self.look(id) {
            None | Some((_, false)) => Ok(Ensured::Unchanged(())),
            Some((Record { state: State::Staged | State::Complete, .. }, true)) => {
                Err(Error::Refused { id: id.clone(), source: VolumeRefusal::NotAnnounced })
            }
            Some((Record { state: State::Announced, .. }, true)) => {
                self.trash.remove(id);
                Ok(Ensured::Created(()))
            }
        }
    }

    fn retire_unpublished(&mut self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        match self.published.get(id) {
            Some(target) if self.records.contains_key(id) && !self.trash.contains(id) => {
                Err(Error::Published { id: id.clone(), target: target.clone() })
            }
            Some(_) | None => Ok(self.retire(id)),
        }
    }

    fn undo(&mut self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        if self.records.get(id).is_some_and(|record| record.state == State::Announced) {
            return Err(Error::Announced { id: id.clone() });
        }
        self.retire(id);
        if self.undo_passes > 0 {
            self.undo_passes -= 1;
            return Err(Error::Unfinished { id: id.clone(), freed: Inodes::new(2048), left: Inodes::new(1) });
        }
        self.check_unlocked(id)?;
        self.discard(id)
    }
}

/// Mode of a volume after its expansion. The number of inodes grows in proportion to the size.
fn grown(mode: Mode, from: Bytes, to: Bytes) -> Mode {
    match mode {
        Mode::Filesystem { inodes } => {
            let share = u128::from(inodes.get()) * u128::from(to.get());
            let share = share.div_ceil(u128::from(from.get().max(1)));
            Mode::Filesystem { inodes: Inodes::new(u64::try_from(share).unwrap_or(u64::MAX)) }
        }
        other @ (Mode::Block { .. } | Mode::Snapshot { .. } | Mode::SnapshotTree { .. }) => other,
    }
}
