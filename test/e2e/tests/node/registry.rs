//! Images from a registry with TLS and a password, and the space that they have.

use std::env;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use e2e::{
    Case, Claim, Failure, MIRRORED, NODES_REGISTRY, PASSWORD, PATIENCE, Part, Pod, REGISTRY, Seen, Server, Stopped,
    USER, Volume, eventually,
};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod as PodObject, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use crate::status::{self, LOG};

/// The repository and the tag that the registry has.
const IMAGE: &str = "tenant/workload:1";
const WRONG: &str = "another-password";
/// The same registry at an address for which the node has no CA.
const UNKNOWN_CA: &str = "10.0.2.2:5001";
const SIZE: u64 = 16 << 20;
const SET: &str = "set";
const POD: &str = "set-0";
/// The pod whose images cannot be pulled.
const REFUSED: &str = "refused";

/// Two pods, with several containers each, because a pod takes longer than a pull.
pub async fn run(part: Part) -> Result<(), Stopped> {
    let case = &part.case;
    let _registry = part.must_show("the_registry_starts", Registry::start()).await?;
    part.must_show("secrets_for_pulls_are_created", secrets(case)).await?;
    part.must_show("pods_with_images_of_the_registry_are_created", start(case)).await?;
    tokio::join!(
        part.shows("a_stateful_set_pulls_with_a_secret_and_a_private_ca_and_has_a_claim", has_a_claim(case)),
        part.shows("a_headless_service_has_the_address_of_the_pod", has_an_address(case)),
        part.shows("a_pod_pulls_as_the_user_of_the_node", pulled(case, NODES_REGISTRY)),
        part.shows("a_pod_pulls_through_a_mirror", pulled(case, MIRRORED)),
        part.shows("a_wrong_password_is_an_event", fails(case, REGISTRY, "401 Unauthorized")),
        part.shows("an_unknown_ca_is_an_event", fails(case, UNKNOWN_CA, "x509: certificate signed by unknown")),
    );
    part.shows("no_password_is_in_the_log_an_event_or_on_the_status_page", hides_passwords(case)).await;
    let full = async {
        part.must_show("an_unused_image_is_removed_when_its_part_is_full", is_removed(case)).await?;
        part.must_show("an_image_that_does_not_fit_is_an_event", does_not_fit(case)).await
    };
    let shown = full.await;
    // Also after a failure: the pods of other parts need the space.
    part.shows("the_part_has_space_again", has_space(&case.observer())).await;
    shown
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

/// Another container of a pod, with an image of another registry.
fn container(first: &Value, name: &str, registry: &str, port: u16) -> Value {
    let mut other = first.clone();
    other["name"] = name.into();
    other["image"] = format!("{registry}/{IMAGE}").into();
    other["args"] = json!(["serve", port.to_string()]);
    other
}

/// A StatefulSet with a headless Service, and a pod whose containers cannot be started.
async fn start(case: &Case) -> Result<(), Failure> {
    let set = Pod::server(SET).with(Volume::claim("data")).restarting();
    let mut spec = set.image(format!("{REGISTRY}/{IMAGE}"), Some("right")).spec();
    let first = spec["containers"][0].clone();
    let others = [container(&first, "user", NODES_REGISTRY, 8081), container(&first, "mirror", MIRRORED, 8082)];
    spec["containers"] = json!([&first, others[0], others[1]]);
    let labels = json!({"app": SET});
    case.create::<Service>(json!({
        "metadata": {"name": SET},
        "spec": {"clusterIP": "None", "selector": labels, "ports": [{"port": 8080}]},
    }))
    .await?;
    case.create::<StatefulSet>(json!({
        "metadata": {"name": SET},
        "spec": {
            "serviceName": SET,
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": Claim::new("data", SIZE).spec()}],
        },
    }))
    .await?;
    let mut spec = Pod::server(REFUSED).image(format!("{REGISTRY}/{IMAGE}"), Some("wrong")).spec();
    let first = spec["containers"][0].clone();
    spec["containers"] = json!([&first, container(&first, "unknown", UNKNOWN_CA, 8081)]);
    case.create::<PodObject>(json!({"metadata": {"name": REFUSED}, "spec": spec})).await.map(drop)
}

async fn has_a_claim(case: &Case) -> Result<(), Failure> {
    let pod = case.find(POD).await?;
    assert_eq!(pod.read("/origin").await?, "from a registry\n");
    assert_eq!(pod.inspect("/data").await?.space.size, SIZE);
    pod.write("/data/note", "kept").await
}

async fn has_an_address(case: &Case) -> Result<(), Failure> {
    let of_the_service = ListParams::default().labels(&format!("kubernetes.io/service-name={SET}"));
    eventually(PATIENCE, "an endpoint of the headless Service", async || {
        let slices = case.api::<EndpointSlice>().list(&of_the_service).await.map_err(Failure::api("list endpoints"))?;
        let pod = case.api::<PodObject>().get_opt(POD).await.map_err(Failure::api("look for the pod"))?;
        let address = pod.and_then(|pod| pod.status?.pod_ip);
        let endpoints: Vec<_> =
            slices.items.into_iter().flat_map(|slice| slice.endpoints.into_iter().flatten()).collect();
        let has = |address: &String| {
            endpoints.iter().any(|one| one.hostname.as_deref() == Some(POD) && one.addresses.contains(address))
        };
        let found = address.as_ref().is_some_and(has);
        Ok(if found { Seen::Done(()) } else { Seen::NotYet(format!("{address:?} in {endpoints:?}")) })
    })
    .await
}

/// The registries have one image, so only the event shows which of them a container's was pulled from.
async fn pulled(case: &Case, registry: &str) -> Result<(), Failure> {
    has_event(case, POD, &format!("Successfully pulled image \"{registry}/{IMAGE}\"")).await
}

async fn fails(case: &Case, registry: &str, reason: &str) -> Result<(), Failure> {
    has_event(case, REFUSED, &format!("Failed to pull image \"{registry}/{IMAGE}\"*{reason}")).await
}

/// An event of the pod that contains all of these texts, which `*` separates.
async fn has_event(case: &Case, pod: &str, texts: &str) -> Result<(), Failure> {
    eventually(PATIENCE, &format!("an event of {pod} with {texts}"), async || {
        let events = case.events(pod).await?;
        let found = events.iter().any(|event| texts.split('*').all(|text| event.contains(text)));
        Ok(if found { Seen::Done(()) } else { Seen::NotYet(events.join("; ")) })
    })
    .await
}

/// The image of the StatefulSet, as soon as the kubelet has removed the containers. A file in the writable layer of the observer
/// fills the part when the pod has ended: containerd records the end of a container in that part.
async fn is_removed(case: &Case) -> Result<(), Failure> {
    let deleted = case.api::<StatefulSet>().delete(SET, &DeleteParams::default()).await;
    deleted.map_err(Failure::api("delete a StatefulSet"))?;
    eventually(PATIENCE, "the end of the pod", async || {
        let pod = case.api::<PodObject>().get_opt(POD).await.map_err(Failure::api("look for the pod"))?;
        Ok(if pod.is_none() { Seen::Done(()) } else { Seen::NotYet(format!("{POD} is there")) })
    })
    .await?;
    assert_eq!(case.observer().fill("/", true).await?.errno, "ENOSPC");
    eventually(PATIENCE, "the removal of an image", async || {
        let removed = status::number(case, "granary_images_removed_total").await?;
        Ok(if removed == Some(1) { Seen::Done(()) } else { Seen::NotYet(format!("{removed:?}")) })
    })
    .await
}

/// In a pod that exists, because the sandbox of another one would not fit either.
async fn does_not_fit(case: &Case) -> Result<(), Failure> {
    // The removal has freed a few blocks.
    assert_eq!(case.observer().fill("/", true).await?.errno, "ENOSPC");
    let image = format!("{NODES_REGISTRY}/{IMAGE}");
    let patch = json!({"spec": {"containers": [{"name": "unknown", "image": image}]}});
    let patched = case.api::<PodObject>().patch(REFUSED, &PatchParams::default(), &Patch::Strategic(patch)).await;
    patched.map_err(Failure::api("change the image of a container"))?;
    fails(case, NODES_REGISTRY, "no space left on device").await
}

async fn has_space(observer: &Server) -> Result<(), Failure> {
    observer.fill("/", false).await.map(drop)
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
    for pod in [POD, REFUSED] {
        let events = case.events(pod).await?.join("; ");
        assert!(!events.is_empty() && !events.contains(PASSWORD) && !events.contains(WRONG), "{events}");
    }
    Ok(())
}
