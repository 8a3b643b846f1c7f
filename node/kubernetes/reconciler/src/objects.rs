//! Objects that the reconciler maintains, as data.

use cluster::snapshot::group;
use cluster::{API_SERVER_USER, DNS_GROUP, DRIVER_NAME, PROXY_USER, STORAGE_GROUP, snapshot};
use k8s_openapi::api::flowcontrol::v1::FlowSchema;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use kube::api::ApiResource;
use serde_json::{Value, json};

use crate::admission;
use crate::admission::{CONTENTS_STATUS, GROUPS_STATUS};
use crate::object::{DEFAULT_CLASS, Object, metadata};
use crate::removed::{self, Removed};

pub const CLASS: &str = "local";

const ROLE: &str = STORAGE_GROUP;
pub(crate) const RBAC: &str = "rbac.authorization.k8s.io";

/// All objects, in the order of their creation. The objects of a wave are created concurrently.
pub(crate) fn waves(removed: &Removed) -> [Vec<Object>; 2] {
    // Create policies before roles.
    let policies = removed::objects(removed).into_iter().chain(admission::all()).collect();
    [
        policies,
        vec![role(), binding(), resolver(), resolvers(), proxies(), joining(), kubelets(), flows(), driver(), class()],
    ]
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
            // The scheduler treats a node without a CSIStorageCapacity object as full.
            "storageCapacity": true,
            "volumeLifecycleModes": ["Persistent"],
        },
    })
}

fn class() -> Object {
    let mut metadata = metadata(CLASS);
    metadata["annotations"][format!("storageclass.kubernetes.io/{DEFAULT_CLASS}")] = "true".into();
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
        // The last two fields are mutable, but an apply without them does not remove them.
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

pub(crate) fn rules(nodes: &[&str]) -> [Value; 16] {
    [
        may("", "persistentvolumeclaims", &["get", "list", "watch", "patch"]),
        may("", "persistentvolumeclaims/status", &["patch"]),
        may("", "persistentvolumes", &["get", "list", "watch", "create", "patch", "delete"]),
        may("", "nodes", nodes),
        may("storage.k8s.io", "storageclasses", READ),
        may("storage.k8s.io", "volumeattributesclasses", &["get"]),
        may("storage.k8s.io", "csinodes", READ),
        may("storage.k8s.io", "csistoragecapacities", &["get", "list", "watch", "create", "patch", "delete"]),
        may("events.k8s.io", "events", &["create", "patch"]),
        may(snapshot::GROUP, snapshot::SNAPSHOTS, &["get", "create"]),
        may(snapshot::GROUP, snapshot::CLASSES, &["get"]),
        may(snapshot::GROUP, snapshot::CONTENTS, &["get", "list", "watch", "create", "patch"]),
        may(snapshot::GROUP, CONTENTS_STATUS, &["patch"]),
        may(group::GROUP, group::CLASSES, &["get"]),
        may(group::GROUP, group::CONTENTS, &["get", "list", "watch", "patch"]),
        may(group::GROUP, GROUPS_STATUS, &["patch"]),
    ]
}

/// A rule of a role. The policies restrict writes to objects of the node.
pub(crate) fn may(group: &str, resource: &str, verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
}

fn binding() -> Object {
    granted(ROLE, ROLE, ("Group", STORAGE_GROUP))
}

/// Role of a node's CoreDNS, which reads the objects that have DNS names.
fn resolver() -> Object {
    Object {
        resource: ApiResource::erase::<ClusterRole>(&()),
        name: DNS_GROUP,
        want: json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": metadata(DNS_GROUP),
            "rules": [
                may("", "namespaces", &["list", "watch"]),
                may("", "services", &["list", "watch"]),
                may("discovery.k8s.io", "endpointslices", &["list", "watch"]),
            ],
        }),
        immutable: &[],
    }
}

fn resolvers() -> Object {
    granted(DNS_GROUP, DNS_GROUP, ("Group", DNS_GROUP))
}

/// kube-proxy of a worker uses the node's storage identity.
fn proxies() -> Object {
    granted("granary:proxies", "system:node-proxier", ("Group", STORAGE_GROUP))
}

