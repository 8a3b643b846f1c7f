//! Plans the next step for the content of a snapshot. Pure.

use std::time::UNIX_EPOCH;

use cluster::snapshot::{BEING_DELETED, CONTENT_PREFIX, PROTECTION};
use kube::ResourceExt as _;
use volume::{Claim, Owner, Record, SnapshotParameterError, SnapshotParameters, SnapshotRequest, VolumeId};

use crate::snapshot::object::{Content, ContentStatus, SnapshotClass};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotPlan {
    /// The content is of another node, or complete.
    Ignore,
    /// Set the label: the volume or the snapshot of the content is on this node.
    Adopt,
    /// Take the snapshot.
    Take(VolumeId, SnapshotRequest),
    /// Write the state of a snapshot that exists to the status.
    Find(VolumeId),
    /// Remove the snapshot, then the finalizer.
    Delete(VolumeId),
    /// Remove the finalizer. The snapshot stays.
    Release,
}

/// A content that the node cannot serve. The text is the message in its status and of its event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SnapshotRejection {
    #[error("spec.source.volumeHandle: {0:?} is not the handle of a volume of this driver; create the snapshot again")]
    Volume(String),
    #[error("the VolumeSnapshotClass {class} {reason}")]
    Class { class: String, reason: SnapshotParameterError },
    #[error(
        "spec.source.snapshotHandle: {0:?} is not the handle of a snapshot of this driver; correct it in a new content"
    )]
    Snapshot(String),
}

pub(crate) fn plan(
    content: &Content,
    node: &str,
    is_on_disk: impl Fn(&VolumeId) -> bool,
) -> Result<SnapshotPlan, SnapshotRejection> {
    match content.node() {
        _ if !content.is_of_driver() => return Ok(SnapshotPlan::Ignore),
        Some(other) if other != node => return Ok(SnapshotPlan::Ignore),
        Some(_) => {}
        None if [content.origin(), content.id()].iter().flatten().any(is_on_disk) => return Ok(SnapshotPlan::Adopt),
        None => return Ok(SnapshotPlan::Ignore),
    }
    let source = &content.spec.source;
    if is_deleted(content) {
        let is_protected = content.metadata.finalizers.iter().flatten().any(|name| name == PROTECTION);
        return Ok(match (is_protected, content.spec.deletion_policy.as_str(), content.id()) {
            (false, ..) => SnapshotPlan::Ignore,
            (true, "Delete", Some(id)) => SnapshotPlan::Delete(id),
            (true, ..) => SnapshotPlan::Release,
        });
    }
    // The snapshot controller writes the status of the member of a group.
    if content.is_ready() || source.snapshot_handle.is_none() && content.group().is_some() {
        return Ok(SnapshotPlan::Ignore);
    }
    if let Some(handle) = &source.snapshot_handle {
        let id = content.id().ok_or_else(|| SnapshotRejection::Snapshot(handle.clone()))?;
        return Ok(SnapshotPlan::Find(id));
    }
    let handle = source.volume_handle.clone().unwrap_or_default();
    let (Some(id), Some(source), Some(uid)) = (content.id(), content.origin(), content.metadata.uid.clone()) else {
        return Err(SnapshotRejection::Volume(handle));
    };
    let of = &content.spec.volume_snapshot_ref;
    let [namespace, name] = [&of.namespace, &of.name].map(|part| part.clone().unwrap_or_default());
    let class = content.spec.volume_snapshot_class_name.clone().unwrap_or_default();
    let SnapshotParameters { max_pause, sharing } = SnapshotParameters::default();
    let (claim, owner) = (Claim { uid, namespace, name }, Owner::Provisioner);
    Ok(SnapshotPlan::Take(id, SnapshotRequest { claim, owner, class, source, max_pause, sharing }))
}

