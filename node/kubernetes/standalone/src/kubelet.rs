//! The kubelet's directory in a pod.

use std::path::{Path, PathBuf};

use dir::Dir;

#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    #[error("cannot open the kubelet's directory {}; mount the directory of its argument --root-dir", path.display())]
    Open { path: PathBuf, source: dir::Error },
    #[error("cannot determine the mount of the kubelet's directory {}", path.display())]
    Mount { path: PathBuf, source: mount::LookError },
    #[error("cannot read the mount table")]
    Table(#[from] mount::TableError),
    /// Pods would write to empty directories of the kubelet's disk.
    #[error(
        "mounts below {} stay in this pod: use mountPropagation Bidirectional, and make its mount on the node shared \
         (mount --make-rshared)",
        path.display()
    )]
    Private { path: PathBuf },
}

/// Checks that mounts below the kubelet's directory propagate to the node.
pub fn check(path: &Path) -> Result<(), KubeletError> {
    let owned = || path.to_owned();
    let kubelet = Dir::open(path).map_err(|source| KubeletError::Open { path: owned(), source })?;
    let place = mount::at(&kubelet).map_err(|source| KubeletError::Mount { path: owned(), source })?;
    let is_shared = mount::table()?.iter().any(|entry| entry.mount == place.mount && entry.peers.is_some());
    if is_shared { Ok(()) } else { Err(KubeletError::Private { path: owned() }) }
}
