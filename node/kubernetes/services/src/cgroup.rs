//! A cgroup for each program: what its memory is, and an end for all its children.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tracing::warn;

/// A cgroup2 directory.
#[derive(Clone, Debug)]
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes the group `name` below `root`, with memory accounting. `None`, and a warning, if the machine
    /// does not let us: the program is more important than its figures.
    pub(crate) fn ensure(root: &Path, name: &str) -> Option<Self> {
        let path = root.join(name);
        let made = enable_memory(root).and_then(|()| match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            Ok(()) | Err(_) => Ok(()),
        });
        match made {
            Ok(()) => Some(Self(path)),
            Err(error) => {
                warn!(service = name, %error, "no cgroup");
                None
            }
        }
    }

    /// Moves a process here. Its later children start here too.
    pub(crate) fn add(&self, process: u32) {
        if let Err(error) = fs::write(self.0.join("cgroup.procs"), process.to_string()) {
            warn!(cgroup = %self.0.display(), %error, "process stays in its parent's cgroup");
        }
    }
}

fn enable_memory(root: &Path) -> io::Result<()> {
    let control = root.join("cgroup.subtree_control");
    if fs::read_to_string(&control)?.split_ascii_whitespace().any(|controller| controller == "memory") {
        return Ok(());
    }
    fs::write(control, "+memory")
}
