//! Volumes of both modes, on a disk with room for all cases at once; and what else a tenant has of the node.

mod claims;
mod devices;
mod directories;
mod disruption;
mod network;
mod status;

use e2e::Suite;
use std::process::ExitCode;

fn main() -> ExitCode {
    let parts = [directories::cases, devices::cases, claims::cases, network::cases, status::cases, disruption::cases];
    parts.into_iter().fold(Suite::new("volumes"), |suite, add| add(suite)).run()
}
