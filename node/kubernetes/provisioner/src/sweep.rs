//! What passes over single objects cannot see: the data of PVs that are gone, and records whose claim or PV is.
//!
//! Disk and cluster are compared at start and every ten minutes; deleted volumes are removed as soon as their PV is
//! gone, in the background of everything else.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use kube::api::ListParams;
use supervisor::Context;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::warn;
use volume::{Claim, Record, State, VolumeId};

use crate::backoff::{delay, random};
use crate::controller::{Provisioner, RunError, api};
use crate::{claim, pv};

const INTERVAL: Duration = Duration::from_mins(10);

/// Volumes in the trash whose PV is gone. Lost in a restart, found again by the comparison.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    volumes: Mutex<BTreeSet<VolumeId>>,
    more: Notify,
}

impl Pending {
    /// Removes the volume's data soon.
    pub(crate) fn add(&self, id: VolumeId) {
        self.set().insert(id);
        self.more.notify_one();
    }

    fn set(&self) -> MutexGuard<'_, BTreeSet<VolumeId>> {
        // A set of names stays right if a thread panics beside it.
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sweeps until it is cancelled.
pub(crate) async fn run(cx: Context, p: Arc<Provisioner>) -> Result<(), RunError> {
    let mut orphans = BTreeSet::new();
    let mut failures = 0;
    let mut compare_at = Instant::now();
    while !cx.is_cancelled() {
        if Instant::now() >= compare_at {
            orphans = p.compare(&orphans).await?;
            cx.healthy();
            compare_at = Instant::now() + INTERVAL;
        }
        failures = if p.discard_pending().await? { 0 } else { failures + 1 };
        let wake = if failures == 0 { compare_at } else { compare_at.min(Instant::now() + delay(failures, random())) };
        tokio::select! {
            () = cx.cancelled() => {}
            () = tokio::time::sleep_until(wake) => {}
            () = p.pending.more.notified(), if failures == 0 => {}
        }
    }
    Ok(())
}

impl Provisioner {
    /// Removes what is in the trash for good; whether nothing is left.
    async fn discard_pending(&self) -> Result<bool, RunError> {
        let waiting: Vec<VolumeId> = self.pending.set().iter().cloned().collect();
        let mut all = true;
        for id in waiting {
            let volume = id.clone();
            match self.on_disk(move |store| store.discard(&volume)).await? {
                Ok(_) => {
                    self.pending.set().remove(&id);
                }
                Err(reason) => {
                    all = false;
                    let error: &dyn std::error::Error = &reason;
                    warn!(volume = %id, error, "deleted volume not removed yet");
                }
            }
        }
        Ok(all)
    }

    /// Compares the records with the cluster. Returns the orphans; those in `known` were reported before.
    ///
    /// The records are read first: what is staged after that is not judged.
    async fn compare(&self, known: &BTreeSet<VolumeId>) -> Result<BTreeSet<VolumeId>, RunError> {
        let (records, retired) = self.on_disk(|store| (store.records(), store.retired())).await?;
        let (records, retired) = (records?, retired?);
        for (id, record) in records.iter().filter(|(_, record)| record.state == State::Staged) {
            self.settle_staged(id, record).await?;
        }
        // Without a resource version the answer is as new as the request.
        let volumes = self.volumes.list(&ListParams::default()).await.map_err(api("list the PVs"))?;
        let announced: BTreeSet<VolumeId> = volumes.iter().filter_map(|pv| pv::ours(pv, &self.node)).collect();
        for id in retired.iter().filter(|id| !announced.contains(id)) {
            self.pending.add(id.clone());
        }
        let orphans: BTreeSet<VolumeId> =
            orphans(records.iter(), &announced, &retired.into_iter().collect()).cloned().collect();
        for id in orphans.difference(known) {
            if let Some(Record { claim, size, class, .. }) = records.get(id) {
                warn!(
                    volume = %id, %claim, limit = %size, class,
                    "volume has data and no PV; it is kept: make a PV by hand to use it or to delete it"
                );
            }
        }
        Ok(orphans)
    }

    /// A volume that the API server may not know of: noted if it has a PV, finished by its claim's own passes if it has
    /// one, undone else.
    async fn settle_staged(&self, id: &VolumeId, record: &Record) -> Result<(), RunError> {
        if self.waits(&record.claim).await? {
            return Ok(());
        }
        // After the claim: a claim that was bound in between has its PV by now.
        let pv = self.volumes.get_opt(id.as_str()).await.map_err(api("look at a PV"))?;
        let volume = id.clone();
        let settled = if pv.is_some_and(|pv| pv::ours(&pv, &self.node).as_ref() == Some(id)) {
            self.on_disk(move |store| store.announce(&volume)).await?
        } else {
            self.on_disk(move |store| store.undo(&volume)).await?
        };
        if let Err(error) = settled {
            let error: &dyn std::error::Error = &error;
            warn!(volume = %id, error, "half-made volume not settled yet");
        }
        Ok(())
    }

    /// Whether the claim is there and waits for this node.
    async fn waits(&self, claim: &Claim) -> Result<bool, RunError> {
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), &claim.namespace);
        let found = claims.get_opt(&claim.name).await.map_err(api("look at a claim"))?;
        Ok(found.and_then(|found| claim::ours(&found, &self.node)).is_some_and(|ours| ours.claim.uid == claim.uid))
    }
}

/// Volumes that were announced, are not being deleted, and have no PV.
fn orphans<'a>(
    records: impl Iterator<Item = (&'a VolumeId, &'a Record)>,
    announced: &BTreeSet<VolumeId>,
    retired: &BTreeSet<VolumeId>,
) -> impl Iterator<Item = &'a VolumeId> {
    records
        .filter(|(_, record)| record.state == State::Announced)
        .map(|(id, _)| id)
        .filter(|id| !announced.contains(id) && !retired.contains(id))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fsquota::ProjectId;
    use units::{Bytes, Inodes};
    use volume::Mode;

    use super::*;

    fn id(text: &str) -> VolumeId {
        text.parse().expect("an identifier")
    }

    fn record(state: State) -> Record {
        Record {
            claim: Claim { uid: "u".into(), namespace: "n".into(), name: "c".into() },
            class: "local".into(),
            mode: Mode::Filesystem,
            size: Bytes::GIB,
            inodes: Inodes::new(64),
            project: ProjectId::new(7).expect("an ID"),
            state,
        }
    }

    #[test]
    fn only_announced_volumes_without_pv_and_not_in_the_trash_are_orphans() {
        let records: BTreeMap<_, _> = [
            (id("pvc-staged"), record(State::Staged)),
            (id("pvc-used"), record(State::Announced)),
            (id("pvc-trash"), record(State::Announced)),
            (id("pvc-orphan"), record(State::Announced)),
        ]
        .into();
        let announced = [id("pvc-used"), id("pvc-of-no-record")].into();
        let retired = [id("pvc-trash")].into();
        let found: Vec<_> = orphans(records.iter(), &announced, &retired).collect();
        assert_eq!(found, [&id("pvc-orphan")]);
    }
}
