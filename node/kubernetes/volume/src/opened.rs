//! A volume that is open.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use dir::{Dir, OFlag};
use fsquota::{FsError, Limits, ProjectId, Quota, Quotas};
use units::Bytes;

use crate::error::OpenError;
use crate::lease::Lease;
use crate::record::Record;
use crate::{IoLimits, Mode, VolumeId, image};

/// An announced volume that is open for use.
#[derive(Debug)]
pub struct Opened {
    pub(crate) id: VolumeId,
    pub(crate) dir: Dir,
    pub(crate) record: Record,
    pub(crate) quotas: Arc<Quotas>,
    /// Keeps the directory that of the volume.
    pub(crate) _lease: Lease,
}

/// The record of an announced volume, without a look at the disk: also of one that is being deleted, as long as
/// it has a record.
#[derive(Clone, Debug)]
pub struct Announced {
    pub(crate) record: Record,
    /// By which its limit is raised now.
    pub(crate) headroom: Bytes,
    pub(crate) quotas: Arc<Quotas>,
}

impl Announced {
    pub const fn mode(&self) -> Mode {
        self.record.mode
    }

    pub const fn io(&self) -> IoLimits {
        self.record.io
    }

    /// Whether an open file or directory of the data disk is in it, by its project: one system call.
    pub fn holds(&self, inode: impl AsFd) -> Result<bool, FsError> {
        Ok(self.quotas.project(inode)? == Some(self.record.project))
    }

    /// Its limits and what it uses: one system call. The limits do not contain the space to overwrite what clones share
    /// with it.
    pub fn quota(&self) -> Result<Quota, FsError> {
        let found = self.quotas.quota(self.record.project)?;
        let bytes = found.limits.bytes.map(|bytes| bytes.saturating_sub(self.headroom));
        Ok(Quota { limits: Limits { bytes, ..found.limits }, ..found })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

impl Opened {
    pub const fn mode(&self) -> Mode {
        self.record.mode
    }

    pub const fn size(&self) -> Bytes {
        self.record.size
    }

    pub const fn project(&self) -> ProjectId {
        self.record.project
    }

    /// Its directory: what is mounted of a filesystem volume, what holds the image of a block volume.
    pub const fn dir(&self) -> &Dir {
        &self.dir
    }

    pub fn into_dir(self) -> Dir {
        self.dir
    }

    /// The image of a block volume.
    ///
    /// # Errors
    /// [`OpenError::Image`]: `ENOENT` for a filesystem volume.
    pub fn image(&self, access: Access) -> Result<OwnedFd, OpenError> {
        let flags = match access {
            Access::ReadOnly => OFlag::O_RDONLY,
            Access::ReadWrite => OFlag::O_RDWR,
        };
        self.dir
            .open_file(&image::name(), flags, dir::Mode::empty())
            .map_err(|source| OpenError::Image { id: self.id.clone(), source })
    }

    /// Its limits and what it uses: one system call.
    pub fn quota(&self) -> Result<Quota, FsError> {
        self.quotas.quota(self.record.project)
    }
}
