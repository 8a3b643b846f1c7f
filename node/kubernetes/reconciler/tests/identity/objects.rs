//! The objects that the reconciler keeps.

use std::sync::Arc;
use std::time::Duration;

use cluster::{API_SERVER_USER, PROXY_USER, STORAGE_GROUP};
use envtest::{Cluster, Failure, Identity, PATIENCE, Suite};
use eventually::{Seen, eventually};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use k8s_openapi::api::flowcontrol::v1::PriorityLevelConfiguration;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Api, Client, ResourceExt};
use reconciler::{CLASS, REVISION};
use serde_json::json;
use supervisor::{Settings, Supervisor};

const DRIVER: &str = "local.granary.dev";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const REVISION_ANNOTATION: &str = "local.granary.dev/revision";

/// A reconciler that has seen all objects right, until it is stopped.
struct Reconciler(Supervisor);

impl Reconciler {
    async fn start(cluster: &Cluster) -> Result<Self, Failure> {
        let client = cluster.admin();
        let tree = Supervisor::start("reconciler", Settings::default(), move |cx| reconciler::run(cx, client.clone()));
        tree.handle().healthy().await?;
        Ok(Self(tree))
    }

    async fn stop(self) -> Result<(), Failure> {
        Ok(self.0.stop(Duration::from_secs(10)).await?)
    }
}

pub(crate) fn cases(suite: Suite) -> Suite {
    suite
        .case("what_is_missing_is_made", what_is_missing_is_made)
        .case("a_claim_without_a_class_gets_the_nodes_class", a_claim_without_a_class_gets_the_nodes_class)
        .case("what_was_deleted_is_made_again", what_was_deleted_is_made_again)
        .case("a_field_that_drifted_is_set_again", a_field_that_drifted_is_set_again)
        .case("what_cannot_be_changed_is_made_anew", what_cannot_be_changed_is_made_anew)
        .case("what_others_add_stays", what_others_add_stays)
        .case("the_objects_of_a_newer_release_are_left_alone", the_objects_of_a_newer_release_are_left_alone)
        .case("the_objects_of_an_older_release_are_brought_up_to_date", an_older_release_is_brought_up_to_date)
        .case("what_a_node_may_not_do_stands_before_what_it_may", what_a_node_may_not_do_stands_before_what_it_may)
        .case("the_api_server_understands_every_expression", the_api_server_understands_every_expression)
        .case("the_api_server_may_be_away_for_a_while", the_api_server_may_be_away_for_a_while)
        .case("objects_that_are_right_are_not_written", objects_that_are_right_are_not_written)
        .case("the_api_server_reaches_kubelets_and_nothing_else", the_api_server_reaches_kubelets_and_nothing_else)
        .case("requests_of_nodes_have_the_priority_of_the_system", requests_of_nodes_have_the_priority_of_the_system)
        .case("a_claim_goes_back_to_the_scheduler_when_its_node_is_gone", a_claim_goes_back_when_its_node_is_gone)
}

async fn what_is_missing_is_made(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Reconciler::start(&cluster).await?.stop().await?;
    let driver = Api::<CSIDriver>::all(cluster.admin()).get(DRIVER).await?;
    assert_eq!(driver.spec.attach_required, Some(false));
    let class = Api::<StorageClass>::all(cluster.admin()).get(CLASS).await?;
    assert_eq!(class.volume_binding_mode.as_deref(), Some("WaitForFirstConsumer"));
    assert_eq!(class.annotations()["storageclass.kubernetes.io/is-default-class"], "true");
    assert_eq!(class.annotations()[REVISION_ANNOTATION], REVISION.to_string());
    // The binding too: the API server lets the storage identity in.
    let storage = Api::<StorageClass>::all(cluster.client(Identity::Storage).await?);
    eventually(PATIENCE, "the storage identity's role", async || {
        storage.list(&ListParams::default()).await.map(|_| Seen::Done(()))
    })
    .await?;
    Ok(())
}

/// The API server's part; the reconciler marks the class as the default.
async fn a_claim_without_a_class_gets_the_nodes_class(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Reconciler::start(&cluster).await?.stop().await?;
    let claims = Api::default_namespaced(cluster.admin());
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": "unclassed"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }))?;
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    // The admission plugin reads a cache.
    eventually(PATIENCE, "the default class", async || {
        let class = claims.create(&dry, &claim).await?.spec.and_then(|spec| spec.storage_class_name);
        Ok::<_, kube::Error>(if class.as_deref() == Some(CLASS) {
            Seen::Done(())
        } else {
            Seen::NotYet(format!("{class:?}"))
        })
    })
    .await?;
    Ok(())
}

