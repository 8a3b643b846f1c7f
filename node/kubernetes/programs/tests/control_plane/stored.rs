//! The API server's data on the disk: objects in etcd, and the audit log.

use std::future::pending;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, io};

use cluster::{API_PORT, ProgramSettings, SecretKey, SecretStorage};
use envtest::{Cluster, Failure, PATIENCE, Seen, Suite, create, eventually};
use http::Request;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Api, Client, ResourceExt as _};
use programs::secrets::{self, RewriteError};
use programs::{Credentials, StoredSecrets};
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::sync::Notify;
use tower::service_fn;

use crate::etcd::get;

const MAP: &str = "5c1f0ae2-of-the-map";
const SECRET: &str = "5c1f0ae2-of-the-secret";

pub fn cases(suite: Suite) -> Suite {
    suite
        .case("requests_are_audited_without_their_bodies", requests_are_audited_without_their_bodies)
        .case("a_request_with_a_long_uri_is_audited", a_request_with_a_long_uri_is_audited)
        .case("secrets_are_encrypted_and_an_upgrade_rewrites_them", secrets_are_encrypted_and_an_upgrade_rewrites_them)
        .case("a_new_key_replaces_the_old_one", a_new_key_replaces_the_old_one)
}

fn has(directory: &Path, text: &str) -> io::Result<bool> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let found = if path.is_dir() {
            has(&path, text)?
        } else {
            let content = fs::read(&path)?;
            // A segment of etcd's WAL ends with tens of MB of zeros.
            let end = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            content[..end].windows(text.len()).any(|window| window == text.as_bytes())
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

fn audited(directory: &Path) -> io::Result<Vec<Value>> {
    let mut events = Vec::new();
    for entry in fs::read_dir(directory)? {
        let log = fs::read(entry?.path())?;
        events.extend(log.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok()));
    }
    Ok(events)
}

fn events(directory: &Path, name: &str) -> io::Result<Vec<Value>> {
    Ok(audited(directory)?.into_iter().filter(|event| event["objectRef"]["name"] == name).collect())
}

async fn requests_are_audited_without_their_bodies(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let secrets = Api::<Secret>::default_namespaced(cluster.admin());
    let secret = json!({"metadata": {"name": "audited"}, "stringData": {"value": "5c1f0ae2-of-a-body"}});
    create(&secrets, secret).await?;
    secrets.get("audited").await?;
    let directory = &cluster.config().paths.audit;
    // The API server logs a request when it is complete, and the client does not wait for that.
    let event = eventually(PATIENCE, "the request in the audit log", async || {
        let mut found = events(directory, "audited")?.into_iter().filter(|event| event["verb"] == "get");
        Ok::<_, io::Error>(found.next().map_or_else(|| Seen::NotYet("no request".to_owned()), Seen::Done))
    })
    .await?;
    assert_eq!([&event["level"], &event["user"]["username"]], ["Metadata", "granary:admin"], "{event}");
    assert_eq!(event["responseStatus"]["code"], 200, "{event}");
    assert!(!has(directory, "5c1f0ae2-of-a-body")?, "no bodies");
    // The node sent its readiness requests before the first case. Requests of other clients for this path are audited.
    let asks = |event: &&Value| event["requestURI"] == "/readyz" && event["user"]["username"] == "granary:admin";
    assert_eq!(audited(directory)?.iter().find(asks), None);
    Ok(())
}

