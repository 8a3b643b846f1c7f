//! One claim and a pod that fills it.

use k8s_openapi::api::core::v1::{Event, Namespace, PersistentVolumeClaim, Pod, ServiceAccount};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::time::Duration;
use tokio::time::timeout;
use workload::{Check, Finding, Request};

const NAMESPACE: &str = "demo";
const CLAIM: &str = "notes";
const POD: &str = "writer";
const CAPACITY: u64 = 64 << 20;
/// The file system's own blocks (directories, lists of extents) are charged to the volume, too.
const METADATA: u64 = 1 << 20;
/// A pod takes seconds in emulation, minutes beside a build.
const LIMIT: Duration = Duration::from_secs(300);

/// What the demonstration showed.
#[derive(Debug)]
pub(crate) struct Demo {
    /// Namespace and name.
    pub(crate) claim: String,
    /// The volume's name.
    pub(crate) volume: String,
    /// What the claim got, in bytes.
    pub(crate) capacity: u64,
    /// What the pod saw.
    pub(crate) finding: workload::Demo,
}

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    #[error("cannot {step}")]
    Api {
        step: &'static str,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("cannot watch {what}")]
    Watch {
        what: &'static str,
        #[source]
        source: Box<kube::runtime::wait::Error>,
    },
    #[error("namespace {NAMESPACE} had no service account after {LIMIT:?}: the controller manager makes it")]
    NoAccount,
    #[error("cannot make the objects of the demonstration")]
    Object(#[source] serde_json::Error),
    #[error("pod {NAMESPACE}/{POD} did not end within {LIMIT:?}; {events}")]
    Late { events: String },
    #[error("pod {NAMESPACE}/{POD} failed: {message}")]
    Failed { message: String },
    #[error("pod {NAMESPACE}/{POD} reported {message:?}")]
    Report {
        message: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("claim {NAMESPACE}/{CLAIM} is not bound")]
    Unbound,
    #[error(
        "the volume's limit does not hold: {capacity} bytes promised, {size} shown, {written} written, then {errno}"
    )]
    Limit { capacity: u64, size: u64, written: u64, errno: String },
}

/// Makes the claim, or takes that of an earlier run, and lets a new pod fill it.
pub(crate) async fn run(client: Client, on_step: impl Fn(&str)) -> Result<Demo, DemoError> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), NAMESPACE);
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let namespace = Namespace {
        metadata: ObjectMeta { name: Some(NAMESPACE.to_owned()), ..ObjectMeta::default() },
        ..Namespace::default()
    };
    ensure(Api::all(client.clone()), &namespace, "create the namespace").await?;
    ensure(claims.clone(), &claim()?, "create the claim").await?;
    on_step("claim demo/notes of 64 MiB made, or found");

    // Pods are refused until the controller manager has made the namespace's account.
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    match timeout(LIMIT, await_condition(accounts, "default", conditions::is_created())).await {
        Ok(made) => {
            made.map_err(|source| DemoError::Watch { what: "the namespace's account", source: Box::new(source) })?
        }
        Err(_) => return Err(DemoError::NoAccount),
    };
    remove(&pods).await?;
    pods.create(&PostParams::default(), &pod()?).await.map_err(api("create the pod"))?;
    on_step("pod demo/writer made");
    let ended = await_condition(pods.clone(), POD, |pod: Option<&Pod>| matches!(phase(pod), "Succeeded" | "Failed"));
    let pod = match timeout(LIMIT, ended).await {
        Ok(ended) => ended.map_err(|source| DemoError::Watch { what: "the pod", source: Box::new(source) })?,
        Err(_) => return Err(DemoError::Late { events: events(client).await? }),
    };
    let message = message(pod.as_ref());
    if phase(pod.as_ref()) != "Succeeded" {
        return Err(DemoError::Failed { message });
    }
    on_step("pod demo/writer has filled the volume");
    let finding: Finding =
        serde_json::from_str(&message).map_err(|source| DemoError::Report { message: message.clone(), source })?;
    let Finding::Demo(finding) = finding else { return Err(DemoError::Failed { message }) };
    let claim = claims.get(CLAIM).await.map_err(api("read the claim"))?;
    judge(Demo {
        claim: format!("{NAMESPACE}/{CLAIM}"),
        volume: claim.spec.and_then(|spec| spec.volume_name).ok_or(DemoError::Unbound)?,
        capacity: CAPACITY,
        finding,
    })
}

/// The limit held: it was shown, nothing was written past it, and the refusal says so.
fn judge(demo: Demo) -> Result<Demo, DemoError> {
    let fill = &demo.finding.fill;
    let promised = demo.capacity - METADATA..=demo.capacity;
    let holds = fill.errno == "ENOSPC" && fill.before.size == demo.capacity && promised.contains(&fill.written);
    if !holds {
        let (capacity, size) = (demo.capacity, fill.before.size);
        return Err(DemoError::Limit { capacity, size, written: fill.written, errno: fill.errno.clone() });
    }
    Ok(demo)
}

