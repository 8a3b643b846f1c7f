//! The node's disk, and what our storage services need of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dir::Dir;
use volume::Store;

use crate::config::NodeName;

/// Why the storage of the node cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// temporary
    #[error("temporary: {0}")]
    Temporary(String),
    /// The volumes directory.
    #[error("cannot open the volumes directory")]
    Volumes(#[from] dir::Error),
    /// What is in it.
    #[error("cannot use the volumes directory")]
    Store(#[from] volume::StartError),
}

/// The mounted data disk and `/ephemeral`.
#[derive(Debug)]
pub struct Storage {
    store: Arc<Store>,
}

fn tmp<E: std::fmt::Debug>(e: E) -> StorageError { StorageError::Temporary(format!("{e:?}")) }

impl Storage {
    /// Finds, checks, makes if it is empty, and mounts the data disk; mounts `/ephemeral`.
    ///
    /// # Errors
    /// [`StorageError`]: nothing was written to a disk that is not ours.
    pub fn open() -> Result<Self, StorageError> {
        use nix::mount::MsFlags;
        let mut device = PathBuf::new();
        for e in std::fs::read_dir("/sys/block").map_err(tmp)? {
            let e = e.map_err(tmp)?;
            if std::fs::read_to_string(e.path().join("serial")).is_ok_and(|s| s.trim_end() == "data") {
                device = Path::new("/dev").join(e.file_name());
            }
        }
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        let mnt = || nix::mount::mount(Some(&device), "/data", Some("xfs"), flags, Some("prjquota"));
        if mnt().is_err() {
            let out = std::process::Command::new("/usr/bin/mkfs.xfs").args(["-q", "-K", "-L", "granary-data"]).arg(&device).output().map_err(tmp)?;
            if !out.status.success() { return Err(tmp(out)); }
            mnt().map_err(tmp)?;
        }
        nix::mount::mount(Some("tmpfs"), "/ephemeral", Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some("mode=0755,size=50%")).map_err(tmp)?;
        for d in ["pki", "etcd", "kubelet", "kubelet-pki", "containerd", "volumes", "log/pods"] {
            std::fs::create_dir_all(Path::new("/data").join(d)).map_err(tmp)?;
        }
        let volumes = Dir::open(Path::new("/data/volumes"))?;
        let store = Arc::new(Store::open(&volumes, volume::Settings::default())?);
        Ok(Self { store })
    }

    /// The file system that is gone after a reboot.
    pub fn ephemeral(&self) -> &Path {
        Path::new("/ephemeral")
    }

    /// Where programs find their directories.
    pub fn paths(&self) -> services::Paths {
        services::Paths::default()
    }

    /// kubelet's root directory.
    pub fn kubelet(&self) -> PathBuf {
        self.paths().kubelet
    }

    /// The node's volumes.
    pub fn store(&self) -> Arc<Store> {
        Arc::clone(&self.store)
    }

    /// What the CSI plugin has to know.
    pub fn csi(&self, node: &NodeName) -> csi::Settings {
        csi::Settings::new(self.kubelet(), node.as_str(), env!("CARGO_PKG_VERSION"))
    }
}
