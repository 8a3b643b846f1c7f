//! Writes the node of claims, because admission policies do not allow nodes to do it.
//!
//! A claim whose selected node was deleted returns to the scheduler. No other component does this, and its pods would
//! wait forever. A claim that was bound to an existing PV gets the node of this PV when it is expanded. A claim of a
//! class with immediate binding gets a node for its new volume ([`placement`]), and another one if that node does not
//! create the volume.
//!
//! A clone gets the node of its source. If its pods cannot run there, an event names this node and the reason.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cluster::claim::{SELECTED_NODE, VOLUME_NODE, is_object_name};
use cluster::{DRIVER_NAME, snapshot};
use futures::{TryFutureExt as _, TryStreamExt as _, future, stream};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::controller::{Action, trigger_with};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Client, Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use supervisor::Context;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use crate::clone::Source;
use crate::control::{WatchEnded, control, copied, watch};
use crate::kept_claim::{self, is_waiting, waits_for};
use crate::placement::{self, NoNode, Published};
use crate::selections::{PodCheck, Selections, size_of};
use crate::unschedulable::{self, Found};
use crate::{INSTANCE, bound, clone};

/// Interval of examining claims again, because a watch may miss the deletion of a node.
const INTERVAL: Duration = Duration::from_mins(5);

/// Maximum age of published objects for a selection.
const FRESH: Duration = Duration::from_secs(5);

/// Retry interval of a claim that no node can get.
const UNTIL_SPACE: Duration = Duration::from_secs(30);

/// Retry interval if a node may have enough space as soon as it has published its capacity again.
const UNTIL_PUBLISHED: Duration = Duration::from_secs(10);

/// Retry interval of a check of pods while another check runs.
const UNTIL_CHECKED: Duration = Duration::from_secs(30);

/// Time limit of a check of pods. It ends as if pods waited.
const CHECK: Duration = Duration::from_secs(30);

/// Label of the capacity objects of Granary's driver.
const DRIVER_LABEL: &str = "csi.storage.k8s.io/drivername";

