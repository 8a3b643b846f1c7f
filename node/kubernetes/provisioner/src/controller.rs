//! Starts the parts of the provisioner (see README.md), and runs the controllers of claims and PVs.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::{self, Future};
use std::hash::Hash;
use std::num::NonZeroU16;
use std::sync::{Arc, PoisonError};
use std::task::Poll;

use apiclient::run_passes;
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::controller::{self, Action};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::runtime::utils::StreamBackoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event, watcher};
use kube::{Api, Client, Resource};
use supervisor::Context;
use tokio::sync::watch;
use tracing::{debug, warn};
use volume::{VolumeId, Volumes};

use crate::context::{Provisioner, RunError};
use crate::error::Error;
use crate::notice::{self, NoticeQueue};
use crate::pv::object;
use crate::{
    Metrics, arrival, capacity, claim, classes, discard, drift, event_queue, group, health, node_events, pv, snapshot,
    sweep,
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
    pub const PARALLEL: NonZeroU16 = NonZeroU16::new(8).expect("it is not zero");

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
        let watched = Watched { writer: Writer::default(), what: "claims", parallel };
        let (observer, keeper) = (Arc::clone(&context), Arc::clone(&context));
        let events = watcher(api, watcher::Config::default())
            .modify(arrival::trim_claim)
            .inspect_ok(move |event| observer.ended.observe(event, &observer.node))
            .try_filter_map(move |event| future::ready(Ok(arrival::only(event, |claim| keeper.is_relevant(claim)))));
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
        let watched = Watched { writer: Writer::default(), what: "volumes", parallel };
        *context.watched_pvs.lock().unwrap_or_else(PoisonError::into_inner) = Some(watched.writer.as_reader());
        let (indexed, keeper) = (Arc::clone(&context), Arc::clone(&context));
        let events = watcher(context.pvs.clone(), watcher::Config::default())
            .inspect(move |item| indexed.index.update(item))
            .modify(arrival::trim_pv)
            .try_filter_map(move |event| {
                let is_ours = |pv: &_| object::volume_of(pv, &keeper.node).is_some() || object::is_incomplete(pv);
                future::ready(Ok(arrival::only(event, is_ours)))
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
    cx.start("events", move |cx| event_queue::run(cx, Arc::clone(&context)));
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

type PassResult<K, E> = Result<(ObjectRef<K>, Action), controller::Error<E, watcher::Error>>;

pub(crate) struct Watched<K: Resource<DynamicType: Eq + Hash + Clone> + Clone + 'static> {
    /// Writer of the copies that the passes read.
    pub(crate) writer: Writer<K>,
    pub(crate) what: &'static str,
    pub(crate) parallel: NonZeroU16,
}

/// Runs one controller until it is cancelled or `events` ends; running passes are completed.
///
/// An object is in the queue once, independent of its number of changes, and has one pass at a time.
pub(crate) async fn control<K, C, Pass>(
    cx: Context,
    Watched { writer, what, parallel }: Watched<K>,
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send,
    context: Arc<C>,
    reconcile: fn(Arc<K>, Arc<C>) -> Pass,
    failed: fn(Arc<K>, &Error, Arc<C>) -> Action,
) -> Result<(), RunError>
where
    C: Send + Sync + 'static,
    K: Resource<DynamicType: Debug + Default + Eq + Hash + Clone + Send + Sync + Unpin> + Clone + Send + Sync + 'static,
    Pass: Future<Output = Result<Action, Error>> + Send + 'static,
{
    let objects = writer.as_reader();
    // The token is also cancelled with the service.
    let ended = cx.token().child_token();
    let last = ended.clone();
    let end = stream::poll_fn(move |_| {
        last.cancel();
        Poll::Ready(None)
    });
    let changes = events
        .chain(end)
        .inspect(|event| {
            // An incomplete list does not show that the watch works.
            if matches!(event, Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_))) {
                cx.report(true);
            }
        })
        .reflect(writer)
        .applied_objects();
    let queue = StreamBackoff::new(changes, DefaultBackoff::default())
        .map_ok(|object| ObjectRef::from_obj(&object))
        .take_until(ended.clone().cancelled_owned());
    let config = controller::Config::default().concurrency(parallel.get());
    let reconcile = |object, context| Box::pin(cx.round(reconcile(object, context), Error::is_progress));
    let passes = controller::applier(reconcile, failed, context, objects.clone(), queue, config).for_each(|pass| {
        log(&cx, what, pass);
        future::ready(())
    });
    run_passes(passes, &objects, ended.cancelled(), || cx.healthy()).await;
    if cx.is_cancelled() { Ok(()) } else { Err(RunError::WatchEnded(what)) }
}

