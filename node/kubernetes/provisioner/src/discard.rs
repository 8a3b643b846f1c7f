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

/// Volumes that are removed at once: a large one, or one that somebody still has open, does not hold up the others.
const PARALLEL: usize = 4;

/// How old a list of PVs may be that data is removed for: volumes that go together share one.
const FRESH: Duration = Duration::from_secs(5);

/// Volumes in the trash whose PV is gone, since when. Lost in a restart, found again by the comparison.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    volumes: Mutex<BTreeMap<VolumeId, Instant>>,
    more: Notify,
}

impl Pending {
    /// Removes the volume's data soon.
    pub(crate) fn add(&self, id: VolumeId) {
        self.volumes().insert(id, Instant::now());
        self.more.notify_one();
    }

    fn volumes(&self) -> MutexGuard<'_, BTreeMap<VolumeId, Instant>> {
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
        let waiting = p.pending.volumes().clone();
        for (id, since) in waiting {
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
            match self.turns.take(id) {
                Some(turn) => break turn,
                None => sleep(OCCUPIED).await,
            }
        };
        // Somebody may have made another PV of it since it went into the trash: this is the last moment to see that.
        let moment = Instant::now().checked_sub(FRESH).map_or(since, |fresh| fresh.max(since));
        let listing = self.listings.since(moment, &self.volumes, &self.node).await?;
        let (volume, standing) = (id.clone(), listing.of_volume(id));
        if standing.is_empty() {
            match self.on_disk(move |store| store.discard(&volume)).await? {
                Ok(_) => info!(volume = %id, "deleted volume removed"),
                Err(error @ volume::Error::Refused { source: volume::Refusal::NotRetired, .. }) => {
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
            Err(error) => {
                let Retry { attempt, .. } = self.attempts.failed(&attempts_key(&id));
                let error: &dyn std::error::Error = &error;
                warn!(volume = %id, error, attempt, "deleted volume not removed yet");
            }
        }
    }
}
