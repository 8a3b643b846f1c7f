//! The node's disk, and what the services need to know of it.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use localstorage::{Data, DataDisk, Ephemeral, Mounted, Root, Tree as _, mount_ephemeral};
use nix::errno::Errno;
use nix::sys::statvfs::fstatvfs;
use units::Bytes;
use volume::Store;

use crate::config::NodeName;

/// Why the storage of the node cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// There is no disk for the data, or none that is ours or empty. Nothing was written.
    #[error("the node has no data disk that it can use")]
    Find(#[from] localstorage::FindError),
    /// The disk cannot be formatted or mounted.
    #[error("cannot mount")]
    Mount(#[from] localstorage::MountError),
    /// A directory of it is gone.
    #[error("cannot open a directory of the data disk")]
    Open(#[from] localstorage::OpenError),
    /// Its size cannot be read.
    #[error("cannot read the size of the data disk")]
    Size(#[source] Errno),
    /// What is in the volumes directory.
    #[error("cannot use the volumes directory")]
    Volumes(#[from] volume::StartError),
}

/// The mounted data disk and `/ephemeral`, with the volumes on the first.
#[derive(Debug)]
pub struct Storage {
    data: Mounted<Data>,
    ephemeral: Mounted<Ephemeral>,
    volumes: Arc<Store>,
}

impl Storage {
    /// Finds, checks, makes if it is empty, and mounts the data disk; mounts `/ephemeral`.
    ///
    /// # Errors
    /// [`StorageError`]: nothing was written to a disk that is not ours.
    pub fn open() -> Result<Self, StorageError> {
        let root = Root::at(PathBuf::from("/"));
        let ephemeral = mount_ephemeral(root.ephemeral)?;
        let data = DataDisk::find()?.mount(root.data)?;
        let settings = volume::Settings { reserve: reserve(size(&data)?) };
        let volumes = Store::open(&data.open(|data| &data.volumes)?, settings)?;
        Ok(Self { data, ephemeral, volumes: Arc::new(volumes) })
    }

    /// The file system that is gone after a reboot.
    pub fn ephemeral(&self) -> &Path {
        self.ephemeral.path()
    }

    /// Where programs find their directories.
    pub fn paths(&self) -> services::Paths {
        services::Paths {
            pki: self.data.pki.path().to_owned(),
            etcd: self.data.etcd.path().to_owned(),
            kubelet: self.kubelet(),
            kubelet_pki: self.data.kubelet_pki.path().to_owned(),
            containerd: self.data.containerd.path().to_owned(),
            pod_logs: self.data.log.pods.path().to_owned(),
            ephemeral: self.ephemeral().to_owned(),
            ..services::Paths::default()
        }
    }

    /// kubelet's root directory.
    pub fn kubelet(&self) -> PathBuf {
        self.data.kubelet.path().to_owned()
    }

    /// The node's volumes.
    pub fn volumes(&self) -> Arc<Store> {
        Arc::clone(&self.volumes)
    }

    /// What the CSI plugin has to know.
    pub fn csi(&self, node: &NodeName) -> csi::Settings {
        csi::Settings::new(self.kubelet(), node.as_str(), env!("CARGO_PKG_VERSION"))
    }
}

fn size(disk: impl AsFd) -> Result<Bytes, StorageError> {
    let found = fstatvfs(disk).map_err(StorageError::Size)?;
    Ok(Bytes::new(found.blocks().saturating_mul(found.fragment_size())))
}

/// What is kept of a disk for what else lives on it: images, logs and emptyDirs of pods, etcd. A quarter,
/// at most 16 GiB and a fiftieth: XFS counts blocks that it keeps for its own trees into its size.
fn reserve(disk: Bytes) -> Bytes {
    const OTHERS: Bytes = Bytes::new(16 << 30);
    Bytes::new(disk.get() / 4).min(OTHERS.saturating_add(Bytes::new(disk.get() / 50)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_is_reserved_but_not_of_a_large_disk() {
        assert_eq!(reserve(Bytes::new(8 << 30)), Bytes::new(2 << 30));
        assert_eq!(reserve(Bytes::new(100 << 30)), Bytes::new(18 << 30));
    }
}
