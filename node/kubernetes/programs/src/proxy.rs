//! kube-proxy in nftables mode.

use serde_json::json;

use crate::pki::identity::Identity;
use crate::program::{Program, Service};
use crate::{Config, Credentials, Rights, User, ready};

const LIBRARIES: &str = "/usr/lib";

/// kube-proxy with the API client identity `identity`. Healthy when the rules of the current Services are in the
/// kernel.
pub fn service(config: &Config, credentials: &Credentials, identity: Identity) -> Service {
    program(config, credentials, identity).service(&config.paths, || ready::http(10256, "/healthz"))
}

fn program(config: &Config, credentials: &Credentials, identity: Identity) -> Program {
    let file = config.paths.generated("kube-proxy.json");
    let arguments = vec![format!("--config={}", file.display()), format!("--hostname-override={}", config.node)];
    let rights = Rights {
        reads: vec![file.clone(), config.paths.names()],
        starts: vec![config.paths.programs.join("nft"), LIBRARIES.into()],
        ..Rights::new(User::Proxy, [credentials.kubeconfig(identity), credentials.key(identity.name())])
    };
    Program {
        name: User::Proxy.program(),
        arguments,
        rights: Some(rights),
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
        // A user who may create Services could redirect connections to any address. The API server rejects new ones.
        "featureGates": {"AllowServiceExternalIPs": false},
        "clientConnection": {"kubeconfig": credentials.kubeconfig(identity)},
        // kube-proxy has no right to change the kernel's limits of connection tracking, so these stay at their
        // defaults.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    })
    .to_string()
}
