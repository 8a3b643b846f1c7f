//! What the provisioner needs of the node's disk.

use std::collections::BTreeMap;

use dir::Ensured;
use volume::{Error, ListError, LookError, Record, Request, Space, Store, VolumeId};

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

    /// See [`Store::retire`].
    ///
    /// # Errors
    /// Those of [`Store::retire`].
    fn retire(&self, id: &VolumeId) -> Result<Ensured<()>, Error>;

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

    /// See [`Store::records`].
    ///
    /// # Errors
    /// [`ListError`].
    fn records(&self) -> Result<BTreeMap<VolumeId, Record>, ListError>;

    /// See [`Store::retired`].
    ///
    /// # Errors
    /// [`ListError`].
    fn retired(&self) -> Result<Vec<VolumeId>, ListError>;

    /// See [`Store::space`].
    ///
    /// # Errors
    /// [`LookError`].
    fn space(&self) -> Result<Space, LookError>;
}

impl Volumes for Store {
    fn provision(&self, id: &VolumeId, want: &Request) -> Result<Ensured<Record>, Error> {
        self.provision(id, want)
    }

    fn announce(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.announce(id)
    }

    fn retire(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.retire(id)
    }

    fn discard(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.discard(id)
    }

    fn undo(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.undo(id)
    }

    fn records(&self) -> Result<BTreeMap<VolumeId, Record>, ListError> {
        self.records()
    }

    fn retired(&self) -> Result<Vec<VolumeId>, ListError> {
        self.retired()
    }

    fn space(&self) -> Result<Space, LookError> {
        self.space()
    }
}
