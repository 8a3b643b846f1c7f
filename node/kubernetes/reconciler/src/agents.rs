//! The objects of a cluster whose nodes are not ours, where pods bring the storage (crate `standalone`).
//!
//! Nobody keeps them there: who installs the pods makes them. Names differ from those that [`run`](crate::run) keeps, so
//! that a cluster may have nodes of both kinds.

use cluster::DRIVER_NAME;
use serde_json::{Value, json};

use crate::admission::{self, Guard, Validation, Writers};
use crate::objects::{RBAC, READ, csi_driver, may, rules};

/// What the API server knows of a token that it made for a pod: the node of the pod. Kubernetes 1.30
/// (`ServiceAccountTokenPodNodeInfo`).
pub const NODE_OF_TOKEN: &str = "authentication.kubernetes.io/node-name";

/// The service accounts of the pods. They are parts of CEL expressions and are put there as they are: names of
/// Kubernetes' objects, or what a template makes such names of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accounts<'a> {
    /// Their namespace.
    pub namespace: &'a str,
    /// Of the pods that are each node's storage.
    pub node: &'a str,
    /// Of the pod that gives back the claims of nodes that are gone.
    pub release: &'a str,
}

/// All of them but the storage class, which its users choose: what the accounts may not do, then what they may, then the
/// driver.
pub fn objects(accounts: Accounts<'_>) -> Vec<Value> {
    let Accounts { namespace, node, release } = accounts;
    let condition =
        |account: &str| format!("request.userInfo.username == 'system:serviceaccount:{namespace}:{account}'");
    let of_nodes = Writers {
        condition: condition(node),
        node: format!("request.userInfo.?extra[?'{NODE_OF_TOKEN}'][?0].orValue('')"),
        // Else a token without a node could write what is on none.
        first: Some(Validation::new(
            "variables.node != ''",
            "the token is bound to no pod, or the API server does not tell the node of its pod",
        )),
    };
    let of_release = Writers { condition: condition(release), node: "''".to_owned(), first: None };
    let guards = admission::guards();
    let mut objects: Vec<Value> = guards.iter().flat_map(|guard| guarded("agent", guard, &of_nodes)).collect();
    objects.extend(guarded("release", &admission::release_guard(), &of_release));
    objects.extend(granted("granary:agent", &rules(READ), namespace, node));
    let of_release = [may("", "persistentvolumeclaims", &["get", "list", "watch", "patch"]), may("", "nodes", READ)];
    objects.extend(granted("granary:release", &of_release, namespace, release));
    objects.push(csi_driver(json!({"name": DRIVER_NAME})));
    objects
}

fn guarded(whose: &str, guard: &Guard, writers: &Writers) -> [Value; 2] {
    let name = format!("{whose}-{}", guard.name);
    let metadata = json!({"name": name});
    [admission::policy(guard, writers, metadata.clone()), admission::binding(&name, metadata)]
}

fn granted(role: &str, rules: &[Value], namespace: &str, account: &str) -> [Value; 2] {
    let api = format!("{RBAC}/v1");
    [
        json!({"apiVersion": api, "kind": "ClusterRole", "metadata": {"name": role}, "rules": rules}),
        json!({
            "apiVersion": api,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": role},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": account}],
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Value> {
        objects(Accounts { namespace: "kube-system", node: "storage", release: "release" })
    }

    #[test]
    fn every_kind_that_an_account_may_write_has_a_policy_of_that_account() {
        let objects = all();
        let roles = objects.iter().filter(|object| object["kind"] == "ClusterRole");
        for (role, account) in roles.zip(["storage", "release"]) {
            for rule in role["rules"].as_array().expect("rules") {
                let verbs = rule["verbs"].as_array().expect("verbs");
                let writes = verbs.iter().any(|verb| ["create", "patch", "delete"].iter().any(|write| verb == write));
                let guard = objects.iter().any(|object| {
                    let spec = &object["spec"];
                    let condition = spec["matchConditions"][0]["expression"].as_str().unwrap_or_default();
                    let rules = &spec["matchConstraints"]["resourceRules"][0];
                    condition.ends_with(&format!(":kube-system:{account}'"))
                        && rules["resources"][0] == rule["resources"][0]
                        && rules["apiGroups"][0] == rule["apiGroups"][0]
                });
                assert_eq!(guard, writes, "{account}: {rule}");
            }
        }
    }

    #[test]
    fn no_name_is_one_that_the_reconciler_keeps_but_the_drivers() {
        let kept: Vec<_> = crate::objects::waves().into_iter().flatten().map(|object| object.name).collect();
        for object in all().iter().filter(|object| object["kind"] != "CSIDriver") {
            let name = object["metadata"]["name"].as_str().expect("a name");
            assert!(!kept.contains(&name), "{name}");
        }
    }

    #[test]
    fn a_template_finds_nothing_of_its_own_in_the_expressions() {
        assert!(all().iter().all(|object| !object.to_string().contains("{{")));
    }
}
