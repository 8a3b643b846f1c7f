//! Configuration of nodes, see docs/configuration.md.

use cluster::{API_PORT, Addresses, CaDigest, Overcommit, Static, Token};
use config::{Config, ParseError, Role};
use qemu::FirmwareFile;
use serde_json::{Value, json};
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::path::Path;
use tempfile::NamedTempFile;

use crate::spec::{NAME, NodeSpec};

/// Fields that are specific to a node. All other fields of the control plane's configuration apply to workers, too.
const OWN: [&str; 5] = ["controlPlane", "network", "nodeName", "storage", "worker"];

/// A configuration that the launcher cannot use.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    #[error(transparent)]
    Invalid(#[from] ParseError),
    #[error("nodeName: the launcher names its nodes; remove the field")]
    Name,
    #[error("worker: the first node is a control plane; remove the field, and start workers with --nodes")]
    Worker,
    #[error(
        "network.static.address: the launcher's network leads to {CONTROL_PLANE}, not to {0}; remove \
         network.static, or write {CONTROL_PLANE}/24"
    )]
    Address(Ipv4Addr),
}

/// Checks a configuration for [`Options::configuration`](crate::Options::configuration) before a node starts.
///
/// # Errors
/// [`ConfigurationError`] with all invalid fields.
pub fn check_configuration(text: &str) -> Result<(), ConfigurationError> {
    let config = Config::parse(text)?;
    if config.node.as_str() != NAME {
        return Err(ConfigurationError::Name);
    }
    if let Addresses::Static(Static { interface, .. }) = config.network.addresses
        && interface.addr() != CONTROL_PLANE
    {
        return Err(ConfigurationError::Address(interface.addr()));
    }
    match config.role {
        Role::ControlPlane(_) => Ok(()),
        Role::Worker(_) => Err(ConfigurationError::Worker),
    }
}

const FW_CFG: &str = "opt/dev.granary/config";
/// Address of the control plane: the first one that DHCP of user networking assigns.
const CONTROL_PLANE: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const GATEWAY: &str = "10.0.2.2";
const NAME_SERVER: &str = "10.0.2.3";

/// Configuration file that QEMU reads at its start. Only its owner can read the file, and drop removes it.
pub(crate) struct Configuration(NamedTempFile);

impl Configuration {
    pub(crate) fn write(text: &str, directory: &Path) -> io::Result<Self> {
        let mut file = NamedTempFile::with_prefix_in("config.", directory)?;
        file.write_all(text.as_bytes())?;
        file.flush()?;
        Ok(Self(file))
    }

    pub(crate) fn file(&self) -> FirmwareFile {
        FirmwareFile { name: FW_CFG, content: self.0.path().into() }
    }
}

pub(crate) fn of_control_plane(spec: &NodeSpec) -> String {
    match &spec.options.configuration {
        Some(text) => text.clone(),
        None => common(NAME, spec.options.overcommit).to_string(),
    }
}

/// Configuration of a worker. The worker needs the token until it has joined. The address is static: DHCP assigns
/// addresses in the order of requests, and the next run with the same disk needs the same address.
pub(crate) fn of_worker(spec: &NodeSpec, ca: CaDigest, token: &Token) -> String {
    let mut worker = common(&spec.name, spec.options.overcommit);
    let address = Ipv4Addr::from_bits(CONTROL_PLANE.to_bits() + u32::from(spec.index));
    worker["network"] = json!({
        "static": {"address": format!("{address}/24"), "gateway": GATEWAY},
        "nameServers": [NAME_SERVER],
    });
    worker["worker"] = json!({
        "server": format!("{CONTROL_PLANE}:{API_PORT}"),
        "authority": ca.to_string(),
        "token": token.reveal(),
    });
    // Copy nothing if the control plane has no configuration, or if its configuration is invalid.
    let configuration = spec.options.configuration.as_deref().and_then(|text| serde_json::from_str(text).ok());
    let configuration: Value = configuration.unwrap_or_default();
    // All nodes must use the same networks.
    for name in ["podNetwork", "serviceNetwork"] {
        if let Some(network) = field(&configuration, "controlPlane").and_then(|role| field(role, name)) {
            worker["worker"][name] = network.clone();
        }
    }
    // The name servers of the user may resolve registries that the name server of QEMU's network cannot resolve.
    let servers = field(&configuration, "network").and_then(|network| field(network, "nameServers"));
    if let Some(servers) = servers.filter(|servers| servers.as_array().is_some_and(|list| !list.is_empty())) {
        worker["network"]["nameServers"] = servers.clone();
    }
    // Do not copy the selection of the disk: each worker has its own disk.
    for name in ["keepFree", "overcommit"] {
        if let Some(value) = field(&configuration, "storage").and_then(|storage| field(storage, name)) {
            worker["storage"][name] = value.clone();
        }
    }
    let is_own = |name: &str| OWN.iter().any(|own| name == *own || name == proto_name(own));
    for (name, value) in configuration.as_object().into_iter().flatten().filter(|(name, _)| !is_own(name)) {
        worker[name] = value.clone();
    }
    worker.to_string()
}