#[derive(Debug, thiserror::Error)]
enum ReclaimError {
    #[error("cannot read node {node}")]
    Node { node: String, source: Box<kube::Error> },
    #[error("cannot read claim {claim}")]
    Source { claim: String, source: Box<kube::Error> },
    #[error("cannot read snapshot {snapshot}, or its content")]
    Snapshot { snapshot: String, source: Box<kube::Error> },
    #[error("cannot read PV {pv}")]
    Volume { pv: String, source: Box<kube::Error> },
    #[error("cannot write the annotation {annotation} of the claim")]
    Claim { annotation: &'static str, source: Box<kube::Error> },
    #[error("cannot list {what}")]
    List { what: &'static str, source: Box<kube::Error> },
}

struct Reclaimer {
    client: Client,
    nodes: Api<Node>,
    /// Names of existing nodes, and when they were read. The watch removes nodes that change.
    existing: Mutex<BTreeMap<String, Instant>>,
    selections: Mutex<Selections>,
    published: Mutex<Option<(Instant, Arc<Published>)>>,
    /// Held during a check of pods: users decide how large these are.
    checking: tokio::sync::Mutex<()>,
    events: Recorder,
}

/// Watches claims and nodes until cancelled. Healthy when it has read all claims. Waits for an unreachable API server.
///
/// # Errors
/// [`WatchEnded`].
pub async fn reclaim(cx: Context, client: Client) -> Result<(), WatchEnded> {
    let nodes = Api::<Node>::all(client.clone());
    let reporter = Reporter { controller: DRIVER_NAME.to_owned(), instance: Some(INSTANCE.to_owned()) };
    let reclaimer = Arc::new(Reclaimer {
        client: client.clone(),
        nodes: nodes.clone(),
        existing: Mutex::default(),
        selections: Mutex::default(),
        published: Mutex::default(),
        checking: tokio::sync::Mutex::default(),
        events: Recorder::new(client.clone(), reporter),
    });
    let observer = Arc::clone(&reclaimer);
    let changes = watch(cx.clone(), Api::<PersistentVolumeClaim>::all(client), watcher::Config::default())
        .modify(kept_claim::trim)
        .inspect_ok(move |event| observer.selections().observe(event))
        .try_filter_map(|event| future::ready(Ok(apiclient::only(event, kept_claim::is_kept))));
    let (claims, changes) = copied(changes);
    let (changed, waiting) = (Arc::clone(&reclaimer), claims.clone());
    let of_nodes = watch(cx.clone(), nodes, watcher::Config::default()).touched_objects();
    let of_nodes = trigger_with(of_nodes, move |node: Node| {
        let name = node.name_any();
        changed.existing.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
        waiting_for(&waiting, &name)
    });
    let queue = stream::select(changes, of_nodes);
    control(cx, "claims", claims, queue, reconcile, reclaimer).await
}

fn waiting_for(claims: &Store<PersistentVolumeClaim>, node: &str) -> Vec<ObjectRef<PersistentVolumeClaim>> {
    claims
        .state()
        .iter()
        .filter(|claim| waits_for(claim) == Some(node))
        .map(|claim| ObjectRef::from_obj(&**claim))
        .collect()
}

async fn reconcile(claim: Arc<PersistentVolumeClaim>, reclaimer: Arc<Reclaimer>) -> Result<Action, ReclaimError> {
    if let Some(pv) = bound::changing(&claim) {
        return reclaimer.name_node(&claim, pv).await;
    }
    if !is_waiting(&claim) {
        return Ok(reclaimer.check_pods(&claim).await.map_or_else(Action::await_change, Action::requeue));
    }
    if let Some(source) = clone::source(&claim)
        && let Some(action) = reclaimer.place_clone(&claim, source).await?
    {
        return Ok(action);
    }
    let Some(node) = waits_for(&claim) else { return reclaimer.place(&claim).await };
    if !reclaimer.exists(node).await? {
        if reclaimer.annotate(&claim, SELECTED_NODE, Value::Null).await? {
            info!(claim = %ClaimName(&claim), node, "claim returned to the scheduler, its selected node was deleted");
        }
        return Ok(Action::await_change());
    }
    // Store only names of existing nodes, because users can write the annotation.
    let left = reclaimer.selections().assigned(&claim, node, Instant::now());
    if !left.is_zero() {
        return Ok(Action::requeue(left.min(INTERVAL)));
    }
    reclaimer.expire(&claim, node).await
}

/// Returns the class if its claims need a node, otherwise the time of the next pass. That pass reads a class again that
/// is not current: the class may have been created again with another binding mode, and nothing changes the claim
/// afterwards.
fn immediate(class: Option<&StorageClass>, is_current: bool) -> Result<&StorageClass, Action> {
    match class {
        Some(class) if placement::binds_immediately(class) => Ok(class),
        _ if !is_current => Err(Action::requeue(FRESH)),
        Some(_) => Err(Action::await_change()),
        None => Err(Action::requeue(INTERVAL)),
    }
}

struct ClaimName<'a>(&'a PersistentVolumeClaim);

impl fmt::Display for ClaimName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0.namespace().unwrap_or_default(), self.0.name_any())
    }
}

