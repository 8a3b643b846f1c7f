//! Runs a controller as a service.

use std::fmt::Debug;
use std::future::{self, Future};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use apiclient::run_passes;
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::controller::{Action, Config, Error, ReconcileRequest, applier};
use kube::runtime::reflector::{self, Store};
use kube::runtime::utils::StreamBackoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event, watcher};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use supervisor::Context;
use tracing::warn;

const RETRY: Duration = Duration::from_secs(5);

/// Concurrent passes of one controller. Without a limit, the controller would process all objects at once at the start
/// and after a burst.
const PARALLEL: u16 = 8;

#[derive(Debug, thiserror::Error)]
#[error("the watch of {0} ended")]
pub struct WatchEnded(&'static str);

/// Events of the objects of `api`. The watch reports its failures and successes to `cx` by its kind, so that another
/// watch of the service does not clear its failures.
pub(crate) fn watch<K>(
    cx: Context,
    api: Api<K>,
    config: watcher::Config,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource + k8s_openapi::Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watcher(api, config).inspect(move |event| match event {
        // An incomplete list does not show that the watch works.
        Ok(Event::Init | Event::InitApply(_)) => {}
        event => cx.report_of(K::KIND, event.is_ok()),
    })
}

/// Copies of the objects that `events` are about, and a request for each object that needs a pass.
pub(crate) fn copied<K>(
    events: impl Stream<Item = watcher::Result<Event<K>>>,
) -> (Store<K>, impl Stream<Item = watcher::Result<ReconcileRequest<K>>>)
where
    K: Resource<DynamicType: Default + Eq + Hash + Clone> + Clone + 'static,
{
    let (objects, writer) = reflector::store();
    let changed = apiclient::changed(objects.clone(), events.reflect(writer)).map_ok(ReconcileRequest::from);
    (objects, changed)
}

/// Runs a controller until cancelled, and completes running passes. An object of `objects` gets a pass when `queue` has
/// it. Healthy when `objects` has its first list. Waits for an unreachable API server.
///
/// kube's `Controller` would begin the passes of a list before the list is complete ([`apiclient::changed`]).
pub(crate) async fn control<K, C, E, Pass>(
    cx: Context,
    what: &'static str,
    objects: Store<K>,
    queue: impl Stream<Item = watcher::Result<ReconcileRequest<K>>> + Send,
    pass: fn(Arc<K>, Arc<C>) -> Pass,
    context: Arc<C>,
) -> Result<(), WatchEnded>
where
    K: Resource + Clone + Send + Sync + 'static,
    K::DynamicType: Debug + Eq + Hash + Clone + Unpin,
    E: std::error::Error + Send + 'static,
    Pass: Future<Output = Result<Action, E>> + Send + 'static,
{
    let config = Config::default().concurrency(PARALLEL);
    let pass = |object, context| Box::pin(cx.round(pass(object, context), Result::is_ok));
    let queue = StreamBackoff::new(queue, DefaultBackoff::default()).take_until(cx.token().cancelled_owned());
    let passes = applier(pass, failed::<K, C, E>(what), context, objects.clone(), queue, config).for_each(|pass| {
        match pass {
            // `failed` has logged the first error. The other one is a requeue of an object that was deleted meanwhile,
            // or is not kept any more.
            Ok(_) | Err(Error::ReconcilerFailed(..) | Error::ObjectNotFound(_)) => {}
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                warn!(what, error, "watch failed, will continue");
            }
        }
        future::ready(())
    });
    run_passes(passes, &objects, cx.cancelled(), || cx.healthy()).await;
    if cx.is_cancelled() { Ok(()) } else { Err(WatchEnded(what)) }
}

fn failed<K, C, E>(what: &'static str) -> impl Fn(Arc<K>, &E, Arc<C>) -> Action
where
    K: Resource,
    E: std::error::Error + 'static,
{
    move |object: Arc<K>, error: &E, _: Arc<C>| {
        let error: &dyn std::error::Error = error;
        warn!(what, object = object.name_any(), error, "pass failed, will retry");
        Action::requeue(RETRY)
    }
}
