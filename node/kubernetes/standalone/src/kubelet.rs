//! kubelet's directory, as a pod sees it.

use std::path::{Path, PathBuf};

use dir::Dir;

/// Why volumes would not reach the node's other pods.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// It is not there.
    #[error(
        "cannot open kubelet's directory {}; give the pod the one that kubelet was started with (--root-dir)",
        path.display()
    )]
    Open {
        /// The directory.
        path: PathBuf,
        /// Why not.
        #[source]
        source: dir::Error,
    },
    /// The kernel does not tell where it is mounted.
    #[error("cannot see how kubelet's directory {} is mounted", path.display())]
    Look {
        /// The directory.
        path: PathBuf,
        /// Why not.
        #[source]
        source: mount::LookError,
    },
    /// Nor what is mounted at all.
    #[error("cannot see what is mounted")]
    Table(#[from] mount::TableError),
    /// Volumes would be mounted here and nowhere else; pods would write to empty directories of kubelet's disk.
    #[error(
        "what is mounted below {} stays in this pod: give the directory to it with mountPropagation Bidirectional, and \
         make its mount on the node shared (mount --make-rshared)",
        path.display()
    )]
    Private {
        /// The directory.
        path: PathBuf,
    },
}

/// Makes sure that what is mounted below kubelet's directory is seen outside this pod.
///
/// # Errors
/// [`KubeletError`].
pub fn check(path: &Path) -> Result<(), KubeletError> {
    let of = || path.to_owned();
    let kubelet = Dir::open(path).map_err(|source| KubeletError::Open { path: of(), source })?;
    let place = mount::at(&kubelet).map_err(|source| KubeletError::Look { path: of(), source })?;
    let mounts = mount::table()?;
    let shared = mounts.iter().any(|entry| entry.mount == place.mount && entry.peers.is_some());
    if shared { Ok(()) } else { Err(KubeletError::Private { path: of() }) }
}
