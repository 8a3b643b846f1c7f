//! The store on a real XFS with project quotas. Needs root and a scratch disk.
#![deny(unsafe_code)]

mod attacked;
#[path = "../node/cgroup.rs"]
mod cgroup;
mod cloning;
mod closing;
mod deleting;
mod groups;
mod growing;
mod held;
mod making;
#[path = "../node/mod.rs"]
mod node;
mod returned;
mod rollback;
mod snapshots;
#[expect(unsafe_code, reason = "nix has no safe wrapper of these system calls")]
mod sys;
mod thin;
mod together;
mod trees;
