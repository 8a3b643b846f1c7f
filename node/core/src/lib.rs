//! The node's one program: PID 1 after the initramfs, and everything of ours that runs on a node.
//!
//! [`boot`] reads top to bottom: the kernel's settings, the data disk, the network, then the services in
//! the order in which they need each other.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod boot;
pub mod config;
pub mod host;
pub mod log;
pub mod network;
pub mod orphans;
pub mod power;
pub mod storage;
pub mod system;
