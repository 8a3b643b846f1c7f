//! What needs processes of its own: how many system calls things cost, and what a process leaves that is killed between
//! any two of them. Needs root and one scratch disk: the tests wait for it, so that none forks while another unmounts.

mod calls;
mod killed;
#[path = "../node/mod.rs"]
mod node;
