//! kube-proxy in nftables mode.

use serde_json::json;

use crate::identity::Identity;
use crate::program::{Program, Service};
use crate::{Config, Credentials, ready};

/// Asks the API server as `identity`. Healthy when the rules of the present services are in the kernel.
pub fn service(config: &Config, credentials: &Credentials, identity: Identity) -> Service {
    program(config, credentials, identity).service(&config.paths, || ready::http(10256, "/healthz"))
}

fn program(config: &Config, credentials: &Credentials, identity: Identity) -> Program {
    let file = config.paths.generated("kube-proxy.json");
    let arguments = vec![format!("--config={}", file.display()), format!("--hostname-override={}", config.node)];
    Program {
        name: "kube-proxy",
        arguments,
        files: vec![(file, configuration(config, credentials, identity))],
        ..Program::default()
    }
}

pub(crate) fn configuration(config: &Config, credentials: &Credentials, identity: Identity) -> String {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": config.cluster_pods.to_string(),
        // Whoever may create Services could take over connections to any address. The API server rejects new ones.
        "featureGates": {"AllowServiceExternalIPs": false},
        "clientConnection": {"kubeconfig": credentials.kubeconfig(identity)},
        // The kernel's own limits of connection tracking are left as they are.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    })
    .to_string()
}
