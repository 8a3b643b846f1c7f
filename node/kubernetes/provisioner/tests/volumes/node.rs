//! A store on a disk of its own.

use std::error::Error;
use std::fs;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use dir::Dir;
use ktest_support::XfsDisk;
use volume::{FrozenPods, PodFreezer, Settings, Store, VolumeId};

pub struct Node {
    pub store: Store,
    // Last, because it is unmounted when it is dropped.
    pub disk: XfsDisk,
}

impl Node {
    pub fn new(settings: Settings) -> Self {
        let disk = XfsDisk::with_project_quota();
        fs::create_dir(disk.path().join("volumes")).unwrap();
        let volumes = Dir::open(&disk.path().join("volumes")).unwrap();
        let store = Store::open(&volumes, settings).unwrap();
        let pods: Arc<dyn PodFreezer> = NO_PODS.clone();
        store.freeze_by(Arc::downgrade(&pods));
        Self { store, disk }
    }
}

static NO_PODS: LazyLock<Arc<NoPods>> = LazyLock::new(|| Arc::new(NoPods));

/// Volumes that no pod has.
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
