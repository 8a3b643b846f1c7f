//! What the API server writes to the disk: objects, by way of etcd, and its audit log.

use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use envtest::{Cluster, Failure, PATIENCE, Suite};
use eventually::{Seen, eventually};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use services::{API_PORT, Credentials, SecretStorage, secrets};
use time::OffsetDateTime;

use crate::etcd::get;

/// Texts that are nowhere else.
const MAP: &str = "5c1f0ae2-of-the-map";
const SECRET: &str = "5c1f0ae2-of-the-secret";

pub fn cases(suite: Suite) -> Suite {
    suite
        .case("requests_are_audited_without_their_bodies", requests_are_audited_without_their_bodies)
        .case("a_request_with_a_long_uri_is_audited", a_request_with_a_long_uri_is_audited)
        .case("secrets_are_encrypted_and_an_upgrade_rewrites_them", secrets_are_encrypted_and_an_upgrade_rewrites_them)
}

/// Whether a file of the directory, or below, has the text.
fn has(directory: &Path, text: &str) -> io::Result<bool> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let found = if path.is_dir() {
            has(&path, text)?
        } else {
            let content = fs::read(&path)?;
            // A segment of etcd's log ends with tens of MB of zeros.
            let end = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            content[..end].windows(text.len()).any(|window| window == text.as_bytes())
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The audit log, also files that were rotated.
fn audited(directory: &Path) -> io::Result<Vec<Value>> {
    let mut events = Vec::new();
    for entry in fs::read_dir(directory)? {
        let log = fs::read(entry?.path())?;
        events.extend(log.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok()));
    }
    Ok(events)
}

/// Events of the audit log that are about the Secret.
fn events(directory: &Path, name: &str) -> io::Result<Vec<Value>> {
    Ok(audited(directory)?.into_iter().filter(|event| event["objectRef"]["name"] == name).collect())
}

async fn requests_are_audited_without_their_bodies(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let secrets = Api::<Secret>::default_namespaced(cluster.admin());
    let secret = json!({"metadata": {"name": "audited"}, "stringData": {"value": "5c1f0ae2-of-a-body"}});
    secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
    secrets.get("audited").await?;
    let directory = &cluster.config().paths.audit;
    // A request is written when it is complete, which its client does not wait for.
    let event = eventually(PATIENCE, "the request in the audit log", async || {
        let mut its = events(directory, "audited")?.into_iter().filter(|event| event["verb"] == "get");
        Ok::<_, io::Error>(its.next().map_or_else(|| Seen::NotYet("no request".to_owned()), Seen::Done))
    })
    .await?;
    assert_eq!([&event["level"], &event["user"]["username"]], ["Metadata", "granary:admin"], "{event}");
    assert_eq!(event["responseStatus"]["code"], 200, "{event}");
    assert!(!has(directory, "5c1f0ae2-of-a-body")?, "no bodies");
    // The node has asked whether the API server is ready before the first case. Others who ask are audited.
    let asks = |event: &&Value| event["requestURI"] == "/readyz" && event["user"]["username"] == "granary:admin";
    assert_eq!(audited(directory)?.iter().find(asks), None);
    Ok(())
}

/// A line that was longer than a file of the log was lost, and with it the request, on the smallest disk, which the suite
/// has. Go's server takes 1 MiB of headers, and JSON writes `<` with six characters.
async fn a_request_with_a_long_uri_is_audited(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let secrets = Api::<Secret>::default_namespaced(cluster.admin());
    let secret = json!({"metadata": {"name": "padded"}});
    secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
    let padding = "<".repeat(1_040_000);
    let path = format!("/api/v1/namespaces/default/secrets/padded?padding={padding}");
    let answer = get(&cluster.config().paths.pki, "admin", API_PORT, &path).await?;
    assert_eq!(answer, "HTTP/1.1 200 OK");
    let directory = &cluster.config().paths.audit;
    eventually(PATIENCE, "the request in the audit log", async || {
        let events = events(directory, "padded")?;
        let long = events.iter().any(|event| event["requestURI"].as_str().is_some_and(|uri| uri.ends_with(&padding)));
        Ok::<_, io::Error>(if long { Seen::Done(()) } else { Seen::NotYet(format!("{} others", events.len())) })
    })
    .await?;
    Ok(())
}

/// As a boot of a node with this configuration.
async fn restart(cluster: &Cluster, secret_storage: SecretStorage) -> Result<(), Failure> {
    cluster.stop_api_server().await;
    let config = services::Config { secret_storage, ..cluster.config().clone() };
    Credentials::ensure(&config, OffsetDateTime::now_utc())?;
    cluster.start_api_server().await?;
    Ok(())
}

async fn secrets_are_encrypted_and_an_upgrade_rewrites_them(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (maps, secrets) =
        (Api::<ConfigMap>::default_namespaced(cluster.admin()), Api::<Secret>::default_namespaced(cluster.admin()));
    let map = serde_json::from_value(json!({"metadata": {"name": "kept"}, "data": {"value": MAP}}))?;
    let uid = maps.create(&PostParams::default(), &map).await?.uid();
    let secret = serde_json::from_value(json!({"metadata": {"name": "kept"}, "stringData": {"value": SECRET}}))?;
    secrets.create(&PostParams::default(), &secret).await?;
    let value = async || {
        let data = secrets.get("kept").await?.data.unwrap_or_default();
        Ok::<_, kube::Error>(data.get("value").map(|value| String::from_utf8_lossy(&value.0).into_owned()))
    };
    let etcd = &cluster.config().paths.etcd;
    assert!(has(etcd, MAP)?, "what is not encrypted is found");
    assert!(!has(etcd, SECRET)?, "Secrets are encrypted");

    // What a release has that does not encrypt, and what an administrator does before a return to it.
    cluster.stop_api_server().await;
    assert!(maps.get("kept").await.is_err(), "nothing answers while the API server is away");
    restart(&cluster, SecretStorage::Plain).await?;
    assert_eq!(maps.get("kept").await?.uid(), uid, "what was written outlives the API server");
    assert_eq!(value().await?.as_deref(), Some(SECRET), "encrypted Secrets stay readable");
    let plain = secrets::rewrite_all(&cluster.admin()).await?;
    assert!(plain.changed > 0 && plain.changed == plain.secrets, "{plain:?}");
    assert!(has(etcd, SECRET)?, "each Secret is written again");

    // The upgrade.
    restart(&cluster, SecretStorage::Encrypted).await?;
    assert_eq!(value().await?.as_deref(), Some(SECRET), "Secrets of the former release stay readable");
    assert_eq!(secrets::rewrite_all(&cluster.admin()).await?, plain, "each Secret is written again");
    // A start after a power cut goes on with those that are left: none is written that is stored as it should be.
    let again = secrets::rewrite_all(&cluster.admin()).await?;
    assert_eq!((again.secrets, again.changed), (plain.secrets, 0));
    assert_eq!(value().await?.as_deref(), Some(SECRET));
    Ok(())
}
