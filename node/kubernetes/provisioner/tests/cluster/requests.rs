//! The provisioner's requests to the API server: their number, and what happens between them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use envtest::{Cluster, Failure, PATIENCE, gone, merge};
use http::{Method, Request};
use kube::api::DeleteParams;
use kube::client::Body;
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::timeout;
use tower::service_fn;
use units::Bytes;
use volume::VolumeId;

use crate::kills::resource;
use crate::node::Node;

const DISK: Bytes = Bytes::new(100 << 30);

/// Longest wait of an event of success, while a PV is created or deleted.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// The requests of one node, without watches and those for its capacity.
#[derive(Clone, Default)]
struct Requests(Arc<Mutex<Vec<String>>>);

struct Hold {
    request: &'static str,
    reached: Notify,
    go: Notify,
}

/// While it is set, requests that remove the finalizer of a PV fail, and a list of PVs arrives only after `go`.
#[derive(Default)]
struct StaleList {
    is_set: AtomicBool,
    listed: Notify,
    go: Notify,
}

impl Requests {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, request: &Request<Body>) {
        let what = kind(request);
        if !is_watch(request) && !what.ends_with(" csistoragecapacities") && !what.ends_with(" nodes") {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(what);
        }
    }
}

fn kind(request: &Request<Body>) -> String {
    format!("{} {}", request.method(), resource(request.uri().path()))
}

fn is_watch(request: &Request<Body>) -> bool {
    request.uri().query().is_some_and(|query| query.contains("watch=true"))
}

fn recorded(client: Client, requests: Requests) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |request: Request<Body>| {
        requests.add(&request);
        let client = client.clone();
        async move { client.send(request).await }
    });
    Client::new(service, namespace)
}

fn held(client: Client, hold: Arc<Hold>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |request: Request<Body>| {
        let (client, hold) = (client.clone(), Arc::clone(&hold));
        async move {
            if request.method() != Method::GET && kind(&request) == hold.request {
                hold.reached.notify_one();
                hold.go.notified().await;
                // Later requests pass.
                hold.go.notify_one();
            }
            client.send(request).await
        }
    });
    Client::new(service, namespace)
}

fn with_stale_list(client: Client, stale: Arc<StaleList>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |request: Request<Body>| {
        let (client, stale) = (client.clone(), Arc::clone(&stale));
        async move {
            let is_set = stale.is_set.load(Ordering::SeqCst);
            if is_set && kind(&request) == "PATCH persistentvolumes" {
                return Err(kube::Error::Service("a fault of the test".into()));
            }
            let is_list = request.method() == Method::GET
                && request.uri().path().ends_with("/persistentvolumes")
                && !is_watch(&request);
            let response = client.send(request).await?;
            if is_set && is_list {
                stale.listed.notify_one();
                stale.go.notified().await;
                // Later lists pass.
                stale.go.notify_one();
            }
            Ok(response)
        }
    });
    Client::new(service, namespace)
}

pub async fn a_claim_and_its_deletion_cost_two_requests_each(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = Node::stopped(&cluster, "few-requests", DISK).await?;
    let requests = Requests::default();
    node.storage = recorded(node.storage.clone(), requests.clone());
    node.run().await?;
    let (mut pvs, mut created, mut deleted) = (Vec::new(), Vec::new(), Vec::new());
    for name in ["one", "two", "three"] {
        requests.take();
        let pv = node.provisioned(name, json!({})).await?;
        node.settled(&pv.name_any().parse()?).await?;
        // The event is the last request of a provision.
        node.event(name, "ProvisioningSucceeded").await?;
        created.push(requests.take());
        pvs.push((name, pv));
    }
    for (name, pv) in &pvs {
        requests.take();
        node.delete(name, pv).await?;
        deleted.push(requests.take());
    }
    // Compare the medians: the first claim may read its class, and another write of a PV costs two more requests.
    for sent in [&mut created, &mut deleted] {
        sent.sort_by_key(Vec::len);
    }
    assert_eq!(created[1], ["POST persistentvolumes", "POST events"], "{created:?}");
    assert_eq!(deleted[1], ["DELETE persistentvolumes", "PATCH persistentvolumes"], "no list of PVs: {deleted:?}");
    node.end().await
}

pub async fn a_claim_does_not_wait_for_its_events(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = Node::stopped(&cluster, "held-events", DISK).await?;
    let hold = Arc::new(Hold { request: "POST events", reached: Notify::new(), go: Notify::new() });
    node.storage = held(node.storage.clone(), Arc::clone(&hold));
    node.run().await?;
    for name in ["one", "two"] {
        let pv = node.provisioned(name, json!({})).await?;
        node.settled(&pv.name_any().parse()?).await?;
    }
    timeout(PATIENCE, hold.reached.notified()).await?;
    hold.go.notify_one();
    for name in ["one", "two"] {
        node.event(name, "ProvisioningSucceeded").await?;
    }
    node.end().await
}

