//! containerd's CNI configuration of the pod network: a link per pod, addresses from the node's range, and host ports.
//! Alternatively, the directories of a CNI plugin that the administrator installs.

use std::path::{Path, PathBuf};

use cluster::Networking;
use ipnet::Ipv4Net;
use serde_json::json;

use crate::{Config, Paths};

/// Pattern of the host-side interfaces of pods' links. The plugin `ptp` chooses the names, and the nft rules match
/// them. Each interface has the first address of the range, and is the only route to its pod's address. No other
/// interface of a node has such a name.
pub(crate) const LINKS: &str = "veth*";

pub(crate) const CONFLIST: &str = "10-pods.conflist";

/// The directory of the node's own network configuration.
pub(crate) fn directory(paths: &Paths) -> PathBuf {
    paths.ephemeral.join("cni/net.d")
}

/// The directory that containerd watches for network configurations.
pub(crate) fn configurations(config: &Config) -> PathBuf {
    match config.settings.networking {
        Networking::BuiltIn => directory(&config.paths),
        Networking::Plugin(_) => config.paths.installed_cni_configurations.clone(),
    }
}

/// Directories in which containerd searches for plugins, the preferred one first. Some plugins start `host-local` or
/// `portmap` of the image.
pub(crate) fn programs(config: &Config) -> Vec<&Path> {
    let Paths { cni_programs, installed_cni_programs, .. } = &config.paths;
    match config.settings.networking {
        Networking::BuiltIn => vec![cni_programs],
        Networking::Plugin(_) => vec![installed_cni_programs, cni_programs],
    }
}

/// The configuration for pods with addresses of `pods`. A reboot deletes the pods and the list of allocated addresses.
pub(crate) fn conflist(config: &Config, pods: Ipv4Net) -> String {
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "ptp",
                // Only packets that leave the cluster are masqueraded, see nftables.rs.
                "ipMasq": false,
                "mtu": config.mesh.mtu,
                "ipam": {
                    "type": "host-local",
                    "dataDir": config.paths.ephemeral.join("cni/host-local"),
                    "ranges": [[{"subnet": pods.to_string()}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}},
        ],
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn pods_get_addresses_of_the_range_and_the_mtu_of_the_mesh() {
        let text = conflist(&Config::default(), "10.244.3.0/24".parse().unwrap());
        let plugin = &serde_json::from_str::<Value>(&text).unwrap()["plugins"][0];
        assert_eq!(plugin["ipam"]["ranges"], json!([[{"subnet": "10.244.3.0/24"}]]));
        assert_eq!(plugin["ipam"]["dataDir"], "/ephemeral/cni/host-local");
        assert_eq!((&plugin["mtu"], &plugin["ipMasq"]), (&json!(1420), &json!(false)));
    }
}
