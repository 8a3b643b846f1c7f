//! Objects for snapshots, as data: the kinds, the class of the driver, and the role of snapshot-controller.

use cluster::snapshot::{CLASS as KIND, CLASSES, GROUP, group};
use cluster::{DRIVER_NAME, SNAPSHOT_CONTROLLER_USER};
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::ApiResource;
use serde_json::{Value, json};
use supervisor::Context;

use crate::admission::GROUPS_STATUS;
use crate::object::{DEFAULT_CLASS, Object, REVISION, REVISION_ANNOTATION, metadata};
use crate::objects::{CLASS, READ, granted, may};
use crate::run::{RunError, maintain};

/// Definitions from the client of snapshot-controller, converted by `build.rs`.
const DEFINITIONS: &str = include_str!(concat!(env!("OUT_DIR"), "/definitions.json"));

const KINDS: [&str; 6] = [
    "volumegroupsnapshotclasses.groupsnapshot.storage.k8s.io",
    "volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io",
    "volumegroupsnapshots.groupsnapshot.storage.k8s.io",
    "volumesnapshotclasses.snapshot.storage.k8s.io",
    "volumesnapshotcontents.snapshot.storage.k8s.io",
    "volumesnapshots.snapshot.storage.k8s.io",
];

/// Maintains the kinds of snapshots, the default class, and the role of snapshot-controller until cancelled. Healthy
/// while all of them are correct. Definitions of another client, or with newer versions, stay unchanged.
pub async fn snapshots(cx: Context, client: Client) -> Result<(), RunError> {
    maintain(cx, client, &waves()).await
}

pub(crate) fn waves() -> [Vec<Object>; 2] {
    let mut first = definitions();
    first.extend([
        role(),
        granted(SNAPSHOT_CONTROLLER_USER, SNAPSHOT_CONTROLLER_USER, ("User", SNAPSHOT_CONTROLLER_USER)),
    ]);
    [first, vec![class(GROUP, KIND, CLASSES), class(group::GROUP, group::CLASS, group::CLASSES)]]
}

fn definitions() -> Vec<Object> {
    let all: Vec<Value> = serde_json::from_str(DEFINITIONS).expect("definitions of the build");
    let definition = |name: &'static str| {
        let found = all.iter().find(|definition| definition["metadata"]["name"] == name);
        let mut want = found.expect("a definition of the build").clone();
        want["metadata"]["annotations"][REVISION_ANNOTATION] = REVISION.to_string().into();
        Object { resource: ApiResource::erase::<CustomResourceDefinition>(&()), name, want, immutable: &[] }
    };
    KINDS.map(definition).into()
}

/// Upstream's role for distributed snapshots.
fn role() -> Object {
    Object {
        resource: ApiResource::erase::<ClusterRole>(&()),
        name: SNAPSHOT_CONTROLLER_USER,
        want: json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": metadata(SNAPSHOT_CONTROLLER_USER),
            "rules": [
                may("", "nodes", READ),
                may("", "persistentvolumes", READ),
                // snapshot-controller adds a finalizer to the source.
                may("", "persistentvolumeclaims", &["get", "list", "watch", "update"]),
                may("", "events", &["create", "update", "patch"]),
                may(GROUP, CLASSES, READ),
                may(GROUP, "volumesnapshotcontents", &["get", "list", "watch", "create", "update", "patch", "delete"]),
                may(GROUP, "volumesnapshotcontents/status", &["patch"]),
                // Snapshots of a group are created and deleted with the group.
                may(GROUP, "volumesnapshots", &["get", "list", "watch", "create", "update", "patch", "delete"]),
                may(GROUP, "volumesnapshots/status", &["update", "patch"]),
                may(group::GROUP, group::CLASSES, READ),
                may(group::GROUP, group::CONTENTS, &["get", "list", "watch", "create", "update", "patch", "delete"]),
                may(group::GROUP, GROUPS_STATUS, &["patch"]),
                may(group::GROUP, group::SNAPSHOTS, &["get", "list", "watch", "update", "patch"]),
                may(group::GROUP, "volumegroupsnapshots/status", &["update", "patch"]),
            ],
        }),
        immutable: &[],
    }
}

/// The default class of snapshots, or of group snapshots.
fn class(group: &str, kind: &str, plural: &str) -> Object {
    let mut metadata = metadata(CLASS);
    let domain = group.replace("k8s.io", "kubernetes.io");
    metadata["annotations"][format!("{domain}/{DEFAULT_CLASS}")] = "true".into();
    Object {
        resource: ApiResource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            api_version: format!("{group}/v1"),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        },
        name: CLASS,
        want: json!({
            "apiVersion": format!("{group}/v1"),
            "kind": kind,
            "metadata": metadata,
            "driver": DRIVER_NAME,
            "deletionPolicy": "Delete",
        }),
        // An apply without parameters does not remove existing ones.
        immutable: &["/parameters"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Step, plan};

    fn definition() -> Object {
        definitions().remove(0)
    }

    #[test]
    fn definitions_have_all_fields_of_the_module_but_the_status() {
        for Object { want, name, .. } in definitions() {
            assert!([GROUP, group::GROUP].iter().any(|group| want["spec"]["group"] == *group), "{name}");
            assert_eq!(want["spec"]["versions"][0]["name"], "v1", "{name}");
            // Without the annotation, the API server does not serve a group below k8s.io.
            assert!(want["metadata"]["annotations"]["api-approved.kubernetes.io"].is_string(), "{name}");
            assert_eq!(want["metadata"]["annotations"][REVISION_ANNOTATION], REVISION.to_string());
            assert_eq!(want.get("status"), None, "{name}");
        }
    }

    #[test]
    fn a_definition_of_another_client_is_ignored() {
        let object = definition();
        assert_eq!(plan(&object, Some(&object.want)), Step::Keep);
        let mut found = object.want.clone();
        found["spec"]["names"]["shortNames"] = json!(["other"]);
        assert_eq!(plan(&object, Some(&found)), Step::Apply);
        found["metadata"]["annotations"] = json!({});
        assert_eq!(plan(&object, Some(&found)), Step::Ignore);
    }

    #[test]
    fn a_definition_with_a_newer_version_is_ignored() {
        let object = definition();
        let mut found = object.want.clone();
        found["spec"]["versions"].as_array_mut().expect("versions").push(json!({"name": "v2"}));
        assert_eq!(plan(&object, Some(&found)), Step::Ignore);
    }

    #[test]
    fn the_role_of_the_controller_has_no_other_rights() {
        let rules = role().want["rules"].to_string();
        for word in ["*", "secrets", "nodes/status", "pods", "deletecollection"] {
            assert!(!rules.contains(&format!("\"{word}\"")), "{word}");
        }
    }
}
