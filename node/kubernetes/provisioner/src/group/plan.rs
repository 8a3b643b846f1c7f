//! Plans the next step for the content of a group. Pure.

use std::collections::{BTreeMap, BTreeSet};

use cluster::snapshot::group::{BEING_DELETED, PROTECTION};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use volume::{Claim, Owner, Record, SnapshotParameterError, SnapshotParameters, SnapshotRequest, VolumeId};

use crate::group::object::{GroupClass, GroupContent, GroupContentStatus, MemberInfo, member};
use crate::snapshot::plan as snapshot;

/// Deletion policy that removes the snapshots with their content.
const DELETE: &str = "Delete";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupPlan {
    /// The content is of another node, or complete.
    Ignore,
    /// Set the label that names this node.
    Adopt,
    /// Take the snapshots.
    Take(BTreeMap<VolumeId, SnapshotRequest>),
    /// Write the state of snapshots that exist to the status.
    Find(BTreeSet<VolumeId>),
    /// Remove the snapshots, then the finalizer.
    Delete(BTreeSet<VolumeId>),
    /// Remove the finalizer. The snapshots stay.
    Release,
}

/// A content that the node cannot serve. The text is the message in its status and of its event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GroupRejection {
    #[error(
        "the claims of the group are on the nodes {0}, and a group has claims of one node; create a group for each node: \
         change the labels of the claims, or the selector"
    )]
    Nodes(String),
    #[error("spec.source: {0:?} is not the handle of a volume of this driver; create the group again")]
    Handle(String),
    #[error("volume {0} of the group does not exist on this node; create the group again without its claim")]
    Unknown(VolumeId),
    #[error("snapshot {0} of the group was removed after others were ready; delete the group, and create it again")]
    Removed(VolumeId),
    #[error("the VolumeGroupSnapshotClass {class} {reason}")]
    Class { class: String, reason: SnapshotParameterError },
}

/// `places` has the known nodes of the volumes, and of the snapshots of this node.
pub(crate) fn plan(
    content: &GroupContent,
    node: &str,
    places: &BTreeMap<VolumeId, String>,
) -> Result<GroupPlan, GroupRejection> {
    let source = &content.spec.source;
    let handles = source.group_snapshot_handles.as_ref().map(|handles| &handles.volume_snapshot_handles);
    let ids: BTreeSet<VolumeId> =
        handles.unwrap_or(&source.volume_handles).iter().filter_map(|handle| handle.parse().ok()).collect();
    match content.node() {
        _ if !content.is_of_driver() => return Ok(GroupPlan::Ignore),
        Some(other) if other != node => return Ok(GroupPlan::Ignore),
        Some(_) => {}
        // A content without a label never had snapshots of its own. The snapshots of its handles may be on a node that
        // is down: that node deletes them later.
        None if is_deleted(content)
            && !(handles.is_some() && !ids.is_empty() && content.spec.deletion_policy == DELETE) =>
        {
            return Ok(GroupPlan::Adopt);
        }
        // If the claims are on several nodes, only the node of the first claim reports the error.
        None if ids.iter().find_map(|id| places.get(id)).is_some_and(|first| first == node) => {
            return Ok(GroupPlan::Adopt);
        }
        None => return Ok(GroupPlan::Ignore),
    }
    if is_deleted(content) {
        let is_protected = content.finalizers().iter().any(|name| name == PROTECTION);
        return Ok(match (is_protected, content.spec.deletion_policy.as_str()) {
            (false, _) => GroupPlan::Ignore,
            (true, DELETE) => GroupPlan::Delete(content.members()),
            (true, _) => GroupPlan::Release,
        });
    }
    if content.is_ready() {
        return Ok(GroupPlan::Ignore);
    }
    if handles.is_some() {
        return Ok(GroupPlan::Find(ids));
    }
    if source.volume_handles.is_empty() {
        return Err(GroupRejection::Handle(String::new()));
    }
    let nodes: BTreeSet<&str> = ids.iter().filter_map(|id| places.get(id)).map(String::as_str).collect();
    if nodes.len() > 1 {
        let nodes: Vec<_> = nodes.into_iter().collect();
        return Err(GroupRejection::Nodes(nodes.join(", ")));
    }
    if let Some(unknown) = ids.iter().find(|id| places.get(*id).is_none_or(|place| place != node)) {
        return Err(GroupRejection::Unknown(unknown.clone()));
    }
    let group = content.handle().unwrap_or_default();
    let of = &content.spec.volume_group_snapshot_ref;
    let [namespace, name] = [&of.namespace, &of.name].map(|part| part.clone().unwrap_or_default());
    let claim = Claim { uid: content.uid().unwrap_or_default(), namespace, name };
    let class = content.spec.volume_group_snapshot_class_name.clone().unwrap_or_default();
    let request = |handle: &String| {
        let invalid = || GroupRejection::Handle(handle.clone());
        let source: VolumeId = handle.parse().map_err(|_| invalid())?;
        let id = member(&group, handle).ok_or_else(invalid)?;
        let SnapshotParameters { max_pause, sharing } = SnapshotParameters::default();
        let (claim, owner, class) = (claim.clone(), Owner::Provisioner, class.clone());
        Ok((id, SnapshotRequest { claim, owner, class, source, max_pause, sharing }))
    };
    source.volume_handles.iter().map(request).collect::<Result<_, _>>().map(GroupPlan::Take)
}

