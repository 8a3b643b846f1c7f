//! What passes over single objects cannot see: disk and cluster are compared in both directions, at start and every ten
//! minutes.
//!
//! | on the disk | in the cluster | what is done |
//! |---|---|---|
//! | staged | claim waits | left to the claim's own pass |
//! | staged | no claim, PV | noted as announced |
//! | staged | neither | undone: no pod ever had it |
//! | announced | no PV | an orphan: reported, kept |
//! | in the trash | no PV | removed |
//! | nothing | PV | lost: reported |
//! | no record, or none that can be read | | reported, kept |
//!
//! An API server that knows no PV at all, of nobody, beside volumes that had one, is not believed: it may have lost its
//! data, or be another one. Then nothing is undone and nothing removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use supervisor::Context;
use tokio::task::JoinError;
use tokio::time::{Instant, sleep};
use tracing::{error, warn};
use volume::{Claim, ListError, LiveVolumeError, Record, Records, State, Strays, VolumeId};

use crate::api::{ApiError, api};
use crate::backoff::{delay, random};
use crate::controller::{Provisioner, RunError};
use crate::listing::Listing;
use crate::metrics::Orphan;
use crate::pvs::{TakenBack, VolumeError};
use crate::{claim, pv};

const INTERVAL: Duration = Duration::from_mins(10);

/// What the last comparison found that nobody may mend on a guess.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Announced volumes without a PV.
    pub(crate) orphans: BTreeSet<VolumeId>,
    /// Volumes whose record cannot be read.
    pub(crate) unreadable: BTreeSet<VolumeId>,
    /// Volumes that have a PV, and nothing on the disk.
    pub(crate) lost: BTreeSet<VolumeId>,
    /// What has no record.
    pub(crate) strays: Strays,
}

/// Why disk and cluster could not be compared.
#[derive(Debug, thiserror::Error)]
enum CompareError {
    #[error(transparent)]
    List(#[from] ListError),
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    TakeBack(#[from] VolumeError),
    #[error("work on the disk panicked")]
    Panicked(#[from] JoinError),
}

/// Compares until it is cancelled. Healthy after the first comparison.
pub(crate) async fn run(cx: Context, p: Arc<Provisioner>) -> Result<(), RunError> {
    let mut known = Findings::default();
    let mut failures = 0;
    loop {
        let wait = match p.compare(&known).await {
            Ok(found) => {
                failures = 0;
                known = found;
                cx.healthy();
                INTERVAL
            }
            Err(error) => {
                failures += 1;
                let error: &dyn std::error::Error = &error;
                warn!(error, attempt = failures, "disk and cluster not compared yet");
                delay(failures, random())
            }
        };
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            () = sleep(wait) => {}
        }
    }
}

impl Provisioner {
    /// Compares once; what is in `known` was reported before.
    ///
    /// The disk is read first: what is made after that has its PV, or its claim, when the API server is asked.
    async fn compare(&self, known: &Findings) -> Result<Findings, CompareError> {
        let (records, retired, strays) =
            self.on_disk(|store| (store.records(), store.retired(), store.strays())).await?;
        let (Records { readable, unreadable }, retired, strays) = (records?, retired?, strays?);
        let retired: BTreeSet<VolumeId> = retired.into_iter().collect();
        let listing = self.listings.since(Instant::now(), &self.volumes, &self.node).await?;
        if is_believed(&listing, &readable) {
            for (id, record) in readable.iter().filter(|(_, record)| record.state == State::Staged) {
                self.settle_staged(id, record).await?;
            }
            for id in retired.iter().filter(|id| listing.of_volume(id).is_empty()) {
                self.pending.add(id.clone());
            }
        } else {
            warn!("the API server knows no PV at all, the disk has volumes that had one: nothing is undone or removed");
        }
        let found = Findings {
            orphans: orphans(&readable, &retired, &listing),
            unreadable: unreadable.keys().cloned().collect(),
            lost: self.lost(&listing, &readable, &retired, known).await?,
            strays,
        };
        self.count(&found);
        self.report(&found, known, &readable).await;
        for (id, reason) in unreadable.iter().filter(|(id, _)| !known.unreadable.contains(id)) {
            let reason: &dyn std::error::Error = reason;
            error!(volume = %id, error = reason, "volume's record cannot be read; the volume is kept and closed");
        }
        Ok(found)
    }

    fn count(&self, found: &Findings) {
        let Findings { orphans, unreadable, lost, strays } = found;
        self.metrics.orphans(Orphan::Volume, orphans.len());
        self.metrics.orphans(Orphan::Record, unreadable.len());
        self.metrics.orphans(Orphan::Pv, lost.len());
        self.metrics.orphans(Orphan::Directory, strays.directories.len());
        self.metrics.orphans(Orphan::Project, strays.projects.len());
        self.attempts.forget();
    }

    /// Tells of what is new: it takes a person to mend it.
    async fn report(&self, found: &Findings, known: &Findings, records: &BTreeMap<VolumeId, Record>) {
        for id in found.orphans.difference(&known.orphans) {
            let Some(record) = records.get(id) else { continue };
            let Record { claim, size, class, mode, .. } = record;
            error!(
                volume = %id, %claim, claim_uid = claim.uid, limit = %size, %mode, class,
                "volume has data and no PV; it is kept: make a PV by hand to use it or to delete it"
            );
            self.events.orphaned(&self.node, id, record).await;
        }
        if found.strays != known.strays {
            for (place, name) in &found.strays.directories {
                error!(?place, name = ?name, "directory without a record in the volumes directory; it is kept");
            }
            for project in &found.strays.projects {
                warn!(%project, "quota without a record; it is kept");
            }
        }
    }

    /// A volume that the API server may not know of: noted if it has a PV, finished by its claim's own passes if it has
    /// one, undone else.
    async fn settle_staged(&self, id: &VolumeId, record: &Record) -> Result<(), CompareError> {
        // Its claim's pass is at it.
        let Some(_guard) = self.locks.try_lock(id) else { return Ok(()) };
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
            log_unsettled(id, &error);
        }
        Ok(())
    }

    /// Whether the claim is there and waits for this node.
    async fn waits(&self, claim: &Claim) -> Result<bool, ApiError> {
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), &claim.namespace);
        let found = claims.get_opt(&claim.name).await.map_err(api("look at a claim"))?;
        Ok(found.and_then(|found| claim::ours(&found, &self.node)).is_some_and(|ours| ours.claim.uid == claim.uid))
    }

    /// Volumes that have a PV that is to stay, and nothing on the disk. Each is looked at once more: it may have been
    /// made, or deleted, since the disk was read.
    async fn lost(
        &self,
        listing: &Listing,
        records: &BTreeMap<VolumeId, Record>,
        retired: &BTreeSet<VolumeId>,
        known: &Findings,
    ) -> Result<BTreeSet<VolumeId>, CompareError> {
        let mut lost = BTreeSet::new();
        for (id, standing) in listing.volumes().filter(|(id, _)| !records.contains_key(id) || retired.contains(id)) {
            // Whoever is at it knows better.
            let Some(_guard) = self.locks.try_lock(id) else { continue };
            let volume = id.clone();
            let held = self.on_disk(move |store| store.live_volume(&volume)).await?;
            let Some(reason) = held.err().filter(LiveVolumeError::is_missing) else { continue };
            for standing in standing.iter().filter(|standing| !standing.is_deleted) {
                match self.take_back(&standing.name, id).await {
                    Ok(TakenBack::Yes) => break,
                    Ok(TakenBack::PvGoes) => {}
                    // One volume that the disk does not give back is no reason not to look at the others.
                    Err(VolumeError::Store(error)) => log_unsettled(id, &error),
                    Err(error) => return Err(error.into()),
                    Ok(TakenBack::NotThere(pv)) => {
                        if lost.insert(id.clone()) && !known.lost.contains(id) {
                            log_lost(id, &standing.name, &reason);
                            self.events.lost(&pv, &reason).await;
                        }
                    }
                }
            }
        }
        Ok(lost)
    }
}

