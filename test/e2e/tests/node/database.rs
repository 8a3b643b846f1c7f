//! The tutorial "Your first database". The test uses its objects with the address of the test's registry, and adds a
//! device to the StatefulSet.

use std::net::{Ipv4Addr, SocketAddr};

use e2e::{Case, Failure, OnNode, PASSWORD, PATIENCE, Part, REGISTRY, Seen, USER, eventually};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use workload::Record;

const OBJECTS: &str = include_str!("../../../../docs/database.yaml");
const TUTORIAL_REGISTRY: &str = "registry.example:5000";
/// Repository and tag of the image.
pub const IMAGE: &str = "redis:7.0";
/// Name of the StatefulSet, of the Service, and of the Secret with the database's password.
const NAME: &str = "database";
pub const POD: &str = "database-0";
pub const CONTAINER: &str = "redis";
const CLAIM: &str = "data-database-0";
const SIZE: u64 = 128 << 20;
/// Name of the added template, and of its claim for the pod.
const DEVICE: &str = "device";
const DEVICE_CLAIM: &str = "device-database-0";
const DEVICE_SIZE: u64 = 16 << 20;
const PORT: u16 = 6379;
pub const SECRET: &str = "password-of-the-test-database";

/// Creates the Secrets that the tutorial creates with kubectl, and the objects of the tutorial's file.
pub async fn create(case: &Case) -> Result<(), Failure> {
    let user = json!({"username": USER, "password": PASSWORD});
    for secret in [
        json!({
            "metadata": {"name": "registry"},
            "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": json!({"auths": {REGISTRY: user}}).to_string()},
        }),
        json!({"metadata": {"name": NAME}, "stringData": {"password": SECRET}}),
    ] {
        case.create::<Secret>(secret).await?;
    }
    assert!(OBJECTS.contains(&format!("image: {TUTORIAL_REGISTRY}/{IMAGE}\n")), "{OBJECTS}");
    let objects = OBJECTS.replace(TUTORIAL_REGISTRY, REGISTRY);
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(&objects).expect("YAML of objects");
    assert_eq!(objects.len(), 3, "{objects:?}");
    let set = objects.iter_mut().find(|object| object["kind"] == "StatefulSet").expect("a StatefulSet");
    add_device(set);
    for object in objects {
        case.apply(&serde_json::from_value(object)?).await?;
    }
    Ok(())
}

/// Adds a claim for a device. The tutorial only has a claim for files.
fn add_device(set: &mut Value) {
    let spec = &mut set["spec"];
    let template = json!({
        "metadata": {"name": DEVICE},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Block",
            "resources": {"requests": {"storage": DEVICE_SIZE.to_string()}},
        },
    });
    spec["volumeClaimTemplates"].as_array_mut().expect("a list of templates").push(template);
    let device = json!([{"name": DEVICE, "devicePath": "/dev/device"}]);
    spec["template"]["spec"]["containers"][0]["volumeDevices"] = device;
}

/// Cases of one database. Each case needs the previous one.
pub async fn cases(part: &Part) {
    let case = &part.case;
    let has_a_claim =
        part.must_show("a_stateful_set_pulls_with_a_secret_and_a_private_ca_and_has_a_claim", has_a_claim(case));
    let Ok(first) = has_a_claim.await else { return };
    let has_a_device = part.must_show("a_stateful_set_has_a_device_for_its_pod", has_a_device(case));
    let Ok(device) = has_a_device.await else { return };
    let written = part.must_show("a_database_is_written_by_the_name_of_its_headless_service", is_written(case)).await;
    if written.is_err() {
        return;
    }
    part.shows("a_disruption_budget_allows_no_eviction_of_the_database", is_counted(case)).await;
    part.shows("a_deleted_pod_of_a_database_returns_with_its_data", returns(case, &first)).await;
    part.shows("the_next_pod_of_a_stateful_set_has_its_device", keeps_its_device(case, &device)).await;
}

