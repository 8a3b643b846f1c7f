//! Fixtures of the kernel tests of this crate.
#![allow(dead_code, reason = "each of the test programs uses a part of it")]

pub mod pods;

use std::collections::BTreeSet;
use std::error::Error;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use dir::{Dir, Name, OFlag};
use fsquota::{Limits, ProjectId};
use ktest_support::XfsDisk;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::stat::Mode as Permissions;
use nix::sys::statvfs::fstatvfs;
use units::{Bytes, Inodes};
use volume::{
    Allocation, Claim, DEFAULT_PAUSE, FrozenPods, Mode, Owner, PodFreezer, Record, Request, Settings, Sharing,
    SnapshotRequest, Store, VolumeId, Volumes as _,
};

/// A node's volumes directory.
pub struct Node {
    pub store: Store,
    // The last field: the disk can only be unmounted when nothing on it is open.
    pub disk: XfsDisk,
}

impl Node {
    pub fn new() -> Self {
        Self::with(settings())
    }

    pub fn with(settings: Settings) -> Self {
        let disk = XfsDisk::with_project_quota();
        let store = Store::open(&Self::volumes(disk.path()), settings).expect("the disk can be used");
        Self { store, disk }
    }

    pub fn open(disk: &XfsDisk) -> Store {
        Store::open(&Self::volumes(disk.path()), settings()).expect("the disk can be used")
    }

    /// The volumes directory, below the root of the disk. The root gets no project, not even by hand.
    pub fn volumes(disk: &Path) -> Dir {
        fs::create_dir_all(disk.join("volumes")).expect("create a directory");
        Dir::open(&disk.join("volumes")).expect("it can be opened")
    }

    /// Opens the store again, as after the death of the process.
    pub fn restarted(self) -> Self {
        let Self { store, disk } = self;
        drop(store);
        Self { store: Self::open(&disk), disk }
    }

    pub fn path(&self, place: &str, id: &VolumeId) -> PathBuf {
        self.disk.path().join("volumes").join(place).join(id.as_str())
    }

    pub fn image(&self, id: &VolumeId) -> PathBuf {
        self.path("live", id).join("image")
    }

    /// Directories of the store that have an entry of the volume.
    pub fn traces(&self, id: &VolumeId) -> Vec<&'static str> {
        let places = ["pending", "records", "staging", "live", "trash", "anchors"];
        places.into_iter().filter(|place| self.path(place, id).exists()).collect()
    }

    pub fn made(&self, request: &Request) -> (VolumeId, Record) {
        let id = id(&request.claim.name);
        self.store.provision(&id, request).expect("it can be created");
        self.store.announce(&id).expect("it can be announced");
        let record = self.store.records().expect("records").readable.remove(&id).expect("a record");
        (id, record)
    }

    pub fn with_volume(request: &Request) -> (Self, VolumeId, Record) {
        let node = Self::new();
        let (id, record) = node.made(request);
        (node, id, record)
    }

    /// Deletes an announced volume.
    pub fn remove(&self, id: &VolumeId) {
        self.store.retire(id).expect("it can be retired");
        self.store.discard(id).expect("it can be removed");
    }

    /// Creates a file beside the volumes that leaves this much of the disk.
    pub fn hog(&self, left: Bytes) -> PathBuf {
        let path = self.disk.path().join("hog");
        let hog = File::create(&path).expect("create a file");
        let stat = fstatvfs(&hog).expect("the size of the disk");
        let size = stat.blocks_free() * stat.fragment_size() - left.get();
        fallocate(&hog, FallocateFlags::empty(), 0, size.cast_signed()).expect("the disk has it");
        path
    }

    pub fn limits(&self, project: ProjectId) -> Limits {
        fsquota::quota(File::open(self.disk.path()).unwrap(), project).unwrap().limits
    }

    /// All projects of the file system.
    pub fn projects(&self) -> BTreeSet<ProjectId> {
        let root = File::open(self.disk.path()).unwrap();
        fsquota::report(&root).unwrap().map(|quota| quota.unwrap().id).collect()
    }
}

/// Opens a file of a filesystem volume. Creates a missing file first.
pub fn file(store: &Store, volume: &VolumeId, name: &str) -> File {
    let (name, permissions) = (Name::try_from(name).unwrap(), Permissions::S_IRUSR | Permissions::S_IWUSR);
    let opened = store.open_volume(volume).unwrap();
    File::from(opened.dir().open_file(&name, OFlag::O_RDWR | OFlag::O_CREAT, permissions).unwrap())
}

/// Runs all passes of a clone, and announces its PV.
pub fn copied(store: &Store, request: &Request) -> Record {
    let id = id(&request.claim.name);
    let record = loop {
        match store.provision(&id, request) {
            Err(volume::Error::Copying { .. }) => {}
            done => break done.unwrap().into_inner(),
        }
    };
    store.announce(&id).unwrap();
    record
}

/// Freezer for volumes that no pod has.
#[derive(Debug)]
pub struct NoPods;

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

/// Lets the store clone files of volumes that no pod has.
pub fn without_pods(store: &Store) {
    static NO_PODS: LazyLock<Arc<NoPods>> = LazyLock::new(|| Arc::new(NoPods));
    let pods: Arc<dyn PodFreezer> = NO_PODS.clone();
    store.freeze_by(Arc::downgrade(&pods));
}

pub fn settings() -> Settings {
    Settings { reserve: Bytes::new(64 << 20), ..Settings::default() }
}

/// Each pass copies one piece, or removes few names: some hundred files need more than one pass.
pub fn short_passes() -> Settings {
    Settings { pass: Duration::ZERO, removed_at_once: 128, ..settings() }
}

/// The only byte value of a content. Compares slices: a loop over a MiB takes a second of emulation, because tests are
/// compiled without optimization.
pub fn only_byte(content: &[u8]) -> Option<u8> {
    let (first, rest) = content.split_first()?;
    (*rest == content[..rest.len()]).then_some(*first)
}

/// The only byte value of the first `size` bytes of a file.
pub fn byte_of(file: &File, size: usize) -> Option<u8> {
    let mut content = vec![0; size];
    file.read_exact_at(&mut content, 0).unwrap();
    only_byte(&content)
}

pub fn snapshot_request(claim: Claim, source: VolumeId) -> SnapshotRequest {
    let (owner, class, max_pause) = (Owner::Provisioner, "local".into(), DEFAULT_PAUSE);
    SnapshotRequest { claim, owner, class, source, max_pause, sharing: Sharing::Temporary }
}

pub fn id(text: &str) -> VolumeId {
    text.parse().expect("it is an identifier")
}

/// `CAP_NET_BIND_SERVICE`, permitted and effective: `struct vfs_cap_data`, version 2, include/uapi/linux/capability.h.
pub const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

pub const INODES: Inodes = Inodes::new(128);

/// Request for 16 MiB of files, for a claim with the volume's name.
pub fn files(name: &str) -> Request {
    sized(name, Mode::Filesystem { inodes: INODES }, SIZE)
}

/// Request for a disk of the same size.
pub fn disk(name: &str, allocation: Allocation) -> Request {
    sized(name, Mode::Block { allocation }, SIZE)
}

pub fn sized(name: &str, mode: Mode, size: Bytes) -> Request {
    let claim = Claim { uid: format!("uid of {name}"), namespace: "default".into(), name: name.into() };
    Request { claim, owner: Owner::Provisioner, class: "local".into(), mode, size, source: None }
}

pub const SIZE: Bytes = Bytes::new(16 << 20);
