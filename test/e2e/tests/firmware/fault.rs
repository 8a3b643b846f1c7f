//! A data disk whose NVMe controller has critical warnings.

use e2e::{Case, Failure, PATIENCE, Seen, eventually};
use serde_json::Value;

/// Critical warnings of each NVMe disk: NVM Express Base Specification 2.0, figure 207, byte 0.
pub const WARNINGS: u8 = 0b1101;
const TEXT: &str = "n1: its spare space is low, it is unreliable after many errors, it is read-only";
const STATUS: &str = "/api/v1/nodes/granary:7839/proxy";

/// Verifies that the status page, an event of the Node and the metric have the warnings of the data disk, and not those
/// of the other disk.
pub async fn is_reported(case: &Case) -> Result<(), Failure> {
    let facts: Value = serde_json::from_str(&case.get(&format!("{STATUS}/statusz.json")).await?)?;
    let faults: Vec<String> = serde_json::from_value(facts["disk_faults"].clone())?;
    let [fault] = &*faults else { panic!("{faults:?}") };
    assert!(fault.starts_with("the controller of the disk warns about nvme") && fault.ends_with(TEXT), "{fault}");

    let wanted = format!("DataDiskFault: {fault}; back up the data disk, then repair or replace it");
    eventually(PATIENCE, "the event about the disk", async || {
        let events = case.events_in("default", "granary").await?;
        Ok(if events.contains(&wanted) { Seen::Done(()) } else { Seen::NotYet(format!("{events:?}")) })
    })
    .await?;

    // The provisioner has published the event, so that its metrics exist.
    let metrics = case.get(&format!("{STATUS}/metrics")).await?;
    let series = format!(r#"granary_disk_faults{{fault="smart"}} {}"#, WARNINGS.count_ones());
    assert!(metrics.lines().any(|line| line == series), "{series} is not in {metrics}");
    Ok(())
}
