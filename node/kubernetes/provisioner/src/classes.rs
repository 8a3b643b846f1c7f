//! Copy of the driver's storage classes, which a watch updates.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use supervisor::Context;
use tokio::sync::watch;
use volume::DRIVER_NAME;

use crate::arrival;
use crate::context::{Provisioner, RunError};

#[derive(Debug, Default)]
pub(crate) struct Classes {
    watched: Mutex<Option<Store<StorageClass>>>,
    changed: watch::Sender<()>,
}

/// Watches until it is cancelled. The watch continues after failures.
pub(crate) async fn run(cx: Context, provisioner: Arc<Provisioner>) -> Result<(), RunError> {
    let classes = &provisioner.classes;
    let (store, changes) = arrival::watch(
        cx.clone(),
        Api::all(provisioner.client.clone()),
        watcher::Config::default(),
        arrival::trim_class,
        |class| class.provisioner == DRIVER_NAME,
    );
    *classes.watched.lock().unwrap_or_else(PoisonError::into_inner) = Some(store);
    let mut changes = pin!(changes);
    cx.healthy();
    loop {
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            change = changes.next() => change.ok_or(RunError::WatchEnded("classes"))?,
        }
        classes.changed.send_replace(());
    }
}

impl Classes {
    pub(crate) fn get(&self, name: &str) -> Option<Arc<StorageClass>> {
        self.store()?.get(&ObjectRef::new(name))
    }

    /// All classes; `None` before the first complete list.
    pub(crate) fn all(&self) -> Option<Vec<Arc<StorageClass>>> {
        let store = self.store()?;
        store.wait_until_ready().now_or_never()?.ok()?;
        Some(store.state())
    }

    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    fn store(&self) -> Option<Store<StorageClass>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    /// Regression: the service had no rounds, so it was never shown as stalled.
    #[tokio::test(start_paused = true)]
    async fn a_watch_that_fails_is_a_stall() {
        let (provisioner, _disk) = fixture::with_client(fixture::client(|_| Some((500, "{}".to_owned()))));
        fixture::stalls(move |cx| run(cx, Arc::clone(&provisioner))).await;
    }
}
