//! Status page, metrics and facts of the node.

use e2e::{Case, Failure, KEEP_FREE, PATIENCE, Seen, eventually};
use localstorage::Budget;
use serde_json::Value;
use units::Bytes;

use crate::volumes::DIRECTORY;

const PORT: &str = "/api/v1/nodes/granary:7839/proxy";
pub const LOG: &str = "/api/v1/nodes/granary/proxy/logs/node/";
pub const AUDIT_LOG: &str = "/api/v1/nodes/granary/proxy/logs/audit/";
/// Documentation of the metrics. Other tests compare it with each part of the program; this test compares it with the
/// whole node.
const METRICS: &str = include_str!("../../../../docs/metrics.md");
/// Metrics that exist only after a first failure or a first suppressed log record.
const LATER: [&str; 2] = ["granary_provisioner_failures_total", "granary_log_suppressed_records_total"];

/// Verifies the status page. The claim `data` has grown and is nearly empty.
pub async fn page(case: &Case) -> Result<(), Failure> {
    let id = case.volume_name("data").await?;
    let page = case.get(&format!("{PORT}/statusz")).await?;
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains(&id), "{page}");
    let facts = facts(case).await?;
    let volumes = facts["storage"]["volumes"].as_array().cloned().unwrap_or_default();
    let volume = volumes.iter().find(|volume| volume["id"] == *id).cloned().unwrap_or_default();
    assert_eq!((volume["limit"].as_u64(), volume["condition"].as_str()), (Some(DIRECTORY[1]), Some("fine")), "{facts}");
    assert!(facts["versions"]["kernel"]["age_seconds"].is_u64(), "{facts}");
    assert!(facts["certificates"].as_array().is_some_and(|all| all.len() > 5), "{facts}");

    assert_eq!(case.get(&format!("{PORT}/healthz")).await?, "ok\n");
    case.all_services_are_ready().await
}

pub async fn facts(case: &Case) -> Result<Value, Failure> {
    Ok(serde_json::from_str(&case.get(&format!("{PORT}/statusz.json")).await?)?)
}

/// The node keeps the configured space free, in addition to the reserve for its own programs, and publishes the rest as
/// capacity.
pub async fn kept_free(case: &Case) -> Result<(), Failure> {
    eventually(PATIENCE, "the capacity for class local to be what is free", async || {
        let facts = facts(case).await?;
        let disk = &facts["storage"]["disk"];
        let [size, reserve, volumes, free] =
            ["size", "reserve", "promised", "free"].map(|number| disk[number].as_u64().unwrap_or_default());
        let kept = Budget::of(Bytes::new(size)).reserve().saturating_add(KEEP_FREE);
        assert_eq!(Bytes::new(reserve), kept, "{disk}");
        assert!(volumes > 0 && free == size - reserve - volumes, "{disk}");
        // The largest possible volume is a device. The extent map of its image uses the same space.
        let offered = case.capacity("local").await?;
        let is_right =
            offered.is_some_and(|offered| offered.free == free && (free / 10 * 9..free).contains(&offered.largest));
        Ok(if is_right { Seen::Done(()) } else { Seen::NotYet(format!("{offered:?} of {disk}")) })
    })
    .await
}

/// Number of restarts of a service, and its readiness.
#[derive(Clone, Copy, Debug, Default)]
pub struct Restarts {
    pub count: u64,
    pub is_ready: bool,
}

/// Restarts of services, which are named by the last part of their paths.
pub async fn restarts(case: &Case, services: [&str; 2]) -> Result<[Restarts; 2], Failure> {
    let metrics = case.get(&format!("{PORT}/metrics")).await?;
    let value = |metric: &str, service: &str| -> u64 {
        let lines = metrics.lines().filter_map(|line| line.strip_prefix(metric)?.strip_prefix("{service=\""));
        let mut values = lines.filter_map(|line| line.split_once("\"} ")).filter(|(path, _)| path.ends_with(service));
        let value = values.next().and_then(|(_, value)| value.parse().ok());
        value.unwrap_or_else(|| panic!("{metric} of {service} is missing: {metrics}"))
    };
    Ok(services.map(|service| {
        let service = format!(".{service}");
        let is_ready = value("granary_service_ready", &service) == 1;
        Restarts { count: value("granary_service_restarts", &service), is_ready }
    }))
}

/// Value of a metric without labels.
pub async fn number(case: &Case, metric: &str) -> Result<Option<u64>, Failure> {
    let metrics = case.get(&format!("{PORT}/metrics")).await?;
    Ok(metrics.lines().find_map(|line| line.strip_prefix(metric)?.trim().parse().ok()))
}

pub async fn every_metric(case: &Case) -> Result<(), Failure> {
    let wanted = described();
    assert!(wanted.len() > 30, "the tables are read: {wanted:?}");
    // The mesh registers its metrics when it runs for the first time.
    eventually(PATIENCE, "all metrics", async || {
        let text = case.get(&format!("{PORT}/metrics")).await?;
        let has = |(name, kind): &&(&str, &str)| text.lines().any(|line| line == format!("# TYPE {name} {kind}"));
        let missing: Vec<_> = wanted.iter().filter(|metric| !has(metric)).collect();
        Ok(if missing.is_empty() { Seen::Done(()) } else { Seen::NotYet(format!("without {missing:?}")) })
    })
    .await
}

/// Names and types of the documented metrics of a node without neighbours.
fn described() -> Vec<(&'static str, &'static str)> {
    let rows = METRICS.lines().filter(|line| line.starts_with("| `granary_")).filter_map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(|cell| cell.trim());
        Some((cells.next()?.trim_matches('`'), cells.next()?, cells.next()?))
    });
    rows.filter(|(name, _, labels)| !labels.contains("`node`") && !LATER.contains(name))
        .map(|(name, kind, _)| (name, kind))
        .collect()
}

pub async fn log(case: &Case) -> Result<(), Failure> {
    eventually(PATIENCE, "a record in the last file of the log", async || {
        let list = case.get(LOG).await?;
        let Some(last) = list.split('"').filter(|name| name.ends_with(".jsonl")).max() else {
            return Ok(Seen::NotYet(list));
        };
        let text = case.get(&format!("{LOG}{last}")).await?;
        let is_record = |line: &str| {
            let record: Value = serde_json::from_str(line).unwrap_or_default();
            ["time", "level", "source", "message"].iter().all(|field| record[field].is_string())
        };
        Ok(if text.lines().any(is_record) { Seen::Done(()) } else { Seen::NotYet(text) })
    })
    .await
}

/// The control plane assigns its range of pod addresses and signs its storage identity: the start of the node does not
/// wait for kube-controller-manager.
pub async fn own_range_and_identity(case: &Case) -> Result<(), Failure> {
    let list = case.get(LOG).await?;
    let mut is_assigned = false;
    for name in list.split('"').filter(|name| name.ends_with(".jsonl")) {
        let text = case.get(&format!("{LOG}{name}")).await?;
        is_assigned |= text.contains("range of pod addresses assigned to this node");
    }
    assert!(is_assigned, "{list}");
    let requests = case.get("/apis/certificates.k8s.io/v1/certificatesigningrequests").await?;
    // The signer of all clients but kubelets, by a name of Kubernetes: the names of requests are the product's own.
    assert!(!requests.contains("\"kubernetes.io/kube-apiserver-client\""), "{requests}");
    Ok(())
}
