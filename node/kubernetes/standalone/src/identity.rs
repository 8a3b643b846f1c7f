//! Who this pod is to the API server.

use cluster::TOPOLOGY_KEY;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::{Api, Client};
use reconciler::agents::NODE_OF_TOKEN;

use crate::arguments::NodeName;

/// Why nothing would be let through that this node's storage writes, or nothing would come here.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The API server is away, or does not know us.
    #[error("cannot ask the API server who we are")]
    Ask(#[source] Box<kube::Error>),
    /// The token is of no pod, or the API server does not tell of which.
    #[error(
        "the API server does not say which node {user} is on: the token has to be one that kubelet gives to a pod, and \
         Kubernetes 1.30 or newer"
    )]
    NoNode {
        /// Who we are.
        user: String,
    },
    /// The pod runs elsewhere.
    #[error("the pod's token is of node {found}, --node says {wanted}; take the name from spec.nodeName")]
    OtherNode {
        /// Where the pod runs.
        found: String,
        /// What it was told.
        wanted: NodeName,
    },
    /// The Node object cannot be read.
    #[error("cannot read the Node object {node}")]
    Read {
        /// Its name.
        node: NodeName,
        /// Why not.
        #[source]
        source: Box<kube::Error>,
    },
    /// PVs name their node by this label.
    #[error("the label {TOPOLOGY_KEY} of node {node} is {found:?}; it has to be the node's name")]
    OtherHostname {
        /// The Node's name.
        node: NodeName,
        /// The label, if there is one.
        found: Option<String>,
    },
}

/// Makes sure that the API server knows this pod as the one of this node.
///
/// # Errors
/// [`IdentityError`].
pub async fn check(client: &Client, node: &NodeName) -> Result<(), IdentityError> {
    let reviews = Api::<SelfSubjectReview>::all(client.clone());
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await;
    let review = review.map_err(|source| IdentityError::Ask(Box::new(source)))?;
    let user = review.status.and_then(|status| status.user_info).unwrap_or_default();
    let found = user.extra.as_ref().and_then(|extra| extra.get(NODE_OF_TOKEN)?.first());
    match found {
        None => return Err(IdentityError::NoNode { user: user.username.unwrap_or_default() }),
        Some(found) if found != node.as_str() => {
            return Err(IdentityError::OtherNode { found: found.clone(), wanted: node.clone() });
        }
        Some(_) => {}
    }
    let read = Api::<Node>::all(client.clone()).get(node.as_str()).await;
    let read = read.map_err(|source| IdentityError::Read { node: node.clone(), source: Box::new(source) })?;
    let hostname = read.metadata.labels.as_ref().and_then(|labels| labels.get(TOPOLOGY_KEY));
    if hostname.is_some_and(|found| found == node.as_str()) {
        return Ok(());
    }
    Err(IdentityError::OtherHostname { node: node.clone(), found: hostname.cloned() })
}
