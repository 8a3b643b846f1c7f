//! Interface that stops pods while their volumes are cloned. The CSI plugin, which publishes the volumes, implements
//! it.

use std::error::Error;
use std::fmt;
use std::time::{Duration, Instant};

use crate::VolumeId;

/// Longest pause of pods, if a request does not set one.
pub const DEFAULT_PAUSE: Duration = Duration::from_secs(2);

pub trait PodFreezer: fmt::Debug + Send + Sync {
    /// Stops all processes of the pods that have one of the volumes, for `budget` at most. No other pod gets one of the
    /// filesystem volumes until the result is thawed or dropped.
    fn freeze(&self, ids: &[VolumeId], budget: Duration) -> Result<Box<dyn FrozenPods>, Box<dyn Error + Send + Sync>>;
}

/// Pods that are stopped. Dropping it thaws them.
pub trait FrozenPods {
    /// When the pods run again at the latest. `None` if no pod has a volume.
    fn deadline(&self) -> Option<Instant>;

    /// Lets the pods run again. Fails if a pod may have run before this call.
    fn thaw(self: Box<Self>) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// Why several volumes have no common instant.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    #[error("this program cannot freeze the pods that use the volumes; use a Granary node")]
    None,
    #[error("cannot freeze the pods that use the volumes")]
    Freeze(#[source] Box<dyn Error + Send + Sync>),
    #[error(
        "the pods that use the volumes would be frozen for more than {budget:?}; raise maxPause in the \
         VolumeGroupSnapshotClass, or write to fewer files during the snapshot"
    )]
    Late { budget: Duration },
    #[error(
        "the pods that use the volumes were thawed before the snapshots were taken; raise maxPause, or write less \
         during the snapshot"
    )]
    Thawed(#[source] Box<dyn Error + Send + Sync>),
}