/// Kubernetes' own end-to-end tests repeat the deletion policy of the class as a parameter, which changes nothing.
pub(crate) fn parameters(class: &GroupClass) -> Result<SnapshotParameters, GroupRejection> {
    let mut parameters = class.parameters.clone();
    parameters.retain(|name, value| name != "deletionPolicy" || *value != class.deletion_policy);
    let failed = |reason| GroupRejection::Class { class: class.name_any(), reason };
    SnapshotParameters::parse(&parameters).map_err(failed)
}

/// Whether the deletion of the content has to be completed, as the sidecar decides: the group is being deleted too, or
/// a content with handles was never bound to a group.
fn is_deleted(content: &GroupContent) -> bool {
    let was_bound = content.spec.volume_group_snapshot_ref.uid.as_ref().is_some_and(|uid| !uid.is_empty());
    let is_unbound = content.spec.source.group_snapshot_handles.is_some() && !was_bound;
    content.metadata.deletion_timestamp.is_some() && (content.annotations().contains_key(BEING_DELETED) || is_unbound)
}

/// Status of the content. The handle and the members are set only when all members are ready, because the snapshot
/// controller copies the state of each member once.
pub(crate) fn status(content: &GroupContent, records: &BTreeMap<VolumeId, Record>) -> GroupContentStatus {
    let is_ready = records.values().all(|record| record.state.is_reported());
    let taken = records.values().filter_map(|record| record.mode.taken()).min();
    let creation_time = taken.and_then(|taken| Timestamp::try_from(taken).ok()).map(|taken| taken.to_string());
    let group = content.handle();
    let info = |handle: &String| {
        let id = member(group.as_deref()?, handle)?;
        let record = records.get(&id)?;
        let shown = snapshot::status(&id, record);
        Some(MemberInfo {
            volume_handle: handle.clone(),
            snapshot_handle: id.to_string(),
            creation_time: shown.creation_time,
            restore_size: shown.restore_size,
            ready_to_use: is_ready,
        })
    };
    let members = content.spec.source.volume_handles.iter().filter_map(info).collect();
    GroupContentStatus {
        volume_group_snapshot_handle: group.clone().filter(|_| is_ready),
        creation_time,
        ready_to_use: Some(is_ready),
        volume_snapshot_info_list: if is_ready { members } else { Vec::new() },
        error: None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};
    use volume::{DEFAULT_PAUSE, Sharing};

    use super::*;
    use crate::fixture::id;

    const NODE: &str = "one";
    const LABEL: &str = cluster::snapshot::MANAGED_BY;

    fn content(change: impl FnOnce(&mut Value)) -> GroupContent {
        let mut content = json!({
            "metadata": {"uid": "u", "name": "content", "labels": {LABEL: NODE}, "finalizers": [PROTECTION]},
            "spec": {
                "driver": "local.granary.dev", "deletionPolicy": "Delete",
                "source": {"volumeHandles": ["pvc-2", "pvc-1"]}, "volumeGroupSnapshotClassName": "local",
                "volumeGroupSnapshotRef": {"namespace": "shop", "name": "both", "uid": "g"},
            },
        });
        change(&mut content);
        serde_json::from_value(content).expect("a content")
    }

    fn places(of: &[(&str, &str)]) -> BTreeMap<VolumeId, String> {
        of.iter().map(|(volume, node)| (id(volume), (*node).to_owned())).collect()
    }

    fn planned(content: &GroupContent) -> Result<GroupPlan, GroupRejection> {
        plan(content, NODE, &places(&[("pvc-1", NODE), ("pvc-2", NODE)]))
    }

    fn existing(content: &mut Value) {
        let handles = json!({"volumeGroupSnapshotHandle": "group-old", "volumeSnapshotHandles": ["group-old-pvc-1"]});
        content["spec"]["source"] = json!({"groupSnapshotHandles": handles});
    }

    fn deleted(content: &mut Value) {
        content["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        content["metadata"]["annotations"] = json!({BEING_DELETED: "yes"});
    }

    #[test]
    fn the_snapshots_are_taken_until_they_are_ready() {
        let claim = Claim { uid: "u".into(), namespace: "shop".into(), name: "both".into() };
        let request = |source: &str| SnapshotRequest {
            claim: claim.clone(),
            owner: Owner::Provisioner,
            class: "local".into(),
            source: id(source),
            max_pause: DEFAULT_PAUSE,
            sharing: Sharing::Temporary,
        };
        let members = ["pvc-1", "pvc-2"].map(|volume| (id(&format!("group-u-{volume}")), request(volume)));
        let take = Ok(GroupPlan::Take(members.into()));
        assert_eq!(planned(&content(|_| {})), take);
        let begun = |ready: bool| content(|content| content["status"] = json!({"readyToUse": ready}));
        assert_eq!(planned(&begun(false)), take);
        assert_eq!(planned(&begun(true)), Ok(GroupPlan::Ignore));
        assert_eq!(planned(&content(existing)), Ok(GroupPlan::Find([id("group-old-pvc-1")].into())));
    }

    #[test]
    fn the_node_of_the_first_volume_serves_the_group() {
        let bare = content(|content| content["metadata"]["labels"] = json!({}));
        assert_eq!(planned(&bare), Ok(GroupPlan::Adopt));
        let adopted = |of: &[(&str, &str)]| plan(&bare, NODE, &places(of));
        assert_eq!(adopted(&[("pvc-1", NODE), ("pvc-2", "two")]), Ok(GroupPlan::Adopt));
        assert_eq!(adopted(&[("pvc-1", "two"), ("pvc-2", NODE)]), Ok(GroupPlan::Ignore));
        assert_eq!(adopted(&[("pvc-2", NODE)]), Ok(GroupPlan::Adopt), "the first is unknown");
        assert_eq!(adopted(&[]), Ok(GroupPlan::Ignore));
        let foreign = content(|content| content["spec"]["driver"] = "example.invalid".into());
        assert_eq!(planned(&foreign), Ok(GroupPlan::Ignore));
        assert_eq!(plan(&content(|_| {}), "two", &places(&[("pvc-1", "two")])), Ok(GroupPlan::Ignore));
        // Any node adopts the content; otherwise, its finalizer would stay forever.
        let unserved = content(|content| {
            deleted(content);
            content["metadata"]["labels"] = json!({});
        });
        assert_eq!(plan(&unserved, NODE, &places(&[])), Ok(GroupPlan::Adopt));
    }

    /// Regression: another node removed the finalizer, and the snapshots of the node that was down became orphans.
    #[test]
    fn the_node_of_the_snapshots_deletes_a_content_that_names_them() {
        let gone = |policy: &str| {
            content(|content| {
                deleted(content);
                existing(content);
                content["metadata"]["labels"] = json!({});
                content["spec"]["deletionPolicy"] = policy.into();
            })
        };
        let has = places(&[("group-old-pvc-1", NODE)]);
        assert_eq!(plan(&gone("Delete"), NODE, &places(&[])), Ok(GroupPlan::Ignore));
        assert_eq!(plan(&gone("Delete"), NODE, &has), Ok(GroupPlan::Adopt));
        // Any node may adopt the content, because policy Retain removes no snapshot.
        assert_eq!(plan(&gone("Retain"), NODE, &places(&[])), Ok(GroupPlan::Adopt));
    }

    #[test]
    fn the_policy_decides_about_the_snapshots_of_a_deleted_content() {
        let gone = |change: fn(&mut Value)| {
            let content = content(|content| {
                deleted(content);
                change(content);
            });
            plan(&content, NODE, &places(&[])).expect("it can be deleted")
        };
        let members = [id("group-u-pvc-1"), id("group-u-pvc-2")];
        assert_eq!(gone(|_| {}), GroupPlan::Delete(members.into()), "also without the volumes");
        assert_eq!(gone(existing), GroupPlan::Delete([id("group-old-pvc-1")].into()));
        assert_eq!(gone(|content| content["spec"]["deletionPolicy"] = "Retain".into()), GroupPlan::Release);
        assert_eq!(gone(|content| content["metadata"]["finalizers"] = json!([])), GroupPlan::Ignore);
        let kept = content(|content| content["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
        assert!(matches!(planned(&kept), Ok(GroupPlan::Take(_))), "its group exists");
    }

    #[test]
    fn rejections_name_the_object_and_the_remedy() {
        let rejected = |of: &[(&str, &str)]| plan(&content(|_| {}), NODE, &places(of)).unwrap_err().to_string();
        let text = rejected(&[("pvc-1", NODE), ("pvc-2", "two")]);
        assert!(text.contains("on the nodes one, two"), "{text}");
        let text = rejected(&[("pvc-1", NODE)]);
        assert!(text.contains("volume pvc-2 of the group does not exist on this node"), "{text}");
        let invalid = content(|content| content["spec"]["source"] = json!({"volumeHandles": ["pvc-1", "../2"]}));
        let text = planned(&invalid).unwrap_err().to_string();
        assert!(text.contains("\"../2\""), "{text}");
    }

    /// Crate `volume` tests all values of the parameters.
    #[test]
    fn the_class_has_the_longest_pause_and_the_sharing() {
        let parameters = |parameters: Value| {
            let class = json!({"metadata": {"name": "slow"}, "deletionPolicy": "Retain", "parameters": parameters});
            super::parameters(&serde_json::from_value(class).expect("a class"))
        };
        for unchanged in [json!({}), json!({"deletionPolicy": "Retain"})] {
            assert_eq!(parameters(unchanged), Ok(SnapshotParameters::default()));
        }
        let found = SnapshotParameters { max_pause: Duration::from_millis(500), sharing: Sharing::Permanent };
        assert_eq!(parameters(json!({"maxPause": "500ms", "thin": "true"})), Ok(found));
        for (name, value) in [("maxPause", "61s"), ("thin", "yes"), ("deletionPolicy", "Delete")] {
            let text = parameters(json!({name: value})).unwrap_err().to_string();
            assert!(text.contains("VolumeGroupSnapshotClass slow") && text.contains(name), "{text}");
        }
    }
}
