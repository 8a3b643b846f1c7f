//! The configuration, and how it is checked.

use std::net::Ipv4Addr;
use std::str::FromStr;

use proto::node;
use proto::node::config::Role as RoleMessage;
use proto::node::network::Addresses as AddressesMessage;
use proto::node::storage::Disk as DiskMessage;
use services::Network as Subnet;
use units::Bytes;
use volume::Overcommit;

use crate::address::{self, Interface};
use crate::json::Json;
use crate::message;
use crate::name::NodeName;
use crate::problem::{ParseError, Path, Problem, What};

/// What a node is told. [`Default`] is what `{}` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Its name in the cluster.
    pub node: NodeName,
    /// What it is to the cluster.
    pub role: Role,
    /// The network that it is in.
    pub network: Network,
    /// Servers that the clock is set by, the preferred one first; without any, those of DHCP.
    pub time_servers: Vec<Ipv4Addr>,
    /// The data disk.
    pub storage: Storage,
    /// What to do when the node cannot start.
    pub on_failure: FailureAction,
}

/// What a node is to its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It has a cluster of its own.
    ControlPlane(ControlPlane),
}

impl Default for Role {
    fn default() -> Self {
        Self::ControlPlane(ControlPlane::default())
    }
}

/// The cluster's networks, which have no address in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlPlane {
    /// Of all pods; has a part of [`NODE_PREFIX`] bits for each node.
    pub pods: Subnet,
    /// Of Services.
    pub services: Subnet,
}

/// Bits of the prefix of one node's part of the pods' network.
pub const NODE_PREFIX: u8 = 24;

const PODS: Subnet = const { Subnet::new(Ipv4Addr::new(10, 244, 0, 0), 16).unwrap() };
const SERVICES: Subnet = const { Subnet::new(Ipv4Addr::new(10, 96, 0, 0), 16).unwrap() };
/// The API server wants an address, DNS another, and there are more Services; it takes no larger network.
const SERVICE_PREFIXES: (u8, u8) = (12, 27);
const POD_PREFIXES: (u8, u8) = (8, NODE_PREFIX);
/// IPv4 asks for 576 of everybody (RFC 791); a device cannot say more than 16 bits.
const MTU: (u32, u32) = (576, 65_535);
/// A resolver reads no more, resolv.conf(5).
const NAME_SERVERS: usize = 3;
const TIME_SERVERS: usize = 8;

impl Default for ControlPlane {
    fn default() -> Self {
        Self { pods: PODS, services: SERVICES }
    }
}

/// The network that the node is in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Where the address comes from.
    pub addresses: Addresses,
    /// The largest packet in bytes, if it is not left to DHCP or the device.
    pub mtu: Option<u32>,
    /// Name servers; without any, those of DHCP.
    pub name_servers: Vec<Ipv4Addr>,
}

/// Where the address comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Addresses {
    /// From a DHCP server.
    #[default]
    Dhcp,
    /// From the configuration.
    Static(Static),
}

