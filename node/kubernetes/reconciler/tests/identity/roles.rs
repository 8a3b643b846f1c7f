//! Rights of Kubernetes' roles for users of a namespace, with the roles of the node and the kinds of snapshots
//! installed.

use std::sync::Arc;

use cluster::snapshot::{self, group};
use envtest::{Cluster, Failure, create};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::DeleteParams;
use kube::{Api, Client};
use serde_json::json;

use crate::{Nodes, until};

/// Roles under test. Each is bound in a namespace to its own user.
const ROLES: [&str; 2] = ["edit", "admin"];
const WRITES: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

/// A group and one of its resources, of version v1.
type Resource = (&'static str, &'static str);

const STORAGE: &str = "storage.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";
const CERTIFICATES: &str = "certificates.k8s.io";

const ALLOWED: [Resource; 4] =
    [("", "persistentvolumeclaims"), ("", "pods"), ("", "services"), ("apps", "statefulsets")];

const DENIED: [Resource; 36] = [
    // Objects with handles and sizes of volumes.
    ("", "persistentvolumes"),
    ("", "persistentvolumes/status"),
    ("", "persistentvolumeclaims/status"),
    (snapshot::GROUP, snapshot::CONTENTS),
    (snapshot::GROUP, "volumesnapshotcontents/status"),
    (snapshot::GROUP, "volumesnapshots/status"),
    (group::GROUP, group::CONTENTS),
    (group::GROUP, "volumegroupsnapshotcontents/status"),
    (group::GROUP, "volumegroupsnapshots/status"),
    // Snapshots need a right that an administrator gives.
    (snapshot::GROUP, snapshot::SNAPSHOTS),
    (group::GROUP, group::SNAPSHOTS),
    // Settings of all volumes of a class or a driver.
    (STORAGE, "storageclasses"),
    (STORAGE, "volumeattributesclasses"),
    (snapshot::GROUP, snapshot::CLASSES),
    (group::GROUP, group::CLASSES),
    (STORAGE, "csidrivers"),
    (STORAGE, "csinodes"),
    (STORAGE, "csistoragecapacities"),
    (STORAGE, "volumeattachments"),
    // Nodes, and the choice of the node of a pod.
    ("", "nodes"),
    ("", "nodes/status"),
    ("", "nodes/proxy"),
    ("", "pods/binding"),
    ("", "pods/status"),
    // Pod Security levels, quotas, addresses of Services.
    ("", "namespaces"),
    ("", "namespaces/finalize"),
    ("", "resourcequotas"),
    ("", "limitranges"),
    ("", "services/status"),
    // Objects that define rights and admission.
    (RBAC, "clusterroles"),
    (RBAC, "clusterrolebindings"),
    (ADMISSION, "validatingadmissionpolicies"),
    (ADMISSION, "validatingadmissionpolicybindings"),
    (ADMISSION, "validatingwebhookconfigurations"),
    (CERTIFICATES, "certificatesigningrequests"),
    (CERTIFICATES, "certificatesigningrequests/approval"),
];

/// The rights of a role are the same in each namespace, and a review with a namespace also covers cluster-wide objects.
pub(crate) async fn the_roles_edit_and_admin_write_claims_and_no_volumes(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Nodes::of(&cluster).await?;
    cluster.reconcile_snapshots().await?;
    let admin = cluster.admin();
    // A review accepts any name of a resource, so check that the resources exist.
    until("all resources", async || missing(&admin).await).await?;
    let bindings = Api::<RoleBinding>::default_namespaced(admin.clone());
    let reviews = Api::<SubjectAccessReview>::all(admin.clone());
    for role in ROLES {
        let binding = json!({
            "metadata": {"name": user(role)},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user(role)}],
        });
        create(&bindings, binding).await?;
        // Retry: the authorizer reads a cache, and kube-controller-manager aggregates the rules of the role.
        until("the rights of the role", async || {
            Ok((!is_allowed(&reviews, role, "create", ALLOWED[0]).await?).then(|| format!("{role} has none")))
        })
        .await?;
        for verb in WRITES {
            for resource in ALLOWED {
                assert!(is_allowed(&reviews, role, verb, resource).await?, "{role} may not {verb} {resource:?}");
            }
            for resource in DENIED {
                assert!(!is_allowed(&reviews, role, verb, resource).await?, "{role} may {verb} {resource:?}");
            }
        }
        bindings.delete(&user(role), &DeleteParams::default()).await?;
    }
    Ok(())
}

fn user(role: &str) -> String {
    format!("user-with-{role}")
}

/// Returns a resource of the lists that the API server does not serve.
async fn missing(client: &Client) -> Result<Option<String>, kube::Error> {
    for (group, resource) in ALLOWED.into_iter().chain(DENIED) {
        let served = match group {
            "" => client.list_core_api_resources("v1").await?,
            _ => client.list_api_group_resources(&format!("{group}/v1")).await?,
        };
        if !served.resources.iter().any(|one| one.name == resource) {
            return Ok(Some(format!("no {resource} in group {group:?}")));
        }
    }
    Ok(None)
}

async fn is_allowed(
    reviews: &Api<SubjectAccessReview>,
    role: &str,
    verb: &str,
    (group, resource): Resource,
) -> Result<bool, kube::Error> {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let review = json!({"spec": {
        "user": user(role), "groups": ["system:authenticated"],
        "resourceAttributes": {
            "namespace": "default", "verb": verb, "group": group, "version": "v1",
            "resource": resource, "subresource": subresource,
        },
    }});
    let status = create(reviews, review).await?.status;
    Ok(status.is_some_and(|status| status.allowed))
}
