//! What happens to a claim: it becomes a volume, or its volume grows.

use std::collections::BTreeMap;
use std::sync::Arc;

use dir::Ensured;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt as _};
use tokio::task::JoinError;
use tracing::{Instrument as _, info, info_span, warn};
use units::Bytes;
use volume::{Record, VolumeId};

use crate::api::{ApiError, api};
use crate::backoff::{self, Retry};
use crate::claim::{self, Ask, Ours};
use crate::controller::{OCCUPIED, Provisioner, UNTIL_BOUND};
use crate::metrics::Object;
use crate::resize::{self, ExpandError};
use crate::topology::Topologies;
use crate::{expand, pv};

/// Why a claim has not got what it asks for yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    #[error("the claim names no storage class; set spec.storageClassName")]
    NoClass,
    #[error("the storage class {class} does not exist; make it, or make the claim anew with another one")]
    UnknownClass { class: String },
    #[error(transparent)]
    Refused(#[from] claim::Refusal),
    #[error(transparent)]
    Full(volume::Error),
    #[error(transparent)]
    Store(volume::Error),
    #[error("PV {id} exists and is another volume; delete it")]
    NameTaken { id: VolumeId },
    #[error(transparent)]
    Expand(#[from] ExpandError),
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("work on the disk panicked")]
    Panicked(#[from] JoinError),
}

impl ClaimError {
    /// Whether time alone may heal it. What is refused is looked at again as well, but rarely: somebody may have made
    /// its class anew.
    const fn is_retryable(&self) -> bool {
        match self {
            Self::NoClass | Self::Refused(_) => false,
            Self::UnknownClass { .. }
            | Self::Full(_)
            | Self::Store(_)
            | Self::NameTaken { .. }
            | Self::Expand(_)
            | Self::Api(_)
            | Self::Panicked(_) => true,
        }
    }

    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::NoClass => "NoClass",
            Self::UnknownClass { .. } => "UnknownClass",
            Self::Refused(refusal) => refusal.kind(),
            Self::Full(_) => "Full",
            Self::Store(_) => "Store",
            Self::NameTaken { .. } => "NameTaken",
            Self::Expand(error) => error.kind(),
            Self::Api(_) => "Api",
            Self::Panicked(_) => "Panicked",
        }
    }
}

/// A claim without a volume gets one; a claim with one of ours gets the size that it asks for.
pub(crate) async fn pass(claim: Arc<PersistentVolumeClaim>, p: Arc<Provisioner>) -> Result<Action, ClaimError> {
    let Some(ours) = claim::ours(&claim, &p.node) else {
        return Ok(resize::pass(&claim, &attempts_key(&claim), &p).await?);
    };
    if let Some(left) = p.attempts.wait(&attempts_key(&claim)) {
        return Ok(Action::requeue(left));
    }
    // The comparison of disk and cluster may be at it.
    let Some(_guard) = p.locks.try_lock(&ours.id) else { return Ok(Action::requeue(OCCUPIED)) };
    let span = info_span!("provision", volume = %ours.id, claim = %ours.claim);
    let made = p.provision(&claim, &ours).instrument(span).await;
    if let Err(error) = &made {
        p.events.provisioning_failed(&claim, error.kind(), error).await;
        if matches!(error, ClaimError::Full(_)) {
            p.release(&claim).await?;
        }
    } else {
        p.attempts.succeeded(&attempts_key(&claim));
    }
    made.map(|()| Action::requeue(UNTIL_BOUND))
}

/// Counts the failure and tells when the next pass is.
pub(crate) fn failed(claim: Arc<PersistentVolumeClaim>, error: &ClaimError, p: Arc<Provisioner>) -> Action {
    let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
    let claim_name = format_args!("{namespace}/{name}");
    let cause: &dyn std::error::Error = error;
    p.metrics.failed(Object::Claim, error.kind());
    if !error.is_retryable() {
        warn!(claim = %claim_name, error = cause, "claim refused");
        return Action::requeue(backoff::MOST);
    }
    let Retry { attempt, after } = p.attempts.failed(&attempts_key(&claim));
    warn!(claim = %claim_name, error = cause, attempt, "claim has not got what it asks for");
    Action::requeue(after)
}

