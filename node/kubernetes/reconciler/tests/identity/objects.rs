//! Objects that the reconciler maintains.

use std::sync::Arc;
use std::time::Duration;

use cluster::{API_SERVER_USER, PROXY_USER, STORAGE_GROUP};
use envtest::{
    Cluster, Failure, Identity, PATIENCE, Seen, accepted, create, eventually, merge, reached, remove, start,
};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use k8s_openapi::api::flowcontrol::v1::PriorityLevelConfiguration;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::client::Body;
use kube::{Api, Client, ResourceExt};
use reconciler::{CLASS, REVISION};
use serde_json::json;
use supervisor::Supervisor;

use crate::until;

const DRIVER: &str = "local.granary.dev";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const REVISION_ANNOTATION: &str = "local.granary.dev/revision";

struct Reconciler(Supervisor);

impl Reconciler {
    async fn start(cluster: &Cluster) -> Result<Self, Failure> {
        Ok(Self(start("reconciler", cluster.admin(), reconciler::run).await?))
    }

    async fn stop(self) -> Result<(), Failure> {
        Ok(self.0.stop(Duration::from_secs(10)).await?)
    }
}

pub(crate) async fn missing_objects_are_created(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Reconciler::start(&cluster).await?.stop().await?;
    let driver = Api::<CSIDriver>::all(cluster.admin()).get(DRIVER).await?;
    assert_eq!(driver.spec.attach_required, Some(false));
    let class = Api::<StorageClass>::all(cluster.admin()).get(CLASS).await?;
    assert_eq!(class.volume_binding_mode.as_deref(), Some("WaitForFirstConsumer"));
    assert_eq!(class.annotations()["storageclass.kubernetes.io/is-default-class"], "true");
    assert_eq!(class.annotations()[REVISION_ANNOTATION], REVISION.to_string());
    // The storage identity has its role, so the binding exists, too.
    let (storage, all) = (Api::<StorageClass>::all(cluster.client(Identity::Storage).await?), ListParams::default());
    accepted("the storage identity's role", async || storage.list(&all).await).await?;
    Ok(())
}

pub(crate) async fn a_claim_without_a_class_gets_the_nodes_class(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Reconciler::start(&cluster).await?.stop().await?;
    let claims = Api::default_namespaced(cluster.admin());
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": "unclassed"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }))?;
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    // Retry, because the admission plugin reads a cache.
    until("the default class", async || {
        let class = claims.create(&dry, &claim).await?.spec.and_then(|spec| spec.storage_class_name);
        Ok((class.as_deref() != Some(CLASS)).then(|| format!("{class:?}")))
    })
    .await
}

/// The API server's certificate is not in the group `system:masters`.
pub(crate) async fn the_api_server_has_only_rights_at_kubelets(cluster: Arc<Cluster>) -> Result<(), Failure> {
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
    // Retry, because the authorizer reads a cache.
    until("the role of the API server", async || Ok((!allowed(&kubelets).await?).then(|| "none".to_owned()))).await?;
    for resource in ["secrets", "pods", "configmaps"] {
        assert!(!allowed(&review(resource, "")?).await?, "{resource}");
    }
    Ok(())
}

pub(crate) async fn requests_of_nodes_have_the_system_priority(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Reconciler::start(&cluster).await?.stop().await?;
    let levels = Api::<PriorityLevelConfiguration>::all(cluster.admin());
    let [system, exempt] = ["system", "exempt"].map(|name| levels.get(name));
    let (system, exempt) = (system.await?.uid(), exempt.await?.uid());
    assert!(system.is_some() && exempt.is_some() && system != exempt);
    let tenant = cluster.impersonate("jane", &["system:authenticated"]).await?;
    let proxy = cluster.impersonate(PROXY_USER, &["system:authenticated"]).await?;
    let (storage, kubelet) = (cluster.client(Identity::Storage).await?, cluster.client(Identity::Kubelet).await?);
    // Retry, because the priority filter reads a cache.
    reached("the FlowSchema of the nodes", async || level(&storage).await, |level| *level == system).await?;
    assert_eq!(level(&proxy).await?, system, "kube-proxy");
    assert_eq!(level(&kubelet).await?, system, "kubelet");
    assert_eq!(level(&cluster.admin()).await?, exempt, "the reconciler");
    let tenants = level(&tenant).await?;
    assert!(tenants.is_some() && tenants != system && tenants != exempt, "{tenants:?}");
    Ok(())
}

