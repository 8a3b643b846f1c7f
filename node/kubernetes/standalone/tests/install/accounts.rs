//! Rights of the pods' accounts, with tokens like those of the kubelet.

use std::sync::Arc;

use cluster::snapshot::MANAGED_BY;
use envtest::{
    Cluster, Failure, Identity, PATIENCE, Seen, SnapshotApi, create, denied, eventually, forbidden, merge,
    merge_status, remove,
};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{
    Node, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount, TypedLocalObjectReference,
};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use standalone::arguments::NodeName;
use standalone::identity::{self, IdentityError};

use crate::objects::{NAMESPACE, install};

pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const STORAGE: &str = "granary-storage";
pub const RECLAIMER: &str = "granary-reclaimer";
const FOREIGN_VOLUME: &str = "PVs of local.granary.dev that are on it alone";
const FOREIGN_CONTENT: &str = "a node serves contents of local.granary.dev with its label";
const FOREIGN_STATUS: &str = "a node writes the status of contents of local.granary.dev with its label";
const NO_NODE: &str = "the token is not bound to a pod";
const FOREIGN_CLAIM: &str = "returns a claim to the scheduler";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const VOLUME_NODE: &str = "local.granary.dev/node";
/// Annotation that makes a bound claim count as changing.
const RESTORE_FROM: &str = "granary.dev/restore-from";

pub struct Pods {
    pub admin: Client,
    cluster: Arc<Cluster>,
}

impl Pods {
    /// Installs the chart and waits until its policies are in force.
    pub async fn start(cluster: &Arc<Cluster>) -> Result<Self, Failure> {
        install(cluster).await?;
        let pods = Self { admin: cluster.admin(), cluster: Arc::clone(cluster) };
        // Wait for the policy that was created last: the API server enforces new policies together.
        let claims = Api::<PersistentVolumeClaim>::default_namespaced(pods.admin.clone());
        let claim = claims.create(&PostParams::default(), &waiting("policies-")?).await?.name_any();
        let reclaimer = Api::<PersistentVolumeClaim>::default_namespaced(pods.client(RECLAIMER, None).await?);
        let dry = PatchParams { dry_run: true, ..PatchParams::default() };
        let label = Patch::Merge(json!({"metadata": {"labels": {"mine": "yes"}}}));
        eventually(PATIENCE, "the policies", async || {
            Ok::<_, kube::Error>(match reclaimer.patch(&claim, &dry, &label).await {
                Err(kube::Error::Api(status)) if status.message.contains(NO_NODE) => Seen::Done(()),
                other => Seen::NotYet(format!("{other:?}")),
            })
        })
        .await?;
        claims.delete(&claim, &DeleteParams::default()).await?;
        Ok(pods)
    }

