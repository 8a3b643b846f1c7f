//! The store on a real XFS with project quotas. Needs root and a scratch disk.

mod closing;
mod deleting;
mod growing;
mod making;
#[path = "../node/mod.rs"]
mod node;
mod together;
