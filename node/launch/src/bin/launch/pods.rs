//! Running pods of the demonstration.

use crate::demo::{self, DemoError, REQUEST};
use crate::objects::{self, DemoPod, NAMESPACE, PORT};
use http::Request;
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};
use workload::{Check, Text, serve};

const LIMIT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(500);

/// A pod that serves requests of the launcher and of other pods.
#[derive(Clone, Debug)]
pub(crate) struct RunningPod {
    pub(crate) node: String,
    pub(crate) name: String,
    pub(crate) address: IpAddr,
}

impl RunningPod {
    /// Replaces the pod of an earlier run, and waits until the new pod serves requests.
    pub(crate) async fn start(client: &Client, demo_pod: &DemoPod) -> Result<Self, DemoError> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        let DemoPod { name, node, .. } = demo_pod;
        demo::remove(&pods, name).await?;
        let object = objects::pod(demo_pod)?;
        pods.create(&PostParams::default(), &object).await.map_err(demo::api("create", name))?;
        let runs_or_ended = |pod: Option<&Pod>| address(pod).is_some() || demo::has_ended(pod);
        let found = match demo::wait_for(&pods, name, runs_or_ended).await {
            Ok(found) => found,
            Err(lost) => return Err(DemoError::late(name, &demo::events(client.clone()).await, lost)),
        };
        let Some(address) = address(found.as_ref()) else {
            return Err(DemoError::failed(name, &demo::message(found.as_ref())));
        };
        let pod = Self { node: node.clone(), name: name.clone(), address };
        let answered = repeat(|| pod.answers(client)).await;
        answered.map_err(|last| DemoError::failed(name, &last))?;
        Ok(pod)
    }

    /// Runs a check in the pod, through the proxy of the API server. `T` is the type of the finding.
    pub(crate) async fn ask<T: DeserializeOwned>(&self, client: &Client, check: &Check) -> Result<T, String> {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{}:{PORT}/proxy{}", self.name, serve::target(check));
        let request = Request::get(path).body(Vec::new()).map_err(|error| causes::lines(&error).to_string())?;
        let text = client.request_text(request).await.map_err(|error| causes::lines(&error).to_string())?;
        serve::answer(&text).map_err(|error| causes::lines(&error).to_string())?
    }

    async fn answers(&self, client: &Client) -> Result<(), String> {
        self.ask::<Text>(client, &host_name()).await.map(drop)
    }

    /// Ends the program, which completes the pod. Ignores errors: a program that continues does no harm.
    pub(crate) async fn end(&self, client: &Client) {
        _ = timeout(REQUEST, self.ask::<serde_json::Value>(client, &Check::End)).await;
    }
}

/// Check that reads the host name, which is the name of the pod.
pub(crate) fn host_name() -> Check {
    Check::Read { path: "/etc/hostname".into() }
}

/// Repeats a request until it succeeds. Returns the duration of the last request, or its error.
pub(crate) async fn repeat<F>(request: impl Fn() -> F) -> Result<Duration, String>
where
    F: Future<Output = Result<(), String>>,
{
    let begin = Instant::now();
    loop {
        let sent = Instant::now();
        let last = match timeout(REQUEST, request()).await {
            Ok(Ok(())) => return Ok(sent.elapsed()),
            Ok(Err(message)) => message,
            Err(_) => format!("no answer within {REQUEST:?}"),
        };
        if begin.elapsed() > LIMIT {
            return Err(last);
        }
        sleep(PAUSE).await;
    }
}

fn address(pod: Option<&Pod>) -> Option<IpAddr> {
    let running = demo::phase(pod) == "Running";
    pod.filter(|_| running)?.status.as_ref()?.pod_ip.as_ref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn only_a_pod_that_runs_has_an_address() {
        let pod = |phase: &str| -> Pod {
            serde_json::from_value(json!({"metadata": {}, "status": {"phase": phase, "podIP": "10.244.1.3"}})).unwrap()
        };
        assert_eq!(address(Some(&pod("Running"))), Some("10.244.1.3".parse().unwrap()));
        assert_eq!(address(Some(&pod("Pending"))), None);
        assert!(demo::has_ended(Some(&pod("Failed"))) && !demo::has_ended(None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_repeated_until_it_succeeds() {
        let sent = AtomicU32::new(0);
        let request = async || {
            let is_early = sent.fetch_add(1, Ordering::Relaxed) < 2;
            if is_early { Err("early".to_owned()) } else { Ok(()) }
        };
        repeat(request).await.unwrap();
        assert_eq!(sent.into_inner(), 3);
    }
}
