//! Directories of CNI plugins that the administrator installs, mounted where their DaemonSets write to.

use std::path::{Path, PathBuf};

use dir::Dir;
use mount::{AttachError, Attributes, CloneError, Detached, SetError};
use nix::errno::Errno;
use nix::mount::MsFlags;

use crate::storage::Storage;

/// containerd starts the programs of the plugins.
const PROGRAMS: Attributes = Attributes { no_exec: false, ..Attributes::INERT };

#[derive(Debug, thiserror::Error)]
pub enum PluginsError {
    #[error("cannot open a directory of the data disk")]
    Source(#[from] localstorage::OpenError),
    #[error("cannot open {path}")]
    Target { path: PathBuf, source: dir::Error },
    #[error("cannot copy the mount of the data disk")]
    Copy(#[from] CloneError),
    #[error("cannot set the attributes of the mount for {path}")]
    Attributes { path: PathBuf, source: SetError },
    #[error("cannot mount on {path}")]
    Attach { path: PathBuf, source: AttachError },
    #[error("cannot share mounts with pods")]
    Share(#[source] Errno),
}

/// Mounts the directories of the data disk on those that plugins and containerd use, and shares all mounts: a plugin's pod may
/// mount a file system for the node (`mountPropagation: Bidirectional`, as for `/sys/fs/bpf`), and see later mounts of the node
/// (`HostToContainer`). The container runtime rejects both if the mounts are not shared. Mounts below shared ones are
/// shared, too (mount_namespaces(7)). Once per boot.
pub fn mount(storage: &Storage, paths: &programs::Paths) -> Result<(), PluginsError> {
    bind(storage.cni_programs()?, &paths.installed_cni_programs, PROGRAMS)?;
    bind(storage.cni_configurations()?, &paths.installed_cni_configurations, Attributes::INERT)?;
    nix::mount::mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SHARED, None::<&str>)
        .map_err(PluginsError::Share)
}

fn bind(from: Dir, path: &Path, attributes: Attributes) -> Result<(), PluginsError> {
    let target = Dir::open(path).map_err(|source| PluginsError::Target { path: path.to_owned(), source })?;
    let copy = Detached::clone_of(&from)?;
    copy.set(attributes).map_err(|source| PluginsError::Attributes { path: path.to_owned(), source })?;
    copy.attach(&target).map_err(|source| PluginsError::Attach { path: path.to_owned(), source })
}
