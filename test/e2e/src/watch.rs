//! Waiting for an object by a watch, which returns sooner than looks at an interval, and takes less of the node's CPU.

use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::time::Duration;
use tokio::time::timeout;

/// Limit of a watch. Then the test looks at the object, and reports what it has seen.
const LIMIT: Duration = Duration::from_secs(20);

/// Returns when the object of this name, or its absence, fulfils the condition, and after [`LIMIT`] in any case.
pub(crate) async fn watch<K>(objects: Api<K>, name: &str, condition: fn(Option<&K>) -> bool)
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut lost = None;
    _ = timeout(LIMIT, launch::wait_for(objects, name, condition, &mut lost)).await;
}