/// Its certificate was of the group `system:masters`, for which there is no limit.
async fn the_api_server_reaches_kubelets_and_nothing_else(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Reconciler::start(&cluster).await?.stop().await?;
    let reviews = Api::<SubjectAccessReview>::all(cluster.admin());
    let review = |resource: &str, subresource: &str| {
        let attributes = json!({"group": "", "resource": resource, "subresource": subresource, "verb": "get"});
        serde_json::from_value::<SubjectAccessReview>(json!({"spec": {
            "user": API_SERVER_USER, "groups": ["system:authenticated"], "resourceAttributes": attributes,
        }}))
    };
    let allowed = async |review: &SubjectAccessReview| {
        let status = reviews.create(&PostParams::default(), review).await?.status;
        Ok::<_, kube::Error>(status.is_some_and(|status| status.allowed))
    };
    let kubelets = review("nodes", "proxy")?;
    // The authorizer reads a cache.
    eventually(PATIENCE, "the role of the API server", async || {
        Ok::<_, kube::Error>(if allowed(&kubelets).await? { Seen::Done(()) } else { Seen::NotYet("none".to_owned()) })
    })
    .await?;
    for resource in ["secrets", "pods", "configmaps"] {
        assert!(!allowed(&review(resource, "")?).await?, "{resource}");
    }
    Ok(())
}

async fn requests_of_nodes_have_the_priority_of_the_system(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Reconciler::start(&cluster).await?.stop().await?;
    let levels = Api::<PriorityLevelConfiguration>::all(cluster.admin());
    let [system, exempt] = ["system", "exempt"].map(|name| levels.get(name));
    let (system, exempt) = (system.await?.uid(), exempt.await?.uid());
    assert!(system.is_some() && exempt.is_some() && system != exempt);
    let tenant = cluster.impersonate("jane", &["system:authenticated"]).await?;
    let proxy = cluster.impersonate(PROXY_USER, &["system:authenticated"]).await?;
    let (storage, kubelet) = (cluster.client(Identity::Storage).await?, cluster.client(Identity::Kubelet).await?);
    // The filter reads a cache.
    eventually(PATIENCE, "the FlowSchema of the nodes", async || {
        let level = level(&storage).await?;
        Ok::<_, kube::Error>(if level == system { Seen::Done(()) } else { Seen::NotYet(format!("{level:?}")) })
    })
    .await?;
    assert_eq!(level(&proxy).await?, system, "kube-proxy");
    assert_eq!(level(&kubelet).await?, system, "kubelet");
    assert_eq!(level(&cluster.admin()).await?, exempt, "the reconciler");
    let tenants = level(&tenant).await?;
    assert!(tenants.is_some() && tenants != system && tenants != exempt, "{tenants:?}");
    Ok(())
}

/// The UID of the priority level that the API server had a request in. Not that of probes, which are exempt.
async fn level(client: &Client) -> Result<Option<String>, kube::Error> {
    let request = http::Request::get("/api/v1/namespaces/default/services").body(Body::empty());
    let answer = client.send(request.map_err(kube::Error::HttpError)?).await?;
    let level = answer.headers().get("x-kubernetes-pf-prioritylevel-uid");
    Ok(level.and_then(|level| level.to_str().ok()).map(str::to_owned))
}

async fn what_was_deleted_is_made_again(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let reconciler = Reconciler::start(&cluster).await?;
    let classes = Api::<StorageClass>::all(cluster.admin());
    let uid = classes.get(CLASS).await?.uid();
    classes.delete(CLASS, &DeleteParams::default()).await?;
    eventually(PATIENCE, "another storage class of the name", async || {
        let found = classes.get_opt(CLASS).await?.and_then(|class| class.uid());
        Ok::<_, kube::Error>(match found {
            Some(found) if Some(&found) != uid.as_ref() => Seen::Done(()),
            other => Seen::NotYet(format!("{other:?}")),
        })
    })
    .await?;
    reconciler.stop().await
}

