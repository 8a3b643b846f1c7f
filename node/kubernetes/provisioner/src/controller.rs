//! Runs one controller: the passes over the objects of a watch.

use std::fmt::Debug;
use std::future::{self, Future};
use std::hash::Hash;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::task::Poll;

use apiclient::run_passes;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _};
use kube::Resource;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::controller::{self, Action};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::runtime::utils::StreamBackoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use supervisor::Context;
use tracing::{debug, warn};

use crate::context::RunError;
use crate::error::Error;

type PassResult<K, E> = Result<(ObjectRef<K>, Action), controller::Error<E, watcher::Error>>;

pub(crate) struct Watched<K: Resource<DynamicType: Eq + Hash + Clone> + Clone + 'static> {
    /// Writer of the copies that the passes read.
    pub(crate) writer: Writer<K>,
    pub(crate) what: &'static str,
    pub(crate) parallel: NonZeroU16,
    /// Objects that get a pass although they have not changed.
    pub(crate) woken: Option<BoxStream<'static, ObjectRef<K>>>,
}

/// Runs one controller until it is cancelled or `events` ends; running passes are completed.
///
/// An object is in the queue once, independent of its number of changes, and has one pass at a time.
pub(crate) async fn control<K, C, Pass>(
    cx: Context,
    Watched { writer, what, parallel, woken }: Watched<K>,
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
        .reflect(writer);
    let changed = StreamBackoff::new(apiclient::changed(objects.clone(), changes), DefaultBackoff::default());
    let woken = stream::iter(woken).flatten().map(Ok);
    let queue = stream::select(changed, woken).take_until(ended.clone().cancelled_owned());
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
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use k8s_openapi::api::core::v1::ConfigMap;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use supervisor::Supervisor;
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::Settings;

    fn watched(woken: Option<BoxStream<'static, ObjectRef<ConfigMap>>>) -> Watched<ConfigMap> {
        Watched { writer: Writer::default(), what: "maps", parallel: Settings::PARALLEL, woken }
    }

    async fn maps(
        cx: Context,
        events: impl Stream<Item = watcher::Result<Event<ConfigMap>>> + Send,
    ) -> Result<(), RunError> {
        control(
            cx,
            watched(None),
            events,
            Arc::new(()),
            |_, _| future::ready(Ok(Action::await_change())),
            |_, _, _| Action::await_change(),
        )
        .await
    }

    #[tokio::test(start_paused = true)]
    async fn a_woken_object_gets_a_pass_before_its_requeue() {
        let passes = Arc::<AtomicUsize>::default();
        let shared = Arc::clone(&passes);
        let tree = Supervisor::start("maps", supervisor::Settings::default(), move |cx| {
            let metadata = ObjectMeta { name: Some("a".into()), namespace: Some("b".into()), ..ObjectMeta::default() };
            let map = ConfigMap { metadata, ..ConfigMap::default() };
            let object = ObjectRef::from_obj(&map);
            let woken = stream::once(async move {
                sleep(Duration::from_secs(1)).await;
                object
            });
            let events = stream::iter([Ok(Event::Init), Ok(Event::InitApply(map)), Ok(Event::InitDone)]);
            control(
                cx,
                watched(Some(woken.boxed())),
                events.chain(stream::pending()),
                Arc::clone(&shared),
                |_, passes: Arc<AtomicUsize>| {
                    passes.fetch_add(1, Ordering::Relaxed);
                    future::ready(Ok(Action::requeue(Duration::from_hours(1))))
                },
                |_, _, _| Action::await_change(),
            )
        });
        sleep(Duration::from_mins(1)).await;
        assert_eq!(passes.load(Ordering::Relaxed), 2);
        tree.stop(Duration::from_mins(1)).await.unwrap();
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
