//! Plans the rollback that a bound claim requests. Pure.

use std::fmt;

use cluster::claim::{RESTORE_FROM, ROLLBACK};
use cluster::snapshot::{self, ID_PREFIX, MANAGED_BY};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use volume::{Claim, DRIVER_NAME, Record, VolumeId};

use crate::claim::plan::annotation;
use crate::snapshot::object::{Content, Snapshot};

/// Maximum length of an object's name. The API server rejects longer names.
const NAME_LEN: usize = 253;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Done,
    /// Give the volume the content of this VolumeSnapshot. `kept` is [`None`] until the claim is annotated with it.
    RollBack {
        snapshot: String,
        kept: Option<VolumeId>,
    },
    /// The claim requests no rollback any more.
    Cancel(VolumeId),
}

/// A claim that cannot be rolled back, now or at all. The text is the message of its event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("claim {claim} cannot be rolled back to snapshot {snapshot}, {obstacle}")]
pub(crate) struct RollbackRejection {
    pub(crate) claim: String,
    /// Name of the snapshot in the namespace of the claim.
    pub(crate) snapshot: String,
    pub(crate) obstacle: Obstacle,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Obstacle {
    #[error("which does not exist in the namespace of the claim; correct or remove the annotation {RESTORE_FROM}")]
    Missing,
    #[error("which is being deleted; correct or remove the annotation {RESTORE_FROM}")]
    Deleted,
    #[error("which is not ready; its status names the reason")]
    NotReady,
    #[error("which is not a snapshot of {DRIVER_NAME}; create a claim from it (spec.dataSource) with its own driver")]
    Foreign,
    #[error("which is on node {0}, not on the node of the volume; create a claim from it (spec.dataSource)")]
    Elsewhere(String),
    #[error("which is not a snapshot of this claim; create a claim from it (spec.dataSource)")]
    OtherClaim,
}

/// Content of a volume when its rollback fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VolumeContent {
    Former,
    Requested,
}

impl fmt::Display for VolumeContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Former => "the volume has its former content",
            Self::Requested => "the volume has the content of the snapshot",
        })
    }
}

pub(crate) fn next(claim: &PersistentVolumeClaim) -> Step {
    // A user may have written any other value.
    let kept = annotation(claim, ROLLBACK).and_then(|id| id.parse().ok()).filter(|id| is_kept_of(claim, id));
    match (annotation(claim, RESTORE_FROM), kept) {
        (Some(snapshot), kept) => Step::RollBack { snapshot: snapshot.to_owned(), kept },
        (None, Some(kept)) => Step::Cancel(kept),
        (None, None) => Step::Done,
    }
}

/// ID of the kept snapshot. Each request has a new ID, because the version of a claim grows.
pub(crate) fn kept_id(claim: &PersistentVolumeClaim) -> Option<VolumeId> {
    format!("{}{}", kept_prefix(claim)?, claim.resource_version()?).parse().ok()
}

fn kept_prefix(claim: &PersistentVolumeClaim) -> Option<String> {
    Some(format!("{ID_PREFIX}{}-", claim.metadata.uid.as_deref()?))
}

fn is_kept_of(claim: &PersistentVolumeClaim, id: &VolumeId) -> bool {
    kept_prefix(claim).is_some_and(|prefix| id.as_str().starts_with(&prefix))
}

/// The name of the VolumeSnapshot that keeps the former content.
pub(crate) fn kept_name(claim: &PersistentVolumeClaim, kept: &VolumeId) -> String {
    let version = kept.as_str().rsplit('-').next().unwrap_or_default();
    let (name, suffix) = (claim.name_any(), format!("-before-rollback-{version}"));
    let length = name.len().min(NAME_LEN.saturating_sub(suffix.len()));
    // Names are ASCII.
    let name = name.get(..length).unwrap_or_default().trim_end_matches(['.', '-']);
    format!("{name}{suffix}")
}

/// The ID of the snapshot, if it is one of the claim's volume, on this node.
pub(crate) fn source(
    claim: &PersistentVolumeClaim,
    volume: &VolumeId,
    snapshot: Option<&Snapshot>,
    content: Option<&Content>,
    node: &str,
) -> Result<VolumeId, Obstacle> {
    let snapshot = snapshot.ok_or(Obstacle::Missing)?;
    if snapshot.metadata.deletion_timestamp.is_some() {
        return Err(Obstacle::Deleted);
    }
    let content = content.filter(|content| content.is_of(snapshot)).ok_or(Obstacle::NotReady)?;
    if !content.is_of_driver() {
        return Err(Obstacle::Foreign);
    }
    let id = content.id().ok_or(Obstacle::NotReady)?;
    match content.node() {
        None => return Err(Obstacle::NotReady),
        Some(other) if other != node => return Err(Obstacle::Elsewhere(other.to_owned())),
        Some(_) => {}
    }
    // A content without a volume handle is of an administrator or of a rollback. The ID of a rollback's snapshot names
    // the claim.
    let is_of_claim = match &content.spec.source.volume_handle {
        Some(handle) => handle == volume.as_str(),
        None => is_kept_of(claim, &id),
    };
    match (is_of_claim, content.is_ready() && snapshot.is_ready()) {
        (false, _) => Err(Obstacle::OtherClaim),
        (true, false) => Err(Obstacle::NotReady),
        (true, true) => Ok(id),
    }
}

