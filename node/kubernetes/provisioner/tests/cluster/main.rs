//! The provisioner against a real API server, with the PV controller that binds claims. The disk is a fake; the tests
//! play kubelet, and the scheduler except in `scheduling`.

mod burst;
mod by_hand;
mod capacity;
mod claims;
mod comparison;
mod deletion;
mod expansion;
mod faults;
mod kills;
mod node;
mod scheduling;

use std::process::ExitCode;

use envtest::{Failure, Suite};
use units::{Bytes, Inodes};
use volume::{Claim, Mode, Record, State, VolumeId};

macro_rules! suite {
    ($($module:ident::$case:ident),* $(,)?) => {
        Suite::new()$(.case(stringify!($case), $module::$case))*
    };
}

fn main() -> ExitCode {
    let suite = suite![
        claims::a_claim_gets_a_volume_with_what_it_asked_for,
        claims::a_block_claim_gets_a_disk_as_its_class_says,
        claims::a_claim_of_another_node_is_left_alone,
        claims::what_cannot_be_honoured_is_refused_by_name,
        claims::a_claim_that_does_not_fit_goes_back_to_the_scheduler,
        claims::a_generic_ephemeral_volume_goes_with_its_pod,
        expansion::a_filesystem_grows_without_kubelet,
        expansion::a_disk_that_no_pod_has_grows_without_kubelet,
        expansion::a_disk_that_a_pod_has_waits_for_kubelet,
        expansion::a_disk_whose_pod_goes_is_finished_without_kubelet,
        expansion::a_request_that_was_too_large_can_be_taken_back,
        expansion::an_expansion_goes_on_beside_other_changes_of_its_claim,
        expansion::an_expansion_that_was_cut_short_is_finished,
        deletion::a_deleted_claim_takes_its_volume_along,
        deletion::a_pv_that_is_deleted_before_its_claim_leaks_no_data,
        deletion::retain_keeps_pv_and_data,
        deletion::a_deletion_that_became_retain_is_taken_back,
        deletion::a_second_pv_of_the_same_volume_keeps_its_data,
        deletion::a_pv_made_after_the_deletion_began_brings_the_data_back,
        deletion::a_volume_that_cannot_be_removed_holds_up_no_other,
        deletion::a_published_volume_is_kept_until_it_is_unpublished,
        claims::a_denied_call_is_an_event_on_its_pod,
        claims::a_revoked_detach_of_a_volume_is_reported,
        by_hand::an_orphan_is_adopted_by_a_pv_made_by_hand,
        by_hand::an_orphan_is_erased_by_a_pv_made_by_hand,
        by_hand::a_pv_with_missing_fields_is_ignored,
        comparison::a_staged_volume_whose_claim_is_gone_is_undone,
        comparison::a_staged_volume_whose_claim_is_there_is_finished,
        comparison::an_announced_volume_without_a_pv_is_reported_and_never_deleted,
        comparison::a_pv_without_a_volume_is_reported,
        comparison::a_file_that_counts_to_another_project_is_reported,
        comparison::an_empty_answer_of_the_api_server_deletes_nothing,
        comparison::the_api_server_may_be_away_for_a_while,
        faults::recovers_from_swallowed_responses,
        faults::recovers_from_cut_responses,
        faults::recovers_from_late_responses,
        faults::recovers_from_a_burst_of_429,
        faults::recovers_from_a_burst_of_500,
    ];
    // From here on there is a Node.
    let suite = capacity::cases(suite);
    let suite = scheduling::cases(suite);
    // These leave claims and PVs behind.
    let suite = kills::cases(suite);
    burst::cases(suite).run()
}

fn id_of(uid: &str) -> Result<VolumeId, Failure> {
    Ok(format!("pvc-{uid}").parse()?)
}

fn record(claim: Claim, class: &str, state: State) -> Record {
    Record {
        claim,
        class: class.to_owned(),
        mode: Mode::Filesystem { inodes: Inodes::new(1 << 19) },
        size: Bytes::GIB,
        project: fsquota::ProjectId::new(7).expect("an ID"),
        state,
    }
}
