//! Deletes the bootstrap tokens of nodes that have registered.
//!
//! The approver denies requests with a token while a Node has its name. After that Node was deleted, a client that has
//! read an old token could join with the name.

use std::sync::Arc;
use std::time::Duration;

use cluster::BOOTSTRAP_NODE_ANNOTATION;
use futures::stream;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::{Api, DeleteParams, Preconditions};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::controller::{Action, trigger_with};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use programs::{BOOTSTRAP_NAMESPACE, BOOTSTRAP_TYPE};
use supervisor::Context;
use tracing::info;

use crate::control::{WatchEnded, control, copied, watch};

/// Interval of passes, because a watch may miss the creation of a Node.
const INTERVAL: Duration = Duration::from_mins(5);

#[derive(Debug, thiserror::Error)]
enum PassError {
    #[error("cannot get the Node {node}")]
    Node { node: String, source: Box<kube::Error> },
    #[error("cannot delete the bootstrap token")]
    Token(#[source] Box<kube::Error>),
}

struct Tokens {
    secrets: Api<Secret>,
    nodes: Api<Node>,
}

/// Watches bootstrap tokens and Nodes until cancelled. Healthy when it has listed the tokens. Waits for an unreachable
/// API server.
pub async fn tokens(cx: Context, client: Client) -> Result<(), WatchEnded> {
    let secrets = Api::<Secret>::namespaced(client.clone(), BOOTSTRAP_NAMESPACE);
    let nodes = Api::<Node>::all(client);
    let of_type = watcher::Config::default().fields(&format!("type={BOOTSTRAP_TYPE}"));
    let (copies, changed) = copied(watch(cx.clone(), secrets.clone(), of_type));
    let tokens = copies.clone();
    let of_nodes = watch(cx.clone(), nodes.clone(), watcher::Config::default()).touched_objects();
    let of_nodes = trigger_with(of_nodes, move |node: Node| of_node(&tokens, &node.name_any()));
    let queue = stream::select(changed, of_nodes);
    control(cx, "bootstrap tokens", copies, queue, pass, Arc::new(Tokens { secrets, nodes })).await
}

fn node_of(token: &Secret) -> Option<&str> {
    token.annotations().get(BOOTSTRAP_NODE_ANNOTATION).map(String::as_str).filter(|node| !node.is_empty())
}

fn of_node(tokens: &Store<Secret>, node: &str) -> Vec<ObjectRef<Secret>> {
    let tokens = tokens.state();
    let of_node = tokens.iter().filter(|token| node_of(token) == Some(node));
    of_node.map(|token| ObjectRef::from_obj(&**token)).collect()
}

async fn pass(token: Arc<Secret>, tokens: Arc<Tokens>) -> Result<Action, PassError> {
    let Some(node) = node_of(&token) else { return Ok(Action::await_change()) };
    let found = tokens.nodes.get_metadata_opt(node).await;
    if found.map_err(|source| PassError::Node { node: node.to_owned(), source: Box::new(source) })?.is_none() {
        return Ok(Action::requeue(INTERVAL));
    }
    let name = token.name_any();
    // Delete only this token: the Secret may have been created again for another node.
    let preconditions = Preconditions { uid: token.uid(), resource_version: token.resource_version() };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match tokens.secrets.delete(&name, &params).await {
        Ok(_) => info!(secret = name, node, "bootstrap token deleted, its node has registered"),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {}
        Err(error) => return Err(PassError::Token(Box::new(error))),
    }
    Ok(Action::await_change())
}
