//! Requests between pods of different nodes.

use crate::demo::{self, DemoError, REQUEST};
use crate::objects::{self, NAMESPACE, PORT};
use futures::future::try_join_all;
use http::Request;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};
use workload::{Check, Text, serve};

const LIMIT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct MeshResult {
    from: MeshPod,
    to: MeshPod,
    /// Time of the request, which includes the path through the API server.
    duration: Duration,
}

/// A pod that answers requests of other pods.
#[derive(Clone, Debug)]
pub(crate) struct MeshPod {
    node: String,
    pod: String,
    address: IpAddr,
}

impl fmt::Display for MeshResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, duration } = self;
        write!(f, "{} → {}: ", from.node, to.node)?;
        write!(f, "{} reached {} in {} ms", from.address, to.address, duration.as_millis())
    }
}

/// Starts a pod on each node, and waits until all run.
pub(crate) async fn start(
    client: &Client,
    nodes: &[String],
    on_step: impl Fn(&str),
) -> Result<Vec<MeshPod>, DemoError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let started = nodes.iter().enumerate().map(|(index, node)| start_pod(client, &pods, node, format!("mesh-{index}")));
    let mesh_pods = try_join_all(started).await?;
    on_step("a pod on each node answers");
    Ok(mesh_pods)
}

/// Each pod sends a request to the next one, and the last pod to the first. Deletes the pods.
pub(crate) async fn run(client: &Client, mesh_pods: &[MeshPod]) -> Result<Vec<MeshResult>, DemoError> {
    let mut reached = Vec::new();
    for (from, to) in mesh_pods.iter().zip(mesh_pods.iter().cycle().skip(1)) {
        reached.push(reach(client, from, to).await?);
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    for mesh_pod in mesh_pods {
        let name = &mesh_pod.pod;
        pods.delete(name, &DeleteParams::default()).await.map_err(demo::api("delete", name))?;
    }
    Ok(reached)
}

async fn start_pod(client: &Client, pods: &Api<Pod>, node: &str, pod: String) -> Result<MeshPod, DemoError> {
    demo::remove(pods, &pod).await?;
    let object = objects::mesh_pod(node, &pod)?;
    pods.create(&PostParams::default(), &object).await.map_err(demo::api("create", &pod))?;
    let is_running = |pod: Option<&Pod>| address(pod).is_some() || demo::has_ended(pod);
    let found = match demo::wait_for(pods, &pod, is_running).await {
        Ok(found) => found,
        Err(lost) => return Err(DemoError::late(&pod, &demo::events(client.clone()).await, lost)),
    };
    match address(found.as_ref()) {
        Some(address) => Ok(MeshPod { node: node.to_owned(), pod, address }),
        None => Err(DemoError::failed(&pod, &demo::message(found.as_ref()))),
    }
}

fn address(pod: Option<&Pod>) -> Option<IpAddr> {
    let running = demo::phase(pod) == "Running";
    pod.filter(|_| running)?.status.as_ref()?.pod_ip.as_ref()?.parse().ok()
}

/// Repeats the request: the mesh connects nodes some time after they are Ready.
async fn reach(client: &Client, from: &MeshPod, to: &MeshPod) -> Result<MeshResult, DemoError> {
    let begin = Instant::now();
    loop {
        let sent = Instant::now();
        let last = match timeout(REQUEST, request(client, from, to)).await {
            Ok(Ok(())) => return Ok(MeshResult { from: from.clone(), to: to.clone(), duration: sent.elapsed() }),
            Ok(Err(message)) => message,
            Err(_) => format!("no answer within {REQUEST:?}"),
        };
        if begin.elapsed() > LIMIT {
            let MeshPod { node, address, .. } = to;
            let message = format!("the pod of node {} cannot reach {address} on node {node}: {last}", from.node);
            return Err(DemoError::new(message));
        }
        sleep(PAUSE).await;
    }
}

async fn request(client: &Client, from: &MeshPod, to: &MeshPod) -> Result<(), String> {
    // The host name of a container is the name of its pod.
    let target = serve::target(&Check::Read { path: "/etc/hostname".into() });
    let fetch = Check::Fetch { address: SocketAddr::new(to.address, PORT), target };
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{}:{PORT}/proxy{}", from.pod, serve::target(&fetch));
    let request = Request::get(path).body(Vec::new()).map_err(|error| causes::lines(&error).to_string())?;
    let text = client.request_text(request).await.map_err(|error| causes::lines(&error).to_string())?;
    let answer: Result<Text, String> = serve::answer(&text).map_err(|error| causes::lines(&error).to_string())?;
    is_of(&answer?.text, &to.pod)
}

fn is_of(answer: &str, pod: &str) -> Result<(), String> {
    let body = answer.split_once("\r\n\r\n").map_or(answer, |(_, body)| body);
    match serve::answer::<Text>(body) {
        Ok(Ok(name)) if answer.starts_with("HTTP/1.1 200 ") && name.text.trim_end() == pod => Ok(()),
        Ok(_) | Err(_) => Err(format!("the answer is not from pod {pod}: {answer:?}")),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    pub(crate) fn reached(first: &str, second: &str) -> Vec<MeshResult> {
        let mesh_pod = |node: &str, address: [u8; 4]| MeshPod {
            node: node.to_owned(),
            pod: String::new(),
            address: address.into(),
        };
        let (first, second) = (mesh_pod(first, [10, 244, 0, 5]), mesh_pod(second, [10, 244, 1, 3]));
        let duration = Duration::from_micros(12_345);
        let back = MeshResult { from: second.clone(), to: first.clone(), duration };
        vec![MeshResult { from: first, to: second, duration }, back]
    }

    #[test]
    fn answers_of_other_pods_are_rejected() {
        let answer = |name: &str| {
            let body = json!({"Ok": Text { text: format!("{name}\n") }});
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{body}")
        };
        assert_eq!(is_of(&answer("mesh-1"), "mesh-1"), Ok(()));
        assert!(is_of(&answer("mesh-0"), "mesh-1").is_err());
        assert!(is_of(&answer("mesh-10"), "mesh-1").is_err());
        assert!(is_of("HTTP/1.1 500 no\r\n\r\n{\"Err\":\"no\"}", "mesh-1").unwrap_err().contains("500"));
        assert!(is_of("", "mesh-1").is_err());
    }

    #[test]
    fn only_a_pod_that_runs_has_an_address() {
        let pod = |phase: &str| -> Pod {
            serde_json::from_value(json!({"metadata": {}, "status": {"phase": phase, "podIP": "10.244.1.3"}})).unwrap()
        };
        assert_eq!(address(Some(&pod("Running"))), Some("10.244.1.3".parse().unwrap()));
        assert_eq!(address(Some(&pod("Pending"))), None);
        assert!(demo::has_ended(Some(&pod("Failed"))) && !demo::has_ended(None));
    }
}
