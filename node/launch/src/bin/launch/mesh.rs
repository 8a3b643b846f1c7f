//! Pods of different nodes that reach each other.

use crate::demo::{self, DemoError, QUESTION};
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

/// How long nodes may take to hear of each other.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between questions.
const PAUSE: Duration = Duration::from_secs(1);

/// A pod that was reached by one of another node.
#[derive(Debug)]
pub(crate) struct Reached {
    from: Neighbour,
    to: Neighbour,
    /// From the question to its answer, as the launcher sees it: it asks a pod through the API server to ask the other.
    after: Duration,
}

/// A pod that answers.
#[derive(Clone, Debug)]
struct Neighbour {
    node: String,
    pod: String,
    address: IpAddr,
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, after } = self;
        write!(f, "{} → {}: ", from.node, to.node)?;
        write!(f, "{} reached {} in {} ms", from.address, to.address, after.as_millis())
    }
}

/// Lets a pod of each node ask that of the next one, and that of the last node ask that of the first.
pub(crate) async fn run(client: Client, nodes: &[String], on_step: impl Fn(&str)) -> Result<Vec<Reached>, DemoError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let opened = nodes.iter().enumerate().map(|(index, node)| open(&client, &pods, node, format!("mesh-{index}")));
    let neighbours = try_join_all(opened).await?;
    on_step("a pod on each node answers");
    let mut reached = Vec::new();
    for (from, to) in neighbours.iter().zip(neighbours.iter().cycle().skip(1)) {
        reached.push(reach(&client, from, to).await?);
    }
    for neighbour in &neighbours {
        let name = &neighbour.pod;
        pods.delete(name, &DeleteParams::default()).await.map_err(demo::api("remove", name))?;
    }
    Ok(reached)
}

/// Starts a pod, and waits until it has an address.
async fn open(client: &Client, pods: &Api<Pod>, node: &str, pod: String) -> Result<Neighbour, DemoError> {
    demo::remove(pods, &pod).await?;
    let object = objects::neighbour(node, &pod)?;
    pods.create(&PostParams::default(), &object).await.map_err(demo::api("create", &pod))?;
    let runs = |pod: Option<&Pod>| address(pod).is_some() || demo::has_ended(pod);
    let found = match demo::seen(pods, &pod, runs).await {
        Ok(found) => found,
        Err(source) => return Err(DemoError::Late { pod, events: demo::events(client.clone()).await, source }),
    };
    match address(found.as_ref()) {
        Some(address) => Ok(Neighbour { node: node.to_owned(), pod, address }),
        None => Err(DemoError::Failed { pod, message: demo::message(found.as_ref()) }),
    }
}

/// That of a pod that runs.
fn address(pod: Option<&Pod>) -> Option<IpAddr> {
    let running = demo::phase(pod) == "Running";
    pod.filter(|_| running)?.status.as_ref()?.pod_ip.as_ref()?.parse().ok()
}

/// Asks until there is an answer: nodes hear of each other a moment after they are ready.
async fn reach(client: &Client, from: &Neighbour, to: &Neighbour) -> Result<Reached, DemoError> {
    let start = Instant::now();
    loop {
        let asked = Instant::now();
        let last = match timeout(QUESTION, ask(client, from, to)).await {
            Ok(Ok(())) => return Ok(Reached { from: from.clone(), to: to.clone(), after: asked.elapsed() }),
            Ok(Err(message)) => message,
            Err(_) => format!("no answer within {QUESTION:?}"),
        };
        if start.elapsed() > PATIENCE {
            let (from, to, address) = (from.node.clone(), to.node.clone(), to.address);
            return Err(DemoError::Unreached { from, to, address, last });
        }
        sleep(PAUSE).await;
    }
}

/// Lets one pod ask the other for its name. An error is a text for a person.
async fn ask(client: &Client, from: &Neighbour, to: &Neighbour) -> Result<(), String> {
    // What a container calls itself is its pod's name.
    let target = serve::target(&Check::Read { path: "/etc/hostname".into() });
    let question = Check::Fetch { address: SocketAddr::new(to.address, PORT), target };
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{}:{PORT}/proxy{}", from.pod, serve::target(&question));
    let request = Request::get(path).body(Vec::new()).map_err(|error| causes::lines(&error).to_string())?;
    let text = client.request_text(request).await.map_err(|error| causes::lines(&error).to_string())?;
    let answer: Result<Text, String> = serve::answer(&text).map_err(|error| causes::lines(&error).to_string())?;
    is_of(&answer?.text, &to.pod)
}

/// Whether this is the answer of that pod.
fn is_of(answer: &str, pod: &str) -> Result<(), String> {
    let body = answer.split_once("\r\n\r\n").map_or(answer, |(_, body)| body);
    match serve::answer::<Text>(body) {
        Ok(Ok(name)) if answer.starts_with("HTTP/1.1 200 ") && name.text.trim_end() == pod => Ok(()),
        Ok(_) | Err(_) => Err(format!("an answer that is not pod {pod}'s: {answer:?}")),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// What two nodes showed.
    pub(crate) fn reached(first: &str, second: &str) -> Vec<Reached> {
        let neighbour = |node: &str, address: [u8; 4]| Neighbour {
            node: node.to_owned(),
            pod: String::new(),
            address: address.into(),
        };
        let (first, second) = (neighbour(first, [10, 244, 0, 5]), neighbour(second, [10, 244, 1, 3]));
        let after = Duration::from_micros(12_345);
        let back = Reached { from: second.clone(), to: first.clone(), after };
        vec![Reached { from: first, to: second, after }, back]
    }

    #[test]
    fn only_the_pod_that_was_asked_answers() {
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