    /// Creates a node with this `kubernetes.io/hostname` label.
    pub async fn node(&self, name: &str, hostname: &str) -> Result<(), Failure> {
        let nodes = Api::<Node>::all(self.admin.clone());
        let labels = json!({"kubernetes.io/hostname": hostname, "kubernetes.io/os": "linux"});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
        nodes.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(node)).await?;
        Ok(())
    }

    /// A client with the token of a pod of the account on the node. Without a node, the token is not bound to a pod.
    pub async fn client(&self, account: &str, node: Option<&str>) -> Result<Client, Failure> {
        let bound = match node {
            Some(node) => {
                let pods = Api::<Pod>::namespaced(self.admin.clone(), NAMESPACE);
                let pod = json!({
                    "metadata": {"generateName": "storage-"},
                    "spec": {
                        "serviceAccountName": account, "nodeName": node,
                        "containers": [{"name": "storage", "image": "granary.invalid/storage:0.1.0"}],
                    },
                });
                let pod = create(&pods, pod).await?;
                json!({"apiVersion": "v1", "kind": "Pod", "name": pod.name_any(), "uid": pod.uid()})
            }
            None => Value::Null,
        };
        self.client_bound_to(account, bound).await
    }

    async fn client_bound_to(&self, account: &str, bound: Value) -> Result<Client, Failure> {
        let request = json!({"spec": {"audiences": [], "boundObjectRef": bound, "expirationSeconds": 3600}});
        let accounts = Api::<ServiceAccount>::namespaced(self.admin.clone(), NAMESPACE);
        let created: TokenRequest =
            accounts.create_subresource("token", account, &PostParams::default(), &request).await?;
        let token = created.status.and_then(|status| status.token).ok_or("no token")?;
        let kubeconfig = Kubeconfig::read_from(self.cluster.credentials().kubeconfig(Identity::Admin))?;
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.auth_info = AuthInfo { token: Some(token.into()), ..AuthInfo::default() };
        Ok(Client::try_from(config)?)
    }

    /// Creates a claim that is bound to the PV that the provisioner on n1 created for it.
    async fn created(&self, name: &str) -> Result<(), Failure> {
        let annotations = json!({PROVISIONER: "local.granary.dev", SELECTED_NODE: "n1"});
        let uid = self.claim(json!({"name": name, "annotations": annotations}), json!({})).await?;
        self.provide(volume(&uid, "n1"), name, Some(uid)).await?;
        self.is_bound(name).await
    }

    /// Creates a claim that is bound to a PV on n1 that an administrator created.
    async fn adopted(&self, name: &str) -> Result<(), Failure> {
        self.provide(volume(name, "n1"), name, None).await?;
        self.claim(json!({"name": name}), json!({"volumeName": format!("pvc-{name}")})).await?;
        self.is_bound(name).await
    }

    async fn claim(&self, metadata: Value, more: Value) -> Result<String, Failure> {
        let claims = Api::<PersistentVolumeClaim>::default_namespaced(self.admin.clone());
        Ok(create(&claims, envtest::claim(metadata, "none", more)).await?.uid().unwrap_or_default())
    }

    async fn provide(&self, mut pv: PersistentVolume, claim: &str, uid: Option<String>) -> Result<(), Failure> {
        let (namespace, name) = (Some("default".to_owned()), Some(claim.to_owned()));
        let claim = ObjectReference { namespace, name, uid, ..ObjectReference::default() };
        pv.spec.get_or_insert_default().claim_ref = Some(claim);
        Api::all(self.admin.clone()).create(&PostParams::default(), &pv).await?;
        Ok(())
    }

    async fn is_bound(&self, name: &str) -> Result<(), Failure> {
        let claims = Api::<PersistentVolumeClaim>::default_namespaced(self.admin.clone());
        envtest::bound(&claims, name).await.map(drop)
    }
}

async fn annotate(
    claims: &Api<PersistentVolumeClaim>,
    claim: &str,
    annotation: &str,
    value: impl Into<Value>,
) -> Result<PersistentVolumeClaim, kube::Error> {
    let value: Value = value.into();
    merge(claims, claim, json!({"metadata": {"annotations": {annotation: value}}})).await
}

/// A claim of the driver whose selected node was deleted.
pub fn waiting(prefix: &str) -> Result<PersistentVolumeClaim, serde_json::Error> {
    let annotations = json!({SELECTED_NODE: "gone", PROVISIONER: "local.granary.dev", "other": "yes"});
    let metadata = json!({"generateName": prefix, "annotations": annotations});
    serde_json::from_value(envtest::claim(metadata, "none", json!({})))
}

/// A PV as the provisioner on the node creates it, for a claim with this UID.
fn volume(uid: &str, node: &str) -> PersistentVolume {
    let name = format!("pvc-{uid}");
    let only = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
    let volume = json!({
        "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": "local.granary.dev"}},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "none",
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "c", "uid": uid,
            },
            "csi": {"driver": "local.granary.dev", "volumeHandle": name}, "persistentVolumeReclaimPolicy": "Retain",
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [only]}]}},
        },
    });
    serde_json::from_value(volume).expect("a PV")
}

fn event(node: &str) -> Event {
    let event = json!({
        "metadata": {"generateName": "report-"}, "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal",
        "reason": "Provisioning", "action": "Provision", "note": "n",
        "reportingController": "local.granary.dev", "reportingInstance": node,
        "regarding": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "c"},
    });
    serde_json::from_value(event).expect("an event")
}

