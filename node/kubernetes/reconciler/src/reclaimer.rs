//! Writes the node of claims, which admission policies forbid the nodes themselves.
//!
//! A claim whose selected node was deleted returns to the scheduler. No other component does this, and its pods would
//! wait forever. A claim that was bound to an existing PV gets the node of this PV when it is expanded.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cluster::DRIVER_NAME;
use cluster::claim::{SELECTED_NODE, VOLUME_NODE};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use supervisor::Context;
use tokio::time::Instant;
use tracing::info;

use crate::bound;
use crate::control::{WatchEnded, control};

/// Annotations with the claim's provisioner. Older controllers write the second one.
pub(crate) const PROVISIONER: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];

/// A watch may miss that a node was deleted: claims are examined again after this.
const INTERVAL: Duration = Duration::from_mins(5);

#[derive(Debug, thiserror::Error)]
enum ReclaimError {
    #[error("cannot read node {node}")]
    Node { node: String, source: Box<kube::Error> },
    #[error("cannot read PV {pv}")]
    Volume { pv: String, source: Box<kube::Error> },
    #[error("cannot write the annotation {annotation} of the claim")]
    Claim { annotation: &'static str, source: Box<kube::Error> },
}

struct Reclaimer {
    client: Client,
    nodes: Api<Node>,
    /// Nodes that exist, and when they were read. The watch removes those that change.
    existing: Mutex<BTreeMap<String, Instant>>,
}

/// Watches claims and nodes until it is cancelled. Healthy when it has read all claims.
///
/// # Errors
/// [`WatchEnded`]. While the API server is unreachable, it waits.
pub async fn reclaim(cx: Context, client: Client) -> Result<(), WatchEnded> {
    let nodes = Api::<Node>::all(client.clone());
    let reclaimer = Arc::new(Reclaimer { client: client.clone(), nodes: nodes.clone(), existing: Mutex::default() });
    let controller = Controller::new(Api::<PersistentVolumeClaim>::all(client), watcher::Config::default());
    let (changed, claims) = (Arc::clone(&reclaimer), controller.store());
    let controller = controller.watches(nodes, watcher::Config::default(), move |node| {
        let name = node.name_any();
        changed.existing.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
        waiting_for(&claims, &name)
    });
    control(cx, "claims", controller, reconcile, reclaimer).await
}

/// The selected node of a claim of our driver without a volume.
fn waits_for(claim: &PersistentVolumeClaim) -> Option<&str> {
    let annotations = claim.annotations();
    let ours = PROVISIONER.iter().any(|key| annotations.get(*key).is_some_and(|name| name == DRIVER_NAME));
    let unbound = claim.spec.as_ref().is_some_and(|spec| spec.volume_name.as_deref().unwrap_or_default().is_empty());
    let live = claim.metadata.deletion_timestamp.is_none();
    annotations.get(SELECTED_NODE).map(String::as_str).filter(|_| ours && unbound && live)
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
    if let Some(pv) = bound::expanding(&claim) {
        return reclaimer.name_node(&claim, pv).await;
    }
    let Some(node) = waits_for(&claim) else { return Ok(Action::await_change()) };
    if reclaimer.exists(node).await? {
        return Ok(Action::requeue(INTERVAL));
    }
    if reclaimer.annotate(&claim, SELECTED_NODE, Value::Null).await? {
        info!(claim = %Named(&claim), node, "claim returned to the scheduler, its node was deleted");
    }
    Ok(Action::await_change())
}

/// A claim in log messages.
struct Named<'a>(&'a PersistentVolumeClaim);

impl fmt::Display for Named<'_> {
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
        if let Some(node) = node.filter(|node| bound::writer(claim) != Some(node))
            && self.annotate(claim, VOLUME_NODE, node.into()).await?
        {
            info!(claim = %Named(claim), volume = pv, node, "claim annotated with the node of its volume");
        }
        Ok(Action::await_change())
    }

    /// Sets or removes an annotation. `false` if another writer was faster: the watch reports its change.
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

    async fn exists(&self, node: &str) -> Result<bool, ReclaimError> {
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
    use super::*;

    fn claim(annotations: Value, spec: Value, metadata: Value) -> PersistentVolumeClaim {
        let mut claim = json!({"metadata": {"name": "c", "annotations": annotations}, "spec": spec});
        claim["metadata"].as_object_mut().unwrap().extend(metadata.as_object().cloned().unwrap());
        serde_json::from_value(claim).unwrap()
    }

    #[test]
    fn only_unbound_claims_of_the_driver_are_returned() {
        for key in PROVISIONER {
            let ours = json!({SELECTED_NODE: "one", key: DRIVER_NAME});
            assert_eq!(waits_for(&claim(ours.clone(), json!({}), json!({}))), Some("one"));
            assert_eq!(waits_for(&claim(ours.clone(), json!({"volumeName": "pvc-1"}), json!({}))), None);
            let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
            assert_eq!(waits_for(&claim(ours, json!({}), deleted)), None);
            let others = json!({SELECTED_NODE: "one", key: "example.invalid"});
            assert_eq!(waits_for(&claim(others, json!({}), json!({}))), None);
            assert_eq!(waits_for(&claim(json!({key: DRIVER_NAME}), json!({}), json!({}))), None);
        }
        assert_eq!(waits_for(&claim(json!({SELECTED_NODE: "one"}), json!({}), json!({}))), None);
    }
}