/// Under which its failures are counted: an owner who asks for another size is heard at once.
fn attempts_key(claim: &PersistentVolumeClaim) -> String {
    let uid = claim.uid().unwrap_or_default();
    match expand::asked(claim) {
        Some(asked) => format!("{uid} {}", asked.wanted.get()),
        None => uid,
    }
}

impl Provisioner {
    async fn provision(&self, claim: &PersistentVolumeClaim, ours: &Ours) -> Result<(), ClaimError> {
        let class = ours.class.as_ref().ok_or(ClaimError::NoClass)?;
        let class = self
            .classes
            .get_opt(class)
            .await
            .map_err(api("look up the storage class"))?
            .ok_or_else(|| ClaimError::UnknownClass { class: class.clone() })?;
        let Some(ask) = claim::check(ours, claim, &class)? else { return Ok(()) };
        if let Some(topologies) = Topologies::of(&class) {
            let labels = self.labels().await?;
            let checked = topologies.check(&self.node, &labels);
            checked.map_err(|found| claim::Refusal::Topology { class: class.name_any(), found })?;
        }
        if !self.attempts.is_failing(&attempts_key(claim)) {
            self.events.provisioning(claim, &self.node).await;
        }
        let (id, request) = (ask.id.clone(), ask.request.clone());
        let record = self.on_disk(move |store| store.provision(&id, &request)).await?.map_err(of_store)?.into_inner();
        let announced = self.announce(&ask, &record).await?;
        let id = ask.id.clone();
        self.on_disk(move |store| store.announce(&id)).await?.map_err(of_store)?;
        if let Ensured::Created(()) = announced {
            let free = self.free().await;
            self.events.provisioned(claim, &ask.id, &record, free).await;
        }
        Ok(())
    }

    /// Those of the Node, as the scheduler sees them.
    async fn labels(&self) -> Result<BTreeMap<String, String>, ApiError> {
        let nodes = Api::<Node>::all(self.client.clone());
        let node = nodes.get_metadata(&self.node).await.map_err(api("look at the labels of the Node"))?;
        Ok(node.metadata.labels.unwrap_or_default())
    }

    /// Makes the PV. `Created` if this call did.
    async fn announce(&self, ask: &Ask, record: &Record) -> Result<Ensured<()>, ClaimError> {
        let wanted = pv::build(ask, record, &self.node);
        match self.volumes.create(&PostParams::default(), &wanted).await {
            Ok(_) => {
                info!(limit = %record.size, mode = %record.mode, "volume announced");
                Ok(Ensured::Created(()))
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let found = self.volumes.get(ask.id.as_str()).await.map_err(api("look at the PV"))?;
                if pv::is_same(&found, &wanted, &self.node) {
                    Ok(Ensured::Unchanged(()))
                } else {
                    Err(ClaimError::NameTaken { id: ask.id.clone() })
                }
            }
            Err(error) => Err(api("make the PV")(error).into()),
        }
    }

    /// Gives the claim back to the scheduler, which may choose a node that has room.
    async fn release(&self, claim: &PersistentVolumeClaim) -> Result<(), ClaimError> {
        let patch = serde_json::json!({ "metadata": {
            "resourceVersion": claim.resource_version(),
            "annotations": { claim::SELECTED_NODE: null },
        }});
        self.claims_of(claim)
            .patch(&claim.name_any(), &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map_err(api("give the claim back to the scheduler"))?;
        info!("no room: claim given back to the scheduler");
        Ok(())
    }

    /// The claims of its namespace.
    pub(crate) fn claims_of(&self, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default())
    }

    /// What may still be promised, for people.
    pub(crate) async fn free(&self) -> Option<Bytes> {
        self.on_disk(|store| store.space().ok().map(|space| space.free())).await.ok().flatten()
    }
}

fn of_store(error: volume::Error) -> ClaimError {
    match error {
        full @ (volume::Error::Full { .. } | volume::Error::TooLarge { .. }) => ClaimError::Full(full),
        other @ (volume::Error::Refused { .. }
        | volume::Error::Closed { .. }
        | volume::Error::Look { .. }
        | volume::Error::Act { .. }
        | volume::Error::Unfinished { .. }
        | volume::Error::Published { .. }
        | volume::Error::Unknown { .. }
        | volume::Error::Announced { .. }) => ClaimError::Store(other),
    }
}
