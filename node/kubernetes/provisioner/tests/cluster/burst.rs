//! Many claims at the same time.

use std::sync::Arc;

use envtest::{Cluster, Failure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::ListParams;
use serde_json::json;
use volume::State;

use crate::node::{Node, until};

const CLAIMS: usize = 100;

/// The case is the last one and removes nothing, because the PV controller binds one claim after the other, with four
/// requests for each.
pub(crate) async fn a_burst_of_claims_is_served(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = Node::start(&cluster, "burst").await?;
    let small = json!({"resources": {"requests": {"storage": "1Mi"}}});
    let names: Vec<_> = (0..CLAIMS).map(|number| format!("data-{number}")).collect();
    stream::iter(&names)
        .map(|name| node.claim_here(name, small.clone()))
        .buffer_unordered(8)
        .try_collect::<Vec<_>>()
        .await?;
    until("the volumes of all claims", async || {
        let live = node.volumes.live();
        let announced = live.iter().filter_map(|id| node.volumes.record(id));
        let announced = announced.filter(|record| record.state == State::Announced).count();
        Ok((announced != CLAIMS).then(|| announced.to_string()))
    })
    .await?;
    let mut pvs = node.pvs().list(&ListParams::default()).await?.items;
    pvs.retain(|pv| pv.spec.as_ref().is_some_and(|spec| spec.storage_class_name.as_ref() == Some(&node.class)));
    assert_eq!((pvs.len(), node.volumes.live().len()), (CLAIMS, CLAIMS));
    node.bound("data-0").await?;
    assert_eq!(node.attempts(), 1);
    node.halt().await
}
