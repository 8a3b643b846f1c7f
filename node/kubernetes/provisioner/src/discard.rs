//! Removes the data of volumes whose PV is gone, in the background of everything else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use supervisor::Context;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};
use volume::VolumeId;

use crate::backoff::{MOST, Retry};
use crate::controller::{OCCUPIED, Provisioner, RunError};
use crate::pvs::VolumeError;

/// Volumes that are removed at once. One pass over a volume does a bounded amount of work, and those that need another
/// pass wait behind the others: a large volume, or one that a process still changes, does not hold up the others.
const PARALLEL: usize = 4;

/// How old a list of PVs may be that data is removed for: volumes that go together share one.
const FRESH: Duration = Duration::from_secs(5);

/// Volumes in the trash whose PV is gone. Lost in a restart, found again by the comparison.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    volumes: Mutex<BTreeMap<VolumeId, Waiting>>,
    more: Notify,
}

/// A volume that waits to be removed.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// In the trash and without a PV.
    since: Instant,
    /// The end of its last pass, or the same.
    queued: Instant,
    /// Whether its inodes were looked at, as far as they are still there.
    is_checked: bool,
}

impl Pending {
    /// Removes the volume's data soon.
    pub(crate) fn add(&self, id: VolumeId) {
        let now = Instant::now();
        self.volumes()
            .entry(id)
            .and_modify(|waiting| *waiting = Waiting { since: now, queued: now, ..*waiting })
            .or_insert(Waiting { since: now, queued: now, is_checked: false });
        self.more.notify_one();
    }

    /// Puts the volume behind all others: one whose removal never ends takes its turn with them.
    fn requeue(&self, id: &VolumeId) {
        if let Some(waiting) = self.volumes().get_mut(id) {
            waiting.queued = Instant::now();
        }
    }

    /// Whether this is the volume's first pass.
    fn begin(&self, id: &VolumeId) -> bool {
        self.volumes().get_mut(id).is_some_and(|waiting| !std::mem::replace(&mut waiting.is_checked, true))
    }

    /// The volumes in the order in which they wait, and since when they are in the trash.
    fn in_order(&self) -> Vec<(VolumeId, Instant)> {
        let mut waiting: Vec<_> = self.volumes().iter().map(|(id, waiting)| (id.clone(), *waiting)).collect();
        waiting.sort_by_key(|(_, waiting)| waiting.queued);
        waiting.into_iter().map(|(id, waiting)| (id, waiting.since)).collect()
    }

    fn volumes(&self) -> MutexGuard<'_, BTreeMap<VolumeId, Waiting>> {
        // A map of names stays right if a thread panics beside it.
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes until it is cancelled.
pub(crate) async fn run(cx: Context, p: Arc<Provisioner>) -> Result<(), RunError> {
    let mut running = JoinSet::new();
    let mut at = BTreeSet::new();
    cx.healthy();
    while !cx.is_cancelled() {
        let mut wake = Instant::now() + MOST;
        for (id, since) in p.pending.in_order() {
            if at.contains(&id) {
                continue;
            }
            match p.attempts.wait(&attempts_key(&id)) {
                Some(left) => wake = wake.min(Instant::now() + left),
                None if running.len() < PARALLEL => {
                    at.insert(id.clone());
                    let p = Arc::clone(&p);
                    running.spawn(async move {
                        let ended = p.discard(&id, since).await;
                        (id, ended)
                    });
                }
                // The end of another one makes room.
                None => {}
            }
        }
        tokio::select! {
            () = cx.cancelled() => {}
            () = sleep_until(wake) => {}
            () = p.pending.more.notified() => {}
            Some(ended) = running.join_next() => {
                let (id, ended) = ended?;
                at.remove(&id);
                p.discarded(id, ended);
            }
        }
    }
    Ok(())
}

fn attempts_key(id: &VolumeId) -> String {
    format!("trash {id}")
}

impl Provisioner {
    /// Removes one volume for good, unless it has a PV. It waits since then.
    async fn discard(&self, id: &VolumeId, since: Instant) -> Result<(), VolumeError> {
        let _turn = loop {
            match self.locks.try_lock(id) {
                Some(turn) => break turn,
                None => sleep(OCCUPIED).await,
            }
        };
        // Somebody may have made another PV of it since it went into the trash: this is the last moment to see that.
        let moment = Instant::now().checked_sub(FRESH).map_or(since, |fresh| fresh.max(since));
        let listing = self.listings.since(moment, &self.volumes, &self.node).await?;
        let (volume, standing) = (id.clone(), listing.of_volume(id));
        if standing.is_empty() {
            if self.pending.begin(id) {
                self.look_for_drift(id).await?;
            }
            match self.on_disk(move |store| store.discard(&volume)).await? {
                Ok(_) => info!(volume = %id, "deleted volume removed"),
                Err(error @ volume::Error::Refused { source: volume::VolumeRefusal::NotRetired, .. }) => {
                    let error: &dyn std::error::Error = &error;
                    warn!(volume = %id, error, "volume is kept, somebody took it out of the trash");
                }
                Err(error) => return Err(VolumeError::Store(error)),
            }
        } else if let Some(pv) = standing.iter().find(|standing| !standing.is_deleted) {
            self.take_back(&pv.name, id).await?;
        }
        // A PV that is being deleted brings it here again.
        Ok(())
    }

    fn discarded(&self, id: VolumeId, ended: Result<(), VolumeError>) {
        match ended {
            Ok(()) => {
                self.attempts.succeeded(&attempts_key(&id));
                self.pending.volumes().remove(&id);
            }
            // The rest needs no pause, but others come first.
            Err(VolumeError::Store(error)) if error.is_shrinking() => {
                self.attempts.succeeded(&attempts_key(&id));
                self.pending.requeue(&id);
                let error: &dyn std::error::Error = &error;
                info!(volume = %id, error, "deleted volume removed in part");
            }
            Err(error) => {
                self.pending.requeue(&id);
                let Retry { attempt, .. } = self.attempts.failed(&attempts_key(&id));
                let error: &dyn std::error::Error = &error;
                warn!(volume = %id, error, attempt, "deleted volume not removed yet");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_volume_whose_removal_is_not_finished_waits_behind_the_others() {
        let pending = Pending::default();
        // In the order of their names, the first four would keep their turns for ever.
        let ids: Vec<VolumeId> =
            (1..=6).map(|number| format!("pvc-{number}").parse().expect("an identifier")).collect();
        for id in &ids {
            pending.add(id.clone());
            tokio::time::advance(FRESH).await;
        }
        let order = || pending.in_order().into_iter().map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(order(), ids);
        for id in &ids[..PARALLEL] {
            tokio::time::advance(FRESH).await;
            pending.requeue(id);
        }
        assert_eq!(order(), [&ids[PARALLEL..], &ids[..PARALLEL]].concat());
        // Since when it is in the trash decides which list of PVs is recent enough.
        let since: Vec<_> = pending.in_order().into_iter().map(|(_, since)| since).collect();
        assert!(since[0] > since[2], "{since:?}");
    }
}
