//! Retries removals and rollbacks that failed because a pod had the volume, when the volume is unpublished.
//!
//! A notification that precedes the record of the failure begins a new back-off of a second: the pass may have looked
//! at the volume before. A receiver that has lost notifications acts as if each volume had one. No state is kept: the
//! index and the watches have the objects, and the back-off of an object whether it waits.

use std::sync::{Arc, PoisonError};

use futures::{Stream, StreamExt as _, stream};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::sync::broadcast::error::RecvError;
use volume::VolumeId;

use crate::backoff::Retry;
use crate::context::Provisioner;
use crate::discard::apply::backoff_key;
use crate::error::Error;
use crate::rollback;
use crate::rollback::plan::Step;

/// Objects that wait for an unpublish, when a target of their volume is removed. `wake` ends the back-off of those of a
/// volume, or of all volumes, and returns them.
pub(crate) fn woken<Object>(
    provisioner: Arc<Provisioner>,
    wake: fn(&Provisioner, Option<&VolumeId>) -> Vec<Object>,
) -> impl Stream<Item = Object> {
    let unpublished = stream::unfold(provisioner.store.calls().unpublishes(), |mut unpublishes| async move {
        let id = match unpublishes.recv().await {
            Ok(id) => Some(id),
            Err(RecvError::Lagged(_)) => None,
            Err(RecvError::Closed) => return None,
        };
        Some((id, unpublishes))
    });
    unpublished.flat_map(move |id| stream::iter(wake(&provisioner, id.as_ref())))
}

impl Provisioner {
    /// Counts the failure of a removal. An unpublish ends the back-off if the volume was in use.
    pub(crate) fn removal_failed(&self, key: &str, error: &Error) -> Retry {
        if error.is_in_use() { self.attempts.failed_until_woken(key) } else { self.attempts.pass_failed(key, error) }
    }

    /// Ends the back-off of the removals of a volume, or of all volumes, that wait for an unpublish, also of data in
    /// the trash. Returns their PVs.
    pub(crate) fn wake_removals(&self, id: Option<&VolumeId>) -> Vec<ObjectRef<PersistentVolume>> {
        let woken: Vec<_> = if let Some(id) = id {
            if self.attempts.wake(&backoff_key(id)) {
                self.discards.added.notify_one();
            }
            self.index.deleted(id).into_iter().filter(|(_, uid)| self.attempts.wake(uid)).collect()
        } else {
            let keys = self.attempts.wake_all(|key| !rollback::apply::is_backoff_key(key));
            self.discards.added.notify_one();
            self.index.all_deleted().into_iter().filter(|(_, uid)| keys.contains(uid)).collect()
        };
        woken.into_iter().map(|(name, _)| ObjectRef::new(&name)).collect()
    }

    /// Ends the back-off of the rollbacks of a volume, or of all volumes, that wait for an unpublish. Returns their
    /// claims.
    pub(crate) fn wake_rollbacks(&self, id: Option<&VolumeId>) -> Vec<ObjectRef<PersistentVolumeClaim>> {
        if let Some(id) = id {
            return self.wake_rollback(id).into_iter().collect();
        }
        let woken = self.attempts.wake_all(rollback::apply::is_backoff_key);
        let watched = self.watched_claims.lock().unwrap_or_else(PoisonError::into_inner);
        let claims = watched.as_ref().map(Store::state).unwrap_or_default();
        let is_woken = |claim: &PersistentVolumeClaim| rollback_key(claim).is_some_and(|key| woken.contains(&key));
        claims.iter().filter(|claim| is_woken(claim)).map(|claim| ObjectRef::from_obj(&**claim)).collect()
    }

    fn wake_rollback(&self, id: &VolumeId) -> Option<ObjectRef<PersistentVolumeClaim>> {
        let found = self.claim_of(id)?;
        let claim = ObjectRef::<PersistentVolumeClaim>::new(found.name.as_deref()?).within(found.namespace.as_deref()?);
        let watched = self.watched_claim(&claim)?;
        self.attempts.wake(&rollback_key(&watched)?).then_some(claim)
    }
}

