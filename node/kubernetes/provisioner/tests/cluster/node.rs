//! A node whose provisioner runs against the cluster. The tests act as the scheduler.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub use envtest::until;
use envtest::{Cluster, Failure, FakeVolumes, Identity, PATIENCE, Seen, accepted, create, eventually, merge, start};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use prometheus::Registry;
use provisioner::{Metrics, NoticeQueue, Notices, Settings};
use serde_json::{Value, json};
use supervisor::Supervisor;
use tokio::sync::{OnceCell, watch};
use units::Bytes;
use volume::{State, VolumeId};

pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
pub const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
pub const STOP: Duration = Duration::from_secs(20);

/// Creates the reconciler's objects, once for all cases.
pub async fn reconcile(cluster: &Cluster) -> Result<(), Failure> {
    static RECONCILED: OnceCell<()> = OnceCell::const_new();
    let reconciled = async || {
        start("reconciler", cluster.admin(), reconciler::run).await?.stop(STOP).await?;
        policies_are_in_force(cluster).await
    };
    RECONCILED.get_or_try_init(reconciled).await.copied()
}

/// Waits until the API server enforces the policies, some time after their creation.
async fn policies_are_in_force(cluster: &Cluster) -> Result<(), Failure> {
    let volumes = Api::<PersistentVolume>::all(cluster.client(Identity::Storage).await?);
    let foreign: PersistentVolume = serde_json::from_value(json!({
        "metadata": {"name": "foreign"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "csi": {"driver": "example.invalid", "volumeHandle": "foreign"},
        },
    }))?;
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    eventually(PATIENCE, "the policies", async || {
        Ok::<_, kube::Error>(match volumes.create(&dry, &foreign).await {
            Err(kube::Error::Api(status)) if status.message.contains("ValidatingAdmissionPolicy") => Seen::Done(()),
            other => Seen::NotYet(format!("{other:?}")),
        })
    })
    .await?;
    Ok(())
}

/// Events about all objects of this name. The API server selects them, because a list of all events takes long to read.
pub async fn events_about(admin: &Client, name: &str) -> Result<Vec<Event>, kube::Error> {
    let about = ListParams::default().fields(&format!("regarding.name={name}"));
    Ok(Api::<Event>::all(admin.clone()).list(&about).await?.items)
}

pub struct Node {
    pub admin: Client,
    pub name: String,
    pub volumes: Arc<FakeVolumes>,
    pub namespace: String,
    pub class: String,
    pub registry: Registry,
    pub revoked: watch::Sender<BTreeMap<VolumeId, u64>>,
    pub notices: Notices,
    queue: NoticeQueue,
    metrics: Metrics,
    /// Client of the provisioner.
    pub storage: Client,
    running: Option<Supervisor>,
}

impl Node {
    pub async fn start(cluster: &Cluster, namespace: &str) -> Result<Self, Failure> {
        Self::with_disk(cluster, namespace, Bytes::new(100 << 30)).await
    }

    pub async fn with_disk(cluster: &Cluster, namespace: &str, size: Bytes) -> Result<Self, Failure> {
        let mut node = Self::stopped(cluster, namespace, size).await?;
        node.run().await?;
        Ok(node)
    }

    pub async fn stopped(cluster: &Cluster, namespace: &str, size: Bytes) -> Result<Self, Failure> {
        reconcile(cluster).await?;
        let admin = cluster.admin();
        create(&Api::<Namespace>::all(admin.clone()), json!({"metadata": {"name": namespace}})).await?;
        let (volumes, registry) = (Arc::new(FakeVolumes::with_size(size)), Registry::new());
        let (notices, queue) = provisioner::notices();
        let node = Self {
            metrics: Metrics::register(&registry, volumes.clone())?,
            name: cluster.node().to_owned(),
            class: format!("class-{namespace}"),
            storage: cluster.client(Identity::Storage).await?,
            volumes,
            registry,
            namespace: namespace.to_owned(),
            revoked: watch::Sender::default(),
            notices,
            queue,
            running: None,
            admin,
        };
        node.make_class(json!({})).await?;
        let (volumes, one) = (Api::<PersistentVolume>::all(node.storage.clone()), ListParams::default().limit(1));
        accepted("the storage identity's role", async || volumes.list(&one).await).await?;
        Ok(node)
    }

