//! The table of contents: who watches what, and what all passes share. [`claims`] and [`pvs`] are the passes over single
//! objects, [`sweep`] compares disk and cluster, [`discard`] removes what is deleted, [`drift`] looks at the inodes of
//! volumes, [`publication`] tells the scheduler what room is left, [`revoked`] reports attempts to detach a volume's device,
//! [`notice`] what other parts of the node found.
//! Only they, and [`resize`], await the API server; the disk is worked on by threads that may wait.
//!
//! [`claims`]: crate::claims
//! [`publication`]: crate::publication
//! [`pvs`]: crate::pvs
//! [`resize`]: crate::resize
//! [`revoked`]: crate::revoked
//! [`notice`]: crate::notice

use std::collections::BTreeMap;
use std::future::{self, Future};
use std::hash::Hash;
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::runtime::controller::{self, Action, Controller};
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use supervisor::Context;
use tokio::sync::watch;
use tokio::task::{JoinError, spawn_blocking};
use tracing::{Span, debug, warn};
use volume::{VolumeId, VolumeLocks, Volumes};

use crate::backoff::Attempts;
use crate::discard::{self, Pending};
use crate::events::Events;
use crate::listing::Listings;
use crate::notice::{self, NoticeQueue};
use crate::{Metrics, claims, drift, publication, pv, pvs, revoked, sweep};

/// A claim whose PV somebody deletes before it is bound does not change, and nothing else would wake its pass. Once
/// it is bound, it is not ours any more.
pub(crate) const UNTIL_BOUND: Duration = Duration::from_secs(30);

/// Another pass is at the same volume.
pub(crate) const OCCUPIED: Duration = Duration::from_secs(1);

/// What a provisioner needs.
#[derive(Clone)]
pub struct Settings {
    /// With the storage identity of this node.
    pub client: Client,
    /// The node's name, in Kubernetes and in the label `kubernetes.io/hostname`.
    pub node: String,
    /// The node's volumes.
    pub store: Arc<dyn Volumes>,
    /// Claims that are worked on at once, and PVs likewise.
    pub parallel: NonZeroU16,
    /// What is done is counted here; they outlive a provisioner that is started again.
    pub metrics: Metrics,
    /// How many detaches of a volume's device by other processes the CSI plugin has revoked.
    pub revoked: watch::Receiver<BTreeMap<VolumeId, u64>>,
    /// What other parts of the node found.
    pub notices: NoticeQueue,
}

impl Settings {
    /// What is worked on at once unless somebody chooses: enough to share log forces, few enough for threads.
    pub const PARALLEL: NonZeroU16 = NonZeroU16::new(8).expect("it is not zero");

    /// With all that may be chosen as it is best for most, and metrics that nobody reads.
    pub fn new(client: Client, node: String, store: Arc<dyn Volumes>) -> Self {
        let revoked = watch::Sender::default().subscribe();
        let (_, notices) = notice::notices();
        Self { client, node, store, parallel: Self::PARALLEL, metrics: Metrics::default(), revoked, notices }
    }
}

