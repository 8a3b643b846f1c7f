use std::net::Ipv4Addr;
use std::str::FromStr;

use cluster::{
    Addresses, Card, Networking, Overcommit, PodProcesses, ProgramSettings, ServiceProxy, Static, Uplink, address,
};
use kernel::modules::ModuleName;
use proto::node::network::{Addresses as AddressesMessage, Card as CardMessage};
use proto::node::storage::Disk as DiskMessage;
use proto::node::{self, Component};
use units::Bytes;

use crate::json::Json;
use crate::message;
use crate::name::NodeName;
use crate::problem::{FieldPath, ParseError, Problem, Violation};
use crate::role::Role;

/// Configuration of a node. [`Default`] is that of `{}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub node: NodeName,
    pub role: Role,
    pub network: Uplink,
    /// NTP servers in order of preference. If empty, the node uses those of DHCP.
    pub time_servers: Vec<Ipv4Addr>,
    pub storage: Storage,
    pub on_failure: FailureAction,
    pub programs: ProgramSettings,
    /// Modules to load in addition to those of every node. This crate does not check that the image contains them.
    pub kernel_modules: Vec<ModuleName>,
}

/// IPv4 requires 576 (RFC 791); the MTU of a device has 16 bits.
const MTU: (u32, u32) = (576, 65_535);
/// Resolvers use at most three, resolv.conf(5).
const NAME_SERVERS: usize = 3;
const TIME_SERVERS: usize = 8;
const KERNEL_MODULES: usize = 128;
/// A Go program has dozens of threads in system calls. Above the maximum, one pod can exhaust the PIDs of the node.
const POD_PROCESSES: (u32, u32) = (64, 65_536);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    pub disk: Disk,
    /// Bytes that are not reserved for volumes.
    pub keep_free: Bytes,
    pub overcommit: Overcommit,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Disk {
    /// The disk that is designated by type or serial number, otherwise the only empty disk.
    #[default]
    Any,
    Serial(String),
    Partition(String),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailureAction {
    #[default]
    PowerOff,
    Reboot,
}

impl Config {
    /// Parses the JSON form of `granary.node.v1.Config`. The error contains all problems.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let json: Json = serde_json::from_str(text).map_err(ParseError::Syntax)?;
        let (message, mut problems) = message::read(&json)?;
        let mut check = Check::default();
        let config = check.config(&message);
        // A field that could not be read is missing in the message; report only the first problem.
        let unread: Vec<String> = problems.iter().map(|problem| problem.field.clone()).collect();
        problems.extend(check.problems.into_iter().filter(|problem| !unread.contains(&problem.field)));
        if problems.is_empty() { Ok(config) } else { Err(ParseError::Problems(problems)) }
    }
}

/// Collects problems. Continues with defaults for invalid fields, so that the others are checked.
#[derive(Default)]
pub(crate) struct Check {
    problems: Vec<Problem>,
}

impl Check {
    fn config(&mut self, message: &node::Config) -> Config {
        let top = FieldPath::default();
        let network = self.network(message.network.as_ref(), &top.field("network"));
        let pod_processes = self.in_range(message.pod_processes, POD_PROCESSES, &top.field("podProcesses"));
        let pod_processes = pod_processes.map(PodProcesses::new).unwrap_or_default();
        let images = self.images(message, &top);
        let cluster_domain =
            self.text(message.cluster_domain.as_deref(), &top.field("clusterDomain")).unwrap_or_default();
        let networking = self.networking(message.cni(), message.kube_proxy(), &top.field("kubeProxy"));
        let mut programs =
            ProgramSettings { pod_processes, images, cluster_domain, networking, ..ProgramSettings::default() };
        Config {
            node: self.text(message.node_name.as_deref(), &top.field("nodeName")).unwrap_or_default(),
            role: self.role(message.role.as_ref(), &network, &top, &mut programs),
            network,
            time_servers: self.list(&message.time_servers, TIME_SERVERS, address::host, &top.field("timeServers")),
            storage: self.storage(message.storage.as_ref(), &top.field("storage")),
            on_failure: match message.on_failure() {
                node::FailureAction::Unspecified | node::FailureAction::PowerOff => FailureAction::PowerOff,
                node::FailureAction::Reboot => FailureAction::Reboot,
            },
            programs,
            kernel_modules: self.list(&message.kernel_modules, KERNEL_MODULES, str::parse, &top.field("kernelModules")),
        }
    }

    fn networking(&mut self, cni: Component, kube_proxy: Component, at_kube_proxy: &FieldPath) -> Networking {
        match (cni, kube_proxy) {
            (Component::None, Component::None) => Networking::Plugin(ServiceProxy::Plugin),
            (Component::None, Component::Unspecified | Component::BuiltIn) => {
                Networking::Plugin(ServiceProxy::KubeProxy)
            }
            (Component::Unspecified | Component::BuiltIn, Component::None) => {
                self.problem(at_kube_proxy, Violation::KubeProxy);
                Networking::BuiltIn
            }
            (Component::Unspecified | Component::BuiltIn, Component::Unspecified | Component::BuiltIn) => {
                Networking::BuiltIn
            }
        }
    }

