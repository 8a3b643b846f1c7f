//! Creates the volume and the PV of a claim that waits for this node.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use apiclient::is_missing;
use cluster::claim::is_object_name;
use dir::Ensured;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt as _};
use tokio::time::timeout;
use tracing::{Instrument as _, debug, info, info_span, warn};
use volume::{Claim, Cloning, Record, VolumeId, Volumes};

use crate::backoff::{self, Retry};
use crate::claim::bound;
use crate::claim::created::UNTIL_BOUND;
use crate::claim::plan::{self, AssignedClaim, ProvisionRequest, Rejection, Source};
use crate::claim::source::{self, CloneError, Obstacle};
use crate::class;
use crate::context::{CloneTurn, Outcome, Provisioner};
use crate::error::{ApiError, Error, api};
use crate::metrics::Object;
use crate::pv::object;
use crate::resize;
use crate::snapshot::object::{Content, Snapshot};
use crate::topology::Topologies;

/// Time after which the event `Provisioning` announces the work.
const SLOW: Duration = Duration::from_secs(5);

/// Prefix of the temporary claims of volume populators that use the library of the CSI project. The UID of the populated
/// claim follows.
const TEMPORARY: &str = "prime-";

/// Creates the volume of a claim that waits for this node, or serves a claim that is bound to a volume of this node.
pub(crate) async fn reconcile_claim(
    claim: Arc<PersistentVolumeClaim>,
    provisioner: Arc<Provisioner>,
) -> Result<Action, Error> {
    let Some(assigned) = plan::assigned(&claim, &provisioner.node) else {
        return bound::reconcile_bound(&claim, &provisioner).await;
    };
    let key = backoff_key(&claim);
    if let Some(left) = provisioner.attempts.wait(&key) {
        return Ok(Action::requeue(left));
    }
    let Some(_guard) = provisioner.locks.try_lock(&assigned.id) else { return Ok(Outcome::Occupied.action()) };
    let span = info_span!("provision", volume = %assigned.id, claim = %assigned.claim);
    let provisioned = provisioner.provision(&claim, &assigned).instrument(span).await;
    if let Err(Error::Store(error)) = &provisioned
        && let volume::Error::Copying { left, .. } = error
    {
        debug!(claim = %assigned.claim, %left, "clone partly copied");
        return Ok(provisioner.copied(&assigned.id, error.copying()).action());
    }
    if let Ok(Outcome::Occupied) = provisioned {
        return Ok(Outcome::Occupied.action());
    }
    if let Err(error) = &provisioned {
        // The first failure because the source is on another node gets no event: the control plane is about to select
        // that node.
        let is_expected = matches!(error, Error::Clone(error) if error.is_elsewhere());
        let populated = provisioner.populated_claim(&assigned);
        if !is_expected || provisioner.attempts.is_failing(&key) {
            provisioner.events.provisioning_failed(&claim, error);
            if let Some(populated) = &populated {
                provisioner.events.population_failed(populated, &assigned.claim, error);
            }
        }
        if populated.is_none() && provisioner.may_fit_elsewhere(error) && !plan::is_clone(&claim) {
            provisioner.release(&claim).await?;
            info!(claim = %assigned.claim, "claim returned to the scheduler, another node will be selected");
        }
    } else {
        provisioner.attempts.succeeded(&key);
    }
    provisioned.map(|_| Action::requeue(UNTIL_BOUND))
}

/// Counts the failure, and schedules the next pass.
pub(crate) fn failed(claim: Arc<PersistentVolumeClaim>, error: &Error, provisioner: Arc<Provisioner>) -> Action {
    let claim_name = plan::full_name(&claim);
    provisioner.metrics.failed(Object::Claim, error.kind());
    // A rejected claim is checked again, because its class may have been created again with other parameters.
    if matches!(error, Error::NoClass | Error::Rejected(_)) {
        warn!(claim = %claim_name, error = causes::of(error), "claim rejected");
        return Action::requeue(backoff::MOST);
    }
    let Retry { attempt, after } = provisioner.attempts.pass_failed(&backoff_key(&claim), error);
    warn!(claim = %claim_name, error = causes::of(error), attempt, "provisioning failed, will retry");
    Action::requeue(after)
}