impl Reclaimer {
    /// Allows the node of the claim's volume to write the claim's status.
    async fn name_node(&self, claim: &PersistentVolumeClaim, pv: &str) -> Result<Action, ReclaimError> {
        let found = Api::<PersistentVolume>::all(self.client.clone()).get_opt(pv).await;
        let found = found.map_err(|source| ReclaimError::Volume { pv: pv.to_owned(), source: Box::new(source) })?;
        let node = found.as_ref().and_then(|pv| bound::node_of(pv, claim));
        let writer = bound::writer(claim);
        let Some(node) = node.filter(|node| writer != Some(node)) else { return Ok(Action::await_change()) };
        match self.annotate(claim, VOLUME_NODE, node.into()).await {
            Ok(true) => {
                info!(claim = %ClaimName(claim), volume = pv, node, "claim annotated with the node of its volume");
            }
            Ok(false) => {}
            // On other clusters, the policy denies replacing the node of a claim.
            Err(ReclaimError::Claim { source, .. })
                if writer.is_some() && matches!(&*source, kube::Error::Api(status) if status.is_invalid()) =>
            {
                warn!(
                    claim = %ClaimName(claim), volume = pv, node, writer,
                    "annotation of the claim names another node than that of its volume; set local.granary.dev/node"
                );
                return Ok(Action::requeue(INTERVAL));
            }
            Err(error) => return Err(error),
        }
        Ok(Action::await_change())
    }

    /// Selects the node of the source, also instead of another node: the clone cannot be created elsewhere, and the
    /// scheduler uses the node of the claim. `None` if the node of the source is unknown: the node that is selected
    /// otherwise reports the reason.
    async fn place_clone(
        &self,
        claim: &PersistentVolumeClaim,
        source: Source<'_>,
    ) -> Result<Option<Action>, ReclaimError> {
        let selected = waits_for(claim);
        let node = match source {
            Source::Claim(name) => self.node_of(claim, name).await?,
            Source::Snapshot(name) => self.node_of_snapshot(claim, name).await?,
        };
        let Some(node) = node else {
            return Ok(selected.map(|_| Action::requeue(UNTIL_PUBLISHED)));
        };
        if !self.exists(&node).await? {
            return Ok(None);
        }
        if selected != Some(node.as_str()) && self.annotate(claim, SELECTED_NODE, node.as_str().into()).await? {
            info!(claim = %ClaimName(claim), ?source, node, "node of the source selected for clone");
            if selected.is_some() {
                self.selections().check_pods(claim, &node, Instant::now());
            }
            // Users write the annotation, and an event has a limited length.
            if let Some(other) = selected.filter(|other| is_object_name(other)) {
                self.report_moved(claim, source, &node, other).await;
            }
        }
        // `UNSERVED` does not apply to clones: copying a large volume takes longer.
        Ok(Some(Action::requeue(self.check_pods(claim).await.unwrap_or(INTERVAL))))
    }

