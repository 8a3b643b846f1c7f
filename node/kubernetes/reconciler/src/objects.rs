//! The objects, as data.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use kube::api::ApiResource;
use serde_json::{Value, json};
use volume::DRIVER_NAME;

use crate::admission;

/// Counts up with every change of an object below. An older release leaves objects of a newer one alone.
pub const REVISION: u32 = 2;

/// The storage class that claims get which name none.
pub const CLASS: &str = "local";

/// The group of the nodes' storage identities `granary:node:NAME`.
pub const NODES_GROUP: &str = "granary:nodes";

/// Where [`REVISION`] stands.
pub(crate) const REVISION_ANNOTATION: &str = "local.granary.dev/revision";

const ROLE: &str = "granary:nodes";
const RBAC: &str = "rbac.authorization.k8s.io";

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

/// All objects, in the order in which they are needed: what a node may not do stands before what it may.
pub(crate) fn all() -> Vec<Object> {
    admission::all().into_iter().chain([role(), binding(), driver(), class()]).collect()
}

fn driver() -> Object {
    Object {
        resource: ApiResource::erase::<CSIDriver>(&()),
        name: DRIVER_NAME,
        want: json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": metadata(DRIVER_NAME),
            "spec": {
                "attachRequired": false,
                "podInfoOnMount": false,
                "fsGroupPolicy": "File",
                // With `true`, a node without a CSIStorageCapacity object counts as full: those come first.
                "storageCapacity": false,
                "volumeLifecycleModes": ["Persistent"],
            },
        }),
        immutable: &["/spec/attachRequired", "/spec/volumeLifecycleModes"],
    }
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
            // Becomes `true` with the provisioner's expansion: until then a larger request would wait for ever.
            "allowVolumeExpansion": false,
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
            "rules": [
                // Patched only to give a claim back to the scheduler.
                {
                    "apiGroups": [""],
                    "resources": ["persistentvolumeclaims"],
                    "verbs": ["get", "list", "watch", "patch"],
                },
                {
                    "apiGroups": [""],
                    "resources": ["persistentvolumes"],
                    "verbs": ["get", "list", "watch", "create", "patch", "delete"],
                },
                {
                    "apiGroups": ["storage.k8s.io"],
                    "resources": ["storageclasses"],
                    "verbs": ["get", "list", "watch"],
                },
                {
                    "apiGroups": ["events.k8s.io"],
                    "resources": ["events"],
                    "verbs": ["create", "patch"],
                },
            ],
        }),
        immutable: &[],
    }
}

fn binding() -> Object {
    Object {
        resource: ApiResource::erase::<ClusterRoleBinding>(&()),
        name: ROLE,
        want: json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": metadata(ROLE),
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": ROLE},
            "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": NODES_GROUP}],
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
        for object in admission::all() {
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
        for object in all() {
            assert_eq!(object.want["metadata"]["annotations"][REVISION_ANNOTATION], REVISION.to_string());
        }
    }

    #[test]
    fn nodes_may_not_touch_what_is_not_theirs() {
        let rules = role().want["rules"].to_string();
        for word in ["*", "secrets", "nodes", "update"] {
            assert!(!rules.contains(&format!("\"{word}\"")), "{word}");
        }
    }
}
