//! The provisioner's view of a real disk.

mod contract;
mod live;
mod node;