/// Back-off key of the wait of the rollback that the claim requests.
fn rollback_key(claim: &PersistentVolumeClaim) -> Option<String> {
    let Step::RollBack { snapshot, kept } = rollback::plan::next(claim) else { return None };
    Some(rollback::apply::backoff_key(claim, &snapshot, kept.as_ref()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::pin::pin;
    use std::time::Duration;

    use envtest::FakeVolumes;
    use futures::FutureExt as _;
    use k8s_openapi::api::core::v1::PersistentVolumeStatus;
    use kube::runtime::watcher::Event;
    use tokio::time::advance;
    use volume::FINALIZER;

    use super::*;
    use crate::backoff::MOST;
    use crate::fixture::{self, NODE, id};
    use crate::listing;
    use crate::pv::apply::{failed, reconcile_pv};

    const UID: &str = "uid-pvc-1";
    const SECOND: Duration = Duration::from_secs(1);

    fn released() -> PersistentVolume {
        let mut pv = listing::tests::pv("pvc-1", "pvc-1", NODE);
        pv.metadata.uid = Some(UID.into());
        pv.metadata.finalizers = Some(vec![FINALIZER.into()]);
        pv.spec.as_mut().expect("a spec").persistent_volume_reclaim_policy = Some("Delete".into());
        pv.status = Some(PersistentVolumeStatus { phase: Some("Released".into()), ..Default::default() });
        pv
    }

    /// A volume that a pod has, and a provisioner that deletes its PV.
    fn in_use() -> (VolumeId, Arc<Provisioner>, Arc<FakeVolumes>) {
        let own = id("pvc-1");
        let (provisioner, disk) = fixture::unanswered(&[&own]);
        for event in [Event::Init, Event::InitApply(released()), Event::InitDone] {
            provisioner.index.update(&Ok(event));
        }
        disk.set_published(&own, Some(Path::new("/target")));
        (own, provisioner, disk)
    }

    /// Error of a pass over the PV.
    async fn pass(provisioner: &Arc<Provisioner>) -> Error {
        let pass = reconcile_pv(Arc::new(released()), Arc::clone(provisioner)).await;
        pass.expect_err("a mount shows the volume")
    }

    fn record(error: &Error, provisioner: &Arc<Provisioner>) {
        failed(Arc::new(released()), error, Arc::clone(provisioner));
    }

    #[tokio::test(start_paused = true)]
    async fn an_unpublish_ends_the_back_off_of_the_deletion_of_its_volume() {
        let (own, provisioner, disk) = in_use();
        let mut woken = pin!(woken(Arc::clone(&provisioner), Provisioner::wake_removals));
        for _ in 0..5 {
            advance(MOST).await;
            record(&pass(&provisioner).await, &provisioner);
        }
        let waits = || provisioner.attempts.wait(UID);
        disk.set_published(&id("pvc-2"), None);
        assert_eq!(woken.next().now_or_never(), None);
        assert!(waits() > Some(SECOND), "{:?}", waits());
        for _ in 0..2 {
            disk.set_published(&own, None);
        }
        assert_eq!(woken.next().now_or_never(), Some(Some(ObjectRef::new("pvc-1"))));
        assert_eq!(woken.next().now_or_never(), None, "one pass for each failure");
        advance(SECOND).await;
        assert_eq!(waits(), None);
    }

    /// Regression: if the failure before had another reason, the pause was the next one of that back-off, up to 5
    /// minutes; later only if the receiver was behind.
    #[tokio::test(start_paused = true)]
    async fn an_unpublish_between_the_look_and_the_record_of_the_failure_is_not_lost() {
        // A receiver can be 64 unpublishes behind.
        for others in [0, 100] {
            let (own, provisioner, disk) = in_use();
            let mut woken = pin!(woken(Arc::clone(&provisioner), Provisioner::wake_removals));
            for _ in 0..10 {
                record(&Error::NoUid, &provisioner);
            }
            advance(MOST).await;
            let error = pass(&provisioner).await;
            disk.set_published(&own, None);
            for _ in 0..others {
                disk.set_published(&id("pvc-2"), None);
            }
            assert_eq!(woken.next().now_or_never(), None, "no failure waits yet");
            record(&error, &provisioner);
            assert_eq!(provisioner.attempts.wait(UID), Some(SECOND), "{others}");
        }
    }

    /// Regression: the notification was lost, and the deletion waited for its back-off of up to 5 minutes.
    #[tokio::test(start_paused = true)]
    async fn a_receiver_that_is_behind_wakes_all_that_wait() {
        let (own, provisioner, disk) = in_use();
        let mut woken = pin!(woken(Arc::clone(&provisioner), Provisioner::wake_removals));
        record(&pass(&provisioner).await, &provisioner);
        disk.set_published(&own, None);
        // More than a receiver can be behind.
        for _ in 0..100 {
            disk.set_published(&id("pvc-2"), None);
        }
        assert_eq!(woken.next().now_or_never(), Some(Some(ObjectRef::new("pvc-1"))));
        assert_eq!(woken.next().now_or_never(), None, "one pass for each failure");
    }

    #[tokio::test(start_paused = true)]
    async fn an_unpublish_wakes_the_removal_of_data_that_was_in_use() {
        let own = id("pvc-1");
        let (provisioner, disk) = fixture::unanswered(&[&own]);
        let mut woken = pin!(woken(Arc::clone(&provisioner), Provisioner::wake_removals));
        let in_use = Error::Store(volume::Error::Published { id: own.clone(), target: "/target".into() });
        for (error, is_woken) in [(in_use, true), (Error::NoUid, false)] {
            provisioner.removal_failed(&backoff_key(&own), &error);
            disk.set_published(&own, None);
            assert_eq!(woken.next().now_or_never(), None, "the volume has no PV");
            assert_eq!(provisioner.discards.added.notified().now_or_never().is_some(), is_woken, "{error}");
        }
    }
}
