//! Patches of a claim's status during its expansion. Pure.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use units::Bytes;

use crate::claim::conditions::{self, Condition};
use crate::quantity;

/// Conditions of an expansion. Other components own all other conditions.
const CONDITIONS: [&str; 4] = [RESIZING, PENDING, ERROR, "NodeResizeError"];
const RESIZING: &str = "Resizing";
const PENDING: &str = "FileSystemResizePending";
const ERROR: &str = "ControllerResizeError";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StatusChange<'a> {
    Started {
        to: Bytes,
    },
    Failed {
        reason: &'a str,
    },
    /// The expansion is not possible now; the user may request less.
    Infeasible {
        reason: &'a str,
    },
    /// The volume has this size, and the kubelet has to refresh its device.
    NodePending {
        size: Bytes,
    },
    /// The volume and its device have this size.
    Finished {
        size: Bytes,
    },
}

/// The merge patch of the claim's status, which fails if the claim was changed since it was read. `None` if the status
/// needs no change.
pub(crate) fn patch(claim: &PersistentVolumeClaim, change: &StatusChange<'_>, now: &Time) -> Option<Value> {
    let (progress, condition) = match change {
        StatusChange::Started { .. } => (Some("ControllerResizeInProgress"), Some((RESIZING, ""))),
        StatusChange::Failed { reason } => (Some("ControllerResizeInProgress"), Some((ERROR, *reason))),
        StatusChange::Infeasible { reason } => (Some("ControllerResizeInfeasible"), Some((ERROR, *reason))),
        StatusChange::NodePending { .. } => {
            (Some("NodeResizePending"), Some((PENDING, "the kubelet refreshes the block device of the pods")))
        }
        StatusChange::Finished { .. } => (None, None),
    };
    let keeps = matches!(change, StatusChange::Failed { .. } | StatusChange::Infeasible { .. });
    let conditions = conditions(claim, condition, keeps, now);
    let mut status = json!({
        "allocatedResourceStatuses": {"storage": progress},
        "conditions": conditions,
    });
    match change {
        StatusChange::Started { to: size } | StatusChange::NodePending { size } => {
            status["allocatedResources"]["storage"] = quantity::text(*size).into();
        }
        StatusChange::Finished { size } => {
            let size = quantity::text(*size);
            status["allocatedResources"]["storage"] = size.as_str().into();
            status["capacity"]["storage"] = size.into();
        }
        StatusChange::Failed { .. } | StatusChange::Infeasible { .. } => {}
    }
    (!has(claim, &status)).then(|| {
        let version = claim.metadata.resource_version.as_deref();
        json!({"metadata": {"resourceVersion": version}, "status": status})
    })
}

/// The claim's conditions with `set`. The other conditions of an expansion are removed, unless `keeps` is true.
fn conditions(
    claim: &PersistentVolumeClaim,
    set: Option<(&str, &str)>,
    keeps: bool,
    now: &Time,
) -> Vec<PersistentVolumeClaimCondition> {
    let set: Vec<_> = set.iter().map(|(type_, message)| Condition { message, ..Condition::of(type_) }).collect();
    let own: Vec<_> = CONDITIONS
        .into_iter()
        .filter(|type_| !keeps || set.iter().any(|condition| condition.type_ == *type_))
        .collect();
    conditions::replaced(claim, &own, &set, now)
}