pub(crate) fn parameters(class: &SnapshotClass) -> Result<SnapshotParameters, SnapshotRejection> {
    let failed = |reason| SnapshotRejection::Class { class: class.name_any(), reason };
    SnapshotParameters::parse(&class.parameters).map_err(failed)
}

/// Whether the deletion of the content removes the snapshot, so that the content does not need it any more.
pub(crate) fn ends_snapshot(content: &Content) -> bool {
    is_deleted(content) && content.spec.deletion_policy == "Delete"
}

/// Whether the content shows if the snapshot controller runs with `--enable-distributed-snapshotting`: the controller
/// created the content, and names its node only with this option. The controller names no node for the member of a
/// group, and administrators create contents of snapshots that exist.
pub(crate) fn shows_distribution(content: &Content) -> bool {
    let (source, of) = (&content.spec.source, &content.spec.volume_snapshot_ref);
    let named_after = content.metadata.name.as_deref().and_then(|name| name.strip_prefix(CONTENT_PREFIX));
    source.volume_handle.is_some()
        && source.snapshot_handle.is_none()
        && content.group().is_none()
        && named_after.is_some_and(|uid| of.uid.as_deref() == Some(uid))
}

/// Whether the deletion of the content has to be completed, as the sidecar decides: the VolumeSnapshot is being deleted
/// too, or a content with a snapshot handle was never bound to a VolumeSnapshot.
fn is_deleted(content: &Content) -> bool {
    let meta = &content.metadata;
    let was_bound = content.spec.volume_snapshot_ref.uid.as_ref().is_some_and(|uid| !uid.is_empty());
    let is_announced = meta.annotations.iter().flatten().any(|(key, _)| key == BEING_DELETED);
    let is_unbound = content.spec.source.snapshot_handle.is_some() && !was_bound;
    meta.deletion_timestamp.is_some() && (is_announced || is_unbound)
}