/// Back-off key of a claim. It includes the requested size of a bound claim, so that a changed request is retried at
/// once.
pub(crate) fn backoff_key(claim: &PersistentVolumeClaim) -> String {
    let uid = claim.uid().unwrap_or_default();
    match resize::plan::claim_size(claim) {
        Some(size) => format!("{uid} {}", size.requested.get()),
        None => uid,
    }
}

impl Provisioner {
    async fn provision(&self, claim: &PersistentVolumeClaim, assigned: &AssignedClaim) -> Result<Outcome, Error> {
        // Other components change the claim until it is bound, and each change starts a pass.
        if self.created.is_recent(&assigned.id) {
            return Ok(Outcome::Complete);
        }
        let class = self.class_of(assigned).await?;
        let Some(mut request) = plan::check(assigned, claim, &class)? else { return Ok(Outcome::Complete) };
        if request.source.is_some() && self.clone_waits(&request.id) {
            return Ok(Outcome::Occupied);
        }
        // Events do not wait for a pass that copies, because it is mostly work of the disk.
        let _write = request.source.is_none().then(|| self.events.queue.begin_write());
        if let Some(topologies) = Topologies::of(&class) {
            let labels = self.node_labels().await?;
            let checked = topologies.check(&self.node, &labels);
            checked.map_err(|found| Rejection::Topology { class: class.name_any(), found })?;
        }
        if let Some(name) = &request.attributes_class {
            request.io = self.io_of_class(name, request.volume.mode.into()).await?;
        }
        let is_new = match request.source.clone() {
            Some(source) => self.add_source(claim, &source, &mut request).await? == Ensured::Created(()),
            None => false,
        };
        // This pass already has the lock of its own volume.
        let source = request.volume.source.as_ref().filter(|source| **source != request.id);
        let turn = if is_new { self.clone_turn(source) } else { self.copy_turn(&request.id, source) };
        let Some(turn) = turn else {
            if let Some(source) = source.filter(|_| is_new) {
                self.turn_missed(&request.id, source);
            }
            return Ok(Outcome::Occupied);
        };
        if is_new && !self.attempts.is_failing(&backoff_key(claim)) {
            self.events.provisioning(claim, &self.node);
        }
        let mut work = pin!(self.create_volume(&request, turn));
        let (record, created) = match timeout(SLOW, &mut work).await {
            Ok(done) => done?,
            Err(_) => {
                if !self.attempts.is_failing(&backoff_key(claim)) {
                    self.events.provisioning(claim, &self.node);
                }
                work.await?
            }
        };
        if let Ensured::Created(()) = created {
            self.events.provisioned(claim, &request.id, &record, self.free().await);
        }
        Ok(Outcome::Complete)
    }

    /// Adds the volume that the new one is cloned from to the request. Returns `Created` if the clone has not begun.
    async fn add_source(
        &self,
        claim: &PersistentVolumeClaim,
        source: &Source,
        request: &mut ProvisionRequest,
    ) -> Result<Ensured<()>, Error> {
        let begun = self.on_volume(&request.id, |store, id| store.record(id)).await?.map_err(Error::Store)?;
        // A user may delete the source as soon as its image is cloned.
        let is_complete = match begun {
            Some(Record { cloning: Some(Cloning { source, .. }), .. }) => {
                request.volume.source = Some(source);
                return Ok(Ensured::Unchanged(()));
            }
            begun => begun.is_some(),
        };
        let found = match source {
            Source::Claim(name) => self.source_claim(claim, name, request).await?,
            Source::Snapshot(name) => self.source_snapshot(claim, name, request).await?,
        };
        let found = match found {
            // A clone whose blocks are all copied does not need its source, and the record does not name it any more.
            // If the clone was being undone, the store rejects the volume as its own source.
            Err(_) if is_complete => request.id.clone(),
            found => found.map_err(|obstacle| {
                let Claim { namespace, .. } = &request.volume.claim;
                let claim = request.volume.claim.to_string();
                CloneError { claim, source_name: source.name_in(namespace), obstacle }
            })?,
        };
        request.volume.source = Some(found);
        Ok(if is_complete { Ensured::Unchanged(()) } else { Ensured::Created(()) })
    }