/// Why the provisioner has to be started again.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A part of it ended for good.
    #[error("a part of the provisioner ended")]
    Part(#[from] supervisor::Ended),
    /// A watch ended, which it never does by itself.
    #[error("the watch of {0} ended")]
    WatchEnded(&'static str),
    /// A task panicked.
    #[error("a task of the provisioner panicked")]
    Panicked(#[from] JoinError),
}

/// All parts work on this.
pub(crate) struct Provisioner {
    pub(crate) node: String,
    pub(crate) client: Client,
    pub(crate) store: Arc<dyn Volumes>,
    pub(crate) volumes: Api<PersistentVolume>,
    pub(crate) classes: Api<StorageClass>,
    pub(crate) events: Events,
    pub(crate) attempts: Attempts,
    /// Volumes that some pass is at.
    pub(crate) locks: VolumeLocks,
    /// Volumes whose data goes.
    pub(crate) pending: Pending,
    /// Volumes with inodes that do not count to their projects.
    pub(crate) drifted: drift::Known,
    pub(crate) listings: Listings,
    pub(crate) metrics: Metrics,
    /// All PVs that the watch has seen.
    seen: Mutex<Option<reflector::Store<PersistentVolume>>>,
}

/// Provisions, expands and deletes until it is cancelled. Healthy once both controllers have seen the cluster.
///
/// # Errors
/// [`RunError`]; an API server that is away is waited for and is none.
pub async fn run(cx: Context, settings: Settings) -> Result<(), RunError> {
    let Settings { client, node, store, parallel, metrics, revoked, notices } = settings;
    let provisioner = Arc::new(Provisioner {
        events: Events::new(client.clone(), &node),
        volumes: Api::all(client.clone()),
        classes: Api::all(client.clone()),
        attempts: Attempts::new(metrics.clone()),
        locks: VolumeLocks::default(),
        pending: Pending::default(),
        drifted: drift::Known::default(),
        listings: Listings::default(),
        seen: Mutex::default(),
        store,
        node,
        client,
        metrics,
    });
    let part = |provisioner: &Arc<Provisioner>| Arc::clone(provisioner);
    let (of_claims, of_volumes) = (part(&provisioner), part(&provisioner));
    let (of_sweep, of_discard, of_capacity) = (part(&provisioner), part(&provisioner), part(&provisioner));
    let of_drift = part(&provisioner);
    let (of_revoked, of_notices) = (part(&provisioner), part(&provisioner));
    let claims = cx.start("claims", move |cx| {
        let api = Api::<PersistentVolumeClaim>::all(of_claims.client.clone());
        let watched = Watched { api, what: "claims", parallel };
        control(cx, watched, Arc::clone(&of_claims), |_| {}, claims::pass, claims::failed)
    });
    let volumes = cx.start("volumes", move |cx| {
        let watched = Watched { api: of_volumes.volumes.clone(), what: "volumes", parallel };
        let keeper = Arc::clone(&of_volumes);
        let keep = move |seen| *keeper.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
        control(cx, watched, Arc::clone(&of_volumes), keep, pvs::pass, pvs::failed)
    });
    cx.start("sweep", move |cx| sweep::run(cx, Arc::clone(&of_sweep)));
    cx.start("discard", move |cx| discard::run(cx, Arc::clone(&of_discard)));
    cx.start("drift", move |cx| drift::run(cx, Arc::clone(&of_drift)));
    cx.start("capacity", move |cx| publication::run(cx, Arc::clone(&of_capacity)));
    cx.start("revoked", move |cx| revoked::run(cx, Arc::clone(&of_revoked), revoked.clone()));
    cx.start("notices", move |cx| notice::run(cx, Arc::clone(&of_notices), notices.clone()));
    tokio::select! {
        () = cx.cancelled() => return Ok(()),
        ready = async { claims.healthy().await?; volumes.healthy().await } => ready?,
    }
    cx.healthy();
    cx.cancelled().await;
    Ok(())
}

/// How a pass ended.
type Pass<K, E> = Result<(ObjectRef<K>, Action), controller::Error<E, watcher::Error>>;

/// The objects of one controller.
struct Watched<K> {
    api: Api<K>,
    what: &'static str,
    parallel: NonZeroU16,
}

/// Runs one controller until it is cancelled; passes that are under way are finished.
///
/// An object waits in the queue once, however often it changes, and has one pass at a time: the queue is never longer
/// than there are objects.
async fn control<K, E, Passing>(
    cx: Context,
    Watched { api, what, parallel }: Watched<K>,
    provisioner: Arc<Provisioner>,
    keep: impl FnOnce(reflector::Store<K>),
    pass: fn(Arc<K>, Arc<Provisioner>) -> Passing,
    failed: fn(Arc<K>, &E, Arc<Provisioner>) -> Action,
) -> Result<(), RunError>
where
    K: Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Unpin,
    E: std::error::Error + Send + 'static,
    Passing: Future<Output = Result<Action, E>> + Send + 'static,
{
    let controller = Controller::new(api, watcher::Config::default())
        .with_config(controller::Config::default().concurrency(parallel.get()))
        .graceful_shutdown_on(cx.token().cancelled_owned());
    let seen = controller.store();
    keep(seen.clone());
    let passes = controller.run(pass, failed, provisioner).for_each(|pass| {
        log(what, pass);
        future::ready(())
    });
    let ready = async {
        if seen.wait_until_ready().await.is_ok() {
            cx.healthy();
        }
    };
    futures::join!(passes, ready);
    if cx.is_cancelled() { Ok(()) } else { Err(RunError::WatchEnded(what)) }
}

fn log<K: Resource, E: std::error::Error + 'static>(what: &str, pass: Pass<K, E>) {
    match pass {
        // Failed passes were logged and counted by their error policy.
        Ok(_) | Err(controller::Error::ReconcilerFailed(..)) => {}
        Err(controller::Error::ObjectNotFound(object)) => debug!(%object, "object is gone"),
        Err(error @ (controller::Error::QueueError(_) | controller::Error::RunnerError(_))) => {
            let error: &dyn std::error::Error = &error;
            warn!(what, error, "watch failed, it goes on");
        }
    }
}

impl Provisioner {
    /// The PV, as the watch has seen it last.
    pub(crate) fn seen(&self, pv: &ObjectRef<PersistentVolume>) -> Option<Arc<PersistentVolume>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(pv)
    }

    /// The PV of a volume, as the watch has seen it last.
    pub(crate) fn seen_of(&self, id: &VolumeId) -> Option<Arc<PersistentVolume>> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.as_ref()?.find(|pv| pv::ours(pv, &self.node).as_ref() == Some(id))
    }

    /// Works on the disk in a thread that may wait. It ends by itself if nobody waits for it any more.
    pub(crate) async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Volumes) -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let store = Arc::clone(&self.store);
        let span = Span::current();
        spawn_blocking(move || span.in_scope(|| work(&*store))).await
    }
}
