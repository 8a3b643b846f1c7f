use std::net::{Ipv4Addr, SocketAddrV4};

use cluster::{
    API_PORT, Addresses, AdministratorRequest, CaDigest, NODE_PREFIX, PodSecurity, ProgramSettings, SecretKey,
    SecretStorage, Static, Token, Uplink, address,
};
use ipnet::Ipv4Net;
use proto::node;
use proto::node::config::Role as RoleMessage;

use crate::config::Check;
use crate::problem::{FieldPath, Violation};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    ControlPlane(Networks),
    Worker(Worker),
}

impl Role {
    pub fn networks(&self) -> Networks {
        match self {
            Self::ControlPlane(networks) => *networks,
            Self::Worker(worker) => worker.networks,
        }
    }

    pub fn api_server(&self, address: Ipv4Addr) -> SocketAddrV4 {
        match self {
            Self::ControlPlane(_) => SocketAddrV4::new(address, API_PORT),
            Self::Worker(worker) => worker.server,
        }
    }

    pub fn field(&self) -> &'static str {
        match self {
            Self::ControlPlane(_) => "controlPlane",
            Self::Worker(_) => "worker",
        }
    }
}

impl Default for Role {
    fn default() -> Self {
        Self::ControlPlane(Networks::default())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    pub server: SocketAddrV4,
    pub ca: CaDigest,
    /// Not needed after the first join.
    pub token: Option<Token>,
    /// The same networks as on the control plane.
    pub networks: Networks,
}

/// The cluster's networks, which do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Networks {
    /// Each node gets a part with a prefix of [`NODE_PREFIX`].
    pub pods: Ipv4Net,
    pub services: Ipv4Net,
}

const PODS: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 244, 0, 0), 16);
const SERVICES: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 96, 0, 0), 16);
/// The API server supports at most 2^20 Services; API server, DNS and other Services need some addresses.
const SERVICE_PREFIXES: (u8, u8) = (12, 27);
const POD_PREFIXES: (u8, u8) = (8, NODE_PREFIX);
const ADMINISTRATORS: usize = 16;

impl Default for Networks {
    fn default() -> Self {
        Self { pods: PODS, services: SERVICES }
    }
}

impl Check {
    pub(crate) fn role(
        &mut self,
        role: Option<&RoleMessage>,
        network: &Uplink,
        top: &FieldPath,
        programs: &mut ProgramSettings,
    ) -> Role {
        match role.unwrap_or(&RoleMessage::ControlPlane(node::ControlPlane::default())) {
            RoleMessage::ControlPlane(message) => {
                let here = top.field("controlPlane");
                let (pods, services) = (message.pod_network.as_deref(), message.service_network.as_deref());
                let secret_key = self.in_range(message.secret_key, (1, u32::MAX), &here.field("secretKey"));
                programs.secret_key = secret_key.and_then(SecretKey::new).unwrap_or_default();
                programs.pod_security = match message.pod_security() {
                    node::PodSecurity::Unspecified | node::PodSecurity::Baseline => PodSecurity::Baseline,
                    node::PodSecurity::Privileged => PodSecurity::Privileged,
                    node::PodSecurity::Restricted => PodSecurity::Restricted,
                };
                programs.secret_storage = match message.secret_storage() {
                    node::SecretStorage::Unspecified | node::SecretStorage::Encrypted => SecretStorage::Encrypted,
                    node::SecretStorage::Plain => SecretStorage::Plain,
                };
                let at_requests = here.field("administratorRequests");
                programs.administrators = self.administrators(&message.administrator_requests, &at_requests);
                Role::ControlPlane(self.networks(pods, services, network, &here, top))
            }
            // The problems of an invalid role are collected.
            RoleMessage::Worker(message) => self.worker(message, network, top).map_or_else(Role::default, Role::Worker),
        }
    }

    fn administrators(&mut self, texts: &[String], path: &FieldPath) -> Vec<AdministratorRequest> {
        self.at_most(ADMINISTRATORS, texts.len(), path);
        let mut requests = Vec::<AdministratorRequest>::new();
        for (index, text) in texts.iter().enumerate() {
            let path = path.item(index);
            let Some(request) = self.text::<AdministratorRequest>(Some(text), &path) else { continue };
            if requests.iter().any(|other| other.name() == request.name()) {
                self.problem(&path, Violation::Listed(request.name().to_owned()));
            }
            requests.push(request);
        }
        requests
    }

    fn worker(&mut self, message: &node::Worker, network: &Uplink, top: &FieldPath) -> Option<Worker> {
        let here = top.field("worker");
        let (at_server, at_ca) = (here.field("server"), here.field("authority"));
        self.require(message.server.is_some(), &at_server);
        self.require(message.authority.is_some(), &at_ca);
        let (pods, services) = (message.pod_network.as_deref(), message.service_network.as_deref());
        let networks = self.networks(pods, services, network, &here, top);
        let server = self.parse(message.server.as_deref(), address::server, &at_server);
        if let Some(address) = server.map(|server| *server.ip()) {
            self.is_outside(address, networks, &at_server, &here);
            if matches!(network.addresses, Addresses::Static(Static { interface, .. }) if interface.addr() == address) {
                self.problem(&at_server, Violation::OwnAddress(address));
            }
        }
        let ca = self.text(message.authority.as_deref(), &at_ca);
        let token = self.text(message.token.as_deref(), &here.field("token"));
        Some(Worker { server: server?, ca: ca?, token, networks })
    }

    fn networks(
        &mut self,
        pods: Option<&str>,
        services: Option<&str>,
        network: &Uplink,
        here: &FieldPath,
        top: &FieldPath,
    ) -> Networks {
        let at_services = here.field("serviceNetwork");
        let pods = self.subnet(pods, POD_PREFIXES, PODS, &here.field("podNetwork"));
        let services = self.subnet(services, SERVICE_PREFIXES, SERVICES, &at_services);
        if pods.contains(&services) || services.contains(&pods) {
            let owner = here.field("podNetwork").to_string();
            self.problem(&at_services, Violation::Overlap { network: services, other: pods, owner });
        }
        let networks = Networks { pods, services };
        if let Addresses::Static(Static { interface, .. }) = network.addresses {
            self.is_outside(interface.addr(), networks, &top.field("network.static.address"), here);
        }
        networks
    }

    /// Machines have no addresses in the cluster's networks, which are fields of `here`.
    fn is_outside(&mut self, address: Ipv4Addr, networks: Networks, path: &FieldPath, here: &FieldPath) {
        for (network, field) in [(networks.pods, "podNetwork"), (networks.services, "serviceNetwork")] {
            if network.contains(&address) {
                self.problem(path, Violation::Inside { address, network, owner: here.field(field).to_string() });
            }
        }
    }

    fn subnet(&mut self, text: Option<&str>, (least, most): (u8, u8), default: Ipv4Net, path: &FieldPath) -> Ipv4Net {
        let Some(subnet) = self.parse(text, address::network, path) else { return default };
        let found = subnet.prefix_len();
        if (least..=most).contains(&found) {
            return subnet;
        }
        self.problem(path, Violation::Prefix { least, most, found });
        default
    }
}
