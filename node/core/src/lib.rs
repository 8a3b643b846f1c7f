//! The node's program: PID 1 after the initramfs, and all services that are part of Granary.
//!
//! [`boot`] reads from top to bottom: the configuration ([`source`]), the kernel's settings, the data disk, the
//! network, then the services in the order of their dependencies.
//!
//! Control of a running node: SIGTERM or the power button shuts it down, SIGINT (Ctrl-Alt-Del) restarts the machine,
//! SIGUSR1 restarts the CSI plugin and the provisioner ([`restart`]). [`status`] shows the node's state.
#![forbid(unsafe_code)]

pub mod boot;
pub mod certificates;
pub mod command_line;
mod control_plane;
pub mod disk;
pub mod disk_health;
mod dns;
pub mod drivers;
pub mod error;
mod esp;
#[cfg(test)]
mod example;
pub mod guard;
pub mod host;
mod image_gc;
pub mod images;
pub mod join;
pub mod kernel;
pub mod log;
mod member;
pub mod mesh;
pub mod metrics;
pub mod modules;
pub mod mounts;
pub mod orphans;
pub mod plugins;
pub mod power;
pub mod restart;
pub mod source;
pub mod status;
pub mod storage;
pub mod system;
pub mod timekeeping;
pub mod uplink;
mod worker;
