//! Requests of a test to the host, which the guest's init forwards.

use serde::{Deserialize, Serialize};

/// Socket of the guest's init. A connection carries one [`Request`] and its [`Answer`].
pub const SOCKET: &str = "/run/ktest.sock";

/// A test's request to the host. Disks are named by their serial numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    Stats(String),
    /// Fail every later request to this disk.
    Cut(String),
    /// End the failures of this disk. Its content is unchanged.
    Restore(String),
    /// Cut the power: the guest is lost, its disks stay.
    PowerCut(PowerCut),
}

/// A power cut in the middle of a test, which continues in the next boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerCut {
    pub test: String,
    /// Disks that the test holds: the first ones of the next boot.
    pub disks: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    Stats(BlockStats),
    /// Answer to [`Request::Cut`] and [`Request::Restore`]. A power cut has no answer.
    Done,
    /// The request failed for this reason.
    Refused(String),
}

/// Requests that a disk has completed since the guest's start, successfully or not, as QEMU counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockStats {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Sums of the durations of the requests. Requests that are in progress at the same time count several times.
    pub read_ns: u64,
    pub write_ns: u64,
    pub flush_ns: u64,
}

impl BlockStats {
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            reads: self.reads.saturating_sub(earlier.reads),
            writes: self.writes.saturating_sub(earlier.writes),
            flushes: self.flushes.saturating_sub(earlier.flushes),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
            read_ns: self.read_ns.saturating_sub(earlier.read_ns),
            write_ns: self.write_ns.saturating_sub(earlier.write_ns),
            flush_ns: self.flush_ns.saturating_sub(earlier.flush_ns),
        }
    }
}