pub async fn a_pod_writes_nothing_of_another_node(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let pods = Pods::start(&cluster).await?;
    for node in ["n1", "n2"] {
        pods.node(node, node).await?;
    }
    let (one, two) = (pods.client(STORAGE, Some("n1")).await?, pods.client(STORAGE, Some("n2")).await?);
    let [of_one, of_two] = [&one, &two].map(|client| Api::<PersistentVolume>::all(client.clone()));
    let create = PostParams::default();
    of_one.create(&create, &volume("of-one", "n1")).await?;
    denied(of_one.create(&create, &volume("of-two", "n2")).await, FOREIGN_VOLUME);
    denied(of_two.delete("pvc-of-one", &DeleteParams::default()).await, FOREIGN_VOLUME);
    denied(merge(&of_two, "pvc-of-one", json!({"metadata": {"labels": {"mine": "yes"}}})).await, FOREIGN_VOLUME);
    of_one.delete("pvc-of-one", &DeleteParams::default()).await?;

    let events = Api::<Event>::default_namespaced(one.clone());
    events.create(&create, &event("n1")).await?;
    denied(events.create(&create, &event("n2")).await, "in its own name");
    let annotation = Patch::Merge(json!({"metadata": {"annotations": {"node.granary.dev/x": "y"}}}));
    let nodes = Api::<Node>::all(one.clone());
    for node in ["n1", "n2"] {
        nodes.get(node).await?;
        forbidden(nodes.patch(node, &PatchParams::default(), &annotation).await);
    }
    forbidden(nodes.list(&kube::api::ListParams::default()).await);
    forbidden(Api::<k8s_openapi::api::core::v1::Secret>::all(one).list(&kube::api::ListParams::default()).await);
    Ok(())
}

pub async fn a_pod_writes_only_contents_of_its_node(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let pods = Pods::start(&cluster).await?;
    for node in ["n1", "n2"] {
        pods.node(node, node).await?;
    }
    let api = SnapshotApi::install(&cluster, "default").await?;
    let content = api.create("before", Some("n1"), json!({"volumeHandle": "pvc-1"}), json!({})).await?;
    let (name, handle) = (content.name_any(), format!("snapshot-{}", content.uid().unwrap_or_default()));
    let contents = async |account: &str, node: Option<&str>| {
        Ok::<_, Failure>(SnapshotApi::of(pods.client(account, node).await?, "default").contents)
    };
    let (one, two) = (contents(STORAGE, Some("n1")).await?, contents(STORAGE, Some("n2")).await?);
    let status = |handle: &str| json!({"status": {"snapshotHandle": handle, "readyToUse": true}});
    denied(merge_status(&two, &name, status(&handle)).await, FOREIGN_STATUS);
    denied(merge_status(&one, &name, status("snapshot-of-another")).await, FOREIGN_STATUS);
    denied(merge_status(&contents(STORAGE, None).await?, &name, status(&handle)).await, NO_NODE);
    merge_status(&one, &name, status(&handle)).await?;
    // With its label, the other node could write the status.
    denied(merge(&two, &name, json!({"metadata": {"labels": {MANAGED_BY: "n2"}}})).await, FOREIGN_CONTENT);

    // The content of a snapshot that a rollback keeps.
    let kept = |node: &str, handle: &str| {
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": "snapshot-kept", "labels": {MANAGED_BY: node}},
            "spec": {
                "driver": "local.granary.dev", "deletionPolicy": "Delete", "source": {"snapshotHandle": handle},
                "volumeSnapshotRef": {"namespace": "default", "name": "kept"},
            },
        })
    };
    denied(create(&two, kept("n1", "snapshot-kept")).await, FOREIGN_CONTENT);
    denied(create(&one, kept("n1", "snapshot-of-another")).await, FOREIGN_CONTENT);
    create(&one, kept("n1", "snapshot-kept")).await?;

    // The reclaimer reads the node of a snapshot that a claim names as its source.
    let reclaimer = SnapshotApi::of(pods.client(RECLAIMER, Some("n1")).await?, "default");
    for (objects, name) in [(&reclaimer.snapshots, "before"), (&reclaimer.contents, name.as_str())] {
        objects.get(name).await?;
        forbidden(objects.list(&kube::api::ListParams::default()).await);
        forbidden(merge(objects, name, json!({"metadata": {"labels": {MANAGED_BY: "n1"}}})).await);
        forbidden(merge_status(objects, name, status(&handle)).await);
        forbidden(objects.delete(name, &DeleteParams::default()).await);
    }
    remove(&api.contents, "snapshot-kept").await?;
    api.force("before", &name).await
}

