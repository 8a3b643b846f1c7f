//! Starts the parts of the provisioner (see README.md).

use std::collections::BTreeMap;
use std::future;
use std::num::NonZeroU16;
use std::sync::{Arc, PoisonError};

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use supervisor::Context;
use tokio::sync::watch;
use volume::{VolumeId, Volumes};

use crate::context::{Provisioner, RunError};
use crate::controller::{Watched, control};
use crate::notice::{self, NoticeQueue};
use crate::pv::object;
use crate::wake::woken;
use crate::{
    Metrics, arrival, capacity, claim, classes, discard, drift, group, health, node_events, pv, snapshot, sweep,
};

#[derive(Clone)]
pub struct Settings {
    /// Client with the storage identity of this node.
    pub client: Client,
    /// The node's name, in Kubernetes and in the label `kubernetes.io/hostname`.
    pub node: String,
    pub store: Arc<dyn Volumes>,
    /// Maximum number of concurrent passes of each controller.
    pub parallel: NonZeroU16,
    /// Metrics, which stay when the provisioner is started again.
    pub metrics: Metrics,
    /// Number of detaches per volume by other processes that the CSI plugin has revoked.
    pub revoked: watch::Receiver<BTreeMap<VolumeId, u64>>,
    pub notices: NoticeQueue,
}

impl Settings {
    /// Default of `parallel`: enough passes to share log forces, few enough for threads.
    pub const PARALLEL: NonZeroU16 = NonZeroU16::new(10).expect("it is not zero");

    /// Settings with unregistered metrics and without notices.
    pub fn new(client: Client, node: String, store: Arc<dyn Volumes>) -> Self {
        let revoked = watch::Sender::default().subscribe();
        let (_, notices) = notice::notices();
        Self { client, node, store, parallel: Self::PARALLEL, metrics: Metrics::default(), revoked, notices }
    }
}

/// Runs until it is cancelled. Healthy when both controllers have listed their objects. Waits for an API server that is
/// not reachable.
pub async fn run(cx: Context, settings: Settings) -> Result<(), RunError> {
    let Settings { client, node, store, parallel, metrics, revoked, notices } = settings;
    let provisioner = Arc::new(Provisioner::new(client, node, store, metrics));
    let shared = || Arc::clone(&provisioner);
    let context = shared();
    let claims = cx.start("claims", move |cx| {
        let api = Api::<PersistentVolumeClaim>::all(context.client.clone());
        let woken = Some(woken(Arc::clone(&context), Provisioner::wake_rollbacks).boxed());
        let watched = Watched { writer: Writer::default(), what: "claims", parallel, woken };
        *context.watched_claims.lock().unwrap_or_else(PoisonError::into_inner) = Some(watched.writer.as_reader());
        let (observer, keeper) = (Arc::clone(&context), Arc::clone(&context));
        let events = watcher(api, watcher::Config::default())
            .modify(arrival::trim_claim)
            .inspect_ok(move |event| observer.ended.observe(event, &observer.node))
            .try_filter_map(move |event| future::ready(Ok(apiclient::only(event, |claim| keeper.is_relevant(claim)))));
        let (reconcile, failed) = (claim::apply::reconcile_claim, claim::apply::failed);
        let context = Arc::clone(&context);
        async move {
            // Wait for the PVs, which decide which bound claims are kept.
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = context.index.listed() => {}
            }
            control(cx, watched, events, context, reconcile, failed).await
        }
    });
    let context = shared();
    let volumes = cx.start("volumes", move |cx| {
        let woken = Some(woken(Arc::clone(&context), Provisioner::wake_removals).boxed());
        let watched = Watched { writer: Writer::default(), what: "volumes", parallel, woken };
        *context.watched_pvs.lock().unwrap_or_else(PoisonError::into_inner) = Some(watched.writer.as_reader());
        let (indexed, keeper) = (Arc::clone(&context), Arc::clone(&context));
        let events = watcher(context.pvs.clone(), watcher::Config::default())
            .inspect(move |item| indexed.index.update(item))
            .modify(arrival::trim_pv)
            .try_filter_map(move |event| {
                let is_ours = |pv: &_| object::volume_of(pv, &keeper.node).is_some() || object::is_incomplete(pv);
                future::ready(Ok(apiclient::only(event, is_ours)))
            });
        control(cx, watched, events, Arc::clone(&context), pv::apply::reconcile_pv, pv::apply::failed)
    });
    let context = shared();
    cx.start("snapshots", move |cx| snapshot::watch::run(cx, Arc::clone(&context), parallel));
    let context = shared();
    cx.start("groups", move |cx| group::watch::run(cx, Arc::clone(&context), parallel));
    let context = shared();
    cx.start("copies", move |cx| snapshot::copy::run(cx, Arc::clone(&context)));
    let context = shared();
    cx.start("classes", move |cx| classes::run(cx, Arc::clone(&context)));
    let context = shared();
    cx.start("events", move |cx| {
        let context = Arc::clone(&context);
        async move {
            context.events.run(cx).await;
            Ok::<(), RunError>(())
        }
    });
    let context = shared();
    cx.start("sweep", move |cx| sweep::run(cx, Arc::clone(&context)));
    let context = shared();
    cx.start("discard", move |cx| discard::apply::run(cx, Arc::clone(&context)));
    let context = shared();
    cx.start("health", move |cx| health::run(cx, Arc::clone(&context)));
    let context = shared();
    cx.start("drift", move |cx| drift::run(cx, Arc::clone(&context)));
    let context = shared();
    cx.start("capacity", move |cx| capacity::apply::run(cx, Arc::clone(&context)));
    let context = shared();
    cx.start("revoked", move |cx| node_events::revoked(cx, Arc::clone(&context), revoked.clone()));
    let context = shared();
    cx.start("notices", move |cx| node_events::notices(cx, Arc::clone(&context), notices.clone()));
    tokio::select! {
        () = cx.cancelled() => return Ok(()),
        ready = async { claims.healthy().await?; volumes.healthy().await } => ready?,
    }
    cx.healthy();
    cx.cancelled().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PersistentVolume;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;
    use crate::backoff::OUTAGE;
    use crate::error::{Error, api};
    use crate::fixture;

    /// Regression: the pauses grew to 5 minutes while the API server failed, and continued after its return.
    #[tokio::test(start_paused = true)]
    async fn every_object_has_a_pass_soon_after_an_outage() {
        let (provisioner, _) = fixture::unanswered(&[]);
        let metadata = |uid: &str| ObjectMeta { uid: Some(uid.to_owned()), ..ObjectMeta::default() };
        let claim = Arc::new(PersistentVolumeClaim { metadata: metadata("claim"), ..PersistentVolumeClaim::default() });
        // The objects of snapshots and groups share a policy for all types.
        let [pv, content] = ["pv", "content"]
            .map(|uid| Arc::new(PersistentVolume { metadata: metadata(uid), ..PersistentVolume::default() }));
        for _ in 0..20 {
            let error = Error::Api(api("send a request")(kube::Error::LinesCodecMaxLineLengthExceeded));
            claim::apply::failed(Arc::clone(&claim), &error, Arc::clone(&provisioner));
            pv::apply::failed(Arc::clone(&pv), &error, Arc::clone(&provisioner));
            snapshot::apply::failed(Arc::clone(&content), &error, Arc::clone(&provisioner));
            for uid in ["claim", "pv", "content"] {
                let wait = provisioner.attempts.wait(uid).expect("a back-off");
                assert!(wait <= OUTAGE, "{uid}: {wait:?}");
            }
        }
    }
}
