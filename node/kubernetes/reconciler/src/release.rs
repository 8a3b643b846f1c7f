//! Gives claims back to the scheduler that wait for a node which is gone: nobody else would, and their pods are pinned
//! to it for ever.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cluster::DRIVER_NAME;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use serde_json::json;
use supervisor::Context;
use tokio::time::Instant;
use tracing::info;

use crate::admission::SELECTED_NODE;
use crate::control::{WatchEnded, control};

/// Who makes the volume; the second is what older controllers write.
const PROVISIONER: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];

/// A watch may miss that a node was deleted: look again after this.
const INTERVAL: Duration = Duration::from_mins(5);

/// A claim could not be given back.
#[derive(Debug, thiserror::Error)]
enum PassError {
    #[error("cannot look at the node {node}")]
    Node { node: String, source: Box<kube::Error> },
    #[error("cannot give the claim back to the scheduler")]
    Claim(#[source] Box<kube::Error>),
}

struct Release {
    client: Client,
    nodes: Api<Node>,
    /// Nodes that were there when it was looked, and have not been touched since.
    there: Mutex<BTreeMap<String, Instant>>,
}

/// Watches claims and nodes until it is cancelled. Healthy when it has seen the claims that were there.
///
/// # Errors
/// [`WatchEnded`]; an API server that is away is waited for and is none.
pub async fn release(cx: Context, client: Client) -> Result<(), WatchEnded> {
    let nodes = Api::<Node>::all(client.clone());
    let release = Arc::new(Release { client: client.clone(), nodes: nodes.clone(), there: Mutex::default() });
    let controller = Controller::new(Api::<PersistentVolumeClaim>::all(client), watcher::Config::default());
    let (forget, claims) = (Arc::clone(&release), controller.store());
    let controller = controller.watches(nodes, watcher::Config::default(), move |node| {
        let name = node.name_any();
        forget.there.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
        waiting_for(&claims, &name)
    });
    control(cx, "claims", controller, pass, release).await
}

/// The node that the claim waits for, if the volume is ours to make and is not there yet.
fn waits_for(claim: &PersistentVolumeClaim) -> Option<&str> {
    let annotations = claim.annotations();
    let ours = PROVISIONER.iter().any(|key| annotations.get(*key).is_some_and(|name| name == DRIVER_NAME));
    let unbound = claim.spec.as_ref().is_some_and(|spec| spec.volume_name.as_deref().unwrap_or_default().is_empty());
    let kept = claim.metadata.deletion_timestamp.is_none();
    annotations.get(SELECTED_NODE).map(String::as_str).filter(|_| ours && unbound && kept)
}

fn waiting_for(claims: &Store<PersistentVolumeClaim>, node: &str) -> Vec<ObjectRef<PersistentVolumeClaim>> {
    claims
        .state()
        .iter()
        .filter(|claim| waits_for(claim) == Some(node))
        .map(|claim| ObjectRef::from_obj(&**claim))
        .collect()
}

async fn pass(claim: Arc<PersistentVolumeClaim>, release: Arc<Release>) -> Result<Action, PassError> {
    let Some(node) = waits_for(&claim) else { return Ok(Action::await_change()) };
    if release.is_there(node).await? {
        return Ok(Action::requeue(INTERVAL));
    }
    let name = claim.name_any();
    let namespace = claim.namespace().unwrap_or_default();
    let claims = Api::<PersistentVolumeClaim>::namespaced(release.client.clone(), &namespace);
    // What was looked at: with another resource version somebody else was faster, and the watch tells it.
    let patch = json!({"metadata": {
        "resourceVersion": claim.resource_version(), "annotations": {SELECTED_NODE: null},
    }});
    match claims.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => {
            info!(claim = %format_args!("{namespace}/{name}"), node, "the node is gone, claim given back to the scheduler")
        }
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {}
        Err(error) => return Err(PassError::Claim(Box::new(error))),
    }
    Ok(Action::await_change())
}

impl Release {
    async fn is_there(&self, node: &str) -> Result<bool, PassError> {
        let seen = |there: &BTreeMap<String, Instant>| there.get(node).is_some_and(|at| at.elapsed() < INTERVAL);
        if seen(&self.there.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(true);
        }
        let found = self.nodes.get_metadata_opt(node).await;
        let found = found.map_err(|source| PassError::Node { node: node.to_owned(), source: Box::new(source) })?;
        if found.is_some() {
            self.there.lock().unwrap_or_else(PoisonError::into_inner).insert(node.to_owned(), Instant::now());
        }
        Ok(found.is_some())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn claim(annotations: Value, spec: Value, metadata: Value) -> PersistentVolumeClaim {
        let mut claim = json!({"metadata": {"name": "c", "annotations": annotations}, "spec": spec});
        claim["metadata"].as_object_mut().unwrap().extend(metadata.as_object().cloned().unwrap());
        serde_json::from_value(claim).unwrap()
    }

    #[test]
    fn only_claims_that_wait_for_a_volume_of_ours_are_given_back() {
        for key in PROVISIONER {
            let ours = json!({SELECTED_NODE: "one", key: DRIVER_NAME});
            assert_eq!(waits_for(&claim(ours.clone(), json!({}), json!({}))), Some("one"));
            assert_eq!(waits_for(&claim(ours.clone(), json!({"volumeName": "pvc-1"}), json!({}))), None);
            let going = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
            assert_eq!(waits_for(&claim(ours, json!({}), going)), None);
            let others = json!({SELECTED_NODE: "one", key: "example.invalid"});
            assert_eq!(waits_for(&claim(others, json!({}), json!({}))), None);
            assert_eq!(waits_for(&claim(json!({key: DRIVER_NAME}), json!({}), json!({}))), None);
        }
        assert_eq!(waits_for(&claim(json!({SELECTED_NODE: "one"}), json!({}), json!({}))), None);
    }
}