/// With a Secret reference in a PV, the kubelet of the node could read any Secret.
pub async fn a_pod_creates_pvs_of_the_provisioners_shape_only(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let pods = Pods::start(&cluster).await?;
    pods.node("n1", "n1").await?;
    let volumes = Api::<PersistentVolume>::all(pods.client(STORAGE, Some("n1")).await?);
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    volumes.create(&dry, &volume("shape", "n1")).await?;
    let secret = json!({"namespace": "kube-system", "name": "treasure"});
    for kind in [
        "controllerPublishSecretRef",
        "nodeStageSecretRef",
        "nodePublishSecretRef",
        "controllerExpandSecretRef",
        "nodeExpandSecretRef",
    ] {
        let mut attack = serde_json::to_value(volume("shape", "n1"))?;
        attack["spec"]["csi"][kind] = secret.clone();
        let attack = serde_json::from_value(attack)?;
        denied(volumes.create(&dry, &attack).await, &format!("without spec.csi.{kind}"));
    }
    let mut labelled = volume("shape", "n1");
    labelled.metadata.labels = Some([("mine".to_owned(), "yes".to_owned())].into());
    denied(volumes.create(&dry, &labelled).await, "without metadata.labels");

    volumes.create(&PostParams::default(), &volume("shape", "n1")).await?;
    let change = async |change: Value| volumes.patch("pvc-shape", &PatchParams::default(), &Patch::Merge(change)).await;
    change(json!({"spec": {"capacity": {"storage": "2Gi"}}})).await?;
    for other in [
        // The API server allows adding this reference to a PV without one.
        json!({"spec": {"csi": {"controllerExpandSecretRef": secret}}}),
        json!({"spec": {"capacity": {"storage": "1Gi"}}}),
        json!({"spec": {"mountOptions": ["sync"]}}),
        json!({"metadata": {"labels": {"mine": "yes"}}}),
        json!({"metadata": {"annotations": {"mine": "yes"}}}),
    ] {
        denied(change(other).await, "a node enlarges spec.capacity of its PVs");
    }
    remove(&volumes, "pvc-shape").await
}

pub async fn a_token_without_a_pod_writes_nothing(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let pods = Pods::start(&cluster).await?;
    let unbound = pods.client(STORAGE, None).await?;
    let volumes = Api::<PersistentVolume>::all(unbound.clone());
    for node in ["n1", ""] {
        denied(volumes.create(&PostParams::default(), &volume("unbound", node)).await, NO_NODE);
    }
    let events = Api::<Event>::default_namespaced(unbound.clone());
    denied(events.create(&PostParams::default(), &event("n1")).await, NO_NODE);
    // The claim has no selected node.
    let claims = Api::<PersistentVolumeClaim>::default_namespaced(pods.admin.clone());
    let mut claim = waiting("unbound-")?;
    claim.metadata.annotations = None;
    let name = claims.create(&PostParams::default(), &claim).await?.name_any();
    let size = Patch::Merge(json!({"status": {"capacity": {"storage": "9Gi"}}}));
    let claims_of_unbound = Api::<PersistentVolumeClaim>::default_namespaced(unbound);
    denied(claims_of_unbound.patch_status(&name, &PatchParams::default(), &size).await, NO_NODE);
    remove(&claims, &name).await
}

/// A token that is bound to a Node names the node, but no pod.
pub async fn a_token_of_the_reclaimer_without_a_pod_writes_nothing(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let pods = Pods::start(&cluster).await?;
    pods.node("n1", "n1").await?;
    let admin = Api::<PersistentVolumeClaim>::default_namespaced(pods.admin.clone());
    let name = admin.create(&PostParams::default(), &waiting("tokens-")?).await?.name_any();
    let of_node = json!({"apiVersion": "v1", "kind": "Node", "name": "n1"});
    for bound in [Value::Null, of_node] {
        let client = pods.client_bound_to(RECLAIMER, bound).await?;
        let claims = Api::<PersistentVolumeClaim>::default_namespaced(client.clone());
        denied(annotate(&claims, &name, SELECTED_NODE, Value::Null).await, NO_NODE);
        let events = Api::<Event>::default_namespaced(client);
        denied(events.create(&PostParams::default(), &event("reclaimer")).await, NO_NODE);
    }
    let claims = Api::<PersistentVolumeClaim>::default_namespaced(pods.client(RECLAIMER, Some("n1")).await?);
    annotate(&claims, &name, SELECTED_NODE, Value::Null).await?;
    remove(&admin, &name).await
}

