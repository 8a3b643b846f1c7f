//! Runs operations of the provisioner, the kubelet and pods on the volumes of a node.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dir::Dir;
use loopdev::{Backing, Control, Detach};
use mount::{Attributes, Detached};
use units::Bytes;
use volume::{
    Access, ActError, Allocation, Claim, DEFAULT_PAUSE, FrozenPods, GroupRequest, Mode, Opened, Owner, PodFreezer,
    Record, Request, RollbackRequest, Settings, Sharing, SnapshotRequest, State, Store, VolumeId, VolumeRefusal,
    Volumes as _,
};

use crate::data;
use crate::facts::VOLUMES;
use crate::life::{INODES, SLOT};
use crate::marker;
use crate::operation::{Action, Mark, Number, Operation, Shape};
use crate::violation::Violation;

/// Reserve for other data on the disk.
const RESERVE: Bytes = Bytes::new(32 << 20);

/// Time limit for another list of the loop devices to close a device, on a busy machine.
const CLOSED: Duration = Duration::from_secs(30);

/// A store, and the pods of its volumes.
pub(crate) struct Node {
    pub(crate) store: Store,
    /// Owned here, because the store has only a weak reference.
    _freezer: Arc<dyn PodFreezer>,
    control: Control,
    targets: PathBuf,
    /// Images that may have a loop device, by their volume.
    attached: Mutex<BTreeMap<Number, Backing>>,
}

/// A freezer without pods: no pod has the source of a copy while an operation runs.
#[derive(Debug)]
struct NoPods;

impl PodFreezer for NoPods {
    fn freeze(&self, _: &[VolumeId], _: Duration) -> Result<Box<dyn FrozenPods>, Box<dyn Error + Send + Sync>> {
        Ok(Box::new(Self))
    }
}

impl FrozenPods for NoPods {
    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn thaw(self: Box<Self>) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }
}

impl Node {
    /// Opens the volumes directory of the file system that is mounted at `root`. Creates the directory if it is
    /// missing.
    pub(crate) fn start(root: &Path) -> Result<Self, Violation> {
        let volumes = root.join(VOLUMES);
        let failed = called("start", "the node");
        let start = || -> Result<Self, Box<dyn Error + Send + Sync>> {
            fs::create_dir_all(&volumes)?;
            // Each call copies one piece, so that the power fails and pods write to shared blocks between the calls.
            let settings = Settings { reserve: RESERVE, pass: Duration::ZERO, ..Settings::default() };
            let store = Store::open(&Dir::open(&volumes)?, settings)?;
            let freezer: Arc<dyn PodFreezer> = Arc::new(NoPods);
            store.freeze_by(Arc::downgrade(&freezer));
            let targets = std::env::temp_dir().join("targets");
            fs::create_dir_all(&targets)?;
            let control = Control::open()?;
            Ok(Self { store, _freezer: freezer, control, targets, attached: Mutex::default() })
        };
        start().map_err(failed)
    }

