//! Publishes findings of other parts of the node as events.

use std::collections::BTreeMap;
use std::sync::Arc;

use supervisor::Context;
use tokio::sync::watch;
use volume::VolumeId;

use crate::context::{Provisioner, RunError};
use crate::notice::{Notice, NoticeQueue};

/// Publishes an event for each notice until it is cancelled.
pub(crate) async fn notices(cx: Context, provisioner: Arc<Provisioner>, queue: NoticeQueue) -> Result<(), RunError> {
    let events = &provisioner.events;
    cx.healthy();
    loop {
        let notice = tokio::select! {
            () = cx.cancelled() => return Ok(()),
            notice = queue.next() => notice,
        };
        match notice {
            Some(Notice::Denied { pod, container, operation, call }) => {
                events.denied(&pod, &container, operation, call);
            }
            Some(Notice::LimitsAdvisory { reason }) => events.limits_advisory(&provisioner.node, &reason),
            // All senders are gone.
            None => {
                cx.cancelled().await;
                return Ok(());
            }
        }
    }
}

/// Publishes an event for each volume whose number of revoked detaches grew, until it is cancelled. Earlier detaches
/// are only in the log and the metric of the CSI plugin.
pub(crate) async fn revoked(
    cx: Context,
    provisioner: Arc<Provisioner>,
    mut revoked: watch::Receiver<BTreeMap<VolumeId, u64>>,
) -> Result<(), RunError> {
    let mut reported = revoked.borrow_and_update().clone();
    cx.healthy();
    loop {
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            changed = revoked.changed() => if changed.is_err() {
                cx.cancelled().await;
                return Ok(());
            }
        }
        let counts = revoked.borrow_and_update().clone();
        for (id, count) in &counts {
            if reported.get(id) != Some(count)
                && let Some(pv) = provisioner.watched_pv_of(id)
            {
                provisioner.events.detach_revoked(&pv);
            }
        }
        reported = counts;
    }
}