    async fn source_claim(
        &self,
        claim: &PersistentVolumeClaim,
        name: &str,
        request: &ProvisionRequest,
    ) -> Result<Result<VolumeId, Obstacle>, ApiError> {
        if !is_object_name(name) {
            return Ok(Err(Obstacle::Missing));
        }
        let found = self.claims_beside(claim).get_opt(name).await.map_err(api("get the claim to clone"))?;
        let pv = match found.as_ref().and_then(plan::volume_name).filter(|pv| is_object_name(pv)) {
            Some(pv) => self.pvs.get_opt(pv).await.map_err(api("get the PV of the claim to clone"))?,
            None => None,
        };
        Ok(source::volume(request, found.as_ref(), pv.as_ref(), &self.node))
    }

    async fn source_snapshot(
        &self,
        claim: &PersistentVolumeClaim,
        name: &str,
        request: &ProvisionRequest,
    ) -> Result<Result<VolumeId, Obstacle>, ApiError> {
        let (found, content) = self.snapshot_beside(claim, name).await?;
        Ok(source::snapshot(request, found.as_ref(), content.as_ref(), &self.node))
    }

    /// A snapshot in the namespace of the claim, and its content.
    pub(crate) async fn snapshot_beside(
        &self,
        claim: &PersistentVolumeClaim,
        name: &str,
    ) -> Result<(Option<Snapshot>, Option<Content>), ApiError> {
        if !is_object_name(name) {
            return Ok((None, None));
        }
        let snapshots = Api::<Snapshot>::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default());
        let found = match snapshots.get_opt(name).await {
            Err(error) if is_missing(&error) => None,
            found => found.map_err(api("get the snapshot to restore"))?,
        };
        let content = match found.as_ref().and_then(Snapshot::content).filter(|name| is_object_name(name)) {
            Some(content) => {
                self.contents.get_opt(content).await.map_err(api("get the content of the snapshot to restore"))?
            }
            None => None,
        };
        Ok((found, content))
    }

    /// Reads the class from the API server if the watch does not have it yet.
    async fn class_of(&self, assigned: &AssignedClaim) -> Result<Arc<StorageClass>, Error> {
        let class = assigned.class.as_ref().ok_or(Error::NoClass)?;
        if let Some(class) = self.classes.get(class) {
            return Ok(class);
        }
        // An annotation may name the class, which the API server does not validate.
        if !is_object_name(class) {
            return Err(Error::UnknownClass { class: class.clone() });
        }
        let classes = Api::<StorageClass>::all(self.client.clone());
        let found = classes.get_opt(class).await.map_err(api("get the storage class"))?;
        found.map(Arc::new).ok_or_else(|| Error::UnknownClass { class: class.clone() })
    }

    async fn create_volume(
        &self,
        request: &ProvisionRequest,
        turn: CloneTurn<'_>,
    ) -> Result<(Record, Ensured<()>), Error> {
        let (wanted, io) = (request.volume.clone(), request.attributes_class.as_ref().map(|_| request.io));
        let provision = move |store: &dyn Volumes, id: &VolumeId| {
            let record = store.provision(id, &wanted)?;
            // Set the limits before a pod can use the volume.
            io.map_or(Ok(record), |io| store.limit_io(id, io))
        };
        let record = self.on_volume(&request.id, provision).await?;
        drop(turn);
        let record = record.map_err(Error::of_claim)?.into_inner();
        let created = self.create_pv(request, &record).await?;
        self.on_volume(&request.id, |store, id| store.announce(id)).await?.map_err(Error::of_claim)?;
        self.created.add(&request.id);
        Ok((record, created))
    }

    /// Labels of the Node object. The scheduler compares the same labels with the topologies of a class.
    async fn node_labels(&self) -> Result<BTreeMap<String, String>, ApiError> {
        let nodes = Api::<Node>::all(self.client.clone());
        let node = nodes.get_metadata(&self.node).await.map_err(api("get the labels of the Node"))?;
        Ok(node.metadata.labels.unwrap_or_default())
    }

    async fn create_pv(&self, request: &ProvisionRequest, record: &Record) -> Result<Ensured<()>, Error> {
        let wanted = object::build(request, record, &self.node);
        match self.pvs.create(&PostParams::default(), &wanted).await {
            Ok(_) => {
                info!(limit = %record.size, mode = %record.mode, "PV created");
                Ok(Ensured::Created(()))
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let found = self.pvs.get(request.id.as_str()).await.map_err(api("get the PV"))?;
                if object::is_same(&found, &wanted, &self.node) {
                    Ok(Ensured::Unchanged(()))
                } else {
                    Err(Error::NameTaken { id: request.id.clone() })
                }
            }
            Err(error) => Err(api("create the PV")(error).into()),
        }
    }

    /// Whether the node may have been selected by stale data: the free space, or the labels of the Node, which the
    /// control plane reads every few seconds.
    fn may_fit_elsewhere(&self, error: &Error) -> bool {
        match error {
            Error::Full(_) => true,
            Error::Rejected(Rejection::Topology { class, .. }) => {
                self.classes.get(class).is_some_and(|class| class::binds_immediately(&class))
            }
            _ => false,
        }
    }

    /// The claim that a volume populator fills through this temporary claim. The pod of the populator has the node of
    /// that claim, so the scheduler never selects another node for the temporary one. `None` with immediate binding: the
    /// reclaimer selects the nodes of both claims, and reports if it finds none. Users can give this name to any claim,
    /// so most claims of other users are excluded.
    fn populated_claim(&self, temporary: &AssignedClaim) -> Option<Arc<PersistentVolumeClaim>> {
        let uid = temporary.claim.name.strip_prefix(TEMPORARY)?;
        let class = temporary.class.as_ref().and_then(|class| self.classes.get(class));
        if class.is_some_and(|class| class::binds_immediately(&class)) {
            return None;
        }
        let watched = self.watched_claims.lock().unwrap_or_else(PoisonError::into_inner);
        let is_of = |claim: &PersistentVolumeClaim| claim.metadata.uid.as_deref() == Some(uid);
        watched.as_ref()?.find(|claim| is_of(claim) && plan::is_populated_by(claim, temporary, &self.node))
    }

    /// Lets the scheduler or the control plane select another node.
    async fn release(&self, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        let patch = serde_json::json!({ "metadata": {
            "resourceVersion": claim.resource_version(),
            "annotations": { plan::SELECTED_NODE: null },
        }});
        self.claims_beside(claim)
            .patch(&claim.name_any(), &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map_err(api("return the claim to the scheduler"))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use units::Bytes;
    use volume::{Allocation, IoLimits, Mode, Owner};

    use super::*;
    use crate::claim::plan::AccessMode;
    use crate::class::ReclaimPolicy;
    use crate::fixture::{self, id};

    /// Regression: a clone kept its place, and the lock of its source, until the API server answered.
    #[tokio::test(start_paused = true)]
    async fn other_clones_begin_while_the_api_server_does_not_answer() {
        let (source, copy) = (id("pvc-source"), id("pvc-copy"));
        let (provisioner, disk) = fixture::unanswered(&[&source]);
        let request = ProvisionRequest {
            id: copy.clone(),
            volume: volume::Request {
                claim: Claim { uid: "copy".into(), namespace: "shop".into(), name: "copy".into() },
                owner: Owner::Provisioner,
                class: "local".into(),
                mode: Mode::Block { allocation: Allocation::Thick },
                size: Bytes::GIB,
                source: Some(source.clone()),
            },
            source: Some(Source::Claim("source".into())),
            attributes_class: None,
            io: IoLimits::NONE,
            access_modes: vec![AccessMode::ReadWriteOnce],
            reclaim: ReclaimPolicy::Delete,
        };
        let turn = provisioner.clone_turn([&source]).expect("no other pass");
        let mut pass = pin!(provisioner.create_volume(&request, turn));
        assert!(timeout(SLOW, &mut pass).await.is_err(), "the PV is created without an answer");
        assert!(disk.record(&copy).is_some());
        assert!(fixture::has_turns(&provisioner, [&source, &id("pvc-other")]));
    }
}