    fn network(&mut self, message: Option<&node::Network>, path: &FieldPath) -> Uplink {
        let Some(message) = message else { return Uplink::default() };
        Uplink {
            card: match &message.card {
                None => Some(Card::First),
                Some(CardMessage::Interface(name)) => self.parse(Some(name), Card::interface, &path.field("interface")),
                Some(CardMessage::Mac(address)) => self.parse(Some(address), Card::mac, &path.field("mac")),
                Some(CardMessage::Driver(name)) => self.parse(Some(name), Card::driver, &path.field("driver")),
            }
            .unwrap_or_default(),
            mtu: self.in_range(message.mtu, MTU, &path.field("mtu")),
            addresses: match &message.addresses {
                None | Some(AddressesMessage::Dhcp(node::Dhcp {})) => Addresses::Dhcp,
                Some(AddressesMessage::Static(message)) => {
                    self.fixed(message, &path.field("static")).map_or(Addresses::Dhcp, Addresses::Static)
                }
            },
            name_servers: self.list(&message.name_servers, NAME_SERVERS, address::host, &path.field("nameServers")),
        }
    }

    fn fixed(&mut self, message: &node::Static, path: &FieldPath) -> Option<Static> {
        let (at_address, at_gateway) = (path.field("address"), path.field("gateway"));
        self.require(message.address.is_some(), &at_address);
        let gateway = self.parse(message.gateway.as_deref(), address::host, &at_gateway);
        let interface = self.parse(message.address.as_deref(), address::interface, &at_address)?;
        if let Some(gateway) = gateway.filter(|gateway| !address::reaches(interface, *gateway)) {
            self.problem(&at_gateway, Violation::Unreachable { gateway, interface });
        }
        Some(Static { interface, gateway })
    }

    fn storage(&mut self, message: Option<&node::Storage>, path: &FieldPath) -> Storage {
        let Some(message) = message else { return Storage::default() };
        Storage {
            disk: match &message.disk {
                None => Disk::Any,
                Some(DiskMessage::Serial(name)) => Disk::Serial(self.disk(name, &path.field("serial"))),
                Some(DiskMessage::Partition(name)) => Disk::Partition(self.disk(name, &path.field("partition"))),
            },
            keep_free: self.text(message.keep_free.as_deref(), &path.field("keepFree")).unwrap_or_default(),
            overcommit: self.text(message.overcommit.as_deref(), &path.field("overcommit")).unwrap_or_default(),
        }
    }

    fn disk(&mut self, name: &str, path: &FieldPath) -> String {
        // Names of partitions have at most 36 UTF-16 code units, serial numbers rarely more.
        if !(1..=64).contains(&name.len()) || name.contains(|c: char| c.is_control() || c.is_whitespace()) {
            self.problem(path, Violation::Disk);
        }
        name.to_owned()
    }

    pub(crate) fn in_range(&mut self, number: Option<u32>, range: (u32, u32), path: &FieldPath) -> Option<u32> {
        let (found, (least, most)) = (number?, range);
        if (least..=most).contains(&found) {
            return number;
        }
        self.problem(path, Violation::Range { found, least, most });
        None
    }

    pub(crate) fn at_most(&mut self, most: usize, found: usize, path: &FieldPath) {
        if found > most {
            self.problem(path, Violation::Many { found, most });
        }
    }

    pub(crate) fn list<T, E: Into<Violation>>(
        &mut self,
        texts: &[String],
        most: usize,
        parse: impl Fn(&str) -> Result<T, E>,
        path: &FieldPath,
    ) -> Vec<T> {
        self.at_most(most, texts.len(), path);
        let each = texts.iter().enumerate();
        each.filter_map(|(index, text)| self.parse(Some(text), &parse, &path.item(index))).collect()
    }

    pub(crate) fn parse<T, E: Into<Violation>>(
        &mut self,
        text: Option<&str>,
        parse: impl FnOnce(&str) -> Result<T, E>,
        path: &FieldPath,
    ) -> Option<T> {
        parse(text?).map_err(|error| self.problem(path, error)).ok()
    }

    pub(crate) fn text<T: FromStr<Err: Into<Violation>>>(&mut self, text: Option<&str>, path: &FieldPath) -> Option<T> {
        self.parse(text, str::parse, path)
    }

    pub(crate) fn require(&mut self, is_set: bool, path: &FieldPath) {
        if !is_set {
            self.problem(path, Violation::Missing);
        }
    }

    pub(crate) fn problem(&mut self, path: &FieldPath, violation: impl Into<Violation>) {
        self.problems.push(path.problem(violation));
    }
}

#[cfg(test)]
mod tests;
