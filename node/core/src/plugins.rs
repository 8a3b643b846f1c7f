//! Directories of CNI plugins that the administrator installs, mounted at the paths to which their DaemonSets write.

use std::path::Path;

use dir::Dir;
use mount::{Attributes, Detached};
use nix::mount::MsFlags;

use crate::error::StepError;
use crate::storage::Storage;

/// Mount attributes of the plugins' programs, which containerd executes.
const PROGRAMS: Attributes = Attributes { no_exec: false, ..Attributes::INERT };

/// Mounts directories of the data disk at the paths that plugins and containerd use, and makes all mounts shared: a
/// plugin's pod may mount a file system for the node (`mountPropagation: Bidirectional`, as for `/sys/fs/bpf`), and see
/// later mounts of the node (`HostToContainer`). The container runtime rejects both if the mounts are not shared.
/// Mounts below shared mounts are shared, too (mount_namespaces(7)). Call once per boot.
pub fn mount(storage: &Storage, paths: &programs::Paths) -> Result<(), StepError> {
    bind(storage.cni_programs()?, &paths.installed_cni_programs, PROGRAMS)?;
    bind(storage.cni_configurations()?, &paths.installed_cni_configurations, Attributes::INERT)?;
    nix::mount::mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SHARED, None::<&str>)
        .map_err(StepError::of("cannot share mounts with pods"))
}

fn bind(from: Dir, path: &Path, attributes: Attributes) -> Result<(), StepError> {
    let shown = path.display();
    let target = Dir::open(path).map_err(StepError::of(format!("cannot open {shown}")))?;
    let copy = Detached::clone_of(&from).map_err(StepError::of("cannot copy the mount of the data disk"))?;
    let set = copy.set(attributes);
    set.map_err(StepError::of(format!("cannot set the attributes of the mount for {shown}")))?;
    copy.attach(&target).map_err(StepError::of(format!("cannot mount on {shown}")))
}