fn has(claim: &PersistentVolumeClaim, status: &Value) -> bool {
    let Ok(now) = serde_json::to_value(claim.status.clone().unwrap_or_default()) else { return false };
    let same_size = |field: &str| {
        let of = |status: &Value| status[field]["storage"].as_str().map(quantity::bytes);
        status.get(field).is_none() || of(status) == of(&now)
    };
    let progress = |status: &Value| status["allocatedResourceStatuses"]["storage"].as_str().map(str::to_owned);
    let conditions = |status: &Value| {
        let mut conditions: Vec<_> = status["conditions"].as_array().into_iter().flatten().cloned().collect();
        conditions.sort_by_key(|condition| condition["type"].to_string());
        conditions
    };
    same_size("allocatedResources")
        && same_size("capacity")
        && progress(&now) == progress(status)
        && conditions(&now) == conditions(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::conditions::fixture::{claim, time};

    /// Applies a patch like the API server does.
    fn merged(claim: &PersistentVolumeClaim, patch: &Value) -> PersistentVolumeClaim {
        fn merge(into: &mut Value, patch: &Value) {
            let Some(fields) = patch.as_object() else {
                *into = patch.clone();
                return;
            };
            for (key, value) in fields {
                if value.is_null() {
                    into.as_object_mut().expect("an object").remove(key);
                } else {
                    if !into[key].is_object() && value.is_object() {
                        into[key] = json!({});
                    }
                    merge(&mut into[key], value);
                }
            }
        }
        let mut whole = serde_json::to_value(claim).expect("JSON");
        merge(&mut whole, patch);
        serde_json::from_value(whole).expect("a claim")
    }

    fn changed(claim: &PersistentVolumeClaim, change: &StatusChange<'_>) -> PersistentVolumeClaim {
        let patch = patch(claim, change, &time("2026-02-02T00:00:00Z")).expect("a change");
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        let after = merged(claim, &patch);
        assert_eq!(super::patch(&after, change, &time("2026-03-03T00:00:00Z")), None, "changed once");
        after
    }

    fn types(claim: &PersistentVolumeClaim) -> Vec<String> {
        let conditions = claim.status.clone().and_then(|status| status.conditions).unwrap_or_default();
        let mut types: Vec<_> = conditions.into_iter().map(|condition| condition.type_).collect();
        types.sort();
        types
    }

    fn progress(claim: &PersistentVolumeClaim) -> Option<String> {
        claim.status.clone()?.allocated_resource_statuses?.remove("storage")
    }

    #[test]
    fn a_finished_expansion_leaves_only_the_size() {
        let started = changed(&claim(), &StatusChange::Started { to: Bytes::new(2 << 30) });
        assert_eq!(progress(&started).as_deref(), Some("ControllerResizeInProgress"));
        assert_eq!(types(&started), ["Resizing", "Unused"]);
        let status = started.status.clone().unwrap();
        assert_eq!(status.allocated_resources.unwrap()["storage"].0, "2Gi");
        assert_eq!(status.capacity.unwrap()["storage"].0, "1Gi");

        let waits = changed(&started, &StatusChange::NodePending { size: Bytes::new(2 << 30) });
        assert_eq!(progress(&waits).as_deref(), Some("NodeResizePending"));
        assert_eq!(types(&waits), ["FileSystemResizePending", "Unused"]);

        let finished = changed(&waits, &StatusChange::Finished { size: Bytes::new(2 << 30) });
        assert_eq!(progress(&finished), None);
        assert_eq!(types(&finished), ["Unused"]);
        assert_eq!(finished.status.unwrap().capacity.unwrap()["storage"].0, "2Gi");
    }

    #[test]
    fn a_failure_is_a_condition_beside_the_others() {
        let started = changed(&claim(), &StatusChange::Started { to: Bytes::new(2 << 30) });
        let failed = changed(&started, &StatusChange::Failed { reason: "the disk is slow" });
        assert_eq!(progress(&failed).as_deref(), Some("ControllerResizeInProgress"));
        assert_eq!(types(&failed), ["ControllerResizeError", "Resizing", "Unused"]);
        let infeasible = changed(&failed, &StatusChange::Infeasible { reason: "the disk is full" });
        assert_eq!(progress(&infeasible).as_deref(), Some("ControllerResizeInfeasible"));
        let conditions = infeasible.status.clone().unwrap().conditions.unwrap();
        assert_eq!(conditions[0].type_, "Unused", "conditions of other components are unchanged");
        assert_eq!(conditions[2].message.as_deref(), Some("the disk is full"));
        assert_eq!(conditions[2].last_transition_time, Some(time("2026-02-02T00:00:00Z")));
        assert_eq!(types(&changed(&infeasible, &StatusChange::Started { to: Bytes::GIB })), ["Resizing", "Unused"]);
    }

    #[test]
    fn a_claim_without_status_can_be_changed() {
        let bare = PersistentVolumeClaim::default();
        assert!(patch(&bare, &StatusChange::Started { to: Bytes::GIB }, &time("2026-02-02T00:00:00Z")).is_some());
    }
}
