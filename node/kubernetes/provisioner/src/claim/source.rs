//! Checks the claim or snapshot that has the initial content of a new volume. Pure.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use units::Bytes;
use volume::{DRIVER_NAME, VolumeId};

use crate::claim::plan::ProvisionRequest;
use crate::pv::object;
use crate::snapshot::object::{Content, Snapshot};

/// A clone that is not possible, now or at all. The text is the message of the claim's event.
#[derive(Debug, thiserror::Error)]
#[error("claim {claim} cannot be cloned from {source_name}, {obstacle}")]
pub(crate) struct CloneError {
    pub(crate) claim: String,
    /// Kind, namespace and name of the source.
    pub(crate) source_name: String,
    pub(crate) obstacle: Obstacle,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Obstacle {
    #[error("which does not exist; create it, or remove spec.dataSource")]
    Missing,
    #[error("which is being deleted; select another source")]
    Deleted,
    #[error("which has no volume yet; use it in a pod first")]
    Unbound,
    #[error("which is not ready; its status names the reason")]
    NotReady,
    #[error("whose volume {pv} is not a volume of {DRIVER_NAME}; select a source with a storage class of this driver")]
    Foreign { pv: String },
    #[error("whose data is on node {node}; the clone is created there when the control plane has selected that node")]
    Elsewhere { node: String },
    #[error("which has volumeMode Filesystem; set spec.volumeMode: Filesystem")]
    Filesystem,
    #[error("which has volumeMode Block; set spec.volumeMode: Block")]
    Mode,
    #[error("which has {has}; request at least as much instead of {requested}")]
    Smaller { has: Bytes, requested: Bytes },
}

/// The volume of the source, if this node can clone it for the request.
pub(crate) fn volume(
    request: &ProvisionRequest,
    source: Option<&PersistentVolumeClaim>,
    pv: Option<&PersistentVolume>,
    node: &str,
) -> Result<VolumeId, Obstacle> {
    let source = source.ok_or(Obstacle::Missing)?;
    if source.metadata.deletion_timestamp.is_some() {
        return Err(Obstacle::Deleted);
    }
    let phase = source.status.as_ref().and_then(|status| status.phase.as_deref());
    // A PV of another claim has the data of that claim.
    let pv = pv.filter(|pv| phase == Some("Bound") && object::is_of(pv, source)).ok_or(Obstacle::Unbound)?;
    let foreign = || Obstacle::Foreign { pv: pv.metadata.name.clone().unwrap_or_default() };
    object::handle(pv).ok_or_else(foreign)?;
    let is_block = pv.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) == Some("Block");
    match (is_block, request.volume.mode.is_block()) {
        (true, true) | (false, false) => {}
        (true, false) => return Err(Obstacle::Mode),
        (false, true) => return Err(Obstacle::Filesystem),
    }
    let Some(id) = object::volume_of(pv, node) else {
        return Err(object::node_of(pv).map_or_else(foreign, |node| Obstacle::Elsewhere { node: node.to_owned() }));
    };
    // The store repeats this check with the size of the volume at the instant of the clone.
    match object::capacity(pv) {
        Some(has) if has > request.volume.size => Err(Obstacle::Smaller { has, requested: request.volume.size }),
        Some(_) | None => Ok(id),
    }
}

/// The snapshot, if this node can restore it for the request.
pub(crate) fn snapshot(
    request: &ProvisionRequest,
    source: Option<&Snapshot>,
    content: Option<&Content>,
    node: &str,
) -> Result<VolumeId, Obstacle> {
    let source = source.ok_or(Obstacle::Missing)?;
    if source.metadata.deletion_timestamp.is_some() {
        return Err(Obstacle::Deleted);
    }
    let content = content.filter(|content| content.is_of(source)).ok_or(Obstacle::NotReady)?;
    if !content.is_of_driver() {
        return Err(Obstacle::Foreign { pv: content.metadata.name.clone().unwrap_or_default() });
    }
    let id = content.id().filter(|_| content.is_ready() && source.is_ready()).ok_or(Obstacle::NotReady)?;
    // The store compares the modes if the content does not have a mode.
    match (content.spec.source_volume_mode.as_deref(), request.volume.mode.is_block()) {
        (Some("Block"), false) => return Err(Obstacle::Mode),
        (Some("Filesystem"), true) => return Err(Obstacle::Filesystem),
        _ => {}
    }
    match content.node() {
        None => return Err(Obstacle::NotReady),
        Some(other) if other != node => return Err(Obstacle::Elsewhere { node: other.to_owned() }),
        Some(_) => {}
    }
    // The store repeats this check with the size in its record.
    match content.size() {
        Some(has) if has > request.volume.size => Err(Obstacle::Smaller { has, requested: request.volume.size }),
        Some(_) | None => Ok(id),
    }
}

