//! The command line. What is parsed can be used without another look.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};
use cluster::{Overcommit, STATUS_PORT};
use units::{Bytes, ParseError};

/// Limited local volumes for a node of any Kubernetes cluster.
#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(name = "granary-storage", version)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub task: Task,
}

/// What the program does.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Task {
    /// Makes the volumes of this node, and gives them to its pods.
    Node(Node),
    /// Gives back to the scheduler the claims that wait for a node which is gone. One for a cluster.
    Release(Release),
    /// Tells whether a directory can hold volumes, prepares it as `node` does, and ends.
    Check(Place),
}

/// The storage of one node.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Node {
    /// Name of the node, as its Node object has it.
    #[arg(long)]
    pub node: NodeName,
    /// kubelet's root directory. It has the same path inside the pod as outside, and is shared with the node.
    #[arg(long, default_value = "/var/lib/kubelet")]
    pub kubelet: AbsolutePath,
    /// Where the volumes are.
    #[command(flatten)]
    pub place: Place,
    /// Where metrics and health are told.
    #[arg(long, default_value_t = LISTEN)]
    pub listen: SocketAddr,
    /// Whether pods are denied the calls by which they leave the limits of volumes, if the kernel supports it.
    #[arg(long, value_enum, default_value_t = Limits::Enforced)]
    pub limits: Limits,
    /// The cgroup of all pods, such as kubepods or kubepods.slice. Default: found above the cgroup of this process.
    #[arg(long)]
    pub pods_cgroup: Option<CgroupPath>,
    /// Where the host's /sys is mounted.
    #[arg(long, default_value = "/sys")]
    pub sys: AbsolutePath,
    /// kubelet's directory with links to the logs of containers, by which the pod of a denied call is found.
    #[arg(long, default_value = "/var/log/containers")]
    pub container_logs: AbsolutePath,
}

/// Whether pods can leave the limits of volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Limits {
    /// They cannot, if the kernel has BPF-LSM.
    Enforced,
    /// They can. Programs that were loaded before are removed.
    Advisory,
}

/// A cgroup, below the root of the hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupPath(PathBuf);

/// The text is not a [`CgroupPath`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a cgroup below the root of the hierarchy: use a path such as kubepods.slice, without a leading '/'"
)]
pub struct CgroupPathError(String);

impl CgroupPath {
    /// The path from the root of the hierarchy.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl FromStr for CgroupPath {
    type Err = CgroupPathError;

    fn from_str(text: &str) -> Result<Self, CgroupPathError> {
        let is_plain = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains('\0');
        if text.split('/').all(is_plain) { Ok(Self(text.into())) } else { Err(CgroupPathError(text.to_owned())) }
    }
}

/// What is done once for a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Release {
    /// Where health is told.
    #[arg(long, default_value_t = LISTEN)]
    pub listen: SocketAddr,
}

/// All addresses of the pod, the port of a node's status.
const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), STATUS_PORT);

/// Where volumes are, and how much they may take.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Place {
    /// A directory on an XFS that is mounted with prjquota.
    #[arg(long, default_value = "/var/lib/granary")]
    pub directory: AbsolutePath,
    /// Who uses the file system of the directory.
    #[arg(long, value_enum, default_value_t = Users::Own)]
    pub file_system: Users,
    /// Kept free on top of what others use: a size (20Gi), or a part of the file system (10%). Default: 2% of an own file
    /// system, 20% of a shared one.
    #[arg(long)]
    pub reserve: Option<Reserve>,
    /// How many times its size the file system may promise.
    #[arg(long, default_value_t = Overcommit::NONE)]
    pub overcommit: Overcommit,
}

impl Place {
    /// What is kept free of a file system of this size.
    pub fn reserved(&self, size: Bytes) -> Bytes {
        let default = match self.file_system {
            Users::Own => Reserve::Percent(2),
            Users::Shared => Reserve::Percent(20),
        };
        self.reserve.unwrap_or(default).of(size)
    }
}

