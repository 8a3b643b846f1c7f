//! Nodes that were thrown out: what they write is refused.
//!
//! Kubernetes cannot take a certificate back, and a kubelet whose Node was deleted makes it again at its next start. An
//! administrator writes the name of a node that shall not come back into a ConfigMap, and a policy keeps it out.

use cluster::{STORAGE_GROUP, STORAGE_USER_PREFIX};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::api::ApiResource;
use serde_json::json;

use crate::admission::node_behind;
use crate::csr::{KUBELET_PREFIX, KUBELETS_GROUP};
use crate::objects::{Object, metadata};

/// The ConfigMap that names the nodes which were removed for good, in [`REMOVED_NODES_NAMESPACE`]: each key is a node's
/// name, values mean nothing. Nobody has to make it.
pub const REMOVED_NODES: &str = "granary-removed-nodes";

/// Where [`REMOVED_NODES`] is.
pub const REMOVED_NODES_NAMESPACE: &str = "kube-system";

const POLICY: &str = "removed-nodes.local.granary.dev";

/// A node that was removed gets no certificate.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the node {node} was removed from the cluster: its name is in the ConfigMap {REMOVED_NODES_NAMESPACE}/{REMOVED_NODES}; \
     take it out to let a machine of that name in again"
)]
pub(crate) struct NodeRemoved {
    pub(crate) node: String,
}

impl NodeRemoved {
    /// The condition's reason.
    pub(crate) const REASON: &str = "NodeRemoved";
}

/// The policy, and what puts it in force.
pub(crate) fn objects() -> [Object; 2] {
    let object = |resource, want| Object { resource, name: POLICY, want, immutable: &[] };
    let node = node_behind(KUBELET_PREFIX, &node_behind(STORAGE_USER_PREFIX, "''"));
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata(POLICY),
        "spec": {
            "failurePolicy": "Fail",
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["*"],
                "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE", "DELETE"],
                "resources": ["*/*"],
            }]},
            "matchConditions": [{
                "name": "nodes",
                "expression": format!("['{KUBELETS_GROUP}', '{STORAGE_GROUP}'].exists(group, group in request.userInfo.groups)"),
            }],
            "variables": [{"name": "node", "expression": node}],
            "validations": [{
                "expression": "!(variables.node in params.?data.orValue({}))",
                "message": format!(
                    "this node was removed from the cluster: its name is in the ConfigMap {REMOVED_NODES_NAMESPACE}/{REMOVED_NODES}"
                ),
            }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata(POLICY),
        "spec": {
            "policyName": POLICY,
            // Where nobody was removed there is no ConfigMap.
            "paramRef": {
                "name": REMOVED_NODES,
                "namespace": REMOVED_NODES_NAMESPACE,
                "parameterNotFoundAction": "Allow",
            },
            "validationActions": ["Deny"],
        },
    });
    [
        object(ApiResource::erase::<ValidatingAdmissionPolicy>(&()), policy),
        object(ApiResource::erase::<ValidatingAdmissionPolicyBinding>(&()), binding),
    ]
}