fn log<K: Resource, E: std::error::Error + 'static>(cx: &Context, what: &str, pass: PassResult<K, E>) {
    match pass {
        // The error policy has logged and counted failed passes.
        Ok(_) | Err(controller::Error::ReconcilerFailed(..)) => {}
        Err(controller::Error::ObjectNotFound(object)) => debug!(%object, "object not found"),
        Err(error @ (controller::Error::QueueError(_) | controller::Error::RunnerError(_))) => {
            cx.report(false);
            warn!(what, error = causes::of(&error), "watch failed, will continue");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::ConfigMap;
    use supervisor::Supervisor;
    use tokio::time::{Instant, sleep};

    use super::*;

    async fn maps(
        cx: Context,
        events: impl Stream<Item = watcher::Result<Event<ConfigMap>>> + Send,
    ) -> Result<(), RunError> {
        let watched = Watched::<ConfigMap> { writer: Writer::default(), what: "maps", parallel: Settings::PARALLEL };
        control(
            cx,
            watched,
            events,
            Arc::new(()),
            |_, _| future::ready(Ok(Action::await_change())),
            |_, _, _| Action::await_change(),
        )
        .await
    }

    /// Regression: a controller without work was stalled for five minutes after its watch worked again.
    #[tokio::test(start_paused = true)]
    async fn a_complete_list_ends_the_stall_of_a_failed_watch() {
        let settings = supervisor::Settings::default();
        let outage = settings.round_deadline + Duration::from_mins(3);
        let tree = Supervisor::start("maps", settings, move |cx| {
            let end = Instant::now() + outage;
            let failures = stream::repeat_with(|| Err(watcher::Error::NoResourceVersion));
            let events = failures
                .take_while(move |_| future::ready(Instant::now() < end))
                .chain(stream::iter([Ok(Event::Init), Ok(Event::InitDone)]))
                .chain(stream::pending());
            maps(cx, events)
        });
        sleep(outage).await;
        assert!(tree.status().stalled.is_some());
        // The longest pause between two attempts is a minute.
        sleep(Duration::from_mins(2)).await;
        assert_eq!(tree.status().stalled, None);
        tree.stop(Duration::from_mins(1)).await.unwrap();
    }

    /// Regression: the service was aborted at its stop deadline, 10 seconds later.
    #[tokio::test(start_paused = true)]
    async fn a_controller_stops_before_its_first_list() {
        let settings = supervisor::Settings::default();
        let deadline = settings.stop_deadline;
        let tree = Supervisor::start("maps", settings, |cx| maps(cx, stream::pending()));
        sleep(Duration::from_secs(1)).await;
        let start = Instant::now();
        tree.stop(Duration::from_mins(1)).await.unwrap();
        assert!(start.elapsed() < deadline, "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_ends_before_its_first_list_is_an_error() {
        let tree = Supervisor::start("maps", supervisor::Settings::default(), |cx| maps(cx, stream::empty()));
        sleep(Duration::from_secs(1)).await;
        let error = tree.status().last_error.unwrap_or_default();
        assert!(error.contains("the watch of maps ended"), "{error}");
        tree.stop(Duration::from_mins(1)).await.unwrap();
    }
}
