//! The requirements of the CSI specification and of csi-sanity for a node plugin. README.md lists the exceptions.

mod access;
mod at_once;
mod block;
mod drawn;
mod expand;
mod identity;
mod malformed;
mod publish;
mod registration;
mod restart;
mod stats;
mod targets;
mod unpublish;
mod wire;