    /// As [`Node::stopped`], with a name and an identity of its own: such nodes can run at the same time.
    pub async fn apart(cluster: &Cluster, namespace: &str) -> Result<Self, Failure> {
        let mut node = Self::stopped(cluster, namespace, Bytes::new(100 << 30)).await?;
        node.name = format!("node-{namespace}");
        node.storage = cluster.storage_of(&node.name).await?;
        Ok(node)
    }

    /// As [`Node::start`], on a node [`apart`](Node::apart).
    pub async fn start_apart(cluster: &Cluster, namespace: &str) -> Result<Self, Failure> {
        let mut node = Self::apart(cluster, namespace).await?;
        node.run().await?;
        Ok(node)
    }

    pub async fn run(&mut self) -> Result<(), Failure> {
        self.run_with(supervisor::Settings::default()).await
    }

    pub async fn run_with(&mut self, services: supervisor::Settings) -> Result<(), Failure> {
        let settings = Settings {
            metrics: self.metrics.clone(),
            revoked: self.revoked.subscribe(),
            notices: self.queue.clone(),
            ..Settings::new(self.storage.clone(), self.name.clone(), self.volumes.clone())
        };
        let tree = Supervisor::start("provisioner", services, move |cx| provisioner::run(cx, settings.clone()));
        tree.handle().healthy().await?;
        self.running = Some(tree);
        Ok(())
    }

    pub async fn halt(&mut self) -> Result<(), Failure> {
        if let Some(running) = self.running.take() {
            running.stop(STOP).await?;
        }
        Ok(())
    }

    pub fn attempts(&self) -> u32 {
        self.running.as_ref().map_or(0, |tree| tree.status().attempts)
    }

    /// The services of the provisioner that make no progress.
    pub fn stalled(&self) -> Vec<String> {
        let tree = self.running.as_ref().map(Supervisor::status);
        let services = tree.iter().flat_map(supervisor::Status::walk);
        services.filter(|(_, service)| service.stalled.is_some()).map(|(_, service)| service.path.clone()).collect()
    }

