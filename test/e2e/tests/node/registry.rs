//! Images from a registry with TLS and a password, and the disk space of images.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use e2e::{
    Case, Failure, MIRRORED, NAME_SERVER, NODES_REGISTRY, PASSWORD, PATIENCE, PLAIN_REGISTRY, Part, Pod, REGISTRY,
    SECOND_REGISTRY, Seen, Server, Stopped, USER, eventually,
};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ContainerState, Pod as PodObject, Secret};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::task::spawn_blocking;

use crate::database;
use crate::status::{self, AUDIT_LOG, LOG};

/// Repository and tag of a second image besides that of the database.
const IMAGE: &str = "tenant/workload:1";
/// Repository and tag of an image of 27 MB, more than the test leaves free.
const LARGE: &str = "tenant/large:1";
const WRONG: &str = "another-password";
/// Address of the same registry for which the node has no CA.
const UNKNOWN_CA: &str = "10.0.2.2:5001";
/// Registry that is not in the node's configuration. A file on the data disk adds it while the node runs.
const ADDED: &str = "added.invalid";
/// Directory of such files, through the root of PID 1.
const ADDED_REGISTRIES: &str = "/proc/1/root/data/registries";
/// Directory of files that the node generates at its boot, through the root of PID 1.
const EPHEMERAL: &str = "/proc/1/root/ephemeral";
/// Address at which no program listens: port 1 is reserved (tcpmux).
const ABSENT: &str = "10.0.2.2:1";
/// Name that no name server has (RFC 6761).
const UNKNOWN_NAME: &str = "unknown.invalid";
/// Pod with images of several registries, three of which cannot be pulled. One of these gets another image later. The pod
/// stays `Pending`.
const POD: &str = "pulls";

/// The part uses two pods, one of which is deleted and created again. The other pod has several containers, because a
/// pod takes longer than a pull. The kubelet publishes 25 events of a pod. The pod with several containers has more, so
/// the case of an image that does not fit uses the second pod of the database.
pub async fn run(part: Part) -> Result<(), Stopped> {
    let case = &part.case;
    let _registry = part.must_show("the_registry_starts", Registry::start()).await?;
    part.must_show("a_pod_with_images_of_several_registries_is_created", start(case)).await?;
    // The cases run in the order of the containers, because each look at the events takes CPU time from the pods.
    let failed = |registry: &'static str, reason: &'static str| {
        let image = format!("{registry}/{IMAGE}");
        fails(case, POD, image, reason)
    };
    part.shows("a_wrong_password_is_an_event", failed(REGISTRY, "401 Unauthorized")).await;
    let unknown_ca = failed(UNKNOWN_CA, "x509: certificate signed by unknown");
    part.shows("an_unknown_ca_is_an_event", unknown_ca).await;
    part.shows("a_missing_registry_is_an_event", failed(ABSENT, "connection refused")).await;
    // The part `volumes` takes longest, so its first pod starts before that of the database.
    part.must_show("the_objects_of_the_tutorial_are_valid", database::create(case)).await?;
    let pulls = async {
        part.shows("a_pod_pulls_as_the_user_of_the_node", pulled(case, "user")).await;
        part.shows("a_pod_pulls_through_a_mirror", pulled(case, "mirror")).await;
        part.shows("a_pod_pulls_with_the_ca_of_all_registries", pulled(case, "second")).await;
        part.shows("a_pod_pulls_without_tls_where_the_configuration_allows_it", pulled(case, "plain")).await;
        part.shows("a_registry_is_added_without_a_restart", is_added(case)).await;
    };
    tokio::join!(database::cases(&part), pulls);
    part.shows("no_password_is_in_the_log_an_event_or_on_the_status_page", hides_passwords(case, &part.console)).await;
    part.shows("only_root_can_read_the_nodes_files_with_passwords", restricts_files(case)).await;

    // On the full part, no other pod could start.
    part.alone().await;
    let full = async {
        part.must_show("an_unknown_name_of_a_registry_is_an_event", has_unknown_name(case)).await?;
        part.must_show("an_image_that_does_not_fit_is_reported", does_not_fit(case)).await?;
        part.must_show("a_deleted_stateful_set_ends_with_its_pod", database::delete(case)).await?;
        part.must_show("an_unused_image_is_removed_when_its_part_is_full", is_removed(case)).await?;
        part.must_show("a_pod_ends_when_its_part_is_full", case.remove(POD)).await
    };
    let shown = full.await;
    // Free the space even after a failure, because the pods of other parts need it.
    part.shows("the_part_has_space_again", has_space(&case.observer())).await;
    shown
}

/// The registry, a process outside the guest. Dropping the value kills the process.
struct Registry(Child);

