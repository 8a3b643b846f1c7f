//! File systems that are unmounted on drop.

use std::fs;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::busy;
use crate::disk::Disk;
use crate::format::format;

/// A new XFS on a scratch disk, mounted on a new directory. Declare it before values that have files open on it, so
/// that it can be unmounted.
#[derive(Debug)]
pub struct XfsDisk {
    // Dropped before `disk`, so that the file system is unmounted before another test takes the disk.
    mount: Mount,
    disk: Disk,
}

impl XfsDisk {
    /// Formats and mounts a disk with accounting and enforcement of project quotas (`prjquota`). Waits for a free disk.
    pub fn with_project_quota() -> Self {
        Self::new("prjquota")
    }

    pub fn without_quota() -> Self {
        Self::new("noquota")
    }

    fn new(options: &str) -> Self {
        let disk = Disk::take();
        format(disk.path());
        let mount = Mount::new("xfs", disk.path(), options);
        Self { mount, disk }
    }

    pub fn path(&self) -> &Path {
        self.mount.path()
    }

    pub fn device(&self) -> &Path {
        self.disk.path()
    }
}

/// A new tmpfs, mounted on a new directory: a file system without project quotas.
#[derive(Debug)]
pub struct Tmpfs {
    mount: Mount,
}

impl Tmpfs {
    pub fn mount() -> Self {
        Self { mount: Mount::new("tmpfs", Path::new("tmpfs"), "mode=0755") }
    }

    pub fn path(&self) -> &Path {
        self.mount.path()
    }
}

/// An XFS on the device of a [`Recorder`](crate::replay::Recorder) or [`Restored`](crate::replay::Restored) disk,
/// mounted on a new directory.
#[derive(Debug)]
pub struct Mounted<'a> {
    mount: Mount,
    device: PhantomData<&'a Path>,
}

impl<'a> Mounted<'a> {
    pub(crate) fn new(device: &'a Path, options: &str) -> Self {
        Self { mount: Mount::new("xfs", device, options), device: PhantomData }
    }

    pub(crate) fn try_new(device: &'a Path, options: &str) -> Result<Self, Errno> {
        Ok(Self { mount: Mount::try_new("xfs", device, options)?, device: PhantomData })
    }

    pub fn path(&self) -> &Path {
        self.mount.path()
    }
}

/// A file system of any kind, mounted on a new directory.
#[derive(Debug)]
pub struct Mount {
    target: PathBuf,
}

impl Mount {
    pub fn new(kind: &str, source: &Path, options: &str) -> Self {
        Self::try_new(kind, source, options).unwrap_or_else(|error| {
            panic!("cannot mount {} as {kind} ({options}), is the module loaded? {error}", source.display())
        })
    }

    pub fn path(&self) -> &Path {
        &self.target
    }

    fn try_new(kind: &str, source: &Path, options: &str) -> Result<Self, Errno> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let target = std::env::temp_dir().join(format!("{kind}-{}-{number}", std::process::id()));
        fs::create_dir(&target).unwrap_or_else(|error| panic!("cannot create {}: {error}", target.display()));
        match mount(Some(source), &target, Some(kind), MsFlags::empty(), Some(options)) {
            Ok(()) => Ok(Self { target }),
            Err(error) => {
                let _ = fs::remove_dir(&target);
                Err(error)
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = busy::unmount(&self.target) {
            // A lazy unmount keeps the mount out of the way of later tests. Tests on the same disk fail in mkfs.
            let _ = umount2(&self.target, MntFlags::MNT_DETACH);
            if !thread::panicking() {
                panic!("cannot unmount {}, is something still open on it? {error}", self.target.display());
            }
        }
        let _ = fs::remove_dir(&self.target);
    }
}
