//! A node whose provisioner is killed, and its user.

use std::sync::Arc;

use envtest::{Cluster, Failure, FakeVolumes, PATIENCE, SnapshotApi, create, merge};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client, ResourceExt};
use provisioner::Settings;
use serde_json::{Value, json};
use supervisor::Supervisor;
use tokio::runtime::{self, Runtime};
use units::Bytes;
use volume::{State, VolumeId};

use super::api;
use super::disk::Fused;
use super::fuse::{Fuse, Kill, Passed};
use crate::node::{PROVISIONER, SELECTED_NODE, STOP, events_about, until};

pub const CLASS: &str = "kills";
pub const NAMESPACE: &str = "kills";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Live,
    Trash,
}

pub struct Node {
    pub user: User,
    /// Boundaries of the last halted process.
    pub passed: Passed,
    storage: Client,
    process: Option<Process>,
}

struct Process {
    runtime: Runtime,
    tree: Supervisor,
    fuse: Arc<Fuse>,
}

/// A volume or snapshot in use, of the size that claims request.
pub const ONE: (Place, State, Bytes) = (Place::Live, State::Announced, Bytes::GIB);

/// User who creates and deletes one claim, selects this node as the scheduler does, and reads the disk.
#[derive(Clone)]
pub struct User {
    admin: Client,
    node: String,
    pub claim: String,
    pub volumes: Arc<FakeVolumes>,
}

impl Node {
    pub async fn new(cluster: &Cluster, name: String, size: Bytes) -> Result<Self, Failure> {
        let storage = cluster.storage_of(&name).await?;
        let volumes = Arc::new(FakeVolumes::with_size(size));
        let user = User { admin: cluster.admin(), claim: name.clone(), node: name, volumes };
        Ok(Self { user, passed: Passed::new(), storage, process: None })
    }

    /// Starts the provisioner with tasks and threads of its own.
    pub async fn start(&mut self, kill: Kill) -> Result<(), Failure> {
        let fuse = Arc::new(Fuse::new(kill));
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let tree = {
            let _inside = runtime.enter();
            let client = api::fused(self.storage.clone(), Arc::clone(&fuse));
            let disk = Fused::new(Arc::clone(&self.user.volumes), Arc::clone(&fuse));
            let settings = Settings::new(client, self.user.node.clone(), Arc::new(disk));
            Supervisor::start("provisioner", supervisor::Settings::default(), move |cx| {
                provisioner::run(cx, settings.clone())
            })
        };
        let handle = tree.handle();
        self.process = Some(Process { runtime, tree, fuse: Arc::clone(&fuse) });
        tokio::select! {
            ready = handle.healthy() => Ok(ready?),
            _ = fuse.burns() => Ok(()),
        }
    }

    pub fn arm(&self, kill: Kill) {
        if let Some(process) = &self.process {
            process.fuse.arm(kill);
        }
    }

    /// Waits for the end of `story`. Starts another process if this one is killed, and returns the boundary.
    pub async fn through(
        &mut self,
        story: impl Future<Output = Result<(), Failure>>,
    ) -> Result<Option<String>, Failure> {
        let mut story = Box::pin(story);
        let fuse = self.process.as_ref().map(|process| Arc::clone(&process.fuse)).ok_or("no process runs")?;
        tokio::select! {
            ended = &mut story => ended.map(|()| None),
            boundary = fuse.burns() => {
                self.kill();
                self.start(Kill::Never).await?;
                story.await.map_err(|error| at(&boundary, error))?;
                Ok(Some(boundary))
            }
        }
    }

    pub async fn dies(&mut self) -> Result<(), Failure> {
        let fuse = self.process.as_ref().map(|process| Arc::clone(&process.fuse)).ok_or("no process runs")?;
        tokio::time::timeout(PATIENCE, fuse.burns()).await?;
        self.kill();
        Ok(())
    }

    /// Stops the process. Returns the boundary if it is killed before.
    pub async fn halt(&mut self) -> Result<Option<String>, Failure> {
        let Some(Process { runtime, tree, fuse }) = self.process.take() else { return Ok(None) };
        let killed = tokio::select! {
            stopped = tree.stop(STOP) => { stopped?; None }
            boundary = fuse.burns() => Some(boundary),
        };
        runtime.shutdown_background();
        fuse.bury();
        self.passed = fuse.passed();
        Ok(killed)
    }

