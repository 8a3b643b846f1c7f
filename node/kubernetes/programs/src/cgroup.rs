//! A cgroup for each program. The cgroup accounts and limits memory, and the program's children end with it.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use tracing::warn;
use units::Bytes;

#[derive(Clone, Debug)]
pub(crate) struct Cgroup(PathBuf);

/// The kubelet sets the same value for itself: if the machine runs out of memory, the kernel kills containers first.
const OOM_SCORE_ADJ: &str = "-999";

impl Cgroup {
    /// Creates the group `name` below `root` with memory accounting and an optional memory limit. On an error, logs a
    /// warning and returns `None`: the program starts even without its memory figures.
    pub(crate) fn ensure(root: &Path, name: &str, limit: Option<Bytes>) -> Option<Self> {
        let path = root.join(name);
        let made = enable_memory(root).and_then(|()| match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            Ok(()) | Err(_) => Ok(()),
        });
        match made {
            Ok(()) => {
                let group = Self(path);
                group.limit(limit);
                Some(group)
            }
            Err(error) => {
                warn!(service = name, %error, "cannot create the cgroup");
                None
            }
        }
    }

    /// Sets `memory.max`: the kernel frees page cache first, and kills only when nothing is left to free. `memory.high`
    /// stays unset: the kernel slows a process above it down more and more, but never kills it. A program with a leak
    /// would remain and do no work.
    ///
    /// `memory.oom.group`: the kernel kills all processes of a program, and the supervisor starts the program again.
    fn limit(&self, limit: Option<Bytes>) {
        let max = limit.map_or_else(|| "max".to_owned(), |limit| limit.get().to_string());
        for (file, value) in [("memory.max", &*max), ("memory.oom.group", if limit.is_some() { "1" } else { "0" })] {
            if let Err(error) = fs::write(self.0.join(file), value) {
                warn!(cgroup = %self.0.display(), file, value, %error, "cannot limit the memory");
            }
        }
        // The file exists only if the kernel supports swap.
        match fs::write(self.0.join("memory.swap.max"), "0") {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                warn!(cgroup = %self.0.display(), %error, "cannot limit the swap");
            }
            Ok(()) | Err(_) => {}
        }
    }

    pub(crate) fn processes(&self) -> Option<OwnedFd> {
        let path = self.0.join("cgroup.procs");
        let opened = File::options().write(true).open(&path).map(OwnedFd::from);
        opened.map_err(|error| warn!(cgroup = %self.0.display(), %error, "cannot open the cgroup for processes")).ok()
    }

    /// Moves a process into the group. Later children of the process start in the group too.
    pub(crate) fn add(&self, process: u32) {
        if let Err(error) = fs::write(self.0.join("cgroup.procs"), process.to_string()) {
            warn!(cgroup = %self.0.display(), %error, "process stays in its parent's cgroup");
        }
        if let Err(error) = fs::write(format!("/proc/{process}/oom_score_adj"), OOM_SCORE_ADJ) {
            warn!(cgroup = %self.0.display(), %error, "cannot set the OOM score of a process");
        }
    }

    /// Number of OOM kills of the group.
    pub(crate) fn kills(&self) -> u64 {
        kills_in(&self.0)
    }
}

/// OOM kills of the group `name` below `root`; 0 if the group is missing.
pub(crate) fn kills(root: &Path, name: &str) -> u64 {
    kills_in(&root.join(name))
}

fn kills_in(group: &Path) -> u64 {
    fs::read_to_string(group.join("memory.events")).ok().and_then(|events| group_kills(&events)).unwrap_or(0)
}

/// `oom_group_kill` of `memory.events` (Linux 5.17). `oom_kill` counts each process.
fn group_kills(events: &str) -> Option<u64> {
    events.lines().find_map(|line| line.strip_prefix("oom_group_kill ")?.parse().ok())
}

fn enable_memory(root: &Path) -> io::Result<()> {
    let control = root.join("cgroup.subtree_control");
    if fs::read_to_string(&control)?.split_ascii_whitespace().any(|controller| controller == "memory") {
        return Ok(());
    }
    fs::write(control, "+memory")
}
