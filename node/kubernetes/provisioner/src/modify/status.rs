//! Patches of a claim's status while its VolumeAttributesClass is changed. Pure.

use k8s_openapi::api::core::v1::{ModifyVolumeStatus, PersistentVolumeClaim, PersistentVolumeClaimStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use crate::claim::conditions::{self, Condition};

pub(crate) const MODIFYING: &str = "ModifyingVolume";
const ERROR: &str = "ModifyVolumeError";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusChange<'a> {
    /// The class does not exist.
    Pending,
    Begun {
        class: &'a str,
    },
    /// The change failed and will be retried.
    Failed {
        class: &'a str,
        reason: &'a str,
    },
    /// The change is not possible; the user may request another class.
    Infeasible {
        class: &'a str,
        reason: &'a str,
    },
    Finished {
        class: &'a str,
    },
    Canceled,
}

/// The merge patch of the claim's status, which fails if the claim was changed since it was read. `None` if the status
/// needs no change.
pub(crate) fn patch(claim: &PersistentVolumeClaim, change: StatusChange<'_>, now: &Time) -> Option<Value> {
    let old = claim.status.clone().unwrap_or_default();
    let new = changed(claim, &old, change, now);
    (new != old).then(|| {
        json!({
            "metadata": {"resourceVersion": claim.metadata.resource_version},
            "status": {
                "currentVolumeAttributesClassName": new.current_volume_attributes_class_name,
                "modifyVolumeStatus": new.modify_volume_status,
                "conditions": new.conditions,
            },
        })
    })
}

fn changed(
    claim: &PersistentVolumeClaim,
    old: &PersistentVolumeClaimStatus,
    change: StatusChange<'_>,
    now: &Time,
) -> PersistentVolumeClaimStatus {
    let stage = |status: &str, class: &str| {
        let target_volume_attributes_class_name = Some(class.to_owned());
        Some(ModifyVolumeStatus { status: status.to_owned(), target_volume_attributes_class_name })
    };
    let with = |set: &[Condition<'_>]| Some(conditions::replaced(claim, &[MODIFYING, ERROR], set, now));
    let failed = |status: &str, class: &str, reason: &str, code: &str| PersistentVolumeClaimStatus {
        modify_volume_status: stage(status, class),
        conditions: with(&[
            Condition {
                message: &format!("the change to class {class} failed, will retry"),
                ..Condition::of(MODIFYING)
            },
            Condition { message: reason, reason: code, ..Condition::of(ERROR) },
        ]),
        ..old.clone()
    };
    match change {
        StatusChange::Pending => {
            let former = old.modify_volume_status.as_ref();
            let target_volume_attributes_class_name =
                former.and_then(|former| former.target_volume_attributes_class_name.clone());
            let pending = ModifyVolumeStatus { status: "Pending".to_owned(), target_volume_attributes_class_name };
            PersistentVolumeClaimStatus { modify_volume_status: Some(pending), ..old.clone() }
        }
        StatusChange::Begun { class } => PersistentVolumeClaimStatus {
            modify_volume_status: stage("InProgress", class),
            conditions: with(&[Condition {
                message: &format!("applying class {class} to the volume"),
                ..Condition::of(MODIFYING)
            }]),
            ..old.clone()
        },
        StatusChange::Failed { class, reason } => failed("InProgress", class, reason, "Internal"),
        StatusChange::Infeasible { class, reason } => failed("Infeasible", class, reason, "InvalidArgument"),
        StatusChange::Finished { class } => PersistentVolumeClaimStatus {
            current_volume_attributes_class_name: Some(class.to_owned()),
            modify_volume_status: None,
            conditions: with(&[]),
            ..old.clone()
        },
        StatusChange::Canceled => {
            let conditions = Some(conditions::replaced(claim, &[MODIFYING], &[], now));
            PersistentVolumeClaimStatus { conditions, ..old.clone() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::conditions::fixture::{claim, time};

    /// Applies a change, and checks that a second one changes nothing.
    fn after(claim: &PersistentVolumeClaim, change: StatusChange<'_>) -> PersistentVolumeClaim {
        let patch = patch(claim, change, &time("2026-02-02T00:00:00Z")).expect("a change");
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        let old = claim.status.clone().unwrap_or_default();
        let status = Some(changed(claim, &old, change, &time("2026-02-02T00:00:00Z")));
        let claim = PersistentVolumeClaim { status, ..claim.clone() };
        assert_eq!(super::patch(&claim, change, &time("2026-03-03T00:00:00Z")), None, "changed once");
        claim
    }

    /// Status and target of a change.
    type Progress = Option<(String, Option<String>)>;

    fn shown(claim: &PersistentVolumeClaim) -> (Progress, Option<String>, Vec<String>) {
        let status = claim.status.clone().unwrap_or_default();
        let stage = status.modify_volume_status.map(|found| (found.status, found.target_volume_attributes_class_name));
        let conditions = status.conditions.unwrap_or_default().into_iter().map(|condition| condition.type_).collect();
        (stage, status.current_volume_attributes_class_name, conditions)
    }

    fn stage(status: &str, class: Option<&str>) -> Progress {
        Some((status.to_owned(), class.map(str::to_owned)))
    }

    #[test]
    fn a_change_leaves_only_the_class() {
        let begun = after(&claim(), StatusChange::Begun { class: "gold" });
        let conditions = || vec!["Unused".to_owned(), MODIFYING.to_owned()];
        assert_eq!(shown(&begun), (stage("InProgress", Some("gold")), None, conditions()));
        let done = after(&begun, StatusChange::Finished { class: "gold" });
        assert_eq!(shown(&done), (None, Some("gold".to_owned()), vec!["Unused".to_owned()]));
        let pending = after(&done, StatusChange::Pending);
        assert_eq!(shown(&pending), (stage("Pending", None), Some("gold".to_owned()), vec!["Unused".to_owned()]));
    }

    #[test]
    fn a_failure_is_a_condition_with_its_reason() {
        let begun = after(&claim(), StatusChange::Begun { class: "gold" });
        let failed = after(&begun, StatusChange::Failed { class: "gold", reason: "no cgroup" });
        let all = || vec!["Unused".to_owned(), MODIFYING.to_owned(), ERROR.to_owned()];
        assert_eq!(shown(&failed), (stage("InProgress", Some("gold")), None, all()));
        let infeasible = after(&failed, StatusChange::Infeasible { class: "gold", reason: "no controller" });
        assert_eq!(shown(&infeasible), (stage("Infeasible", Some("gold")), None, all()));
        let conditions = infeasible.status.clone().and_then(|status| status.conditions).unwrap_or_default();
        assert_eq!(conditions[2].message.as_deref(), Some("no controller"));
        assert_eq!(conditions[2].reason.as_deref(), Some("InvalidArgument"));
        let canceled = after(&infeasible, StatusChange::Canceled);
        let left = vec!["Unused".to_owned(), ERROR.to_owned()];
        assert_eq!(shown(&canceled), (stage("Infeasible", Some("gold")), None, left));
        let other = after(&infeasible, StatusChange::Begun { class: "iron" });
        assert_eq!(shown(&other).2, ["Unused", MODIFYING]);
    }
}
