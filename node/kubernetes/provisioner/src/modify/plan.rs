//! Plans the change of a bound claim to another VolumeAttributesClass, by the protocol of external-resizer. Pure.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::modify::status::MODIFYING;

/// The classes of a bound claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimClass {
    /// `spec.volumeAttributesClassName`
    pub(crate) wanted: Option<String>,
    /// `status.currentVolumeAttributesClassName`
    pub(crate) current: Option<String>,
    /// `status.modifyVolumeStatus`
    pub(crate) stage: Stage,
    /// The class of the last change that was begun.
    pub(crate) target: Option<String>,
    /// Whether the claim has the condition of a change.
    pub(crate) is_announced: bool,
}

/// `status.modifyVolumeStatus.status` of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    None,
    Pending,
    InProgress,
    Infeasible,
    /// Status of a later API version. No action.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Done,
    /// Remove the condition: the claim requests no class any more, and the change did not begin.
    Cancel,
    /// Give the volume this class. `Announced` if the claim's status names it.
    Modify {
        class: String,
        progress: Progress,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    New,
    Announced,
}

impl Stage {
    fn of(status: &str) -> Self {
        match status {
            "Pending" => Self::Pending,
            "InProgress" => Self::InProgress,
            "Infeasible" => Self::Infeasible,
            _ => Self::Unknown,
        }
    }
}

/// Returns `None` if the claim is not bound.
pub(crate) fn claim_class(claim: &PersistentVolumeClaim) -> Option<ClaimClass> {
    let status = claim.status.as_ref().filter(|status| status.phase.as_deref() == Some("Bound"))?;
    let named = |class: Option<&String>| class.filter(|class| !class.is_empty()).cloned();
    let modification = status.modify_volume_status.as_ref();
    Some(ClaimClass {
        wanted: named(claim.spec.as_ref()?.volume_attributes_class_name.as_ref()),
        current: named(status.current_volume_attributes_class_name.as_ref()),
        stage: modification.map_or(Stage::None, |modification| Stage::of(&modification.status)),
        target: named(modification.and_then(|found| found.target_volume_attributes_class_name.as_ref())),
        is_announced: status.conditions.iter().flatten().any(|condition| condition.type_ == MODIFYING),
    })
}

pub(crate) fn next(claim: &ClaimClass) -> Step {
    let ClaimClass { wanted, current, stage, target, is_announced } = claim;
    let begun = target.as_ref().filter(|_| *stage == Stage::InProgress);
    let class = match (stage, wanted, begun) {
        (Stage::Unknown, ..) => return Step::Done,
        (Stage::None, wanted, _) if wanted == current => return Step::Done,
        (_, Some(wanted), _) => wanted,
        // Complete the change that has begun: the disk may have the limits of this class.
        (_, None, Some(begun)) => begun,
        (_, None, None) if *is_announced => return Step::Cancel,
        (_, None, None) => return Step::Done,
    };
    let is_same = target.as_ref() == Some(class) && matches!(stage, Stage::InProgress | Stage::Infeasible);
    Step::Modify { class: class.clone(), progress: if is_same { Progress::Announced } else { Progress::New } }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn claim(wanted: Option<&str>, current: Option<&str>, modification: Option<(&str, Option<&str>)>) -> ClaimClass {
        let modification =
            modification.map(|(status, target)| json!({"status": status, "targetVolumeAttributesClassName": target}));
        let is_begun = modification.is_some();
        let conditions = if is_begun { json!([{"type": MODIFYING, "status": "True"}]) } else { json!([]) };
        let claim = serde_json::from_value(json!({
            "spec": {"volumeAttributesClassName": wanted},
            "status": {
                "phase": "Bound", "currentVolumeAttributesClassName": current, "modifyVolumeStatus": modification,
                "conditions": conditions,
            },
        }));
        claim_class(&claim.expect("a claim")).expect("it is bound")
    }

    fn modify(class: &str, progress: Progress) -> Step {
        Step::Modify { class: class.to_owned(), progress }
    }

    #[test]
    fn a_claim_is_modified_until_it_has_the_class() {
        assert_eq!(next(&claim(None, None, None)), Step::Done);
        assert_eq!(next(&claim(Some("gold"), Some("gold"), None)), Step::Done);
        assert_eq!(next(&claim(Some("gold"), None, None)), modify("gold", Progress::New));
        assert_eq!(next(&claim(Some("gold"), Some("iron"), None)), modify("gold", Progress::New));
        for stage in ["InProgress", "Infeasible"] {
            let begun = claim(Some("gold"), Some("iron"), Some((stage, Some("gold"))));
            assert_eq!(next(&begun), modify("gold", Progress::Announced));
            // The user requests another class, or the former one.
            for other in ["iron", "tin"] {
                let begun = claim(Some(other), Some("iron"), Some((stage, Some("gold"))));
                assert_eq!(next(&begun), modify(other, Progress::New));
            }
        }
        // The class did not exist when the claim requested it.
        assert_eq!(next(&claim(Some("gold"), None, Some(("Pending", None)))), modify("gold", Progress::New));
    }

    #[test]
    fn a_change_that_is_not_wanted_any_more_ends_or_is_completed() {
        assert_eq!(next(&claim(None, None, Some(("Infeasible", Some("gold"))))), Step::Cancel);
        let canceled = ClaimClass { is_announced: false, ..claim(None, None, Some(("Infeasible", Some("gold")))) };
        assert_eq!(next(&canceled), Step::Done);
        let begun = claim(None, None, Some(("InProgress", Some("gold"))));
        assert_eq!(next(&begun), modify("gold", Progress::Announced));
    }

    #[test]
    fn unbound_claims_and_unknown_stages_are_not_changed() {
        assert_eq!(claim_class(&PersistentVolumeClaim::default()), None);
        assert_eq!(next(&claim(Some("gold"), None, Some(("Later", Some("gold"))))), Step::Done);
    }

    proptest! {
        #[test]
        fn a_claim_with_its_class_needs_nothing(wanted in prop::option::of("[a-c]"), stage in "Pending|InProgress|Infeasible") {
            let stage = claim(wanted.as_deref(), None, Some((&stage, wanted.as_deref())));
            if let Step::Modify { class, .. } = next(&stage) {
                prop_assert_eq!(Some(&class), wanted.as_ref());
                let done = ClaimClass { current: Some(class), stage: Stage::None, target: None, ..stage };
                prop_assert_eq!(next(&done), Step::Done);
            }
        }
    }
}
