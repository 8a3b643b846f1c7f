//! Fixtures of the kernel tests.

use std::fs::{self, File};
use std::path::PathBuf;

use fsquota::{Allocator, Limits, ProjectId};
use ktest_support::XfsDisk;
use units::{Bytes, Inodes};

/// An XFS with project quotas and an allocator.
pub struct Volumes {
    pub root: File,
    pub ids: Allocator,
    // Dropped last: unmounting requires that no file is open.
    disk: XfsDisk,
}

impl Volumes {
    pub fn new() -> Self {
        let disk = XfsDisk::with_project_quota();
        let root = File::open(disk.path()).unwrap();
        let ids = Allocator::open(&root).unwrap();
        Self { root, ids, disk }
    }

    /// Creates the volume `a` too.
    pub fn with_volume(limits: Limits) -> (Self, File, ProjectId) {
        let volumes = Self::new();
        let (dir, id) = volumes.volume("a", limits);
        (volumes, dir, id)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.disk.path().join(name)
    }

    pub fn dir(&self, name: &str) -> File {
        fs::create_dir(self.path(name)).unwrap();
        File::open(self.path(name)).unwrap()
    }

    pub fn volume(&self, name: &str, limits: Limits) -> (File, ProjectId) {
        let dir = self.dir(name);
        let id = fsquota::set(&dir, limits, &self.ids).unwrap().into_inner();
        (dir, id)
    }

    pub fn reported(&self) -> Vec<ProjectId> {
        fsquota::report(&self.root).unwrap().map(|quota| quota.unwrap().id).collect()
    }
}

pub const SIZE: Bytes = Bytes::new(16 << 20);

pub fn size(bytes: Bytes) -> Limits {
    Limits { bytes: Some(bytes), inodes: None }
}

pub fn both(bytes: Bytes, inodes: u64) -> Limits {
    Limits { bytes: Some(bytes), inodes: Some(Inodes::new(inodes)) }
}
