//! Runs a controller as a service.

use std::future::{self, Future};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use apiclient::run_passes;
use futures::StreamExt as _;
use kube::runtime::controller::{Action, Config, Controller, Error};
use kube::{Resource, ResourceExt as _};
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

/// Runs a controller until cancelled, and completes running passes. Healthy when it has listed the objects. Waits for
/// an unreachable API server.
pub(crate) async fn control<K, C, E, Pass>(
    cx: Context,
    what: &'static str,
    controller: Controller<K>,
    pass: fn(Arc<K>, Arc<C>) -> Pass,
    context: Arc<C>,
) -> Result<(), WatchEnded>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
    K::DynamicType: std::fmt::Debug + Eq + Hash + Clone + Unpin,
    E: std::error::Error + Send + 'static,
    Pass: Future<Output = Result<Action, E>> + Send + 'static,
{
    let controller = controller.with_config(Config::default().concurrency(PARALLEL));
    let objects = controller.store();
    let failed = move |object: Arc<K>, error: &E, _| {
        let error: &dyn std::error::Error = error;
        warn!(what, object = object.name_any(), error, "pass failed, will retry");
        Action::requeue(RETRY)
    };
    let pass = |object, context| cx.round(pass(object, context), Result::is_ok);
    let controller = controller.graceful_shutdown_on(cx.token().cancelled_owned());
    let passes = controller.run(pass, failed, context).for_each(|pass| {
        match pass {
            // `failed` has logged the first error. The other one is a requeue of an object that was deleted meanwhile.
            Ok(_) | Err(Error::ReconcilerFailed(..) | Error::ObjectNotFound(_)) => {}
            Err(error) => {
                cx.report(false);
                let error: &dyn std::error::Error = &error;
                warn!(what, error, "watch failed, will continue");
            }
        }
        future::ready(())
    });
    let listed = || {
        cx.healthy();
        // Report success of the first list. The stream has no item for later lists.
        cx.report(true);
    };
    run_passes(passes, &objects, cx.cancelled(), listed).await;
    if cx.is_cancelled() { Ok(()) } else { Err(WatchEnded(what)) }
}