    pub(crate) fn run(&self, Operation { volume, action }: Operation) -> Result<(), Violation> {
        let id = id(volume);
        let store = &self.store;
        match action {
            Action::Provision { shape, size } => {
                let request = request(volume, shape, size);
                store.provision(&id, &request).map(drop).map_err(called("provision", volume))
            }
            Action::Announce => store.announce(&id).map(drop).map_err(called("announce", volume)),
            Action::Open => store.open_volume(&id).map(drop).map_err(called("open", volume)),
            Action::Write { slot, turn, leave } => self.write(Mark { volume, turn }, slot, leave),
            Action::Expand { to } => store.expand(&id, to).map(drop).map_err(called("expand", volume)),
            Action::ExpandAndWrite { to, slot, turn } => thread::scope(|scope| {
                let expanded = scope.spawn(|| store.expand(&id, to).map(drop).map_err(called("expand", volume)));
                self.write(Mark { volume, turn }, slot, false)?;
                expanded.join().expect("an expansion panicked")
            }),
            Action::ExpandAndRetire { to } => thread::scope(|scope| {
                let expanded = scope.spawn(|| match store.expand(&id, to) {
                    // The volume was retired first.
                    Ok(_) | Err(volume::Error::Refused { source: VolumeRefusal::Lost, .. }) => Ok(()),
                    Err(error) => Err(called("expand", volume)(error)),
                });
                self.retire(volume)?;
                expanded.join().expect("an expansion panicked")
            }),
            // The disk does not change.
            Action::Retain => Ok(()),
            Action::Adopt => {
                store.announce(&id).map_err(called("announce", volume))?;
                store.restore(&id).map_err(called("restore", volume))?;
                store.open_volume(&id).map(drop).map_err(called("open", volume))
            }
            Action::Retire => self.retire(volume),
            Action::Restore => store.restore(&id).map(drop).map_err(called("restore", volume)),
            Action::Discard => store.discard(&id).map(drop).map_err(called("discard", volume)),
            Action::Undo => unlocked(|| store.undo(&id)).map_err(called("undo", volume)),
            Action::Clone { source, shape, size } | Action::RestoreSnapshot { source, shape, size } => {
                match store.provision(&id, &clone_request(volume, shape, size, source)) {
                    Ok(_) | Err(volume::Error::Copying { .. }) => Ok(()),
                    Err(error) => Err(called("clone", volume)(error)),
                }
            }
            Action::Snapshot { source, is_thin } => store
                .take_snapshot(&id, &snapshot_request(volume, source, is_thin))
                .map(drop)
                .map_err(called("snapshot", volume)),
            Action::Copy => self.finish(volume),
            Action::RemoveSnapshot => {
                unlocked(|| store.remove_snapshot(&id)).map_err(called("remove the snapshot", volume))
            }
            Action::SnapshotGroup { source, second, second_source } => store
                .take_group(&group_request([(volume, source), (second, second_source)]))
                .map(drop)
                .map_err(called("take a snapshot in a group", volume)),
            Action::RollBack { volume: rolled, source } => {
                roll_back(store, volume, rolled, source)?;
                self.check_detached(rolled)
            }
        }
    }

    /// Finishes a copy, as the provisioner does in the next passes over its claim or its record.
    fn finish(&self, volume: Number) -> Result<(), Violation> {
        let id = id(volume);
        let records = self.store.records().map_err(called("list the records", "all volumes"))?;
        let Some(record) = records.readable.get(&id).cloned() else {
            return Err(called("finish the copy", volume)("it has no record"));
        };
        let Record { claim, owner, class, mode, size, cloning, .. } = record;
        let source = cloning.map(|cloning| cloning.source);
        match (mode, source) {
            // A complete member of a group waits for the others, and needs its source no longer.
            (mode, source) if mode.is_snapshot() => {
                let source = source.unwrap_or_else(|| id.clone());
                let (owner, max_pause, sharing) = (Owner::Provisioner, DEFAULT_PAUSE, Sharing::Temporary);
                let want = SnapshotRequest { claim, owner, class, source, max_pause, sharing };
                finish_snapshot(&self.store, volume, &want)
            }
            // The first call has finished the clone.
            (_, None) => Ok(()),
            (_, source) => finish_clone(&self.store, volume, &Request { claim, owner, class, mode, size, source }),
        }
    }

    fn retire(&self, volume: Number) -> Result<(), Violation> {
        self.store.retire(&id(volume)).map_err(called("retire", volume))?;
        self.check_detached(volume)
    }

    fn check_detached(&self, volume: Number) -> Result<(), Violation> {
        match lock(&self.attached).remove(&volume) {
            Some(backing) if self.device_of(volume, backing)?.is_some() => Err(Violation::Attached { volume }),
            Some(_) | None => Ok(()),
        }
    }

    /// Acts as a pod and its kubelet: publishes, writes, syncs and unpublishes the volume.
    fn write(&self, mark: Mark, slot: u16, leave: bool) -> Result<(), Violation> {
        let Mark { volume, .. } = mark;
        let opened = self.store.open_volume(&id(volume)).map_err(called("open", volume))?;
        let content = marker::content(mark, slot);
        match opened.mode() {
            Mode::Block { .. } | Mode::Snapshot { .. } => self.write_block(volume, &opened, slot, &content, leave),
            Mode::Filesystem { .. } | Mode::SnapshotTree { .. } => self.write_file(volume, &opened, slot, &content),
        }
    }

