//! Tests that need processes: numbers of system calls, and the state after a process was killed between
//! any two of them. Needs root and one scratch disk: the tests wait for it, so that none forks while another unmounts.
#![deny(unsafe_code)]

mod calls;
#[path = "../node/cgroup.rs"]
mod cgroup;
mod cloned;
mod frozen;
mod grouped;
mod killed;
#[path = "../node/mod.rs"]
mod node;
mod rollback;
#[path = "../store/sys.rs"]
#[expect(unsafe_code, reason = "nix has no safe wrapper of these system calls")]
#[allow(dead_code, reason = "the other functions are for the tests of the store")]
mod sys;
mod thin;
mod trees;
