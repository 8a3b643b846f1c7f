//! The fields of a Node that the mesh uses.

use cluster::PUBLIC_KEY_ANNOTATION;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;

/// Unvalidated fields of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    pub created: Option<Timestamp>,
    pub key: Option<String>,
    /// Addresses of type `InternalIP`, in order.
    pub addresses: Vec<String>,
    pub networks: Vec<String>,
}

impl From<&Node> for Member {
    fn from(node: &Node) -> Self {
        let metadata = &node.metadata;
        let spec = node.spec.as_ref();
        let networks = spec.and_then(|spec| spec.pod_cidrs.clone()).filter(|networks| !networks.is_empty());
        let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            created: metadata.creation_timestamp.as_ref().map(|time| time.0),
            key: metadata.annotations.as_ref().and_then(|all| all.get(PUBLIC_KEY_ANNOTATION).cloned()),
            addresses: addresses
                .filter(|address| address.type_ == "InternalIP")
                .map(|address| address.address.clone())
                .collect(),
            // The older field `podCIDR` equals the first item of `podCIDRs` if both exist.
            networks: networks.or_else(|| Some(vec![spec?.pod_cidr.clone()?])).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn member(node: serde_json::Value) -> Member {
        Member::from(&serde_json::from_value::<Node>(node).unwrap())
    }

    #[test]
    fn the_fields_of_a_node_are_read() {
        let found = member(json!({
            "metadata": {
                "name": "one", "creationTimestamp": "2026-01-02T03:04:05Z", "annotations": {PUBLIC_KEY_ANNOTATION: "a key", "a": "b"},
            },
            "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00::/64"]},
            "status": {"addresses": [
                {"type": "Hostname", "address": "one"},
                {"type": "InternalIP", "address": "192.0.2.1"},
                {"type": "ExternalIP", "address": "203.0.113.1"},
                {"type": "InternalIP", "address": "2001:db8::1"},
            ]},
        }));
        assert_eq!(
            found,
            Member {
                name: "one".into(),
                created: Some("2026-01-02T03:04:05Z".parse().unwrap()),
                key: Some("a key".into()),
                addresses: vec!["192.0.2.1".into(), "2001:db8::1".into()],
                networks: vec!["10.244.1.0/24".into(), "fd00::/64".into()],
            }
        );
    }

    #[test]
    fn a_node_without_fields_is_accepted() {
        assert_eq!(member(json!({"metadata": {"name": "new"}})), Member { name: "new".into(), ..Member::default() });
        let older = member(json!({"metadata": {"name": "new"}, "spec": {"podCIDR": "10.244.1.0/24"}}));
        assert_eq!(older.networks, ["10.244.1.0/24"]);
    }
}