/// UID of the priority level of a request. Probes are exempt, so the request lists Services.
async fn level(client: &Client) -> Result<Option<String>, kube::Error> {
    let request = http::Request::get("/api/v1/namespaces/default/services").body(Body::empty());
    let answer = client.send(request.map_err(kube::Error::HttpError)?).await?;
    let level = answer.headers().get("x-kubernetes-pf-prioritylevel-uid");
    Ok(level.and_then(|level| level.to_str().ok()).map(str::to_owned))
}

pub(crate) async fn deleted_objects_are_created_again(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let reconciler = Reconciler::start(&cluster).await?;
    let classes = Api::<StorageClass>::all(cluster.admin());
    let uid = classes.get(CLASS).await?.uid();
    classes.delete(CLASS, &DeleteParams::default()).await?;
    let found = async || classes.get_opt(CLASS).await.map(|found| found.and_then(|class| class.uid()));
    reached("another storage class of the name", found, |found| found.is_some() && *found != uid).await?;
    reconciler.stop().await
}

pub(crate) async fn a_changed_field_is_repaired(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let reconciler = Reconciler::start(&cluster).await?;
    let roles = Api::<ClusterRole>::all(cluster.admin());
    let rules = roles.get(STORAGE_GROUP).await?.rules;
    merge(&roles, STORAGE_GROUP, json!({"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]})).await?;
    reached("the role's own rules", async || Ok(roles.get(STORAGE_GROUP).await?.rules), |found| *found == rules)
        .await?;
    reconciler.stop().await
}

pub(crate) async fn an_object_with_a_changed_immutable_field_is_recreated(
    cluster: Arc<Cluster>,
) -> Result<(), Failure> {
    Reconciler::start(&cluster).await?.stop().await?;
    let classes = Api::<StorageClass>::all(cluster.admin());
    let right = classes.get(CLASS).await?;
    classes.delete(CLASS, &DeleteParams::default()).await?;
    let metadata = json!({"name": CLASS});
    let wrong = json!({"metadata": metadata, "provisioner": "example.invalid", "volumeBindingMode": "Immediate"});
    create(&classes, wrong).await?;
    Reconciler::start(&cluster).await?.stop().await?;
    let found = classes.get(CLASS).await?;
    assert_eq!((found.provisioner, found.volume_binding_mode), (right.provisioner, right.volume_binding_mode));
    Ok(())
}

pub(crate) async fn fields_of_other_clients_stay(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let classes = Api::<StorageClass>::all(cluster.admin());
    Reconciler::start(&cluster).await?.stop().await?;
    merge(&classes, CLASS, json!({"metadata": {"labels": {"example.invalid/tier": "fast"}}})).await?;
    for default in [json!("false"), json!(null)] {
        let drift = json!({
            "metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": default}},
            "allowVolumeExpansion": false,
        });
        merge(&classes, CLASS, drift).await?;
        Reconciler::start(&cluster).await?.stop().await?;
        let found = classes.get(CLASS).await?;
        assert_eq!(found.allow_volume_expansion, Some(true));
        let found_default = found.annotations().get("storageclass.kubernetes.io/is-default-class");
        assert_eq!(found_default.map(String::as_str), default.as_str(), "an administrator's choice");
        assert_eq!(found.labels()["example.invalid/tier"], "fast");
    }
    remove(&classes, CLASS).await
}

pub(crate) async fn objects_of_a_newer_release_are_ignored(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Reconciler::start(&cluster).await?.stop().await?;
    let drivers = Api::<CSIDriver>::all(cluster.admin());
    let newer = json!({
        "metadata": {"annotations": {REVISION_ANNOTATION: (REVISION + 1).to_string()}},
        "spec": {"fsGroupPolicy": "None"},
    });
    let version = merge(&drivers, DRIVER, newer).await?.resource_version();
    Reconciler::start(&cluster).await?.stop().await?;
    assert_eq!(drivers.get(DRIVER).await?.resource_version(), version);
    remove(&drivers, DRIVER).await
}

pub(crate) async fn objects_of_an_older_release_are_updated(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Reconciler::start(&cluster).await?.stop().await?;
    let older = |rest: serde_json::Value| {
        let mut patch = json!({"metadata": {"annotations": {REVISION_ANNOTATION: (REVISION - 1).to_string()}}});
        patch.as_object_mut().expect("an object").extend(rest.as_object().cloned().unwrap_or_default());
        patch
    };
    let (classes, roles) = (Api::<StorageClass>::all(cluster.admin()), Api::<ClusterRole>::all(cluster.admin()));
    merge(&classes, CLASS, older(json!({"allowVolumeExpansion": false}))).await?;
    merge(&roles, STORAGE_GROUP, older(json!({"rules": []}))).await?;
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

/// Resource versions, which order all writes.
fn writes<K: ResourceExt>(objects: &[K]) -> Vec<u64> {
    let version = |object: &K| object.resource_version().and_then(|version| version.parse().ok());
    objects.iter().map(|object| version(object).expect("a number")).collect()
}

pub(crate) async fn policies_are_created_before_roles(cluster: Arc<Cluster>) -> Result<(), Failure> {
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

    // A controller writes the status of policies later. Bindings are written with the policies and have no status.
    let bound = bindings.list(&every).await?.items;
    assert_eq!(bound.len(), policies.list(&every).await?.items.len());
    let last_bound = writes(&bound).into_iter().max();
    let allowed =
        writes(&[roles.get(STORAGE_GROUP).await?]).into_iter().chain(writes(&[subjects.get(STORAGE_GROUP).await?]));
    assert!(last_bound < allowed.min(), "{last_bound:?}");
    Ok(())
}

pub(crate) async fn every_expression_passes_the_type_check(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Reconciler::start(&cluster).await?.stop().await?;
    let policies = Api::<ValidatingAdmissionPolicy>::all(cluster.admin());
    let checked = eventually(PATIENCE, "the check of all policies", async || {
        let found = policies.list(&ListParams::default()).await?.items;
        let of = |policy: &ValidatingAdmissionPolicy| policy.status.clone().unwrap_or_default().type_checking;
        let waiting = found.iter().filter(|policy| of(policy).is_none()).count();
        let warnings = found.iter().filter_map(of).flat_map(|checked| checked.expression_warnings.unwrap_or_default());
        Ok::<_, kube::Error>(if found.is_empty() || waiting > 0 {
            Seen::NotYet(format!("{waiting} of {} wait", found.len()))
        } else {
            Seen::Done(warnings.collect::<Vec<_>>())
        })
    })
    .await?;
    assert_eq!(checked, []);
    Ok(())
}

pub(crate) async fn the_reconciler_survives_an_unreachable_api_server(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let reconciler = Reconciler::start(&cluster).await?;
    cluster.stop_api_server().await;
    cluster.start_api_server().await?;
    let drivers = Api::<CSIDriver>::all(cluster.admin());
    drivers.delete(DRIVER, &DeleteParams::default()).await?;
    until("the driver's object", async || Ok(drivers.get_opt(DRIVER).await?.is_none().then(|| "none".to_owned())))
        .await?;
    reconciler.stop().await
}

pub(crate) async fn correct_objects_are_not_written(cluster: Arc<Cluster>) -> Result<(), Failure> {
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

pub(crate) async fn a_claim_returns_to_the_scheduler_when_its_node_is_deleted(
    cluster: Arc<Cluster>,
) -> Result<(), Failure> {
    let reclaimer = start("reclaimer", cluster.admin(), reconciler::reclaim).await?;
    let nodes = Api::<Node>::all(cluster.admin());
    let claims = Api::<PersistentVolumeClaim>::default_namespaced(cluster.admin());
    create(&nodes, json!({"metadata": {"name": "leaving"}})).await?;
    let claim = |name: &str, node: &str| {
        let annotations = json!({"volume.kubernetes.io/storage-provisioner": DRIVER, SELECTED_NODE: node});
        envtest::claim(json!({"name": name, "annotations": annotations}), CLASS, json!({}))
    };
    create(&claims, claim("stays", "leaving")).await?;
    // Users can write the annotation. No Node can have the last two names: the client rejects an empty name, and would
    // request the Node `leaving` with the last name.
    let gone = [("goes", "never-was"), ("empty", ""), ("query", "leaving?resourceVersion=0")];
    for (name, node) in gone {
        create(&claims, claim(name, node)).await?;
    }
    let returned = async |name: &str| {
        until("a claim without a node", async || Ok(claims.get(name).await?.annotations().get(SELECTED_NODE).cloned()))
            .await
    };
    for (name, _) in gone {
        returned(name).await?;
    }
    // The claim `stays` was created first, and therefore checked before the others.
    assert_eq!(claims.get("stays").await?.annotations()[SELECTED_NODE], "leaving");
    nodes.delete("leaving", &DeleteParams::default()).await?;
    returned("stays").await?;
    for name in ["stays"].into_iter().chain(gone.map(|(name, _)| name)) {
        claims.delete(name, &DeleteParams::default()).await?;
    }
    Ok(reclaimer.stop(Duration::from_secs(10)).await?)
}
