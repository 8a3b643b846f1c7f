//! The Service of the cluster's DNS, by which tools find the DNS.
//!
//! Each node answers its own pods at the Service's address without kube-proxy (`programs::dns`). The EndpointSlices
//! describe this to their readers: each Node has one endpoint, which is local to it (`internalTrafficPolicy`) and has
//! the address that only the node itself reaches.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use supervisor::Context;

use crate::control::{WatchEnded, control, copied, watch};
use crate::run::FIELD_MANAGER;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-dns";

/// Interval of passes. The service does not watch changes of the Service and the EndpointSlices.
const INTERVAL: Duration = Duration::from_mins(5);

#[derive(Debug, thiserror::Error)]
#[error("cannot apply {what} of the cluster's DNS")]
struct ApplyError {
    what: &'static str,
    source: Box<kube::Error>,
}

struct Objects {
    services: Api<Service>,
    endpoints: Api<EndpointSlice>,
    address: Ipv4Addr,
}

/// Maintains the Service with this address, and an endpoint for each Node, until cancelled. Healthy when it has listed
/// the Nodes. Waits for an unreachable API server.
pub async fn dns(cx: Context, client: Client, address: Ipv4Addr) -> Result<(), WatchEnded> {
    let nodes = watch(cx.clone(), Api::<Node>::all(client.clone()), watcher::Config::default());
    let (nodes, changed) = copied(nodes);
    let services = Api::namespaced(client.clone(), NAMESPACE);
    let objects = Objects { services, endpoints: Api::namespaced(client, NAMESPACE), address };
    control(cx, "endpoints of the DNS", nodes, changed, pass, Arc::new(objects)).await
}

async fn pass(node: Arc<Node>, objects: Arc<Objects>) -> Result<Action, ApplyError> {
    let failed = |what| move |error| ApplyError { what, source: Box::new(error) };
    let Objects { services, endpoints, address } = &*objects;
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let wanted = Patch::Apply(service(*address));
    services.patch(NAME, &params, &wanted).await.map_err(failed("the Service"))?;
    // A deleted Node owns its endpoint, so the garbage collector deletes the endpoint.
    if node.metadata.deletion_timestamp.is_none() {
        let (name, wanted) = endpoint(&node, *address);
        endpoints.patch(&name, &params, &Patch::Apply(wanted)).await.map_err(failed("an EndpointSlice"))?;
    }
    Ok(Action::requeue(INTERVAL))
}

fn ports() -> Value {
    json!([
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
    ])
}

fn service(address: Ipv4Addr) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": NAME,
            "namespace": NAMESPACE,
            // Same labels as in upstream's deployment.
            "labels": {"k8s-app": NAME, "kubernetes.io/name": "CoreDNS"},
        },
        "spec": {"clusterIP": address, "internalTrafficPolicy": "Local", "ports": ports()},
    })
}

fn endpoint(node: &Node, address: Ipv4Addr) -> (String, Value) {
    let node_name = node.name_any();
    let name = format!("{NAME}-{node_name}");
    let wanted = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {
                "kubernetes.io/service-name": NAME,
                "endpointslice.kubernetes.io/managed-by": "granary.dev",
            },
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node.uid()}],
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "nodeName": node_name, "conditions": {"ready": true}}],
        "ports": ports(),
    });
    (name, wanted)
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicU32, Ordering};

    use supervisor::{Settings, Supervisor};
    use tokio::sync::Notify;
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::fixture;

    const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);

    /// The types must have all fields, because the API server ignores unknown fields silently.
    #[test]
    fn the_objects_have_only_fields_of_the_api() {
        let wanted = service(ADDRESS);
        let typed: Service = serde_json::from_value(wanted.clone()).unwrap();
        assert_eq!(serde_json::to_value(typed).unwrap(), wanted);
        let metadata = json!({"metadata": {"name": "one", "uid": "u"}});
        let (name, wanted) = endpoint(&serde_json::from_value(metadata).unwrap(), ADDRESS);
        assert_eq!(name, "kube-dns-one");
        let typed: EndpointSlice = serde_json::from_value(wanted.clone()).unwrap();
        assert_eq!(serde_json::to_value(typed).unwrap(), wanted);
    }

    /// Regression: the pass over a new Node of a later list began when its page arrived, and did not find the Node. No
    /// other pass followed.
    #[tokio::test(start_paused = true)]
    async fn a_node_on_an_early_page_of_a_later_list_gets_an_endpoint() {
        fn page(node: &str, next: Option<&str>) -> Value {
            let metadata = json!({"resourceVersion": "1", "continue": next});
            json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": [{"metadata": {"name": node}}]})
        }
        let (lists, has_endpoint) = (AtomicU32::new(0), Arc::new(Notify::new()));
        let applied = Arc::clone(&has_endpoint);
        let client = fixture::client(move |request| {
            let path = request.uri().path();
            if path.ends_with("/kube-dns-new") {
                applied.notify_one();
            }
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let is_list = path == "/api/v1/nodes" && !is_watch;
            let lists = lists.fetch_add(u32::from(is_list), Ordering::Relaxed);
            async move {
                let answer = match (is_watch, is_list, lists) {
                    (true, _, 1) => json!({"type": "ERROR", "object": {"status": "Failure", "code": 410}}),
                    (true, ..) => pending().await,
                    (_, true, 0) => page("old", None),
                    (_, true, 1) => page("new", Some("token")),
                    (_, true, _) => {
                        // Passes that do not wait for this page end before it.
                        sleep(Duration::from_secs(1)).await;
                        page("old", None)
                    }
                    _ => json!({}),
                };
                (200, answer)
            }
        });
        let tree = Supervisor::start("dns", Settings::default(), move |cx| dns(cx, client.clone(), ADDRESS));
        timeout(INTERVAL / 2, has_endpoint.notified()).await.unwrap();
        tree.stop(INTERVAL).await.unwrap();
    }

    /// With a selector, another controller would write the endpoints.
    #[test]
    fn the_service_selects_no_pods() {
        assert_eq!(service(ADDRESS)["spec"].get("selector"), None);
    }
}