    fn write_file(&self, volume: Number, opened: &Opened, slot: u16, content: &[u8]) -> Result<(), Violation> {
        let target = self.targets.join(volume.to_string());
        let publish = || -> Result<(), Box<dyn Error + Send + Sync>> {
            fs::create_dir_all(&target)?;
            let clone = Detached::clone_of(opened.dir())?;
            clone.set(Attributes::INERT)?;
            Ok(clone.attach(File::open(&target)?)?)
        };
        publish().map_err(published("publish", volume))?;
        let write = || -> io::Result<()> {
            let path = target.join(data::file(slot));
            // Overwrites in place: a copy may share these blocks.
            let mut file = File::options().write(true).create(true).truncate(false).open(path)?;
            file.write_all(content)?;
            file.sync_all()?;
            File::open(&target)?.sync_all()
        };
        let written = write().map_err(published("write into", volume));
        mount::unmount(&target).map_err(published("unpublish", volume))?;
        written
    }

    fn write_block(
        &self,
        volume: Number,
        opened: &Opened,
        slot: u16,
        content: &[u8],
        leave: bool,
    ) -> Result<(), Violation> {
        let image = opened.image(Access::ReadWrite).map_err(called("open the image", volume))?;
        let backing = Backing::of(&image).map_err(published("look at the image of", volume))?;
        let write = || -> Result<(), Box<dyn Error + Send + Sync>> {
            let path = match self.device_of(volume, backing)? {
                Some(path) => path,
                None => {
                    lock(&self.attached).insert(volume, backing);
                    self.attach(&image)?
                }
            };
            let device = loopdev::Device::open(&path)?;
            device.refresh_size()?;
            let pod = File::options().write(true).open(&path)?;
            pod.write_all_at(content, u64::from(slot) * SLOT.get())?;
            pod.sync_all()?;
            drop(pod);
            if !leave {
                detach(device, backing)?;
                lock(&self.attached).remove(&volume);
            }
            Ok(())
        };
        write().map_err(published("write to", volume))
    }

    fn attach(&self, image: &OwnedFd) -> Result<PathBuf, loopdev::AttachError> {
        let config = loopdev::Config { direct_io: true, ..loopdev::Config::default() };
        Ok(self.control.attach(image, &config)?.path())
    }

    fn device_of(&self, volume: Number, backing: Backing) -> Result<Option<PathBuf>, Violation> {
        let all = loopdev::list().map_err(published("look for loop devices of", volume))?;
        Ok(all.into_iter().find(|device| device.status.backing == backing).map(|device| device.number.path()))
    }

    /// Detaches the loop devices of all volumes, so that the file system can be unmounted.
    pub(crate) fn end(self) -> Result<(), Violation> {
        let attached = std::mem::take(&mut *lock(&self.attached));
        for (volume, backing) in attached {
            if let Some(path) = self.device_of(volume, backing)? {
                let device = loopdev::Device::open(path).map_err(published("open the loop device of", volume))?;
                detach(device, backing).map_err(published("take back", volume))?;
            }
        }
        Ok(())
    }
}

