//! What the node tells about itself.

use e2e::{Case, Claim, Failure, PATIENCE, Pod, Seen, Suite, Volume, eventually};
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// The node's own port, through the API server.
const PORT: &str = "/api/v1/nodes/granary:7839/proxy";

/// Adds the cases.
pub fn cases(suite: Suite) -> Suite {
    suite.case("the_status_page_shows_the_volume", the_status_page_shows_the_volume)
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
    eventually(PATIENCE, "all services to be ready", async || {
        let said = case.get(&format!("{PORT}/readyz")).await?;
        Ok(if said == "ok\n" { Seen::Done(()) } else { Seen::NotYet(said) })
    })
    .await
}
