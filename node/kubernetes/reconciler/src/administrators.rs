//! Rights of the administrators in the configuration of the control plane.

use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Client;
use kube::api::ApiResource;
use serde_json::json;
use supervisor::Context;

use crate::object::Object;
use crate::objects::RBAC;
use crate::run::{RunError, maintain};

const NAME: &str = cluster::ADMINISTRATORS_GROUP;

/// Maintains the binding that gives all rights to exactly these users, until cancelled. Healthy while the binding is
/// correct.
pub async fn administrators(cx: Context, client: Client, users: Vec<String>) -> Result<(), RunError> {
    maintain(cx, client, &[vec![binding(&users)]]).await
}

fn binding(users: &[String]) -> Object {
    let mut want = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        // Omit the revision, so that an older release removes users, too.
        "metadata": {"name": NAME},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
    });
    // The API server omits an empty list.
    if !users.is_empty() {
        want["subjects"] = users.iter().map(|user| json!({"apiGroup": RBAC, "kind": "User", "name": user})).collect();
    }
    Object {
        resource: ApiResource::erase::<ClusterRoleBinding>(&()),
        name: NAME,
        want,
        // Subjects are mutable, but an apply without subjects does not remove those of other clients.
        immutable: &["/roleRef", "/subjects"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{REVISION, REVISION_ANNOTATION};
    use crate::plan::{Step, plan};

    fn users(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_binding_has_only_fields_of_the_api() {
        for names in [&[][..], &["granary:administrator:alice:00"]] {
            let want = binding(&users(names)).want;
            let typed: ClusterRoleBinding = serde_json::from_value(want.clone()).unwrap();
            assert_eq!(serde_json::to_value(typed).unwrap(), want);
        }
    }

    #[test]
    fn other_subjects_are_removed() {
        let [alice, both, none] = [&["alice"][..], &["alice", "bob"], &[]].map(|names| binding(&users(names)));
        assert_eq!(plan(&alice, Some(&alice.want)), Step::Keep);
        assert_eq!(plan(&none, Some(&none.want)), Step::Keep);
        for (want, found) in [(&alice, &both), (&none, &alice), (&both, &none)] {
            assert_eq!(plan(want, Some(&found.want)), Step::Recreate);
        }
        let mut group = alice.want.clone();
        group["subjects"][0] = json!({"apiGroup": RBAC, "kind": "Group", "name": "system:authenticated"});
        assert_eq!(plan(&alice, Some(&group)), Step::Recreate);
    }

    /// A newer release may have written the binding before a rollback.
    #[test]
    fn the_binding_of_a_newer_release_is_not_ignored() {
        let (want, mut found) = (binding(&[]), binding(&users(&["alice"])).want);
        found["metadata"]["annotations"][REVISION_ANNOTATION] = (REVISION + 1).to_string().into();
        assert_eq!(plan(&want, Some(&found)), Step::Recreate);
    }
}
