//! Identity of this pod in the API server, which the admission policies compare.

use cluster::TOPOLOGY_KEY;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::{Api, Client};
use reconciler::agents::NODE_OF_TOKEN;

use crate::arguments::NodeName;

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("cannot read the identity of this pod from the API server")]
    Review(#[source] Box<kube::Error>),
    #[error(
        "the API server does not report the node of {user}: use the token that the kubelet mounts into the pod, and \
         Kubernetes 1.30 or newer"
    )]
    NoNode { user: String },
    #[error("the pod's token is for node {found}, but --node is {wanted}; set --node to spec.nodeName of the pod")]
    OtherNode { found: String, wanted: NodeName },
    #[error("cannot read Node {node}")]
    Read { node: NodeName, source: Box<kube::Error> },
    /// PVs name their node by this label.
    #[error("the label {TOPOLOGY_KEY} of node {node} is {found:?}; set it to the node's name")]
    OtherHostname { node: NodeName, found: Option<String> },
}

/// Checks that the pod's token and the node's label match the node.
///
/// # Errors
/// [`IdentityError`]: the policies would reject all writes of this pod, or the scheduler would place no claim on
/// this node.
pub async fn check(client: &Client, node: &NodeName) -> Result<(), IdentityError> {
    let reviews = Api::<SelfSubjectReview>::all(client.clone());
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await;
    let review = review.map_err(|source| IdentityError::Review(Box::new(source)))?;
    let user = review.status.and_then(|status| status.user_info).unwrap_or_default();
    let found = user.extra.as_ref().and_then(|extra| extra.get(NODE_OF_TOKEN)?.first());
    match found {
        None => return Err(IdentityError::NoNode { user: user.username.unwrap_or_default() }),
        Some(found) if found != node.as_str() => {
            return Err(IdentityError::OtherNode { found: found.clone(), wanted: node.clone() });
        }
        Some(_) => {}
    }
    let object = Api::<Node>::all(client.clone()).get(node.as_str()).await;
    let object = object.map_err(|source| IdentityError::Read { node: node.clone(), source: Box::new(source) })?;
    let hostname = object.metadata.labels.as_ref().and_then(|labels| labels.get(TOPOLOGY_KEY));
    if hostname.is_some_and(|found| found == node.as_str()) {
        return Ok(());
    }
    Err(IdentityError::OtherHostname { node: node.clone(), found: hostname.cloned() })
}
