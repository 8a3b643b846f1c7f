//! The chart, rendered by Helm's own engine, against a real API server: whether it takes every object, what it lets the
//! pods' accounts do, and whether claims become volumes with that.

mod accounts;
mod objects;
mod volumes;

use std::process::ExitCode;

use envtest::Suite;

macro_rules! suite {
    ($($module:ident::$case:ident),* $(,)?) => {
        Suite::new()$(.case(stringify!($case), $module::$case))*
    };
}

fn main() -> ExitCode {
    suite![
        objects::the_manifests_are_what_helm_makes_of_the_chart,
        objects::the_class_is_the_one_that_nodes_of_ours_have,
        objects::wrong_values_are_refused_by_name,
        objects::every_object_is_valid_whatever_is_chosen,
        objects::the_api_server_understands_every_expression,
        accounts::a_pod_writes_nothing_of_another_node,
        accounts::a_pod_makes_volumes_of_the_provisioners_shape_only,
        accounts::a_token_of_no_pod_writes_nothing,
        accounts::claims_of_any_node_are_given_back_and_nothing_else,
        accounts::a_pod_that_is_taken_for_another_is_told_so,
        volumes::a_claim_becomes_a_volume,
        objects::nothing_is_left_when_the_objects_are_deleted,
    ]
    .run()
}
