#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod arrival;
mod backoff;
mod capacity {
    pub(crate) mod apply;
    pub(crate) mod plan;
}
mod claim {
    pub(crate) mod apply;
    pub(crate) mod bound;
    pub(crate) mod conditions;
    pub(crate) mod created;
    pub(crate) mod ended;
    pub(crate) mod plan;
    pub(crate) mod source;
}
mod class;
mod classes;
mod context;
mod controller;
pub mod csinode;
mod discard {
    pub(crate) mod apply;
    pub(crate) mod queue;
}
mod disk_faults;
mod drift;
mod error;
mod event_queue;
mod events;
#[cfg(test)]
mod fixture;
mod group {
    pub(crate) mod apply;
    pub(crate) mod object;
    pub(crate) mod plan;
    pub(crate) mod watch;
}
mod health;
mod index;
mod inventory;
mod listing;
mod metrics;
mod modify {
    pub(crate) mod apply;
    pub(crate) mod class;
    pub(crate) mod plan;
    pub(crate) mod status;
}
mod node_events;
mod notice;
mod parts;
mod pv {
    pub(crate) mod apply;
    pub(crate) mod object;
    pub(crate) mod plan;
}
mod resize {
    pub(crate) mod apply;
    pub(crate) mod plan;
    pub(crate) mod status;
}
mod rollback {
    pub(crate) mod apply;
    mod kept_snapshot;
    pub(crate) mod plan;
    mod sweep;
}
mod snapshot {
    pub(crate) mod apply;
    pub(crate) mod copy;
    pub(crate) mod listing;
    pub(crate) mod object;
    pub(crate) mod plan;
    pub(crate) mod support;
    pub(crate) mod sweep;
    pub(crate) mod watch;
}
mod sweep;
mod topology;
mod wake;

pub use capacity::apply::{WithdrawError, withdraw_capacity};
use cluster::quantity;
pub use context::RunError;
pub use metrics::Metrics;
pub use notice::{Notice, NoticeQueue, Notices, Pod, notices};
pub use parts::{Settings, run};
pub use snapshot::support::{SnapshotRequirement, SnapshotSupport};
pub use volume::FINALIZER;
