//! Publishes the CSIStorageCapacity objects of this node, at most once a second. Tries again while the API server is
//! not reachable or the Node object is missing.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::runtime::reflector::Store;
use kube::runtime::watcher;
use kube::{Api, Client};
use supervisor::Context;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use crate::arrival;
use crate::backoff::delay_after;
use crate::capacity::plan::{self, NAMESPACE, Owner, Step};
use crate::context::{Provisioner, RunError};
use crate::error::{ApiError, Error, api, unless_gone};
use crate::metrics::Publication;

const FIELD_MANAGER: &str = "granary-capacity";

const PAUSE: Duration = Duration::from_secs(1);

/// Time between two publications without a change: a watch may miss a change, and a disk may grow.
const INTERVAL: Duration = Duration::from_mins(5);

/// Retry interval while the Node object is missing. The kubelet creates the object seconds after its start.
const UNTIL_NODE: Duration = Duration::from_secs(2);

struct Published {
    objects: Store<CSIStorageCapacity>,
    /// The Node when an object was last created.
    owner: Option<Owner>,
}

/// Not all capacity objects of the node were deleted.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct WithdrawError(ApiError);

/// Deletes the capacity objects of the node, before another program publishes its capacity. No program would update
/// these objects, and the scheduler selects a node if one of its objects has enough space.
///
/// # Errors
/// [`WithdrawError`] if a request fails. The next call deletes the remaining objects.
pub async fn withdraw_capacity(client: &Client, node: &str) -> Result<(), WithdrawError> {
    let objects = Api::<CSIStorageCapacity>::namespaced(client.clone(), NAMESPACE);
    let of_node = ListParams::default().labels(&plan::selector(node));
    let found = objects.list(&of_node).await.map_err(api("list the CSIStorageCapacities")).map_err(WithdrawError)?;
    for step in plan::diff(&BTreeMap::new(), &found.items, node) {
        if let Step::Delete { name, uid } = step
            && delete(&objects, &name, uid).await.map_err(WithdrawError)?
        {
            info!(name, "capacity deleted, another program publishes it");
        }
    }
    Ok(())
}

/// Returns whether the object existed.
async fn delete(objects: &Api<CSIStorageCapacity>, name: &str, uid: Option<String>) -> Result<bool, ApiError> {
    let preconditions = Some(Preconditions { uid, resource_version: None });
    let params = DeleteParams { preconditions, ..DeleteParams::default() };
    Ok(unless_gone(objects.delete(name, &params).await, "delete a CSIStorageCapacity")?.is_some())
}

/// Publishes until it is cancelled. Healthy when all objects are published.
pub(crate) async fn run(cx: Context, provisioner: Arc<Provisioner>) -> Result<(), RunError> {
    let client = &provisioner.client;
    let of_node = watcher::Config::default().labels(&plan::selector(&provisioner.node));
    let api = Api::<CSIStorageCapacity>::namespaced(client.clone(), NAMESPACE);
    let (objects, changes) = arrival::watch(cx.clone(), api, of_node, arrival::trim_capacity, |_| true);
    let mut changes = pin!(changes);
    let mut classes = provisioner.classes.changes();
    let mut published = Published { objects, owner: None };
    let mut reserved = provisioner.store.calls().changes();
    let mut failures = 0;
    let mut soonest = Instant::now();
    let mut look_at = soonest;
    loop {
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            change = changes.next() => {
                // A change shows that the API server is reachable, so it also ends a back-off.
                change.ok_or(RunError::WatchEnded("capacities"))?;
                look_at = soonest;
            }
            Ok(()) = classes.changed() => look_at = soonest,
            Ok(()) = reserved.changed(), if failures == 0 => look_at = soonest,
            () = sleep_until(look_at), if provisioner.is_listed(&published) => {
                let done = tokio::select! {
                    () = cx.cancelled() => return Ok(()),
                    done = cx.round(provisioner.publish(&mut published), Error::is_progress) => done,
                };
                let wait = match done {
                    Ok(()) => {
                        failures = 0;
                        cx.healthy();
                        INTERVAL
                    }
                    Err(Error::NoNode(node)) => {
                        debug!(node, "no Node object yet, capacity not published");
                        UNTIL_NODE
                    }
                    Err(error) => {
                        failures += 1;
                        provisioner.metrics.published(Publication::Failed);
                        warn!(error = causes::of(&error), attempt = failures, "capacity not published, will retry");
                        delay_after(failures, &error)
                    }
                };
                soonest = Instant::now() + PAUSE;
                look_at = Instant::now() + wait;
            }
        }
    }
}

impl Provisioner {
    fn is_listed(&self, published: &Published) -> bool {
        self.classes.all().is_some() && published.objects.wait_until_ready().now_or_never().is_some()
    }

    async fn publish(&self, published: &mut Published) -> Result<(), Error> {
        let space = self.on_disk(|store| store.space()).await??;
        let Some(classes) = self.classes.all() else { return Ok(()) };
        let wanted = plan::wanted(classes.iter().map(AsRef::as_ref), &space, &self.node);
        let objects = published.objects.state();
        let steps = plan::diff(&wanted, objects.iter().map(AsRef::as_ref), &self.node);
        // Read the UID of the Node before each creation of an object: a Node that was created again has another UID.
        if published.owner.is_none() && !steps.is_empty()
            || steps.iter().any(|step| matches!(step, Step::Create { .. }))
        {
            published.owner = Some(self.owner().await?);
        }
        let Some(owner) = &published.owner else { return Ok(()) };
        // A failed step does not delay the others.
        let mut all = Ok(());
        for step in steps {
            all = all.and(self.publish_step(step, owner).await);
        }
        Ok(all?)
    }

    async fn publish_step(&self, step: Step, owner: &Owner) -> Result<(), ApiError> {
        let objects = Api::<CSIStorageCapacity>::namespaced(self.client.clone(), NAMESPACE);
        match step {
            Step::Create { name, capacity } | Step::Update { name, capacity } => {
                let object = plan::build(&name, &capacity, &self.node, owner);
                let params = PatchParams::apply(FIELD_MANAGER).force();
                objects
                    .patch(&name, &params, &Patch::Apply(object))
                    .await
                    .map_err(api("write a CSIStorageCapacity"))?;
                self.metrics.published(Publication::Written);
                debug!(class = capacity.class, free = %capacity.free, largest = %capacity.largest, "capacity published");
            }
            Step::Delete { name, uid } => {
                if delete(&objects, &name, uid).await? {
                    self.metrics.published(Publication::Deleted);
                    info!(name, "capacity of a deleted class deleted");
                }
            }
        }
        Ok(())
    }

    async fn owner(&self) -> Result<Owner, Error> {
        let nodes = Api::<Node>::all(self.client.clone());
        let node = nodes.get_metadata_opt(&self.node).await.map_err(api("get the Node"))?;
        let uid = node.and_then(|node| node.metadata.uid);
        uid.map(|uid| Owner { uid }).ok_or_else(|| Error::NoNode(self.node.clone()))
    }
}
