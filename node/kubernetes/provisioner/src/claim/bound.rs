//! Passes over bound claims: expansion, VolumeAttributesClass and rollback.

use std::time::Duration;

use cluster::claim::status_writer;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use tracing::{Instrument as _, info, info_span, warn};

use crate::claim::apply::backoff_key;
use crate::claim::plan::{full_name, volume_name};
use crate::context::{Outcome, Provisioner};
use crate::error::Error;
use crate::metrics::Object;
use crate::modify::plan::{self, Step};
use crate::pv::object;
use crate::resize::apply::resize_claim;
use crate::resize::plan::claim_size;
use crate::rollback;
use crate::rollback::apply::{backoff_prefix, roll_back_claim};

/// Pause until the next pass if the watches may be behind.
const UNTIL_WATCHED: Duration = Duration::from_secs(2);

/// Retry interval until the control plane annotates the claim with its node. The annotation starts a pass at once.
const UNTIL_ANNOTATED: Duration = Duration::from_mins(1);

/// Continues the claim's expansion, the change of its class, and its rollback. Ignores claims whose PV is not of this
/// node.
pub(crate) async fn reconcile_bound(claim: &PersistentVolumeClaim, provisioner: &Provisioner) -> Result<Action, Error> {
    let is_expanding = claim_size(claim).is_some_and(|size| size.is_open());
    let modification = plan::claim_class(claim).map_or(Step::Done, |class| plan::next(&class));
    let (Some(name), None) = (volume_name(claim), claim.metadata.deletion_timestamp.as_ref()) else {
        return Ok(Action::await_change());
    };
    let rollback = rollback::plan::next(claim);
    if !is_expanding && modification == Step::Done && rollback == rollback::plan::Step::Done {
        // The request of a rollback that failed may have been removed.
        let left = provisioner.attempts.end_all(&backoff_prefix(claim), &[]);
        return Ok(left.map_or_else(Action::await_change, Action::requeue));
    }
    let Some(pv) = provisioner.watched_pv(&ObjectRef::new(name)) else { return Ok(Action::requeue(UNTIL_WATCHED)) };
    let Some(id) = object::volume_of(&pv, &provisioner.node).filter(|_| object::is_of(&pv, claim)) else {
        return Ok(Action::await_change());
    };
    // An admission policy rejects status writes of any other node than the one in the annotations.
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    if status_writer(uid, Some(name), claim.annotations()) != Some(&*provisioner.node) {
        let claim = full_name(claim);
        info!(%claim, volume = %id, "claim waits until the control plane has annotated it with its node");
        return Ok(Action::requeue(UNTIL_ANNOTATED));
    }
    // The change of the class has its own back-off, so that a class that is not possible delays no expansion.
    let key = match &modification {
        Step::Modify { class, .. } => Some(format!("{uid} class {class}")),
        Step::Done | Step::Cancel => None,
    };
    let left = key.as_deref().and_then(|key| provisioner.attempts.wait(key));
    if modification != Step::Done && left.is_none() {
        let Some(_guard) = provisioner.locks.try_lock(&id) else { return Ok(Outcome::Occupied.action()) };
        let span = info_span!("modify", volume = %id, claim = %full_name(claim));
        match (provisioner.modify(claim, &pv, &id, modification).instrument(span).await, key) {
            // The status has changed, which starts the next pass.
            (Ok(()), key) => {
                key.iter().for_each(|key| provisioner.attempts.succeeded(key));
                return Ok(Action::await_change());
            }
            (Err(error @ (Error::Api(_) | Error::Panicked(_))), _) => return Err(error),
            (Err(error), key) => {
                provisioner.metrics.failed(Object::Claim, error.kind());
                let attempt = key.map(|key| provisioner.attempts.pass_failed(&key, &error).attempt);
                warn!(volume = %id, error = causes::of(&error), attempt, "change of the class failed, will retry");
            }
        }
        // The next pass continues with the claim as it is then.
        return Ok(Action::requeue(UNTIL_WATCHED));
    }
    let span = info_span!("rollback", volume = %id, claim = %full_name(claim));
    let rolled_back = roll_back_claim(claim, &id, rollback, provisioner).instrument(span).await?;
    let resized =
        if is_expanding { resize_claim(claim, &pv, &id, &backoff_key(claim), provisioner).await? } else { None };
    Ok([left, rolled_back, resized].into_iter().flatten().min().map_or_else(Action::await_change, Action::requeue))
}