/// The status of the content of a snapshot.
pub(crate) fn status(id: &VolumeId, record: &Record) -> ContentStatus {
    let since_epoch = record.mode.taken().and_then(|taken| taken.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    ContentStatus {
        snapshot_handle: Some(id.to_string()),
        creation_time: i64::try_from(since_epoch.as_nanos()).ok(),
        restore_size: i64::try_from(record.size.get()).ok(),
        ready_to_use: Some(record.state.is_reported()),
        error: None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use cluster::snapshot::MANAGED_BY;
    use serde_json::{Value, json};
    use volume::{Mode, Sharing, State};

    use super::*;
    use crate::fixture::{self, id};

    const NODE: &str = "one";

    /// A content of a snapshot to take, with changes.
    fn content(change: impl FnOnce(&mut Value)) -> Content {
        let mut content = json!({
            "metadata": {
                "name": "snapcontent-s", "uid": "u", "labels": {MANAGED_BY: NODE}, "finalizers": [PROTECTION],
            },
            "spec": {
                "driver": "local.granary.dev", "deletionPolicy": "Delete", "source": {"volumeHandle": "pvc-1"},
                "sourceVolumeMode": "Block", "volumeSnapshotClassName": "local",
                "volumeSnapshotRef": {"namespace": "shop", "name": "before", "uid": "s"},
            },
        });
        change(&mut content);
        serde_json::from_value(content).expect("a content")
    }

    fn planned(content: &Content) -> Result<SnapshotPlan, SnapshotRejection> {
        plan(content, NODE, |_| false)
    }

    type Change = fn(&mut Value);

    fn unchanged(_: &mut Value) {}

    fn existing(content: &mut Value) {
        content["spec"]["source"] = json!({"snapshotHandle": "snapshot-kept"});
    }

    fn deleted(content: &mut Value) {
        content["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        content["metadata"]["annotations"] = json!({BEING_DELETED: "yes"});
    }

    #[test]
    fn a_snapshot_is_taken_until_it_is_ready() {
        let claim = Claim { uid: "u".into(), namespace: "shop".into(), name: "before".into() };
        let request = SnapshotRequest {
            claim,
            owner: Owner::Provisioner,
            class: "local".into(),
            source: id("pvc-1"),
            max_pause: Duration::from_secs(2),
            sharing: Sharing::Temporary,
        };
        let take = Ok(SnapshotPlan::Take(id("snapshot-u"), request));
        assert_eq!(planned(&content(|_| {})), take);
        assert_eq!(planned(&content(|content| content["spec"]["sourceVolumeMode"] = "Filesystem".into())), take);
        let begun = |ready: bool| content(|content| content["status"] = json!({"readyToUse": ready}));
        assert_eq!(planned(&begun(false)), take);
        assert_eq!(planned(&begun(true)), Ok(SnapshotPlan::Ignore));
        // A deleted content is kept while its VolumeSnapshot is not being deleted.
        let kept = content(|content| content["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
        assert_eq!(planned(&kept), take);
    }

    #[test]
    fn the_member_of_a_group_is_taken_with_the_group() {
        let member = |change: fn(&mut Value)| {
            content(|content| {
                content["metadata"]["annotations"] = json!({cluster::snapshot::group::HANDLE: "group-1"});
                change(content);
            })
        };
        assert_eq!(planned(&member(unchanged)), Ok(SnapshotPlan::Ignore));
        let bare = member(|content| content["metadata"]["labels"] = json!({}));
        // The node of the snapshot adopts the content, also after its volume was deleted.
        let adopted = plan(&bare, NODE, |id| id.as_str() == "group-1-pvc-1");
        assert_eq!(adopted, Ok(SnapshotPlan::Adopt));
        let gone = member(|content| {
            content["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            content["metadata"]["annotations"][BEING_DELETED] = "yes".into();
        });
        assert_eq!(planned(&gone), Ok(SnapshotPlan::Delete(id("group-1-pvc-1"))));
    }

    #[test]
    fn a_snapshot_that_exists_is_shown() {
        assert_eq!(planned(&content(existing)), Ok(SnapshotPlan::Find(id("snapshot-kept"))));
    }

    #[test]
    fn a_content_of_another_node_shows_no_snapshot_of_this_one() {
        let kept = id("snapshot-kept");
        let shows = |labels: Value| {
            let found = content(|content| {
                existing(content);
                content["metadata"]["labels"] = labels;
            });
            found.may_show(&kept, NODE)
        };
        assert!(shows(json!({MANAGED_BY: NODE})) && shows(json!({})), "of this node, or before it sets the label");
        assert!(!shows(json!({MANAGED_BY: "two"})));
        assert!(!content(existing).may_show(&id("snapshot-other"), NODE));
    }

    #[test]
    fn foreign_contents_are_ignored_and_those_without_node_adopted() {
        let foreign = content(|content| content["spec"]["driver"] = "example.invalid".into());
        assert_eq!(planned(&foreign), Ok(SnapshotPlan::Ignore));
        assert_eq!(plan(&content(|_| {}), "two", |_| true), Ok(SnapshotPlan::Ignore));
        let bare = |change: fn(&mut Value)| {
            content(|content| {
                change(content);
                content["metadata"]["labels"] = json!({});
            })
        };
        assert_eq!(planned(&bare(|_| {})), Ok(SnapshotPlan::Ignore));
        for (change, origin) in [(unchanged as Change, "pvc-1"), (existing, "snapshot-kept")] {
            let adopted = plan(&bare(change), NODE, |id| id.as_str() == origin);
            assert_eq!(adopted, Ok(SnapshotPlan::Adopt));
        }
    }

    #[test]
    fn only_contents_of_the_snapshot_controller_show_its_option() {
        assert!(shows_distribution(&content(unchanged)));
        assert!(shows_distribution(&content(|content| content["metadata"]["labels"] = json!({}))));
        let others: [Change; 3] = [
            existing,
            |content| content["metadata"]["name"] = "by-hand".into(),
            // The controller names no node for the members of groups.
            |content| content["metadata"]["annotations"] = json!({cluster::snapshot::group::HANDLE: "group-1"}),
        ];
        for other in others {
            assert!(!shows_distribution(&content(other)));
        }
    }

    #[test]
    fn the_policy_decides_about_the_snapshot_of_a_deleted_content() {
        let gone = |change: fn(&mut Value)| {
            planned(&content(|content| {
                deleted(content);
                change(content);
            }))
        };
        assert_eq!(gone(|_| {}), Ok(SnapshotPlan::Delete(id("snapshot-u"))), "also one that was never ready");
        assert_eq!(gone(existing), Ok(SnapshotPlan::Delete(id("snapshot-kept"))));
        assert_eq!(gone(|content| content["spec"]["deletionPolicy"] = "Retain".into()), Ok(SnapshotPlan::Release));
        assert_eq!(gone(|content| content["metadata"]["finalizers"] = json!([])), Ok(SnapshotPlan::Ignore));
        // No VolumeSnapshot was bound to the content, and none announces the deletion.
        let unbound = gone(|content| {
            existing(content);
            content["metadata"]["annotations"] = json!({});
            content["spec"]["volumeSnapshotRef"]["uid"] = Value::Null;
        });
        assert_eq!(unbound, Ok(SnapshotPlan::Delete(id("snapshot-kept"))));
    }

    #[test]
    fn rejections_name_the_object_and_the_remedy() {
        let rejected = |change: fn(&mut Value)| planned(&content(change)).unwrap_err().to_string();
        let text = rejected(|content| content["spec"]["source"] = json!({"volumeHandle": "../1"}));
        assert!(text.contains("volumeHandle") && text.contains("../1"), "{text}");
        let text = rejected(|content| content["spec"]["source"] = json!({"snapshotHandle": "A"}));
        assert!(text.contains("snapshotHandle") && text.contains("\"A\""), "{text}");
    }

    #[test]
    fn the_parameters_are_read_and_a_rejection_has_the_class() {
        let class = |parameters: Value| -> SnapshotClass {
            serde_json::from_value(json!({"metadata": {"name": "paused"}, "parameters": parameters})).expect("a class")
        };
        let read = |max_pause, sharing| SnapshotParameters { max_pause, sharing };
        let short = Duration::from_millis(500);
        let found = parameters(&class(json!({"maxPause": "500ms", "thin": "true"})));
        assert_eq!(found.unwrap(), read(short, Sharing::Permanent));
        for invalid in [json!({"thin": "2s"}), json!({"maxPause": "thin"})] {
            let text = parameters(&class(invalid)).unwrap_err().to_string();
            assert!(text.contains("VolumeSnapshotClass paused") && text.contains("thin"), "{text}");
        }
        // The API server leaves out empty parameters.
        let bare = serde_json::from_value(json!({"metadata": {"name": "local"}})).expect("a class");
        assert_eq!(parameters(&bare).unwrap(), read(Duration::from_secs(2), Sharing::Temporary));
    }

    #[test]
    fn the_status_has_the_instant_and_the_size() {
        let taken = SystemTime::UNIX_EPOCH + Duration::new(1, 2);
        let mode = Mode::Snapshot { taken, sharing: Sharing::Temporary };
        let record = fixture::record(mode, State::Announced);
        let found = status(&id("snapshot-u"), &record);
        assert_eq!((found.creation_time, found.restore_size), (Some(1_000_000_002), Some(1 << 30)));
        assert_eq!((found.snapshot_handle.as_deref(), found.ready_to_use), (Some("snapshot-u"), Some(true)));
        for (state, is_ready) in [(State::Staged, false), (State::Complete, true)] {
            let found = status(&id("snapshot-u"), &Record { state, ..record.clone() });
            assert_eq!(found.ready_to_use, Some(is_ready), "{state:?}");
        }
    }
}