/// Content object of the snapshot `kept`, which keeps the former content. An admission policy lists its fields
/// (reconciler/src/admission.rs).
pub(crate) fn content(kept: &VolumeId, record: &Record, node: &str) -> Value {
    let Claim { namespace, name, .. } = &record.claim;
    json!({
        "apiVersion": format!("{}/{}", snapshot::GROUP, snapshot::VERSION),
        "kind": snapshot::CONTENT,
        "metadata": {"name": kept.as_str(), "labels": {MANAGED_BY: node}},
        "spec": {
            "driver": DRIVER_NAME,
            "deletionPolicy": "Delete",
            "source": {"snapshotHandle": kept.as_str()},
            // A claim that is restored from the snapshot has the same mode.
            "sourceVolumeMode": if record.mode.is_block() { "Block" } else { "Filesystem" },
            "volumeSnapshotRef": {
                "apiVersion": format!("{}/{}", snapshot::GROUP, snapshot::VERSION),
                "kind": snapshot::SNAPSHOT,
                "namespace": namespace,
                "name": name,
            },
        },
    })
}

/// Whether an existing content is the one of [`content`].
pub(crate) fn is_content_of(found: &Content, kept: &VolumeId, record: &Record, node: &str) -> bool {
    let of = &found.spec.volume_snapshot_ref;
    found.is_of_driver()
        && found.node() == Some(node)
        && found.spec.source.snapshot_handle.as_deref() == Some(kept.as_str())
        && of.namespace.as_ref() == Some(&record.claim.namespace)
        && of.name.as_ref() == Some(&record.claim.name)
}

pub(crate) fn snapshot(kept: &VolumeId, name: &str) -> Value {
    json!({
        "apiVersion": format!("{}/{}", snapshot::GROUP, snapshot::VERSION),
        "kind": snapshot::SNAPSHOT,
        "metadata": {"name": name},
        "spec": {"source": {"volumeSnapshotContentName": kept.as_str()}},
    })
}

