//! A cgroup for each program: what its memory is, how much it may take, and an end for all its children.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use tracing::warn;
use units::Bytes;

#[derive(Clone, Debug)]
pub(crate) struct Cgroup(PathBuf);

/// As kubelet sets it for itself: when the whole machine has no memory left, containers end before it.
const OOM_SCORE_ADJ: &str = "-999";

impl Cgroup {
    /// Makes the group `name` below `root`, with memory accounting and a limit, or none. `None`, and a warning, if the
    /// machine does not let us: the program is more important than its figures.
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
                warn!(service = name, %error, "no cgroup");
                None
            }
        }
    }

    /// `memory.max`: the kernel frees page cache first, and kills only when nothing is left to free. There is no
    /// `memory.high`: a process above it is slowed down more and more, and never killed; a program that runs away would
    /// stay, and do no work.
    ///
    /// `memory.oom.group`: a program dies as a whole, and is started again.
    fn limit(&self, limit: Option<Bytes>) {
        let max = limit.map_or_else(|| "max".to_owned(), |limit| limit.get().to_string());
        for (file, value) in [("memory.max", &*max), ("memory.oom.group", if limit.is_some() { "1" } else { "0" })] {
            if let Err(error) = fs::write(self.0.join(file), value) {
                warn!(cgroup = %self.0.display(), file, value, %error, "memory is not limited");
            }
        }
        // Is there only if the kernel can swap.
        match fs::write(self.0.join("memory.swap.max"), "0") {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                warn!(cgroup = %self.0.display(), %error, "swap is not limited");
            }
            Ok(()) | Err(_) => {}
        }
    }

    pub(crate) fn processes(&self) -> Option<OwnedFd> {
        let path = self.0.join("cgroup.procs");
        let opened = File::options().write(true).open(&path).map(OwnedFd::from);
        opened
            .map_err(|error| warn!(cgroup = %self.0.display(), %error, "processes cannot be put into the cgroup"))
            .ok()
    }

    /// Moves a process here, if it is not here yet. Its later children start here too.
    pub(crate) fn add(&self, process: u32) {
        if let Err(error) = fs::write(self.0.join("cgroup.procs"), process.to_string()) {
            warn!(cgroup = %self.0.display(), %error, "process stays in its parent's cgroup");
        }
        if let Err(error) = fs::write(format!("/proc/{process}/oom_score_adj"), OOM_SCORE_ADJ) {
            warn!(cgroup = %self.0.display(), %error, "process may be killed before containers are");
        }
    }

    /// How often its programs were killed since it took more than the limit.
    pub(crate) fn kills(&self) -> u64 {
        kills_in(&self.0)
    }
}

/// The same of the group `name` below `root`; 0 if there is none.
pub(crate) fn kills(root: &Path, name: &str) -> u64 {
    kills_in(&root.join(name))
}

fn kills_in(group: &Path) -> u64 {
    fs::read_to_string(group.join("memory.events")).ok().and_then(|events| group_kills(&events)).unwrap_or(0)
}

/// `oom_group_kill` of `memory.events`, Linux 5.17: `oom_kill` counts each process.
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
