//! kube-apiserver, for clients with a certificate.

use std::sync::Arc;

use cluster::API_PORT;

use crate::pki::front_proxy;
use crate::program::{Program, Service};
use crate::{Config, Credentials, Rights, User, admission, audit, etcd, ready};

const NAME: &str = User::ApiServer.program();

/// Healthy when `/readyz` is `ok`.
pub fn service(config: &Config, credentials: &Arc<Credentials>) -> Service {
    let kept = Arc::clone(credentials);
    program(config, credentials).service(&config.paths, move || {
        let credentials = Arc::clone(&kept);
        async move { ready::api(&credentials, "/readyz").await }
    })
}

pub(crate) fn program(config: &Config, credentials: &Credentials) -> Program {
    let certificate = |name| credentials.certificate(name).display().to_string();
    let key = |name| credentials.key(name).display().to_string();
    let admission = config.paths.generated("admission.json");
    let policy = config.paths.generated("audit-policy.json");
    let arguments = [
        ("etcd-servers", etcd::CLIENTS.to_owned()),
        ("etcd-cafile", certificate("ca")),
        ("etcd-certfile", certificate("apietcd")),
        ("etcd-keyfile", key("apietcd")),
        ("bind-address", "0.0.0.0".to_owned()),
        ("advertise-address", config.address.to_string()),
        ("secure-port", API_PORT.to_string()),
        ("service-cluster-ip-range", config.services.to_string()),
        ("client-ca-file", certificate("ca")),
        ("tls-cert-file", certificate("apiserver")),
        ("tls-private-key-file", key("apiserver")),
        ("kubelet-client-certificate", certificate("apikubelet")),
        ("kubelet-client-key", key("apikubelet")),
        ("kubelet-certificate-authority", certificate("ca")),
        // Aggregated API servers accept users and groups from this client only.
        ("proxy-client-cert-file", certificate(front_proxy::NAME)),
        ("proxy-client-key-file", key(front_proxy::NAME)),
        ("requestheader-client-ca-file", certificate(front_proxy::CA)),
        ("requestheader-allowed-names", front_proxy::USER.to_owned()),
        ("requestheader-username-headers", "X-Remote-User".to_owned()),
        ("requestheader-group-headers", "X-Remote-Group".to_owned()),
        ("requestheader-extra-headers-prefix", "X-Remote-Extra-".to_owned()),
        // No resolver of the node has the names of Nodes.
        ("kubelet-preferred-address-types", "InternalIP".to_owned()),
        ("service-account-key-file", credentials.public_key("sa").display().to_string()),
        ("service-account-signing-key-file", key("sa")),
        ("service-account-issuer", "https://kubernetes.default.svc".to_owned()),
        ("authorization-mode", "Node,RBAC".to_owned()),
        ("enable-admission-plugins", admission::PLUGINS.to_owned()),
        ("admission-control-config-file", admission.display().to_string()),
        // Pod Security decides which namespaces may run privileged pods. CNI plugins and CSI drivers need them.
        ("allow-privileged", "true".to_owned()),
        ("encryption-provider-config", credentials.encryption().display().to_string()),
        ("audit-policy-file", policy.display().to_string()),
        ("audit-log-path", audit::file(&config.paths.audit).display().to_string()),
        // By default, the API server extends the tokens of pods to a year.
        ("service-account-extend-token-expiration", "false".to_owned()),
        ("enable-bootstrap-token-auth", "true".to_owned()),
        ("anonymous-auth", "false".to_owned()),
        ("cert-dir", config.paths.scratch(NAME).display().to_string()),
        ("profiling", "false".to_owned()),
        // A client that floods the API server must not slow all others.
        ("enable-priority-and-fairness", "true".to_owned()),
    ];
    let arguments = arguments.into_iter().chain(audit::bounds(config.disk.audit));
    let mut keys =
        ["apietcd", "apikubelet", "apiserver", front_proxy::NAME, "sa"].map(|name| credentials.key(name)).to_vec();
    keys.push(credentials.encryption());
    let rights = Rights {
        reads: vec![admission.clone(), policy.clone(), config.paths.names()],
        owns: vec![config.paths.audit.clone()],
        ..Rights::new(User::ApiServer, keys)
    };
    Program {
        name: NAME,
        arguments: arguments.map(|(flag, value)| format!("--{flag}={value}")).collect(),
        rights: Some(rights),
        files: vec![(admission, admission::configuration(config.settings.pod_security)), (policy, audit::policy())],
        ..Program::default()
    }
}
