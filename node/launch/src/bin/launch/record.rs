//! Record of a cluster that is kept, in a file of its directory.

use kernel::text::Stat;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::process;
use tempfile::NamedTempFile;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// State of a cluster. Only the process that holds the lock of the directory writes the record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Record {
    pub(crate) phase: Phase,
    /// The process that runs the cluster, or ran it last.
    pub(crate) process: Option<ProcessId>,
    /// Port of the API server at the last start. The next start uses it again if it is free.
    pub(crate) port: Option<NonZeroU16>,
    /// Number of nodes at the last start.
    pub(crate) nodes: Option<u8>,
    /// Files with a context of this cluster.
    pub(crate) kubeconfigs: BTreeSet<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    Starting,
    Ready,
    Stopping,
    /// All nodes have shut down in order, or none was started.
    #[default]
    Stopped,
    Failed,
}

/// A process of this machine. The start time and the boot distinguish processes with the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    pub(crate) pid: u32,
    /// Start time in clock ticks since the boot, proc_pid_stat(5).
    start: u64,
    boot: String,
}

/// The state that a command shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Running {
        phase: Phase,
        process: ProcessId,
    },
    Stopped,
    Failed,
    /// The process ended without writing its last record, because it was killed or the machine was turned off.
    Killed,
}

impl Record {
    /// Reads a record. A missing or unreadable record counts as that of a new cluster, so that it never blocks a start.
    pub(crate) fn read(path: &Path) -> Self {
        fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// Replaces the file; a reader finds the old or the new record.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        let mut file = NamedTempFile::with_prefix_in(".record.", directory)?;
        serde_json::to_writer_pretty(&mut file, self)?;
        file.flush()?;
        file.as_file().sync_all()?;
        file.persist(path).map(drop).map_err(|error| error.error)
    }

    pub(crate) fn shown(&self) -> Shown {
        self.shown_if(ProcessId::is_alive)
    }

    fn shown_if(&self, is_alive: impl Fn(&ProcessId) -> bool) -> Shown {
        match (self.phase, &self.process) {
            (Phase::Stopped, _) => Shown::Stopped,
            (Phase::Failed, _) => Shown::Failed,
            (phase, Some(process)) if is_alive(process) => Shown::Running { phase, process: process.clone() },
            (Phase::Starting | Phase::Ready | Phase::Stopping, _) => Shown::Killed,
        }
    }
}

impl ProcessId {
    pub(crate) fn own() -> io::Result<Self> {
        let pid = process::id();
        let (_, start) = stat(pid).ok_or_else(|| io::Error::other("/proc/self/stat is not readable"))?;
        Ok(Self { pid, start, boot: fs::read_to_string(BOOT_ID)?.trim().to_owned() })
    }

    pub(crate) fn is_alive(&self) -> bool {
        let is_same = stat(self.pid).is_some_and(|(state, start)| start == self.start && !matches!(state, 'Z' | 'X'));
        is_same && fs::read_to_string(BOOT_ID).is_ok_and(|boot| boot.trim() == self.boot)
    }
}

/// State and start time of a process.
fn stat(pid: u32) -> Option<(char, u64)> {
    // The name of the process may contain any bytes.
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    Stat::parse(&String::from_utf8_lossy(&text)).map(|stat| (stat.state, stat.start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cluster.json");
        assert_eq!(Record::read(&path), Record::default());
        let record = Record {
            phase: Phase::Ready,
            process: Some(ProcessId::own().unwrap()),
            port: NonZeroU16::new(6443),
            nodes: Some(2),
            kubeconfigs: BTreeSet::from(["/home/user/.kube/config".into()]),
        };
        record.write(&path).unwrap();
        assert_eq!(Record::read(&path), record);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        // Invalid content, such as after a power failure of the machine.
        for text in ["", "{", "[]", r#"{"process": {"pid": -1, "start": 0, "boot": ""}}"#] {
            fs::write(&path, text).unwrap();
            assert_eq!(Record::read(&path), Record::default(), "{text}");
        }
    }

    #[test]
    fn a_process_is_alive_until_it_ends() {
        let own = ProcessId::own().unwrap();
        assert!(own.is_alive());
        // Another process of this boot or of an earlier one has the same PID.
        assert!(!ProcessId { start: own.start + 1, ..own.clone() }.is_alive());
        assert!(!ProcessId { boot: "another".to_owned(), ..own.clone() }.is_alive());
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert!(!ProcessId { pid, ..own }.is_alive());
    }

    #[test]
    fn the_state_depends_on_the_process() {
        let process = ProcessId { pid: 7, start: 1, boot: "b".to_owned() };
        let shown = |phase, is_alive| {
            Record { phase, process: Some(process.clone()), ..Record::default() }.shown_if(|_| is_alive)
        };
        for phase in [Phase::Starting, Phase::Ready, Phase::Stopping] {
            assert_eq!(shown(phase, true), Shown::Running { phase, process: process.clone() });
            assert_eq!(shown(phase, false), Shown::Killed);
        }
        // The process writes this record as its last step.
        assert_eq!(shown(Phase::Stopped, true), Shown::Stopped);
        assert_eq!(shown(Phase::Failed, true), Shown::Failed);
        assert_eq!(Record::default().shown(), Shown::Stopped);
    }
}