    /// Ends all tasks at once, and stops threads at their next boundary.
    fn kill(&mut self) {
        if let Some(Process { runtime, tree, fuse }) = self.process.take() {
            runtime.shutdown_background();
            fuse.bury();
            drop(tree);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn at(boundary: &str, error: Failure) -> Failure {
    format!("killed {boundary}: {}", envtest::chain(error.as_ref())).into()
}

impl User {
    pub async fn claim(&self) -> Result<(), Failure> {
        self.claim_of("Filesystem").await
    }

    pub async fn claim_of(&self, volume_mode: &str) -> Result<(), Failure> {
        self.claim_with(json!({"volumeMode": volume_mode})).await
    }

    /// Creates the claim with these fields of its specification.
    pub async fn claim_with(&self, more: Value) -> Result<(), Failure> {
        let annotations = json!({SELECTED_NODE: self.node, PROVISIONER: "local.granary.dev"});
        let metadata = json!({"name": self.claim, "annotations": annotations});
        create(&self.claims(), envtest::claim(metadata, CLASS, more)).await?;
        Ok(())
    }

    pub async fn enlarge(&self, size: &str) -> Result<(), Failure> {
        merge(&self.claims(), &self.claim, json!({"spec": {"resources": {"requests": {"storage": size}}}})).await?;
        Ok(())
    }

    pub async fn delete(&self) -> Result<(), Failure> {
        self.claims().delete(&self.claim, &DeleteParams::default()).await?;
        Ok(())
    }

    pub async fn retain(&self) -> Result<(), Failure> {
        let pv = self.pv().await?.ok_or("there is no PV")?;
        let pvs = Api::<PersistentVolume>::all(self.admin.clone());
        merge(&pvs, &pv.name_any(), json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}})).await?;
        Ok(())
    }

    /// Waits until `look` returns no difference.
    pub async fn sees(
        &self,
        what: &str,
        look: impl AsyncFn(&Self) -> Result<Option<String>, kube::Error>,
    ) -> Result<(), Failure> {
        until(what, async || look(self).await).await
    }

    /// Returns `None` if the claim is bound, with this size, and the disk has these volumes.
    pub async fn is_not_bound(
        &self,
        size: &str,
        volumes: &[(Place, State, Bytes)],
    ) -> Result<Option<String>, kube::Error> {
        let claim = self.claims().get(&self.claim).await?;
        let status = claim.status.unwrap_or_default();
        let capacity = status.capacity.and_then(|capacity| capacity.get("storage").cloned()).map(|has| has.0);
        let pv = self.pv().await?;
        let capacity_of_pv = pv.as_ref().and_then(|pv| pv.spec.as_ref()?.capacity.as_ref()?.get("storage").cloned());
        let capacity_of_pv = capacity_of_pv.as_ref().map(|size| size.0.as_str());
        let seen = (status.phase.as_deref(), capacity.as_deref(), capacity_of_pv, self.on_disk());
        let wanted = (Some("Bound"), Some(size), Some(size), volumes.to_vec());
        Ok((seen != wanted).then(|| format!("{seen:?}")))
    }

    pub async fn has_left(&self) -> Result<Option<String>, kube::Error> {
        let (pvs, volumes) = (self.pvs().await?.len(), self.on_disk());
        Ok((pvs != 0 || !volumes.is_empty()).then(|| format!("{pvs} PVs and {volumes:?} are left")))
    }

    pub async fn pv(&self) -> Result<Option<PersistentVolume>, kube::Error> {
        let mut pvs = self.pvs().await?;
        Ok(pvs.pop().filter(|_| pvs.is_empty()))
    }

    pub async fn pvs(&self) -> Result<Vec<PersistentVolume>, kube::Error> {
        let all = Api::<PersistentVolume>::all(self.admin.clone()).list(&ListParams::default()).await?;
        let here = |pv: &PersistentVolume| {
            let claim = pv.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.name.as_ref());
            claim == Some(&self.claim)
        };
        Ok(all.into_iter().filter(here).collect())
    }

    pub fn on_disk(&self) -> Vec<(Place, State, Bytes)> {
        let of = |place, id: &VolumeId| self.volumes.record(id).map(|record| (place, record.state, record.size));
        let live = self.volumes.live().into_iter().filter_map(|id| of(Place::Live, &id));
        let trash = self.volumes.retired().into_iter().filter_map(|id| of(Place::Trash, &id));
        live.chain(trash).collect()
    }

    pub async fn is_released(&self) -> Result<bool, kube::Error> {
        Ok(!self.claims().get(&self.claim).await?.annotations().contains_key(SELECTED_NODE))
    }

    pub async fn event_counts(&self) -> Result<Vec<(String, i32)>, Failure> {
        let mut events = events_about(&self.admin, &self.claim).await?;
        for pv in self.pvs().await? {
            events.extend(events_about(&self.admin, &pv.name_any()).await?);
        }
        events.retain(|event| event.reporting_controller.as_deref() == Some("local.granary.dev"));
        let count = |event: Event| (event.reason.unwrap_or_default(), event.series.map_or(1, |series| series.count));
        Ok(events.into_iter().map(count).collect())
    }

    pub fn snapshots(&self) -> SnapshotApi {
        SnapshotApi::of(self.admin.clone(), NAMESPACE)
    }

    pub fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }
}
