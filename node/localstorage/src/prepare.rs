//! Mounts a selected disk, and prepares its directory tree.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use mount::{Attributes, Filesystem};
use nix::sys::stat::{major, minor};
use tracing::{error, info};

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
    /// Formats the disk if it is empty, mounts it, grows the file system if the disk is larger, creates the
    /// directories, and sets the limits of the parts of the disk ([`Budget`](crate::Budget)). A second call changes
    /// nothing.
    ///
    /// A part with data and without a limit, on a disk of a release without limits, stays as it is; a warning names it.
    /// A part with a predictable project ID, on a disk of a release that counted the IDs from 1, gets another project
    /// ID.
    ///
    /// # Errors
    /// [`MountError`] names the step. After an interrupted format, the next call after [`DataDisk::find`] formats the
    /// disk again.
    pub fn mount(self, tree: Data) -> Result<Mounted<Data>, MountError> {
        self.mount_with(&Programs::default(), tree)
    }

    /// Like [`DataDisk::mount`], with other programs.
    pub fn mount_with(self, programs: &Programs, tree: Data) -> Result<Mounted<Data>, MountError> {
        let path = tree.path().to_owned();
        if !self.is_mounted_on(&path)? {
            self.check_again(programs)?;
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

    /// Whether this disk is mounted at `path` with the node's flags.
    fn is_mounted_on(&self, path: &Path) -> Result<bool, MountError> {
        let dir = open(path)?;
        let place = mount::at(&dir).map_err(|source| MountError::Look { path: path.to_owned(), source })?;
        let number = fs::metadata(&self.device).map(|node| node.rdev()).ok();
        let is_this_disk = number.map(|number| (major(number), minor(number)))
            == Some((u64::from(place.identity.device.0), u64::from(place.identity.device.1)));
        match place.mounted {
            None => Ok(false),
            Some(found) if is_this_disk && found == Attributes::INERT => Ok(true),
            Some(_) if is_this_disk => Err(MountError::Flags { path: path.to_owned() }),
            Some(_) => Err(MountError::Occupied { path: path.to_owned() }),
        }
    }

    /// Checks the content again, because the selection may be outdated: the disk may have been replaced, or formatted
    /// and filled through a copy of this value.
    fn check_again(&self, programs: &Programs) -> Result<(), MountError> {
        let found = examine(&self.device, self.size, programs)
            .map_err(|source| MountError::Again { device: self.device.clone(), source })?;
        match (self.state, found) {
            (DiskState::Empty, Content::Empty)
            | (DiskState::Unfinished, Content::Unfinished)
            | (DiskState::Formatted, Content::Data(_)) => Ok(()),
            _ => Err(MountError::Changed { device: self.device.clone() }),
        }
    }

    /// Grows the file system if the disk is larger. If the kernel rejects that, for example because it cannot read the
    /// last block of the disk, the file system keeps its size, with which the node starts.
    fn grow(&self, root: &dir::Dir, path: &Path) -> Result<(), MountError> {
        let geometry = sys::geometry(root.as_fd());
        let geometry = geometry.map_err(|source| MountError::Size { path: path.to_owned(), source })?;
        let Some(blocks) = geometry.blocks_to_grow_to(self.size) else { return Ok(()) };
        let (device, size) = (self.device.display(), self.size);
        match sys::grow(root.as_fd(), blocks, geometry.inode_percent) {
            Ok(()) => info!(%device, %size, "data disk grown"),
            Err(errno) => error!(%device, %size, %errno, "cannot grow the file system of the data disk"),
        }
        Ok(())
    }
}
