//! Present state of a live volume.

use loopdev::Backing;
use units::Bytes;

use crate::{Access, LookError, OpenError, Store, VolumeId, published};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveVolume {
    pub size: Bytes,
    /// Whether a loop device is attached to the image, and its detach does not only wait for the last close. An
    /// attached device keeps the size that the image had at the attach, until it is refreshed. Always false for a
    /// filesystem volume.
    pub attached: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum LiveVolumeError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("cannot find the loop devices of volume {id}")]
    Look { id: VolumeId, source: LookError },
}

impl LiveVolumeError {
    /// Whether the disk has no such volume, or only its record.
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Open(OpenError::Unknown { .. }) => true,
            Self::Open(OpenError::Dir { source, .. } | OpenError::Image { source, .. }) => source.is_not_found(),
            Self::Open(OpenError::NotAnnounced { .. } | OpenError::Record { .. }) | Self::Look { .. } => false,
        }
    }
}

impl Store {
    pub(crate) fn live_volume(&self, id: &VolumeId) -> Result<LiveVolume, LiveVolumeError> {
        let opened = self.open_volume(id)?;
        let attached = if opened.mode().is_block() {
            let look = |source| LiveVolumeError::Look { id: id.clone(), source };
            let image = opened.image(Access::ReadOnly)?;
            let image = Backing::of(&image).map_err(|source| look(source.into()))?;
            // Opening a device waits for an attach in progress. Therefore the search finds the device, or the device
            // has the image's present size.
            published::is_attached(image).map_err(look)?
        } else {
            false
        };
        Ok(LiveVolume { size: opened.size(), attached })
    }
}
