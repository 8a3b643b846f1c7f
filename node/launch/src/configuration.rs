//! What a node is told, as docs/configuration.md describes it.

use cluster::{API_PORT, CaDigest, Overcommit, Token};
use qemu::FirmwareFile;
use serde_json::{Value, json};
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::path::Path;
use tempfile::NamedTempFile;

use crate::site::{NAME, Site};

/// Where the node looks for it.
const FW_CFG: &str = "opt/dev.granary/config";
/// The control plane's address: it is the first that asks user networking for one.
const CONTROL_PLANE: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
/// Of user networking.
const GATEWAY: &str = "10.0.2.2";
const NAME_SERVER: &str = "10.0.2.3";

/// The file that QEMU reads it from when it starts; removed on drop, readable by its owner only.
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

/// For the control plane, or the caller's own text.
pub(crate) fn of_control_plane(site: &Site) -> String {
    match &site.options.configuration {
        Some(text) => text.clone(),
        None => common(NAME, site.options.overcommit).to_string(),
    }
}

/// For a worker. Its token is needed until it has joined. DHCP would give addresses in the order in which workers ask: it
/// has one of its own, also in the next run with its disk.
pub(crate) fn of_worker(site: &Site, authority: CaDigest, token: &Token) -> String {
    let mut told = common(&site.name, site.options.overcommit);
    let address = Ipv4Addr::from_bits(CONTROL_PLANE.to_bits() + u32::from(site.index));
    told["network"] = json!({
        "static": {"address": format!("{address}/24"), "gateway": GATEWAY},
        "nameServers": [NAME_SERVER],
    });
    told["worker"] = json!({
        "server": format!("{CONTROL_PLANE}:{API_PORT}"),
        "authority": authority.to_string(),
        "token": token.reveal(),
    });
    told.to_string()
}

/// User networking has a DHCP server.
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

    use cluster::{Addresses, Static};
    use config::{Config, Role};

    use super::*;
    use crate::options::{ClusterOptions, Image, Options};

    fn sites(directory: &Path) -> Vec<Site> {
        let [kernel, initramfs, system, command_line] = [const { std::path::PathBuf::new() }; 4];
        let options = Options::new(Image { kernel, initramfs, system, command_line }, directory);
        let options = Options { overcommit: "1.50".parse().unwrap(), ..options };
        Site::all(&ClusterOptions::new(options, "2".parse().unwrap()))
    }

    #[test]
    fn the_node_understands_what_it_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let text = of_control_plane(&sites(directory.path())[0]);
        let configuration = Configuration::write(&text, directory.path()).unwrap();
        let file = configuration.file();
        assert_eq!(file.name, "opt/dev.granary/config");
        let config = Config::parse(&fs::read_to_string(&file.content).unwrap()).unwrap();
        assert_eq!(config.node.as_str(), NAME);
        assert_eq!(config.network.addresses, Addresses::Dhcp);
        assert_eq!(config.storage.overcommit, "1.5".parse().unwrap());
    }

    #[test]
    fn a_configuration_of_the_callers_own_is_given_as_it_is() {
        let mut site = sites(Path::new("/tmp")).swap_remove(0);
        site.options.configuration = Some("{".to_owned());
        assert_eq!(of_control_plane(&site), "{");
    }

    #[test]
    fn a_worker_is_told_whom_to_trust_and_who_it_is() {
        let authority: CaDigest = format!("sha256:{}", "0a".repeat(32)).parse().unwrap();
        let token: Token = "abcdef.0123456789abcdef".parse().unwrap();
        let config = Config::parse(&of_worker(&sites(Path::new("/tmp"))[1], authority, &token)).unwrap();
        assert_eq!(config.node.as_str(), "granary-1");
        let Addresses::Static(Static { interface, gateway }) = config.network.addresses else { panic!("{config:?}") };
        assert_eq!((interface, gateway), ("10.0.2.16/24".parse().unwrap(), Some(Ipv4Addr::new(10, 0, 2, 2))));
        assert_eq!(config.storage.overcommit, "1.5".parse().unwrap());
        let Role::Worker(worker) = config.role else { panic!("{:?}", config.role) };
        assert_eq!(worker.server, "10.0.2.15:6443".parse().unwrap());
        assert_eq!((worker.authority, worker.token), (authority, Some(token)));
    }

    #[test]
    fn nothing_is_left_of_it() {
        let directory = tempfile::tempdir().unwrap();
        drop(Configuration::write("{}", directory.path()).unwrap());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
