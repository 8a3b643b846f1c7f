//! Decides what is done for a content. Pure.

use std::time::UNIX_EPOCH;

use cluster::snapshot::{BEING_DELETED, PROTECTION};
use kube::ResourceExt as _;
use volume::{Claim, Mode, Record, SnapshotRequest, State, VolumeId};

use crate::snapshot::object::{Content, ContentStatus, SnapshotClass};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotPlan {
    /// The content is of another node, or complete.
    Ignore,
    /// Set the label: the volume or the snapshot of the content is on this node.
    Adopt,
    /// Take the snapshot, or copy more of its blocks.
    Take(VolumeId, SnapshotRequest),
    /// Show the state of a snapshot that exists.
    Find(VolumeId),
    /// Remove the snapshot, then the finalizer.
    Delete(VolumeId),
    /// Remove the finalizer. The snapshot stays.
    Release,
}

/// A content that the node cannot serve. The text is the message in its status and of its event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SnapshotRejection {
    #[error(
        "the volume {0} has volumeMode Filesystem; only snapshots of block volumes are supported: copy the files with a pod"
    )]
    Filesystem(String),
    #[error("spec.source.volumeHandle: {0:?} is not the handle of a volume of this driver; create the snapshot again")]
    Volume(String),
    #[error(
        "the VolumeSnapshotClass {class} has the parameter {name}, and this driver supports no parameters of snapshots; \
         create the class again without it"
    )]
    Parameter { class: String, name: String },
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
        None if content.origin().is_some_and(|origin| is_on_disk(&origin)) => return Ok(SnapshotPlan::Adopt),
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
    if content.is_ready() {
        return Ok(SnapshotPlan::Ignore);
    }
    if let Some(handle) = &source.snapshot_handle {
        let id = content.id().ok_or_else(|| SnapshotRejection::Snapshot(handle.clone()))?;
        return Ok(SnapshotPlan::Find(id));
    }
    let handle = source.volume_handle.clone().unwrap_or_default();
    if content.spec.source_volume_mode.as_deref() == Some("Filesystem") {
        return Err(SnapshotRejection::Filesystem(handle));
    }
    let (Some(id), Some(source), Some(uid)) = (content.id(), content.origin(), content.metadata.uid.clone()) else {
        return Err(SnapshotRejection::Volume(handle));
    };
    let of = &content.spec.volume_snapshot_ref;
    let [namespace, name] = [&of.namespace, &of.name].map(|part| part.clone().unwrap_or_default());
    let class = content.spec.volume_snapshot_class_name.clone().unwrap_or_default();
    Ok(SnapshotPlan::Take(id, SnapshotRequest { claim: Claim { uid, namespace, name }, class, source }))
}

pub(crate) fn check_parameters(class: &SnapshotClass) -> Result<(), SnapshotRejection> {
    match class.parameters.keys().next() {
        Some(name) => Err(SnapshotRejection::Parameter { class: class.name_any(), name: name.clone() }),
        None => Ok(()),
    }
}

/// As the sidecar decides: the content of a snapshot that exists, and the content that no snapshot ever had, stay.
fn is_deleted(content: &Content) -> bool {
    let meta = &content.metadata;
    let was_bound = content.spec.volume_snapshot_ref.uid.as_ref().is_some_and(|uid| !uid.is_empty());
    let is_announced = meta.annotations.iter().flatten().any(|(key, _)| key == BEING_DELETED);
    let is_unbound = content.spec.source.snapshot_handle.is_some() && !was_bound;
    meta.deletion_timestamp.is_some() && (is_announced || is_unbound)
}

