//! Connections between pods, and to Services through the rules of kube-proxy.

use std::net::{Ipv4Addr, SocketAddr};

use e2e::{Case, Failure, NETWORKS, PATIENCE, Part, Seen, Server, eventually};
use k8s_openapi::api::core::v1::{Pod, Service};
use serde_json::json;
use workload::{Check, serve};

pub async fn cases(part: &Part, client: &Server, server: &Server) {
    let case = &part.case;
    tokio::join!(
        part.shows("pods_reach_each_other_in_the_chosen_network", pods(case, client, server)),
        part.shows("pods_reach_a_service_in_the_chosen_network", service(case, client, server)),
        part.shows("pods_reach_the_api_server_by_its_service", api_server(case, client)),
    );
}

/// Request for the host name of a pod's container, which equals the pod's name.
fn question() -> String {
    serve::target(&Check::Read { path: "/etc/hostname".into() })
}

fn answer(server: &Server) -> String {
    format!(r#""text":"{}"#, server.name())
}

async fn pods(case: &Case, client: &Server, server: &Server) -> Result<(), Failure> {
    let pod = case.api::<Pod>().get(server.name()).await.map_err(Failure::api("read a pod"))?;
    let address = address(pod.status.and_then(|status| status.pod_ip));
    assert!(matches!(address.octets(), [172, 20, 16..=31, _]), "{address} is not one of {NETWORKS:?}");
    // A pod reaches itself through its loopback interface.
    for (address, answers) in [(address, server), (Ipv4Addr::LOCALHOST, client)] {
        let answered = client.fetch(SocketAddr::from((address, 8080)), &question()).await?;
        assert!(answered.starts_with("HTTP/1.1 200") && answered.contains(&answer(answers)), "{answered}");
    }
    Ok(())
}

async fn service(case: &Case, client: &Server, server: &Server) -> Result<(), Failure> {
    let service: Service = case
        .create(json!({
            "metadata": {"name": server.name()},
            "spec": {"selector": {"pod": server.name()}, "ports": [{"port": 80, "targetPort": 8080}]},
        }))
        .await?;
    let address = address(service.spec.and_then(|spec| spec.cluster_ip));
    assert!(matches!(address.octets(), [172, 21, 4..=7, _]), "{address} is not one of {NETWORKS:?}");
    // Endpoints and their rules exist after a delay.
    eventually(PATIENCE, "an answer through the Service", async || {
        Ok(match client.fetch(SocketAddr::from((address, 80)), &question()).await {
            Ok(answered) if answered.contains(&answer(server)) => Seen::Done(()),
            other => Seen::NotYet(format!("{other:?}")),
        })
    })
    .await
}

async fn api_server(case: &Case, client: &Server) -> Result<(), Failure> {
    let api = case.api_of::<Service>("default").get("kubernetes").await.map_err(Failure::api("read a service"))?;
    let api = address(api.spec.and_then(|spec| spec.cluster_ip));
    assert_eq!(api.octets(), [172, 21, 4, 1], "the first of {NETWORKS:?}");
    let refused = client.fetch(SocketAddr::from((api, 443)), "/").await?;
    assert!(refused.contains("an HTTP request to an HTTPS server"), "{refused}");
    Ok(())
}

#[track_caller]
fn address(text: Option<String>) -> Ipv4Addr {
    text.as_deref().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{text:?} is not an address"))
}
