//! Conditions of a claim. Pure.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// A condition with status True. Empty texts are left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Condition<'a> {
    pub(crate) type_: &'a str,
    pub(crate) reason: &'a str,
    pub(crate) message: &'a str,
}

impl<'a> Condition<'a> {
    pub(crate) const fn of(type_: &'a str) -> Self {
        Self { type_, reason: "", message: "" }
    }
}

/// The claim's conditions with `set` instead of those of the types `own`. The admission policy requires that all others
/// stay as they are, in their order.
pub(crate) fn replaced(
    claim: &PersistentVolumeClaim,
    own: &[&str],
    set: &[Condition<'_>],
    now: &Time,
) -> Vec<PersistentVolumeClaimCondition> {
    let old = claim.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let (former, mut all): (Vec<_>, Vec<_>) =
        old.cloned().partition(|condition| own.contains(&condition.type_.as_str()));
    all.extend(set.iter().map(|Condition { type_, reason, message }| {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let former = former.iter().find(|former| former.type_ == *type_ && former.status == "True");
        PersistentVolumeClaimCondition {
            type_: (*type_).to_owned(),
            status: "True".to_owned(),
            last_transition_time: former
                .map_or_else(|| Some(now.clone()), |former| former.last_transition_time.clone()),
            reason: text(reason),
            message: text(message),
            ..PersistentVolumeClaimCondition::default()
        }
    }));
    all
}

/// A claim for the tests of status patches.
#[cfg(test)]
pub(crate) mod fixture {
    use serde_json::json;

    use super::*;

    pub(crate) fn time(text: &str) -> Time {
        serde_json::from_value(text.into()).expect("a time")
    }

    /// A bound claim with a condition of another component.
    pub(crate) fn claim() -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"resourceVersion": "7"},
            "status": {
                "phase": "Bound", "capacity": {"storage": "1Gi"},
                "conditions": [{"type": "Unused", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            },
        }))
        .expect("a claim")
    }
}