async fn a_field_that_drifted_is_set_again(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let reconciler = Reconciler::start(&cluster).await?;
    let roles = Api::<ClusterRole>::all(cluster.admin());
    let rules = roles.get(STORAGE_GROUP).await?.rules;
    let everything = json!({"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]});
    roles.patch(STORAGE_GROUP, &PatchParams::default(), &Patch::Merge(everything)).await?;
    eventually(PATIENCE, "the role's own rules", async || {
        let found = roles.get(STORAGE_GROUP).await?.rules;
        Ok::<_, kube::Error>(if found == rules { Seen::Done(()) } else { Seen::NotYet(format!("{found:?}")) })
    })
    .await?;
    reconciler.stop().await
}

async fn what_cannot_be_changed_is_made_anew(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Reconciler::start(&cluster).await?.stop().await?;
    let classes = Api::<StorageClass>::all(cluster.admin());
    let right = classes.get(CLASS).await?;
    classes.delete(CLASS, &DeleteParams::default()).await?;
    let wrong: StorageClass = serde_json::from_value(json!({
        "metadata": {"name": CLASS}, "provisioner": "example.invalid", "volumeBindingMode": "Immediate",
    }))?;
    classes.create(&PostParams::default(), &wrong).await?;
    Reconciler::start(&cluster).await?.stop().await?;
    let found = classes.get(CLASS).await?;
    assert_eq!((found.provisioner, found.volume_binding_mode), (right.provisioner, right.volume_binding_mode));
    Ok(())
}

async fn what_others_add_stays(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let classes = Api::<StorageClass>::all(cluster.admin());
    let label = json!({"metadata": {"labels": {"example.invalid/tier": "fast"}}});
    Reconciler::start(&cluster).await?.stop().await?;
    classes.patch(CLASS, &PatchParams::default(), &Patch::Merge(label)).await?;
    let drift = json!({"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "false"}}});
    classes.patch(CLASS, &PatchParams::default(), &Patch::Merge(drift)).await?;
    Reconciler::start(&cluster).await?.stop().await?;
    let found = classes.get(CLASS).await?;
    assert_eq!(found.annotations()["storageclass.kubernetes.io/is-default-class"], "true");
    assert_eq!(found.labels()["example.invalid/tier"], "fast");
    Ok(())
}

async fn the_objects_of_a_newer_release_are_left_alone(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Reconciler::start(&cluster).await?.stop().await?;
    let drivers = Api::<CSIDriver>::all(cluster.admin());
    let newer = json!({
        "metadata": {"annotations": {REVISION_ANNOTATION: (REVISION + 1).to_string()}},
        "spec": {"fsGroupPolicy": "None"},
    });
    let version = drivers.patch(DRIVER, &PatchParams::default(), &Patch::Merge(newer)).await?.resource_version();
    Reconciler::start(&cluster).await?.stop().await?;
    assert_eq!(drivers.get(DRIVER).await?.resource_version(), version);
    drivers.delete(DRIVER, &DeleteParams::default()).await?;
    Ok(())
}

async fn an_older_release_is_brought_up_to_date(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Reconciler::start(&cluster).await?.stop().await?;
    let older = |rest: serde_json::Value| {
        let mut patch = json!({"metadata": {"annotations": {REVISION_ANNOTATION: (REVISION - 1).to_string()}}});
        patch.as_object_mut().expect("an object").extend(rest.as_object().cloned().unwrap_or_default());
        Patch::Merge(patch)
    };
    let (classes, roles) = (Api::<StorageClass>::all(cluster.admin()), Api::<ClusterRole>::all(cluster.admin()));
    let params = PatchParams::default();
    classes.patch(CLASS, &params, &older(json!({"allowVolumeExpansion": false}))).await?;
    roles.patch(STORAGE_GROUP, &params, &older(json!({"rules": []}))).await?;
    Reconciler::start(&cluster).await?.stop().await?;
    let class = classes.get(CLASS).await?;
    assert_eq!(
        (class.allow_volume_expansion, &class.annotations()[REVISION_ANNOTATION]),
        (Some(true), &REVISION.to_string())
    );
    let role = roles.get(STORAGE_GROUP).await?;
    assert!(!role.rules.unwrap_or_default().is_empty());
    Ok(())
}

/// The API server counts all writes with one counter.
fn writes<K: ResourceExt>(objects: &[K]) -> Vec<u64> {
    let version = |object: &K| object.resource_version().and_then(|version| version.parse().ok());
    objects.iter().map(|object| version(object).expect("a number")).collect()
}

async fn what_a_node_may_not_do_stands_before_what_it_may(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Reconciler::start(&cluster).await?.stop().await?;
    let policies = Api::<ValidatingAdmissionPolicy>::all(cluster.admin());
    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(cluster.admin());
    let roles = Api::<ClusterRole>::all(cluster.admin());
    let subjects = Api::<ClusterRoleBinding>::all(cluster.admin());
    let (every, delete) = (ListParams::default(), DeleteParams::default());
    policies.delete_collection(&delete, &every).await?;
    bindings.delete_collection(&delete, &every).await?;
    roles.delete(STORAGE_GROUP, &delete).await?;
    subjects.delete(STORAGE_GROUP, &delete).await?;
    Reconciler::start(&cluster).await?.stop().await?;

    // The status of a policy is written later, by a controller: the bindings come with the policies, and have none.
    let bound = bindings.list(&every).await?.items;
    assert_eq!(bound.len(), policies.list(&every).await?.items.len());
    let last_bound = writes(&bound).into_iter().max();
    let allowed =
        writes(&[roles.get(STORAGE_GROUP).await?]).into_iter().chain(writes(&[subjects.get(STORAGE_GROUP).await?]));
    assert!(last_bound < allowed.min(), "{last_bound:?}");
    Ok(())
}

async fn the_api_server_understands_every_expression(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Reconciler::start(&cluster).await?.stop().await?;
    let policies = Api::<ValidatingAdmissionPolicy>::all(cluster.admin());
    let checked = eventually(PATIENCE, "the check of all policies", async || {
        let found = policies.list(&ListParams::default()).await?.items;
        let of = |policy: &ValidatingAdmissionPolicy| policy.status.clone().unwrap_or_default().type_checking;
        let waiting = found.iter().filter(|policy| of(policy).is_none()).count();
        Ok::<_, kube::Error>(if found.is_empty() || waiting > 0 {
            Seen::NotYet(format!("{waiting} of {} wait", found.len()))
        } else {
            Seen::Done(
                found
                    .iter()
                    .filter_map(of)
                    .flat_map(|checked| checked.expression_warnings.unwrap_or_default())
                    .collect::<Vec<_>>(),
            )
        })
    })
    .await?;
    assert_eq!(checked, []);
    Ok(())
}

async fn the_api_server_may_be_away_for_a_while(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let reconciler = Reconciler::start(&cluster).await?;
    cluster.stop_api_server().await;
    cluster.start_api_server().await?;
    let drivers = Api::<CSIDriver>::all(cluster.admin());
    drivers.delete(DRIVER, &DeleteParams::default()).await?;
    eventually(PATIENCE, "the driver's object", async || {
        Ok::<_, kube::Error>(drivers.get_opt(DRIVER).await?.map_or(Seen::NotYet("none".into()), |_| Seen::Done(())))
    })
    .await?;
    reconciler.stop().await
}

async fn objects_that_are_right_are_not_written(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Reconciler::start(&cluster).await?.stop().await?;
    let versions = async || -> Result<Vec<Option<String>>, kube::Error> {
        Ok(vec![
            Api::<CSIDriver>::all(cluster.admin()).get(DRIVER).await?.resource_version(),
            Api::<StorageClass>::all(cluster.admin()).get(CLASS).await?.resource_version(),
            Api::<ClusterRole>::all(cluster.admin()).get(STORAGE_GROUP).await?.resource_version(),
        ])
    };
    let before = versions().await?;
    Reconciler::start(&cluster).await?.stop().await?;
    assert_eq!(versions().await?, before);
    Ok(())
}

async fn a_claim_goes_back_when_its_node_is_gone(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let client = cluster.admin();
    let reclaimer =
        Supervisor::start("reclaimer", Settings::default(), move |cx| reconciler::reclaim(cx, client.clone()));
    reclaimer.handle().healthy().await?;
    let nodes = Api::<Node>::all(cluster.admin());
    let claims = Api::<PersistentVolumeClaim>::default_namespaced(cluster.admin());
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "leaving"}}))?;
    nodes.create(&PostParams::default(), &node).await?;
    let claim = |name: &str, node: &str| {
        serde_json::from_value::<PersistentVolumeClaim>(json!({
            "metadata": {"name": name, "annotations": {
                "volume.kubernetes.io/storage-provisioner": DRIVER, SELECTED_NODE: node,
            }},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": CLASS,
            },
        }))
    };
    claims.create(&PostParams::default(), &claim("stays", "leaving")?).await?;
    claims.create(&PostParams::default(), &claim("goes", "never-was")?).await?;
    let given_back = async |name: &str| {
        eventually(PATIENCE, "a claim without a node", async || {
            let node = claims.get(name).await?.annotations().get(SELECTED_NODE).cloned();
            Ok::<_, kube::Error>(node.map_or(Seen::Done(()), Seen::NotYet))
        })
        .await
    };
    given_back("goes").await?;
    // It came first: by now it has been looked at.
    assert_eq!(claims.get("stays").await?.annotations()[SELECTED_NODE], "leaving");
    nodes.delete("leaving", &DeleteParams::default()).await?;
    given_back("stays").await?;
    for name in ["stays", "goes"] {
        claims.delete(name, &DeleteParams::default()).await?;
    }
    Ok(reclaimer.stop(Duration::from_secs(10)).await?)
}
