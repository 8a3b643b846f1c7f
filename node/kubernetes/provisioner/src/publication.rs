//! Keeps the capacity objects of this node: looks at the classes, at the disk and at what is told already, and tells the
//! rest.
//!
//! The API server may be away, the Node object may be missing: what could not be told is told later. However many
//! volumes come and go, there is one look a second.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _, future, stream};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use supervisor::Context;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use crate::api::{ApiError, api};
use crate::backoff::{delay, random};
use crate::capacity::{self, NAMESPACE, Owner, Step};
use crate::controller::{Provisioner, RunError};
use crate::metrics::Publication;

/// The owner of our fields in the API.
const FIELD_MANAGER: &str = "granary-capacity";

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// A watch may miss a change, and a disk may grow: look again after this.
const INTERVAL: Duration = Duration::from_mins(5);

/// kubelet makes the Node object seconds after it has started; until then no pod comes here.
const UNTIL_NODE: Duration = Duration::from_secs(2);

/// Why something is not told yet.
#[derive(Debug, thiserror::Error)]
enum PublishError {
    #[error("there is no Node object {0} yet")]
    NoNode(String),
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Look(#[from] volume::LookError),
    #[error("work on the disk panicked")]
    Panicked(#[from] tokio::task::JoinError),
}

/// What is known of the cluster.
struct Seen {
    classes: Store<StorageClass>,
    objects: Store<CSIStorageCapacity>,
    /// The Node, when an object was last made.
    owner: Option<Owner>,
}

impl Seen {
    /// Whether both watches have brought everything there was.
    fn is_complete(&self) -> bool {
        self.classes.wait_until_ready().now_or_never().is_some()
            && self.objects.wait_until_ready().now_or_never().is_some()
    }
}

/// Tells until it is cancelled. Healthy once everything was told.
pub(crate) async fn run(cx: Context, p: Arc<Provisioner>) -> Result<(), RunError> {
    let (classes, of_classes) = kept(Api::<StorageClass>::all(p.client.clone()), watcher::Config::default());
    let own = watcher::Config::default().labels(&capacity::selector(&p.node));
    let (objects, of_objects) = kept(Api::<CSIStorageCapacity>::namespaced(p.client.clone(), NAMESPACE), own);
    let mut changes = pin!(stream::select(of_classes, of_objects));
    let mut reserved = p.store.calls().changes();
    let mut seen = Seen { classes, objects, owner: None };
    let mut failures = 0;
    let mut soonest = Instant::now();
    let mut look_at = soonest;
    loop {
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            change = changes.next() => {
                // Also after a failure: the API server is there.
                change.ok_or(RunError::WatchEnded("capacities"))?;
                look_at = soonest;
            }
            Ok(()) = reserved.changed(), if failures == 0 => look_at = soonest,
            () = sleep_until(look_at), if seen.is_complete() => {
                let done = tokio::select! {
                    () = cx.cancelled() => return Ok(()),
                    done = p.publish(&mut seen) => done,
                };
                let wait = match done {
                    Ok(()) => {
                        failures = 0;
                        cx.healthy();
                        INTERVAL
                    }
                    Err(PublishError::NoNode(node)) => {
                        debug!(node, "no Node object yet, its capacity is told later");
                        UNTIL_NODE
                    }
                    Err(error) => {
                        failures += 1;
                        p.metrics.published(Publication::Failed);
                        let error: &dyn std::error::Error = &error;
                        warn!(error, attempt = failures, "capacity not told yet");
                        delay(failures, random())
                    }
                };
                soonest = Instant::now() + PAUSE;
                look_at = Instant::now() + wait;
            }
        }
    }
}

/// A watch whose objects are kept, and something for each change of them. Failures are logged; it goes on, with a
/// back-off.
fn kept<K>(api: Api<K>, config: watcher::Config) -> (Store<K>, impl stream::Stream<Item = ()>)
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + Sync + 'static,
    K: serde::de::DeserializeOwned,
{
    let (store, writer) = reflector::store();
    let changes = reflector::reflector(writer, watcher(api, config)).default_backoff().filter_map(|event| {
        future::ready(match event {
            // Only whole lists count.
            Ok(Event::Init | Event::InitApply(_)) => None,
            Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_)) => Some(()),
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                warn!(what = K::plural(&()).as_ref(), error, "watch failed, it goes on");
                None
            }
        })
    });
    (store, changes)
}

impl Provisioner {
    /// Looks once, and tells what is not told yet.
    async fn publish(&self, seen: &mut Seen) -> Result<(), PublishError> {
        let space = self.on_disk(|store| store.space()).await??;
        let classes = seen.classes.state();
        let wanted = capacity::wanted(classes.iter().map(AsRef::as_ref), &space, &self.node);
        let objects = seen.objects.state();
        let steps = capacity::diff(&wanted, objects.iter().map(AsRef::as_ref), &self.node);
        // An object goes with its Node, and comes back with the new one.
        if seen.owner.is_none() && !steps.is_empty() || steps.iter().any(|step| matches!(step, Step::Create { .. })) {
            seen.owner = Some(self.owner().await?);
        }
        let Some(owner) = &seen.owner else { return Ok(()) };
        // One that fails holds up no other.
        let mut all = Ok(());
        for step in steps {
            all = all.and(self.publish_step(step, owner).await);
        }
        Ok(all?)
    }

    async fn publish_step(&self, step: Step, owner: &Owner) -> Result<(), ApiError> {
        let objects = Api::<CSIStorageCapacity>::namespaced(self.client.clone(), NAMESPACE);
        match step {
            Step::Create { name, room } | Step::Update { name, room } => {
                let object = capacity::build(&name, &room, &self.node, owner);
                let params = PatchParams::apply(FIELD_MANAGER).force();
                objects.patch(&name, &params, &Patch::Apply(object)).await.map_err(api("tell the capacity"))?;
                self.metrics.published(Publication::Written);
                debug!(class = room.class, free = %room.free, largest = %room.largest, "capacity told");
            }
            Step::Delete { name, uid } => {
                let preconditions = Some(Preconditions { uid, resource_version: None });
                let params = DeleteParams { preconditions, ..DeleteParams::default() };
                match objects.delete(&name, &params).await {
                    Ok(_) => {
                        self.metrics.published(Publication::Deleted);
                        info!(name, "capacity of a class that is gone deleted");
                    }
                    Err(kube::Error::Api(status)) if status.is_not_found() => {}
                    Err(error) => return Err(api("delete a capacity")(error)),
                }
            }
        }
        Ok(())
    }

    async fn owner(&self) -> Result<Owner, PublishError> {
        let nodes = Api::<Node>::all(self.client.clone());
        let node = nodes.get_metadata_opt(&self.node).await.map_err(api("look at the Node"))?;
        let uid = node.and_then(|node| node.metadata.uid);
        uid.map(|uid| Owner { uid }).ok_or_else(|| PublishError::NoNode(self.node.clone()))
    }
}
