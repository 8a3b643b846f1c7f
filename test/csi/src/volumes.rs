//! The volumes of behaviors.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dir::{Dir, Mode, Name};
use loopdev::{Attached, Backing};
use mount::Identity;
use units::{Bytes, Inodes};
use volume::{Claim, Owner, Request, Store, VolumeId, Volumes as _};

/// Size of shared volumes: enough for an XFS image.
pub const SIZE: Bytes = Bytes::new(16 << 20);
const INODES: Inodes = Inodes::new(1000);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Filesystem,
    Block,
}

impl Kind {
    pub const ALL: [Self; 2] = [Self::Filesystem, Self::Block];

    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Filesystem => Self::Block,
            Self::Block => Self::Filesystem,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub id: VolumeId,
    pub kind: Kind,
    pub directory: PathBuf,
}

impl Volume {
    pub fn unknown(id: &str, kind: Kind) -> Self {
        Self { id: id.parse().expect("an identifier"), kind, directory: PathBuf::from("/absent") }
    }

    pub fn image(&self) -> PathBuf {
        self.directory.join("image")
    }

    pub fn identity(&self) -> Identity {
        mount::identity(File::open(&self.directory).expect("the volume's directory")).expect("its identity")
    }

    pub fn devices(&self) -> Vec<Attached> {
        let image = Backing::of(File::open(self.image()).expect("the volume's image")).expect("a file");
        let all = loopdev::list().expect("loop devices");
        all.into_iter().filter(|device| device.status.backing == image).collect()
    }
}

/// The store, and volumes that runs share, because the creation of a volume forces XFS's log several times.
#[derive(Debug)]
pub struct Volumes {
    store: Arc<Store>,
    live: PathBuf,
    free: Mutex<Vec<Volume>>,
    shared: BTreeSet<VolumeId>,
}

impl Volumes {
    /// `shared` is the number of shared volumes of each kind.
    pub(crate) fn make(data: &Dir, path: PathBuf, shared: usize) -> Self {
        let private = Mode::from_bits_truncate(0o700);
        let directory = data.create_dir(&Name::try_from("volumes").expect("a name"), private).expect("a directory");
        let store = Arc::new(Store::open(&directory, volume::Settings::default()).expect("a store"));
        let live = path.join("volumes").join("live");
        let mut volumes = Self { store, live, free: Mutex::default(), shared: BTreeSet::new() };
        let all: Vec<_> = Kind::ALL
            .into_iter()
            .flat_map(|kind| {
                (0..shared).map(move |number| (kind, format!("pvc-shared-{kind:?}-{number}").to_lowercase()))
            })
            .map(|(kind, id)| volumes.stage(&id, kind, SIZE))
            .collect();
        for volume in &all {
            volumes.store.announce(&volume.id).expect("announce");
        }
        volumes.shared = all.iter().map(|volume| volume.id.clone()).collect();
        volumes.free = Mutex::new(all);
        volumes
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    pub(crate) fn stage(&self, id: &str, kind: Kind, size: Bytes) -> Volume {
        let id: VolumeId = id.parse().expect("an identifier");
        let claim = Claim { uid: id.to_string(), namespace: "default".to_owned(), name: "claim".to_owned() };
        let mode = match kind {
            Kind::Filesystem => volume::Mode::Filesystem { inodes: INODES },
            Kind::Block => volume::Mode::Block { allocation: volume::Allocation::Thin },
        };
        self.store
            .provision(
                &id,
                &Request { claim, owner: Owner::Provisioner, class: "local".to_owned(), mode, size, source: None },
            )
            .expect("provision");
        let directory = self.live.join(id.as_str());
        Volume { id, kind, directory }
    }

    pub(crate) fn remove(&self, id: &VolumeId) {
        self.store.retire(id).expect("retire");
        self.store.discard(id).expect("discard");
    }

    pub(crate) fn unshared(&self) -> Vec<VolumeId> {
        let records = self.store.records().expect("records").readable;
        records.into_keys().filter(|id| !self.shared.contains(id)).collect()
    }

    pub(crate) fn take(&self, kind: Kind) -> Volume {
        let mut free = self.free();
        let found = free.iter().position(|volume| volume.kind == kind).expect("a free volume");
        free.swap_remove(found)
    }

    pub(crate) fn give_back(&self, volume: Volume) {
        self.free().push(volume);
    }

    fn free(&self) -> MutexGuard<'_, Vec<Volume>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