pub async fn the_reclaimer_returns_claims_and_changes_nothing_else(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let pods = Pods::start(&cluster).await?;
    let admin = Api::<PersistentVolumeClaim>::default_namespaced(pods.admin.clone());
    let name = admin.create(&PostParams::default(), &waiting("return-")?).await?.name_any();
    let mut foreign = waiting("foreign-")?;
    foreign.metadata.annotations.get_or_insert_default().insert(PROVISIONER.to_owned(), "example.invalid".to_owned());
    let foreign = admin.create(&PostParams::default(), &foreign).await?.name_any();
    pods.node("n1", "n1").await?;
    let client = pods.client(RECLAIMER, Some("n1")).await?;
    let claims = Api::<PersistentVolumeClaim>::default_namespaced(client.clone());
    let params = PatchParams::default();
    for change in [
        json!({"metadata": {"annotations": {SELECTED_NODE: "n1"}}}),
        json!({"metadata": {"annotations": {SELECTED_NODE: ""}}}),
        json!({"metadata": {"annotations": {SELECTED_NODE: null, "other": null}}}),
        json!({"metadata": {"annotations": {SELECTED_NODE: null, RESTORE_FROM: "before"}}}),
        json!({"metadata": {"annotations": {SELECTED_NODE: null}, "finalizers": []}}),
        json!({"metadata": {"annotations": {SELECTED_NODE: null}, "labels": {"mine": "yes"}}}),
        json!({"metadata": {"annotations": {SELECTED_NODE: null}}, "spec": {"volumeName": "stolen"}}),
    ] {
        denied(claims.patch(&name, &params, &Patch::Merge(change)).await, FOREIGN_CLAIM);
    }
    for change in [
        json!({"metadata": {"annotations": {SELECTED_NODE: null}}}),
        json!({"metadata": {"finalizers": ["example.invalid/held"]}}),
    ] {
        denied(claims.patch(&foreign, &params, &Patch::Merge(change)).await, FOREIGN_CLAIM);
    }
    annotate(&claims, &name, SELECTED_NODE, Value::Null).await?;
    let of_claims = Api::<Pod>::default_namespaced(client.clone());
    of_claims.list(&kube::api::ListParams::default()).await?;
    forbidden(of_claims.get("any").await);
    forbidden(Api::<PersistentVolume>::all(client).create(&PostParams::default(), &volume("v", "n1")).await);
    for name in [name, foreign] {
        admin.delete(&name, &DeleteParams::default()).await?;
    }
    Ok(())
}

pub async fn the_reclaimer_names_a_node_only_where_none_is_named(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let pods = Pods::start(&cluster).await?;
    pods.node("n1", "n1").await?;
    let client = pods.client(RECLAIMER, Some("n1")).await?;
    let claims = Api::<PersistentVolumeClaim>::default_namespaced(client.clone());
    let admin = Api::<PersistentVolumeClaim>::default_namespaced(pods.admin.clone());
    let with = async |provisioner: &str, volume: Option<&str>, change: fn(&mut PersistentVolumeClaim)| {
        let mut claim = waiting("named-")?;
        claim.metadata.annotations = Some([(PROVISIONER.to_owned(), provisioner.to_owned())].into());
        claim.spec.get_or_insert_default().volume_name = volume.map(str::to_owned);
        change(&mut claim);
        Ok::<_, Failure>(admin.create(&PostParams::default(), &claim).await?.name_any())
    };
    let create = async |provisioner: &str, volume: Option<&str>| with(provisioner, volume, |_| ()).await;
    // The scheduler has selected a node for the clone.
    let clone = async |provisioner: &str, volume: Option<&str>| {
        let selected = |claim: &mut PersistentVolumeClaim| {
            claim.metadata.annotations.get_or_insert_default().insert(SELECTED_NODE.to_owned(), "n2".to_owned());
            let (kind, name) = ("PersistentVolumeClaim".to_owned(), "source".to_owned());
            let source = TypedLocalObjectReference { kind, name, ..TypedLocalObjectReference::default() };
            claim.spec.get_or_insert_default().data_source = Some(source);
        };
        with(provisioner, volume, selected).await
    };
    let foreign = create("example.invalid", None).await?;
    denied(annotate(&claims, &foreign, SELECTED_NODE, "n1").await, FOREIGN_CLAIM);
    let unbound = create("local.granary.dev", None).await?;
    denied(annotate(&claims, &unbound, VOLUME_NODE, "n1").await, FOREIGN_CLAIM);
    annotate(&claims, &unbound, SELECTED_NODE, "n1").await?;
    denied(annotate(&claims, &unbound, SELECTED_NODE, "n2").await, FOREIGN_CLAIM);
    // The PV of the claim does not exist, so the claim is not bound.
    let requested = create("local.granary.dev", Some("some-volume")).await?;
    for annotation in [SELECTED_NODE, VOLUME_NODE] {
        denied(annotate(&claims, &requested, annotation, "n1").await, FOREIGN_CLAIM);
    }
    // A clone is created on the node of its source.
    let cloned = clone("local.granary.dev", None).await?;
    annotate(&claims, &cloned, SELECTED_NODE, "n1").await?;
    let foreign_clone = clone("example.invalid", None).await?;
    denied(annotate(&claims, &foreign_clone, SELECTED_NODE, "n1").await, FOREIGN_CLAIM);
    let requested_clone = clone("local.granary.dev", Some("some-volume")).await?;
    denied(annotate(&claims, &requested_clone, SELECTED_NODE, "n1").await, FOREIGN_CLAIM);
    for name in [foreign, unbound, requested, cloned, foreign_clone, requested_clone] {
        admin.delete(&name, &DeleteParams::default()).await?;
    }
    let events = Api::<Event>::default_namespaced(client);
    events.create(&PostParams::default(), &event("reclaimer")).await?;
    denied(events.create(&PostParams::default(), &event("n1")).await, "in its own name");
    let mut about_a_pod = event("reclaimer");
    about_a_pod.regarding.as_mut().expect("a reference").kind = Some("Pod".to_owned());
    denied(events.create(&PostParams::default(), &about_a_pod).await, "on claims");
    Ok(())
}

