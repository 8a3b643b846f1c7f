//! Requests between pods of different nodes.

use crate::demo::DemoError;
use crate::objects::PORT;
use crate::pods::{RunningPod, host_name, repeat};
use kube::Client;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;
use workload::{Check, Text, serve};

#[derive(Debug)]
pub(crate) struct MeshResult {
    from: RunningPod,
    to: RunningPod,
    /// Duration of the request, including the path through the API server.
    duration: Duration,
}

impl fmt::Display for MeshResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, duration } = self;
        write!(f, "{} → {}: ", from.node, to.node)?;
        write!(f, "{} reached {} in {} ms", from.address, to.address, duration.as_millis())
    }
}

/// Sends a request from each pod to the next one, and from the last pod to the first.
pub(crate) async fn run(client: &Client, pods: &[RunningPod]) -> Result<Vec<MeshResult>, DemoError> {
    let mut reached = Vec::new();
    for (from, to) in pods.iter().zip(pods.iter().cycle().skip(1)) {
        reached.push(reach(client, from, to).await?);
    }
    Ok(reached)
}

/// Repeats the request until it succeeds: nodes become Ready before the mesh connects them.
async fn reach(client: &Client, from: &RunningPod, to: &RunningPod) -> Result<MeshResult, DemoError> {
    let duration = repeat(|| request(client, from, to)).await.map_err(|last| {
        let RunningPod { node, address, .. } = to;
        DemoError::new(format!("the pod of node {} cannot reach {address} on node {node}: {last}", from.node))
    })?;
    Ok(MeshResult { from: from.clone(), to: to.clone(), duration })
}

async fn request(client: &Client, from: &RunningPod, to: &RunningPod) -> Result<(), String> {
    let fetch = Check::Fetch { address: SocketAddr::new(to.address, PORT), target: serve::target(&host_name()) };
    let answer: Text = from.ask(client, &fetch).await?;
    is_of(&answer.text, &to.name)
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
        let pod = |node: &str, address: [u8; 4]| RunningPod {
            node: node.to_owned(),
            name: String::new(),
            address: address.into(),
        };
        let (first, second) = (pod(first, [10, 244, 0, 5]), pod(second, [10, 244, 1, 3]));
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
        assert_eq!(is_of(&answer("writer-1"), "writer-1"), Ok(()));
        assert!(is_of(&answer("writer"), "writer-1").is_err());
        assert!(is_of(&answer("writer-10"), "writer-1").is_err());
        assert!(is_of("HTTP/1.1 500 no\r\n\r\n{\"Err\":\"no\"}", "writer-1").unwrap_err().contains("500"));
        assert!(is_of("", "writer-1").is_err());
    }
}