    async fn node_of(&self, claim: &PersistentVolumeClaim, source: &str) -> Result<Option<String>, ReclaimError> {
        let claims =
            Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default());
        let failed = |error| ReclaimError::Source { claim: source.to_owned(), source: Box::new(error) };
        let Some(source) = claims.get_opt(source).await.map_err(failed)? else { return Ok(None) };
        let pv = source.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).filter(|pv| is_object_name(pv));
        let Some(pv) = pv else { return Ok(None) };
        let found = Api::<PersistentVolume>::all(self.client.clone()).get_opt(pv).await;
        let found = found.map_err(|error| ReclaimError::Volume { pv: pv.to_owned(), source: Box::new(error) })?;
        Ok(found.and_then(|pv| bound::node_of(&pv, &source).map(str::to_owned)))
    }

    /// The node of a snapshot in the claim's namespace. The cluster may lack the CRDs of snapshots.
    async fn node_of_snapshot(
        &self,
        claim: &PersistentVolumeClaim,
        name: &str,
    ) -> Result<Option<String>, ReclaimError> {
        let failed = |error| ReclaimError::Snapshot { snapshot: name.to_owned(), source: Box::new(error) };
        let resource = |kind, plural| {
            let gvk = GroupVersionKind::gvk(snapshot::GROUP, snapshot::VERSION, kind);
            ApiResource::from_gvk_with_plural(&gvk, plural)
        };
        let (kind, contents) =
            (resource(snapshot::SNAPSHOT, snapshot::SNAPSHOTS), resource(snapshot::CONTENT, snapshot::CONTENTS));
        let namespace = claim.namespace().unwrap_or_default();
        let snapshots = Api::<DynamicObject>::namespaced_with(self.client.clone(), &namespace, &kind);
        let found = match snapshots.get_opt(name).await {
            Err(error) if apiclient::is_missing(&error) => None,
            found => found.map_err(failed)?,
        };
        let Some(found) = found else { return Ok(None) };
        let Some(content) = clone::content_of(&found) else { return Ok(None) };
        let contents = Api::<DynamicObject>::all_with(self.client.clone(), &contents);
        let content = contents.get_opt(content).await.map_err(failed)?;
        Ok(content.and_then(|content| clone::node_of(&content, &found)))
    }

    async fn place(&self, claim: &PersistentVolumeClaim) -> Result<Action, ReclaimError> {
        let Some(class) = placement::class_of(claim) else { return Ok(Action::await_change()) };
        let start = Instant::now();
        let (at, published) = self.published().await?;
        let found = placement::find(class, &published);
        let class = match immediate(found, at >= start) {
            Ok(class) => class,
            Err(action) => return Ok(action),
        };
        let selected = {
            let (mut selections, now) = (self.selections(), Instant::now());
            // The watch will report the selection.
            let Some(history) = selections.history(claim, now) else { return Ok(Action::await_change()) };
            let selected = placement::select(size_of(claim), class, &published, &history);
            if let Ok(node) = &selected {
                selections.select(claim, node, now);
            }
            selected
        };
        let node = match selected {
            Ok(node) => node,
            Err(none) => {
                self.report(claim, &none).await;
                return Ok(Action::requeue(if none.is_temporary() { UNTIL_PUBLISHED } else { UNTIL_SPACE }));
            }
        };
        let written = self.annotate(claim, SELECTED_NODE, node.as_str().into()).await;
        if matches!(written, Ok(true)) {
            info!(claim = %ClaimName(claim), node, "node selected for claim");
        } else {
            self.selections().withdraw(claim, Instant::now());
        }
        written.map(|_| Action::await_change())
    }

    /// Removes the selected node of a claim with immediate binding if this node does not create the volume.
    async fn expire(&self, claim: &PersistentVolumeClaim, node: &str) -> Result<Action, ReclaimError> {
        let Some(class) = placement::class_of(claim) else { return Ok(Action::requeue(INTERVAL)) };
        let (_, published) = self.published().await?;
        if !placement::find(class, &published).is_some_and(placement::binds_immediately) {
            return Ok(Action::requeue(INTERVAL));
        }
        if self.annotate(claim, SELECTED_NODE, Value::Null).await? {
            warn!(claim = %ClaimName(claim), node, "selected node removed from claim, it has not created the volume");
        }
        Ok(Action::await_change())
    }

    /// Publishes an event on a claim that no node can get, at most every few minutes. A temporary obstacle is reported
    /// only if it lasts.
    async fn report(&self, claim: &PersistentVolumeClaim, none: &NoNode) {
        if !self.selections().report(claim, none.is_temporary(), Instant::now()) {
            return;
        }
        info!(claim = %ClaimName(claim), reason = %none, "no node for claim");
        self.publish(claim, EventType::Warning, "ProvisioningFailed", none.to_string()).await;
    }

    /// Publishes an event on a clone that its selected node does not create, at most every few minutes: the pod may be
    /// unable to run on the node of the source.
    async fn report_moved(&self, claim: &PersistentVolumeClaim, source: Source<'_>, node: &str, other: &str) {
        if !self.selections().report_moved(claim, Instant::now()) {
            return;
        }
        let note = format!(
            "the data of {source} is on node {node}, which creates the volume instead of node {other}: pods that use this claim \
             have to run on node {node}"
        );
        self.publish(claim, EventType::Normal, "SourceNodeSelected", note).await;
    }

    /// Checks whether the pods of a clone can run on the node of its source, after this node replaced the one that the
    /// scheduler selected. Returns the time until the next check. `None`, without a request, for all other claims.
    async fn check_pods(&self, claim: &PersistentVolumeClaim) -> Option<Duration> {
        let (left, node) = self.selections().next_check(claim, Instant::now())?;
        if !left.is_zero() {
            return Some(left);
        }
        // Waiting here would keep other claims from their passes.
        let Ok(_checking) = self.checking.try_lock() else { return Some(UNTIL_CHECKED) };
        let result = self.report_unschedulable(claim, &node).await.unwrap_or_else(|error| {
            let error: &dyn std::error::Error = &error;
            warn!(claim = %ClaimName(claim), error, "pods of clone not checked, will retry");
            PodCheck::Waiting
        });
        self.selections().checked(claim, result, Instant::now())
    }

    /// Publishes an event on a clone with a pod for which the scheduler finds no node, at most every few minutes.
    async fn report_unschedulable(&self, claim: &PersistentVolumeClaim, node: &str) -> Result<PodCheck, ReclaimError> {
        let failed = |source| ReclaimError::List { what: "pods", source: Box::new(source) };
        let namespace = claim.namespace().unwrap_or_default();
        let name = claim.name_any();
        let Ok(found) = timeout(CHECK, unschedulable::find(&self.client, &namespace, &name)).await else {
            return Ok(PodCheck::Waiting);
        };
        let pod = match found.map_err(failed)? {
            Found::Unschedulable(pod) => pod,
            Found::Waiting => return Ok(PodCheck::Waiting),
            Found::Nothing => return Ok(PodCheck::Scheduled),
        };
        let Some((source, message)) = clone::source(claim).zip(unschedulable::message(&pod)) else {
            return Ok(PodCheck::Waiting);
        };
        let found = self.nodes.get_opt(node).await;
        let found = found.map_err(|source| ReclaimError::Node { node: node.to_owned(), source: Box::new(source) })?;
        if !self.selections().report_unsuitable(claim, Instant::now()) {
            return Ok(PodCheck::Reported);
        }
        let note = unschedulable::note(source, node, found.as_ref(), &pod, message);
        info!(
            claim = %ClaimName(claim), pod = pod.name(), node, reason = message,
            "pod cannot run on node of the source"
        );
        self.publish(claim, EventType::Warning, "SourceNodeUnsuitable", note).await;
        Ok(PodCheck::Reported)
    }

    async fn publish(&self, claim: &PersistentVolumeClaim, type_: EventType, reason: &str, note: String) {
        let (reason, note, action) = (reason.to_owned(), Some(note), "SelectNode".to_owned());
        let event = Event { type_, reason, note, action, secondary: None };
        if let Err(error) = self.events.publish(&event, &claim.object_ref(&())).await {
            let error: &dyn std::error::Error = &error;
            warn!(claim = %ClaimName(claim), error, "event not published");
        }
    }

    /// Nodes, classes and free space, at most a few seconds old, and when they were read. The function lists them
    /// instead of watching, because most clusters have no class with immediate binding.
    async fn published(&self) -> Result<(Instant, Arc<Published>), ReclaimError> {
        let cache = || self.published.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, published)) = &*cache()
            && at.elapsed() < FRESH
        {
            return Ok((*at, Arc::clone(published)));
        }
        let at = Instant::now();
        let failed = |what| move |source| ReclaimError::List { what, source: Box::new(source) };
        let (all, of_driver) =
            (ListParams::default(), ListParams::default().labels(&format!("{DRIVER_LABEL}={DRIVER_NAME}")));
        let (classes, capacities) =
            (Api::<StorageClass>::all(self.client.clone()), Api::<CSIStorageCapacity>::all(self.client.clone()));
        let (classes, nodes, capacities) = futures::try_join!(
            classes.list(&all).map_err(failed("storage classes")),
            self.nodes.list(&all).map_err(failed("nodes")),
            capacities.list(&of_driver).map_err(failed("capacities")),
        )?;
        let published = Published { classes: classes.items, nodes: nodes.items, capacities: capacities.items };
        let published = Arc::new(published);
        *cache() = Some((at, Arc::clone(&published)));
        Ok((at, published))
    }

    fn selections(&self) -> MutexGuard<'_, Selections> {
        self.selections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets or removes an annotation. Returns `false` if another writer was faster. The watch reports its change.
    async fn annotate(
        &self,
        claim: &PersistentVolumeClaim,
        annotation: &'static str,
        value: Value,
    ) -> Result<bool, ReclaimError> {
        let claims =
            Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default());
        let patch = json!({"metadata": {
            "resourceVersion": claim.resource_version(), "uid": claim.uid(), "annotations": {annotation: value},
        }});
        match claims.patch(&claim.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => Ok(false),
            Err(source) => Err(ReclaimError::Claim { annotation, source: Box::new(source) }),
        }
    }

    /// Whether a Node exists. Users can write the annotation, so the name may be invalid.
    async fn exists(&self, node: &str) -> Result<bool, ReclaimError> {
        if !is_object_name(node) {
            return Ok(false);
        }
        let existing = || self.existing.lock().unwrap_or_else(PoisonError::into_inner);
        if existing().get(node).is_some_and(|read| read.elapsed() < INTERVAL) {
            return Ok(true);
        }
        let found = self.nodes.get_metadata_opt(node).await;
        let found = found.map_err(|source| ReclaimError::Node { node: node.to_owned(), source: Box::new(source) })?;
        if found.is_some() {
            existing().insert(node.to_owned(), Instant::now());
        }
        Ok(found.is_some())
    }
}

