//! The chart, rendered by Helm's own engine, against a real API server: the validity of every object, the rights of the
//! pods' accounts, the provisioning of a claim with these rights, and the reclaimer's leader election.

mod accounts;
mod lease;
mod objects;
mod volumes;

use std::process::ExitCode;

use envtest::suite;

fn main() -> ExitCode {
    suite![
        objects::the_class_is_the_one_of_granary_nodes,
        objects::invalid_values_are_rejected_by_name,
        objects::every_value_reaches_its_field,
        objects::no_probe_restarts_a_container,
        objects::the_api_server_accepts_every_expression,
        accounts::a_pod_writes_nothing_of_another_node,
        accounts::a_pod_creates_pvs_of_the_provisioners_shape_only,
        accounts::a_token_without_a_pod_writes_nothing,
        accounts::a_token_of_the_reclaimer_without_a_pod_writes_nothing,
        accounts::the_reclaimer_returns_claims_and_changes_nothing_else,
        accounts::the_reclaimer_names_a_node_only_where_none_is_named,
        accounts::the_reclaimer_moves_no_bound_claim_to_another_node,
        accounts::a_pod_with_another_identity_fails_with_the_reason,
        volumes::a_claim_becomes_a_volume,
        volumes::the_own_provisioner_ends_with_its_capacity,
        volumes::a_claim_with_immediate_binding_becomes_a_volume,
        lease::one_replica_of_the_reclaimer_acts,
        // The cases before this one have no CRDs of snapshots.
        accounts::a_pod_writes_only_contents_of_its_node,
        objects::nothing_is_left_when_the_objects_are_deleted,
        // This case creates the CRDs of snapshots, which the cluster of the other cases does not have.
        objects::every_object_is_valid_with_any_values,
    ]
    .run()
}
