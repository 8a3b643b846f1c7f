//! What the life of a PV means for its volume. Pure.

use k8s_openapi::api::core::v1::PersistentVolume;
use volume::{FINALIZER, PROVISIONED_BY};

/// What is to be done about a PV of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The data stays.
    Keep,
    /// The data stays, and the PV gets these finalizers; with ours also the annotation that names us as its provisioner.
    Mark(Vec<String>),
    /// The data goes, and then the PV.
    Delete,
    /// The PV goes without us, and stands for nothing any more: the data stays where it is. So ends a deletion of ours,
    /// too.
    Leave,
}

/// Decides. Data is deleted when its claim is gone (`Released`), the policy says so and our finalizer shows that we
/// meant it, whether or not somebody deleted the PV already.
pub(crate) fn judge(pv: &PersistentVolume) -> Verdict {
    let delete = pv.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()) == Some("Delete");
    let phase = pv.status.as_ref().and_then(|status| status.phase.as_deref());
    let marked = pv.metadata.finalizers.iter().flatten().any(|name| name == FINALIZER);
    let leaving = pv.metadata.deletion_timestamp.is_some();
    let named = pv.metadata.annotations.iter().flatten().any(|(key, _)| key == PROVISIONED_BY);
    match (delete, marked, phase) {
        (true, true, Some("Released")) => Verdict::Delete,
        // Nobody may add a finalizer to an object that is being deleted.
        (true, false, _) if !leaving => Verdict::Mark(with_ours(pv)),
        (true, false, phase) if phase != Some("Bound") => Verdict::Leave,
        // Made by hand: without the annotation, the PV controller would call it failed as soon as it is released.
        (true, true, _) if !named && !leaving => Verdict::Mark(with_ours(pv)),
        // `Retain` never touches data, and nothing else holds the PV for us.
        (false, true, _) => Verdict::Mark(without_ours(pv)),
        // Deleted while a claim has it: pv-protection holds it until it is released.
        (true, true, Some("Bound")) => Verdict::Keep,
        // Deleted before a claim had it: whoever provisioned it makes the PV again, or the volume is an orphan.
        (true, true, _) if leaving => Verdict::Mark(without_ours(pv)),
        (true, true, _) | (_, false, _) => Verdict::Keep,
    }
}

/// The PV's finalizers less ours.
pub(crate) fn without_ours(pv: &PersistentVolume) -> Vec<String> {
    pv.metadata.finalizers.iter().flatten().filter(|name| *name != FINALIZER).cloned().collect()
}

fn with_ours(pv: &PersistentVolume) -> Vec<String> {
    without_ours(pv).into_iter().chain([FINALIZER.to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const OTHER: &str = "kubernetes.io/pv-protection";

    fn pv(policy: &str, phase: Option<&str>, finalizers: &[&str], leaving: bool) -> PersistentVolume {
        let deletion = leaving.then_some("2026-01-01T00:00:00Z");
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
    fn a_released_volume_is_deleted_whether_or_not_its_pv_is_leaving() {
        for leaving in [false, true] {
            assert_eq!(judge(&pv("Delete", Some("Released"), &[OTHER, FINALIZER], leaving)), Verdict::Delete);
        }
    }

    #[test]
    fn retain_gives_the_finalizer_back_and_keeps_the_data() {
        for phase in ["Bound", "Released", "Available"] {
            let marked = pv("Retain", Some(phase), &[OTHER, FINALIZER], phase == "Released");
            assert_eq!(judge(&marked), Verdict::Mark(vec![OTHER.into()]));
            assert_eq!(judge(&pv("Retain", Some(phase), &[OTHER], false)), Verdict::Keep);
        }
    }

    #[test]
    fn a_policy_that_became_delete_is_marked_first() {
        let released = pv("Delete", Some("Released"), &[OTHER], false);
        assert_eq!(judge(&released), Verdict::Mark(vec![OTHER.into(), FINALIZER.into()]));
    }

    #[test]
    fn a_pv_made_by_hand_gets_what_was_forgotten() {
        let mut by_hand = pv("Delete", Some("Bound"), &[FINALIZER], false);
        by_hand.metadata.annotations = None;
        assert_eq!(judge(&by_hand), Verdict::Mark(vec![FINALIZER.into()]));
        let mut retained = pv("Retain", Some("Bound"), &[], false);
        retained.metadata.annotations = None;
        assert_eq!(judge(&retained), Verdict::Keep);
    }

    #[test]
    fn a_pv_that_leaves_without_our_finalizer_takes_no_data_with_it() {
        assert_eq!(judge(&pv("Delete", Some("Released"), &[OTHER], true)), Verdict::Leave);
        // A claim has it still.
        assert_eq!(judge(&pv("Delete", Some("Bound"), &[OTHER], true)), Verdict::Keep);
    }

    #[test]
    fn a_pv_in_use_waits() {
        assert_eq!(judge(&pv("Delete", Some("Bound"), &[FINALIZER], true)), Verdict::Keep);
        assert_eq!(judge(&pv("Delete", Some("Bound"), &[FINALIZER], false)), Verdict::Keep);
        assert_eq!(judge(&pv("Delete", None, &[FINALIZER], false)), Verdict::Keep);
    }

    #[test]
    fn a_pv_that_no_claim_ever_had_may_leave_without_its_data() {
        let available = pv("Delete", Some("Available"), &[FINALIZER], true);
        assert_eq!(judge(&available), Verdict::Mark(vec![]));
    }

    #[test]
    fn a_pv_without_any_field_is_kept() {
        assert_eq!(judge(&PersistentVolume::default()), Verdict::Keep);
    }

    proptest! {
        #[test]
        fn data_is_deleted_only_with_policy_phase_and_finalizer(
            policy in "Delete|Retain|Recycle|", phase in "Released|Bound|Available|Pending|Failed|",
            marked: bool, leaving: bool,
        ) {
            let finalizers: &[&str] = if marked { &[FINALIZER] } else { &[] };
            let verdict = judge(&pv(&policy, Some(&phase), finalizers, leaving));
            prop_assert_eq!(verdict == Verdict::Delete, policy == "Delete" && phase == "Released" && marked);
        }

        #[test]
        fn a_marked_pv_is_not_marked_again(
            policy in "Delete|Retain", phase in "Released|Bound|Available", marked: bool,
        ) {
            let finalizers: &[&str] = if marked { &[FINALIZER, OTHER] } else { &[OTHER] };
            let before = pv(&policy, Some(&phase), finalizers, false);
            if let Verdict::Mark(finalizers) = judge(&before) {
                let mut after = before;
                after.metadata.finalizers = Some(finalizers);
                prop_assert!(!matches!(judge(&after), Verdict::Mark(_)));
            }
        }
    }
}
