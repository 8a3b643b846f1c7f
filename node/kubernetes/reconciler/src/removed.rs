//! Policy that denies all writes of removed nodes.
//!
//! Kubernetes cannot revoke certificates, and a kubelet whose Node was deleted creates it again at its next start.
//! Therefore an administrator writes the name of a removed node into a ConfigMap. The policy contains the names. It has
//! no parameter, because each aggregated API server evaluates the policies of the cluster, and is not ready until it can
//! list the kind of each parameter: ConfigMaps of all namespaces, which it may not read.

use std::collections::BTreeSet;
use std::future::ready;

use cluster::{STORAGE_GROUP, STORAGE_USER_PREFIX, snapshot};
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, ApiResource};
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::json;
use supervisor::Context;
use tracing::warn;

use crate::admission::node_behind;
use crate::identity::{KUBELET_PREFIX, KUBELETS_GROUP};
use crate::object::{Object, metadata};

/// Optional ConfigMap of removed nodes in [`REMOVED_NODES_NAMESPACE`]. Each key is a node's name; values have no
/// meaning.
pub const REMOVED_NODES: &str = "granary-removed-nodes";

pub const REMOVED_NODES_NAMESPACE: &str = "kube-system";

/// API groups in which kubelets and the storage identity of a node may write. `*` would include the groups of aggregated
/// API servers.
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

/// Names in the ConfigMap.
pub(crate) type Removed = BTreeSet<String>;

pub(crate) fn removed(map: Option<ConfigMap>) -> Removed {
    map.and_then(|map| map.data).into_iter().flatten().map(|(name, _)| name).collect()
}

/// A stream of the names: all at the start, and again after each event of the ConfigMap. The watch continues after
/// failures, with a back-off. The health of the service shows repeated failures, because the policy may lack a name.
pub(crate) fn changes(cx: Context, client: Client) -> impl Stream<Item = Removed> {
    let maps = Api::<ConfigMap>::namespaced(client, REMOVED_NODES_NAMESPACE);
    let only = watcher::Config::default().fields(&format!("metadata.name={REMOVED_NODES}"));
    let mut listed = None;
    watcher(maps, only).default_backoff().filter_map(move |event| {
        if !matches!(event, Ok(watcher::Event::Init)) {
            cx.report(event.is_ok());
        }
        let names = match event {
            Ok(watcher::Event::Init) => {
                listed = None;
                None
            }
            Ok(watcher::Event::InitApply(map)) => {
                listed = Some(map);
                None
            }
            Ok(watcher::Event::InitDone) => Some(removed(listed.take())),
            Ok(watcher::Event::Apply(map)) => Some(removed(Some(map))),
            Ok(watcher::Event::Delete(_)) => Some(Removed::new()),
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                warn!(error, "watch of {REMOVED_NODES_NAMESPACE}/{REMOVED_NODES} failed, will continue");
                None
            }
        };
        ready(names)
    })
}

pub(crate) fn objects(removed: &Removed) -> [Object; 2] {
    let object = |resource, want| Object { resource, name: POLICY, want, immutable: &[] };
    let node = node_behind(KUBELET_PREFIX, &node_behind(STORAGE_USER_PREFIX, "''"));
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata(POLICY),
        "spec": {
            "failurePolicy": "Fail",
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
                "expression": format!("!(variables.node in {})", json!(removed)),
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
            "validationActions": ["Deny"],
        },
    });
    [
        object(ApiResource::erase::<ValidatingAdmissionPolicy>(&()), policy),
        object(ApiResource::erase::<ValidatingAdmissionPolicyBinding>(&()), binding),
    ]
}
