//! What the services are told about their node.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;

use cluster::{PodProcesses, PodSecurity, SecretKey, SecretStorage};
use ipnet::Ipv4Net;
use units::Bytes;

use crate::Confinement;

/// A control plane node. Every combination of valid fields is valid.
#[derive(Clone, Debug)]
pub struct Config {
    /// The node's name, also of its Node object: a DNS label.
    pub node: String,
    /// The address by which others reach the node.
    pub address: Ipv4Addr,
    /// The API server: of a control plane [`address`](Self::address) with [`cluster::API_PORT`], of a worker another node's.
    pub api_server: SocketAddrV4,
    /// Cluster addresses of Services.
    pub services: Ipv4Net,
    /// Addresses of all pods of the cluster; each node has a part of [`cluster::NODE_PREFIX`] bits.
    pub cluster_pods: Ipv4Net,
    /// The way to pods of other nodes.
    pub mesh: Mesh,
    /// Whether etcd waits for the disk.
    pub durability: Durability,
    /// What the API server enforces in namespaces without a label.
    pub pod_security: PodSecurity,
    /// How the API server stores Secrets in etcd.
    pub secret_storage: SecretStorage,
    /// The key that Secrets are encrypted with.
    pub secret_key: SecretKey,
    /// Most processes and threads of one pod.
    pub pod_processes: PodProcesses,
    /// What programs may take of the data disk.
    pub disk: Disk,
    /// Where things are.
    pub paths: Paths,
}

impl Config {
    /// The Service `default/kubernetes`: the first address of its network.
    pub(crate) fn api_service(&self) -> Option<Ipv4Addr> {
        self.services.hosts().next()
    }

    /// Kept for the cluster's DNS service.
    pub(crate) fn dns_service(&self) -> Option<Ipv4Addr> {
        self.services.hosts().nth(9)
    }
}

/// What carries packets to pods of other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// The network interface.
    pub interface: &'static str,
    /// The UDP port of its tunnels, on every node.
    pub port: u16,
    /// The largest packet that it carries, in bytes.
    pub mtu: u32,
}

/// Whether etcd's writes survive a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// They do.
    #[default]
    Durable,
    /// They need not: a test wants speed.
    UnsafeNoFsync,
}

/// The data disk, and the limits that it sets to programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The whole, as `statfs` tells it.
    pub size: Bytes,
    /// The limit of etcd's directory.
    pub etcd: Bytes,
    /// The limit of kubelet's directory of pods.
    pub pods: Bytes,
    /// The limit of the directory of the API server's audit log.
    pub audit: Bytes,
}

/// Where programs, data and state are, and what they run in. [`Default`] is the node image's layout.
#[derive(Clone, Debug)]
pub struct Paths {
    /// Directory of the programs.
    pub programs: PathBuf,
    /// Directory of the CNI plugins.
    pub cni_programs: PathBuf,
    /// Directory of the OCI archives that belong to the image.
    pub images: PathBuf,
    /// Resolver configuration that pods inherit.
    pub resolv_conf: PathBuf,
    /// Root of the cgroup2 hierarchy; with `None` programs stay in the cgroup of their parent.
    pub cgroups: Option<PathBuf>,
    /// Whether programs are confined to their rights.
    pub confinement: Confinement,
    /// Memory of the machine, which programs and pods share; with `None` nobody has a limit.
    pub memory: Option<Bytes>,
    /// Keys and certificates; on the data disk, as the next ones.
    pub pki: PathBuf,
    /// etcd's database.
    pub etcd: PathBuf,
    /// kubelet's root directory.
    pub kubelet: PathBuf,
    /// Certificates that kubelet asks for itself.
    pub kubelet_pki: PathBuf,
    /// containerd's images and snapshots.
    pub containerd: PathBuf,
    /// Logs of containers.
    pub pod_logs: PathBuf,
    /// The API server's audit log.
    pub audit: PathBuf,
    /// What is gone after a reboot: sockets, state, generated configuration. Short: socket paths have 107 bytes.
    pub ephemeral: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            programs: "/usr/bin".into(),
            cni_programs: "/opt/cni/bin".into(),
            images: "/images".into(),
            resolv_conf: "/etc/resolv.conf".into(),
            cgroups: Some("/sys/fs/cgroup".into()),
            confinement: Confinement::Enforced,
            memory: None,
            pki: "/data/pki".into(),
            etcd: "/data/etcd".into(),
            kubelet: "/data/kubelet".into(),
            kubelet_pki: "/data/kubelet-pki".into(),
            containerd: "/data/containerd".into(),
            pod_logs: "/data/log/pods".into(),
            audit: "/data/log/audit".into(),
            ephemeral: "/ephemeral".into(),
        }
    }
}

impl Paths {
    /// containerd's socket.
    pub fn containerd_socket(&self) -> PathBuf {
        self.ephemeral.join("containerd/containerd.sock")
    }

    /// The directory of the sockets of CSI plugins.
    pub fn csi_plugins(&self) -> PathBuf {
        self.kubelet.join("plugins")
    }

    /// The directory in which kubelet looks for registration sockets.
    pub fn csi_registrations(&self) -> PathBuf {
        self.kubelet.join("plugins_registry")
    }

    /// A file that is generated at every start of its program.
    pub(crate) fn generated(&self, name: &str) -> PathBuf {
        self.ephemeral.join("config").join(name)
    }

    /// The directories of [`scratch`](Self::scratch).
    pub(crate) fn scratches(&self) -> PathBuf {
        self.ephemeral.join("programs")
    }

    /// Where a program with a user of its own writes what it does not need after a restart.
    pub(crate) fn scratch(&self, program: &str) -> PathBuf {
        self.scratches().join(program)
    }

    /// Name servers and names of hosts, to which links in `/etc` lead.
    pub(crate) fn names(&self) -> PathBuf {
        self.ephemeral.join("etc")
    }

    /// kubelet insists on a directory of FlexVolume drivers.
    pub(crate) fn flex_volumes(&self) -> PathBuf {
        self.ephemeral.join("flexvolume")
    }

    pub(crate) fn temporary(&self) -> PathBuf {
        self.ephemeral.join("tmp")
    }
}

#[cfg(test)]
pub(crate) fn example() -> Config {
    use cluster::{API_PORT, MESH_PORT};

    Config {
        node: "granary".into(),
        address: Ipv4Addr::new(10, 0, 2, 15),
        api_server: SocketAddrV4::new(Ipv4Addr::new(10, 0, 2, 15), API_PORT),
        services: "10.96.0.0/16".parse().unwrap(),
        cluster_pods: "10.244.0.0/16".parse().unwrap(),
        mesh: Mesh { interface: "clusternet", port: MESH_PORT, mtu: 1420 },
        durability: Durability::Durable,
        pod_security: PodSecurity::Baseline,
        secret_storage: SecretStorage::Encrypted,
        secret_key: SecretKey::default(),
        pod_processes: PodProcesses::default(),
        disk: Disk {
            size: Bytes::new(8 << 30),
            etcd: Bytes::new(480 << 20),
            pods: Bytes::new(320 << 20),
            audit: Bytes::new(40 << 20),
        },
        paths: Paths::default(),
    }
}
