//! Runs the passes of a controller to their end.

use std::future::{self, Future};
use std::hash::Hash;

use kube::runtime::reflector::{Lookup, Store};

/// Runs the passes of a controller until they end. Calls `listed` when `objects` has its first complete list, with
/// which the passes begin. Before this list, a controller ends neither with its queue of objects nor when it is
/// cancelled, so the function returns when `ended` does.
pub async fn run_passes<K>(
    passes: impl Future<Output = ()>,
    objects: &Store<K>,
    ended: impl Future<Output = ()>,
    listed: impl FnOnce(),
) where
    K: Lookup + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    let unlisted = async {
        tokio::select! {
            biased;
            list = objects.wait_until_ready() => {
                // An error means that the controller has ended.
                if list.is_ok() {
                    listed();
                }
                future::pending::<()>().await;
            }
            () = ended => {}
        }
    };
    tokio::select! {
        biased;
        () = passes => {}
        () = unlisted => {}
    }
}
