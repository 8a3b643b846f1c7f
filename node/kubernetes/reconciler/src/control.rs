//! A controller as a service.

use std::future::{self, Future};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube::runtime::controller::{Action, Controller, Error};
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use supervisor::Context;
use tracing::warn;

/// After a failed pass. Whoever waits for it has waited for longer.
const RETRY: Duration = Duration::from_secs(5);

/// A watch ended, which it never does by itself: what stands on it has to be started again.
#[derive(Debug, thiserror::Error)]
#[error("the watch of {0} ended")]
pub struct WatchEnded(&'static str);

/// Runs a controller of `what` until it is cancelled; passes that are under way are finished. Healthy when it has seen
/// the objects that were there.
///
/// # Errors
/// [`WatchEnded`]; an API server that is away is waited for and is none.
pub(crate) async fn control<K, C, E, Passing>(
    cx: Context,
    what: &'static str,
    controller: Controller<K>,
    pass: fn(Arc<K>, Arc<C>) -> Passing,
    context: Arc<C>,
) -> Result<(), WatchEnded>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
    K::DynamicType: std::fmt::Debug + Eq + Hash + Clone + Unpin,
    E: std::error::Error + Send + 'static,
    Passing: Future<Output = Result<Action, E>> + Send + 'static,
{
    let seen = controller.store();
    let failed = move |object: Arc<K>, error: &E, _| {
        let error: &dyn std::error::Error = error;
        warn!(what, object = object.name_any(), error, "pass failed, it is tried again");
        Action::requeue(RETRY)
    };
    let passes =
        controller.graceful_shutdown_on(cx.token().cancelled_owned()).run(pass, failed, context).for_each(|pass| {
            match pass {
                // `failed` has said it.
                Ok(_) | Err(Error::ReconcilerFailed(..)) => {}
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    warn!(what, error, "watch failed, it goes on");
                }
            }
            future::ready(())
        });
    let ready = async {
        // An error means that the controller has ended, and so has the other future.
        if seen.wait_until_ready().await.is_ok() {
            cx.healthy();
        }
    };
    futures::join!(passes, ready);
    if cx.is_cancelled() { Ok(()) } else { Err(WatchEnded(what)) }
}