impl Registry {
    async fn start() -> Result<Self, Failure> {
        let started = spawn_blocking(|| {
            let file = |name: &str| env::var_os(name).unwrap_or_else(|| panic!("{name} is not set"));
            let image = |name: &str, archive: &str| [OsString::from(name), file(archive)].join(OsStr::new("="));
            let with_tls = |address: &str, pair: &str| {
                let [certificate, key] = ["CERTIFICATE", "KEY"].map(|part| file(&format!("{pair}_{part}")));
                [OsString::from(address), certificate, key].join(OsStr::new(","))
            };
            let first = |address: &str| with_tls(address, "GRANARY_REGISTRY");
            let mut child = Command::new(file("GRANARY_REGISTRY"))
                .args([USER, PASSWORD])
                .args([image(IMAGE, "GRANARY_WORKLOAD"), image(database::IMAGE, "GRANARY_DATABASE")])
                .arg(image(LARGE, "GRANARY_LARGE"))
                // The guest reaches these addresses through its gateway, 10.0.2.2.
                .args(["127.0.0.1:5000", "127.0.0.1:5001", "127.0.0.1:5002"].map(first))
                .args([with_tls("127.0.0.1:5003", "GRANARY_SECOND"), OsString::from("127.0.0.1:5004")])
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

/// Creates the pod. Its containers run the same program on different ports. The kubelet publishes 25 events of a pod
/// and then one every five minutes, so the first containers are those whose images cannot be pulled.
async fn start(case: &Case) -> Result<(), Failure> {
    // Must have no effect, because the node's configuration has this registry.
    add(case, NODES_REGISTRY, "server = \"https://unused.invalid\"\n").await?;
    let user = |password: &str| json!({"username": USER, "password": password});
    let users = json!({
        REGISTRY: user(WRONG),
        UNKNOWN_CA: user(WRONG),
        ADDED: user(PASSWORD),
        SECOND_REGISTRY: user(PASSWORD),
        PLAIN_REGISTRY: user(PASSWORD),
    });
    case.create::<Secret>(json!({
        "metadata": {"name": "users"},
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": json!({"auths": users}).to_string()},
    }))
    .await?;
    let mut spec = Pod::server(POD).image(format!("{REGISTRY}/{IMAGE}"), Some("users")).spec();
    let first = spec["containers"][0].clone();
    let container = |name: &str, registry: &str, port: u16| {
        let mut other = first.clone();
        other["name"] = name.into();
        other["image"] = format!("{registry}/{IMAGE}").into();
        other["args"] = json!(["serve", port.to_string()]);
        other
    };
    spec["containers"] = json!([
        &first,
        container("unknown", UNKNOWN_CA, 8081),
        container("absent", ABSENT, 8082),
        container("user", NODES_REGISTRY, 8083),
        container("mirror", MIRRORED, 8084),
        container("second", SECOND_REGISTRY, 8085),
        container("plain", PLAIN_REGISTRY, 8086),
    ]);
    case.create::<PodObject>(json!({"metadata": {"name": POD}, "spec": spec})).await.map(drop)
}

async fn add(case: &Case, registry: &str, hosts: &str) -> Result<(), Failure> {
    case.observer().write(format!("{ADDED_REGISTRIES}/{registry}/hosts.toml"), hosts).await
}

/// Adds a registry, and changes the image of the container whose password is wrong. The container then runs.
async fn is_added(case: &Case) -> Result<(), Failure> {
    add(case, ADDED, &format!("[host.\"https://{REGISTRY}\"]\nskip_verify = true\n")).await?;
    set_image(case, POD, "workload", &format!("{ADDED}/{IMAGE}")).await?;
    pulled(case, "workload").await
}

async fn set_image(case: &Case, pod: &str, container: &str, image: &str) -> Result<(), Failure> {
    let patch = json!({"spec": {"containers": [{"name": container, "image": image}]}});
    let patched = case.api::<PodObject>().patch(pod, &PatchParams::default(), &Patch::Strategic(patch)).await;
    patched.map(drop).map_err(Failure::api("change the image of a container"))
}

/// Waits until a container runs. The kubelet pulls its image by the name with the registry, because the pull policy is
/// `Always`.
async fn pulled(case: &Case, container: &str) -> Result<(), Failure> {
    eventually(PATIENCE, &format!("container {container} of {POD} to run"), async || {
        let states = states(case).await?;
        let runs = |(name, state): &(String, ContainerState)| name == container && state.running.is_some();
        Ok(if states.iter().any(runs) { Seen::Done(()) } else { Seen::NotYet(format!("{states:?}")) })
    })
    .await
}

/// Names and states of the pod's containers.
async fn states(case: &Case) -> Result<Vec<(String, ContainerState)>, Failure> {
    let pod = case.api::<PodObject>().get(POD).await.map_err(Failure::api("read a pod"))?;
    let containers = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
    Ok(containers.into_iter().map(|container| (container.name, container.state.unwrap_or_default())).collect())
}

/// Waits for the event of a pull that fails for this reason.
async fn fails(case: &Case, pod: &str, image: String, reason: &str) -> Result<(), Failure> {
    let pull = format!("Failed to pull image \"{image}\"");
    eventually(PATIENCE, &format!("an event of {pod} with {pull} and {reason}"), async || {
        let events = case.events(pod).await?;
        let found = events.iter().any(|event| event.contains(&pull) && event.contains(reason));
        Ok(if found { Seen::Done(()) } else { Seen::NotYet(events.join("; ")) })
    })
    .await
}

/// Waits on the full part until the node has removed the image of the database. The kubelet removes a container up to a
/// minute after its pod, and the image is in use until then. The other image is in use.
async fn is_removed(case: &Case) -> Result<(), Failure> {
    eventually(PATIENCE, "the removal of an image", async || {
        let removed = status::number(case, "granary_images_removed_total").await?;
        Ok(if removed == Some(1) { Seen::Done(()) } else { Seen::NotYet(format!("{removed:?}")) })
    })
    .await?;
    // The next case needs a full part.
    assert_eq!(case.observer().fill("/", true).await?.errno, "ENOSPC");
    Ok(())
}

/// Changes the image of the database's pod. The node's name server does not answer, so the lookup takes two attempts of
/// Go's resolver, 10 s. The kubelet pulls one image after another, so the case runs when other parts need no image.
/// Whatever the reason, the error names the registry and the server (`net.DNSError`).
async fn has_unknown_name(case: &Case) -> Result<(), Failure> {
    let image = format!("{UNKNOWN_NAME}/{LARGE}");
    set_image(case, database::POD, database::CONTAINER, &image).await?;
    fails(case, database::POD, image, &format!("lookup {UNKNOWN_NAME} on {NAME_SERVER}:53: ")).await
}

/// Changes the image of the database's pod, because the sandbox of a new pod would not fit either. A file in the
/// writable layer of the observer fills the part of the disk. The previous case has ended the pod's container, whose
/// state needs space, too.
async fn does_not_fit(case: &Case) -> Result<(), Failure> {
    assert_eq!(case.observer().fill("/", true).await?.errno, "ENOSPC");
    let large = format!("{NODES_REGISTRY}/{LARGE}");
    set_image(case, database::POD, database::CONTAINER, &large).await?;
    fails(case, database::POD, large, "no space left on device").await
}

async fn has_space(observer: &Server) -> Result<(), Failure> {
    observer.fill("/", false).await.map(drop)
}

async fn hides_passwords(case: &Case, console: &Path) -> Result<(), Failure> {
    let pages = ["statusz", "statusz.json", "metrics"].map(|page| format!("/api/v1/nodes/granary:7839/proxy/{page}"));
    let list = case.get(LOG).await?;
    let files: Vec<String> =
        list.split('"').filter(|name| name.ends_with(".jsonl")).map(|name| format!("{LOG}{name}")).collect();
    assert!(!files.is_empty(), "{list}");
    let secrets = secrets();
    let has_a_password = |text: &str| secrets.iter().any(|secret| text.contains(secret));
    for path in pages.iter().chain(&files) {
        let text = case.get(path).await?;
        assert!(!text.is_empty() && !has_a_password(&text), "{path} has a password");
    }
    let list = case.get(AUDIT_LOG).await?;
    let files: Vec<&str> = list.split('"').filter(|name| name.ends_with(".log")).collect();
    assert!(files.contains(&"audit.log"), "{list}");
    for name in files {
        let text = case.get(&format!("{AUDIT_LOG}{name}")).await?;
        // The test itself sends the password of the database to the observer, in a URI.
        let mut others = text.lines().filter(|line| !line.contains("/namespaces/observer/pods/observer:"));
        assert_eq!(others.find(|line| has_a_password(line)), None, "{name} has a password");
    }
    let console = fs::read(console).expect("the console");
    let console = String::from_utf8_lossy(&console);
    assert!(!console.is_empty() && !has_a_password(&console), "the console has a password: {console}");
    // Of all namespaces.
    let events = case.get("/api/v1/events").await?;
    for pod in [POD, database::POD] {
        assert!(events.contains(&format!("{pod:?}")), "no event of {pod}: {events}");
    }
    assert!(!has_a_password(&events), "an event has a password: {events}");
    Ok(())
}

async fn restricts_files(case: &Case) -> Result<(), Failure> {
    let registries = [REGISTRY, NODES_REGISTRY, MIRRORED, PLAIN_REGISTRY];
    let mut files = Vec::from(registries.map(|registry| format!("config/certs.d/{registry}/hosts.toml")));
    files.push(".docker/config.json".to_owned());
    let observer = case.observer();
    for file in files {
        let found = observer.inspect(format!("{EPHEMERAL}/{file}")).await?;
        assert_eq!((found.uid, found.mode.as_str()), (0, "0600"), "{file}");
    }
    Ok(())
}

/// The passwords, and their base64 forms in `config.json`, `hosts.toml` and Secrets.
fn secrets() -> Vec<String> {
    let base64 = |text: &str| json!(ByteString(text.into())).as_str().expect("a text").to_owned();
    let passwords = [PASSWORD, WRONG, database::SECRET];
    let with_user = [PASSWORD, WRONG].map(|password| base64(&format!("{USER}:{password}")));
    passwords.map(str::to_owned).into_iter().chain(passwords.map(base64)).chain(with_user).collect()
}
