//! A claim of each mode on every node, and pods that fill their volumes.

use crate::mesh::{self, Reached};
use crate::objects::{self, Member, Mode, NAMESPACE};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim, Pod, ServiceAccount};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::wait::{Condition, conditions};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::timeout;
use units::Bytes;
use workload::Finding;

/// The file system's own blocks (directories, lists of extents) are charged to the volume, too.
const METADATA: u64 = 1 << 20;
/// A pod takes seconds in emulation, minutes beside a build.
const LIMIT: Duration = Duration::from_secs(300);
/// How long one question may take.
pub(crate) const QUESTION: Duration = Duration::from_secs(30);

/// What was shown.
#[derive(Debug)]
pub(crate) struct Demonstration {
    pub(crate) claims: Vec<Shown>,
    /// Nothing, if there is one node only.
    pub(crate) mesh: Vec<Reached>,
}

/// What one claim showed.
#[derive(Debug)]
pub(crate) struct Shown {
    /// The claim, and what it asked for.
    pub(crate) member: Member,
    /// The volume's name.
    pub(crate) volume: String,
    /// What the pod saw.
    pub(crate) finding: workload::Demo,
}

/// Why the API server did not tell about an object, when it was asked last.
pub(crate) type Lost = Box<watcher::Error>;

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    #[error("cannot {step} {object}")]
    Api {
        step: &'static str,
        object: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("namespace {NAMESPACE} had no service account after {LIMIT:?}: the controller manager makes it")]
    NoAccount(#[source] Option<Lost>),
    #[error("cannot make the objects of the demonstration")]
    Object(#[from] serde_json::Error),
    #[error("pod {NAMESPACE}/{pod} did not end within {LIMIT:?}; {events}")]
    Late {
        pod: String,
        events: String,
        #[source]
        source: Option<Lost>,
    },
    #[error("pod {NAMESPACE}/{pod} failed: {message}")]
    Failed { pod: String, message: String },
    #[error("pod {NAMESPACE}/{pod} reported {message:?}")]
    Report {
        pod: String,
        message: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("claim {NAMESPACE}/{claim} is not bound")]
    Unbound { claim: String },
    #[error(
        "the limit of claim {NAMESPACE}/{claim} does not hold: {capacity} promised, {size} shown, {written} written, \
         then {errno}"
    )]
    Limit { claim: String, capacity: Bytes, size: Bytes, written: Bytes, errno: String },
    #[error("no pod of node {from} reaches the pod with the address {address} of node {to}: {last}")]
    Unreached { from: String, to: String, address: IpAddr, last: String },
}

/// Makes the claims, or takes those of an earlier run, and lets new pods fill them, side by side. Then lets a pod of each
/// node ask that of the next.
pub(crate) async fn run(client: Client, nodes: &[String], on_step: impl Fn(&str)) -> Result<Demonstration, DemoError> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), NAMESPACE);
    ensure(Api::all(client.clone()), &objects::namespace(), NAMESPACE).await?;
    let members = objects::members(nodes);
    for member in &members {
        ensure(claims.clone(), &objects::claim(member)?, &member.claim).await?;
    }
    let names: Vec<String> = members.iter().map(|member| format!("{NAMESPACE}/{}", member.claim)).collect();
    on_step(&format!("claims {} made, or found", listed(&names)));

    // Pods are refused until the controller manager has made the namespace's account.
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    seen(&accounts, "default", conditions::is_created()).await.map_err(DemoError::NoAccount)?;
    let text = format!("written at {:.0}", Timestamp::now());
    let claims = try_join_all(members.into_iter().map(|member| show(client.clone(), member, &text, &on_step))).await?;
    let mesh = if nodes.len() > 1 { mesh::run(client, nodes, on_step).await? } else { Vec::new() };
    Ok(Demonstration { claims, mesh })
}

fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    }
}

/// Lets a new pod fill the volume of one claim.
async fn show(client: Client, member: Member, text: &str, on_step: impl Fn(&str)) -> Result<Shown, DemoError> {
    let (claim, name) = (member.claim.clone(), member.pod.clone());
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    remove(&pods, &name).await?;
    pods.create(&PostParams::default(), &objects::pod(&member, text)?).await.map_err(api("create", &name))?;
    let pod = match seen(&pods, &name, has_ended).await {
        Ok(pod) => pod,
        Err(source) => return Err(DemoError::Late { pod: name, events: events(client).await, source }),
    };
    let message = message(pod.as_ref());
    if phase(pod.as_ref()) != "Succeeded" {
        return Err(DemoError::Failed { pod: name, message });
    }
    on_step(&format!("pod {NAMESPACE}/{name} has filled its volume"));
    let finding = match serde_json::from_str(&message) {
        Ok(Finding::Demo(finding)) => finding,
        Ok(_) => return Err(DemoError::Failed { pod: name, message }),
        Err(source) => return Err(DemoError::Report { pod: name, message, source }),
    };
    judge(&member, &finding)?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client, NAMESPACE);
    let bound = claims.get(&claim).await.map_err(api("read", &claim))?;
    let volume = bound.spec.and_then(|spec| spec.volume_name).ok_or(DemoError::Unbound { claim })?;
    Ok(Shown { member, volume, finding })
}