/// Regression: the API server lost a line that was longer than a file of the log. The suite has the smallest disk. Go's
/// HTTP server accepts headers of 1 MiB, and JSON writes `<` with six characters.
async fn a_request_with_a_long_uri_is_audited(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let secrets = Api::<Secret>::default_namespaced(cluster.admin());
    create(&secrets, json!({"metadata": {"name": "padded"}})).await?;
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

/// Restarts the API server like a boot of a node with this configuration.
async fn restart(cluster: &Cluster, secret_storage: SecretStorage, key: u32) -> Result<StoredSecrets, Failure> {
    cluster.stop_api_server().await;
    let secret_key = SecretKey::new(key).ok_or("no key has the number 0")?;
    let mut config = cluster.config().clone();
    config.settings = ProgramSettings { secret_storage, secret_key, ..config.settings };
    let credentials = Credentials::ensure(&config, OffsetDateTime::now_utc())?;
    cluster.start_api_server().await?;
    Ok(credentials.secrets().cloned().ok_or("a control plane has Secrets")?)
}

fn keys(cluster: &Cluster) -> Result<Vec<String>, Failure> {
    let read: Value = serde_json::from_slice(&fs::read(cluster.config().paths.pki.join("encryption.json"))?)?;
    let keys = read["resources"][0]["providers"][0]["secretbox"]["keys"].as_array().cloned().unwrap_or_default();
    Ok(keys.iter().map(|key| key["name"].as_str().unwrap_or_default().to_owned()).collect())
}

/// A client whose process is killed at a boundary before or after a request, counted from 0.
fn killed_at(client: Client, boundary: usize) -> (Client, Arc<Notify>) {
    let (passed, killed) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let namespace = client.default_namespace().to_owned();
    let notify = Arc::clone(&killed);
    let service = service_fn(move |request: Request<Body>| {
        let (client, passed, killed) = (client.clone(), Arc::clone(&passed), Arc::clone(&notify));
        async move {
            let pass = async || {
                if passed.fetch_add(1, Ordering::Relaxed) == boundary {
                    killed.notify_one();
                    pending::<()>().await;
                }
            };
            pass().await;
            let answer = client.send(request).await;
            pass().await;
            answer
        }
    });
    (Client::new(service, namespace), killed)
}

/// Writes all Secrets again, with a kill at every boundary. Returns the number of boundaries.
async fn rewrite_killed_everywhere(cluster: &Cluster, stored: &StoredSecrets) -> Result<usize, Failure> {
    for boundary in 0.. {
        let (client, killed) = killed_at(cluster.admin(), boundary);
        let rewritten = tokio::select! {
            () = killed.notified() => None,
            rewritten = secrets::rewrite_once(&client, stored) => Some(rewritten?),
        };
        if let Some(rewritten) = rewritten {
            assert!(rewritten.is_some(), "no kill leaves the note that all Secrets are written");
            return Ok(boundary);
        }
        assert!(!stored.is_complete()?, "killed at boundary {boundary}");
    }
    Err("boundaries without end".into())
}

async fn reject_writes(cluster: &Cluster, rejected: &Api<Secret>) -> Result<(), Failure> {
    let policy = json!({
        "metadata": {"name": "frozen"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "objectSelector": {"matchLabels": {"frozen": "true"}},
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["secrets"]},
                ],
            },
            "validations": [{"expression": "false", "message": "this Secret is frozen"}],
        },
    });
    let binding =
        json!({"metadata": {"name": "frozen"}, "spec": {"policyName": "frozen", "validationActions": ["Deny"]}});
    let parameters = PostParams::default();
    Api::<ValidatingAdmissionPolicy>::all(cluster.admin())
        .create(&parameters, &serde_json::from_value(policy)?)
        .await?;
    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(cluster.admin());
    bindings.create(&parameters, &serde_json::from_value(binding)?).await?;
    writes_are_rejected(rejected, true).await
}

async fn allow_writes(cluster: &Cluster, rejected: &Api<Secret>) -> Result<(), Failure> {
    let parameters = DeleteParams::default();
    Api::<ValidatingAdmissionPolicyBinding>::all(cluster.admin()).delete("frozen", &parameters).await?;
    Api::<ValidatingAdmissionPolicy>::all(cluster.admin()).delete("frozen", &parameters).await?;
    writes_are_rejected(rejected, false).await
}

/// The API server watches policies, so a change has a delay.
async fn writes_are_rejected(secrets: &Api<Secret>, rejected: bool) -> Result<(), Failure> {
    eventually(PATIENCE, "the policy", async || {
        let patched = secrets.patch_metadata("frozen", &PatchParams::default(), &Patch::Merge(json!({}))).await;
        match patched {
            Ok(_) if !rejected => Ok(Seen::Done(())),
            Err(kube::Error::Api(status)) if rejected && status.message.contains("frozen") => Ok(Seen::Done(())),
            Err(kube::Error::Api(status)) => Ok(Seen::NotYet(status.message.clone())),
            Ok(_) => Ok(Seen::NotYet("allowed".to_owned())),
            Err(error) => Err(error),
        }
    })
    .await?;
    Ok(())
}

