//! The configuration, and how it is checked.

use std::net::Ipv4Addr;
use std::str::FromStr;

use cluster::{Addresses, Overcommit, PodProcesses, Static, Uplink, address};
use kmod::ModuleName;
use proto::node;
use proto::node::network::Addresses as AddressesMessage;
use proto::node::storage::Disk as DiskMessage;
use units::Bytes;

use crate::json::Json;
use crate::message;
use crate::name::NodeName;
use crate::problem::{ParseError, Path, Problem, What};
use crate::role::Role;

/// What a node is told. [`Default`] is what `{}` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Its name in the cluster.
    pub node: NodeName,
    /// What it is to the cluster.
    pub role: Role,
    /// The network that it is in.
    pub network: Uplink,
    /// Servers that the clock is set by, the preferred one first; without any, those of DHCP.
    pub time_servers: Vec<Ipv4Addr>,
    /// The data disk.
    pub storage: Storage,
    /// What to do when the node cannot start.
    pub on_failure: FailureAction,
    /// Most processes and threads of one pod.
    pub pod_processes: PodProcesses,
    /// Modules that are loaded beside those of every node. Whether the image has them is not checked.
    pub kernel_modules: Vec<ModuleName>,
}

/// IPv4 asks for 576 of everybody (RFC 791); a device cannot say more than 16 bits.
const MTU: (u32, u32) = (576, 65_535);
/// A resolver reads no more, resolv.conf(5).
const NAME_SERVERS: usize = 3;
const TIME_SERVERS: usize = 8;
const KERNEL_MODULES: usize = 128;
/// Programs in Go have a thread for each of dozens of system calls at once. Above this, one pod takes what the others need.
const POD_PROCESSES: (u32, u32) = (64, 65_536);

/// The data disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    /// Which it is.
    pub disk: Disk,
    /// What volumes are never promised.
    pub keep_free: Bytes,
    /// How many times the rest is promised.
    pub overcommit: Overcommit,
}

/// Which disk holds the data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Disk {
    /// The one that is designated by type or serial number, else the one empty disk.
    #[default]
    Any,
    /// The disk with this serial number.
    Serial(String),
    /// The partition with this name.
    Partition(String),
}

/// What the machine does when the node cannot start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailureAction {
    /// It powers off.
    #[default]
    PowerOff,
    /// It restarts.
    Reboot,
}

impl Config {
    /// Reads the JSON form of `granary.node.v1.Config`, and checks all of it.
    ///
    /// # Errors
    /// [`ParseError`], with every problem that there is.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let json: Json = serde_json::from_str(text).map_err(ParseError::Syntax)?;
        let (message, mut problems) = message::read(&json)?;
        let mut check = Check::default();
        let config = check.config(&message);
        // What could not be read is not there to be checked: that is said once.
        let unread: Vec<String> = problems.iter().map(|problem| problem.field.clone()).collect();
        problems.extend(check.problems.into_iter().filter(|problem| !unread.contains(&problem.field)));
        if problems.is_empty() { Ok(config) } else { Err(ParseError::Problems(problems)) }
    }
}

/// Collects problems. Where there is one the default is taken, so that the rest can be checked.
#[derive(Default)]
pub(crate) struct Check {
    problems: Vec<Problem>,
}

impl Check {
    fn config(&mut self, message: &node::Config) -> Config {
        let top = Path::default();
        let network = self.network(message.network.as_ref(), &top.field("network"));
        Config {
            node: self.text(message.node_name.as_deref(), &top.field("nodeName")).unwrap_or_default(),
            role: self.role(message.role.as_ref(), &network, &top),
            network,
            time_servers: self.hosts(&message.time_servers, TIME_SERVERS, &top.field("timeServers")),
            storage: self.storage(message.storage.as_ref(), &top.field("storage")),
            on_failure: match message.on_failure() {
                node::FailureAction::Unspecified | node::FailureAction::PowerOff => FailureAction::PowerOff,
                node::FailureAction::Reboot => FailureAction::Reboot,
            },
            pod_processes: self.pod_processes(message.pod_processes, &top.field("podProcesses")),
            kernel_modules: self.kernel_modules(&message.kernel_modules, &top.field("kernelModules")),
        }
    }