/// Whether an existing VolumeSnapshot is the one of [`snapshot`].
pub(crate) fn is_snapshot_of(found: &Value, kept: &VolumeId) -> bool {
    found["spec"]["source"]["volumeSnapshotContentName"] == kept.as_str()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use units::Inodes;
    use volume::{Mode, Sharing, State};

    use super::*;
    use crate::fixture::{self, id};

    fn claim(annotations: Value) -> PersistentVolumeClaim {
        let metadata = json!({
            "name": "data", "namespace": "shop", "uid": "u", "resourceVersion": "7", "annotations": annotations,
        });
        serde_json::from_value(json!({"metadata": metadata, "spec": {"volumeMode": "Block"}})).expect("a claim")
    }

    #[test]
    fn a_request_has_one_id_until_it_is_removed() {
        assert_eq!(next(&claim(json!({}))), Step::Done);
        let new = Step::RollBack { snapshot: "before".into(), kept: None };
        assert_eq!(next(&claim(json!({RESTORE_FROM: "before"}))), new);
        assert_eq!(kept_id(&claim(json!({}))), Some(id("snapshot-u-7")));
        let begun = |kept: &str| next(&claim(json!({RESTORE_FROM: "before", ROLLBACK: kept})));
        assert_eq!(begun("snapshot-u-5"), Step::RollBack { snapshot: "before".into(), kept: Some(id("snapshot-u-5")) });
        assert_eq!(begun("snapshot-other-5"), new, "a user cannot name the snapshot of another claim");
        assert_eq!(next(&claim(json!({ROLLBACK: "snapshot-u-5"}))), Step::Cancel(id("snapshot-u-5")));
    }

    #[test]
    fn the_name_of_the_kept_snapshot_is_valid_and_new_for_each_rollback() {
        assert_eq!(kept_name(&claim(json!({})), &id("snapshot-u-5")), "data-before-rollback-5");
        let mut long = claim(json!({}));
        long.metadata.name = Some(format!("{}.b", "a".repeat(233)));
        let name = kept_name(&long, &id("snapshot-u-55"));
        assert!(name.len() <= 253 && name.ends_with("a-before-rollback-55"), "{name}");
    }

    #[test]
    fn another_snapshot_of_the_same_name_is_not_the_kept_one() {
        let kept = id("snapshot-u-5");
        assert!(is_snapshot_of(&snapshot(&kept, "data-before-rollback-5"), &kept));
        for source in [json!({"persistentVolumeClaimName": "data"}), json!({"volumeSnapshotContentName": "other"})] {
            assert!(!is_snapshot_of(&json!({"spec": {"source": source}}), &kept));
        }
        assert!(!is_snapshot_of(&json!({}), &kept));
    }

    #[test]
    fn the_content_of_a_kept_snapshot_has_the_mode_of_its_volume() {
        let taken = SystemTime::UNIX_EPOCH;
        let (inodes, sharing) = (Inodes::new(1), Sharing::Temporary);
        for (mode, found) in [
            (Mode::Snapshot { taken, sharing }, "Block"),
            (Mode::SnapshotTree { taken, inodes, sharing }, "Filesystem"),
        ] {
            let record = fixture::record(mode, State::Announced);
            assert_eq!(content(&id("snapshot-u-5"), &record, "one")["spec"]["sourceVolumeMode"], found);
        }
    }

    #[test]
    fn a_content_of_another_node_is_not_that_of_the_rollback() {
        let kept = id("snapshot-u-5");
        let (taken, sharing) = (SystemTime::UNIX_EPOCH, Sharing::Temporary);
        let record = fixture::record(Mode::Snapshot { taken, sharing }, State::Announced);
        let found = |change: fn(&mut Value)| {
            let mut content = content(&kept, &record, "one");
            change(&mut content);
            is_content_of(&serde_json::from_value(content).unwrap(), &kept, &record, "one")
        };
        // The snapshot controller sets the UID.
        assert!(found(|content| content["spec"]["volumeSnapshotRef"]["uid"] = "s".into()));
        assert!(!found(|content| content["metadata"]["labels"] = json!({MANAGED_BY: "two"})));
        assert!(!found(|content| content["spec"]["source"]["snapshotHandle"] = "snapshot-u-6".into()));
        assert!(!found(|content| content["spec"]["volumeSnapshotRef"]["namespace"] = "other".into()));
        assert!(!found(|content| content["spec"]["volumeSnapshotRef"]["name"] = "other".into()));
        assert!(!found(|content| content["spec"]["driver"] = "example.invalid".into()));
    }

    #[test]
    fn each_obstacle_is_named() {
        let snapshot = json!({"metadata": {"name": "before", "uid": "s"}, "status": {
            "boundVolumeSnapshotContentName": "content", "readyToUse": true,
        }});
        let content = json!({
            "metadata": {"name": "content", "uid": "c", "labels": {MANAGED_BY: "one"}},
            "spec": {"driver": DRIVER_NAME, "source": {"volumeHandle": "pvc-u"}, "volumeSnapshotRef": {"uid": "s"}},
            "status": {"readyToUse": true},
        });
        let claim = claim(json!({}));
        let found = |path: &str, value: Value| {
            let (mut snapshot, mut content) = (snapshot.clone(), content.clone());
            let object = if path.starts_with("/snapshot") { &mut snapshot } else { &mut content };
            if let Some(field) = object.pointer_mut(path.trim_start_matches("/snapshot").trim_start_matches("/content"))
            {
                *field = value;
            }
            let (snapshot, content) =
                (serde_json::from_value(snapshot).unwrap(), serde_json::from_value(content).unwrap());
            source(&claim, &id("pvc-u"), Some(&snapshot), Some(&content), "one")
        };
        assert_eq!(found("/content/unchanged", Value::Null), Ok(id("snapshot-c")));
        let kept = found("/content/spec/source", json!({"snapshotHandle": "snapshot-u-5"}));
        assert_eq!(kept, Ok(id("snapshot-u-5")), "an earlier rollback is undone");
        assert_eq!(found("/snapshot/status/readyToUse", false.into()), Err(Obstacle::NotReady));
        assert_eq!(found("/content/status/readyToUse", false.into()), Err(Obstacle::NotReady));
        assert_eq!(found("/content/metadata/labels", json!({})), Err(Obstacle::NotReady));
        assert_eq!(found("/content/spec/volumeSnapshotRef/uid", "of another".into()), Err(Obstacle::NotReady));
        assert_eq!(found("/content/spec/driver", "example.invalid".into()), Err(Obstacle::Foreign));
        let elsewhere = found("/content/metadata/labels", json!({MANAGED_BY: "two"}));
        assert_eq!(elsewhere, Err(Obstacle::Elsewhere("two".into())));
        for other in [json!({"volumeHandle": "pvc-other"}), json!({"snapshotHandle": "snapshot-other"})] {
            assert_eq!(found("/content/spec/source", other), Err(Obstacle::OtherClaim));
        }
        assert_eq!(source(&claim, &id("pvc-u"), None, None, "one"), Err(Obstacle::Missing));
        let rejected =
            |obstacle| RollbackRejection { claim: "shop/data".into(), snapshot: "before".into(), obstacle }.to_string();
        let text = rejected(Obstacle::OtherClaim);
        assert!(
            text.contains("claim shop/data") && text.contains("snapshot before") && text.contains("spec.dataSource")
        );
    }
}
