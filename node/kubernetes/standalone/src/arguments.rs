//! Command line. Values are validated while they are parsed.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use cluster::{Overcommit, STATUS_PORT, is_label};
use tracing_subscriber::filter::LevelFilter;
use units::{Bytes, ParseError};

/// Local volumes with enforced sizes, on nodes of any Kubernetes cluster.
#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(name = "granary-storage", version)]
pub struct Arguments {
    #[command(subcommand)]
    pub task: Task,
    /// Least severe level that is logged. Libraries log only warnings and errors.
    #[arg(long, global = true, value_parser = log_level(), default_value = "info")]
    pub log_level: LevelFilter,
}

#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Task {
    /// Creates the volumes of this node and publishes them to its pods.
    #[command(args_override_self = true)]
    Node(Node),
    /// Returns claims to the scheduler if their selected node was deleted, selects the node of claims with immediate
    /// binding, and names the node of claims that were bound to an existing PV. Of several replicas, only the holder of
    /// a Lease acts.
    #[command(args_override_self = true)]
    Reclaimer(Reclaimer),
    /// Checks whether a directory can hold volumes, prepares it as `node` does, and exits.
    Check(Place),
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Node {
    /// Name of the Node object.
    #[arg(long)]
    pub node: NodeName,
    /// The kubelet's root directory. It has the same path in the pod and on the node, and its mount is shared.
    #[arg(long, value_parser = directory, default_value = "/var/lib/kubelet")]
    pub kubelet: PathBuf,
    #[command(flatten)]
    pub place: Place,
    /// The program that creates volumes for claims. Clients of CSI have volumes of their own beside it, through the
    /// service Controller on the CSI socket.
    #[arg(long, value_enum, default_value_t = Provisioner::Own)]
    pub provisioner: Provisioner,
    /// Address of metrics and health checks.
    #[arg(long, default_value_t = LISTEN)]
    pub listen: SocketAddr,
    /// Whether pods are denied the calls that change the limits of volumes, if the kernel supports it.
    #[arg(long, value_enum, default_value_t = Limits::Enforced)]
    pub limits: Limits,
    /// The cgroup of all pods, such as kubepods or kubepods.slice. Default: the cgroup of pods above the cgroup of this
    /// process.
    #[arg(long, value_parser = cgroup)]
    pub pods_cgroup: Option<PathBuf>,
    /// Mount point of the host's /sys.
    #[arg(long, value_parser = directory, default_value = "/sys")]
    pub sys: PathBuf,
    /// The kubelet's directory with links to the logs of containers. The links name the pod of a denied call.
    #[arg(long, value_parser = directory, default_value = "/var/log/containers")]
    pub container_logs: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Provisioner {
    /// This program. The service Controller rejects requests of sidecars for claims and snapshots.
    Own,
    /// external-provisioner, through the service Controller.
    External,
}

impl From<Provisioner> for csi::Provisioner {
    fn from(provisioner: Provisioner) -> Self {
        match provisioner {
            Provisioner::Own => Self::Own,
            Provisioner::External => Self::External,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Limits {
    /// Pods cannot change the limits, if the kernel supports BPF LSM.
    Enforced,
    /// Pods can change the limits. Removes BPF programs that were loaded before.
    Advisory,
}

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Reclaimer {
    /// Name of this pod. It identifies the holder of the Lease, and is unique among the replicas.
    #[arg(long)]
    pub pod: String,
    /// Name of the Lease in the namespace of the pod.
    #[arg(long, default_value = "granary-reclaimer")]
    pub lease: String,
    /// Address of health checks.
    #[arg(long, default_value_t = LISTEN)]
    pub listen: SocketAddr,
}

/// Default address: all IPv4 and IPv6 addresses of the pod, with the port of a node's status.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), STATUS_PORT);

/// The directory of volumes and the space that they may use.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Place {
    /// A directory on an XFS that is mounted with prjquota.
    #[arg(long, value_parser = directory, default_value = "/var/lib/granary")]
    pub directory: PathBuf,
    /// Users of the file system of the directory.
    #[arg(long, value_enum, default_value_t = Users::Own)]
    pub file_system: Users,
    /// Space that is kept free in addition to the space of other programs: a size (20Gi), or a part of the file system
    /// (10%). Default: 2% of the file system (own), 20% (shared).
    #[arg(long)]
    pub reserve: Option<Reserve>,
    /// Maximum sum of the sizes of all volumes, as a factor of the size of the file system.
    #[arg(long, default_value_t = Overcommit::NONE)]
    pub overcommit: Overcommit,
}

impl Place {
    /// Reserved space on a file system of this size.
    pub fn reserved(&self, size: Bytes) -> Bytes {
        let default = match self.file_system {
            Users::Own => Reserve::Percent(2),
            Users::Shared => Reserve::Percent(20),
        };
        self.reserve.unwrap_or(default).of(size)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Users {
    /// Volumes only: the directory is the mount point of the file system, so that a missing mount is an error.
    Own,
    /// Volumes and other programs, such as the system itself. The space that other programs use is measured.
    Shared,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    Size(Bytes),
    /// Percentage of the file system, at most 99.
    Percent(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    #[error("{0:?} is not a valid percentage: use a whole number from 0% to 99%")]
    Percent(String),
    #[error(transparent)]
    Size(#[from] ParseError),
}

impl Reserve {
    fn of(self, size: Bytes) -> Bytes {
        match self {
            Self::Size(reserve) => reserve,
            Self::Percent(part) => Bytes::new(size.get() / 100 * u64::from(part)),
        }
    }
}

impl FromStr for Reserve {
    type Err = ReserveError;

    fn from_str(text: &str) -> Result<Self, ReserveError> {
        let Some(part) = text.strip_suffix('%') else { return Ok(Self::Size(text.parse()?)) };
        let digits = (1..=2).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.then(|| part.parse().ok()).flatten();
        number.map(Self::Percent).ok_or_else(|| ReserveError::Percent(text.to_owned()))
    }
}

/// Name of a node and value of its label `kubernetes.io/hostname`: a DNS name of at most 63 characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeName(Box<str>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a node's name has 1 to 63 lower-case letters, digits, '-' and '.', and begins and ends, also at each '.', with a \
     letter or digit"
)]
pub struct NodeNameError;

impl NodeName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for NodeName {
    type Err = NodeNameError;

    fn from_str(text: &str) -> Result<Self, NodeNameError> {
        if text.len() <= 63 && text.split('.').all(is_label) { Ok(Self(text.into())) } else { Err(NodeNameError) }
    }
}

fn log_level() -> impl TypedValueParser<Value = LevelFilter> {
    PossibleValuesParser::new(["error", "warn", "info", "debug", "trace"]).try_map(|level| level.parse::<LevelFilter>())
}

/// Parses an absolute path without `..`, other than the root.
fn directory(text: &str) -> Result<PathBuf, String> {
    let path: PathBuf = Path::new(text).components().collect();
    let is_plain = path.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
    let is_valid = path.is_absolute() && is_plain && path.components().count() > 1 && !text.contains('\0');
    is_valid.then_some(path).ok_or_else(|| "use an absolute path below '/', without '..'".to_owned())
}

/// Parses a path from the root of the cgroup hierarchy.
fn cgroup(text: &str) -> Result<PathBuf, String> {
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains('\0');
    let is_valid = text.split('/').all(is_plain);
    is_valid.then(|| text.into()).ok_or_else(|| "use a path such as kubepods.slice, without a leading '/'".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(line: &str) -> Result<Task, String> {
        let words = std::iter::once("granary-storage").chain(line.split(' '));
        Arguments::try_parse_from(words).map(|arguments| arguments.task).map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn only_the_name_of_the_node_has_no_default() {
        let Task::Node(node) = parse("node --node=n1.example").unwrap() else { panic!("another task") };
        assert_eq!(node.node.as_str(), "n1.example");
        assert_eq!(node.kubelet, Path::new("/var/lib/kubelet"));
        assert_eq!(node.place.directory, Path::new("/var/lib/granary"));
        assert_eq!(node.place.file_system, Users::Own);
        assert_eq!(node.place.reserved(Bytes::new(1000 << 30)), Bytes::new((1000 << 30) / 100 * 2));
        assert_eq!(node.listen.to_string(), "[::]:7839");
        assert_eq!((node.limits, node.pods_cgroup), (Limits::Enforced, None));
        assert_eq!(node.provisioner, Provisioner::Own);
        assert!(parse("node").unwrap_err().contains("--node"));
    }

    #[test]
    fn invalid_arguments_are_rejected_with_a_remedy() {
        for (line, remedy) in [
            ("node --node=N1", "lower-case letters"),
            ("node --node=n1 --kubelet=var/lib/kubelet", "absolute path"),
            ("check --directory=/", "below '/'"),
            ("check --directory=/data/../etc", "without '..'"),
            ("check --reserve=100%", "0% to 99%"),
            ("check --reserve=much", "give a size like"),
            ("check --overcommit=0.5", "from 1.0 to 100.0"),
            ("check --file-system=mine", "[possible values: own, shared]"),
            ("node --node=n1 --listen=7839", "invalid socket address"),
            ("node --node=n1 --log-level=loud", "[possible values: error, warn, info, debug, trace]"),
            ("node --node=n1 --provisioner=none", "[possible values: own, external]"),
            ("reclaimer", "--pod"),
            ("release", "unrecognized subcommand"),
            ("node --node=n1 --limits=off", "[possible values: enforced, advisory]"),
            ("node --node=n1 --pods-cgroup=/kubepods", "without a leading '/'"),
            ("node --node=n1 --pods-cgroup=kubepods/../x", "such as kubepods.slice"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(remedy), "{line}: {error}");
        }
    }

    #[test]
    fn the_last_of_repeated_arguments_applies() {
        let Task::Node(node) = parse("node --node=n1 --limits=enforced --limits=advisory").unwrap() else { panic!() };
        assert_eq!(node.limits, Limits::Advisory);
        let Task::Reclaimer(reclaimer) = parse("reclaimer --pod=p --pod=q --log-level=debug").unwrap() else {
            panic!()
        };
        assert_eq!((&*reclaimer.pod, &*reclaimer.lease), ("q", "granary-reclaimer"));
    }

    #[test]
    fn a_reserve_is_a_size_or_a_percentage() {
        let size = Bytes::new(200 << 30);
        assert_eq!("10%".parse::<Reserve>().unwrap().of(size), Bytes::new((200 << 30) / 100 * 10));
        assert_eq!("0%".parse::<Reserve>().unwrap().of(size), Bytes::ZERO);
        assert_eq!("20Gi".parse::<Reserve>().unwrap().of(size), Bytes::new(20 << 30));
        for wrong in ["%", "-1%", "+1%", "1.5%", "100%", " 1%"] {
            assert!(wrong.parse::<Reserve>().is_err(), "{wrong}");
        }
        let Task::Check(place) = parse("check --file-system=shared").unwrap() else { panic!("another task") };
        assert_eq!(place.reserved(size), Bytes::new((200 << 30) / 100 * 20));
    }

    #[test]
    fn a_node_name_is_a_valid_label_value() {
        for right in ["n", "ip-10-0-0-1.example.internal", "1", &"n".repeat(63)] {
            assert_eq!(right.parse::<NodeName>().unwrap().as_str(), right);
        }
        for wrong in ["", "-n", "n-", "n.", ".n", "a..b", "a.-b", "a_b", "a b", "'", &"n".repeat(64)] {
            assert!(wrong.parse::<NodeName>().is_err(), "{wrong}");
        }
    }
}
