//! The CSI node plugin: publishes volumes at the paths that the kubelet names, and unpublishes them.
//!
//! The path of a call: `server` accepts connections of root only; `observed` counts, times and logs the call; `node`
//! has its method; `request` turns the message into a checked value; one operation at a time works on a volume; `host`
//! reads the state of the disk, the mounts and the loop devices; `plan` computes the remaining steps; `host` executes
//! them; `status` gives errors their codes.
//!
//! A filesystem volume is a directory, bind-mounted on the target. A block volume is an image with a loop device, whose
//! device node is bind-mounted on a file. Nothing is staged. The mount table defines what is published; the plugin
//! holds a descriptor of each published loop device, so that pods cannot detach it.
//!
//! With [`Plugin::with_controller`], the services of `controller` create, expand and delete volumes and snapshots for
//! clients of CSI. For objects of the cluster, they do so only if the node's own provisioner does not run.
//!
//! Requires Linux 5.14, as the volumes do.
#![forbid(unsafe_code)]

mod condition;
mod connection;
mod controller;
mod host;
mod identity;
mod layout;
mod leftovers;
mod localhost;
mod metrics;
mod node;
mod observed;
mod plan;
mod plugin;
mod registration;
mod request;
mod server;
mod status;
mod threads;

pub use controller::cluster_object::Provisioner;
pub use host::{
    ActError, CgroupError, DeviceObserver, Host, Inspection, Linux, LookError, LoopDevice, Opened, PathContents,
    RevokedDetach, WatchReport, guard,
};
pub use node::{Operation, call};
pub use plan::{Device, Elsewhere, PlanError, Shape, Step, Target, Volume, VolumeView};
pub use plugin::{Plugin, RunError, Settings, Start};
pub use request::{
    LookRequest, Mode, PathError, Publish, Purpose, Range, RequestError, Sharing, Stats, TargetPath, Unpublish,
};
pub use server::ServeError;
pub use status::{Call, Failure, PathRole};