fn claim() -> Result<PersistentVolumeClaim, DemoError> {
    object(json!({
        "metadata": {"name": CLAIM},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "resources": {"requests": {"storage": CAPACITY.to_string()}},
        },
    }))
}

fn pod() -> Result<Pod, DemoError> {
    let text = format!("written at {:.0}", Timestamp::now());
    let request = Request { check: Check::Demo { path: "/data".into(), text }, report: true };
    object(json!({
        "metadata": {"name": POD},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": "workload",
                "image": "granary.invalid/workload:1",
                "imagePullPolicy": "Never",
                "args": request.arguments(),
                "volumeMounts": [{"name": "notes", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "notes", "persistentVolumeClaim": {"claimName": CLAIM}}],
        },
    }))
}

fn object<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, DemoError> {
    serde_json::from_value(value).map_err(DemoError::Object)
}

fn api(step: &'static str) -> impl FnOnce(kube::Error) -> DemoError {
    move |error| DemoError::Api { step, source: Box::new(error) }
}

async fn ensure<K>(objects: Api<K>, object: &K, step: &'static str) -> Result<(), DemoError>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + DeserializeOwned,
{
    match objects.create(&PostParams::default(), object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(api(step)(error)),
    }
}

/// Removes the pod of an earlier run, and waits until it is gone.
async fn remove(pods: &Api<Pod>) -> Result<(), DemoError> {
    let Some(pod) = pods.get_opt(POD).await.map_err(api("look for an earlier pod"))? else { return Ok(()) };
    pods.delete(POD, &DeleteParams::default()).await.map_err(api("remove an earlier pod"))?;
    let uid = pod.uid().unwrap_or_default();
    match timeout(LIMIT, await_condition(pods.clone(), POD, conditions::is_deleted(&uid))).await {
        Ok(gone) => gone
            .map(drop)
            .map_err(|source| DemoError::Watch { what: "the pod of an earlier run", source: Box::new(source) }),
        Err(_) => Err(DemoError::Late { events: "the pod of an earlier run is still being removed".to_owned() }),
    }
}

fn phase(pod: Option<&Pod>) -> &str {
    pod.and_then(|pod| pod.status.as_ref()).and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// What the container reported, or what the kubelet says about the pod.
fn message(pod: Option<&Pod>) -> String {
    let Some(status) = pod.and_then(|pod| pod.status.as_ref()) else { return String::new() };
    let container = status.container_statuses.iter().flatten().next();
    let terminated = container.and_then(|container| container.state.as_ref()?.terminated.as_ref()?.message.clone());
    terminated.or_else(|| status.message.clone()).unwrap_or_else(|| "it left no message".to_owned())
}

/// What the cluster says about the objects of the demonstration.
async fn events(client: Client) -> Result<String, DemoError> {
    let events: Api<Event> = Api::namespaced(client, NAMESPACE);
    let events = events.list(&ListParams::default()).await.map_err(api("read the events"))?;
    let lines = events.items.iter().map(|event| {
        let object = &event.involved_object;
        format!(
            "\n  {} {}: {}: {}",
            object.kind.as_deref().unwrap_or_default(),
            object.name.as_deref().unwrap_or_default(),
            event.reason.as_deref().unwrap_or_default(),
            event.message.as_deref().unwrap_or_default(),
        )
    });
    Ok(format!("the events there:{}", lines.collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use workload::{Fill, Space};

    fn demo(size: u64, written: u64, errno: &str) -> Demo {
        let space = Space { size, free: size, inodes: 32_768, inodes_free: 32_767 };
        let fill = Fill { before: space, written, errno: errno.into(), full: space };
        let finding = workload::Demo { found: None, kept: String::new(), fill, after: space };
        Demo { claim: "demo/notes".into(), volume: "pvc-1".into(), capacity: CAPACITY, finding }
    }

    #[test]
    fn a_volume_that_ends_at_its_limit_is_shown() {
        assert!(judge(demo(CAPACITY, CAPACITY - 4096, "ENOSPC")).is_ok());
    }

    #[test]
    fn a_limit_that_does_not_hold_is_an_error() {
        assert!(judge(demo(CAPACITY, CAPACITY + 1, "ENOSPC")).is_err());
        assert!(judge(demo(CAPACITY, CAPACITY / 2, "ENOSPC")).is_err());
        assert!(judge(demo(8 << 30, CAPACITY, "ENOSPC")).is_err());
        assert!(judge(demo(CAPACITY, CAPACITY, "EIO")).is_err());
    }

    #[test]
    fn the_report_of_the_container_is_preferred() {
        let pod: Pod = object(json!({
            "metadata": {"name": POD},
            "status": {"phase": "Succeeded", "containerStatuses": [{
                "name": "workload", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": 0, "message": "{}"}},
            }]},
        }))
        .unwrap();
        assert_eq!((phase(Some(&pod)), message(Some(&pod)).as_str()), ("Succeeded", "{}"));
        assert_eq!(message(None), "");
    }

    #[test]
    fn the_objects_are_what_the_api_takes() {
        assert!(claim().is_ok());
        assert_eq!(pod().unwrap().spec.unwrap().containers[0].args.as_ref().unwrap()[0], "demo");
    }
}