    fn pod_processes(&mut self, message: Option<u32>, path: &Path) -> PodProcesses {
        let (least, most) = POD_PROCESSES;
        match message {
            None => PodProcesses::default(),
            Some(found) => {
                if !(least..=most).contains(&found) {
                    self.problem(path, What::Range { found: found.into(), least: least.into(), most: most.into() });
                }
                PodProcesses::new(found)
            }
        }
    }

    fn kernel_modules(&mut self, names: &[String], path: &Path) -> Vec<ModuleName> {
        if names.len() > KERNEL_MODULES {
            self.problem(path, What::Many { found: names.len(), most: KERNEL_MODULES });
        }
        let each = names.iter().enumerate();
        each.filter_map(|(index, name)| self.text(Some(name), &path.item(index))).collect()
    }

    fn network(&mut self, message: Option<&node::Network>, path: &Path) -> Uplink {
        let Some(message) = message else { return Uplink::default() };
        let (least, most) = MTU;
        let mtu = message.mtu.filter(|mtu| (least..=most).contains(mtu));
        if let (Some(found), None) = (message.mtu, mtu) {
            let what = What::Range { found: found.into(), least: least.into(), most: most.into() };
            self.problem(&path.field("mtu"), what);
        }
        Uplink {
            addresses: match &message.addresses {
                None | Some(AddressesMessage::Dhcp(node::Dhcp {})) => Addresses::Dhcp,
                Some(AddressesMessage::Static(message)) => {
                    self.fixed(message, &path.field("static")).map_or(Addresses::Dhcp, Addresses::Static)
                }
            },
            mtu,
            name_servers: self.hosts(&message.name_servers, NAME_SERVERS, &path.field("nameServers")),
        }
    }

    fn fixed(&mut self, message: &node::Static, path: &Path) -> Option<Static> {
        let at_address = path.field("address");
        if message.address.is_none() {
            self.problem(&at_address, What::Missing);
        }
        let at_gateway = path.field("gateway");
        let gateway = self.parse(message.gateway.as_deref(), address::host, &at_gateway);
        let interface = self.parse(message.address.as_deref(), address::interface, &at_address)?;
        if let Some(gateway) = gateway.filter(|gateway| !address::reaches(interface, *gateway)) {
            self.problem(&at_gateway, What::Unreachable { gateway, interface });
        }
        Some(Static { interface, gateway })
    }

    fn storage(&mut self, message: Option<&node::Storage>, path: &Path) -> Storage {
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

    fn disk(&mut self, name: &str, path: &Path) -> String {
        // Partitions' names have 36 characters of UTF-16, serial numbers rarely more.
        let fine = (1..=64).contains(&name.len()) && !name.contains(|c: char| c.is_control() || c.is_whitespace());
        if !fine {
            self.problem(path, What::Disk);
        }
        name.to_owned()
    }

    fn hosts(&mut self, texts: &[String], most: usize, path: &Path) -> Vec<Ipv4Addr> {
        if texts.len() > most {
            self.problem(path, What::Many { found: texts.len(), most });
        }
        let each = texts.iter().enumerate();
        each.filter_map(|(index, text)| self.parse(Some(text), address::host, &path.item(index))).collect()
    }

    pub(crate) fn parse<T, E: Into<What>>(
        &mut self,
        text: Option<&str>,
        parse: impl FnOnce(&str) -> Result<T, E>,
        path: &Path,
    ) -> Option<T> {
        parse(text?).map_err(|error| self.problem(path, error)).ok()
    }

    pub(crate) fn text<T: FromStr<Err: Into<What>>>(&mut self, text: Option<&str>, path: &Path) -> Option<T> {
        self.parse(text, str::parse, path)
    }

    pub(crate) fn problem(&mut self, path: &Path, what: impl Into<What>) {
        self.problems.push(path.problem(what));
    }
}

#[cfg(test)]
mod tests;
