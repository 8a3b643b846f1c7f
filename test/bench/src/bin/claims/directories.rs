//! [`Directories`]: the file system in which the provisioners of a burst create the directories of volumes.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use loopdev::{Config, Control};
use mount::Filesystem;
use nix::mount::{MntFlags, MsFlags, mount as change_mount, umount2};
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;
use units::Bytes;

use crate::Failure;

/// Size of the file system. Most of its file is a hole.
const SIZE: Bytes = Bytes::GIB;

/// An XFS with project quotas in a file. If the kernel cannot mount one, a directory of the machine.
pub(crate) struct Directories {
    root: TempDir,
    /// Reason why there are no project quotas.
    pub(crate) without_quota: Option<String>,
}

/// Moves this thread, and all threads that start later, to a mount namespace. Its mounts end with its last process, also
/// if that is killed.
pub(crate) fn separate_mounts() -> Result<(), Failure> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    Ok(change_mount(None::<&str>, "/", None::<&str>, private, None::<&str>)?)
}

impl Directories {
    /// `programs` is a directory with `bin/mkfs.xfs` and its libraries.
    pub(crate) fn new(programs: &Path) -> Result<Self, Failure> {
        let root = TempDir::with_prefix("bench-")?;
        let path = root.path().join("xfs");
        let image = File::options().read(true).write(true).create_new(true).open(&path)?;
        image.set_len(SIZE.get())?;
        format(&path, programs)?;
        // The loop device holds the file.
        fs::remove_file(&path)?;
        let without_quota = mount_with_quota(&image, root.path()).err().map(|error| causes::line(&*error));
        Ok(Self { root, without_quota })
    }

    pub(crate) fn path(&self) -> &Path {
        self.root.path()
    }
}

impl Drop for Directories {
    fn drop(&mut self) {
        // umount2(2) fails if the XFS was not mounted.
        let _ = umount2(self.root.path(), MntFlags::MNT_DETACH);
    }
}

/// The libraries of this machine may be others than those of `mkfs.xfs`.
fn format(image: &Path, programs: &Path) -> Result<(), Failure> {
    let libraries = programs.join("lib");
    let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
    command.arg("--library-path").arg(&libraries).arg(programs.join("bin/mkfs.xfs"));
    let status = command.arg("-q").arg(image).status()?;
    if status.success() { Ok(()) } else { Err(format!("mkfs.xfs ended with {status}").into()) }
}

fn mount_with_quota(image: &File, target: &Path) -> Result<(), Failure> {
    // The mount has the device open, so that the kernel detaches it afterwards.
    let device = Control::open()?.attach(image, &Config { autoclear: true, ..Config::default() })?;
    let (node, flags) = (device.path(), MsFlags::empty());
    mount::filesystem(Filesystem { kind: "xfs", source: &node, target, flags, data: "prjquota" })?;
    Ok(fsquota::require(File::open(target)?)?)
}
