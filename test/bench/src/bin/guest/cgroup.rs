//! The cgroup of a pod.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use clap::Args;
use ktest_support::{eventually, mount_cgroups};

use crate::call::{CallError, arrange};

/// Cgroup and file of a pod's process, which writes to the file until it is killed.
#[derive(Debug, Args)]
pub(crate) struct Place {
    pub(crate) cgroup: PathBuf,
    pub(crate) file: PathBuf,
}

/// A cgroup with the memory controller, so that the kernel attributes its writeback to it.
#[derive(Debug)]
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    pub(crate) fn make() -> Result<Self, CallError> {
        let root = Path::new("/tmp/cgroup");
        mount_cgroups(root);
        fs::write(root.join("cgroup.subtree_control"), "+io +memory")?;
        let tenant = root.join("tenant");
        fs::create_dir(&tenant)?;
        Ok(Self(tenant))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a line to `io.max`.
    pub(crate) fn limit(&self, line: &str) -> Result<(), CallError> {
        fs::write(self.0.join("io.max"), line).map_err(arrange("limit", &self.0))
    }

    /// Starts this program as a process that enters the cgroup and writes to a file. Returns when `has_begun` returns
    /// true.
    pub(crate) fn start(
        &self,
        subcommand: &str,
        file: &Path,
        has_begun: impl Fn() -> bool,
    ) -> Result<Writer, CallError> {
        let mut command = Command::new(env::current_exe()?);
        let writer = Writer(command.arg(subcommand).arg(&self.0).arg(file).spawn()?);
        eventually(&format!("the {subcommand} to start"), has_begun);
        Ok(writer)
    }
}

/// A process that writes to a file. Dropping the value kills the process.
pub(crate) struct Writer(Child);

impl Drop for Writer {
    fn drop(&mut self) {
        // A process that has already ended reports its error on standard error, and the figures show that it did not
        // write.
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// Moves this process into the cgroup.
pub(crate) fn enter(cgroup: &Path) -> Result<(), CallError> {
    fs::write(cgroup.join("cgroup.procs"), "0").map_err(arrange("enter", cgroup))
}
