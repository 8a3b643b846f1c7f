//! Pods that cannot run on the node of a clone's source.

use k8s_openapi::api::core::v1::{self, Node, PodCondition, Taint, Toleration};
use kube::api::{ListMeta, ListParams, Request};
use kube::{Client, Resource as _};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::clone::Source;

/// Field selector of pods for which the scheduler has to find a node.
const WITHOUT_NODE: &str = "spec.nodeName=,status.phase=Pending";

/// Pods of a page. Users create Pods of megabytes of JSON, and a page is in memory as a whole.
const PAGE: u32 = 2;

/// Maximum number of pages of a check.
const PAGES: usize = 256;

/// Maximum length of a note in bytes. The API server rejects events with more than 1024.
const NOTE_LEN: usize = 1000;

/// The fields of a Pod that a check needs. A whole Pod takes up to a hundred times the size of its JSON in memory: a
/// volume with a name takes the space of the fields of all types of volumes.
#[derive(Debug, Deserialize)]
pub(crate) struct Pod {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    volumes: Vec<Volume>,
    tolerations: Vec<Toleration>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Vec<PodCondition>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    name: String,
    persistent_volume_claim: Option<ClaimSource>,
    ephemeral: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimSource {
    claim_name: String,
}

#[derive(Debug, Deserialize)]
struct Page {
    metadata: ListMeta,
    items: Vec<Pod>,
}

impl Pod {
    pub(crate) fn name(&self) -> &str {
        &self.metadata.name
    }
}

/// Pods of a claim.
#[derive(Debug)]
pub(crate) enum Found {
    /// A pod that no node can run ([`message`]).
    Unschedulable(Pod),
    /// A pod has no node yet, or more pods wait than a check reads.
    Waiting,
    /// No pod waits for a node.
    Nothing,
}

/// Reads the pods without a node until one of the claim is unschedulable.
pub(crate) async fn find(client: &Client, namespace: &str, claim: &str) -> Result<Found, kube::Error> {
    let pods = Request::new(v1::Pod::url_path(&(), Some(namespace)));
    let mut params = ListParams::default().fields(WITHOUT_NODE).limit(PAGE);
    let mut is_waiting = false;
    for _ in 0..PAGES {
        let list = pods.list(&params).map_err(kube::Error::BuildRequest)?;
        let page: Page = client.request(list).await?;
        for pod in page.items.into_iter().filter(|pod| uses(pod, claim)) {
            if message(&pod).is_some() {
                return Ok(Found::Unschedulable(pod));
            }
            is_waiting = true;
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(if is_waiting { Found::Waiting } else { Found::Nothing }),
        }
    }
    Ok(Found::Waiting)
}

/// Whether the pod uses the claim, also as a generic ephemeral volume.
fn uses(pod: &Pod, claim: &str) -> bool {
    pod.spec.volumes.iter().any(|volume| {
        let named = volume.persistent_volume_claim.as_ref().map(|source| source.claim_name.as_str());
        let is_ephemeral = || volume.ephemeral.is_some() && format!("{}-{}", pod.name(), volume.name) == claim;
        named == Some(claim) || is_ephemeral()
    })
}

/// The scheduler's message about a pod that no node can run. `None` if the scheduler has not tried yet, or tries again
/// because the node of a claim was replaced while it waited for the volume (`SchedulerError`).
pub(crate) fn message(pod: &Pod) -> Option<&str> {
    let unschedulable = pod.status.conditions.iter().find(|condition| {
        condition.type_ == "PodScheduled"
            && condition.status == "False"
            && condition.reason.as_deref() == Some("Unschedulable")
    })?;
    unschedulable.message.as_deref()
}

/// The event about the pod. The scheduler's message counts the nodes for each reason without their names. The taints
/// name the state of this node: Kubernetes also sets them on nodes that are cordoned or not Ready.
pub(crate) fn note(source: Source<'_>, node: &str, found: Option<&Node>, pod: &Pod, message: &str) -> String {
    let mut note = format!("pod {} cannot run on node {node}, which has the data of {source}: ", pod.name());
    let taints = found.map(|found| untolerated(found, pod)).unwrap_or_default();
    if !taints.is_empty() {
        note = format!("{note}the pod does not tolerate the taints of this node ({}); ", taints.join(", "));
    }
    note = format!("{note}the scheduler reports: {message}");
    note.truncate(note.floor_char_boundary(NOTE_LEN));
    note
}

/// Keys of taints that keep the pod from the node.
fn untolerated<'a>(node: &'a Node, pod: &Pod) -> Vec<&'a str> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints
        .filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"))
        .filter(|taint| !pod.spec.tolerations.iter().any(|toleration| tolerates(toleration, taint)))
        .map(|taint| taint.key.as_str())
        .collect()
}