    /// Creates the storage class again, with more fields.
    pub async fn make_class(&self, more: Value) -> Result<(), Failure> {
        let classes = Api::<StorageClass>::all(self.admin.clone());
        let mut class = json!({
            "metadata": {"name": self.class}, "provisioner": "local.granary.dev",
            "volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Delete",
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            class[key] = value.clone();
        }
        if classes.get_opt(&self.class).await?.is_some() {
            classes.delete(&self.class, &DeleteParams::default()).await?;
        }
        create(&classes, class).await?;
        Ok(())
    }

    pub fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.admin.clone(), &self.namespace)
    }

    pub fn pvs(&self) -> Api<PersistentVolume> {
        Api::all(self.admin.clone())
    }

    /// Creates a claim of 1 GiB that waits for a consumer, with more fields of its spec.
    pub async fn claim(&self, name: &str, more: Value) -> Result<PersistentVolumeClaim, Failure> {
        Ok(create(&self.claims(), envtest::claim(json!({"name": name}), &self.class, more)).await?)
    }

    pub async fn schedule(&self, claim: &str, node: &str) -> Result<(), Failure> {
        let chosen = json!({"metadata": {"annotations": {SELECTED_NODE: node, PROVISIONER: "local.granary.dev"}}});
        merge(&self.claims(), claim, chosen).await?;
        Ok(())
    }

    pub async fn enlarge(&self, claim: &str, size: &str) -> Result<(), Failure> {
        merge(&self.claims(), claim, json!({"spec": {"resources": {"requests": {"storage": size}}}})).await?;
        Ok(())
    }

    pub async fn set_policy(&self, pv: &str, policy: &str) -> Result<PersistentVolume, Failure> {
        Ok(merge(&self.pvs(), pv, json!({"spec": {"persistentVolumeReclaimPolicy": policy}})).await?)
    }

    /// Creates another PV of the same volume, with policy Retain.
    pub async fn second_pv(&self, pv: &PersistentVolume, metadata: Value) -> Result<(), Failure> {
        let mut second = serde_json::to_value(pv)?;
        second["metadata"] = metadata;
        second["spec"]["claimRef"] = Value::Null;
        second["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
        create(&self.pvs(), second).await?;
        Ok(())
    }

    pub async fn claim_here(&self, name: &str, more: Value) -> Result<PersistentVolumeClaim, Failure> {
        let claim = self.claim(name, more).await?;
        self.schedule(name, &self.name).await?;
        Ok(claim)
    }

    /// Creates a pod with this volume, which any node may run. Repeats the request until the namespace has its service
    /// account.
    pub async fn pod(&self, name: &str, volume: &Value) -> Result<Api<Pod>, Failure> {
        self.pod_with(name, volume, json!({})).await
    }

    /// As [`Node::pod`], with more fields of its spec.
    pub async fn pod_with(&self, name: &str, volume: &Value, more: Value) -> Result<Api<Pod>, Failure> {
        let mut volume = volume.clone();
        volume["name"] = "v".into();
        let mut spec = json!({
            "containers": [{"name": "c", "image": "granary.invalid/none"}],
            "volumes": [volume],
            // Without a kubelet, no node is ready.
            "tolerations": [{"operator": "Exists"}],
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}))?;
        let (pods, params) = (Api::namespaced(self.admin.clone(), &self.namespace), PostParams::default());
        accepted(&format!("pod {name}"), async || pods.create(&params, &pod).await).await?;
        Ok(pods)
    }

    pub async fn bound(&self, claim: &str) -> Result<PersistentVolume, Failure> {
        Ok(self.pvs().get(&envtest::bound(&self.claims(), claim).await?).await?)
    }

    /// Creates a claim for this node, and waits for its PV.
    pub async fn provisioned(&self, name: &str, more: Value) -> Result<PersistentVolume, Failure> {
        self.claim_here(name, more).await?;
        self.bound(name).await
    }

    /// As [`Node::provisioned`], and waits until the record is announced.
    pub async fn volume(&self, name: &str, more: Value) -> Result<VolumeId, Failure> {
        let id: VolumeId = self.provisioned(name, more).await?.name_any().parse()?;
        self.settled(&id).await?;
        Ok(id)
    }

    /// Deletes a claim, and waits until its PV and the data are deleted.
    pub async fn delete(&self, claim: &str, pv: &PersistentVolume) -> Result<(), Failure> {
        self.claims().delete(claim, &DeleteParams::default()).await?;
        self.gone(pv).await
    }

    /// Waits for an event of this reason about the object, whose note has all the words.
    pub async fn event_with(&self, name: &str, reason: &str, words: &[&str]) -> Result<(), Failure> {
        self.note(name, Some(reason), words).await.map(drop)
    }

    /// Waits for an event of this reason about the object, and returns its note.
    pub async fn event(&self, name: &str, reason: &str) -> Result<String, Failure> {
        self.note(name, Some(reason), &[]).await
    }

    /// Waits for the event about an orphan on the Node, and returns its note.
    pub async fn orphan_event(&self, id: &VolumeId) -> Result<String, Failure> {
        self.note(&self.name, Some("OrphanedVolume"), &[id.as_str()]).await
    }

    /// Waits for an event about the object, of this reason if one is named, whose note has all the words. Returns the
    /// note.
    pub async fn note(&self, name: &str, reason: Option<&str>, words: &[&str]) -> Result<String, Failure> {
        // A class that was replaced a moment before may not exist yet in the cache of the API server.
        let what = format!("event {reason:?} about {name} with {words:?}");
        let note = eventually(PATIENCE, &what, async || {
            let mut events = self.events(name).await?;
            events.retain(|event| reason.is_none() || event.reason.as_deref() == reason);
            let notes: Vec<_> = events.into_iter().map(|event| event.note.unwrap_or_default()).collect();
            let found = notes.iter().find(|note| words.iter().all(|word| note.contains(*word))).cloned();
            Ok::<_, kube::Error>(found.map_or_else(|| Seen::NotYet(notes.join("; ")), Seen::Done))
        });
        Ok(note.await?)
    }

    pub async fn events(&self, name: &str) -> Result<Vec<Event>, kube::Error> {
        let mut events = events_about(&self.admin, name).await?;
        events.retain(|event| {
            let namespace = event.regarding.as_ref().and_then(|object| object.namespace.as_ref());
            namespace.is_none_or(|namespace| *namespace == self.namespace)
        });
        Ok(events)
    }

    pub async fn settled(&self, id: &VolumeId) -> Result<(), Failure> {
        until("the record's state announced", async || {
            let state = self.volumes.record(id).map(|record| record.state);
            Ok((state != Some(State::Announced)).then(|| format!("{state:?}")))
        })
        .await
    }

    /// Waits until there are more than `before` pauses, and returns the next one.
    pub async fn pause_after(&self, before: usize) -> Result<Option<Duration>, Failure> {
        until("another pause", async || Ok((self.volumes.pauses().len() == before).then(|| before.to_string())))
            .await?;
        Ok(self.volumes.pauses().get(before).copied())
    }

    pub async fn live(&self, id: &VolumeId) -> Result<(), Failure> {
        until(&format!("{id} restored from the trash"), async || {
            let live = self.volumes.live();
            Ok((live != [id.clone()]).then(|| format!("{live:?}")))
        })
        .await
    }

    pub async fn phase(&self, pv: &str, phase: &str) -> Result<(), Failure> {
        until(&format!("the phase {phase} of {pv}"), async || {
            let found = self.pvs().get(pv).await?.status.and_then(|status| status.phase).unwrap_or_default();
            Ok((found != phase).then_some(found))
        })
        .await
    }

    /// Waits until the PV and the data of its volume are deleted.
    pub async fn gone(&self, pv: &PersistentVolume) -> Result<(), Failure> {
        let name = pv.name_any();
        self.removed(&name, &name.parse()?).await
    }

    pub async fn removed(&self, pv: &str, id: &VolumeId) -> Result<(), Failure> {
        let pvs = self.pvs();
        until(&format!("the end of {pv}"), async || {
            let (found, record) = (pvs.get_opt(pv).await?.is_some(), self.volumes.record(id));
            Ok((found || record.is_some()).then(|| format!("PV: {found}, record: {record:?}")))
        })
        .await
    }

    pub async fn end(mut self) -> Result<(), Failure> {
        let all = ListParams::default();
        self.claims().delete_collection(&DeleteParams::default(), &all).await?;
        let claims = self.claims();
        until("the end of the claims", async || {
            let left = claims.list(&all).await?.items.len();
            Ok((left != 0).then(|| left.to_string()))
        })
        .await?;
        let pvs = self.pvs();
        until("the end of the PVs with policy Delete", async || {
            let mut left = pvs.list(&all).await?.items;
            left.retain(|pv| {
                pv.spec.as_ref().is_some_and(|spec| {
                    spec.storage_class_name.as_ref() == Some(&self.class)
                        && spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete")
                })
            });
            Ok((!left.is_empty()).then(|| left.iter().map(|pv| pv.name_any()).collect::<Vec<_>>().join(" ")))
        })
        .await?;
        self.halt().await?;
        Api::<StorageClass>::all(self.admin.clone()).delete(&self.class, &DeleteParams::default()).await?;
        Ok(())
    }
}
