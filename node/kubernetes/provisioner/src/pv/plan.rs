//! Decides what happens to a PV and its volume. Pure.

use k8s_openapi::api::core::v1::PersistentVolume;
use volume::{FINALIZER, PROVISIONED_BY};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PvPlan {
    Keep,
    /// Keep the data and set these finalizers; with the driver's, also the annotation that names the provisioner.
    SetFinalizers(Vec<String>),
    Delete,
    /// The PV is being deleted without the driver's finalizer: it has no volume any more, and the data stays. The
    /// driver's own deletions end in this state too.
    Ignore,
}

/// Data is deleted if the phase is `Released`, the policy is `Delete` and the PV has the driver's finalizer, whether or
/// not the PV was deleted already.
pub(crate) fn plan(pv: &PersistentVolume) -> PvPlan {
    let delete = pv.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()) == Some("Delete");
    let phase = pv.status.as_ref().and_then(|status| status.phase.as_deref());
    let marked = pv.metadata.finalizers.iter().flatten().any(|name| name == FINALIZER);
    let deleted = pv.metadata.deletion_timestamp.is_some();
    let named = pv.metadata.annotations.iter().flatten().any(|(key, _)| key == PROVISIONED_BY);
    match (delete, marked, phase) {
        (true, true, Some("Released")) => PvPlan::Delete,
        // The API server rejects new finalizers of an object that is being deleted.
        (true, false, _) if !deleted => PvPlan::SetFinalizers(with_driver(pv)),
        (true, false, phase) if phase != Some("Bound") => PvPlan::Ignore,
        // An administrator created the PV. Without the annotation, the PV controller sets phase Failed when the PV is
        // released.
        (true, true, _) if !named && !deleted => PvPlan::SetFinalizers(with_driver(pv)),
        // With policy `Retain`, the finalizer is not needed.
        (false, true, _) => PvPlan::SetFinalizers(without_driver(pv)),
        // pv-protection keeps the PV until it is released.
        (true, true, Some("Bound")) => PvPlan::Keep,
        // No claim was bound: the PV is created again for its claim, or the volume becomes an orphan.
        (true, true, _) if deleted => PvPlan::SetFinalizers(without_driver(pv)),
        (true, true, _) | (_, false, _) => PvPlan::Keep,
    }
}

pub(crate) fn without_driver(pv: &PersistentVolume) -> Vec<String> {
    pv.metadata.finalizers.iter().flatten().filter(|name| *name != FINALIZER).cloned().collect()
}

fn with_driver(pv: &PersistentVolume) -> Vec<String> {
    without_driver(pv).into_iter().chain([FINALIZER.to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const OTHER: &str = "kubernetes.io/pv-protection";

    fn pv(policy: &str, phase: Option<&str>, finalizers: &[&str], deleted: bool) -> PersistentVolume {
        let deletion = deleted.then_some("2026-01-01T00:00:00Z");
        serde_json::from_value(json!({
            "metadata": {
                "name": "pvc-1", "finalizers": finalizers, "deletionTimestamp": deletion,
                "annotations": {PROVISIONED_BY: "local.granary.dev"},
            },
            "spec": {"persistentVolumeReclaimPolicy": policy},
            "status": {"phase": phase},
        }))
        .expect("a PV")
    }

    #[test]
    fn a_released_volume_is_deleted_even_if_its_pv_was_deleted() {
        for deleted in [false, true] {
            assert_eq!(plan(&pv("Delete", Some("Released"), &[OTHER, FINALIZER], deleted)), PvPlan::Delete);
        }
    }

    #[test]
    fn retain_removes_the_finalizer_and_keeps_the_data() {
        for phase in ["Bound", "Released", "Available"] {
            let marked = pv("Retain", Some(phase), &[OTHER, FINALIZER], phase == "Released");
            assert_eq!(plan(&marked), PvPlan::SetFinalizers(vec![OTHER.into()]));
            assert_eq!(plan(&pv("Retain", Some(phase), &[OTHER], false)), PvPlan::Keep);
        }
    }

    #[test]
    fn a_new_policy_delete_sets_the_finalizer_first() {
        let released = pv("Delete", Some("Released"), &[OTHER], false);
        assert_eq!(plan(&released), PvPlan::SetFinalizers(vec![OTHER.into(), FINALIZER.into()]));
    }

    #[test]
    fn a_manual_pv_gets_finalizer_and_annotation() {
        let mut by_hand = pv("Delete", Some("Bound"), &[FINALIZER], false);
        by_hand.metadata.annotations = None;
        assert_eq!(plan(&by_hand), PvPlan::SetFinalizers(vec![FINALIZER.into()]));
        let mut retained = pv("Retain", Some("Bound"), &[], false);
        retained.metadata.annotations = None;
        assert_eq!(plan(&retained), PvPlan::Keep);
    }

    #[test]
    fn a_pv_deleted_without_the_finalizer_keeps_its_data() {
        assert_eq!(plan(&pv("Delete", Some("Released"), &[OTHER], true)), PvPlan::Ignore);
        // A bound PV is kept even without the driver's finalizer.
        assert_eq!(plan(&pv("Delete", Some("Bound"), &[OTHER], true)), PvPlan::Keep);
    }

    #[test]
    fn a_bound_pv_is_kept() {
        assert_eq!(plan(&pv("Delete", Some("Bound"), &[FINALIZER], true)), PvPlan::Keep);
        assert_eq!(plan(&pv("Delete", Some("Bound"), &[FINALIZER], false)), PvPlan::Keep);
        assert_eq!(plan(&pv("Delete", None, &[FINALIZER], false)), PvPlan::Keep);
    }

    #[test]
    fn an_unbound_pv_can_be_deleted_without_its_data() {
        let available = pv("Delete", Some("Available"), &[FINALIZER], true);
        assert_eq!(plan(&available), PvPlan::SetFinalizers(vec![]));
    }

    #[test]
    fn an_empty_pv_is_kept() {
        assert_eq!(plan(&PersistentVolume::default()), PvPlan::Keep);
    }

    proptest! {
        #[test]
        fn data_is_deleted_only_with_policy_phase_and_finalizer(
            policy in "Delete|Retain|Recycle|", phase in "Released|Bound|Available|Pending|Failed|",
            marked: bool, deleted: bool,
        ) {
            let finalizers: &[&str] = if marked { &[FINALIZER] } else { &[] };
            let planned = plan(&pv(&policy, Some(&phase), finalizers, deleted));
            prop_assert_eq!(planned == PvPlan::Delete, policy == "Delete" && phase == "Released" && marked);
        }

        #[test]
        fn finalizers_are_set_once(
            policy in "Delete|Retain", phase in "Released|Bound|Available", marked: bool,
        ) {
            let finalizers: &[&str] = if marked { &[FINALIZER, OTHER] } else { &[OTHER] };
            let before = pv(&policy, Some(&phase), finalizers, false);
            if let PvPlan::SetFinalizers(finalizers) = plan(&before) {
                let mut after = before;
                after.metadata.finalizers = Some(finalizers);
                prop_assert!(!matches!(plan(&after), PvPlan::SetFinalizers(_)));
            }
        }
    }
}