/// Detaches a loop device. When this returns, the device is gone and nothing keeps the image open. A list of the
/// devices, by another history, has each device open for a moment: the kernel detaches such a device when it is closed.
fn detach(device: loopdev::Device, backing: Backing) -> Result<(), Box<dyn Error + Send + Sync>> {
    let deferred = device.detach_from(backing)? == Detach::Deferred;
    let deadline = Instant::now() + CLOSED;
    while deferred && loopdev::list()?.iter().any(|device| device.status.backing == backing) {
        if Instant::now() >= deadline {
            return Err("another process has the device open".into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

pub(crate) fn id(volume: Number) -> VolumeId {
    volume.to_string().parse().expect("letters and digits are a name")
}

pub(crate) fn request(volume: Number, shape: Shape, size: Bytes) -> Request {
    let claim = Claim { uid: volume.0.to_string(), namespace: "default".into(), name: volume.to_string() };
    let mode = match shape {
        Shape::Filesystem => Mode::Filesystem { inodes: INODES },
        Shape::Thick => Mode::Block { allocation: Allocation::Thick },
        Shape::Thin => Mode::Block { allocation: Allocation::Thin },
    };
    Request { claim, owner: Owner::Provisioner, class: "local".into(), mode, size, source: None }
}

pub(crate) fn clone_request(volume: Number, shape: Shape, size: Bytes, source: Number) -> Request {
    Request { source: Some(id(source)), ..request(volume, shape, size) }
}

pub(crate) fn snapshot_request(volume: Number, source: Number, is_thin: bool) -> SnapshotRequest {
    let Request { claim, class, .. } = request(volume, Shape::Thin, Bytes::ZERO);
    let sharing = if is_thin { Sharing::Permanent } else { Sharing::Temporary };
    let (owner, source, max_pause) = (Owner::Provisioner, id(source), DEFAULT_PAUSE);
    SnapshotRequest { claim, owner, class, source, max_pause, sharing }
}

/// Request for a group of snapshots. Each member is a snapshot and its source.
fn group_request(members: [(Number, Number); 2]) -> GroupRequest {
    let [(first, _), _] = members;
    let members = members.map(|(volume, source)| (id(volume), snapshot_request(volume, source, false))).into();
    GroupRequest { id: id(first), members, max_pause: DEFAULT_PAUSE }
}

/// Repeats the call until the blocks of both snapshots are copied.
pub(crate) fn finish_group(store: &Store, members: [(Number, Number); 2]) -> Result<(), Violation> {
    let [(first, _), _] = members;
    let want = group_request(members);
    loop {
        let taken = store.take_group(&want).map_err(called("finish the group", first))?;
        if taken.snapshots.values().all(|record| record.state == State::Announced) {
            return Ok(());
        }
    }
}

/// Repeats the call until the clone shares no block.
pub(crate) fn finish_clone(store: &Store, volume: Number, want: &Request) -> Result<(), Violation> {
    loop {
        match store.provision(&id(volume), want) {
            Err(volume::Error::Copying { .. }) => {}
            done => return done.map(drop).map_err(called("finish the clone", volume)),
        }
    }
}

/// Repeats the call until the blocks of the snapshot are copied.
pub(crate) fn finish_snapshot(store: &Store, volume: Number, want: &SnapshotRequest) -> Result<(), Violation> {
    loop {
        let taken = store.take_snapshot(&id(volume), want).map_err(called("finish the snapshot", volume))?;
        if taken.snapshots.state == State::Announced {
            return Ok(());
        }
    }
}

/// Repeats the call until the volume has the content of the source, and the kept snapshot the former content of the
/// volume. Then ends the rollback.
pub(crate) fn roll_back(store: &Store, kept: Number, volume: Number, source: Number) -> Result<(), Violation> {
    let Request { claim, .. } = request(kept, Shape::Thin, Bytes::ZERO);
    let want = RollbackRequest { claim, volume: id(volume), source: id(source) };
    loop {
        match store.roll_back(&id(kept), &want) {
            Err(volume::Error::Copying { .. }) => {}
            done => break done.map(drop).map_err(called("roll back", volume))?,
        }
    }
    store.end_rollback(&id(kept)).map(drop).map_err(called("end the rollback", volume))
}

/// Repeats a removal while another operation of the round has the source of the copy, or XFS keeps blocks of the source
/// for copy-on-write.
fn unlocked<T>(mut remove: impl FnMut() -> Result<T, volume::Error>) -> Result<(), volume::Error> {
    loop {
        match remove() {
            Err(error) if error.is_locked() => {}
            Err(volume::Error::Act { source: ActError::Busy { .. }, .. }) => thread::sleep(Duration::from_millis(10)),
            removed => return removed.map(drop),
        }
    }
}

/// For `map_err`: this call of the store failed.
pub(crate) fn called<E: Into<Box<dyn Error + Send + Sync>>>(
    call: &'static str,
    volume: impl ToString,
) -> impl FnOnce(E) -> Violation {
    move |source| Violation::Call { call, volume: volume.to_string(), source: source.into() }
}

/// For `map_err`: a step of the kubelet or a pod failed.
fn published<E: Into<Box<dyn Error + Send + Sync>>>(what: &'static str, volume: Number) -> impl FnOnce(E) -> Violation {
    move |source| Violation::Publish { what, volume, source: source.into() }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // The map stays valid if a thread panics while it holds the lock.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
