//! A node whose provisioner runs against the cluster, and the scheduler, whom the tests play.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use envtest::{Cluster, Failure, FakeVolumes, Identity, PATIENCE, Seen, eventually};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use prometheus::Registry;
use provisioner::{Metrics, NoticeQueue, Notices, Settings};
use serde_json::{Value, json};
use supervisor::Supervisor;
use tokio::sync::{OnceCell, watch};
use units::Bytes;
use volume::{State, VolumeId};

pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const STOP: Duration = Duration::from_secs(20);

/// Creates the objects that the reconciler keeps, once for all cases: none of them changes one.
pub async fn reconcile(cluster: &Cluster) -> Result<(), Failure> {
    static RECONCILED: OnceCell<()> = OnceCell::const_new();
    let reconciled = async || {
        let client = cluster.admin();
        let tree = Supervisor::start("reconciler", supervisor::Settings::default(), move |cx| {
            reconciler::run(cx, client.clone())
        });
        tree.handle().healthy().await?;
        tree.stop(STOP).await?;
        policies_are_in_force(cluster).await
    };
    RECONCILED.get_or_try_init(reconciled).await.copied()
}

/// So that the provisioner creates no PV before. The API server puts policies in force a moment after it knows them.
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

/// A node with its own disk, its own classes and its own namespace.
pub struct Node {
    pub admin: Client,
    pub name: String,
    pub volumes: Arc<FakeVolumes>,
    pub namespace: String,
    pub class: String,
    /// What Prometheus reads.
    pub registry: Registry,
    /// Detaches that the CSI plugin revoked.
    pub revoked: watch::Sender<BTreeMap<VolumeId, u64>>,
    /// What other parts of the node find.
    pub notices: Notices,
    queue: NoticeQueue,
    metrics: Metrics,
    /// How the provisioner reaches the API server.
    pub storage: Client,
    running: Option<Supervisor>,
}

impl Node {
    /// With a provisioner that runs, and a disk of 100 GiB.
    pub async fn start(cluster: &Cluster, namespace: &str) -> Result<Self, Failure> {
        Self::with_disk(cluster, namespace, Bytes::new(100 << 30)).await
    }

    /// With a provisioner that runs.
    pub async fn with_disk(cluster: &Cluster, namespace: &str, size: Bytes) -> Result<Self, Failure> {
        let mut node = Self::stopped(cluster, namespace, size).await?;
        node.run().await?;
        Ok(node)
    }

    /// Whose provisioner does not run yet.
    pub async fn stopped(cluster: &Cluster, namespace: &str, size: Bytes) -> Result<Self, Failure> {
        reconcile(cluster).await?;
        let admin = cluster.admin();
        let space = json!({"metadata": {"name": namespace}});
        Api::all(admin.clone())
            .create(&PostParams::default(), &serde_json::from_value::<k8s_openapi::api::core::v1::Namespace>(space)?)
            .await?;
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
        // Roles come to the API server's knowledge by a watch.
        let volumes = Api::<PersistentVolume>::all(node.storage.clone());
        eventually(PATIENCE, "the storage identity's role", async || {
            volumes.list(&ListParams::default().limit(1)).await.map(|_| Seen::Done(()))
        })
        .await?;
        Ok(node)
    }

    /// Starts the provisioner.
    pub async fn run(&mut self) -> Result<(), Failure> {
        let settings = Settings {
            metrics: self.metrics.clone(),
            revoked: self.revoked.subscribe(),
            notices: self.queue.clone(),
            ..Settings::new(self.storage.clone(), self.name.clone(), self.volumes.clone())
        };
        let tree = Supervisor::start("provisioner", supervisor::Settings::default(), move |cx| {
            provisioner::run(cx, settings.clone())
        });
        tree.handle().healthy().await?;
        self.running = Some(tree);
        Ok(())
    }

    /// Ends the provisioner.
    pub async fn halt(&mut self) -> Result<(), Failure> {
        if let Some(running) = self.running.take() {
            running.stop(STOP).await?;
        }
        Ok(())
    }

    /// How often the provisioner was started again.
    pub fn attempts(&self) -> u32 {
        self.running.as_ref().map_or(0, |tree| tree.status().attempts)
    }

