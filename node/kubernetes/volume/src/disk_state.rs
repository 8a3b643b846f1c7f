//! The observed state of a volume.

use fsquota::{Limits, ProjectId, Quota};
use units::{Bytes, Inodes};

use crate::record::Record;

/// Limits of a volume whose removal has begun: one block, one inode. A process that still has a directory of the volume
/// open can create nothing, root included. For a restoration, the limits also mark that owner and mode may have been
/// replaced: XFS logs the limits before these changes.
pub(crate) const CONFINED: Limits = Limits { bytes: Some(Bytes::new(4096)), inodes: Some(Inodes::new(1)) };

/// Directory of the store that contains volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Where {
    Staging,
    /// Volumes that may be used.
    Live,
    Trash,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Absent,
    Present {
        project: Option<ProjectId>,
        /// Size of the image in the directory.
        image: Option<Bytes>,
    },
}

impl Place {
    pub(crate) const fn is_present(self) -> bool {
        matches!(self, Self::Present { .. })
    }

    /// Whether it is the directory of a volume with this record.
    pub(crate) fn is_of(self, record: &Record) -> bool {
        matches!(self, Self::Present { project: Some(project), .. } if project == record.project)
    }

    /// Whether it is that directory, or an earlier run ended before it set the project.
    pub(crate) fn begins(self, record: &Record) -> bool {
        self.is_of(record) || matches!(self, Self::Present { project: None, .. })
    }

    pub(crate) const fn image(self) -> Option<Bytes> {
        match self {
            Self::Present { image, .. } => image,
            Self::Absent => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskState {
    pub record: Option<Record>,
    pub staging: Place,
    /// Directory of a volume that may be used.
    pub live: Place,
    /// Directory of a volume that is being removed.
    pub trash: Place,
}

impl DiskState {
    pub const NOTHING: Self = Self { record: None, staging: Place::Absent, live: Place::Absent, trash: Place::Absent };

    pub(crate) const fn is_anywhere(&self) -> bool {
        self.staging.is_present() || self.live.is_present() || self.trash.is_present()
    }
}

/// Whether a project has the limits [`CONFINED`]. The kernel rounds the bytes up to a block, so only the inodes are
/// compared; no volume has one inode.
pub(crate) fn is_confined(quota: Quota) -> bool {
    quota.limits.inodes == CONFINED.inodes
}