/// The node that a bound claim names may write the status of the claim. The policy cannot read the PV.
pub async fn the_reclaimer_moves_no_bound_claim_to_another_node(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let pods = Pods::start(&cluster).await?;
    pods.node("n1", "n1").await?;
    let claims = Api::<PersistentVolumeClaim>::default_namespaced(pods.client(RECLAIMER, Some("n1")).await?);
    let admin = Api::<PersistentVolumeClaim>::default_namespaced(pods.admin.clone());
    pods.created("created").await?;
    pods.adopted("adopted").await?;
    for name in ["created", "adopted"] {
        // A claim that is not changing needs no node.
        denied(annotate(&claims, name, VOLUME_NODE, "n1").await, FOREIGN_CLAIM);
        annotate(&admin, name, RESTORE_FROM, "before").await?;
    }
    let denied_for = async |name: &str, changes: [(&str, Value); 5]| {
        for (annotation, value) in changes {
            denied(annotate(&claims, name, annotation, value).await, FOREIGN_CLAIM);
        }
    };
    let others = |annotation| {
        [
            (VOLUME_NODE, json!("n2")),
            (SELECTED_NODE, json!("n2")),
            (annotation, Value::Null),
            (RESTORE_FROM, Value::Null),
            ("other", json!("yes")),
        ]
    };
    // The node of this claim is the selected one.
    denied_for("created", others(SELECTED_NODE)).await;
    // This claim names no node. The write that was denied above is allowed while the claim changes.
    annotate(&claims, "adopted", VOLUME_NODE, "n1").await?;
    denied_for("adopted", others(VOLUME_NODE)).await;
    for change in [json!({"metadata": {"finalizers": []}}), json!({"metadata": {"labels": {"mine": "yes"}}})] {
        denied(claims.patch("adopted", &PatchParams::default(), &Patch::Merge(change)).await, FOREIGN_CLAIM);
    }
    let volumes = Api::<PersistentVolume>::all(pods.admin.clone());
    for name in ["created", "adopted"] {
        let pv = admin.get(name).await?.spec.and_then(|spec| spec.volume_name).unwrap_or_default();
        admin.delete(name, &DeleteParams::default()).await?;
        volumes.delete(&pv, &DeleteParams::default()).await?;
    }
    Ok(())
}

pub async fn a_pod_with_another_identity_fails_with_the_reason(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let pods = Pods::start(&cluster).await?;
    for (name, hostname) in [("n1", "n1"), ("named", "otherwise")] {
        pods.node(name, hostname).await?;
    }
    let [n1, n2, named]: [NodeName; 3] = ["n1".parse()?, "n2".parse()?, "named".parse()?];
    let one = pods.client(STORAGE, Some("n1")).await?;
    identity::check(&one, &n1).await?;
    let error = identity::check(&one, &n2).await.expect_err("another node");
    assert!(matches!(&error, IdentityError::OtherNode { found, .. } if found == "n1"), "{error}");
    let error = identity::check(&pods.client(STORAGE, None).await?, &n1).await.expect_err("no node");
    let account = format!("system:serviceaccount:{NAMESPACE}:{STORAGE}");
    assert!(matches!(&error, IdentityError::NoNode { user } if *user == account), "{error}");
    let error = identity::check(&pods.client(STORAGE, Some("named")).await?, &named).await.expect_err("another label");
    assert!(
        matches!(&error, IdentityError::OtherHostname { found: Some(found), .. } if found == "otherwise"),
        "{error}"
    );
    Ok(())
}
