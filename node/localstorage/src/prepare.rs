//! From a chosen disk to a mounted tree.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use mount::Filesystem;
use nix::sys::stat::{major, minor};
use tracing::info;

use crate::content::{Geometry, LABEL};
use crate::disk::{DataDisk, State};
use crate::ephemeral::INERT;
use crate::error::MountError;
use crate::mounted::{Mounted, open};
use crate::sys;
use crate::tree::{Data, Tree};

/// The program that makes the file system.
const MKFS: &str = "/usr/bin/mkfs.xfs";

impl DataDisk {
    /// Formats the disk if it is empty, mounts it, grows the file system if the disk is larger, and
    /// makes the directories. Repeating it changes nothing.
    ///
    /// # Errors
    /// [`MountError`], by step. A disk that was half formatted is formatted again by the next call
    /// after [`DataDisk::find`].
    pub fn mount(self, tree: Data) -> Result<Mounted<Data>, MountError> {
        self.mount_with(Path::new(MKFS), tree)
    }

    /// The same with `mkfs.xfs` at another place, for tests.
    ///
    /// # Errors
    /// As [`DataDisk::mount`].
    pub fn mount_with(self, mkfs: &Path, tree: Data) -> Result<Mounted<Data>, MountError> {
        let path = tree.path().to_owned();
        if !self.is_mounted_on(&path)? {
            match self.state {
                State::Formatted(_) => {}
                State::Empty => self.format(mkfs, &[])?,
                // Our own rubbish: mkfs.xfs would take it for a file system.
                State::Unfinished => self.format(mkfs, &["-f"])?,
            }
            let data = "prjquota";
            mount::filesystem(Filesystem { kind: "xfs", source: &self.device, target: &path, flags: INERT, data })?;
            info!(device = %self.device.display(), path = %path.display(), "data disk mounted");
        }
        let root = open(&path)?;
        fsquota::require(&root).map_err(|source| MountError::Quota { path: path.clone(), source })?;
        if let State::Formatted(geometry) = self.state {
            self.grow(&root, geometry, &path)?;
        }
        Mounted::complete(tree)
    }

    /// Whether it is this disk that is mounted there.
    fn is_mounted_on(&self, path: &Path) -> Result<bool, MountError> {
        let dir = open(path)?;
        let place = mount::at(&dir).map_err(|source| MountError::Look { path: path.to_owned(), source })?;
        let number = fs::metadata(&self.device).map(|node| node.rdev()).ok();
        let this = number.map(|number| (major(number), minor(number)))
            == Some((u64::from(place.identity.device.0), u64::from(place.identity.device.1)));
        match place.mounted {
            None => Ok(false),
            Some(_) if this => Ok(true),
            Some(_) => Err(MountError::Occupied { path: path.to_owned() }),
        }
    }

    fn format(&self, mkfs: &Path, more: &[&str]) -> Result<(), MountError> {
        // -K: the disk is empty, there is nothing to discard. Without -f the program looks for foreign
        // content once more, and knows more kinds than we do.
        let made = Command::new(mkfs)
            .args(["-q", "-K", "-L", LABEL])
            .args(more)
            .arg(&self.device)
            .stdin(Stdio::null())
            .output()
            .map_err(|source| MountError::Program { program: mkfs.to_owned(), device: self.device.clone(), source })?;
        if made.status.success() {
            info!(device = %self.device.display(), size = %self.size, "data disk formatted");
            return Ok(());
        }
        let said = String::from_utf8_lossy(&made.stderr).trim().to_owned();
        Err(MountError::Format { program: mkfs.to_owned(), device: self.device.clone(), status: made.status, said })
    }

    fn grow(&self, root: &dir::Dir, geometry: Geometry, path: &Path) -> Result<(), MountError> {
        let Some(blocks) = geometry.blocks_to_grow_to(self.size) else { return Ok(()) };
        sys::grow(root.as_fd(), blocks, geometry.inode_percent)
            .map_err(|source| MountError::Grow { path: path.to_owned(), source })?;
        info!(device = %self.device.display(), size = %self.size, "data disk grown");
        Ok(())
    }
}
