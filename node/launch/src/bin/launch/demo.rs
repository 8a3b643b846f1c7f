//! Demonstration: a claim of each mode on every node, and a pod that fills both volumes.

use crate::mesh::{self, MeshResult};
use crate::objects::{self, DemoClaim, DemoPod, Mode, NAMESPACE};
use crate::pods::RunningPod;
use futures::future::{join_all, try_join_all};
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim, Pod, ServiceAccount};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::wait::{Condition, conditions};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use std::error::Error;
use std::time::Duration;
use tokio::time::timeout;
use units::Bytes;
use workload::Check;

/// Maximum space of metadata: blocks of directories and lists of extents also count to the limit.
const METADATA: u64 = 1 << 20;
/// Deadline of a pod. A pod takes seconds in emulation, and minutes beside a build.
const LIMIT: Duration = Duration::from_secs(300);
pub(crate) const REQUEST: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct DemoResult {
    pub(crate) claims: Vec<ClaimResult>,
    pub(crate) mesh: Vec<MeshResult>,
}

#[derive(Debug)]
pub(crate) struct ClaimResult {
    pub(crate) demo_claim: DemoClaim,
    pub(crate) volume: String,
    pub(crate) finding: workload::Demo,
}

pub(crate) type WatchError = Box<watcher::Error>;

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct DemoError {
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl DemoError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None }
    }

    /// Returns a function for `map_err`.
    pub(crate) fn of<E: Error + Send + Sync + 'static>(message: impl Into<String>) -> impl FnOnce(E) -> Self {
        let message = message.into();
        |cause| Self { message, source: Some(Box::new(cause)) }
    }

    pub(crate) fn late(pod: &str, events: &str, lost: Option<WatchError>) -> Self {
        let message = format!("pod {NAMESPACE}/{pod} does not run after {LIMIT:?}; {events}");
        Self { message, source: lost.map(Into::into) }
    }

    pub(crate) fn failed(pod: &str, message: &str) -> Self {
        Self::new(format!("pod {NAMESPACE}/{pod} failed: {message}"))
    }
}

impl From<serde_json::Error> for DemoError {
    fn from(error: serde_json::Error) -> Self {
        Self::of("cannot create the objects of the demonstration")(error)
    }
}

/// Creates missing claims, and a pod on each node that fills its volumes. With several nodes, each pod then sends a
/// request to the pod of the next node.
pub(crate) async fn run(client: Client, nodes: &[String], on_step: impl Fn(&str)) -> Result<DemoResult, DemoError> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), NAMESPACE);
    ensure(Api::all(client.clone()), &objects::namespace(), NAMESPACE).await?;
    let demo_pods = objects::demo_pods(nodes);
    let mut names = Vec::new();
    for demo_claim in demo_pods.iter().flat_map(|demo_pod| &demo_pod.claims) {
        ensure(claims.clone(), &objects::claim(demo_claim)?, &demo_claim.claim).await?;
        names.push(format!("{NAMESPACE}/{}", demo_claim.claim));
    }
    on_step(&format!("claims {} exist", listed(&names)));

    // The API server rejects pods until the namespace has its service account.
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    let account = wait_for(&accounts, "default", conditions::is_created()).await;
    account.map_err(|lost| DemoError {
        message: format!(
            "namespace {NAMESPACE} had no service account after {LIMIT:?}; see the log of the controller manager"
        ),
        source: lost.map(Into::into),
    })?;
    let text = format!("written at {:.0}", Timestamp::now());
    let shown = demo_pods.iter().map(|demo_pod| show_pod(&client, demo_pod, &text, &on_step));
    let (pods, claims): (Vec<_>, Vec<_>) = try_join_all(shown).await?.into_iter().unzip();
    // Send the requests between pods last, so that the nodes are idle during the measurement.
    let mesh = if pods.len() > 1 { mesh::run(&client, &pods).await? } else { Vec::new() };
    join_all(pods.iter().map(|pod| pod.end(&client))).await;
    Ok(DemoResult { claims: claims.into_iter().flatten().collect(), mesh })
}

fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    }
}

async fn show_pod(
    client: &Client,
    demo_pod: &DemoPod,
    text: &str,
    on_step: &impl Fn(&str),
) -> Result<(RunningPod, Vec<ClaimResult>), DemoError> {
    let pod = RunningPod::start(client, demo_pod).await?;
    let claims = demo_pod.claims.iter().map(|demo_claim| show(client, &pod, demo_claim, text, on_step));
    let claims = try_join_all(claims).await?;
    Ok((pod, claims))
}

async fn show(
    client: &Client,
    pod: &RunningPod,
    demo_claim: &DemoClaim,
    text: &str,
    on_step: &impl Fn(&str),
) -> Result<ClaimResult, DemoError> {
    let claim = &demo_claim.claim;
    // Do not repeat the check: a second check would find the note of the first.
    let check = Check::Demo { path: demo_claim.path(), text: text.to_owned() };
    let finding = pod.ask::<workload::Demo>(client, &check).await;
    let finding = finding.map_err(|message| DemoError::failed(&pod.name, &message))?;
    on_step(&format!("pod {NAMESPACE}/{} has filled {NAMESPACE}/{claim}", pod.name));
    judge(demo_claim, &finding)?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), NAMESPACE);
    let bound = claims.get(claim).await.map_err(api("read", claim))?;
    let volume = bound.spec.and_then(|spec| spec.volume_name);
    let volume = volume.ok_or_else(|| DemoError::new(format!("claim {NAMESPACE}/{claim} is not bound")))?;
    Ok(ClaimResult { demo_claim: demo_claim.clone(), volume, finding })
}

/// Checks that the pod could write the full size of the volume, and then got ENOSPC.
fn judge(demo_claim: &DemoClaim, finding: &workload::Demo) -> Result<(), DemoError> {
    let capacity = demo_claim.capacity.get();
    let expected = match demo_claim.mode {
        Mode::Filesystem => capacity - METADATA..=capacity,
        Mode::Block => capacity..=capacity,
    };
    if finding.errno == "ENOSPC" && finding.size == capacity && expected.contains(&finding.written) {
        return Ok(());
    }
    Err(DemoError::new(format!(
        "the limit of claim {NAMESPACE}/{} does not hold: {} requested, {} available, {} written, then {}",
        demo_claim.claim,
        demo_claim.capacity,
        Bytes::new(finding.size),
        Bytes::new(finding.written),
        finding.errno
    )))
}

pub(crate) fn api(step: &'static str, object: &str) -> impl FnOnce(kube::Error) -> DemoError {
    DemoError::of(format!("cannot {step} {object}"))
}

pub(crate) async fn wait_for<K>(
    objects: &Api<K>,
    name: &str,
    condition: impl Condition<K>,
) -> Result<Option<K>, Option<WatchError>>
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let mut lost = None;
    match timeout(LIMIT, launch::wait_for(objects.clone(), name, condition, &mut lost)).await {
        Ok(object) => Ok(object),
        Err(_) => Err(lost.map(Box::new)),
    }
}

async fn ensure<K>(objects: Api<K>, object: &K, name: &str) -> Result<(), DemoError>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + DeserializeOwned,
{
    match objects.create(&PostParams::default(), object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(api("create", name)(error)),
    }
}

/// Deletes the pod of an earlier run, and waits until it is gone.
pub(crate) async fn remove(pods: &Api<Pod>, name: &str) -> Result<(), DemoError> {
    let Some(pod) = pods.get_opt(name).await.map_err(api("read", name))? else { return Ok(()) };
    pods.delete(name, &DeleteParams::default()).await.map_err(api("delete", name))?;
    let uid = pod.uid().unwrap_or_default();
    match wait_for(pods, name, conditions::is_deleted(&uid)).await {
        Ok(_) => Ok(()),
        Err(lost) => Err(DemoError::late(name, "the pod of an earlier run is still being deleted", lost)),
    }
}