pub async fn slow_work_is_announced_by_an_event(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = Node::apart(&cluster, "slow-work").await?;
    let hold = Arc::new(Hold { request: "POST persistentvolumes", reached: Notify::new(), go: Notify::new() });
    node.storage = held(node.storage.clone(), Arc::clone(&hold));
    node.run().await?;
    node.claim_here("slow", json!({})).await?;
    node.event("slow", "Provisioning").await?;
    hold.go.notify_one();
    node.claim_here("fast", json!({})).await?;
    for name in ["slow", "fast"] {
        node.bound(name).await?;
        node.event(name, "ProvisioningSucceeded").await?;
    }
    let events = node.events("fast").await?;
    assert!(events.iter().all(|event| event.reason.as_deref() != Some("Provisioning")), "{events:?}");
    node.end().await
}

pub async fn an_event_of_success_waits_for_the_creation_of_a_pv(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = Node::apart(&cluster, "creation-first").await?;
    node.make_class(json!({"allowVolumeExpansion": true})).await?;
    node.run().await?;
    node.volume("data", json!({})).await?;
    node.halt().await?;
    let hold = Arc::new(Hold { request: "POST persistentvolumes", reached: Notify::new(), go: Notify::new() });
    node.storage = held(node.storage.clone(), Arc::clone(&hold));
    node.run().await?;
    node.claim_here("new", json!({})).await?;
    timeout(PATIENCE, hold.reached.notified()).await?;
    let start = Instant::now();
    node.enlarge("data", "2Gi").await?;
    node.event("data", "VolumeResizeSuccessful").await?;
    assert!(start.elapsed() >= LONGEST_WAIT, "{:?}", start.elapsed());
    hold.go.notify_one();
    node.event("new", "ProvisioningSucceeded").await?;
    node.end().await
}

pub async fn an_event_of_success_waits_for_the_deletion_of_a_pv(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = Node::apart(&cluster, "deletion-first").await?;
    let hold = Arc::new(Hold { request: "PATCH persistentvolumes", reached: Notify::new(), go: Notify::new() });
    node.storage = held(node.storage.clone(), Arc::clone(&hold));
    node.run().await?;
    node.volume("old", json!({})).await?;
    node.claims().delete("old", &DeleteParams::default()).await?;
    timeout(PATIENCE, hold.reached.notified()).await?;
    let start = Instant::now();
    node.claim_here("new", json!({})).await?;
    node.event("new", "ProvisioningSucceeded").await?;
    assert!(start.elapsed() >= LONGEST_WAIT, "{:?}", start.elapsed());
    hold.go.notify_one();
    node.end().await
}

pub async fn a_pv_created_before_the_end_of_the_former_keeps_the_data(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = Node::apart(&cluster, "in-between").await?;
    let hold = Arc::new(Hold { request: "PATCH persistentvolumes", reached: Notify::new(), go: Notify::new() });
    node.storage = held(node.storage.clone(), Arc::clone(&hold));
    node.run().await?;
    let pv = node.provisioned("data", json!({})).await?;
    let id: VolumeId = pv.name_any().parse()?;
    node.settled(&id).await?;
    node.claims().delete("data", &DeleteParams::default()).await?;
    timeout(PATIENCE, hold.reached.notified()).await?;
    assert_eq!(node.volumes.retired(), std::slice::from_ref(&id));
    node.second_pv(&pv, json!({"name": "in-between"})).await?;
    hold.go.notify_one();
    gone(&node.pvs(), id.as_str()).await?;
    // When another volume was removed, the provisioner has also processed the trash entry of the first one.
    let other = node.provisioned("other", json!({})).await?;
    node.delete("other", &other).await?;
    // The volume of the second PV is live without a comparison of disk and cluster.
    node.live(&id).await?;
    node.pvs().delete("in-between", &DeleteParams::default()).await?;
    node.end().await
}

/// Regression: the removal left the volume in the trash until the next comparison of disk and cluster, because the list
/// still had the PV.
pub async fn a_pv_that_ends_after_its_list_leaves_no_data(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut node = Node::apart(&cluster, "stale-list").await?;
    let stale = Arc::new(StaleList::default());
    node.storage = with_stale_list(node.storage.clone(), Arc::clone(&stale));
    node.run().await?;
    let (pv, other) = (node.provisioned("data", json!({})).await?, node.provisioned("other", json!({})).await?);
    let id: VolumeId = pv.name_any().parse()?;
    node.settled(&id).await?;
    node.settled(&other.name_any().parse()?).await?;
    stale.is_set.store(true, Ordering::SeqCst);
    node.claims().delete("data", &DeleteParams::default()).await?;
    timeout(PATIENCE, stale.listed.notified()).await?;
    // The API server executes a request that failed for the provisioner.
    merge(&node.pvs(), id.as_str(), json!({"metadata": {"finalizers": null}})).await?;
    gone(&node.pvs(), id.as_str()).await?;
    stale.is_set.store(false, Ordering::SeqCst);
    // When another volume was removed, the watch has shown the end of the PV, which has no other pass.
    node.delete("other", &other).await?;
    assert_eq!(node.volumes.retired(), [id]);
    stale.go.notify_one();
    node.gone(&pv).await?;
    node.end().await
}
