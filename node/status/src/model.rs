//! What is told, as plain data. Any combination of values is valid. Serialized, times are whole seconds.

use std::cmp::Reverse;
use std::time::Duration;

use serde::{Serialize, Serializer};
use supervisor::State;
use units::Bytes;

use crate::{Mesh, Warning};

/// Of a filesystem volume, in percent: with less left, writes will fail soon.
pub(crate) const ALMOST_FULL: u64 = 90;

/// Everything that is told of a node.
#[derive(Clone, Debug, Serialize)]
pub struct Page {
    /// The node's name.
    pub node: String,
    /// What its clock says, seconds since 1970.
    #[serde(rename = "unix_seconds", serialize_with = "seconds")]
    pub now: Duration,
    /// Since the kernel started.
    #[serde(rename = "uptime_seconds", serialize_with = "seconds")]
    pub uptime: Duration,
    /// What runs.
    pub versions: Versions,
    /// Parents before their children.
    pub services: Vec<Service>,
    /// The data disk; nothing if it could not be read, which is among the warnings.
    pub storage: Option<Storage>,
    /// The other nodes; nothing on a node that has no mesh.
    pub mesh: Option<Mesh>,
    /// How good the clock is.
    pub clock: Clock,
    /// Those of the node.
    pub certificates: Vec<Certificate>,
    /// The newest first.
    pub warnings: Vec<Warning>,
}

impl Page {
    /// All facts as JSON, with `ready` and `not_ready`, which follow from the services.
    ///
    /// # Errors
    /// None: the error is that of the serializer's signature.
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

/// What runs on the node.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Versions {
    /// Our own.
    pub granary: String,
    /// The kernel.
    pub kernel: Kernel,
    /// Nothing before the Node object was Ready.
    pub kubernetes: Option<String>,
    /// As Kubernetes tells it: `containerd://2.2.1`.
    pub container_runtime: Option<String>,
}

/// The running kernel.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Kernel {
    /// `uname -r`.
    pub release: String,
    /// `uname -v`.
    pub version: String,
    /// Since it was built, if its version tells when: fixes of the meantime are missing.
    #[serde(rename = "age_seconds", serialize_with = "maybe_seconds")]
    pub age: Option<Duration>,
}

/// A service of the tree.
#[derive(Clone, Debug, Serialize)]
pub struct Service {
    /// The names from the root to the service.
    pub path: String,
    /// The last of them.
    pub name: String,
    /// 0 for the root.
    pub depth: usize,
    /// Where it is in its life.
    pub state: State,
    /// How long it is in this state.
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub since: Duration,
    /// How often it was started again.
    pub restarts: u32,
    /// Why it failed last; it may be healthy since.
    pub last_failure: Option<String>,
}

impl Service {
    /// Whether it does its work, or has done it.
    pub fn is_ready(&self) -> bool {
        match self.state {
            State::Healthy | State::Done => true,
            State::Starting | State::Failed | State::Stopping | State::Stopped => false,
        }
    }
}

/// The services of a tree, parents before their children.
pub fn services(tree: &supervisor::Status) -> Vec<Service> {
    let service = |(depth, status): (usize, &supervisor::Status)| Service {
        path: status.path.clone(),
        name: status.name.clone(),
        depth,
        state: status.state,
        since: status.since.elapsed(),
        restarts: status.attempts.saturating_sub(1),
        last_failure: status.last_error.clone(),
    };
    tree.walk().map(service).collect()
}

/// Those that do not do their work.
pub fn not_ready(services: &[Service]) -> impl Iterator<Item = &Service> {
    services.iter().filter(|service| !service.is_ready())
}

/// The data disk and what is on it.
#[derive(Clone, Debug, Serialize)]
pub struct Storage {
    /// What it has, and what is promised of it.
    pub disk: Disk,
    /// Those that somebody should look at first, then by namespace and claim.
    pub volumes: Vec<Volume>,
    /// Further volumes, which are left out.
    pub more: usize,
    /// Volumes of which nobody knows what they are.
    pub closed: Vec<Closed>,
    /// What lacks its other half; kinds of which there is none are left out.
    pub orphans: Vec<Orphans>,
}

impl Storage {
    /// Volumes that a page shows; metrics tell of all.
    const MOST: usize = 1000;

    /// Puts what somebody should look at first, and leaves out what would make the page too long.
    pub fn new(disk: Disk, mut volumes: Vec<Volume>, closed: Vec<Closed>, orphans: Vec<Orphans>) -> Self {
        volumes.sort_by(|one, other| one.order().cmp(&other.order()));
        let more = volumes.len().saturating_sub(Self::MOST);
        volumes.truncate(Self::MOST);
        Self { disk, volumes, more, closed, orphans }
    }
}