impl CloneError {
    /// Whether the source is on another node. The control plane selects that node, so the error needs no event yet.
    pub(crate) const fn is_elsewhere(&self) -> bool {
        matches!(self.obstacle, Obstacle::Elsewhere { .. })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use volume::{Allocation, Claim, IoLimits, Mode, Owner, Request};

    use super::*;
    use crate::class::ReclaimPolicy;

    fn request(mode: Mode, size: Bytes) -> ProvisionRequest {
        let claim = Claim { uid: "new".into(), namespace: "default".into(), name: "new".into() };
        let volume = Request { claim, owner: Owner::Provisioner, class: "local".into(), mode, size, source: None };
        let id = "pvc-new".parse().expect("an identifier");
        let (source, attributes_class, io) = (None, None, IoLimits::NONE);
        let reclaim = ReclaimPolicy::Delete;
        ProvisionRequest { id, volume, source, attributes_class, io, access_modes: vec![], reclaim }
    }

    fn disk() -> ProvisionRequest {
        request(Mode::Block { allocation: Allocation::Thick }, Bytes::GIB)
    }

    fn claim(more: Value) -> PersistentVolumeClaim {
        let mut claim = json!({"metadata": {"name": "data", "uid": "u"}, "status": {"phase": "Bound"}});
        for (key, value) in more.as_object().into_iter().flatten() {
            claim[key].as_object_mut().unwrap().extend(value.as_object().cloned().unwrap());
        }
        serde_json::from_value(claim).expect("a claim")
    }

    fn pv(driver: &str, uid: &str, mode: &str, host: &str) -> PersistentVolume {
        let on = json!([{"matchExpressions": [{"key": volume::TOPOLOGY_KEY, "operator": "In", "values": [host]}]}]);
        serde_json::from_value(json!({"metadata": {"name": "pvc-u"}, "spec": {
            "csi": {"driver": driver, "volumeHandle": "pvc-u"}, "claimRef": {"uid": uid}, "volumeMode": mode,
            "capacity": {"storage": "1Gi"}, "nodeAffinity": {"required": {"nodeSelectorTerms": on}},
        }}))
        .expect("a PV")
    }

    #[test]
    fn a_bound_block_volume_of_this_node_is_cloned() {
        let pv = pv(DRIVER_NAME, "u", "Block", "one");
        assert_eq!(volume(&disk(), Some(&claim(json!({}))), Some(&pv), "one"), Ok("pvc-u".parse().unwrap()));
    }

    #[test]
    fn each_obstacle_is_named() {
        let (own, deleted) = (claim(json!({})), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
        let pending = claim(json!({"status": {"phase": "Pending"}}));
        let block = |uid: &str, host: &str| pv(DRIVER_NAME, uid, "Block", host);
        let files = pv(DRIVER_NAME, "u", "Filesystem", "one");
        let found =
            |claim: Option<&PersistentVolumeClaim>, pv: &PersistentVolume| volume(&disk(), claim, Some(pv), "one");
        assert_eq!(found(None, &block("u", "one")), Err(Obstacle::Missing));
        assert_eq!(found(Some(&claim(deleted)), &block("u", "one")), Err(Obstacle::Deleted));
        assert_eq!(found(Some(&pending), &block("u", "one")), Err(Obstacle::Unbound));
        assert_eq!(found(Some(&own), &block("of another claim", "one")), Err(Obstacle::Unbound));
        assert_eq!(volume(&disk(), Some(&own), None, "one"), Err(Obstacle::Unbound));
        let foreign = pv("example.invalid", "u", "Block", "one");
        assert_eq!(found(Some(&own), &foreign), Err(Obstacle::Foreign { pv: "pvc-u".into() }));
        assert_eq!(found(Some(&own), &block("u", "two")), Err(Obstacle::Elsewhere { node: "two".into() }));
        assert_eq!(found(Some(&own), &files), Err(Obstacle::Filesystem));
        let directory = request(Mode::Filesystem { inodes: units::Inodes::new(64) }, Bytes::GIB);
        assert_eq!(volume(&directory, Some(&own), Some(&block("u", "one")), "one"), Err(Obstacle::Mode));
        assert_eq!(volume(&directory, Some(&own), Some(&files), "one"), Ok("pvc-u".parse().unwrap()));
        let small = request(Mode::Block { allocation: Allocation::Thin }, Bytes::MIB);
        let smaller = Obstacle::Smaller { has: Bytes::GIB, requested: Bytes::MIB };
        assert_eq!(volume(&small, Some(&own), Some(&block("u", "one")), "one"), Err(smaller));
    }

    #[test]
    fn a_ready_snapshot_is_restored_and_obstacles_are_reported() {
        let claim = json!({"metadata": {"name": "before", "uid": "s"}, "status": {
            "boundVolumeSnapshotContentName": "content", "readyToUse": true,
        }});
        let content = json!({
            "metadata": {"name": "content", "uid": "u", "labels": {cluster::snapshot::MANAGED_BY: "one"}},
            "spec": {
                "driver": DRIVER_NAME, "source": {"volumeHandle": "pvc-1"}, "sourceVolumeMode": "Block",
                "volumeSnapshotRef": {"uid": "s"},
            },
            // Another node can write any handle into the status.
            "status": {"snapshotHandle": "snapshot-of-another", "readyToUse": true, "restoreSize": 1 << 30},
        });
        let restored = |request: &ProvisionRequest, path: &str, value: Value| {
            let (mut claim, mut content) = (claim.clone(), content.clone());
            let object = if path.starts_with("/snapshot") { &mut claim } else { &mut content };
            let path = path.trim_start_matches("/snapshot").trim_start_matches("/content");
            if let Some(field) = object.pointer_mut(path) {
                *field = value;
            }
            let (claim, content) = (serde_json::from_value(claim).unwrap(), serde_json::from_value(content).unwrap());
            snapshot(request, Some(&claim), Some(&content), "one")
        };
        let found = |path: &str, value: Value| restored(&disk(), path, value);
        assert_eq!(found("/content/unchanged", Value::Null), Ok("snapshot-u".parse().unwrap()));
        assert_eq!(found("/snapshot/status/readyToUse", false.into()), Err(Obstacle::NotReady));
        assert_eq!(found("/snapshot/status/boundVolumeSnapshotContentName", "x".into()), Err(Obstacle::NotReady));
        assert_eq!(found("/content/status/readyToUse", false.into()), Err(Obstacle::NotReady));
        assert_eq!(found("/content/spec/volumeSnapshotRef/uid", "of another".into()), Err(Obstacle::NotReady));
        assert_eq!(found("/content/metadata/labels", json!({})), Err(Obstacle::NotReady));
        let foreign = Err(Obstacle::Foreign { pv: "content".into() });
        assert_eq!(found("/content/spec/driver", "example.invalid".into()), foreign);
        let elsewhere = json!({cluster::snapshot::MANAGED_BY: "two"});
        assert_eq!(found("/content/metadata/labels", elsewhere), Err(Obstacle::Elsewhere { node: "two".into() }));
        let directory = request(Mode::Filesystem { inodes: units::Inodes::new(64) }, Bytes::GIB);
        assert_eq!(restored(&directory, "/content/unchanged", Value::Null), Err(Obstacle::Mode));
        let files = |request| restored(request, "/content/spec/sourceVolumeMode", "Filesystem".into());
        assert_eq!(files(&directory), Ok("snapshot-u".parse().unwrap()));
        assert_eq!(files(&disk()), Err(Obstacle::Filesystem));
        let small = request(Mode::Block { allocation: Allocation::Thin }, Bytes::MIB);
        let smaller = Obstacle::Smaller { has: Bytes::GIB, requested: Bytes::MIB };
        assert_eq!(restored(&small, "/content/unchanged", Value::Null), Err(smaller));
        assert_eq!(snapshot(&disk(), None, None, "one"), Err(Obstacle::Missing));
        let mut deleted = claim.clone();
        deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        let deleted = serde_json::from_value(deleted).unwrap();
        assert_eq!(snapshot(&disk(), Some(&deleted), None, "one"), Err(Obstacle::Deleted));
    }

    #[test]
    fn an_error_names_both_claims_and_the_remedy() {
        let error =
            CloneError { claim: "a/new".into(), source_name: "claim a/data".into(), obstacle: Obstacle::Filesystem };
        let text = error.to_string();
        assert!(
            text.contains("claim a/new") && text.contains("claim a/data") && text.contains("set spec.volumeMode"),
            "{text}"
        );
    }
}