fn log_unsettled(id: &VolumeId, error: &(dyn std::error::Error + 'static)) {
    warn!(volume = %id, error, "volume not settled yet");
}

fn log_lost(id: &VolumeId, pv: &str, error: &(dyn std::error::Error + 'static)) {
    error!(volume = %id, pv, error, "PV without a volume on the disk");
}

/// See the module.
fn is_believed(listing: &Listing, records: &BTreeMap<VolumeId, Record>) -> bool {
    !listing.is_empty || records.values().all(|record| record.state == State::Staged)
}

/// Volumes that were announced, are not being deleted, and have no PV.
fn orphans(
    records: &BTreeMap<VolumeId, Record>,
    retired: &BTreeSet<VolumeId>,
    listing: &Listing,
) -> BTreeSet<VolumeId> {
    records
        .iter()
        .filter(|(_, record)| record.state == State::Announced)
        .map(|(id, _)| id)
        .filter(|id| !retired.contains(id) && listing.of_volume(id).is_empty())
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use fsquota::ProjectId;
    use k8s_openapi::api::core::v1::PersistentVolume;
    use serde_json::json;
    use units::{Bytes, Inodes};
    use volume::Mode;

    use super::*;

    const NODE: &str = "granary";

    fn id(text: &str) -> VolumeId {
        text.parse().expect("an identifier")
    }

    fn record(state: State) -> Record {
        Record {
            claim: Claim { uid: "u".into(), namespace: "n".into(), name: "c".into() },
            class: "local".into(),
            mode: Mode::Filesystem { inodes: Inodes::new(64) },
            size: Bytes::GIB,
            project: ProjectId::new(7).expect("an ID"),
            state,
        }
    }

    fn pv(name: &str) -> PersistentVolume {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "csi": {"driver": "local.granary.dev", "volumeHandle": name},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]},
                ]}]}},
            },
        }))
        .expect("a PV")
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
        let listing = Listing::of(&[pv("pvc-used"), pv("pvc-of-no-record")], NODE);
        let retired = [id("pvc-trash")].into();
        assert_eq!(orphans(&records, &retired, &listing), [id("pvc-orphan")].into());
    }

    #[test]
    fn an_api_server_that_lost_everything_is_not_believed() {
        let nothing = Listing::of(&[], NODE);
        let had_one = [(id("pvc-used"), record(State::Announced)), (id("pvc-staged"), record(State::Staged))].into();
        assert!(!is_believed(&nothing, &had_one));
        assert!(is_believed(&Listing::of(&[pv("pvc-other")], NODE), &had_one));
        // The first claim of a new cluster, cut short.
        assert!(is_believed(&nothing, &[(id("pvc-staged"), record(State::Staged))].into()));
    }
}
