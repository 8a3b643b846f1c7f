//! The objects, as data.

use cluster::{API_SERVER_USER, DRIVER_NAME, PROXY_USER, STORAGE_GROUP};
use k8s_openapi::api::flowcontrol::v1::FlowSchema;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use kube::api::ApiResource;
use serde_json::{Value, json};

use crate::{admission, removed};

/// Counts up with every change of an object below. An older release leaves objects of a newer one alone.
pub const REVISION: u32 = 6;

/// The storage class that claims get which name none.
pub const CLASS: &str = "local";

/// Where [`REVISION`] stands.
pub(crate) const REVISION_ANNOTATION: &str = "local.granary.dev/revision";

const ROLE: &str = STORAGE_GROUP;
pub(crate) const RBAC: &str = "rbac.authorization.k8s.io";

/// One object that is kept.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) resource: ApiResource,
    pub(crate) name: &'static str,
    /// Every field that matters; the cluster's own may come on top.
    pub(crate) want: Value,
    /// Fields that the API server never changes: another value means to delete the object and to make it anew.
    /// What is not in `want` must not be there at all.
    pub(crate) immutable: &'static [&'static str],
}

/// All objects, in the order in which they are needed. Those of a wave are needed at once.
pub(crate) fn waves() -> [Vec<Object>; 2] {
    // What a node may not do stands before what it may.
    let refused = admission::all().into_iter().chain(removed::objects()).collect();
    [refused, vec![role(), binding(), proxies(), joining(), kubelets(), flows(), driver(), class()]]
}

fn driver() -> Object {
    Object {
        resource: ApiResource::erase::<CSIDriver>(&()),
        name: DRIVER_NAME,
        want: csi_driver(metadata(DRIVER_NAME)),
        immutable: &["/spec/attachRequired", "/spec/volumeLifecycleModes"],
    }
}

pub(crate) fn csi_driver(metadata: Value) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": metadata,
        "spec": {
            "attachRequired": false,
            "podInfoOnMount": false,
            "fsGroupPolicy": "File",
            // A node without a CSIStorageCapacity object counts as full, until its provisioner has made one.
            "storageCapacity": true,
            "volumeLifecycleModes": ["Persistent"],
        },
    })
}

fn class() -> Object {
    let mut metadata = metadata(CLASS);
    metadata["annotations"]["storageclass.kubernetes.io/is-default-class"] = "true".into();
    Object {
        resource: ApiResource::erase::<StorageClass>(&()),
        name: CLASS,
        want: json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": metadata,
            "provisioner": DRIVER_NAME,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowVolumeExpansion": true,
        }),
        // The last two can be changed, but not by an apply that does not name them.
        immutable: &[
            "/provisioner",
            "/parameters",
            "/reclaimPolicy",
            "/volumeBindingMode",
            "/mountOptions",
            "/allowedTopologies",
        ],
    }
}

fn role() -> Object {
    Object {
        resource: ApiResource::erase::<ClusterRole>(&()),
        name: ROLE,
        want: json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": metadata(ROLE),
            // The mesh publishes its key in an annotation of the Node.
            "rules": rules(&["get", "list", "watch", "patch"]),
        }),
        immutable: &[],
    }
}

pub(crate) const READ: &[&str] = &["get", "list", "watch"];

/// What a node's storage may do, and what it may do with Nodes.
pub(crate) fn rules(nodes: &[&str]) -> [Value; 8] {
    [
        may("", "persistentvolumeclaims", &["get", "list", "watch", "patch"]),
        // How far the expansion is.
        may("", "persistentvolumeclaims/status", &["patch"]),
        may("", "persistentvolumes", &["get", "list", "watch", "create", "patch", "delete"]),
        may("", "nodes", nodes),
        may("storage.k8s.io", "storageclasses", READ),
        may("storage.k8s.io", "csinodes", READ),
        may("storage.k8s.io", "csistoragecapacities", &["get", "list", "watch", "create", "patch", "delete"]),
        may("events.k8s.io", "events", &["create", "patch"]),
    ]
}

/// A rule of a role. What of these objects a node may write, the policies say.
pub(crate) fn may(group: &str, resource: &str, verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
}

fn binding() -> Object {
    granted(ROLE, ROLE, ("Group", STORAGE_GROUP))
}

/// kube-proxy of a node that joined works with the node's identity: it reads Services and their endpoints.
fn proxies() -> Object {
    granted("granary:proxies", "system:node-proxier", ("Group", STORAGE_GROUP))
}

/// Who has a bootstrap token may ask for a certificate, and nothing else. [`crate::approve`] decides.
fn joining() -> Object {
    granted("granary:joining", "system:node-bootstrapper", ("Group", "system:bootstrappers"))
}

