//! Waits for an object with a watch, which is faster than polling and uses less CPU time of the node.

use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::time::Duration;
use tokio::time::timeout;

/// Duration of a watch. Afterwards the test reads the object and reports its state.
const LIMIT: Duration = Duration::from_secs(20);

/// Returns when the object of this name, or its absence, fulfils the condition, or after [`LIMIT`].
pub(crate) async fn watch<K>(objects: Api<K>, name: &str, condition: fn(Option<&K>) -> bool)
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut lost = None;
    _ = timeout(LIMIT, launch::wait_for(objects, name, condition, &mut lost)).await;
}
