//! Pods reach each other, and Services, by kube-proxy's rules.

use std::net::{Ipv4Addr, SocketAddr};

use e2e::{Case, Failure, PATIENCE, Pod, Seen, Suite, eventually};
use k8s_openapi::api::core::v1::{Pod as Object, Service};
use serde_json::json;
use workload::{Check, serve};

use crate::NETWORKS;

/// Adds the cases.
pub fn cases(suite: Suite) -> Suite {
    suite.case("pods_reach_each_other_and_services_in_the_chosen_networks", pods_reach_each_other_and_services)
}

async fn pods_reach_each_other_and_services(case: Case) -> Result<(), Failure> {
    let service: Service = case
        .create(json!({
            "metadata": {"name": "server"},
            "spec": {"selector": {"pod": "server"}, "ports": [{"port": 80, "targetPort": 8080}]},
        }))
        .await?;
    let service = address(service.spec.and_then(|spec| spec.cluster_ip));
    assert!(matches!(service.octets(), [172, 21, 4..=7, _]), "{service} is not one of {NETWORKS:?}");
    let client = case.open(&Pod::server("client")).await?;
    case.open(&Pod::server("server")).await?;
    let server = case.api::<Object>().get("server").await.map_err(Failure::api("read a pod"))?;
    let server = address(server.status.and_then(|status| status.pod_ip));
    assert!(matches!(server.octets(), [172, 20, 16..=31, _]), "{server} is not one of {NETWORKS:?}");

    // What a container calls itself is its pod's name.
    let question = serve::target(&Check::Read { path: "/etc/hostname".into() });
    let direct = client.fetch(SocketAddr::from((server, 8080)), &question).await?;
    assert!(direct.starts_with("HTTP/1.1 200") && direct.contains(r#""text":"server"#), "{direct}");
    // Endpoints, and the rules for them, come a moment later.
    eventually(PATIENCE, "an answer through the Service", async || {
        Ok(match client.fetch(SocketAddr::from((service, 80)), &question).await {
            Ok(answer) if answer.contains(r#""text":"server"#) => Seen::Done(()),
            other => Seen::NotYet(format!("{other:?}")),
        })
    })
    .await?;

    let api = case.api_of::<Service>("default").get("kubernetes").await.map_err(Failure::api("read a service"))?;
    let api = address(api.spec.and_then(|spec| spec.cluster_ip));
    assert_eq!(api.octets(), [172, 21, 4, 1], "the first of {NETWORKS:?}");
    let refused = client.fetch(SocketAddr::from((api, 443)), "/").await?;
    assert!(refused.contains("an HTTP request to an HTTPS server"), "{refused}");
    Ok(())
}

#[track_caller]
fn address(text: Option<String>) -> Ipv4Addr {
    text.as_deref().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{text:?} is no address"))
}