#[cfg(test)]
mod tests {
    use supervisor::{Settings, Supervisor};
    use tokio::time::sleep;

    use super::*;
    use crate::fixture;

    /// Regression: each event of a claim cleared the failures of the watch of the nodes.
    #[tokio::test(start_paused = true)]
    async fn claims_that_change_do_not_hide_that_the_watch_of_the_nodes_fails() {
        let client = fixture::client(|request| async move {
            if request.uri().path() == "/api/v1/nodes" {
                return (500, json!({}));
            }
            let metadata = json!({"name": "data", "namespace": "shop", "resourceVersion": "1"});
            if request.uri().query().is_some_and(|query| query.contains("watch=true")) {
                sleep(Duration::from_secs(1)).await;
                return (200, json!({"type": "MODIFIED", "object": {"metadata": metadata}}));
            }
            (200, json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": []}))
        });
        let settings = Settings::default();
        let deadline = settings.round_deadline;
        let tree = Supervisor::start("reclaimer", settings, move |cx| reclaim(cx, client.clone()));
        sleep(deadline / 2).await;
        assert_eq!(tree.status().stalled, None);
        sleep(deadline).await;
        assert!(tree.status().stalled.is_some());
        tree.stop(deadline).await.unwrap();
    }

    #[test]
    fn a_class_of_before_the_pass_decides_nothing_finally() {
        let class = |mode: &str| -> StorageClass {
            let class = json!({"provisioner": DRIVER_NAME, "volumeBindingMode": mode});
            serde_json::from_value(class).unwrap()
        };
        let (later, at_once) = (class("WaitForFirstConsumer"), class("Immediate"));
        assert_eq!(immediate(Some(&later), false), Err(Action::requeue(FRESH)));
        assert_eq!(immediate(Some(&later), true), Err(Action::await_change()));
        assert_eq!(immediate(None, false), Err(Action::requeue(FRESH)));
        assert_eq!(immediate(None, true), Err(Action::requeue(INTERVAL)));
        assert_eq!(immediate(Some(&at_once), false), Ok(&at_once));
    }
}
