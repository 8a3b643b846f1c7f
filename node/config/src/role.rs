//! What a node is to its cluster.

use std::net::{Ipv4Addr, SocketAddrV4};

use cluster::{
    API_PORT, Addresses, CaDigest, NODE_PREFIX, PodSecurity, SecretKey, SecretStorage, Static, Token, Uplink, address,
};
use ipnet::Ipv4Net;
use proto::node;
use proto::node::config::Role as RoleMessage;

use crate::config::Check;
use crate::problem::{Path, What};

/// What a node is to its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It has a cluster of its own.
    ControlPlane(ControlPlane),
    /// It joins the cluster of a control plane.
    Worker(Worker),
}

impl Role {
    /// The cluster's networks.
    pub fn networks(&self) -> Networks {
        match self {
            Self::ControlPlane(own) => own.networks,
            Self::Worker(worker) => worker.networks,
        }
    }

    /// The API server of a node with this address.
    pub fn api_server(&self, address: Ipv4Addr) -> SocketAddrV4 {
        match self {
            Self::ControlPlane(_) => SocketAddrV4::new(address, API_PORT),
            Self::Worker(Worker { server, .. }) => *server,
        }
    }

    /// The field of the configuration that has this role.
    pub fn field(&self) -> &'static str {
        match self {
            Self::ControlPlane(_) => "controlPlane",
            Self::Worker(_) => "worker",
        }
    }
}

impl Default for Role {
    fn default() -> Self {
        Self::ControlPlane(ControlPlane::default())
    }
}

/// A node with a cluster of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlPlane {
    /// The cluster's networks.
    pub networks: Networks,
    /// What the API server enforces in namespaces without a label.
    pub pod_security: PodSecurity,
    /// How the API server stores Secrets.
    pub secret_storage: SecretStorage,
    /// The key that encrypts Secrets.
    pub secret_key: SecretKey,
}

/// A node that joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// The control plane's API server.
    pub server: SocketAddrV4,
    /// The cluster's authority.
    pub authority: CaDigest,
    /// What it joins with, if it has not joined before.
    pub token: Option<Token>,
    /// As the control plane has them.
    pub networks: Networks,
}

/// The cluster's networks, which have no address in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Networks {
    /// Of all pods; has a part of [`NODE_PREFIX`] bits for each node.
    pub pods: Ipv4Net,
    /// Of Services.
    pub services: Ipv4Net,
}

const PODS: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 244, 0, 0), 16);
const SERVICES: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 96, 0, 0), 16);
/// The API server wants an address, DNS another, and there are more Services; it takes no larger network.
const SERVICE_PREFIXES: (u8, u8) = (12, 27);
const POD_PREFIXES: (u8, u8) = (8, NODE_PREFIX);

impl Default for Networks {
    fn default() -> Self {
        Self { pods: PODS, services: SERVICES }
    }
}

impl Check {
    pub(crate) fn role(&mut self, role: Option<&RoleMessage>, network: &Uplink, top: &Path) -> Role {
        let usual = RoleMessage::ControlPlane(node::ControlPlane::default());
        match role.unwrap_or(&usual) {
            RoleMessage::ControlPlane(message) => {
                let here = top.field("controlPlane");
                let (pods, services) = (message.pod_network.as_deref(), message.service_network.as_deref());
                Role::ControlPlane(ControlPlane {
                    networks: self.networks(pods, services, network, &here, top),
                    pod_security: match message.pod_security() {
                        node::PodSecurity::Unspecified | node::PodSecurity::Baseline => PodSecurity::Baseline,
                        node::PodSecurity::Privileged => PodSecurity::Privileged,
                        node::PodSecurity::Restricted => PodSecurity::Restricted,
                    },
                    secret_storage: match message.secret_storage() {
                        node::SecretStorage::Unspecified | node::SecretStorage::Encrypted => SecretStorage::Encrypted,
                        node::SecretStorage::Plain => SecretStorage::Plain,
                    },
                    secret_key: message.secret_key.map_or_else(SecretKey::default, |found| {
                        SecretKey::new(found).unwrap_or_else(|| {
                            let range = What::Range { found: found.into(), least: 1, most: u32::MAX.into() };
                            self.problem(&here.field("secretKey"), range);
                            SecretKey::default()
                        })
                    }),
                })
            }
            // One that cannot be had is not used: the problems are told.
            RoleMessage::Worker(message) => self.worker(message, network, top).map_or_else(Role::default, Role::Worker),
        }
    }

    fn worker(&mut self, message: &node::Worker, network: &Uplink, top: &Path) -> Option<Worker> {
        let here = top.field("worker");
        let at_server = here.field("server");
        for (field, given) in [("server", &message.server), ("authority", &message.authority)] {
            if given.is_none() {
                self.problem(&here.field(field), What::Missing);
            }
        }
        let (pods, services) = (message.pod_network.as_deref(), message.service_network.as_deref());
        let networks = self.networks(pods, services, network, &here, top);
        let server = self.parse(message.server.as_deref(), address::server, &at_server);
        if let Some(address) = server.map(|server| *server.ip()) {
            self.is_outside(address, networks, &at_server, &here);
            if matches!(network.addresses, Addresses::Static(Static { interface, .. }) if interface.addr() == address) {
                self.problem(&at_server, What::Own(address));
            }
        }
        let authority = self.text(message.authority.as_deref(), &here.field("authority"));
        let token = self.text(message.token.as_deref(), &here.field("token"));
        Some(Worker { server: server?, authority: authority?, token, networks })
    }

    fn networks(
        &mut self,
        pods: Option<&str>,
        services: Option<&str>,
        network: &Uplink,
        here: &Path,
        top: &Path,
    ) -> Networks {
        let at_services = here.field("serviceNetwork");
        let pods = self.subnet(pods, POD_PREFIXES, PODS, &here.field("podNetwork"));
        let services = self.subnet(services, SERVICE_PREFIXES, SERVICES, &at_services);
        if pods.contains(&services) || services.contains(&pods) {
            let whose = here.field("podNetwork").to_string();
            self.problem(&at_services, What::Overlap { network: services, other: pods, whose });
        }
        let networks = Networks { pods, services };
        if let Addresses::Static(Static { interface, .. }) = network.addresses {
            self.is_outside(interface.addr(), networks, &top.field("network.static.address"), here);
        }
        networks
    }

    /// No machine has an address of the cluster's networks, which stand `here`.
    fn is_outside(&mut self, address: Ipv4Addr, networks: Networks, path: &Path, here: &Path) {
        for (network, field) in [(networks.pods, "podNetwork"), (networks.services, "serviceNetwork")] {
            if network.contains(&address) {
                self.problem(path, What::Inside { address, network, whose: here.field(field).to_string() });
            }
        }
    }

    fn subnet(&mut self, text: Option<&str>, (least, most): (u8, u8), usual: Ipv4Net, path: &Path) -> Ipv4Net {
        let Some(subnet) = self.parse(text, address::network, path) else { return usual };
        let found = subnet.prefix_len();
        if (least..=most).contains(&found) {
            return subnet;
        }
        self.problem(path, What::Size { least, most, found });
        usual
    }
}
