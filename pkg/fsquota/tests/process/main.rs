//! What needs processes of its own: two that allocate, one that is killed between any two system calls, one
//! on a kernel that lacks a call. Needs root and one scratch disk: the tests wait for it, so that none forks
//! while another unmounts.

mod allocation;
mod calls;
mod crash;
#[path = "../volumes/mod.rs"]
mod volumes;