/// Returns the UID of the pod.
async fn has_a_claim(case: &Case) -> Result<String, Failure> {
    let pod = case.ready_pod(POD, None).await?;
    let volume = case.volume_name(CLAIM).await?;
    let OnNode { project, mounts, .. } = case.on_the_node(&volume).await?;
    assert_eq!(project.and_then(|project| project.bytes), Some(SIZE));
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    Ok(pod)
}

/// Returns the name of the device's volume.
async fn has_a_device(case: &Case) -> Result<String, Failure> {
    let volume = case.volume_name(DEVICE_CLAIM).await?;
    let OnNode { loops, .. } = case.on_the_node(&volume).await?;
    assert_eq!(loops.len(), 1, "{loops:?}");
    Ok(volume)
}

/// The pod is ready, so it has a device. Verifies that this is the previous device.
async fn keeps_its_device(case: &Case, volume: &str) -> Result<(), Failure> {
    assert_eq!(has_a_device(case).await?, volume);
    Ok(())
}

async fn is_written(case: &Case) -> Result<(), Failure> {
    answers(case, "SET note kept", "+OK\r\n").await
}

/// Waits for this response to an inline command of the protocol (RESP), besides those to `AUTH` and `QUIT`. The
/// observer is in another namespace and looks up the pod's name in the Service.
async fn answers(case: &Case, command: &str, answer: &str) -> Result<(), Failure> {
    let observer = case.observer();
    let name = format!("{POD}.{NAME}.{}", case.namespace());
    let (request, wanted) = (format!("AUTH {SECRET}\r\n{command}\r\nQUIT\r\n"), format!("+OK\r\n{answer}+OK\r\n"));
    eventually(PATIENCE, &format!("the answer to {command} of {name}"), async || {
        let found = observer.resolve(&name, Record::A).await?;
        let [address] = &*found.answers else { return Ok(Seen::NotYet(format!("{found:?}"))) };
        let address: Ipv4Addr = address.parse().unwrap_or_else(|error| panic!("{address}: {error}"));
        let found = observer.exchange(SocketAddr::from((address, PORT)), &request).await?;
        Ok(if found == wanted { Seen::Done(()) } else { Seen::NotYet(format!("{found:?}")) })
    })
    .await
}

/// Checks the budget without an eviction, because the client repeats a denied eviction (status 429) for minutes.
async fn is_counted(case: &Case) -> Result<(), Failure> {
    eventually(PATIENCE, "the counts of the disruption budget", async || {
        let budget = case.api::<PodDisruptionBudget>().get(NAME).await.map_err(Failure::api("read a budget"))?;
        let status = budget.status.unwrap_or_default();
        let counts = (status.expected_pods, status.current_healthy, status.disruptions_allowed);
        Ok(if counts == (Some(1), Some(1), Some(0)) { Seen::Done(()) } else { Seen::NotYet(format!("{status:?}")) })
    })
    .await
}

async fn returns(case: &Case, first: &str) -> Result<(), Failure> {
    let deleted = case.api::<Pod>().delete(POD, &DeleteParams::default()).await;
    deleted.map_err(Failure::api("delete the pod of the database"))?;
    case.ready_pod(POD, Some(first)).await?;
    answers(case, "GET note", "$4\r\nkept\r\n").await
}

/// Deletes the StatefulSet and waits for the end of the pod. The claim stays, as after a user's `kubectl delete`.
pub async fn delete(case: &Case) -> Result<(), Failure> {
    let deleted = case.api::<StatefulSet>().delete(NAME, &DeleteParams::default()).await;
    deleted.map_err(Failure::api("delete a StatefulSet"))?;
    eventually(PATIENCE, "the end of the pod", async || {
        let pod = case.api::<Pod>().get_opt(POD).await.map_err(Failure::api("look for the pod"))?;
        Ok(if pod.is_none() { Seen::Done(()) } else { Seen::NotYet(format!("{POD} is there")) })
    })
    .await
}
