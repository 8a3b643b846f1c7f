//! The configuration of the API server's admission plugins.

use cluster::{EVENT_RATE, PodSecurity};
use serde_json::json;

/// Plugins that are not on by default. With NodeRestriction, a kubelet changes only its own Node and the pods on it.
/// DenyServiceExternalIPs rejects Services with `externalIPs`, which could take over connections to any address.
pub(crate) const PLUGINS: &str = "NodeRestriction,DenyServiceExternalIPs,EventRateLimit";

/// Namespace that Pod Security does not limit: the node's add-ons run here, and no tenant has a role in it.
const EXEMPT: &str = "kube-system";

/// The AdmissionConfiguration. Labels of a namespace override the defaults of Pod Security.
pub(crate) fn configuration(level: PodSecurity) -> String {
    json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [
            {"name": "PodSecurity", "configuration": {
                "apiVersion": "pod-security.admission.config.k8s.io/v1",
                "kind": "PodSecurityConfiguration",
                "defaults": {
                    "enforce": level.to_string(),
                    "enforce-version": "latest",
                    "audit": PodSecurity::Restricted.to_string(),
                    "audit-version": "latest",
                    "warn": PodSecurity::Restricted.to_string(),
                    "warn-version": "latest",
                },
                "exemptions": {"usernames": [], "runtimeClasses": [], "namespaces": [EXEMPT]},
            }},
            {"name": "EventRateLimit", "configuration": {
                "apiVersion": "eventratelimit.admission.k8s.io/v1alpha1",
                "kind": "Configuration",
                "limits": [{"type": "Namespace", "qps": EVENT_RATE.per_second, "burst": EVENT_RATE.burst}],
            }},
        ],
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_configured_level_is_enforced_and_restricted_is_warned_of() {
        for (level, enforced) in [
            (PodSecurity::Privileged, "privileged"),
            (PodSecurity::default(), "baseline"),
            (PodSecurity::Restricted, "restricted"),
        ] {
            let read: Value = serde_json::from_str(&configuration(level)).unwrap();
            let defaults = &read["plugins"][0]["configuration"]["defaults"];
            assert_eq!(
                [&defaults["enforce"], &defaults["warn"], &defaults["audit"]],
                [enforced, "restricted", "restricted"]
            );
            assert_eq!(read["plugins"][0]["configuration"]["exemptions"]["namespaces"], json!(["kube-system"]));
        }
    }
}
