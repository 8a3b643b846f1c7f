//! What the provisioner needs of the node's disk.

use dir::Ensured;
use loopdev::Backing;
use units::Bytes;
use volume::{
    Access, DriftError, Drifted, Error, ListError, LookError, OpenError, Record, Records, Request, Space, Store,
    Strays, UsageError, VolumeId, VolumeUsage,
};

/// The volumes of a node. [`Store`] has them on a disk; the tests of what the API server decides bring a fake, since
/// they run where no such disk is.
///
/// All methods wait for the disk, and may be repeated after they failed, or after the program ended, at any point.
pub trait Volumes: Send + Sync + 'static {
    /// See [`Store::provision`].
    ///
    /// # Errors
    /// Those of [`Store::provision`].
    fn provision(&self, id: &VolumeId, want: &Request) -> Result<Ensured<Record>, Error>;

    /// See [`Store::announce`].
    ///
    /// # Errors
    /// Those of [`Store::announce`].
    fn announce(&self, id: &VolumeId) -> Result<Ensured<()>, Error>;

    /// See [`Store::expand`].
    ///
    /// # Errors
    /// Those of [`Store::expand`].
    fn expand(&self, id: &VolumeId, to: Bytes) -> Result<Ensured<Record>, Error>;

    /// See [`Store::retire`].
    ///
    /// # Errors
    /// Those of [`Store::retire`].
    fn retire(&self, id: &VolumeId) -> Result<Ensured<()>, Error>;

    /// See [`Store::restore`].
    ///
    /// # Errors
    /// Those of [`Store::restore`].
    fn restore(&self, id: &VolumeId) -> Result<Ensured<()>, Error>;

    /// See [`Store::discard`].
    ///
    /// # Errors
    /// Those of [`Store::discard`].
    fn discard(&self, id: &VolumeId) -> Result<Ensured<()>, Error>;

    /// See [`Store::undo`].
    ///
    /// # Errors
    /// Those of [`Store::undo`].
    fn undo(&self, id: &VolumeId) -> Result<Ensured<()>, Error>;

    /// The live volume as it is now.
    ///
    /// # Errors
    /// [`HeldError`].
    fn held(&self, id: &VolumeId) -> Result<Held, HeldError>;

    /// See [`Store::records`].
    ///
    /// # Errors
    /// [`ListError`].
    fn records(&self) -> Result<Records, ListError>;

    /// See [`Store::retired`].
    ///
    /// # Errors
    /// [`ListError`].
    fn retired(&self) -> Result<Vec<VolumeId>, ListError>;

    /// See [`Store::strays`].
    ///
    /// # Errors
    /// [`ListError`].
    fn strays(&self) -> Result<Strays, ListError>;

    /// See [`Store::drifted`].
    ///
    /// # Errors
    /// [`DriftError`].
    fn drifted(&self, id: &VolumeId) -> Result<Drifted, DriftError>;

    /// See [`Store::space`].
    ///
    /// # Errors
    /// [`LookError`].
    fn space(&self) -> Result<Space, LookError>;

    /// See [`Store::usage`].
    ///
    /// # Errors
    /// [`UsageError`].
    fn usage(&self) -> Result<Vec<VolumeUsage>, UsageError>;
}

/// A live volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// What it is promised.
    pub size: Bytes,
    /// Some loop device stands on its image: that device has the size which the image had when it was attached, until
    /// somebody refreshes it. Never of a filesystem volume.
    pub attached: bool,
}

/// Why a live volume could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum HeldError {
    /// It is not live, or not whole.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// What its image is.
    #[error("cannot look at the image of volume {id}")]
    Image {
        /// The volume.
        id: VolumeId,
        /// What failed.
        #[source]
        source: loopdev::BackingError,
    },
    /// Whether its image is attached.
    #[error("cannot look for the loop devices of volume {id}")]
    Devices {
        /// The volume.
        id: VolumeId,
        /// What failed.
        #[source]
        source: loopdev::ListError,
    },
}

impl HeldError {
    /// Whether there is no such volume on the disk, or nothing of it but a record.
    pub(crate) fn is_missing(&self) -> bool {
        match self {
            Self::Open(OpenError::Unknown { .. }) => true,
            Self::Open(OpenError::Dir { source, .. } | OpenError::Image { source, .. }) => source.is_not_found(),
            Self::Open(OpenError::NotAnnounced { .. } | OpenError::Record { .. })
            | Self::Image { .. }
            | Self::Devices { .. } => false,
        }
    }
}

impl Volumes for Store {
    fn provision(&self, id: &VolumeId, want: &Request) -> Result<Ensured<Record>, Error> {
        self.provision(id, want)
    }

    fn announce(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.announce(id)
    }

    fn expand(&self, id: &VolumeId, to: Bytes) -> Result<Ensured<Record>, Error> {
        self.expand(id, to)
    }

    fn retire(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.retire(id)
    }

    fn restore(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.restore(id)
    }

    fn discard(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.discard(id)
    }

    fn undo(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.undo(id)
    }

    fn held(&self, id: &VolumeId) -> Result<Held, HeldError> {
        let opened = self.open_volume(id)?;
        let attached = if opened.mode().is_block() {
            let image = opened.image(Access::ReadOnly)?;
            let image = Backing::of(&image).map_err(|source| HeldError::Image { id: id.clone(), source })?;
            // Opening a device waits for an attach that is under way: it is seen here, or it sees the image as it is.
            let devices = loopdev::list().map_err(|source| HeldError::Devices { id: id.clone(), source })?;
            devices.iter().any(|device| device.status.backing == image)
        } else {
            false
        };
        Ok(Held { size: opened.size(), attached })
    }

    fn records(&self) -> Result<Records, ListError> {
        self.records()
    }

    fn retired(&self) -> Result<Vec<VolumeId>, ListError> {
        self.retired()
    }

    fn strays(&self) -> Result<Strays, ListError> {
        self.strays()
    }

    fn drifted(&self, id: &VolumeId) -> Result<Drifted, DriftError> {
        self.drifted(id)
    }

    fn space(&self) -> Result<Space, LookError> {
        self.space()
    }

    fn usage(&self) -> Result<Vec<VolumeUsage>, UsageError> {
        self.usage()
    }
}