/// The value of a field, by its JSON name or by its name in the proto file. The node accepts both.
fn field<'a>(message: &'a Value, name: &str) -> Option<&'a Value> {
    message.get(name).or_else(|| message.get(proto_name(name)))
}

fn proto_name(name: &str) -> String {
    let words = name.chars().flat_map(|c| [c.is_ascii_uppercase().then_some('_'), Some(c.to_ascii_lowercase())]);
    words.flatten().collect()
}

fn common(name: &str, overcommit: Overcommit) -> Value {
    json!({
        "nodeName": name,
        "network": {"dhcp": {}},
        "storage": {"overcommit": overcommit.to_string()},
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use cluster::{Networking, ServiceProxy};
    use config::{Config, Role, Violation};

    use super::*;
    use crate::options::{ClusterOptions, Options};

    fn specs(directory: &Path) -> Vec<NodeSpec> {
        let options = Options { overcommit: "1.50".parse().unwrap(), ..Options::fake(directory) };
        NodeSpec::all(&ClusterOptions::new(options, "2".parse().unwrap()))
    }

    fn ca() -> CaDigest {
        format!("sha256:{}", "0a".repeat(32)).parse().unwrap()
    }

    fn token() -> Token {
        "abcdef.0123456789abcdef".parse().unwrap()
    }

    fn worker(spec: &NodeSpec) -> String {
        of_worker(spec, ca(), &token())
    }

    #[test]
    fn the_configuration_of_the_control_plane_is_valid() {
        let directory = tempfile::tempdir().unwrap();
        let text = of_control_plane(&specs(directory.path())[0]);
        let configuration = Configuration::write(&text, directory.path()).unwrap();
        let file = configuration.file();
        assert_eq!(file.name, "opt/dev.granary/config");
        let config = Config::parse(&fs::read_to_string(&file.content).unwrap()).unwrap();
        assert_eq!(config.node.as_str(), NAME);
        assert_eq!(config.network.addresses, Addresses::Dhcp);
        assert_eq!(config.storage.overcommit, "1.5".parse().unwrap());
    }

    #[test]
    fn a_configuration_from_the_options_is_unchanged() {
        let mut spec = specs(Path::new("/tmp")).swap_remove(0);
        spec.options.configuration = Some("{".to_owned());
        assert_eq!(of_control_plane(&spec), "{");
    }

    #[test]
    fn the_configuration_of_a_worker_is_valid() {
        let config = Config::parse(&worker(&specs(Path::new("/tmp"))[1])).unwrap();
        assert_eq!(config.node.as_str(), "granary-1");
        let Addresses::Static(Static { interface, gateway }) = config.network.addresses else { panic!("{config:?}") };
        assert_eq!((interface, gateway), ("10.0.2.16/24".parse().unwrap(), Some(Ipv4Addr::new(10, 0, 2, 2))));
        assert_eq!(config.storage.overcommit, "1.5".parse().unwrap());
        let Role::Worker(worker) = config.role else { panic!("{:?}", config.role) };
        assert_eq!(worker.server, "10.0.2.15:6443".parse().unwrap());
        assert_eq!((worker.ca, worker.token), (ca(), Some(token())));
    }

    /// Regression test: the worker used the default networks instead of those of the control plane.
    #[test]
    fn a_worker_has_fields_with_the_names_of_the_proto_file() {
        let mut spec = specs(Path::new("/tmp")).swap_remove(1);
        let networks = json!({"pod_network": "172.20.16.0/20", "serviceNetwork": "172.21.4.0/22"});
        for role in ["control_plane", "controlPlane"] {
            let settings = json!({role: networks, "cluster_domain": "a.example", "kube_proxy": "NONE", "cni": "NONE"});
            spec.options.configuration = Some(settings.to_string());
            let config = Config::parse(&worker(&spec)).unwrap();
            let networks = config.role.networks();
            assert_eq!(
                [networks.pods, networks.services].map(|network| network.to_string()),
                ["172.20.16.0/20", "172.21.4.0/22"]
            );
            assert_eq!(config.programs.cluster_domain.as_str(), "a.example");
            assert_eq!(config.programs.networking, Networking::Plugin(ServiceProxy::Plugin));
        }
    }

    #[test]
    fn a_worker_has_every_field_of_its_control_plane_that_is_not_its_own() {
        let ParseError::Problems(problems) = Config::parse(r#"{"unknown": 1}"#).unwrap_err() else { panic!("JSON") };
        let Violation::UnknownField { known } = &problems[0].violation else { panic!("{problems:?}") };
        assert!(OWN.iter().all(|own| known.iter().any(|name| name == own)), "{known:?}");
        let mut spec = specs(Path::new("/tmp")).swap_remove(1);
        for name in known.iter().flat_map(|name| [name.clone(), proto_name(name)]) {
            spec.options.configuration = Some(json!({&*name: "set"}).to_string());
            let worker: Value = serde_json::from_str(&worker(&spec)).unwrap();
            let is_own = OWN.iter().any(|own| [(*own).to_owned(), proto_name(own)].contains(&name));
            assert_eq!(worker.get(&name) == Some(&json!("set")), !is_own, "{name}: {worker}");
        }
    }

    /// Regression test: a worker could not pull from registries with names of a private domain.
    #[test]
    fn a_worker_has_the_name_servers_of_its_control_plane() {
        let mut spec = specs(Path::new("/tmp")).swap_remove(1);
        for (configuration, wanted) in [
            (json!({"network": {"name_servers": ["192.0.2.53", "192.0.2.54"]}}), &["192.0.2.53", "192.0.2.54"][..]),
            (json!({"network": {"nameServers": []}}), &[NAME_SERVER]),
            (json!({"network": {"mtu": 1400}}), &[NAME_SERVER]),
        ] {
            spec.options.configuration = Some(configuration.to_string());
            let text = worker(&spec);
            assert!(Config::parse(&text).is_ok(), "{text}");
            let written: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(written["network"]["nameServers"], json!(wanted), "{configuration}");
        }
    }

    /// Regression test: workers used the default limits, and --overcommit cannot be combined with a configuration.
    #[test]
    fn a_worker_has_the_limits_of_volumes_of_its_control_plane() {
        let mut spec = specs(Path::new("/tmp")).swap_remove(1);
        let storage = json!({"serial": "data", "keep_free": "1GiB", "overcommit": "2.0"});
        spec.options.configuration = Some(json!({"storage": storage}).to_string());
        let config = Config::parse(&worker(&spec)).unwrap();
        let wanted = json!({"nodeName": "a", "storage": {"keepFree": "1GiB", "overcommit": "2.0"}});
        assert_eq!(config.storage, Config::parse(&wanted.to_string()).unwrap().storage);
    }

    #[test]
    fn a_configuration_of_the_user_is_checked() {
        check_configuration(r#"{"podProcesses": 128}"#).unwrap();
        let at = |address: &str| json!({"network": {"static": {"address": address}}}).to_string();
        check_configuration(&at("10.0.2.15/24")).unwrap();
        let worker = json!({"worker": {"server": "192.0.2.1", "authority": format!("sha256:{:064}", 0)}}).to_string();
        for (text, wanted) in [
            (r#"{"nodeName": "a"}"#, "nodeName: the launcher names its nodes; remove the field"),
            (
                &at("192.0.2.10/24"),
                "network.static.address: the launcher's network leads to 10.0.2.15, not to 192.0.2.10; remove \
                 network.static, or write 10.0.2.15/24",
            ),
            (&worker, "worker: the first node is a control plane; remove the field, and start workers with --nodes"),
            (
                r#"{"podProcesses": 1}"#,
                "the configuration has a problem\n  podProcesses: 1 is out of range; choose a value from 64 to 65536",
            ),
        ] {
            assert_eq!(check_configuration(text).unwrap_err().to_string(), wanted);
        }
    }

    #[test]
    fn the_file_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        drop(Configuration::write("{}", directory.path()).unwrap());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
