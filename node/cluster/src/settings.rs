//! Settings of a node that its configuration and other components share.

use std::fmt;
use std::net::Ipv4Addr;
use std::num::NonZeroU32;

use ipnet::Ipv4Net;

use crate::{AdministratorRequest, Card, ClusterDomain, Images};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uplink {
    pub card: Card,
    pub addresses: Addresses,
    /// MTU in bytes; that of DHCP or the device if omitted.
    pub mtu: Option<u32>,
    /// Name servers; those of DHCP if empty.
    pub name_servers: Vec<Ipv4Addr>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Addresses {
    #[default]
    Dhcp,
    Static(Static),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Static {
    /// The node's address with the prefix of its network.
    pub interface: Ipv4Net,
    pub gateway: Option<Ipv4Addr>,
}

/// Settings of the node's programs, which the configuration validates and the programs use. A worker ignores those of
/// the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramSettings {
    pub pod_security: PodSecurity,
    pub secret_storage: SecretStorage,
    pub secret_key: SecretKey,
    pub pod_processes: PodProcesses,
    pub images: Images,
    pub cluster_domain: ClusterDomain,
    pub networking: Networking,
    /// Users with all rights in the cluster, each with another name.
    pub administrators: Vec<AdministratorRequest>,
}

/// Provider of the pods' network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Networking {
    /// The node: links of pods, rules for packets, the mesh and kube-proxy.
    #[default]
    BuiltIn,
    /// A CNI plugin that the administrator installs in the cluster.
    Plugin(ServiceProxy),
}

impl Networking {
    /// Whether the node runs kube-proxy.
    pub const fn has_kube_proxy(self) -> bool {
        matches!(self, Self::BuiltIn | Self::Plugin(ServiceProxy::KubeProxy))
    }
}

/// Translation of the addresses of Services beside a CNI plugin of the administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceProxy {
    KubeProxy,
    /// The plugin, or a program that the administrator installs.
    Plugin,
}

/// Level of the Pod Security Standards that the API server enforces in namespaces without a label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodSecurity {
    Privileged,
    #[default]
    Baseline,
    Restricted,
}

impl fmt::Display for PodSecurity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        })
    }
}

/// Form in which the API server writes Secrets to etcd. The API server reads both forms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SecretStorage {
    #[default]
    Encrypted,
    /// Not encrypted, for a downgrade to a release that cannot read encrypted Secrets.
    Plain,
}

/// Number of the key that encrypts Secrets, from 1. A larger number is a newer key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretKey(NonZeroU32);

impl SecretKey {
    pub fn new(number: u32) -> Option<Self> {
        NonZeroU32::new(number).map(Self)
    }

    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

impl Default for SecretKey {
    fn default() -> Self {
        Self(NonZeroU32::MIN)
    }
}

impl fmt::Display for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Maximum number of processes and threads of a pod (`podPidsLimit`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodProcesses(u32);

impl PodProcesses {
    pub const fn new(count: u32) -> Self {
        Self(count)
    }

    pub const fn get(self) -> u32 {
        self.0
    }
}

impl Default for PodProcesses {
    fn default() -> Self {
        Self(1024)
    }
}
