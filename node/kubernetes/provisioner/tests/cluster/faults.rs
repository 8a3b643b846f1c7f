//! The API server fails while a claim is created, another one grows, and a third one is deleted. After the fault, all
//! three requests are completed within a minute, without a restart of the provisioner, and the free space is published.
//! First, the fault affects only changes, so that the provisioner sends them. Then it affects watches, too, and three
//! more requests begin.

use std::sync::Arc;
use std::time::Duration;

use apiclient::Deadlines;
use envtest::{Cluster, Failure, Fault, FaultyServer, reached, remove};
use http::StatusCode;
use k8s_openapi::api::core::v1;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use supervisor::{Backoff, Settings};
use tokio::time::timeout;

use crate::capacity;
use crate::node::{Node, until};

/// Deadlines that are much shorter than those of a node, so that the test does not wait for them. A missed deadline
/// also ends silent watches.
const DEADLINES: Deadlines = Deadlines {
    object: Duration::from_secs(4),
    list: Duration::from_secs(5),
    idle: Duration::from_secs(75),
    pooled: Duration::from_secs(45),
};
/// Deadline of a round. Three passes or watches without an answer take longer, and the third one fails within this time
/// after the second one, which is a stall. The first pauses of a watch that failed are 0.8 s to 1.6 s, and 1.6 s to 3.2
/// s.
const ROUND: Duration = Duration::from_secs(9);
/// Duration of a stall of passes without further attempts, in addition to `ROUND`.
const RETRY: Duration = Duration::from_secs(10);
/// Deadline of the recovery, from the end of the fault on.
const RECOVERY: Duration = Duration::from_secs(60);
/// Minimum number of requests and responses that a fault hits while it affects all of them.
const HITS: usize = 5;
/// Parts of the names of the claims: of those that begin while the fault affects only changes, and of the others.
const PARTS: [&str; 2] = ["first", "second"];

pub async fn recovers_from_swallowed_responses(cluster: Arc<Cluster>) -> Result<(), Failure> {
    recovers(&cluster, "swallowed", Fault::Swallow).await
}

pub async fn recovers_from_cut_responses(cluster: Arc<Cluster>) -> Result<(), Failure> {
    recovers(&cluster, "cut", Fault::Cut).await
}

pub async fn recovers_from_late_responses(cluster: Arc<Cluster>) -> Result<(), Failure> {
    recovers(&cluster, "late", Fault::Delay(DEADLINES.list * 2)).await
}

pub async fn recovers_from_a_burst_of_429(cluster: Arc<Cluster>) -> Result<(), Failure> {
    recovers(&cluster, "throttled", Fault::Status(StatusCode::TOO_MANY_REQUESTS)).await
}

pub async fn recovers_from_a_burst_of_500(cluster: Arc<Cluster>) -> Result<(), Failure> {
    recovers(&cluster, "broken", Fault::Status(StatusCode::INTERNAL_SERVER_ERROR)).await
}

async fn recovers(cluster: &Cluster, namespace: &str, fault: Fault) -> Result<(), Failure> {
    let mut node = Node::apart(cluster, namespace).await?;
    let server = FaultyServer::start(node.storage.clone()).await?;
    node.storage = apiclient::client_with(server.config(), DEADLINES)?;
    node.make_class(json!({"allowVolumeExpansion": true})).await?;
    capacity::register(&node).await?;
    let backoff = Backoff { most: RETRY, ..Backoff::default() };
    node.run_with(Settings { backoff, round_deadline: ROUND, ..Settings::default() }).await?;
    let mut deleted = Vec::new();
    for part in PARTS {
        node.volume(&format!("grown-{part}"), json!({})).await?;
        deleted.push(node.volume(&format!("deleted-{part}"), json!({})).await?);
    }
    let attempts = node.attempts();
    let begin = async |part: &str| {
        node.claim_here(&format!("new-{part}"), json!({})).await?;
        node.enlarge(&format!("grown-{part}"), "2Gi").await?;
        node.claims().delete(&format!("deleted-{part}"), &DeleteParams::default()).await?;
        Ok::<_, Failure>(())
    };

    // The watches work, so that the fault affects a request of each operation.
    server.set_for_changes(fault);
    begin(PARTS[0]).await?;
    let changes = [
        "POST /api/v1/persistentvolumes".to_owned(),
        format!("PATCH /api/v1/namespaces/{namespace}/persistentvolumeclaims/grown-{}/status", PARTS[0]),
        format!("DELETE /api/v1/persistentvolumes/{}", deleted[0]),
    ];
    let are_affected = |affected: &Vec<String>| changes.iter().all(|change| affected.contains(change));
    let before = reached("the fault of each change", async || Ok(server.affected()), are_affected).await?.len();
    server.set(fault);
    begin(PARTS[1]).await?;
    let more = before + HITS;
    reached("the fault of all requests", async || Ok(server.affected().len()), |hits| *hits >= more).await?;
    if matches!(fault, Fault::Swallow) {
        until("stalled services", async || {
            let stalled = node.stalled();
            let are_shown = ["claims", "volumes"].iter().all(|name| stalled.contains(&format!("provisioner.{name}")));
            Ok((!are_shown).then(|| stalled.join(" ")))
        })
        .await?;
    }
    server.set(Fault::None);

    // Two volumes of 1 GiB and two of 2 GiB, each with a quarter more for its files.
    let free = until("the free space of 92.5 GiB", async || {
        let objects = capacity::objects(&node).list(&ListParams::default()).await?.items;
        let host = format!(".{}.local.granary.dev", node.name);
        let of_class = objects.iter().find(|o| o.storage_class_name == node.class && o.name_any().ends_with(&host));
        let free = of_class.and_then(|object| Some(object.capacity.as_ref()?.0.clone())).unwrap_or_default();
        Ok((free != "94720Mi").then_some(free))
    });
    let done = async {
        for (part, deleted) in PARTS.into_iter().zip(&deleted) {
            node.bound(&format!("new-{part}")).await?;
            until("the new size of the claim", async || {
                let status = node.claims().get(&format!("grown-{part}")).await?.status.unwrap_or_default();
                let size = status.capacity.and_then(|mut capacity| capacity.remove("storage")).unwrap_or_default().0;
                Ok((size != "2Gi").then_some(size))
            })
            .await?;
            node.removed(deleted.as_str(), deleted).await?;
        }
        free.await?;
        Ok::<_, Failure>(())
    };
    let in_time = timeout(RECOVERY, done).await;
    in_time.map_err(|_| format!("not done {} s after {fault:?}", RECOVERY.as_secs()))??;
    assert_eq!(node.attempts(), attempts, "the provisioner was started again");
    until("the end of all stalls", async || {
        let stalled = node.stalled();
        Ok((!stalled.is_empty()).then(|| stalled.join(" ")))
    })
    .await?;
    remove(&Api::<v1::Node>::all(node.admin.clone()), &node.name).await?;
    node.end().await
}
