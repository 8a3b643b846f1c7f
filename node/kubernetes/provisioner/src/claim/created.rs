//! PVs that passes over claims created.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use volume::VolumeId;

/// Time until the next pass over a claim that is not bound yet. If the PV is deleted before the claim is bound, the
/// claim does not change, so that no event starts a pass.
pub(crate) const UNTIL_BOUND: Duration = Duration::from_secs(30);

/// Volumes whose PVs were created or found in the last 30 seconds. Passes do not request these PVs again.
#[derive(Debug, Default)]
pub(crate) struct CreatedPvs(Mutex<HashMap<VolumeId, Instant>>);

impl CreatedPvs {
    pub(crate) fn add(&self, id: &VolumeId) {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recent.retain(|_, created| created.elapsed() < UNTIL_BOUND);
        recent.insert(id.clone(), Instant::now());
    }

    pub(crate) fn is_recent(&self, id: &VolumeId) -> bool {
        let recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recent.get(id).is_some_and(|created| created.elapsed() < UNTIL_BOUND)
    }
}
