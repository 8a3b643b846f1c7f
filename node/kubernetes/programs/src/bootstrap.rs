//! Bootstrap tokens: the credential with which a machine joins the cluster as one given node.
//!
//! A token is a Secret of type `bootstrap.kubernetes.io/token`, which the API server accepts until it expires or is
//! deleted. An annotation names the node that may use the token. Kubernetes documentation: "Authenticating with
//! Bootstrap Tokens".

use cluster::{BOOTSTRAP_NODE_ANNOTATION, Token};
use k8s_openapi::api::core::v1::Secret;
use serde::ser::Error as _;
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

pub const BOOTSTRAP_NAMESPACE: &str = "kube-system";

pub const BOOTSTRAP_TYPE: &str = "bootstrap.kubernetes.io/token";

pub fn bootstrap_secret_name(id: &str) -> String {
    format!("bootstrap-token-{id}")
}

/// The Secret of a token for the node `node`. The API server accepts the token until `expires`.
pub fn bootstrap_secret(token: &Token, node: &str, expires: OffsetDateTime) -> Result<Secret, serde_json::Error> {
    let expires = expires.replace_nanosecond(0).unwrap_or(expires).format(&Rfc3339);
    let expires = expires.map_err(serde_json::Error::custom)?;
    serde_json::from_value(json!({
        "metadata": {
            "name": bootstrap_secret_name(token.id()),
            "namespace": BOOTSTRAP_NAMESPACE,
            "annotations": {BOOTSTRAP_NODE_ANNOTATION: node},
        },
        "type": BOOTSTRAP_TYPE,
        "stringData": {
            "token-id": token.id(),
            "token-secret": token.secret(),
            "expiration": expires,
            "usage-bootstrap-authentication": "true",
        },
    }))
}
