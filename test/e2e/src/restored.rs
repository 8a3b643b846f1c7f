//! Checks of a node before the cases of a suite. A restored node starts with the clock, identities and counters of the
//! saved node.

use crate::{Case, Failure, OnNode, PATIENCE, Seen, eventually};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use serde_json::Value;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use workload::Project;

/// Tolerance of the node's clock, which has a resolution of one second. The clock of a node restored from an older
/// state must have jumped ([`clock_has_jumped`]).
pub(crate) const TOLERANCE: Duration = Duration::from_secs(5);
const STATUS: &str = "/api/v1/nodes/granary:7839/proxy/statusz.json";
const METRICS: &str = "/api/v1/nodes/granary:7839/proxy/metrics";
const JUMPS: &str = "granary_clock_jumps_total ";

pub async fn has_the_hosts_time(client: &Client) -> Result<(), Failure> {
    eventually(PATIENCE, "the node's clock to be that of this machine", async || {
        let request = http::Request::get(STATUS).body(Vec::new()).map_err(Failure::Request)?;
        let before = now();
        let text = client.request_text(request).await.map_err(Failure::api("read the node's status"))?;
        let after = now();
        let facts: Value = serde_json::from_str(&text)?;
        let clock = Duration::from_secs(facts["unix_seconds"].as_u64().unwrap_or_default());
        let is_right = (before.saturating_sub(TOLERANCE)..=after + TOLERANCE).contains(&clock);
        let seen = || format!("{clock:?} on the node, {after:?} here; uptime {} s", facts["uptime_seconds"]);
        Ok(if is_right { Seen::Done(()) } else { Seen::NotYet(seen()) })
    })
    .await
}

/// Waits until the node has detected that it was restored, independently of its clock.
pub(crate) async fn clock_has_jumped(client: &Client) -> Result<(), Failure> {
    eventually(PATIENCE, "the node to find that it was restored", async || {
        let request = http::Request::get(METRICS).body(Vec::new()).map_err(Failure::Request)?;
        let text = client.request_text(request).await.map_err(Failure::api("read the node's metrics"))?;
        let jumps = text.lines().find_map(|line| line.strip_prefix(JUMPS)?.parse::<u32>().ok());
        Ok(if jumps >= Some(1) { Seen::Done(()) } else { Seen::NotYet(format!("{JUMPS}{jumps:?}")) })
    })
    .await
}

/// Waits until the kubelet has renewed the lease of its node. The saved Node is Ready already.
pub(crate) async fn kubelet_lives(client: &Client, since: Timestamp) -> Result<(), Failure> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    eventually(PATIENCE, "kubelet to renew the lease of its node", async || {
        let lease = leases.get("granary").await.map_err(Failure::api("read the lease of the node"))?;
        let renewed = lease.spec.and_then(|spec| spec.renew_time).map(|time| time.0);
        Ok(if renewed >= Some(since) { Seen::Done(()) } else { Seen::NotYet(format!("{renewed:?}, now {since}")) })
    })
    .await
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl Case {
    /// Returns the project of a claim's new volume. No other directory may have the project, and its limits must match
    /// the claim's size.
    pub async fn own_project(&self, claim: &str, size: u64) -> Result<Project, Failure> {
        let volume = self.volume_name(claim).await?;
        let node = self.look_at_the_node().await?;
        let project = OnNode::of(&node, &volume, None).project;
        let project = project.unwrap_or_else(|| panic!("volume {volume} has no project: {node:?}"));
        assert_eq!((project.bytes, project.inodes), (Some(size), Some(size / 2048)), "{volume}");
        let others = node.entries.iter().filter(|entry| entry.project == Some(project.id));
        let others: Vec<&str> =
            others.map(|entry| entry.path.as_str()).filter(|path| !path.contains(&volume)).collect();
        assert!(others.is_empty(), "project {} of {volume} is that of {others:?}", project.id);
        Ok(project)
    }
}
