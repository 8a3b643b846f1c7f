//! From a chosen disk to a mounted tree.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use mount::{Attributes, Filesystem};
use nix::sys::stat::{major, minor};
use tracing::info;

use crate::content::Content;
use crate::disk::{DataDisk, DiskState, examine};
use crate::ephemeral::INERT;
use crate::error::MountError;
use crate::mounted::{Mounted, open};
use crate::program::Programs;
use crate::projects::Projects;
use crate::sys;
use crate::tree::{Data, Tree};

impl DataDisk {
    /// Formats the disk if it is empty, mounts it, grows the file system if the disk is larger, makes
    /// the directories, and gives the parts of the disk their limits ([`Budget`](crate::Budget)).
    /// Repeating it changes nothing.
    ///
    /// A part that holds data and has no limit, on a disk of a release that set none, stays as it is;
    /// a warning names it. A part whose project ID can be guessed, on a disk of a release that counted them from 1,
    /// is moved to another one.
    ///
    /// # Errors
    /// [`MountError`], by step. A disk that was half formatted is formatted again by the next call
    /// after [`DataDisk::find`].
    pub fn mount(self, tree: Data) -> Result<Mounted<Data>, MountError> {
        self.mount_with(&Programs::default(), tree)
    }

    /// The same with programs of the caller's choice.
    pub fn mount_with(self, programs: &Programs, tree: Data) -> Result<Mounted<Data>, MountError> {
        let path = tree.path().to_owned();
        if !self.is_mounted_on(&path)? {
            self.look_again(programs)?;
            self.format(programs)?;
            let data = "prjquota";
            mount::filesystem(Filesystem { kind: "xfs", source: &self.device, target: &path, flags: INERT, data })?;
            info!(device = %self.device.display(), path = %path.display(), "data disk mounted");
        }
        let root = open(&path)?;
        fsquota::require(&root).map_err(|source| MountError::Quota { path: path.clone(), source })?;
        match self.state {
            DiskState::Formatted => self.grow(&root, &path)?,
            DiskState::Empty | DiskState::Unfinished => self.finish(&root, &path)?,
        }
        let mut projects = Projects::open(&root, &tree)?;
        Mounted::complete(tree, |dir, entry| projects.limit(dir, entry))
    }

    /// Whether it is this disk that is mounted there, as this node mounts it.
    fn is_mounted_on(&self, path: &Path) -> Result<bool, MountError> {
        let dir = open(path)?;
        let place = mount::at(&dir).map_err(|source| MountError::Look { path: path.to_owned(), source })?;
        let number = fs::metadata(&self.device).map(|node| node.rdev()).ok();
        let this = number.map(|number| (major(number), minor(number)))
            == Some((u64::from(place.identity.device.0), u64::from(place.identity.device.1)));
        match place.mounted {
            None => Ok(false),
            Some(found) if this && found == Attributes::INERT => Ok(true),
            Some(_) if this => Err(MountError::Flags { path: path.to_owned() }),
            Some(_) => Err(MountError::Occupied { path: path.to_owned() }),
        }
    }

    /// The choice may be old: the disk can be another by now, or this value a copy of one that was formatted
    /// and filled meanwhile.
    fn look_again(&self, programs: &Programs) -> Result<(), MountError> {
        let found = examine(&self.device, self.size, programs)
            .map_err(|source| MountError::Again { device: self.device.clone(), source })?;
        match (self.state, found) {
            (DiskState::Empty, Content::Empty)
            | (DiskState::Unfinished, Content::Unfinished)
            | (DiskState::Formatted, Content::Ours(_)) => Ok(()),
            _ => Err(MountError::Changed { device: self.device.clone() }),
        }
    }

    fn grow(&self, root: &dir::Dir, path: &Path) -> Result<(), MountError> {
        let failed = |source| MountError::Grow { path: path.to_owned(), source };
        let geometry = sys::geometry(root.as_fd()).map_err(failed)?;
        let Some(blocks) = geometry.blocks_to_grow_to(self.size) else { return Ok(()) };
        sys::grow(root.as_fd(), blocks, geometry.inode_percent).map_err(failed)?;
        info!(device = %self.device.display(), size = %self.size, "data disk grown");
        Ok(())
    }
}
