//! The provisioner with a real API server and the PV controller, which binds claims. The disk is a fake. The tests act
//! as the kubelet, and as the scheduler except in `scheduling`.

mod burst;
mod by_hand;
mod capacity;
mod claims;
mod clones;
mod comparison;
mod deletion;
mod expansion;
mod faults;
mod groups;
mod health;
mod kills;
mod modification;
mod node;
mod requests;
mod rollback;
mod scheduling;
mod snapshots;

use std::process::ExitCode;

use envtest::{Failure, suite};
use rollback::quota;
use units::{Bytes, Inodes};
use volume::{Claim, Mode, Owner, Record, State, VolumeId};

fn main() -> ExitCode {
    let suite = suite![
        claims::a_claim_gets_a_volume_with_its_fields,
        claims::a_block_claim_gets_the_allocation_of_its_class,
        claims::a_claim_of_another_node_is_ignored,
        claims::unsupported_fields_are_rejected_by_name,
        claims::a_claim_that_does_not_fit_goes_back_to_the_scheduler,
        claims::a_generic_ephemeral_volume_is_deleted_with_its_pod,
    ];
    // These cases run at the same time, each with its own node, because they mostly wait.
    let suite = suite.at_once(suite![
        clones::a_claim_is_cloned_from_a_claim,
        clones::a_source_may_be_deleted_while_its_blocks_are_copied,
        clones::a_source_may_be_deleted_before_the_clone_has_its_pv,
        clones::claims_are_served_while_clones_take_long,
        clones::what_cannot_be_cloned_is_reported_with_both_claims,
    ]);
    let suite = suite![
        suite;
        // This case changes the CRDs of snapshots, which the cases before it do not have.
        groups::a_group_of_an_earlier_version_is_taken_and_deleted,
    ];
    // These cases run at the same time, each with its own node, because they mostly wait for passes that are tried
    // again after a second.
    let suite = suite.at_once(suite![
        snapshots::a_snapshot_is_taken_restored_and_deleted,
        // The storage of the cluster's node has no provisioner meanwhile.
        snapshots::a_node_writes_only_contents_that_it_serves,
        groups::a_node_writes_only_contents_of_groups_that_it_serves,
        rollback::a_node_annotates_only_claims_on_it,
        snapshots::copies_pause_while_they_wait_for_their_sources,
        snapshots::a_snapshot_of_files_is_taken_within_its_pause_and_restored_as_files,
        snapshots::a_snapshot_is_ready_before_its_blocks_are_copied,
        snapshots::a_retained_snapshot_is_shown_by_a_content_made_by_hand,
        snapshots::a_content_of_another_node_does_not_keep_a_snapshot,
        snapshots::what_cannot_be_taken_is_reported_in_status_and_events,
        snapshots::snapshots_are_taken_while_removals_take_long,
        snapshots::snapshots_without_a_content_are_removed_or_reported,
        snapshots::no_claim_gets_the_content_of_another_namespace,
        groups::a_group_is_taken_at_one_instant_and_deleted,
        groups::a_group_that_cannot_be_taken_is_reported,
        groups::members_without_a_group_are_removed_or_reported,
    ]);
    let suite = suite![
        suite;
        expansion::a_filesystem_grows_without_the_kubelet,
        expansion::an_attached_disk_waits_for_the_kubelet,
        expansion::a_disk_whose_pod_ends_is_finished_without_the_kubelet,
        expansion::a_request_that_is_too_large_can_be_lowered,
        expansion::an_expansion_continues_beside_other_changes_of_its_claim,
        expansion::an_interrupted_expansion_is_finished,
        deletion::retain_keeps_pv_and_data,
        deletion::retain_restores_the_data_without_a_sweep,
    ];
    // These cases run at the same time, each with its own node, because they wait for pauses of a second or more.
    let suite = suite.at_once(suite![
        deletion::a_pv_deleted_before_its_claim_leaks_no_data,
        deletion::a_second_pv_of_the_same_volume_keeps_its_data,
        deletion::a_pv_created_during_the_deletion_restores_the_data,
        deletion::a_volume_that_cannot_be_removed_delays_no_other,
        deletion::a_published_volume_is_kept_until_it_is_unpublished,
        requests::a_pv_created_before_the_end_of_the_former_keeps_the_data,
        requests::a_pv_that_ends_after_its_list_leaves_no_data,
        modification::a_block_claim_is_created_with_a_class_and_gets_another,
        modification::a_class_that_is_not_possible_changes_nothing,
        modification::an_interrupted_change_is_finished_and_a_filesystem_is_not_changed,
        health::faults_of_disk_and_volumes_are_reported,
    ]);
    let suite = suite![
        suite;
        requests::a_claim_and_its_deletion_cost_two_requests_each,
        requests::a_claim_does_not_wait_for_its_events,
        claims::a_denied_call_is_an_event_on_its_pod,
        claims::a_revoked_detach_of_a_volume_is_reported,
        claims::a_pv_that_a_populator_moved_belongs_to_its_claim,
        claims::a_populated_claim_that_does_not_fit_is_reported_and_retried,
        by_hand::an_orphan_is_adopted_by_a_manual_pv,
        by_hand::an_orphan_is_erased_by_a_manual_pv,
        by_hand::a_pv_with_missing_fields_is_ignored,
        comparison::a_staged_volume_whose_claim_exists_is_finished,
        comparison::an_announced_volume_without_a_pv_is_reported_and_kept,
        comparison::volumes_of_the_controller_service_are_kept,
        comparison::a_pv_without_a_volume_is_reported,
        comparison::a_file_that_counts_to_another_project_is_reported,
        comparison::an_empty_list_of_the_api_server_deletes_nothing,
    ];
    // These cases also run at the same time, because they wait for up to half a minute. The quota controller finds the
    // kinds of snapshots within half a minute after their CRDs: cases with a quota come long after these have changed.
    let suite = suite.at_once(suite![
        rollback::a_claim_returns_to_a_snapshot_and_back,
        rollback::files_return_to_a_snapshot_and_back,
        rollback::a_rollback_waits_for_the_end_of_a_clone_with_an_event,
        rollback::what_cannot_be_rolled_back_is_reported_and_changes_nothing,
        quota::a_quota_denies_a_rollback_before_it_begins,
        quota::rollbacks_do_not_bypass_a_quota,
        quota::an_id_that_a_user_writes_does_not_bypass_a_quota,
        rollback::a_snapshot_of_the_kept_name_delays_the_end_of_a_rollback,
        rollback::a_content_of_another_node_delays_the_end_of_a_rollback,
        rollback::a_kept_snapshot_that_a_user_annotates_stays,
        rollback::a_rollback_of_an_expanded_volume_begins_again,
        rollback::an_interrupted_rollback_is_served_once,
        rollback::a_request_for_another_snapshot_is_served_afterwards,
        rollback::a_rollback_without_a_request_is_ended_by_the_sweep,
        rollback::claims_are_served_while_removals_of_copies_take_long,
        requests::slow_work_is_announced_by_an_event,
        requests::an_event_of_success_waits_for_the_creation_of_a_pv,
        requests::an_event_of_success_waits_for_the_deletion_of_a_pv,
        rollback::a_rollback_waits_until_no_pod_has_the_volume,
        faults::recovers_from_swallowed_responses,
        faults::recovers_from_cut_responses,
        faults::recovers_from_late_responses,
        faults::recovers_from_a_burst_of_429,
        faults::recovers_from_a_burst_of_500,
    ]);
    let suite = suite![
        suite;
        // From here on, the Node object exists.
        capacity::capacity_is_published_when_the_node_exists,
        capacity::capacity_follows_the_classes,
        capacity::a_volume_reduces_the_capacity_until_it_is_deleted,
        capacity::a_burst_of_claims_is_published_once_a_second,
        capacity::stale_objects_are_deleted_and_unmanaged_ones_kept,
        capacity::changed_objects_are_repaired,
        capacity::objects_are_deleted_and_created_again_with_their_node,
        capacity::claims_and_capacity_are_served_after_the_api_server_was_down,
        capacity::metrics_count_operations,
        scheduling::a_pod_waits_for_its_nodes_capacity,
        scheduling::one_of_two_claims_that_do_not_fit_together_is_served,
        scheduling::a_claim_for_one_pod_makes_a_second_pod_wait,
        scheduling::pods_with_a_clone_run_on_the_node_of_its_source_only,
        scheduling::topology_is_checked_when_a_user_selects_the_node,
    ];
    // The following cases do not delete their claims and PVs.
    suite![kills::cases(suite); burst::a_burst_of_claims_is_served].run()
}

fn id_of(uid: &str) -> Result<VolumeId, Failure> {
    Ok(format!("pvc-{uid}").parse()?)
}

fn record(claim: Claim, class: &str, state: State) -> Record {
    Record {
        claim,
        owner: Owner::Provisioner,
        class: class.to_owned(),
        mode: Mode::Filesystem { inodes: Inodes::new(1 << 19) },
        size: Bytes::GIB,
        project: fsquota::ProjectId::new(7).expect("an ID"),
        cloning: None,
        io: volume::IoLimits::NONE,
        state,
    }
}