/// Matches like the scheduler, but an operator that compares numbers counts as a match.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let Toleration { key, operator, value, effect, .. } = toleration;
    let [key, operator, value, effect] =
        [key, operator, value, effect].map(|field| field.as_deref().unwrap_or_default());
    let has_value = !matches!(operator, "" | "Equal") || value == taint.value.as_deref().unwrap_or_default();
    has_value && (key.is_empty() || key == taint.key) && (effect.is_empty() || effect == taint.effect)
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use serde_json::{Value, json};

    use super::*;
    use crate::fixture;

    /// An API server with pages of one pod each. The token of a page is its number.
    fn with_pages(pages: Vec<Value>) -> Client {
        fixture::client(move |request| {
            let query = request.uri().query().unwrap_or_default();
            assert!(query.contains(&format!("limit={PAGE}")), "{query}");
            let token = query.split('&').find_map(|field| field.strip_prefix("continue="));
            let number: usize = token.map_or(0, |token| token.parse().unwrap());
            let next = (number + 1 < pages.len()).then(|| (number + 1).to_string());
            ready((200, json!({"metadata": {"continue": next}, "items": [pages[number]]})))
        })
    }

    /// Regression test: a list of whole Pods of users took more than the memory of the reclaimer, and pods after the
    /// first 500 were not read.
    #[tokio::test]
    async fn pods_are_read_in_small_pages_up_to_a_bound() {
        let using = |claim: &str, reason: &str| {
            json!({
                "metadata": {"name": "web"},
                "spec": {"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": claim}}]},
                "status": {"conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": reason, "message": "0/2 nodes"},
                ]},
            })
        };
        let read = async |pages: Vec<Value>| find(&with_pages(pages), "default", "data").await.unwrap();
        let other = using("other", "Unschedulable");
        let last = vec![other.clone(), using("data", "SchedulerError"), using("data", "Unschedulable")];
        assert!(matches!(read(last.clone()).await, Found::Unschedulable(_)));
        assert!(matches!(read(last[..2].to_vec()).await, Found::Waiting));
        assert!(matches!(read(vec![other.clone(); PAGES]).await, Found::Nothing));
        assert!(matches!(read(vec![other; PAGES + 1]).await, Found::Waiting), "the pods after the bound are unknown");
    }

    fn pod(spec: Value, status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec, "status": status})).unwrap()
    }

    fn spec(more: Value) -> Value {
        let mut spec = json!({"containers": []});
        spec.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        spec
    }

    #[test]
    fn a_pod_uses_the_claims_of_its_volumes() {
        let pod = pod(
            spec(json!({"volumes": [
                {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "b", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
                {"name": "c", "emptyDir": {}},
            ]})),
            json!({}),
        );
        for (claim, is_used) in [("data", true), ("web-b", true), ("web-a", false), ("web-c", false), ("b", false)] {
            assert_eq!(uses(&pod, claim), is_used, "{claim}");
        }
    }

    #[test]
    fn only_a_pod_that_no_node_can_run_is_unschedulable() {
        let condition = |type_: &str, status: &str, reason: &str| {
            let condition = json!({"type": type_, "status": status, "reason": reason, "message": "0/2 nodes"});
            pod(spec(json!({})), json!({"conditions": [{"type": "Initialized", "status": "True"}, condition]}))
        };
        assert_eq!(message(&condition("PodScheduled", "False", "Unschedulable")), Some("0/2 nodes"));
        for reason in ["SchedulerError", "SchedulingGated"] {
            assert_eq!(message(&condition("PodScheduled", "False", reason)), None, "{reason}");
        }
        assert_eq!(message(&condition("PodScheduled", "True", "Unschedulable")), None);
        assert_eq!(message(&condition("Ready", "False", "Unschedulable")), None);
        assert_eq!(message(&pod(spec(json!({})), json!({}))), None);
    }

    #[test]
    fn the_event_names_the_node_its_taints_and_the_message() {
        let node: Node = serde_json::from_value(json!({"spec": {"taints": [
            {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
            {"key": "gpu", "value": "yes", "effect": "NoExecute"},
            {"key": "soft", "effect": "PreferNoSchedule"},
        ]}}))
        .unwrap();
        let tolerating = |tolerations: Value| pod(spec(json!({"tolerations": tolerations})), json!({}));
        let text = |pod: &Pod, node: Option<&Node>| note(Source::Claim("data"), "one", node, pod, "0/2 nodes");
        let start = "pod web cannot run on node one, which has the data of claim data: ";
        let plain = format!("{start}the scheduler reports: 0/2 nodes");
        assert_eq!(text(&tolerating(json!([])), None), plain);
        let both = "(node.kubernetes.io/unschedulable, gpu); the scheduler reports: 0/2 nodes";
        let found = text(&tolerating(json!([])), Some(&node));
        assert!(found.starts_with(start) && found.ends_with(both), "{found}");
        let cordoned = "(node.kubernetes.io/unschedulable); ";
        for toleration in [
            json!({"key": "gpu", "operator": "Exists"}),
            json!({"key": "gpu", "value": "yes"}),
            json!({"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoExecute"}),
            json!({"operator": "Exists", "effect": "NoExecute"}),
        ] {
            let found = text(&tolerating(json!([toleration])), Some(&node));
            assert!(found.contains(cordoned), "{toleration}: {found}");
        }
        for toleration in [
            json!({"key": "gpu", "value": "no"}),
            json!({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}),
            json!({"key": "other", "operator": "Exists"}),
        ] {
            let found = text(&tolerating(json!([toleration])), Some(&node));
            assert!(found.ends_with(both), "{toleration}: {found}");
        }
        assert_eq!(text(&tolerating(json!([{"operator": "Exists"}])), Some(&node)), plain);
        let long = note(Source::Claim("data"), "one", None, &tolerating(json!([])), &"€".repeat(1000));
        assert!(long.len() <= NOTE_LEN && long.len() > NOTE_LEN - 3);
    }
}