/// The API server asks kubelets for logs, and to start programs in containers.
fn kubelets() -> Object {
    granted("granary:kubelets", "system:kubelet-api-admin", ("User", API_SERVER_USER))
}

/// The nodes' storage and kube-proxy wait for no other clients: their requests have the priority level that those of
/// kubelets have by default. Requests of administrators, the reconciler's among them, never wait.
fn flows() -> Object {
    let name = "granary-nodes";
    Object {
        resource: ApiResource::erase::<FlowSchema>(&()),
        name,
        want: json!({
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
            "kind": "FlowSchema",
            "metadata": metadata(name),
            "spec": {
                "priorityLevelConfiguration": {"name": "system"},
                "matchingPrecedence": 500,
                "distinguisherMethod": {"type": "ByUser"},
                "rules": [{
                    "subjects": [
                        {"kind": "Group", "group": {"name": STORAGE_GROUP}},
                        {"kind": "User", "user": {"name": PROXY_USER}},
                    ],
                    "resourceRules": [{
                        "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"],
                    }],
                    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
                }],
            },
        }),
        immutable: &[],
    }
}

/// A group or a user has the rights of a role.
fn granted(name: &'static str, role: &str, (kind, subject): (&str, &str)) -> Object {
    Object {
        resource: ApiResource::erase::<ClusterRoleBinding>(&()),
        name,
        want: json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": metadata(name),
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": RBAC, "kind": kind, "name": subject}],
        }),
        immutable: &["/roleRef"],
    }
}

pub(crate) fn metadata(name: &str) -> Value {
    json!({"name": name, "annotations": {REVISION_ANNOTATION: REVISION.to_string()}})
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    use super::*;

    /// Every field must be one that the type knows: the API server would drop others without a word.
    fn is_understood_as<K: DeserializeOwned + Serialize>(object: Object) {
        let typed: K = serde_json::from_value(object.want.clone()).expect("it is such an object");
        assert_eq!(serde_json::to_value(typed).expect("JSON"), object.want);
        assert_eq!(object.want["metadata"]["name"], object.name);
        assert_eq!(object.want["kind"], object.resource.kind.as_str());
        assert_eq!(object.want["apiVersion"], object.resource.api_version.as_str());
    }

    #[test]
    fn the_api_understands_every_field() {
        is_understood_as::<CSIDriver>(driver());
        is_understood_as::<StorageClass>(class());
        is_understood_as::<ClusterRole>(role());
        is_understood_as::<ClusterRoleBinding>(binding());
        is_understood_as::<ClusterRoleBinding>(kubelets());
        is_understood_as::<FlowSchema>(flows());
        let [policies, _] = waves();
        for object in policies {
            if object.resource.kind == "ValidatingAdmissionPolicy" {
                is_understood_as::<ValidatingAdmissionPolicy>(object);
            } else {
                is_understood_as::<ValidatingAdmissionPolicyBinding>(object);
            }
        }
    }

    #[test]
    fn every_object_has_the_revision() {
        assert_eq!(REVISION_ANNOTATION, format!("{DRIVER_NAME}/revision"));
        for object in waves().into_iter().flatten() {
            assert_eq!(object.want["metadata"]["annotations"][REVISION_ANNOTATION], REVISION.to_string());
        }
    }

    #[test]
    fn nodes_may_not_touch_what_is_not_theirs() {
        let rules = role().want["rules"].to_string();
        for word in ["*", "secrets", "nodes/status", "pods", "update", "deletecollection"] {
            assert!(!rules.contains(&format!("\"{word}\"")), "{word}");
        }
    }

    #[test]
    fn every_kind_that_a_node_may_write_has_a_policy_that_is_made_before_the_role() {
        let [first, second] = waves();
        let guarded = |group: &Value, resource: &Value| {
            first.iter().any(|object| {
                object
                    .want
                    .pointer("/spec/matchConstraints/resourceRules/0")
                    .is_some_and(|rule| rule["apiGroups"][0] == *group && rule["resources"][0] == *resource)
            })
        };
        for rule in role().want["rules"].as_array().expect("rules") {
            let verbs = rule["verbs"].as_array().expect("verbs");
            if verbs.iter().any(|verb| ["create", "patch", "delete"].contains(&verb.as_str().expect("a verb"))) {
                assert!(guarded(&rule["apiGroups"][0], &rule["resources"][0]), "{rule}");
            }
        }
        assert!(second.iter().any(|object| object.resource.kind == "ClusterRole"));
        for policy in first.iter().filter(|object| object.resource.kind == "ValidatingAdmissionPolicy") {
            let bound = |object: &&Object| object.want["spec"]["policyName"] == policy.name;
            assert_eq!(first.iter().filter(bound).count(), 1, "{}", policy.name);
        }
    }
}
