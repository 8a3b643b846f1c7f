//! Looks, slowly, whether all inodes of each volume count to its project. In the initial user namespace, the owner of a
//! file may change that; the node's BPF-LSM program denies it to pods. A finding means that the program does not run, or
//! that a file was changed before it did.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use supervisor::Context;
use tokio::time::{Instant, sleep};
use tracing::{error, warn};
use volume::{Drifted, Record, State, VolumeId};

use crate::controller::{Provisioner, RunError};

/// The least time between two volumes, and the whole wait while there is none.
const PAUSE: Duration = Duration::from_mins(1);

/// How many times as long as a look the wait after it is: volumes with many files take longer, and the disk is for pods.
const SHARE: u32 = 20;

/// What was found in each volume, to report it once.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<BTreeMap<VolumeId, Drifted>>);

impl Known {
    /// Notes what a look found. How many inodes more than the one before.
    fn note(&self, id: &VolumeId, found: &Drifted) -> u64 {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.remove(id).map_or(0, |before| before.inodes.get());
        if found.inodes.get() > 0 {
            known.insert(id.clone(), found.clone());
        }
        found.inodes.get().saturating_sub(before)
    }

    /// Forgets the volumes that are gone.
    fn keep(&self, records: &BTreeMap<VolumeId, Record>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|id, _| records.contains_key(id));
    }
}

/// Looks at one volume after the other until it is cancelled.
pub(crate) async fn run(cx: Context, p: Arc<Provisioner>) -> Result<(), RunError> {
    cx.healthy();
    let mut last: Option<VolumeId> = None;
    loop {
        let begun = Instant::now();
        last = p.next_live(last.as_ref()).await?;
        if let Some(id) = &last {
            p.look_for_drift(id).await?;
        }
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            () = sleep(begun.elapsed().saturating_mul(SHARE).max(PAUSE)) => {}
        }
    }
}

impl Provisioner {
    /// The announced volume after this one, in the order of their names; after the last one the first.
    async fn next_live(&self, last: Option<&VolumeId>) -> Result<Option<VolumeId>, RunError> {
        let records = match self.on_disk(|store| store.records()).await? {
            Ok(records) => records.readable,
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                warn!(error, "volumes not listed");
                return Ok(None);
            }
        };
        self.drifted.keep(&records);
        let mut announced = records.iter().filter(|(_, record)| record.state == State::Announced).map(|(id, _)| id);
        let first = announced.clone().next();
        Ok(announced.find(|id| last.is_none_or(|last| *id > last)).or(first).cloned())
    }

    /// Looks at each inode of the volume, and reports those that do not count to its project and that the look before
    /// did not find.
    pub(crate) async fn look_for_drift(&self, id: &VolumeId) -> Result<(), tokio::task::JoinError> {
        let volume = id.clone();
        let found = match self.on_disk(move |store| store.drifted(&volume)).await? {
            Ok(found) => found,
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                warn!(volume = %id, error, "volume's inodes not looked at");
                return Ok(());
            }
        };
        let more = self.drifted.note(id, &found);
        if let (1.., Some((path, drift))) = (more, &found.first) {
            self.metrics.drifted(more);
            error!(
                volume = %id, inodes = found.inodes.get(), first = ?path, %drift,
                "inodes of the volume do not count to its limit"
            );
            self.events.drifted(&self.node, id, &found).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use fsquota::Drift;
    use units::Inodes;

    use super::*;

    fn found(inodes: u64) -> Drifted {
        let first = (inodes > 0).then(|| ("file".into(), Drift::NoProject));
        Drifted { inodes: Inodes::new(inodes), first }
    }

    #[test]
    fn inodes_are_reported_once() {
        let known = Known::default();
        let id = "pvc-1".parse().expect("an identifier");
        let more: Vec<u64> = [0, 3, 3, 5, 4, 0, 2].map(|inodes| known.note(&id, &found(inodes))).into();
        assert_eq!(more, [0, 3, 0, 2, 0, 0, 2]);
        known.keep(&BTreeMap::new());
        assert_eq!(known.note(&id, &found(2)), 2);
    }
}
