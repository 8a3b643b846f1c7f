//! Tests that need their own processes: concurrent allocation, kills between system calls, and missing system calls.
//! Requires root and a scratch disk. The tests run one after another, so that none forks while another unmounts.

mod allocation;
mod calls;
mod crash;
#[path = "../volumes/mod.rs"]
mod volumes;
