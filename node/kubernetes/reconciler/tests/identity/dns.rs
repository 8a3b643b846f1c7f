//! The identity of CoreDNS, and the Service of the cluster's DNS.

use std::sync::Arc;
use std::time::Duration;

use envtest::{Cluster, Failure, Identity, create, remove};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ListParams, PostParams};
use kube::{Api, Error};
use serde_json::json;
use supervisor::{Settings, Supervisor};

use crate::{Nodes, forbidden, until};

const NODE: &str = "resolver";

pub(crate) async fn coredns_reads_the_objects_of_names_and_no_others(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Nodes::of(&cluster).await?;
    let (dns, all) = (cluster.client(Identity::Dns).await?, ListParams::default());
    let services = Api::<Service>::all(dns.clone());
    // Retry, because the authorizer reads a cache.
    until("the role of CoreDNS", async || match services.list(&all).await {
        Ok(_) => Ok(None),
        Err(Error::Api(status)) if status.is_forbidden() => Ok(Some(status.message)),
        Err(error) => Err(error),
    })
    .await?;
    Api::<Namespace>::all(dns.clone()).list(&all).await?;
    Api::<EndpointSlice>::all(dns.clone()).list(&all).await?;

    forbidden(Api::<Secret>::all(dns.clone()).list(&all).await);
    forbidden(Api::<ConfigMap>::all(dns.clone()).list(&all).await);
    forbidden(Api::<Pod>::all(dns.clone()).list(&all).await);
    forbidden(Api::<Node>::all(dns.clone()).list(&all).await);
    let service = serde_json::from_value(json!({"metadata": {"name": "new"}, "spec": {"ports": [{"port": 80}]}}))?;
    forbidden(Api::default_namespaced(dns).create(&PostParams::default(), &service).await.map(|_: Service| ()));
    Ok(())
}

pub(crate) async fn the_service_has_an_endpoint_on_each_node(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (client, address) = (cluster.admin(), cluster.config().dns_service());
    let nodes = Api::<Node>::all(client.clone());
    create(&nodes, json!({"metadata": {"name": NODE}})).await?;
    let tree = Supervisor::start("dns", Settings::default(), {
        let client = client.clone();
        move |cx| reconciler::dns(cx, client.clone(), address)
    });
    let slices = Api::<EndpointSlice>::namespaced(client.clone(), "kube-system");
    until("the endpoint", async || {
        let found = slices.get_opt(&format!("kube-dns-{NODE}")).await?;
        let endpoints = found.and_then(|slice| slice.endpoints).unwrap_or_default();
        let is_own = |endpoint: &k8s_openapi::api::discovery::v1::Endpoint| {
            endpoint.node_name.as_deref() == Some(NODE) && endpoint.addresses == [address.to_string()]
        };
        Ok((endpoints.len() != 1 || !endpoints.iter().all(is_own)).then(|| format!("{endpoints:?}")))
    })
    .await?;
    let service = Api::<Service>::namespaced(client, "kube-system").get("kube-dns").await?.spec.unwrap_or_default();
    assert_eq!(service.cluster_ip, Some(address.to_string()));
    assert_eq!(service.internal_traffic_policy.as_deref(), Some("Local"));
    assert_eq!(service.selector, None);
    tree.stop(Duration::from_secs(10)).await?;
    remove(&nodes, NODE).await
}