/// Bootstrap tokens may create certificate signing requests and nothing else. [`crate::approve`] decides on them.
fn joining() -> Object {
    granted("granary:joining", "system:node-bootstrapper", ("Group", "system:bootstrappers"))
}

/// The API server as a client of kubelets, for logs and exec.
fn kubelets() -> Object {
    granted("granary:kubelets", "system:kubelet-api-admin", ("User", API_SERVER_USER))
}

/// Gives requests of the nodes' storage, CoreDNS and kube-proxy the priority level of kubelets. Requests of
/// administrators and the reconciler are exempt.
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
                        {"kind": "Group", "group": {"name": DNS_GROUP}},
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

pub(crate) fn granted(name: &'static str, role: &str, (kind, subject): (&str, &str)) -> Object {
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::object::{REVISION, REVISION_ANNOTATION};

    /// Asserts that the type has all fields, because the API server ignores unknown fields silently.
    fn has_only_fields_of<K: DeserializeOwned + Serialize>(object: Object) {
        let typed: K = serde_json::from_value(object.want.clone()).expect("an object of this type");
        assert_eq!(serde_json::to_value(typed).expect("JSON"), object.want);
        assert_eq!(object.want["metadata"]["name"], object.name);
        assert_eq!(object.want["kind"], object.resource.kind.as_str());
        assert_eq!(object.want["apiVersion"], object.resource.api_version.as_str());
    }

    #[test]
    fn objects_have_only_fields_of_the_api() {
        has_only_fields_of::<CSIDriver>(driver());
        has_only_fields_of::<StorageClass>(class());
        has_only_fields_of::<ClusterRole>(role());
        has_only_fields_of::<ClusterRoleBinding>(binding());
        has_only_fields_of::<ClusterRole>(resolver());
        has_only_fields_of::<ClusterRoleBinding>(resolvers());
        has_only_fields_of::<ClusterRoleBinding>(kubelets());
        has_only_fields_of::<FlowSchema>(flows());
        let [policies, _] = waves(&Removed::new());
        for object in policies {
            if object.resource.kind == "ValidatingAdmissionPolicy" {
                has_only_fields_of::<ValidatingAdmissionPolicy>(object);
            } else {
                has_only_fields_of::<ValidatingAdmissionPolicyBinding>(object);
            }
        }
    }

    #[test]
    fn every_object_has_the_revision() {
        assert_eq!(REVISION_ANNOTATION, format!("{DRIVER_NAME}/revision"));
        for object in waves(&Removed::new()).into_iter().flatten() {
            assert_eq!(object.want["metadata"]["annotations"][REVISION_ANNOTATION], REVISION.to_string());
        }
    }

    #[test]
    fn the_role_of_nodes_has_no_other_rights() {
        let rules = role().want["rules"].to_string();
        for word in ["*", "secrets", "nodes/status", "pods", "update", "deletecollection"] {
            assert!(!rules.contains(&format!("\"{word}\"")), "{word}");
        }
    }

    /// Regression test: aggregated API servers were never ready, because they may not list ConfigMaps.
    #[test]
    fn no_policy_has_a_parameter() {
        for object in waves(&Removed::from(["one".to_owned()])).into_iter().flatten() {
            let spec = &object.want["spec"];
            assert!(spec.get("paramKind").is_none() && spec.get("paramRef").is_none(), "{}", object.name);
        }
    }

    #[test]
    fn the_policy_contains_the_names_of_removed_nodes() {
        let [policy, _] = removed::objects(&Removed::from(["b".to_owned(), "a.example".to_owned()]));
        assert_eq!(policy.want["spec"]["validations"][0]["expression"], r#"!(variables.node in ["a.example","b"])"#);
    }

    #[test]
    fn a_removed_node_is_denied_in_each_group_of_the_role() {
        let [policy, _] = removed::objects(&Removed::new());
        let denied = policy.want["spec"]["matchConstraints"]["resourceRules"][0]["apiGroups"].clone();
        let denied = denied.as_array().expect("groups");
        for rule in role().want["rules"].as_array().expect("rules") {
            assert!(denied.contains(&rule["apiGroups"][0]), "{rule}");
        }
    }

    #[test]
    fn each_writable_kind_has_a_policy_before_the_role() {
        let [first, second] = waves(&Removed::new());
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
