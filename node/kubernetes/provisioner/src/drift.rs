//! Checks slowly whether all inodes of each volume count to its project. The owner of a file may change its project in
//! the initial user namespace; the node's BPF-LSM program denies this to pods. A finding means that the program does
//! not run, or that a file was changed before it did.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use supervisor::Context;
use tokio::task::JoinError;
use tokio::time::{Instant, sleep};
use tracing::{error, warn};
use volume::{Drifted, Record, State, VolumeId};

use crate::context::{Provisioner, RunError};

/// Minimum time between the checks of two volumes.
const PAUSE: Duration = Duration::from_mins(1);

/// The pause after a check is at least this many times as long as the check, to leave the disk to pods.
const SHARE: u32 = 20;

/// Checks one volume after the other until it is cancelled.
pub(crate) async fn run(cx: Context, provisioner: Arc<Provisioner>) -> Result<(), RunError> {
    cx.healthy();
    let mut last: Option<VolumeId> = None;
    loop {
        let started = Instant::now();
        last = provisioner.next_live(last.as_ref()).await?;
        if let Some(id) = &last {
            provisioner.check_projects(id).await?;
        }
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            () = sleep(started.elapsed().saturating_mul(SHARE).max(PAUSE)) => {}
        }
    }
}

impl Provisioner {
    /// The next announced volume in the order of names; after the last one the first. Not a volume that is being removed:
    /// a removal that hangs has the lock of a directory, and the check would wait for it. `discard` checks such a volume
    /// before.
    async fn next_live(&self, last: Option<&VolumeId>) -> Result<Option<VolumeId>, RunError> {
        let records = match self.on_disk(|store| store.records()).await? {
            Ok(records) => records.readable,
            Err(error) => {
                warn!(error = causes::of(&error), "volumes not listed");
                return Ok(None);
            }
        };
        self.drifted.lock().unwrap_or_else(PoisonError::into_inner).retain(|id, _| records.contains_key(id));
        let is_kept = |id: &VolumeId, record: &Record| record.state == State::Announced && !self.discards.has(id);
        let mut announced = records.iter().filter(|(id, record)| is_kept(id, record)).map(|(id, _)| id);
        let first = announced.clone().next();
        Ok(announced.find(|id| last.is_none_or(|last| *id > last)).or(first).cloned())
    }

    /// Reports inodes outside of the volume's project that the previous check did not find.
    pub(crate) async fn check_projects(&self, id: &VolumeId) -> Result<(), JoinError> {
        let found = match self.on_volume(id, |store, id| store.drifted(id)).await? {
            Ok(found) => found,
            Err(error) => {
                warn!(volume = %id, error = causes::of(&error), "projects of the volume's inodes not checked");
                return Ok(());
            }
        };
        let more = update(&mut self.drifted.lock().unwrap_or_else(PoisonError::into_inner), id, &found);
        if let (1.., Some((path, drift))) = (more, &found.first) {
            self.metrics.drifted(more);
            error!(
                volume = %id, inodes = found.inodes.get(), first = ?path, %drift,
                "inodes of the volume do not count to its limit"
            );
            self.events.drifted(&self.node, id, &found);
        }
        Ok(())
    }
}

/// Returns how many more inodes this check found than the previous one.
fn update(drifted: &mut BTreeMap<VolumeId, Drifted>, id: &VolumeId, found: &Drifted) -> u64 {
    let before = drifted.remove(id).map_or(0, |before| before.inodes.get());
    if found.inodes.get() > 0 {
        drifted.insert(id.clone(), found.clone());
    }
    found.inodes.get().saturating_sub(before)
}

#[cfg(test)]
mod tests {
    use fsquota::Drift;
    use units::Inodes;

    use super::*;
    use crate::discard::queue::EndOfPv;
    use crate::fixture::{self, id};

    /// Regression: a removal that waited for the lock of a file stopped the check of all volumes.
    #[tokio::test]
    async fn a_volume_that_is_being_removed_is_not_checked() {
        let [removed, kept] = ["pvc-1", "pvc-2"].map(id);
        let (provisioner, _disk) = fixture::unanswered(&[&removed, &kept]);
        let now = Instant::now();
        provisioner.discards.add(removed, EndOfPv { before: now, after: now });
        for last in [None, Some(&kept)] {
            assert_eq!(provisioner.next_live(last).await.expect("a list"), Some(kept.clone()));
        }
    }

    #[test]
    fn inodes_are_reported_once() {
        let mut drifted = BTreeMap::new();
        let id = "pvc-1".parse().expect("an identifier");
        let more = [0, 3, 3, 5, 4, 0, 2].map(|inodes| {
            let first = (inodes > 0).then(|| ("file".into(), Drift::NoProject));
            update(&mut drifted, &id, &Drifted { inodes: Inodes::new(inodes), first })
        });
        assert_eq!(more, [0, 3, 0, 2, 0, 0, 2]);
    }
}