/// An address that does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Static {
    /// With its network.
    pub interface: Interface,
    /// A router in the same network.
    pub gateway: Option<Ipv4Addr>,
}

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
struct Check {
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
        }
    }

    fn role(&mut self, role: Option<&RoleMessage>, network: &Network, top: &Path) -> Role {
        match role {
            None => Role::ControlPlane(self.control_plane(&node::ControlPlane::default(), network, top)),
            Some(RoleMessage::ControlPlane(message)) => Role::ControlPlane(self.control_plane(message, network, top)),
        }
    }

    fn control_plane(&mut self, message: &node::ControlPlane, network: &Network, top: &Path) -> ControlPlane {
        const POD_NETWORK: &str = "controlPlane.podNetwork";
        const SERVICE_NETWORK: &str = "controlPlane.serviceNetwork";
        let (at_pods, at_services) = (top.field(POD_NETWORK), top.field(SERVICE_NETWORK));
        let pods = self.subnet(message.pod_network.as_deref(), POD_PREFIXES, PODS, &at_pods);
        let services = self.subnet(message.service_network.as_deref(), SERVICE_PREFIXES, SERVICES, &at_services);
        if pods.overlaps(services) {
            let what = What::Overlap { network: services, other: pods, whose: POD_NETWORK };
            self.problem(&at_services, what);
        }
        if let Addresses::Static(Static { interface, .. }) = network.addresses {
            for (subnet, whose) in [(pods, POD_NETWORK), (services, SERVICE_NETWORK)] {
                if subnet.contains(interface.address) {
                    let what = What::Inside { address: interface.address, network: subnet, whose };
                    self.problem(&top.field("network.static.address"), what);
                }
            }
        }
        ControlPlane { pods, services }
    }

    fn subnet(&mut self, text: Option<&str>, (least, most): (u8, u8), usual: Subnet, path: &Path) -> Subnet {
        let Some(subnet) = self.text::<Subnet>(text, path) else { return usual };
        let found = subnet.prefix();
        if (least..=most).contains(&found) {
            return subnet;
        }
        self.problem(path, What::Size { least, most, found });
        usual
    }

    fn network(&mut self, message: Option<&node::Network>, path: &Path) -> Network {
        let Some(message) = message else { return Network::default() };
        let (least, most) = MTU;
        let mtu = message.mtu.filter(|mtu| (least..=most).contains(mtu));
        if let (Some(found), None) = (message.mtu, mtu) {
            let what = What::Range { found: found.into(), least: least.into(), most: most.into() };
            self.problem(&path.field("mtu"), what);
        }
        Network {
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
        let gateway = message.gateway.as_deref().and_then(|text| self.host(text, &at_gateway));
        let interface: Interface = self.text(message.address.as_deref(), &at_address)?;
        if let Some(gateway) = gateway.filter(|gateway| !interface.reaches(*gateway)) {
            let Interface { address, prefix } = interface;
            self.problem(&at_gateway, What::Unreachable { gateway, address, prefix });
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
        each.filter_map(|(index, text)| self.host(text, &path.item(index))).collect()
    }

    fn host(&mut self, text: &str, path: &Path) -> Option<Ipv4Addr> {
        address::host(text).map_err(|error| self.problem(path, error)).ok()
    }

    fn text<T: FromStr>(&mut self, text: Option<&str>, path: &Path) -> Option<T>
    where
        What: From<T::Err>,
    {
        text?.parse().map_err(|error: T::Err| self.problem(path, error)).ok()
    }

    fn problem(&mut self, path: &Path, what: impl Into<What>) {
        self.problems.push(path.problem(what));
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::{hash_set, vec};
    use proptest::option;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn problems(text: &str) -> Vec<String> {
        match Config::parse(text) {
            Err(ParseError::Problems(problems)) => problems.iter().map(ToString::to_string).collect(),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn nothing_said_is_a_control_plane_with_dhcp() {
        let config = Config::parse("{}").unwrap();
        assert_eq!(config, Config::default());
        assert_eq!(config.node.as_str(), "granary");
        let Role::ControlPlane(cluster) = config.role;
        assert_eq!(
            (cluster.pods.to_string(), cluster.services.to_string()),
            ("10.244.0.0/16".into(), "10.96.0.0/16".into())
        );
        assert_eq!(config.network.addresses, Addresses::Dhcp);
    }

    #[test]
    fn a_full_configuration_is_read() {
        let config = Config::parse(
            r#"{
                "nodeName": "n-1",
                "controlPlane": {"podNetwork": "10.0.0.0/16", "serviceNetwork": "10.1.0.0/20"},
                "network": {
                    "static": {"address": "192.0.2.10/24", "gateway": "192.0.2.1"},
                    "mtu": 1400,
                    "nameServers": ["192.0.2.53"]
                },
                "timeServers": ["192.0.2.123"],
                "storage": {"serial": "WD-1", "keepFree": "10GiB", "overcommit": "1.5"},
                "onFailure": "REBOOT"
            }"#,
        )
        .unwrap();
        assert_eq!(config.node.as_str(), "n-1");
        let Role::ControlPlane(cluster) = &config.role;
        assert_eq!((cluster.pods.prefix(), cluster.services.prefix()), (16, 20));
        let interface = "192.0.2.10/24".parse().unwrap();
        let gateway = Some(Ipv4Addr::new(192, 0, 2, 1));
        assert_eq!(config.network.addresses, Addresses::Static(Static { interface, gateway }));
        assert_eq!(config.network.mtu, Some(1400));
        assert_eq!(config.network.name_servers, [Ipv4Addr::new(192, 0, 2, 53)]);
        assert_eq!(config.time_servers, [Ipv4Addr::new(192, 0, 2, 123)]);
        assert_eq!(config.storage.disk, Disk::Serial("WD-1".into()));
        assert_eq!(config.storage.keep_free, Bytes::new(10 << 30));
        assert_eq!(config.storage.overcommit, "1.5".parse().unwrap());
        assert_eq!(config.on_failure, FailureAction::Reboot);
    }

    #[test]
    fn all_problems_are_told_at_once_each_with_its_remedy() {
        let told = problems(
            r#"{
                "nodeName": "Node_1",
                "hostname": "n",
                "network": {"static": {"adress": "192.0.2.10/24", "gateway": "router"}, "dhcp": {}, "mtu": "large"},
                "timeServers": ["192.0.2.1", "pool.example.org", 5],
                "storage": {"keepFree": "10GB", "keepFree": "10G", "overcommit": 1.5},
                "onFailure": "PANIC"
            }"#,
        );
        assert_eq!(
            told,
            [
                "hostname: there is no such field here; there are nodeName, controlPlane, network, timeServers, \
                 storage, onFailure",
                "network.static.adress: there is no such field here; there are address, gateway",
                "network.dhcp: only one of it and static can be there; leave one",
                "network.mtu: it is a text, and has to be a whole number from 0 to 4294967295",
                "timeServers[2]: it is a number, and has to be a text, \"…\"",
                "storage.keepFree: it stands here twice; leave one",
                "storage.overcommit: it is a number, and has to be a text, \"…\"",
                "onFailure: \"PANIC\" is none of its values, POWER_OFF, REBOOT",
                "network.static.address: it is missing, and cannot be left out here",
                "network.static.gateway: \"router\" is no IPv4 address, such as 192.0.2.1",
                "nodeName: a name has 1 to 63 lower-case letters, digits and '-', with a letter or digit at both ends",
            ]
        );
    }

    #[test]
    fn fields_that_do_not_fit_each_other_are_refused() {
        for (text, field) in [
            (r#"{"controlPlane": {"podNetwork": "10.96.0.0/20"}}"#, "controlPlane.serviceNetwork"),
            (r#"{"controlPlane": {"podNetwork": "10.244.0.0/25"}}"#, "controlPlane.podNetwork"),
            (r#"{"controlPlane": {"serviceNetwork": "10.0.0.0/8"}}"#, "controlPlane.serviceNetwork"),
            (r#"{"network": {"static": {"address": "10.244.1.1/24"}}}"#, "network.static.address"),
            (r#"{"network": {"static": {"address": "10.96.3.4/24"}}}"#, "network.static.address"),
            (r#"{"network": {"static": {"address": "192.0.2.0/24"}}}"#, "network.static.address"),
            (
                r#"{"network": {"static": {"address": "192.0.2.1/24", "gateway": "192.0.3.1"}}}"#,
                "network.static.gateway",
            ),
            (r#"{"network": {"nameServers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"]}}"#, "network.nameServers"),
            (r#"{"network": {"mtu": 100}}"#, "network.mtu"),
            (r#"{"storage": {"serial": "a", "partition": "b"}}"#, "storage.partition"),
            (r#"{"storage": {"serial": ""}}"#, "storage.serial"),
            (r#"{"storage": {"overcommit": "0.5"}}"#, "storage.overcommit"),
            (r#"{"storage": {"keepFree": ""}}"#, "storage.keepFree"),
            (r#"{"nodeName": ""}"#, "nodeName"),
            (r#"{"timeServers": "192.0.2.1"}"#, "timeServers"),
            (r#"{"role": "worker"}"#, "role"),
            (r#"{"controlPlane": []}"#, "controlPlane"),
            ("[]", "(top)"),
        ] {
            let told = problems(text);
            assert_eq!(told.len(), 1, "{text}: {told:?}");
            assert!(told[0].starts_with(&format!("{field}: ")), "{text}: {told:?}");
        }
    }

    #[test]
    fn null_is_a_field_that_was_left_out() {
        let config =
            Config::parse(r#"{"nodeName": null, "network": {"dhcp": null, "static": {"address": "192.0.2.1/24"}}}"#);
        assert!(matches!(config.unwrap().network.addresses, Addresses::Static(_)));
    }

    #[test]
    fn what_is_no_json_is_told_with_its_place() {
        let Err(ParseError::Syntax(error)) = Config::parse("{\n\"nodeName\": \"a\",\n}") else { panic!("it is none") };
        assert_eq!(error.line(), 3);
    }

    /// What was parsed, as somebody would write it.
    fn written(config: &Config) -> Value {
        let Role::ControlPlane(cluster) = &config.role;
        let mut network = match config.network.addresses {
            Addresses::Dhcp => json!({"dhcp": {}}),
            Addresses::Static(Static { interface, gateway }) => {
                json!({"static": {"address": interface.to_string(), "gateway": gateway.map(|gateway| gateway.to_string())}})
            }
        };
        network["mtu"] = json!(config.network.mtu);
        network["nameServers"] = json!(config.network.name_servers);
        let mut storage = json!({
            "keepFree": config.storage.keep_free.get().to_string(),
            "overcommit": config.storage.overcommit.to_string(),
        });
        match &config.storage.disk {
            Disk::Any => {}
            Disk::Serial(name) => storage["serial"] = json!(name),
            Disk::Partition(name) => storage["partition"] = json!(name),
        }
        json!({
            "nodeName": config.node.as_str(),
            "controlPlane": {"podNetwork": cluster.pods.to_string(), "serviceNetwork": cluster.services.to_string()},
            "network": network,
            "timeServers": config.time_servers,
            "storage": storage,
            "onFailure": match config.on_failure {
                FailureAction::PowerOff => "POWER_OFF",
                FailureAction::Reboot => "REBOOT",
            },
        })
    }

    fn hosts(most: usize) -> impl Strategy<Value = Vec<Ipv4Addr>> {
        vec((1_u32..0x7f00_0000).prop_filter("a machine's", |bits| bits >> 24 != 0).prop_map(Ipv4Addr::from), 0..=most)
    }

    fn network() -> impl Strategy<Value = Network> {
        let interface = (1_u8..254, 2_u8..=254, 20_u8..=24)
            .prop_map(|(third, last, prefix)| Interface { address: Ipv4Addr::new(192, 168, third, last), prefix });
        let fixed = (interface, any::<bool>()).prop_map(|(interface, routed)| {
            let Interface { address, .. } = interface;
            let gateway = Ipv4Addr::from(address.to_bits() ^ 3);
            Addresses::Static(Static { interface, gateway: (routed && interface.reaches(gateway)).then_some(gateway) })
        });
        let addresses = prop_oneof![Just(Addresses::Dhcp), fixed];
        (addresses, option::of(576_u32..=65_535), hosts(NAME_SERVERS))
            .prop_map(|(addresses, mtu, name_servers)| Network { addresses, mtu, name_servers })
    }

    fn configs() -> impl Strategy<Value = Config> {
        let disk =
            prop_oneof![Just(Disk::Any), "[!-~]{1,64}".prop_map(Disk::Serial), "[!-~]{1,64}".prop_map(Disk::Partition)];
        let overcommit = (1000_u32..=100_000).prop_map(|n| format!("{}.{:03}", n / 1000, n % 1000).parse().unwrap());
        let storage = (disk, any::<u64>(), overcommit).prop_map(|(disk, bytes, overcommit)| Storage {
            disk,
            keep_free: Bytes::new(bytes),
            overcommit,
        });
        let cluster = (8_u8..=24, 12_u8..=27).prop_map(|(pods, services)| {
            let at = |first, prefix| Subnet::new(Ipv4Addr::new(first, 0, 0, 0), prefix).unwrap();
            Role::ControlPlane(ControlPlane { pods: at(10, pods), services: at(11, services) })
        });
        let action = prop_oneof![Just(FailureAction::PowerOff), Just(FailureAction::Reboot)];
        ("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", cluster, network(), hosts(TIME_SERVERS), storage, action).prop_map(
            |(name, role, network, time_servers, storage, on_failure)| {
                let node = name.parse().unwrap();
                Config { node, role, network, time_servers, storage, on_failure }
            },
        )
    }

    /// JSON that is made of our fields' names as well as of others, any deeper or not.
    fn anything() -> impl Strategy<Value = Value> {
        let name = prop_oneof![
            proptest::sample::select(vec![
                "nodeName",
                "controlPlane",
                "podNetwork",
                "serviceNetwork",
                "network",
                "dhcp",
                "static",
                "address",
                "gateway",
                "mtu",
                "nameServers",
                "timeServers",
                "storage",
                "serial",
                "partition",
                "keepFree",
                "overcommit",
                "onFailure",
            ])
            .prop_map(str::to_owned),
            "[^.]{0,8}",
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[0-9./a-zA-Z:-]{0,24}".prop_map(Value::from),
            ".{0,24}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 48, 8, move |inner| {
            prop_oneof![
                vec(inner.clone(), 0..4).prop_map(Value::from),
                vec((name.clone(), inner), 0..8).prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_valid_configuration_reads_back(config in configs()) {
            prop_assert_eq!(Config::parse(&written(&config).to_string()).unwrap(), config);
        }

        #[test]
        fn whatever_is_written_is_read_or_refused_with_a_field_and_a_reason(json in anything(), text in ".{0,64}") {
            let _ = Config::parse(&text);
            if let Err(error) = Config::parse(&json.to_string()) {
                let ParseError::Problems(problems) = error else { panic!("{json} is JSON: {error}") };
                prop_assert!(!problems.is_empty());
                for Problem { field, what } in problems {
                    prop_assert!(!field.is_empty() && !what.to_string().is_empty());
                    // Defaults have no problems with each other, so that the path leads to what was written.
                    let top = field.split(['.', '[']).next().unwrap_or_default();
                    let odd = field == "(top)" || field.starts_with('"');
                    prop_assert!(odd || json.get(top).is_some(), "{}", field);
                }
            }
        }

        #[test]
        fn each_unknown_field_is_named(names in hash_set("x[a-z]{1,8}", 1..6)) {
            let json = Value::Object(names.iter().map(|name| (name.clone(), Value::Null)).collect());
            let told = problems(&json.to_string());
            prop_assert_eq!(told.len(), names.len());
            for name in names {
                let said = told.iter().any(|line| line.starts_with(&format!("{name}: ")));
                prop_assert!(said, "{}", name);
            }
        }
    }
}
