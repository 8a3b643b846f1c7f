//! The network of pods on one node: a bridge, addresses from the node's range, host ports.

use std::path::PathBuf;

use serde_json::json;

use crate::{Config, Paths};

/// The directory in which containerd looks for network configurations.
pub(crate) fn directory(paths: &Paths) -> PathBuf {
    paths.ephemeral.join("cni/net.d")
}

/// The configuration's file and text. The addresses in use are forgotten at a reboot, as the pods are.
pub(crate) fn conflist(config: &Config) -> (PathBuf, String) {
    let text = json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
                "ipMasq": true, "ipMasqBackend": "nftables",
                "ipam": {
                    "type": "host-local",
                    "dataDir": config.paths.ephemeral.join("cni/host-local"),
                    "ranges": [[{"subnet": config.pods.to_string()}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}},
        ],
    });
    (directory(&config.paths).join("10-pods.conflist"), text.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::config::example;

    #[test]
    fn pods_get_addresses_of_the_nodes_own_range() {
        let (path, text) = conflist(&example());
        assert_eq!(path, PathBuf::from("/ephemeral/cni/net.d/10-pods.conflist"));
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["plugins"][0]["ipam"]["ranges"], json!([[{"subnet": "10.244.0.0/24"}]]));
        assert_eq!(read["plugins"][0]["ipam"]["dataDir"], "/ephemeral/cni/host-local");
    }
}
