//! A bound claim asks for more: [`expand`](crate::expand) decides, this does.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use serde_json::json;
use std::time::Duration;
use tokio::task::JoinError;
use tracing::{Instrument as _, info, info_span};
use units::Bytes;
use volume::{LiveVolume, LiveVolumeError, Record, VolumeId};

use crate::api::{ApiError, api};
use crate::controller::Provisioner;
use crate::expand::{self, Asked, Stage, Step};
use crate::status::{self, News};
use crate::{pv, quantity};

/// More than any expansion takes: a pass that does not come to an end is a fault, and waits like one.
const STEPS: usize = 8;

/// kubelet tells nobody when the last pod with a block volume goes: then the rest is ours.
const WHILE_NODE_WORKS: Duration = Duration::from_secs(30);

/// The watch of PVs may be behind the one of claims.
const UNTIL_SEEN: Duration = Duration::from_secs(2);

/// Why a volume has not got its new size yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExpandError {
    #[error("the volume keeps {has}; ask for less, or make room")]
    Infeasible {
        has: Bytes,
        #[source]
        source: volume::Error,
    },
    #[error(transparent)]
    Store(volume::Error),
    #[error(transparent)]
    Held(#[from] LiveVolumeError),
    #[error("kubelet could not show the new size to the pods; it is asked again")]
    Node,
    #[error("the expansion does not come to an end")]
    Endless,
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("work on the disk panicked")]
    Panicked(#[from] JoinError),
}

impl ExpandError {
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Infeasible { .. } => "ExpandInfeasible",
            Self::Store(_) => "ExpandStore",
            Self::Held(_) => "ExpandHeld",
            Self::Node => "ExpandNode",
            Self::Endless => "ExpandEndless",
            Self::Api(_) => "Api",
            Self::Panicked(_) => "Panicked",
        }
    }

    /// Whether the claim's owner has to know. That somebody else was faster is nobody's business.
    fn is_news(&self) -> bool {
        match self {
            Self::Api(error) => !error.is_conflict() && !error.is_not_found(),
            Self::Infeasible { .. }
            | Self::Store(_)
            | Self::Held(_)
            | Self::Node
            | Self::Endless
            | Self::Panicked(_) => true,
        }
    }
}

/// Does what is left of the claim's expansion. Claims of other nodes and drivers are left alone: the PV tells.
pub(crate) async fn pass(
    claim: &PersistentVolumeClaim,
    attempts: &str,
    p: &Provisioner,
) -> Result<Action, ExpandError> {
    let open = expand::asked(claim).filter(Asked::is_open);
    let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).filter(|name| !name.is_empty());
    let (Some(asked), Some(name), None) = (open, name, claim.metadata.deletion_timestamp.as_ref()) else {
        return Ok(Action::await_change());
    };
    let Some(pv) = p.seen(&ObjectRef::new(name)) else { return Ok(Action::requeue(UNTIL_SEEN)) };
    let Some(id) = pv::ours(&pv, &p.node).filter(|_| pv::is_of(&pv, claim)) else {
        return Ok(Action::await_change());
    };
    if let Some(left) = p.attempts.wait(attempts) {
        return Ok(Action::requeue(left));
    }
    let span = info_span!("expand", volume = %id, claim = %format_args!(
        "{}/{}", claim.namespace().unwrap_or_default(), claim.name_any()
    ));
    let expanded = p.expand(claim.clone(), (*pv).clone(), &id).instrument(span).await;
    match &expanded {
        Ok(_) => p.attempts.succeeded(attempts),
        Err(error) if error.is_news() => p.events.resize_failed(claim, asked.wanted, error.kind(), error).await,
        Err(_) => {}
    }
    expanded
}

impl Provisioner {
    async fn expand(
        &self,
        mut claim: PersistentVolumeClaim,
        mut pv: PersistentVolume,
        id: &VolumeId,
    ) -> Result<Action, ExpandError> {
        let volume = id.clone();
        // It has a PV. After a power cut the disk may have forgotten that, and would not open it.
        self.on_disk(move |store| store.announce(&volume)).await?.map_err(ExpandError::Store)?;
        for _ in 0..STEPS {
            let Some(asked) = expand::asked(&claim) else { return Ok(Action::await_change()) };
            let volume = id.clone();
            // After it grew, and each time anew: a pod may have come, or gone.
            let LiveVolume { size, attached } = self.on_disk(move |store| store.live_volume(&volume)).await??;
            let announced = pv::capacity(&pv).unwrap_or_default();
            match expand::next(&asked, expand::Volume { size, announced, attached }) {
                Step::Begin { to } => {
                    claim = self.tell(claim, &News::Began { to }).await?;
                    self.events.resizing(&claim, size, to).await;
                }
                Step::Grow { to } => self.grow(&claim, id, size, to).await?,
                Step::Announce { size } => pv = self.set_capacity(&pv, size).await?,
                Step::AwaitNode { size } => {
                    claim = self.tell(claim, &News::AwaitsNode { size }).await?;
                    self.events.node_resizes(&claim, size).await;
                    if asked.stage == Stage::NodeInfeasible {
                        return Err(ExpandError::Node);
                    }
                }
                Step::Wait => return Ok(Action::requeue(WHILE_NODE_WORKS)),
                Step::Finish { size } => {
                    claim = self.tell(claim, &News::Finished { size }).await?;
                    info!(limit = %size, "volume expanded");
                    self.events.resized(&claim, size, self.free().await).await;
                }
                Step::Done => return Ok(Action::await_change()),
            }
        }
        Err(ExpandError::Endless)
    }

    /// Enlarges the volume on the disk; what goes wrong stands in the claim's status.
    async fn grow(
        &self,
        claim: &PersistentVolumeClaim,
        id: &VolumeId,
        has: Bytes,
        to: Bytes,
    ) -> Result<(), ExpandError> {
        let volume = id.clone();
        let error = match self.on_disk(move |store| store.expand(&volume, to)).await? {
            Ok(record) => {
                let Record { size, .. } = record.into_inner();
                info!(from = %has, limit = %size, "volume has grown");
                return Ok(());
            }
            Err(source) if source.is_infeasible() => ExpandError::Infeasible { has, source },
            Err(error) => ExpandError::Store(error),
        };
        let reason = crate::events::chain(&error);
        let news = if matches!(error, ExpandError::Infeasible { .. }) {
            News::Infeasible { reason: &reason }
        } else {
            News::Failed { reason: &reason }
        };
        self.tell(claim.clone(), &news).await?;
        Err(error)
    }

    /// Changes the claim's status, unless somebody changed the claim since it was read. The claim as it is then.
    async fn tell(&self, claim: PersistentVolumeClaim, news: &News<'_>) -> Result<PersistentVolumeClaim, ApiError> {
        let Some(patch) = status::patch(&claim, news, &Time(Timestamp::now())) else { return Ok(claim) };
        self.claims_of(&claim)
            .patch_status(&claim.name_any(), &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map_err(api("write the claim's status"))
    }

    async fn set_capacity(&self, pv: &PersistentVolume, size: Bytes) -> Result<PersistentVolume, ApiError> {
        let patch = json!({
            "metadata": {"uid": pv.uid(), "resourceVersion": pv.resource_version()},
            "spec": {"capacity": {"storage": quantity::text(size)}},
        });
        self.volumes
            .patch(&pv.name_any(), &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map_err(api("write the PV's capacity"))
    }
}
