//! Data of the status page. Any combination of values is valid. Times are serialized in whole seconds.

use std::cmp::Reverse;
use std::time::Duration;

use serde::Serialize;
use supervisor::State;
use units::Bytes;

use crate::seconds::{maybe_seconds, seconds};
use crate::{Mesh, Warning};

/// Usage of a filesystem volume in percent from which it is reported as almost full.
pub const ALMOST_FULL: u64 = 90;

#[derive(Clone, Debug, Serialize)]
pub struct Page {
    pub node: String,
    /// Time of the clock, seconds since 1970.
    #[serde(rename = "unix_seconds", serialize_with = "seconds")]
    pub now: Duration,
    #[serde(rename = "uptime_seconds", serialize_with = "seconds")]
    pub uptime: Duration,
    pub versions: Versions,
    /// Services, parents before their children.
    pub services: Vec<Service>,
    pub disk_faults: Vec<String>,
    /// The data disk; `None` if the disk could not be read, which is among the warnings.
    pub storage: Option<Storage>,
    /// The mesh; `None` on a node without one.
    pub mesh: Option<Mesh>,
    pub clock: Clock,
    pub certificates: Vec<Certificate>,
    /// Warnings, newest first.
    pub warnings: Vec<Warning>,
}

impl Page {
    /// All data as JSON, with `ready` and `not_ready`, which are derived from the services. Never fails.
    pub fn json(&self) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct Document<'a> {
            ready: bool,
            not_ready: Vec<&'a str>,
            #[serde(flatten)]
            page: &'a Page,
        }
        let not_ready: Vec<&str> = not_ready(&self.services).map(|service| &*service.path).collect();
        serde_json::to_string_pretty(&Document { ready: not_ready.is_empty(), not_ready, page: self })
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Versions {
    pub granary: String,
    pub kernel: Kernel,
    /// Version of Kubernetes; `None` until the Node object is Ready.
    pub kubernetes: Option<String>,
    /// Container runtime in the format of Kubernetes: `containerd://2.2.1`.
    pub container_runtime: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Kernel {
    pub release: String,
    pub version: String,
    /// Age of the build, if `uname -v` contains its date: later fixes are missing.
    #[serde(rename = "age_seconds", serialize_with = "maybe_seconds")]
    pub age: Option<Duration>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Service {
    /// Names from the root to the service.
    pub path: String,
    pub name: String,
    /// Depth; 0 for the root.
    pub depth: usize,
    pub state: State,
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub since: Duration,
    pub restarts: u32,
    /// Error of the last failure; the service may be healthy again.
    pub last_failure: Option<String>,
    #[serde(rename = "stalled_seconds", serialize_with = "maybe_seconds")]
    pub stalled: Option<Duration>,
}

impl Service {
    /// Whether the service is healthy or done, and makes progress.
    pub fn is_ready(&self) -> bool {
        match self.state {
            State::Healthy | State::Done => self.stalled.is_none(),
            State::Starting | State::Failed | State::Stopping | State::Stopped => false,
        }
    }
}

pub fn services(tree: &supervisor::Status) -> Vec<Service> {
    let service = |(depth, status): (usize, &supervisor::Status)| Service {
        path: status.path.clone(),
        name: status.name.clone(),
        depth,
        state: status.state,
        since: status.since.elapsed(),
        restarts: status.attempts.saturating_sub(1),
        last_failure: status.last_error.clone(),
        stalled: status.stalled,
    };
    tree.walk().map(service).collect()
}

pub fn not_ready(services: &[Service]) -> impl Iterator<Item = &Service> {
    services.iter().filter(|service| !service.is_ready())
}

#[derive(Clone, Debug, Serialize)]
pub struct Storage {
    pub disk: Disk,
    /// Volumes that need attention first, then by namespace and claim.
    pub volumes: Vec<Volume>,
    pub more: usize,
    pub closed: Vec<Closed>,
    /// Orphans by kind, without kinds that have none.
    pub orphans: Vec<Orphans>,
}

impl Storage {
    /// Maximum number of volumes on a page; metrics contain all.
    const MOST: usize = 1000;

    /// Sorts the volumes, those that need attention first, and omits those beyond the limit.
    pub fn new(disk: Disk, mut volumes: Vec<Volume>, closed: Vec<Closed>, orphans: Vec<Orphans>) -> Self {
        volumes.sort_by(|one, other| one.order().cmp(&other.order()));
        let more = volumes.len().saturating_sub(Self::MOST);
        volumes.truncate(Self::MOST);
        Self { disk, volumes, more, closed, orphans }
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Disk {
    pub size: Bytes,
    pub reserve: Bytes,
    #[serde(rename = "promisable")]
    pub allocatable: Bytes,
    #[serde(rename = "promised")]
    pub allocated: Bytes,
    pub free: Bytes,
}

#[derive(Clone, Debug, Serialize)]
pub struct Volume {
    /// Name of the volume and its PV.
    pub id: String,
    /// Empty if a client of CSI created the volume without a claim.
    pub namespace: String,
    /// Name of the claim, or the one that the client of CSI gave the volume.
    pub claim: String,
    pub mode: Mode,
    pub limit: Bytes,
    pub used: Bytes,
    pub inodes: Option<Inodes>,
    pub condition: Condition,
}

impl Volume {
    fn order(&self) -> (Reverse<Condition>, &str, &str, &str) {
        (Reverse(self.condition), &self.namespace, &self.claim, &self.id)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Filesystem,
    Block,
    Snapshot,
}

impl Mode {
    /// Text on the page.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Filesystem => "filesystem",
            Self::Block => "block",
            Self::Snapshot => "snapshot",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Inodes {
    pub limit: u64,
    pub used: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// The PV does not exist yet, or the snapshot is not ready.
    Staged,
    /// The snapshot has its content, and its blocks are being copied.
    Complete,
    Announced,
    Retired,
}

/// State of a volume, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    Fine,
    /// A snapshot that has its content and still shares blocks with its volume.
    Copying,
    /// Created, without a PV.
    Staged,
    /// A snapshot without its content.
    NotReady,
    /// The node is removing the data, or has removed it.
    Retired,
    /// A filesystem volume close to its limit of space or inodes.
    AlmostFull,
    LimitsChanged,
}

impl Condition {
    pub fn of(life: Life, mode: Mode, [used, limit]: [Bytes; 2], inodes: Option<Inodes>) -> Self {
        let almost = |used: u64, limit: u64| u128::from(used) * 100 >= u128::from(limit) * u128::from(ALMOST_FULL);
        // A block image is allocated completely; only its file system has the number of used blocks.
        let full = || {
            mode == Mode::Filesystem
                && (almost(used.get(), limit.get()) || inodes.is_some_and(|inodes| almost(inodes.used, inodes.limit)))
        };
        match life {
            Life::Staged if mode == Mode::Snapshot => Self::NotReady,
            Life::Staged => Self::Staged,
            Life::Complete => Self::Copying,
            Life::Retired => Self::Retired,
            Life::Announced if full() => Self::AlmostFull,
            Life::Announced => Self::Fine,
        }
    }

    /// Text on the page.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Copying => "blocks being copied",
            Self::Staged => "no PV yet",
            Self::NotReady => "not ready",
            Self::Retired => "being removed",
            Self::AlmostFull => "almost full",
            Self::LimitsChanged => "limits changed",
        }
    }
}

/// A volume with an invalid record. The data stays, and pods cannot use the volume.
#[derive(Clone, Debug, Serialize)]
pub struct Closed {
    pub id: String,
    pub reason: String,
}

/// Objects on the disk or in the cluster that lack their counterpart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Orphans {
    /// Kind as in the metric `granary_orphans`.
    pub kind: String,
    pub found: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Clock {
    Synchronized {
        server: String,
        /// Offset at that time in microseconds, positive if the clock was behind.
        offset_us: i64,
        /// Time since the answer.
        #[serde(rename = "seconds_ago", serialize_with = "seconds")]
        ago: Duration,
    },
    Unsynchronized {
        server: String,
        reason: String,
        /// Time since the last answer; `None` if there was none.
        #[serde(rename = "seconds_ago", serialize_with = "maybe_seconds")]
        ago: Option<Duration>,
    },
    Alone,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Certificate {
    /// File name without extension.
    pub name: String,
    #[serde(rename = "expires_unix_seconds")]
    pub expires: i64,
}
