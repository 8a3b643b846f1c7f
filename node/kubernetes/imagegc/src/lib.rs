//! Removes unused images when containerd's part of the data disk is nearly full.
//!
//! The part is a project limit of XFS. The kubelet reads the size of the whole file system (`statfs` of the mount), so its
//! own thresholds would be reached too late and are off; it only removes images that were unused for a week. Here, the
//! quota of the part decides, and images are removed by the Container Runtime Interface, the one that was unused for the
//! longest time first. Pinned images, which are those of the node image, stay.
#![forbid(unsafe_code)]

mod error;
mod gc;
mod metrics;
mod plan;
mod runtime;

pub use error::GcError;
pub use gc::ImageGc;
pub use metrics::Metrics;
