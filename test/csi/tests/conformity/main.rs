//! What the CSI specification and csi-sanity ask of a node's plugin. README.md lists what is shown where.

mod access;
mod at_once;
mod block;
mod drawn;
mod expand;
mod identity;
mod invalid;
mod malformed;
mod publish;
mod registration;
mod restart;
mod stats;
mod targets;
mod unpublish;
mod wire;
