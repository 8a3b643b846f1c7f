//! Rollbacks of which no claim has the request, as a part of [`crate::sweep`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cluster::claim::ROLLBACK;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, ResourceExt as _};
use tokio::time::{Instant, timeout_at};
use tracing::{info, warn};
use volume::{Record, Rollback, VolumeId};

use crate::context::Provisioner;
use crate::error::{ApiError, Error, api};
use crate::listing::list_each;
use crate::sweep::round::Failed;

/// How long one sweep waits for passes over rollbacks. Without a wait, the first sweep would leave out volumes whose
/// first passes run at the same time. A disk call of a pass may not end, and the volumes behind would wait.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

impl Provisioner {
    /// Whether the claim still has the request of this rollback. Any other claim may name the snapshot, too.
    pub(crate) async fn has_request(&self, kept: &VolumeId, record: &Record) -> Result<bool, ApiError> {
        Ok(self.requests(&record.claim.namespace).await?.contains(&request(kept, record)))
    }

    /// The requests for rollbacks in a namespace.
    async fn requests(&self, namespace: &str) -> Result<BTreeSet<(String, String)>, ApiError> {
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), namespace);
        let mut requests = BTreeSet::new();
        let add = |claim: PersistentVolumeClaim| {
            requests.extend(claim.uid().zip(claim.annotations().get(ROLLBACK).cloned()));
        };
        list_each(&claims, add).await.map_err(api("list the claims of a snapshot"))?;
        Ok(requests)
    }

    /// Ends rollbacks whose request is gone: a user has removed the request together with the annotation of the node,
    /// the claim was deleted, or a pass ended before it wrote the end into the record. No pass over a claim would end
    /// these.
    pub(crate) async fn sweep_rollbacks(&self, rollbacks: &BTreeMap<VolumeId, Record>, failed: &mut Failed) {
        let mut namespaces = BTreeMap::<_, Vec<_>>::new();
        for (kept, record) in rollbacks {
            namespaces.entry(&record.claim.namespace).or_default().push((kept, record));
        }
        let deadline = Instant::now() + LONGEST_WAIT;
        for (namespace, rollbacks) in namespaces {
            let requests = match self.requests(namespace).await {
                Ok(requests) => requests,
                Err(error) => {
                    failed.push((None, Error::Api(error)));
                    continue;
                }
            };
            for (kept, record) in rollbacks {
                // Most rollbacks have a request, and wait for the pods of their volumes.
                if requests.contains(&request(kept, record)) {
                    continue;
                }
                if let Err(error) = self.sweep_rollback(kept, record, deadline).await {
                    failed.push((Some(kept.clone()), error));
                }
            }
        }
    }

    async fn sweep_rollback(&self, kept: &VolumeId, listed: &Record, deadline: Instant) -> Result<(), Error> {
        let Some(Rollback { volume, .. }) = listed.rollback() else { return Ok(()) };
        // Passes over the claim have the first lock, those over the content the second one. No pass waits for both
        // locks.
        let locks = async { (self.locks.lock(volume).await, self.locks.lock(kept).await) };
        let Ok(guards) = timeout_at(deadline, locks).await else {
            warn!(volume = %volume, kept = %kept, "rollback without a request not ended: a pass has its volume; the next sweep continues");
            return Ok(());
        };
        let Some(record) = self.snapshot_record(kept).await? else { return Ok(()) };
        // Check again: a pass may have run since then.
        if record.rollback().is_none() || self.has_request(kept, &record).await? {
            return Ok(());
        }
        let is_exchanged = record.is_exchanged();
        if is_exchanged {
            self.end_exchanged(kept, &record).await?;
        } else {
            // The disk call has the locks, also if the sweep is stopped: a claim may request this rollback again.
            let (removed, _guards) =
                self.on_volume(kept, move |store, kept| (store.remove_snapshot(kept), guards)).await?;
            // The next sweep continues.
            if removed.as_ref().is_err_and(volume::Error::is_locked) {
                return Ok(());
            }
            removed.map_err(Error::Store)?;
        }
        info!(volume = %volume, kept = %kept, is_exchanged, "rollback without a request ended");
        Ok(())
    }
}

/// Request of a rollback: the UID of the claim, and the value of its annotation.
fn request(kept: &VolumeId, record: &Record) -> (String, String) {
    (record.claim.uid.clone(), kept.to_string())
}
