//! One node from the view of its users: volumes of both modes, the network, limits, restarts of killed programs, and a
//! full disk.

mod burst;
mod confinement;
mod database;
mod device;
mod directory;
mod dns;
mod kernel;
mod killed;
mod limits;
mod neighbours;
mod network;
mod ports;
mod privileges;
mod registry;
mod snapshot;
mod status;
mod volumes;

use e2e::{End, Suite};
use std::process::ExitCode;

fn main() -> ExitCode {
    Suite::new("node")
        .end(End::Signal)
        // These parts start their pods in parallel and run alone later.
        .part("volumes", volumes::run)
        .part("registry", registry::run)
        .part("burst", burst::run)
        .alone("neighbours", neighbours::run)
        .run()
}
