//! A volume that is open.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use dir::{Dir, OFlag};
use fsquota::{FsError, ProjectId, Quota, Quotas};
use units::Bytes;

use crate::error::OpenError;
use crate::lease::Lease;
use crate::record::Record;
use crate::{IoLimits, Mode, VolumeId, image_file};

/// An announced volume that is open for use.
#[derive(Debug)]
pub struct Opened {
    pub(crate) id: VolumeId,
    pub(crate) dir: Dir,
    pub(crate) record: Record,
    pub(crate) quotas: Arc<Quotas>,
    /// Prevents the exchange of the directory by a rollback.
    pub(crate) _lease: Lease,
}

/// Record of an announced volume, without access to the disk. It also exists for a volume that is being deleted, as
/// long as that has a record.
#[derive(Clone, Debug)]
pub struct Announced {
    pub(crate) record: Record,
    pub(crate) quotas: Arc<Quotas>,
}

impl Announced {
    pub const fn mode(&self) -> Mode {
        self.record.mode
    }

    pub const fn io(&self) -> IoLimits {
        self.record.io
    }

    /// Whether an open file or directory of the data disk belongs to the volume, by its project. One system call.
    pub fn holds(&self, inode: impl AsFd) -> Result<bool, FsError> {
        Ok(self.quotas.project(inode)? == Some(self.record.project))
    }

    /// Limits and usage of the volume. One system call. The limits that a filesystem volume shows do not contain the
    /// space to overwrite blocks that clones share with it.
    pub fn quota(&self) -> Result<Quota, FsError> {
        self.quotas.quota(self.record.project)
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

    /// Directory of the volume. A pod mounts that of a filesystem volume; that of a block volume contains the image.
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
        image_file::open(&self.dir, flags).map_err(|source| OpenError::Image { id: self.id.clone(), source })
    }

    /// Limits and usage of the volume. One system call.
    pub fn quota(&self) -> Result<Quota, FsError> {
        self.quotas.quota(self.record.project)
    }
}