    /// Makes the storage class anew, with more fields.
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
        classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
        Ok(())
    }

    pub fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.admin.clone(), &self.namespace)
    }

    pub fn pvs(&self) -> Api<PersistentVolume> {
        Api::all(self.admin.clone())
    }

    /// Makes a claim of 1 GiB that waits for a consumer, with more fields of its spec.
    pub async fn claim(&self, name: &str, more: Value) -> Result<PersistentVolumeClaim, Failure> {
        let mut claim = json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": self.class,
            },
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            claim["spec"][key] = value.clone();
        }
        Ok(self.claims().create(&PostParams::default(), &serde_json::from_value(claim)?).await?)
    }

    /// What the scheduler does when a pod with the claim is to run on `node`.
    pub async fn schedule(&self, claim: &str, node: &str) -> Result<(), Failure> {
        let chosen = json!({"metadata": {"annotations": {SELECTED_NODE: node, PROVISIONER: "local.granary.dev"}}});
        self.claims().patch(claim, &PatchParams::default(), &Patch::Merge(chosen)).await?;
        Ok(())
    }

    /// A claim that the scheduler puts here.
    pub async fn claim_here(&self, name: &str, more: Value) -> Result<PersistentVolumeClaim, Failure> {
        let claim = self.claim(name, more).await?;
        self.schedule(name, &self.name).await?;
        Ok(claim)
    }

    /// Creates a pod with this one volume, which any node may run. The namespace's service account may come late.
    pub async fn pod(&self, name: &str, volume: &Value) -> Result<Api<Pod>, Failure> {
        let mut volume = volume.clone();
        volume["name"] = "v".into();
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "containers": [{"name": "c", "image": "granary.invalid/none"}],
                "volumes": [volume],
                // Without a kubelet, no node is ready.
                "tolerations": [{"operator": "Exists"}],
            },
        }))?;
        let pods = Api::namespaced(self.admin.clone(), &self.namespace);
        eventually(PATIENCE, &format!("pod {name}"), async || {
            pods.create(&PostParams::default(), &pod).await.map(|_| Seen::Done(()))
        })
        .await?;
        Ok(pods)
    }

    /// Waits until the claim is bound; its PV.
    pub async fn bound(&self, claim: &str) -> Result<PersistentVolume, Failure> {
        let claims = self.claims();
        let name = eventually(PATIENCE, &format!("the volume of claim {claim}"), async || {
            let found = claims.get(claim).await?;
            let phase = found.status.and_then(|status| status.phase).unwrap_or_default();
            Ok::<_, kube::Error>(match found.spec.and_then(|spec| spec.volume_name) {
                Some(volume) if phase == "Bound" => Seen::Done(volume),
                other => Seen::NotYet(format!("{phase} {other:?}")),
            })
        })
        .await?;
        Ok(self.pvs().get(&name).await?)
    }

    /// Waits for an event of this reason about the object; its note.
    pub async fn event(&self, name: &str, reason: &str) -> Result<String, Failure> {
        let what = format!("event {reason} about {name}");
        let note = eventually(PATIENCE, &what, async || {
            let events = self.events(name).await?;
            Ok::<_, kube::Error>(match events.iter().find(|event| event.reason.as_deref() == Some(reason)) {
                Some(event) => Seen::Done(event.note.clone().unwrap_or_default()),
                None => Seen::NotYet(format!("{:?}", events.iter().map(|event| &event.reason).collect::<Vec<_>>())),
            })
        });
        Ok(note.await?)
    }

    /// Waits until the node's owner is told of the volume without a PV; how.
    pub async fn told_of_orphan(&self, id: &VolumeId) -> Result<String, Failure> {
        let what = format!("the event about orphan {id}");
        let note = eventually(PATIENCE, &what, async || {
            let events = self.events(&self.name).await?;
            let of_orphans = events.into_iter().filter(|event| event.reason.as_deref() == Some("OrphanedVolume"));
            let notes: Vec<_> = of_orphans.filter_map(|event| event.note).collect();
            Ok::<_, kube::Error>(match notes.iter().find(|note| note.contains(id.as_str())) {
                Some(note) => Seen::Done(note.clone()),
                None => Seen::NotYet(notes.join("; ")),
            })
        });
        Ok(note.await?)
    }

    /// All events about the object.
    pub async fn events(&self, name: &str) -> Result<Vec<Event>, kube::Error> {
        let all = Api::<Event>::all(self.admin.clone()).list(&ListParams::default()).await?;
        let about = |event: &Event| event.regarding.as_ref().is_some_and(|object| object.name.as_deref() == Some(name));
        Ok(all.into_iter().filter(about).collect())
    }

    /// Waits until the volume's record says that its PV is there.
    pub async fn settled(&self, id: &VolumeId) -> Result<(), Failure> {
        eventually(PATIENCE, "the record's state announced", async || {
            let state = self.volumes.record(id).map(|record| record.state);
            Ok::<_, kube::Error>(if state == Some(State::Announced) {
                Seen::Done(())
            } else {
                Seen::NotYet(format!("{state:?}"))
            })
        })
        .await?;
        Ok(())
    }

    /// Waits until the volume's data may be used, alone on the disk.
    pub async fn live(&self, id: &VolumeId) -> Result<(), Failure> {
        eventually(PATIENCE, &format!("{id} out of the trash"), async || {
            let live = self.volumes.live();
            Ok::<_, kube::Error>(if live == [id.clone()] { Seen::Done(()) } else { Seen::NotYet(format!("{live:?}")) })
        })
        .await?;
        Ok(())
    }

    /// Waits for a phase of the PV.
    pub async fn phase(&self, pv: &str, phase: &str) -> Result<(), Failure> {
        eventually(PATIENCE, &format!("the phase {phase} of {pv}"), async || {
            let found = self.pvs().get(pv).await?.status.and_then(|status| status.phase).unwrap_or_default();
            Ok::<_, kube::Error>(if found == phase { Seen::Done(()) } else { Seen::NotYet(found) })
        })
        .await?;
        Ok(())
    }

    /// Waits until the PV is gone, and everything of its volume from the disk.
    pub async fn gone(&self, pv: &PersistentVolume) -> Result<(), Failure> {
        let name = pv.name_any();
        self.removed(&name, &name.parse()?).await
    }

    /// Waits until the PV is gone, and everything of the volume from the disk.
    pub async fn removed(&self, pv: &str, id: &VolumeId) -> Result<(), Failure> {
        let pvs = self.pvs();
        eventually(PATIENCE, &format!("the end of {pv}"), async || {
            let (found, record) = (pvs.get_opt(pv).await?, self.volumes.record(id));
            Ok::<_, kube::Error>(match (found, record) {
                (None, None) => Seen::Done(()),
                (found, record) => Seen::NotYet(format!("PV: {}, record: {record:?}", found.is_some())),
            })
        })
        .await?;
        Ok(())
    }

    /// Takes everything away that a case made, so that the next one finds nothing.
    pub async fn end(mut self) -> Result<(), Failure> {
        let all = ListParams::default();
        self.claims().delete_collection(&DeleteParams::default(), &all).await?;
        let claims = self.claims();
        eventually(PATIENCE, "the end of the claims", async || {
            let left = claims.list(&all).await?.items.len();
            Ok::<_, kube::Error>(if left == 0 { Seen::Done(()) } else { Seen::NotYet(left.to_string()) })
        })
        .await?;
        let pvs = self.pvs();
        eventually(PATIENCE, "the end of the PVs with policy Delete", async || {
            let left: Vec<_> = pvs
                .list(&all)
                .await?
                .into_iter()
                .filter(|pv| pv.spec.as_ref().is_some_and(|spec| spec.storage_class_name.as_ref() == Some(&self.class)))
                .filter(|pv| {
                    let policy = pv.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.clone());
                    policy.as_deref() == Some("Delete")
                })
                .map(|pv| pv.name_any())
                .collect();
            Ok::<_, kube::Error>(if left.is_empty() { Seen::Done(()) } else { Seen::NotYet(left.join(" ")) })
        })
        .await?;
        self.halt().await?;
        Api::<StorageClass>::all(self.admin.clone()).delete(&self.class, &DeleteParams::default()).await?;
        Ok(())
    }
}
