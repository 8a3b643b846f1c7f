//! Volumes of both modes, on a disk with room for all cases at once; and what else a tenant has of the node. The node is
//! one whose operator has chosen much of what can be left out.

mod claims;
mod confinement;
mod devices;
mod directories;
mod disruption;
mod network;
mod status;

use e2e::Suite;
use serde_json::json;
use std::process::ExitCode;

/// The cluster's addresses: of pods, and of Services.
const NETWORKS: [&str; 2] = ["172.20.16.0/20", "172.21.4.0/22"];
/// In bytes, what volumes do not get of the disk.
const KEEP_FREE: u64 = 3 << 30;

fn main() -> ExitCode {
    let suite = Suite::new("volumes").options(|options| {
        let [pods, services] = NETWORKS;
        let configuration = json!({
            "controlPlane": {"podNetwork": pods, "serviceNetwork": services},
            "storage": {"serial": "data", "keepFree": KEEP_FREE.to_string()},
        });
        options.configuration = Some(configuration.to_string());
    });
    let parts = [
        directories::cases,
        devices::cases,
        claims::cases,
        network::cases,
        confinement::cases,
        status::cases,
        disruption::cases,
    ];
    parts.into_iter().fold(suite, |suite, add| add(suite)).run()
}
