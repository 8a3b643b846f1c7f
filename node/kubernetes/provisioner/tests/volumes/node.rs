//! A store on a disk of its own.

use std::fs;

use dir::Dir;
use ktest_support::XfsDisk;
use volume::{Settings, Store};

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
        Self { store: Store::open(&volumes, settings).unwrap(), disk }
    }
}
