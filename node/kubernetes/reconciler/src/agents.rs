//! Objects for other clusters, where pods are the nodes' storage (crate `standalone`).
//!
//! The chart installs these objects; nothing restores them. Their names differ from those that [`run`](crate::run)
//! maintains, so that a cluster may have nodes of both kinds.

use cluster::{DRIVER_NAME, snapshot};
use serde_json::{Value, json};

use crate::admission::{self, Guard, Validation, Writers};
use crate::objects::{RBAC, READ, csi_driver, may, rules};

/// Extra field of a user: the node of the pod that the token is bound to. Kubernetes 1.30
/// (`ServiceAccountTokenPodNodeInfo`).
pub const NODE_OF_TOKEN: &str = "authentication.kubernetes.io/node-name";

/// Extra field of a user: the pod that the token is bound to. A token that is bound to a Node has only
/// [`NODE_OF_TOKEN`].
const POD_OF_TOKEN: &str = "authentication.kubernetes.io/pod-name";

/// Service accounts of the pods. CEL expressions contain these names verbatim, so they are names of objects, or
/// templates of such names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accounts<'a> {
    /// Namespace of both accounts.
    pub namespace: &'a str,
    /// Account of the DaemonSet.
    pub node: &'a str,
    /// Account of the Deployment, and name of its Lease.
    pub reclaimer: &'a str,
}

/// All objects except the workloads and storage classes: the policies, then the roles, then the Lease and the driver.
pub fn objects(accounts: Accounts<'_>) -> Vec<Value> {
    let Accounts { namespace, node, reclaimer } = accounts;
    // The reclaimer acts for all nodes, so its policies do not compare the node of its pod.
    let of_pods = |account: &str| Writers {
        condition: format!("request.userInfo.username == 'system:serviceaccount:{namespace}:{account}'"),
        node: format!("request.userInfo.?extra[?'{NODE_OF_TOKEN}'][?0].orValue('')"),
        // Without this validation, a token without a node could write objects that are on no node.
        first: Some(Validation::new(
            format!("variables.node != '' && request.userInfo.?extra[?'{POD_OF_TOKEN}'][?0].orValue('') != ''"),
            "the token is not bound to a pod, or the API server does not put the node of the pod into tokens",
        )),
    };
    let (of_nodes, of_reclaimer) = (of_pods(node), of_pods(reclaimer));
    let mut objects: Vec<Value> =
        admission::guards().iter().flat_map(|guard| guarded("agent", guard, &of_nodes)).collect();
    objects.extend(admission::reclaimer_guards().iter().flat_map(|guard| guarded("reclaimer", guard, &of_reclaimer)));
    // Pods have no mesh, and read only their own Node.
    objects.extend(granted("granary:agent", &rules(&["get"]), namespace, node));
    let of_reclaimer = [
        may("", "persistentvolumeclaims", &["get", "list", "watch", "patch"]),
        may("", "persistentvolumes", &["get"]),
        may("", "nodes", READ),
        may("", "pods", &["list"]),
        may("storage.k8s.io", "storageclasses", &["list"]),
        may("storage.k8s.io", "csistoragecapacities", &["list"]),
        may("events.k8s.io", "events", &["create", "patch"]),
        may(snapshot::GROUP, snapshot::SNAPSHOTS, &["get"]),
        may(snapshot::GROUP, snapshot::CONTENTS, &["get"]),
    ];
    objects.extend(granted("granary:reclaimer", &of_reclaimer, namespace, reclaimer));
    objects.extend(lease(namespace, reclaimer));
    objects.push(csi_driver(json!({"name": DRIVER_NAME})));
    objects
}

fn guarded(whose: &str, guard: &Guard, writers: &Writers) -> [Value; 2] {
    let name = format!("{whose}-{}", guard.name);
    let metadata = json!({"name": name});
    [admission::policy(guard, writers, metadata.clone()), admission::binding(&name, metadata)]
}

fn granted(role: &str, rules: &[Value], namespace: &str, account: &str) -> [Value; 2] {
    grant("Cluster", &json!({"name": role}), rules, namespace, account)
}

/// The Lease with its role. The chart installs the Lease, because RBAC cannot restrict the creation of objects to a
/// name.
fn lease(namespace: &str, account: &str) -> [Value; 3] {
    let metadata = json!({"name": account, "namespace": namespace});
    let mut rule = may("coordination.k8s.io", "leases", &["get", "update"]);
    rule["resourceNames"] = json!([account]);
    let [role, binding] = grant("", &metadata, &[rule], namespace, account);
    [role, binding, json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata})]
}

/// A role and its binding. `scope` is the prefix of their kinds.
fn grant(scope: &str, metadata: &Value, rules: &[Value], namespace: &str, account: &str) -> [Value; 2] {
    let (api, kind) = (format!("{RBAC}/v1"), format!("{scope}Role"));
    [
        json!({"apiVersion": api, "kind": kind, "metadata": metadata, "rules": rules}),
        json!({
            "apiVersion": api,
            "kind": format!("{kind}Binding"),
            "metadata": metadata,
            "roleRef": {"apiGroup": RBAC, "kind": kind, "name": metadata["name"]},
            "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": account}],
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Value> {
        objects(Accounts { namespace: "kube-system", node: "storage", reclaimer: "reclaimer" })
    }

    #[test]
    fn every_kind_that_an_account_may_write_has_a_policy() {
        let objects = all();
        let roles = objects.iter().filter(|object| object["kind"] == "ClusterRole");
        for (role, account) in roles.zip(["storage", "reclaimer"]) {
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
    fn every_policy_requires_the_token_of_a_pod() {
        let objects = all();
        let policies: Vec<_> = objects.iter().filter(|object| object["kind"] == "ValidatingAdmissionPolicy").collect();
        assert!(!policies.is_empty());
        for policy in policies {
            let first = policy["spec"]["validations"][0]["expression"].as_str().unwrap_or_default();
            assert!(first.contains("variables.node != ''") && first.contains(POD_OF_TOKEN), "{policy}");
            let node = policy["spec"]["variables"][0]["expression"].as_str().unwrap_or_default();
            assert!(node.contains(NODE_OF_TOKEN), "{policy}");
        }
    }

    #[test]
    fn names_differ_from_those_that_the_reconciler_maintains() {
        let kept: Vec<_> = crate::objects::waves(&crate::removed::Removed::new())
            .into_iter()
            .flatten()
            .map(|object| object.name)
            .collect();
        for object in all().iter().filter(|object| object["kind"] != "CSIDriver") {
            let name = object["metadata"]["name"].as_str().expect("a name");
            assert!(!kept.contains(&name), "{name}");
        }
    }

    #[test]
    fn expressions_contain_no_template() {
        assert!(all().iter().all(|object| !object.to_string().contains("{{")));
    }
}
