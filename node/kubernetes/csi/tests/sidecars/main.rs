//! The sidecars of the CSI project with the Controller service and a real API server, started by the commands of
//! docs/operations/other-clusters.md. The disk is a fake. The tests act as the scheduler and the kubelet.

mod claims;
#[path = "../fake/mod.rs"]
#[allow(dead_code, reason = "server.rs uses the rest")]
mod fake;
#[path = "../kubelet/mod.rs"]
#[allow(dead_code, reason = "block.rs, node.rs and server.rs use the rest")]
mod kubelet;
mod node;
mod snapshots;

use std::process::ExitCode;

use envtest::suite;

fn main() -> ExitCode {
    // One after the other: csi-resizer also calls the plugin for the volumes of other nodes.
    suite![
        claims::a_claim_gets_a_volume_of_the_selected_node,
        claims::a_block_claim_gets_a_volume_that_a_pod_can_use,
        claims::a_claim_is_expanded,
        claims::a_claim_is_cloned,
        snapshots::a_snapshot_is_taken_restored_and_deleted,
        claims::a_sidecar_beside_the_own_provisioner_reports_the_remedy,
    ]
    .run()
}
