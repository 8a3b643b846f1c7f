//! Kubeconfigs, as JSON (which is YAML too).

use std::path::Path;

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use crate::pki::certificate::Pair;

/// A kubeconfig with paths of files, which the node may renew while programs use the kubeconfig.
pub(crate) fn with_files(server: &str, ca: &Path, certificate: &Path, key: &Path) -> String {
    config(
        json!({"server": server, "certificate-authority": ca}),
        json!({"client-certificate": certificate, "client-key": key}),
    )
}

pub(crate) fn with_contents(server: &str, ca: &str, pair: &Pair) -> String {
    let base64 = |text: &str| ByteString(text.as_bytes().to_vec());
    config(
        json!({"server": server, "certificate-authority-data": base64(ca)}),
        json!({"client-certificate-data": base64(&pair.certificate), "client-key-data": base64(&pair.key)}),
    )
}

fn config(cluster: Value, user: Value) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "granary", "cluster": cluster}],
        "users": [{"name": "granary", "user": user}],
        "contexts": [{"name": "granary", "context": {"cluster": "granary", "user": "granary"}}],
        "current-context": "granary",
    })
    .to_string()
}
