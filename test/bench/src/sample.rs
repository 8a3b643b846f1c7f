//! [`Sample`]: one measured region, in the format that the guest sends.

use std::collections::BTreeMap;
use std::io::{self, Write as _};

use serde::{Deserialize, Serialize};

use crate::operation::Operation;
use crate::timed::TimeSample;

/// A message of the guest: JSON, one message per line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Word {
    Kernel(String),
    Sample(Sample),
    Time(TimeSample),
}

/// Prints a message to `bench` as one line of JSON.
pub fn print(message: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, message)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// One measured region: [`Operation::calls`] calls of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    pub operation: Operation,
    pub present: u32,
    /// Number of the run, starting at 1.
    pub run: u32,
    /// Number of calls of each system call, by name.
    pub syscalls: BTreeMap<String, u64>,
    pub disk: DiskWork,
}

/// Requests of the disk in a region, as QEMU counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskWork {
    pub flushes: u64,
    pub writes: u64,
    pub written_bytes: u64,
    /// Sum of the durations of all reads, writes and flushes. Requests that are in progress at the same time count
    /// several times.
    pub time_ns: u64,
    /// Part of the flushes in `time_ns`.
    pub flush_ns: u64,
}

impl Sample {
    /// System calls on the file system or a device.
    pub fn work(&self) -> u64 {
        self.sum(|name| !is_housekeeping(name))
    }

    pub fn housekeeping(&self) -> u64 {
        self.sum(is_housekeeping)
    }

    fn sum(&self, counts: impl Fn(&str) -> bool) -> u64 {
        self.syscalls.iter().filter(|(name, _)| counts(name)).map(|(_, count)| count).sum()
    }
}

/// Whether a system call only concerns the process itself: memory, threads, locks, signals, IDs and sleeps. Unknown
/// names count as work.
pub fn is_housekeeping(syscall: &str) -> bool {
    matches!(
        syscall,
        "brk"
            | "clock_nanosleep"
            | "clone3"
            | "exit"
            | "futex"
            | "getpid"
            | "getrandom"
            | "gettid"
            | "madvise"
            | "mmap"
            | "mprotect"
            | "mremap"
            | "munmap"
            | "nanosleep"
            | "prctl"
            | "rseq"
            | "rt_sigaction"
            | "rt_sigprocmask"
            | "sched_getaffinity"
            | "sched_yield"
            | "set_robust_list"
            | "sigaltstack"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_counts_as_work() {
        let syscalls = [("mmap", 2), ("openat", 3), ("syscall 999", 1)].map(|(name, count)| (name.into(), count));
        let (syscalls, disk) = (BTreeMap::from(syscalls), DiskWork::default());
        let sample = Sample { operation: Operation::Get, present: 0, run: 1, syscalls, disk };
        assert_eq!((sample.work(), sample.housekeeping()), (4, 2));
    }

    #[test]
    fn a_word_is_one_line_of_json() {
        let disk = r#"{"flushes":1,"writes":2,"written_bytes":4096,"time_ns":9,"flush_ns":5}"#;
        let sample = r#"{"operation":"set-first","present":1000,"run":1,"syscalls":{"ioctl":3},"disk":"#;
        let line = format!(r#"{{"sample":{sample}{disk}}}}}"#);
        let word: Word = serde_json::from_str(&line).unwrap();
        assert_eq!(serde_json::to_string(&word).unwrap(), line);
        assert!(serde_json::from_str::<Word>(r#"{"sample":{"operation":"sweep"}}"#).is_err());
    }
}
