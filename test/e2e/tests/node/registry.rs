//! Images from a registry with TLS and a password.

use std::env;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use e2e::{
    Case, Failure, MIRRORED, NODES_REGISTRY, PASSWORD, PATIENCE, Part, Pod, REGISTRY, Seen, Stopped, USER, eventually,
};
use k8s_openapi::api::core::v1::Secret;
use serde_json::json;
use tokio::task::spawn_blocking;

use crate::status::LOG;

/// The repository and the tag that the registry has.
const IMAGE: &str = "tenant/workload:1";
const WRONG: &str = "another-password";
/// The same registry at an address for which the node has no CA.
const UNKNOWN_CA: &str = "10.0.2.2:5001";

pub async fn run(part: Part) -> Result<(), Stopped> {
    let case = &part.case;
    let _registry = part.must_show("the_registry_starts", Registry::start()).await?;
    part.must_show("secrets_for_pulls_are_created", secrets(case)).await?;
    tokio::join!(
        part.shows("a_pod_pulls_with_a_secret_and_a_private_ca", pulls(case, "secret", REGISTRY, Some("right"))),
        part.shows("a_pod_pulls_as_the_user_of_the_node", pulls(case, "user", NODES_REGISTRY, None)),
        part.shows("a_pod_pulls_through_a_mirror", pulls(case, "mirror", MIRRORED, None)),
        part.shows(
            "a_wrong_password_is_an_event",
            fails(case, "password", REGISTRY, Some("wrong"), "401 Unauthorized")
        ),
        part.shows(
            "an_unknown_ca_is_an_event",
            fails(case, "unknown", UNKNOWN_CA, Some("right"), "x509: certificate signed by unknown")
        ),
    );
    part.shows("no_password_is_in_the_log_an_event_or_on_the_status_page", hides_passwords(case)).await;
    Ok(())
}

/// The registry as a process beside the guest, which ends with this.
struct Registry(Child);

impl Registry {
    async fn start() -> Result<Self, Failure> {
        let started = spawn_blocking(|| {
            let file = |name: &str| env::var_os(name).unwrap_or_else(|| panic!("{name} is not set"));
            let mut child = Command::new(file("GRANARY_REGISTRY"))
                .args([file("GRANARY_REGISTRY_CERTIFICATE"), file("GRANARY_REGISTRY_KEY")])
                .args([USER, PASSWORD])
                .arg(file("GRANARY_WORKLOAD"))
                // At the address of the guest's gateway, 10.0.2.2.
                .args([IMAGE, "127.0.0.1:5000", "127.0.0.1:5001", "127.0.0.1:5002"])
                .stdout(Stdio::piped())
                .spawn()
                .expect("the registry starts");
            let mut line = String::new();
            let output = child.stdout.take().expect("a pipe");
            BufReader::new(output).read_line(&mut line).expect("the registry's output");
            assert_eq!(line, "ready\n");
            Self(child)
        });
        Ok(started.await.expect("the registry is ready"))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

async fn secrets(case: &Case) -> Result<(), Failure> {
    for (name, password) in [("right", PASSWORD), ("wrong", WRONG)] {
        let user = json!({"username": USER, "password": password});
        let config = json!({"auths": {REGISTRY: user, UNKNOWN_CA: user}}).to_string();
        let secret = json!({
            "metadata": {"name": name},
            "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": config},
        });
        case.create::<Secret>(secret).await?;
    }
    Ok(())
}

async fn pulls(case: &Case, name: &str, registry: &str, secret: Option<&'static str>) -> Result<(), Failure> {
    let pod = case.open(&Pod::server(name).image(format!("{registry}/{IMAGE}"), secret)).await?;
    assert_eq!(pod.read("/origin").await?, "from a registry\n");
    pod.remove().await
}

async fn fails(
    case: &Case,
    name: &str,
    registry: &str,
    secret: Option<&'static str>,
    reason: &str,
) -> Result<(), Failure> {
    case.start(&Pod::server(name).image(format!("{registry}/{IMAGE}"), secret)).await?;
    eventually(PATIENCE, "an event with the reason", async || {
        let events = case.events(name).await?;
        let found = events.iter().any(|event| event.contains(reason));
        Ok(if found { Seen::Done(()) } else { Seen::NotYet(events.join("; ")) })
    })
    .await?;
    case.remove(name).await
}

async fn hides_passwords(case: &Case) -> Result<(), Failure> {
    let pages = ["statusz", "statusz.json", "metrics"].map(|page| format!("/api/v1/nodes/granary:7839/proxy/{page}"));
    let list = case.get(LOG).await?;
    let files: Vec<String> =
        list.split('"').filter(|name| name.ends_with(".jsonl")).map(|name| format!("{LOG}{name}")).collect();
    assert!(!files.is_empty(), "{list}");
    for path in pages.iter().chain(&files) {
        let text = case.get(path).await?;
        assert!(!text.is_empty() && !text.contains(PASSWORD) && !text.contains(WRONG), "{path} has a password");
    }
    for pod in ["password", "unknown"] {
        let events = case.events(pod).await?.join("; ");
        assert!(!events.is_empty() && !events.contains(PASSWORD) && !events.contains(WRONG), "{events}");
    }
    Ok(())
}
