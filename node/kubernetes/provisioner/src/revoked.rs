//! Reports that some process tried to detach the block device of a published volume, which the CSI plugin revoked.

use std::collections::BTreeMap;
use std::sync::Arc;

use supervisor::Context;
use tokio::sync::watch;
use volume::VolumeId;

use crate::controller::{Provisioner, RunError};

/// Publishes an event for each volume whose count grew, until it is cancelled. What the plugin revoked before is in
/// its log and its metric.
pub(crate) async fn run(
    cx: Context,
    p: Arc<Provisioner>,
    mut revoked: watch::Receiver<BTreeMap<VolumeId, u64>>,
) -> Result<(), RunError> {
    let mut reported = revoked.borrow_and_update().clone();
    cx.healthy();
    loop {
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            changed = revoked.changed() => if changed.is_err() {
                // No plugin: nothing will be revoked.
                cx.cancelled().await;
                return Ok(());
            }
        }
        let counts = revoked.borrow_and_update().clone();
        for (id, count) in &counts {
            if reported.get(id) != Some(count)
                && let Some(pv) = p.seen_of(id)
            {
                p.events.detach_revoked(&pv).await;
            }
        }
        reported = counts;
    }
}
