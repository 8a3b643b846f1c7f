//! The provisioner's view of a real disk.

mod contract;
mod held;
mod node;