pub(crate) fn phase(pod: Option<&Pod>) -> &str {
    pod.and_then(|pod| pod.status.as_ref()).and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub(crate) fn has_ended(pod: Option<&Pod>) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// The termination message of the container, or the status message of the pod.
pub(crate) fn message(pod: Option<&Pod>) -> String {
    let Some(status) = pod.and_then(|pod| pod.status.as_ref()) else { return String::new() };
    let container = status.container_statuses.iter().flatten().next();
    let terminated = container.and_then(|container| container.state.as_ref()?.terminated.as_ref()?.message.clone());
    terminated.or_else(|| status.message.clone()).unwrap_or_else(|| "no message".to_owned())
}

pub(crate) async fn events(client: Client) -> String {
    let events: Api<Event> = Api::namespaced(client, NAMESPACE);
    let events = match timeout(REQUEST, events.list(&ListParams::default())).await {
        Ok(Ok(events)) => events,
        Ok(Err(error)) => return format!("cannot read the events: {error}"),
        Err(_) => return format!("cannot read the events within {REQUEST:?}"),
    };
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
    format!("events:{}", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn notes() -> DemoClaim {
        let [notes, _] = objects::demo_pods(&["granary".to_owned()]).swap_remove(0).claims;
        notes
    }

    fn disk() -> DemoClaim {
        let [_, disk] = objects::demo_pods(&["granary".to_owned()]).swap_remove(0).claims;
        disk
    }

    fn finding(size: u64, written: u64, errno: &str) -> workload::Demo {
        workload::Demo { found: None, kept: String::new(), size, written, errno: errno.into(), used: written }
    }

    fn holds(demo_claim: DemoClaim, size: u64, written: u64, errno: &str) -> bool {
        judge(&demo_claim, &finding(size, written, errno)).is_ok()
    }

    #[test]
    fn a_filesystem_volume_may_use_some_space_for_metadata() {
        let capacity = notes().capacity.get();
        assert!(holds(notes(), capacity, capacity - 4096, "ENOSPC"));
        assert!(!holds(notes(), capacity, capacity + 1, "ENOSPC"));
        assert!(!holds(notes(), capacity, capacity / 2, "ENOSPC"));
        assert!(!holds(notes(), 8 << 30, capacity, "ENOSPC"));
        assert!(!holds(notes(), capacity, capacity, "EIO"));
    }

    #[test]
    fn a_block_volume_has_exactly_its_size() {
        let capacity = disk().capacity.get();
        assert!(holds(disk(), capacity, capacity, "ENOSPC"));
        assert!(!holds(disk(), capacity, capacity - 4096, "ENOSPC"));
        assert!(!holds(disk(), capacity + 4096, capacity + 4096, "ENOSPC"));
        assert!(!holds(disk(), capacity, capacity, "EIO"));
    }

    #[test]
    fn the_error_of_a_wrong_limit_has_sizes() {
        assert_eq!(
            judge(&disk(), &finding(32 << 20, 48 << 20, "EFBIG")).unwrap_err().to_string(),
            "the limit of claim demo/disk does not hold: 32 MiB requested, 32 MiB available, 48 MiB written, then EFBIG"
        );
    }

    #[test]
    fn names_are_listed_in_a_sentence() {
        let names = ["a", "b", "c"].map(str::to_owned);
        assert_eq!([listed(&names[..0]), listed(&names[..1]), listed(&names[..2])], ["", "a", "a and b"]);
        assert_eq!(listed(&names), "a, b and c");
    }

    #[test]
    fn the_report_of_the_container_is_preferred() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "writer"},
            "status": {"phase": "Succeeded", "containerStatuses": [{
                "name": "workload", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": 0, "message": "{}"}},
            }]},
        }))
        .unwrap();
        assert_eq!((phase(Some(&pod)), message(Some(&pod)).as_str()), ("Succeeded", "{}"));
        assert_eq!(message(None), "");
    }
}
