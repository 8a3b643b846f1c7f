//! Tests that need processes: numbers of system calls, and the state after a process was killed between
//! any two of them. Needs root and one scratch disk: the tests wait for it, so that none forks while another unmounts.

mod calls;
mod cloned;
mod grouped;
mod killed;
#[path = "../node/mod.rs"]
mod node;
mod rollback;
mod trees;
