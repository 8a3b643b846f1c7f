//! What the node tells about itself.

use e2e::{Case, Claim, Failure, PATIENCE, Pod, Seen, Suite, Volume, eventually};
use serde_json::Value;

use crate::KEEP_FREE;

const MIB: u64 = 1 << 20;
/// More than the node keeps for its own programs on a disk of 8 GiB.
const PROGRAMS: u64 = 2 << 30;
/// The node's own port, through the API server.
const PORT: &str = "/api/v1/nodes/granary:7839/proxy";
/// As docs/operations/logs.md says: kubelet shows it.
const LOG: &str = "/api/v1/nodes/granary/proxy/logs/node/";
/// Compared with each part of the program by its own tests; here with what the whole of them gives.
const METRICS: &str = include_str!("../../../../docs/metrics.md");
/// They begin with the first failure, and with the first who says too much.
const LATER: [&str; 2] = ["granary_provisioner_failures_total", "granary_log_suppressed_records_total"];

/// Adds the cases.
pub fn cases(suite: Suite) -> Suite {
    suite
        .case("the_status_page_shows_the_volume", the_status_page_shows_the_volume)
        .case("what_is_to_be_kept_free_is_not_offered", what_is_to_be_kept_free_is_not_offered)
        .case("the_node_has_every_metric_that_is_described", the_node_has_every_metric_that_is_described)
        .case("an_administrator_reads_the_log", an_administrator_reads_the_log)
}

async fn the_status_page_shows_the_volume(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("data", 16 * MIB)).await?;
    case.open(&Pod::server("tenant").with(Volume::claim("data"))).await?;
    let id = case.volume_name("data").await?.to_string();
    let page = case.get(&format!("{PORT}/statusz")).await?;
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains(&id), "{page}");
    let facts: Value = serde_json::from_str(&case.get(&format!("{PORT}/statusz.json")).await?)?;
    let volumes = facts["storage"]["volumes"].as_array().cloned().unwrap_or_default();
    let volume = volumes.iter().find(|volume| volume["id"] == *id).cloned().unwrap_or_default();
    assert_eq!((volume["limit"].as_u64(), volume["condition"].as_str()), (Some(16 * MIB), Some("fine")), "{facts}");
    assert!(facts["versions"]["kernel"]["age_seconds"].is_u64(), "{facts}");
    assert!(facts["certificates"].as_array().is_some_and(|all| all.len() > 5), "{facts}");

    assert_eq!(case.get(&format!("{PORT}/healthz")).await?, "ok\n");
    all_services_are_ready(&case).await
}

/// Waits until they are.
pub async fn all_services_are_ready(case: &Case) -> Result<(), Failure> {
    eventually(PATIENCE, "all services to be ready", async || {
        let said = case.get(&format!("{PORT}/readyz")).await?;
        Ok(if said == "ok\n" { Seen::Done(()) } else { Seen::NotYet(said) })
    })
    .await
}

async fn what_is_to_be_kept_free_is_not_offered(case: Case) -> Result<(), Failure> {
    let facts: Value = serde_json::from_str(&case.get(&format!("{PORT}/statusz.json")).await?)?;
    let disk = &facts["storage"]["disk"];
    let [size, reserve] = ["size", "reserve"].map(|number| disk[number].as_u64().unwrap_or_default());
    assert!((KEEP_FREE..KEEP_FREE + PROGRAMS).contains(&reserve), "{disk}");
    let offered = eventually(PATIENCE, "the capacity for class local", async || {
        Ok(case.capacity("local").await?.map_or_else(|| Seen::NotYet("none".to_owned()), Seen::Done))
    })
    .await?;
    assert!(offered > 0 && offered <= size - reserve, "{offered} of {disk}");
    Ok(())
}

async fn the_node_has_every_metric_that_is_described(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("data", 16 * MIB)).await?;
    case.open(&Pod::server("tenant").with(Volume::claim("data"))).await?;
    let wanted = described();
    assert!(wanted.len() > 30, "the tables are read: {wanted:?}");
    // The mesh registers its own when it runs for the first time.
    eventually(PATIENCE, "all metrics", async || {
        let text = case.get(&format!("{PORT}/metrics")).await?;
        let has = |(name, kind): &&(&str, &str)| text.lines().any(|line| line == format!("# TYPE {name} {kind}"));
        let missing: Vec<_> = wanted.iter().filter(|metric| !has(metric)).collect();
        Ok(if missing.is_empty() { Seen::Done(()) } else { Seen::NotYet(format!("without {missing:?}")) })
    })
    .await
}

/// The names and types of what a node without neighbours has.
fn described() -> Vec<(&'static str, &'static str)> {
    let rows = METRICS.lines().filter(|line| line.starts_with("| `granary_")).filter_map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(|cell| cell.trim());
        Some((cells.next()?.trim_matches('`'), cells.next()?, cells.next()?))
    });
    rows.filter(|(name, _, labels)| !labels.contains("`node`") && !LATER.contains(name))
        .map(|(name, kind, _)| (name, kind))
        .collect()
}

async fn an_administrator_reads_the_log(case: Case) -> Result<(), Failure> {
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