/// The limit held: it was shown, what it promises could be written and no more, and the refusal says so.
fn judge(member: &Member, finding: &workload::Demo) -> Result<(), DemoError> {
    let capacity = member.capacity.get();
    let promised = match member.mode {
        Mode::Filesystem => capacity - METADATA..=capacity,
        Mode::Block => capacity..=capacity,
    };
    if finding.errno == "ENOSPC" && finding.size == capacity && promised.contains(&finding.written) {
        return Ok(());
    }
    Err(DemoError::Limit {
        claim: member.claim.clone(),
        capacity: member.capacity,
        size: Bytes::new(finding.size),
        written: Bytes::new(finding.written),
        errno: finding.errno.clone(),
    })
}

pub(crate) fn api(step: &'static str, object: &str) -> impl FnOnce(kube::Error) -> DemoError {
    move |error| DemoError::Api { step, object: object.to_owned(), source: Box::new(error) }
}

/// Waits until an object is what is wanted; returns it as it was then.
pub(crate) async fn seen<K>(objects: &Api<K>, name: &str, wanted: impl Condition<K>) -> Result<Option<K>, Option<Lost>>
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let mut lost = None;
    match timeout(LIMIT, launch::seen(objects.clone(), name, wanted, &mut lost)).await {
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

/// Removes the pod of an earlier run, and waits until it is gone.
pub(crate) async fn remove(pods: &Api<Pod>, name: &str) -> Result<(), DemoError> {
    let Some(pod) = pods.get_opt(name).await.map_err(api("look for", name))? else { return Ok(()) };
    pods.delete(name, &DeleteParams::default()).await.map_err(api("remove", name))?;
    let uid = pod.uid().unwrap_or_default();
    match seen(pods, name, conditions::is_deleted(&uid)).await {
        Ok(_) => Ok(()),
        Err(source) => Err(DemoError::Late {
            pod: name.to_owned(),
            events: "that of an earlier run is still being removed".to_owned(),
            source,
        }),
    }
}

pub(crate) fn phase(pod: Option<&Pod>) -> &str {
    pod.and_then(|pod| pod.status.as_ref()).and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub(crate) fn has_ended(pod: Option<&Pod>) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// What the container reported, or what the kubelet says about the pod.
pub(crate) fn message(pod: Option<&Pod>) -> String {
    let Some(status) = pod.and_then(|pod| pod.status.as_ref()) else { return String::new() };
    let container = status.container_statuses.iter().flatten().next();
    let terminated = container.and_then(|container| container.state.as_ref()?.terminated.as_ref()?.message.clone());
    terminated.or_else(|| status.message.clone()).unwrap_or_else(|| "it left no message".to_owned())
}

/// What the cluster says about the objects of the demonstration, if it answers.
pub(crate) async fn events(client: Client) -> String {
    let events: Api<Event> = Api::namespaced(client, NAMESPACE);
    let events = match timeout(QUESTION, events.list(&ListParams::default())).await {
        Ok(Ok(events)) => events,
        Ok(Err(error)) => return format!("the events there cannot be read: {error}"),
        Err(_) => return format!("the events there cannot be read within {QUESTION:?}"),
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
    format!("the events there:{}", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn notes() -> Member {
        objects::members(&["granary".to_owned()]).swap_remove(0)
    }

    fn disk() -> Member {
        objects::members(&["granary".to_owned()]).swap_remove(1)
    }

    fn holds(member: Member, size: u64, written: u64, errno: &str) -> bool {
        let finding =
            workload::Demo { found: None, kept: String::new(), size, written, errno: errno.into(), used: written };
        judge(&member, &finding).is_ok()
    }

    #[test]
    fn a_directory_that_ends_at_its_limit_holds_it() {
        let capacity = notes().capacity.get();
        assert!(holds(notes(), capacity, capacity - 4096, "ENOSPC"));
        assert!(!holds(notes(), capacity, capacity + 1, "ENOSPC"));
        assert!(!holds(notes(), capacity, capacity / 2, "ENOSPC"));
        assert!(!holds(notes(), 8 << 30, capacity, "ENOSPC"));
        assert!(!holds(notes(), capacity, capacity, "EIO"));
    }

    #[test]
    fn a_device_holds_its_limit_to_the_byte() {
        let capacity = disk().capacity.get();
        assert!(holds(disk(), capacity, capacity, "ENOSPC"));
        assert!(!holds(disk(), capacity, capacity - 4096, "ENOSPC"));
        assert!(!holds(disk(), capacity + 4096, capacity + 4096, "ENOSPC"));
        assert!(!holds(disk(), capacity, capacity, "EIO"));
    }

    #[test]
    fn a_limit_that_does_not_hold_is_told_with_its_figures() {
        let finding = workload::Demo {
            found: None,
            kept: String::new(),
            size: 32 << 20,
            written: 48 << 20,
            errno: "EFBIG".into(),
            used: 0,
        };
        assert_eq!(
            judge(&disk(), &finding).unwrap_err().to_string(),
            "the limit of claim demo/disk does not hold: 32 MiB promised, 32 MiB shown, 48 MiB written, then EFBIG"
        );
    }

    #[test]
    fn names_are_listed_as_a_person_does() {
        let names = ["a", "b", "c"].map(str::to_owned);
        assert_eq!([listed(&names[..0]), listed(&names[..1]), listed(&names[..2])], ["", "a", "a and b"]);
        assert_eq!(listed(&names), "a, b and c");
    }

    #[test]
    fn the_report_of_the_container_is_preferred() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "notes-writer"},
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