/// Who uses the file system that the volumes are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Users {
    /// Volumes alone: the directory is where it is mounted. So a mount that is missing is noticed.
    Own,
    /// Others too, such as the system itself: what they use is measured.
    Shared,
}

/// What is kept free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// So much.
    Size(Bytes),
    /// So many hundredths of the file system, 99 at most.
    Percent(u8),
}

/// The text is no [`Reserve`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// It ends in a percent sign.
    #[error("{0:?} is no part of a file system: give a whole number from 0% to 99%")]
    Percent(String),
    /// It does not.
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

/// The name of a node, which is also the value of its label `kubernetes.io/hostname`: a DNS name of at most 63 characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeName(Box<str>);

/// The text is no [`NodeName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a node's name has 1 to 63 lower-case letters, digits, '-' and '.', and begins and ends, also at each '.', with a \
     letter or digit"
)]
pub struct NodeNameError;

impl NodeName {
    /// The name as text.
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
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let label =
            |part: &str| !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-');
        if text.len() <= 63 && text.split('.').all(label) { Ok(Self(text.into())) } else { Err(NodeNameError) }
    }
}

/// A path from the root, without `.` and `..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbsolutePath(PathBuf);

/// The text is no [`AbsolutePath`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no path of a directory: give one that begins with '/', is longer than that, and has no '..'")]
pub struct PathError(String);

impl AbsolutePath {
    /// The path.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl fmt::Display for AbsolutePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

impl FromStr for AbsolutePath {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Self, PathError> {
        let path: PathBuf = Path::new(text).components().collect();
        let plain = path.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
        let fine = path.is_absolute() && plain && path.components().count() > 1 && !text.contains('\0');
        if fine { Ok(Self(path)) } else { Err(PathError(text.to_owned())) }
    }
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
    fn a_node_has_defaults_for_everything_but_its_name() {
        let Task::Node(node) = parse("node --node=n1.example").unwrap() else { panic!("another task") };
        assert_eq!(node.node.as_str(), "n1.example");
        assert_eq!(node.kubelet.as_path(), Path::new("/var/lib/kubelet"));
        assert_eq!(node.place.directory.as_path(), Path::new("/var/lib/granary"));
        assert_eq!(node.place.file_system, Users::Own);
        assert_eq!(node.place.reserved(Bytes::new(1000 << 30)), Bytes::new((1000 << 30) / 100 * 2));
        assert_eq!(node.listen.to_string(), "0.0.0.0:7839");
        assert_eq!((node.limits, node.pods_cgroup), (Limits::Enforced, None));
        assert!(parse("node").unwrap_err().contains("--node"));
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_a_remedy() {
        for (line, remedy) in [
            ("node --node=N1", "lower-case letters"),
            ("node --node=n1 --kubelet=var/lib/kubelet", "begins with '/'"),
            ("check --directory=/", "longer than that"),
            ("check --directory=/data/../etc", "no '..'"),
            ("check --reserve=100%", "0% to 99%"),
            ("check --reserve=much", "give a size like"),
            ("check --overcommit=0.5", "from 1.0 to 100.0"),
            ("check --file-system=mine", "[possible values: own, shared]"),
            ("node --node=n1 --listen=7839", "invalid socket address"),
            ("node --node=n1 --limits=off", "[possible values: enforced, advisory]"),
            ("node --node=n1 --pods-cgroup=/kubepods", "without a leading '/'"),
            ("node --node=n1 --pods-cgroup=kubepods/../x", "such as kubepods.slice"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(remedy), "{line}: {error}");
        }
    }

    #[test]
    fn a_reserve_is_a_size_or_a_part() {
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
    fn a_nodes_name_is_one_that_a_label_can_have() {
        for right in ["n", "ip-10-0-0-1.example.internal", "1", &"n".repeat(63)] {
            assert_eq!(right.parse::<NodeName>().unwrap().as_str(), right);
        }
        for wrong in ["", "-n", "n-", "n.", ".n", "a..b", "a.-b", "a_b", "a b", "'", &"n".repeat(64)] {
            assert!(wrong.parse::<NodeName>().is_err(), "{wrong}");
        }
    }
}
