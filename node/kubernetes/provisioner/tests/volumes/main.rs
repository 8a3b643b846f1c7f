//! The provisioner's view of a real disk.

mod contract;
mod live;
#[path = "../../../volume/tests/node/mod.rs"]
mod node;
