//! Expands the volume of a bound claim, as [`plan`] decides.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tracing::{Instrument as _, info, info_span};
use units::Bytes;
use volume::{LiveVolume, VolumeId};

use crate::claim::plan::full_name;
use crate::context::{Outcome, Provisioner};
use crate::error::{ApiError, Error, api};
use crate::pv::object;
use crate::quantity;
use crate::resize::plan::{self, Stage, Step, VolumeSize};
use crate::resize::status::{self, StatusChange};

/// Maximum number of steps in a pass: more than any expansion needs.
const STEPS: usize = 8;

/// Interval of passes while the kubelet works. No event announces the end of the last pod with a block volume; then the
/// provisioner completes the expansion.
const WHILE_NODE_WORKS: Duration = Duration::from_secs(30);

/// Continues the claim's expansion. Returns the pause until the next pass if the claim does not change.
pub(crate) async fn resize_claim(
    claim: &PersistentVolumeClaim,
    pv: &PersistentVolume,
    id: &VolumeId,
    backoff_key: &str,
    provisioner: &Provisioner,
) -> Result<Option<Duration>, Error> {
    let Some(size) = plan::claim_size(claim) else { return Ok(None) };
    if let Some(left) = provisioner.attempts.wait(backoff_key) {
        return Ok(Some(left));
    }
    let Some(_guard) = provisioner.locks.try_lock(id) else { return Ok(Outcome::Occupied.next()) };
    let span = info_span!("expand", volume = %id, claim = %full_name(claim));
    let expanded = provisioner.expand(claim.clone(), pv.clone(), id).instrument(span).await;
    match &expanded {
        Ok(_) => provisioner.attempts.succeeded(backoff_key),
        Err(error) if error.is_race() => {}
        Err(error) => provisioner.events.resize_failed(claim, size.requested, error),
    }
    expanded
}

impl Provisioner {
    async fn expand(
        &self,
        mut claim: PersistentVolumeClaim,
        mut pv: PersistentVolume,
        id: &VolumeId,
    ) -> Result<Option<Duration>, Error> {
        // After a power cut, the record may not show that the volume has a PV.
        self.on_volume(id, |store, id| store.announce(id)).await?.map_err(Error::Expand)?;
        for _ in 0..STEPS {
            let Some(claim_size) = plan::claim_size(&claim) else { return Ok(None) };
            // Read the volume in each step, also after the expansion: pods may attach and detach the device at any
            // time.
            let LiveVolume { size, attached } = self.on_volume(id, |store, id| store.live_volume(id)).await??;
            let announced = object::capacity(&pv).unwrap_or_default();
            match plan::next(&claim_size, VolumeSize { size, announced, attached }) {
                Step::Begin { to } => {
                    claim = self.patch_status(claim, &StatusChange::Started { to }).await?;
                    self.events.resizing(&claim, size, to);
                }
                Step::Grow { to } => self.grow(&claim, id, size, to).await?,
                Step::Announce { size } => {
                    let capacity = json!({"capacity": {"storage": quantity::text(size)}});
                    pv = self.patch_pv(&pv, capacity, "write the PV's capacity").await?;
                }
                Step::AwaitNode { size } => {
                    claim = self.patch_status(claim, &StatusChange::NodePending { size }).await?;
                    self.events.node_resizes(&claim, size);
                    if claim_size.stage == Stage::NodeInfeasible {
                        return Err(Error::NodeResize);
                    }
                }
                Step::Wait => return Ok(Some(WHILE_NODE_WORKS)),
                Step::Finish { size } => {
                    claim = self.patch_status(claim, &StatusChange::Finished { size }).await?;
                    info!(limit = %size, "volume expanded");
                    self.events.resized(&claim, size, self.free().await);
                }
                Step::Done => return Ok(None),
            }
        }
        Err(Error::Endless(STEPS))
    }

    /// Expands the volume on the disk. Writes an error to the claim's status.
    async fn grow(&self, claim: &PersistentVolumeClaim, id: &VolumeId, has: Bytes, to: Bytes) -> Result<(), Error> {
        let error = match self.on_volume(id, move |store, id| store.expand(id, to)).await? {
            Ok(record) => {
                info!(from = %has, limit = %record.into_inner().size, "volume expanded on the disk");
                return Ok(());
            }
            Err(source) if source.is_infeasible() => Error::Infeasible { has, source },
            Err(error) => Error::Expand(error),
        };
        let reason = &causes::line(&error);
        let change = match error {
            Error::Infeasible { .. } => StatusChange::Infeasible { reason },
            _ => StatusChange::Failed { reason },
        };
        self.patch_status(claim.clone(), &change).await?;
        Err(error)
    }

    /// Patches the claim's status, and returns the changed claim. Fails if the claim was changed since it was read.
    async fn patch_status(
        &self,
        claim: PersistentVolumeClaim,
        change: &StatusChange<'_>,
    ) -> Result<PersistentVolumeClaim, ApiError> {
        let Some(patch) = status::patch(&claim, change, &Time(Timestamp::now())) else { return Ok(claim) };
        self.claims_beside(&claim)
            .patch_status(&claim.name_any(), &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map_err(api("write the claim's status"))
    }
}
