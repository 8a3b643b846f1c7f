//! Configuration of the node's Kubernetes programs.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;

use cluster::{API_PORT, MESH_PORT, ProgramSettings};
use ipnet::Ipv4Net;
use units::Bytes;

use crate::Confinement;

/// Every combination of valid fields is valid. [`Default`] is a control plane with the default settings of a node, for
/// tests.
#[derive(Clone, Debug)]
pub struct Config {
    /// A DNS label.
    pub node: String,
    pub address: Ipv4Addr,
    /// Kernel name of the interface to other machines.
    pub uplink: String,
    /// On a control plane, [`address`](Self::address) with [`API_PORT`]. On a worker, the control plane's address.
    pub api_server: SocketAddrV4,
    pub services: Ipv4Net,
    /// Addresses of all pods of the cluster; each node has a part of [`cluster::NODE_PREFIX`] bits.
    pub cluster_pods: Ipv4Net,
    pub mesh: Mesh,
    pub durability: Durability,
    pub settings: ProgramSettings,
    pub disk: Disk,
    pub paths: Paths,
}

impl Default for Config {
    fn default() -> Self {
        let address = Ipv4Addr::new(10, 0, 2, 15);
        Self {
            node: "granary".into(),
            address,
            uplink: "eth0".into(),
            api_server: SocketAddrV4::new(address, API_PORT),
            services: Ipv4Net::new_assert(Ipv4Addr::new(10, 96, 0, 0), 16),
            cluster_pods: Ipv4Net::new_assert(Ipv4Addr::new(10, 244, 0, 0), 16),
            mesh: Mesh { interface: "clusternet", port: MESH_PORT, mtu: 1420 },
            durability: Durability::Durable,
            settings: ProgramSettings::default(),
            disk: Disk {
                size: Bytes::new(8 << 30),
                etcd: Bytes::new(480 << 20),
                pods: Bytes::new(320 << 20),
                audit: Bytes::new(40 << 20),
            },
            paths: Paths::default(),
        }
    }
}

impl Config {
    /// Address of the Service `default/kubernetes`: the first address of the Service network.
    pub(crate) fn api_service(&self) -> Option<Ipv4Addr> {
        self.services.hosts().next()
    }

    /// Networks that must not contain a worker's address: Services, pods, and the API server's address.
    pub fn not_for_workers(&self) -> Vec<Ipv4Net> {
        vec![self.services, self.cluster_pods, (*self.api_server.ip()).into()]
    }

    /// Address of the Service `kube-system/kube-dns`: the tenth address of the Service network. Each node answers its
    /// own pods at this address.
    pub fn dns_service(&self) -> Ipv4Addr {
        // The prefix length is at most 27, so the network has a tenth address.
        Ipv4Addr::from_bits(self.services.network().to_bits() | 10)
    }
}

/// The tunnels that carry packets to pods of other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    pub interface: &'static str,
    pub port: u16,
    pub mtu: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    #[default]
    Durable,
    /// No fsync: tests that need speed use it.
    UnsafeNoFsync,
}

/// Size of the data disk, and the limits that follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    pub size: Bytes,
    pub etcd: Bytes,
    pub pods: Bytes,
    /// The limit of the directory of the API server's audit log.
    pub audit: Bytes,
}

/// Paths of programs, data and state, and the limits under which programs run. [`Default`] is the node image's layout.
#[derive(Clone, Debug)]
pub struct Paths {
    pub programs: PathBuf,
    /// CNI plugins of the image.
    pub cni_programs: PathBuf,
    /// Directories to which DaemonSets of CNI plugins install programs and configurations
    /// ([`cluster::Networking::Plugin`]).
    pub installed_cni_programs: PathBuf,
    pub installed_cni_configurations: PathBuf,
    /// Directory with the settings of registries that an administrator adds while the node runs.
    pub installed_registries: PathBuf,
    /// Directory of the OCI archives that belong to the image.
    pub images: PathBuf,
    pub resolv_conf: PathBuf,
    /// Root of the cgroup2 hierarchy. With `None`, programs stay in the cgroup of their parent.
    pub cgroups: Option<PathBuf>,
    pub confinement: Confinement,
    /// Memory of the machine, which programs and pods share. With `None`, programs have no memory limits.
    pub memory: Option<Bytes>,
    /// Keys and certificates. This directory and the next ones are on the data disk.
    pub pki: PathBuf,
    pub etcd: PathBuf,
    pub kubelet: PathBuf,
    pub kubelet_pki: PathBuf,
    pub containerd: PathBuf,
    pub pod_logs: PathBuf,
    pub audit: PathBuf,
    /// Files that a reboot deletes: sockets, state, generated configuration. The path must be short, because a socket
    /// path has at most 107 bytes.
    pub ephemeral: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            programs: "/usr/bin".into(),
            cni_programs: "/usr/libexec/cni".into(),
            installed_cni_programs: "/opt/cni/bin".into(),
            installed_cni_configurations: "/etc/cni/net.d".into(),
            installed_registries: "/etc/containerd/certs.d".into(),
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
    pub fn containerd_socket(&self) -> PathBuf {
        self.ephemeral.join("containerd/containerd.sock")
    }

    pub fn csi_plugins(&self) -> PathBuf {
        self.kubelet.join("plugins")
    }

    pub fn csi_registrations(&self) -> PathBuf {
        self.kubelet.join("plugins_registry")
    }

    /// A file that is generated at each start of its program.
    pub(crate) fn generated(&self, name: &str) -> PathBuf {
        self.ephemeral.join("config").join(name)
    }

    pub(crate) fn scratches(&self) -> PathBuf {
        self.ephemeral.join("programs")
    }

    /// Directory for temporary files of a program that has its own user.
    pub(crate) fn scratch(&self, program: &str) -> PathBuf {
        self.scratches().join(program)
    }

    /// Directory of the files with name servers and host names, the targets of links in `/etc`.
    pub(crate) fn names(&self) -> PathBuf {
        self.ephemeral.join("etc")
    }

    pub(crate) fn flex_volumes(&self) -> PathBuf {
        self.ephemeral.join("flexvolume")
    }

    pub(crate) fn temporary(&self) -> PathBuf {
        self.ephemeral.join("tmp")
    }
}

#[cfg(test)]
pub(crate) fn example_in(directory: &std::path::Path) -> Config {
    let paths = Paths { pki: directory.join("pki"), etcd: directory.join("etcd"), ..Paths::default() };
    Config { paths, ..Config::default() }
}

/// Adds credentials in a temporary directory, which is removed on drop.
#[cfg(test)]
pub(crate) fn with_credentials(mut config: Config) -> (Config, crate::Credentials, tempfile::TempDir) {
    let scratch = tempfile::tempdir().unwrap();
    config.paths.pki = scratch.path().join("pki");
    let etcd = std::mem::replace(&mut config.paths.etcd, scratch.path().join("etcd"));
    let credentials = crate::Credentials::ensure(&config, time::OffsetDateTime::now_utc()).unwrap();
    config.paths.etcd = etcd;
    (config, credentials, scratch)
}
