//! Policy that denies all writes of removed nodes.
//!
//! Kubernetes cannot revoke certificates, and a kubelet whose Node was deleted creates it again at its next start.
//! Therefore an administrator writes the name of a removed node into a ConfigMap.

use cluster::{STORAGE_GROUP, STORAGE_USER_PREFIX, snapshot};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::api::ApiResource;
use serde_json::json;

use crate::admission::node_behind;
use crate::identity::{KUBELET_PREFIX, KUBELETS_GROUP};
use crate::object::{Object, metadata};

/// Optional ConfigMap of removed nodes in [`REMOVED_NODES_NAMESPACE`]. Each key is a node's name; values have no
/// meaning.
pub const REMOVED_NODES: &str = "granary-removed-nodes";

pub const REMOVED_NODES_NAMESPACE: &str = "kube-system";

/// API groups in which kubelets and the storage identity of a node may write. `*` would include the groups of aggregated
/// API servers: these evaluate policies, too, and deny each write that matches a policy whose parameter they cannot read.
const GROUPS: [&str; 10] = [
    "",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "events.k8s.io",
    snapshot::group::GROUP,
    "resource.k8s.io",
    snapshot::GROUP,
    "storage.k8s.io",
];

const POLICY: &str = "removed-nodes.local.granary.dev";

/// Part of the messages about a removed node.
pub(crate) fn node_removed(node: &str) -> String {
    format!(
        "the node {node} was removed from the cluster: its name is in the ConfigMap \
         {REMOVED_NODES_NAMESPACE}/{REMOVED_NODES}"
    )
}

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
                "apiGroups": GROUPS,
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
            // Without removed nodes, the ConfigMap does not exist.
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
