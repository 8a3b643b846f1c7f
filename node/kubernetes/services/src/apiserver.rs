//! kube-apiserver, for everybody who has a certificate.

use std::sync::Arc;

use crate::program::{Program, Service};
use crate::{API_PORT, Config, Credentials, etcd, ready};

/// Healthy when `/readyz` is `ok`.
pub fn service(config: &Config, credentials: &Arc<Credentials>) -> Service {
    let kept = Arc::clone(credentials);
    program(config, credentials).service(&config.paths, move || {
        let credentials = Arc::clone(&kept);
        async move { ready::api(&credentials, "/readyz").await }
    })
}

fn program(config: &Config, credentials: &Credentials) -> Program {
    let certificate = |name| credentials.certificate(name).display().to_string();
    let key = |name| credentials.key(name).display().to_string();
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
        // Nothing on the node resolves host names.
        ("kubelet-preferred-address-types", "InternalIP".to_owned()),
        ("service-account-key-file", credentials.public_key("sa").display().to_string()),
        ("service-account-signing-key-file", key("sa")),
        ("service-account-issuer", "https://kubernetes.default.svc".to_owned()),
        ("authorization-mode", "Node,RBAC".to_owned()),
        // A kubelet changes its own Node, and pods on it; it is not among the default plugins.
        ("enable-admission-plugins", "NodeRestriction".to_owned()),
        ("enable-bootstrap-token-auth", "true".to_owned()),
        ("anonymous-auth", "false".to_owned()),
        ("cert-dir", config.paths.scratch_certificates().display().to_string()),
        ("profiling", "false".to_owned()),
        // Fair queuing takes its time at each start. Its price: one client that floods the API server slows all others.
        ("enable-priority-and-fairness", "false".to_owned()),
        ("runtime-config", "flowcontrol.apiserver.k8s.io/v1=false".to_owned()),
    ];
    Program {
        name: "kube-apiserver",
        arguments: arguments.map(|(flag, value)| format!("--{flag}={value}")).into(),
        directories: vec![(config.paths.scratch_certificates(), 0o700)],
        ..Program::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::example;

    #[test]
    fn every_file_that_it_is_told_of_is_there() {
        let scratch = tempfile::tempdir().unwrap();
        let mut config = example();
        config.paths.pki = scratch.path().join("pki");
        let credentials = Credentials::ensure(&config, time::OffsetDateTime::now_utc()).unwrap();
        let pki = config.paths.pki.display().to_string();
        let files: Vec<String> = program(&config, &credentials)
            .arguments
            .into_iter()
            .filter_map(|flag| flag.split_once('=').map(|(_, value)| value.to_owned()))
            .filter(|value| value.starts_with(&pki))
            .collect();
        assert_eq!(files.len(), 11);
        for file in files {
            assert!(std::path::Path::new(&file).exists(), "{file}");
        }
    }
}