async fn secrets_are_encrypted_and_an_upgrade_rewrites_them(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (maps, secrets) =
        (Api::<ConfigMap>::default_namespaced(cluster.admin()), Api::<Secret>::default_namespaced(cluster.admin()));
    let uid = create(&maps, json!({"metadata": {"name": "kept"}, "data": {"value": MAP}})).await?.uid();
    let frozen = json!({"metadata": {"name": "frozen", "labels": {"frozen": "true"}}, "immutable": true});
    let kept = json!({"metadata": {"name": "kept"}, "stringData": {"value": SECRET}});
    for secret in [frozen, kept] {
        create(&secrets, secret).await?;
    }
    let value = async || {
        let data = secrets.get("kept").await?.data.unwrap_or_default();
        Ok::<_, kube::Error>(data.get("value").map(|value| String::from_utf8_lossy(&value.0).into_owned()))
    };
    let etcd = &cluster.config().paths.etcd;
    assert!(has(etcd, MAP)?, "what is not encrypted is found");
    assert!(!has(etcd, SECRET)?, "Secrets are encrypted");

    // The configuration of a release without encryption, after the steps of an administrator before a downgrade.
    cluster.stop_api_server().await;
    assert!(maps.get("kept").await.is_err(), "nothing answers while the API server is away");
    let stored = restart(&cluster, SecretStorage::Plain, 1).await?;
    assert_eq!(maps.get("kept").await?.uid(), uid, "what was written outlives the API server");
    assert_eq!(value().await?.as_deref(), Some(SECRET), "encrypted Secrets stay readable");
    let plain = secrets::rewrite_once(&cluster.admin(), &stored).await?.ok_or("no note is there")?;
    assert!(plain.changed > 0 && plain.changed == plain.secrets, "{plain:?}");
    assert!(has(etcd, SECRET)?, "each Secret is written again");

    // The upgrade to a release with encryption.
    let stored = restart(&cluster, SecretStorage::Encrypted, 1).await?;
    assert_eq!(value().await?.as_deref(), Some(SECRET), "Secrets of the former release stay readable");
    reject_writes(&cluster, &secrets).await?;
    let error = secrets::rewrite_once(&cluster.admin(), &stored).await.err().ok_or("a Secret is rejected")?;
    assert!(matches!(&error, RewriteError::Rejected { count: 1, secret, .. } if secret == "default/frozen"), "{error}");
    assert!(!stored.is_complete()?, "a later boot tries again");
    allow_writes(&cluster, &secrets).await?;
    // All Secrets but the frozen one were written before. The frozen one was written by the request that waited for the
    // policy's deletion.
    let again = secrets::rewrite_once(&cluster.admin(), &stored).await?.ok_or("no note is there")?;
    assert_eq!((again.secrets, again.changed), (plain.secrets, 0));
    assert_eq!(secrets::rewrite_once(&cluster.admin(), &stored).await?, None, "later boots do nothing");
    Ok(())
}

async fn a_new_key_replaces_the_old_one(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let secrets = Api::<Secret>::default_namespaced(cluster.admin());
    let secret = json!({"metadata": {"name": "rotated"}, "stringData": {"value": "of the first key"}});
    create(&secrets, secret).await?;
    let readable = async || {
        let data = secrets.get("rotated").await?.data.unwrap_or_default();
        assert_eq!(data.get("value").map(|value| &value.0[..]), Some(&b"of the first key"[..]));
        Ok::<_, kube::Error>(())
    };
    let etcd = &cluster.config().paths.etcd;
    let stored = restart(&cluster, SecretStorage::Encrypted, 2).await?;
    assert_eq!(keys(&cluster)?, ["key2", "key1"]);
    readable().await?;
    let boundaries = rewrite_killed_everywhere(&cluster, &stored).await?;
    // The boundaries are before and after the list, and before and after the write of each Secret.
    let all = Api::<Secret>::all(cluster.admin()).list_metadata(&ListParams::default()).await?.items.len();
    assert_eq!(boundaries, 2 + 2 * all);
    assert!(has(etcd, "k8s:enc:secretbox:v1:key2:")?);
    assert_eq!(secrets::rewrite_all(&cluster.admin()).await?.changed, 0, "all are written with the new key");

    let stored = restart(&cluster, SecretStorage::Encrypted, 2).await?;
    assert_eq!(keys(&cluster)?, ["key2"], "the old key is removed");
    assert_eq!(secrets::rewrite_once(&cluster.admin(), &stored).await?, None, "later boots do nothing");
    readable().await?;
    Api::<Secret>::all(cluster.admin()).list_metadata(&ListParams::default()).await?;
    Ok(())
}