/// The status of the content of a snapshot.
pub(crate) fn status(id: &VolumeId, record: &Record) -> ContentStatus {
    let since_epoch = match record.mode {
        Mode::Snapshot { taken } => taken.duration_since(UNIX_EPOCH).unwrap_or_default(),
        Mode::Filesystem { .. } | Mode::Block { .. } => std::time::Duration::ZERO,
    };
    ContentStatus {
        snapshot_handle: Some(id.to_string()),
        creation_time: i64::try_from(since_epoch.as_nanos()).ok(),
        restore_size: i64::try_from(record.size.get()).ok(),
        ready_to_use: Some(record.state == State::Announced),
        error: None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use cluster::snapshot::MANAGED_BY;
    use fsquota::ProjectId;
    use serde_json::{Value, json};
    use units::Bytes;
    use volume::Owner;

    use super::*;

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

    fn id(text: &str) -> VolumeId {
        text.parse().expect("an identifier")
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
        let request = SnapshotRequest { claim, class: "local".into(), source: id("pvc-1") };
        let take = Ok(SnapshotPlan::Take(id("snapshot-u"), request));
        assert_eq!(planned(&content(|_| {})), take);
        let begun = |ready: bool| content(|content| content["status"] = json!({"readyToUse": ready}));
        assert_eq!(planned(&begun(false)), take);
        assert_eq!(planned(&begun(true)), Ok(SnapshotPlan::Ignore));
        // The content of a snapshot that exists is not to be deleted.
        let kept = content(|content| content["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
        assert_eq!(planned(&kept), take);
    }

    #[test]
    fn a_snapshot_that_exists_is_shown() {
        assert_eq!(planned(&content(existing)), Ok(SnapshotPlan::Find(id("snapshot-kept"))));
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
        // No snapshot was bound to it, and none announces the deletion.
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
        let text = rejected(|content| content["spec"]["sourceVolumeMode"] = "Filesystem".into());
        assert!(text.contains("pvc-1") && text.contains("only snapshots of block volumes"), "{text}");
        let text = rejected(|content| content["spec"]["source"] = json!({"volumeHandle": "../1"}));
        assert!(text.contains("volumeHandle") && text.contains("../1"), "{text}");
        let text = rejected(|content| content["spec"]["source"] = json!({"snapshotHandle": "A"}));
        assert!(text.contains("snapshotHandle") && text.contains("\"A\""), "{text}");
    }

    #[test]
    fn a_parameter_is_rejected_with_its_class() {
        let class = |parameters: Value| -> SnapshotClass {
            serde_json::from_value(json!({"metadata": {"name": "paused"}, "parameters": parameters})).expect("a class")
        };
        assert_eq!(check_parameters(&class(json!({}))), Ok(()));
        for name in ["maxPause", "thin", "csi.storage.k8s.io/snapshotter-secret-name"] {
            let text = check_parameters(&class(json!({name: "2s"}))).unwrap_err().to_string();
            assert!(text.contains("VolumeSnapshotClass paused") && text.contains(name), "{text}");
        }
        // The API server leaves the field out.
        let bare = serde_json::from_value(json!({"metadata": {"name": "local"}})).expect("a class");
        assert_eq!(check_parameters(&bare), Ok(()));
    }

    #[test]
    fn the_status_has_the_instant_and_the_size() {
        let record = Record {
            claim: Claim { uid: "u".into(), namespace: "shop".into(), name: "before".into() },
            owner: Owner::Provisioner,
            class: "local".into(),
            mode: Mode::Snapshot { taken: SystemTime::UNIX_EPOCH + Duration::new(1, 2) },
            size: Bytes::GIB,
            project: ProjectId::new(7).expect("an ID"),
            cloning: None,
            io: volume::IoLimits::NONE,
            state: State::Announced,
        };
        let found = status(&id("snapshot-u"), &record);
        assert_eq!((found.creation_time, found.restore_size), (Some(1_000_000_002), Some(1 << 30)));
        assert_eq!((found.snapshot_handle.as_deref(), found.ready_to_use), (Some("snapshot-u"), Some(true)));
        assert_eq!(status(&id("snapshot-u"), &Record { state: State::Staged, ..record }).ready_to_use, Some(false));
    }
}