/// The sizes of the data disk.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Disk {
    /// The size of its file system.
    pub size: Bytes,
    /// Kept for what is no volume.
    pub reserve: Bytes,
    /// What all volumes together may be promised.
    pub promisable: Bytes,
    /// What they are promised.
    pub promised: Bytes,
    /// What may still be promised.
    pub free: Bytes,
}

/// A volume.
#[derive(Clone, Debug, Serialize)]
pub struct Volume {
    /// Its name, and that of its PV.
    pub id: String,
    /// Of the claim.
    pub namespace: String,
    /// The claim that it was made for.
    pub claim: String,
    /// What pods see of it.
    pub mode: Mode,
    /// What it is promised.
    pub limit: Bytes,
    /// What it takes on the disk.
    pub used: Bytes,
    /// Files and directories, of a filesystem volume.
    pub inodes: Option<Inodes>,
    /// How it does.
    pub condition: Condition,
}

impl Volume {
    fn order(&self) -> (Reverse<Condition>, &str, &str, &str) {
        (Reverse(self.condition), &self.namespace, &self.claim, &self.id)
    }
}

/// What pods see of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// A directory.
    Filesystem,
    /// A device.
    Block,
}

impl Mode {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Filesystem => "filesystem",
            Self::Block => "block",
        }
    }
}

/// Files and directories of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Inodes {
    /// As many as it may have.
    pub limit: u64,
    /// As many as there are.
    pub used: u64,
}

/// Where a volume is between claim and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// No PV says that it exists.
    Staged,
    /// It is there for pods.
    Announced,
    /// Out of use.
    Retired,
}

/// How a volume does, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// Nothing to do.
    Fine,
    /// It is made, and has no PV yet.
    Staged,
    /// Its data is removed, or gone.
    Retired,
    /// Of a filesystem volume: writes fail soon, for want of space or of inodes.
    AlmostFull,
}

impl Condition {
    /// From what is known of a volume.
    pub fn of(life: Life, mode: Mode, [used, limit]: [Bytes; 2], inodes: Option<Inodes>) -> Self {
        let almost = |used: u64, limit: u64| u128::from(used) * 100 >= u128::from(limit) * u128::from(ALMOST_FULL);
        // An image takes all of its limit from the start, and how full it is only its user knows.
        let full = || {
            mode == Mode::Filesystem
                && (almost(used.get(), limit.get()) || inodes.is_some_and(|inodes| almost(inodes.used, inodes.limit)))
        };
        match life {
            Life::Staged => Self::Staged,
            Life::Retired => Self::Retired,
            Life::Announced if full() => Self::AlmostFull,
            Life::Announced => Self::Fine,
        }
    }

    /// The words for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Staged => "no PV yet",
            Self::Retired => "being removed",
            Self::AlmostFull => "almost full",
        }
    }
}

/// A volume whose record cannot be used. It is kept, and no pod gets it.
#[derive(Clone, Debug, Serialize)]
pub struct Closed {
    /// Its name.
    pub id: String,
    /// What is wrong with the record.
    pub reason: String,
}

/// What lacks its other half, on the disk or in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Orphans {
    /// As the metric `granary_orphans` has it.
    pub kind: String,
    /// How many.
    pub found: u64,
}

/// How good the clock is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Clock {
    /// A server answered when one was asked last.
    Synchronized {
        /// Who.
        server: String,
        /// How far the clock was off then, in microseconds, positive when it was behind.
        offset_us: i64,
        /// When.
        #[serde(rename = "seconds_ago", serialize_with = "seconds")]
        ago: Duration,
    },
    /// None did.
    Unsynchronized {
        /// Who is asked.
        server: String,
        /// Why there was no answer.
        reason: String,
        /// When there was one the last time; nothing if there never was.
        #[serde(rename = "seconds_ago", serialize_with = "maybe_seconds")]
        ago: Option<Duration>,
    },
    /// Nobody is asked: the clock is the machine's.
    Alone,
}

/// A certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Certificate {
    /// Its file without extension.
    pub name: String,
    /// When it ends, seconds since 1970.
    #[serde(rename = "expires_unix_seconds")]
    pub expires: i64,
}

/// Serde hands over references.
pub(crate) fn seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.as_secs())
}

pub(crate) fn maybe_seconds<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| time.as_secs()).serialize(serializer)
}
