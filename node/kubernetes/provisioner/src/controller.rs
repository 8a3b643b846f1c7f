//! Starts the parts of the provisioner (see README.md), and runs the controllers of claims and PVs.

use std::collections::BTreeMap;
use std::future::{self, Future};
use std::hash::Hash;
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::runtime::controller::{self, Action, Controller};
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use supervisor::Context;
use tokio::sync::watch;
use tracing::{debug, warn};
use volume::{VolumeId, VolumeLocks, Volumes};

use crate::backoff::Attempts;
use crate::context::{Provisioner, RunError};
use crate::discard::queue::DiscardQueue;
use crate::error::Error;
use crate::events::Events;
use crate::listing::Listings;
use crate::notice::{self, NoticeQueue};
use crate::{Metrics, capacity, claim, discard, drift, node_events, pv, sweep};

#[derive(Clone)]
pub struct Settings {
    /// With the storage identity of this node.
    pub client: Client,
    /// The node's name, in Kubernetes and in the label `kubernetes.io/hostname`.
    pub node: String,
    pub store: Arc<dyn Volumes>,
    /// Number of concurrent passes over claims, and of those over PVs.
    pub parallel: NonZeroU16,
    /// Outlive a provisioner that is started again.
    pub metrics: Metrics,
    /// Number of detaches of a volume's device by other processes that the CSI plugin has revoked.
    pub revoked: watch::Receiver<BTreeMap<VolumeId, u64>>,
    /// Findings of other parts of the node.
    pub notices: NoticeQueue,
}

impl Settings {
    /// Enough passes to share log forces, few enough for threads.
    pub const PARALLEL: NonZeroU16 = NonZeroU16::new(8).expect("it is not zero");

    /// With unregistered metrics, and without notices.
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
    let provisioner = Arc::new(Provisioner {
        events: Events::new(client.clone(), &node),
        pvs: Api::all(client.clone()),
        classes: Api::all(client.clone()),
        attempts: Attempts::new(metrics.clone()),
        locks: VolumeLocks::default(),
        discards: DiscardQueue::default(),
        drifted: Mutex::default(),
        listings: Listings::default(),
        watched_pvs: Mutex::default(),
        store,
        node,
        client,
        metrics,
    });
    let shared = || Arc::clone(&provisioner);
    let context = shared();
    let claims = cx.start("claims", move |cx| {
        let api = Api::<PersistentVolumeClaim>::all(context.client.clone());
        let watched = Watched { api, what: "claims", parallel };
        let (reconcile, failed) = (claim::apply::reconcile_claim, claim::apply::failed);
        control(cx, watched, Arc::clone(&context), |_| {}, reconcile, failed)
    });
    let context = shared();
    let volumes = cx.start("volumes", move |cx| {
        let watched = Watched { api: context.pvs.clone(), what: "volumes", parallel };
        let keeper = Arc::clone(&context);
        let keep = move |pvs| *keeper.watched_pvs.lock().unwrap_or_else(PoisonError::into_inner) = Some(pvs);
        control(cx, watched, Arc::clone(&context), keep, pv::apply::reconcile_pv, pv::apply::failed)
    });
    let context = shared();
    cx.start("sweep", move |cx| sweep::run(cx, Arc::clone(&context)));
    let context = shared();
    cx.start("discard", move |cx| discard::apply::run(cx, Arc::clone(&context)));
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

type PassResult<K, E> = Result<(ObjectRef<K>, Action), controller::Error<E, watcher::Error>>;

/// The objects of one controller.
struct Watched<K> {
    api: Api<K>,
    what: &'static str,
    parallel: NonZeroU16,
}

/// Runs one controller until it is cancelled; running passes are completed.
///
/// An object is in the queue once, independent of its number of changes, and has one pass at a time.
async fn control<K, Pass>(
    cx: Context,
    Watched { api, what, parallel }: Watched<K>,
    provisioner: Arc<Provisioner>,
    keep: impl FnOnce(reflector::Store<K>),
    reconcile: fn(Arc<K>, Arc<Provisioner>) -> Pass,
    failed: fn(Arc<K>, &Error, Arc<Provisioner>) -> Action,
) -> Result<(), RunError>
where
    K: Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Unpin,
    Pass: Future<Output = Result<Action, Error>> + Send + 'static,
{
    let controller = Controller::new(api, watcher::Config::default())
        .with_config(controller::Config::default().concurrency(parallel.get()))
        .graceful_shutdown_on(cx.token().cancelled_owned());
    let objects = controller.store();
    keep(objects.clone());
    let pass = |object, provisioner| cx.round(reconcile(object, provisioner), Error::is_progress);
    let passes = controller.run(pass, failed, provisioner).for_each(|pass| {
        log(&cx, what, pass);
        future::ready(())
    });
    let ready = async {
        if objects.wait_until_ready().await.is_ok() {
            cx.healthy();
        }
    };
    futures::join!(passes, ready);
    if cx.is_cancelled() { Ok(()) } else { Err(RunError::WatchEnded(what)) }
}

fn log<K: Resource, E: std::error::Error + 'static>(cx: &Context, what: &str, pass: PassResult<K, E>) {
    match pass {
        // The error policy has logged and counted failed passes.
        Ok(_) | Err(controller::Error::ReconcilerFailed(..)) => {}
        Err(controller::Error::ObjectNotFound(object)) => debug!(%object, "object not found"),
        Err(error @ (controller::Error::QueueError(_) | controller::Error::RunnerError(_))) => {
            cx.report(false);
            let error: &dyn std::error::Error = &error;
            warn!(what, error, "watch failed, will continue");
        }
    }
}
