//! The cgroup of a pod.

use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};

use crate::call::{CallError, arrange};

/// With the controller memory, its writeback has an owner.
#[derive(Debug)]
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    pub(crate) fn make() -> Result<Self, CallError> {
        let root = Path::new("/tmp/cgroup");
        fs::create_dir_all(root)?;
        mount(Some("cgroup2"), root, Some("cgroup2"), MsFlags::empty(), None::<&str>)?;
        fs::write(root.join("cgroup.subtree_control"), "+io +memory")?;
        let tenant = root.join("tenant");
        fs::create_dir(&tenant)?;
        Ok(Self(tenant))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A line of `io.max`.
    pub(crate) fn limit(&self, line: &str) -> Result<(), CallError> {
        fs::write(self.0.join("io.max"), line).map_err(arrange("limit", &self.0))
    }
}

/// Moves this process into the cgroup.
pub(crate) fn enter(cgroup: &Path) -> Result<(), CallError> {
    fs::write(cgroup.join("cgroup.procs"), "0").map_err(arrange("enter", cgroup))
}
