//! The source of a claim whose volume is a clone, or is restored from a snapshot. Pure.

use std::fmt;

use cluster::DRIVER_NAME;
use cluster::claim::is_object_name;
use cluster::snapshot::{self, MANAGED_BY};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::Value;

/// Source of a new volume, by its name in the claim's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source<'a> {
    Claim(&'a str),
    Snapshot(&'a str),
}

impl fmt::Display for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(name) => write!(f, "claim {name}"),
            Self::Snapshot(name) => write!(f, "snapshot {name}"),
        }
    }
}

/// The source of a claim. The API server copies `dataSourceRef` into `dataSource`, unless it names a namespace. The API
/// server does not check the name, so names that no object can have are ignored here, and the node reports them.
pub(crate) fn source(claim: &PersistentVolumeClaim) -> Option<Source<'_>> {
    let source = claim.spec.as_ref()?.data_source.as_ref().filter(|source| is_object_name(&source.name))?;
    match (source.api_group.as_deref().unwrap_or_default(), source.kind.as_str()) {
        ("", CLAIM) => Some(Source::Claim(&source.name)),
        (snapshot::GROUP, snapshot::SNAPSHOT) => Some(Source::Snapshot(&source.name)),
        _ => None,
    }
}

pub(crate) const CLAIM: &str = "PersistentVolumeClaim";

pub(crate) fn content_of(snapshot: &DynamicObject) -> Option<&str> {
    let name = snapshot.data.pointer("/status/boundVolumeSnapshotContentName").and_then(Value::as_str);
    name.filter(|name| is_object_name(name))
}

/// The node that serves a content of Granary's driver for this snapshot.
pub(crate) fn node_of(content: &DynamicObject, snapshot: &DynamicObject) -> Option<String> {
    let field = |path| content.data.pointer(path).and_then(Value::as_str);
    let is_of = snapshot.uid().is_some() && field("/spec/volumeSnapshotRef/uid") == snapshot.uid().as_deref();
    let node = content.labels().get(MANAGED_BY)?;
    (is_of && field("/spec/driver") == Some(DRIVER_NAME)).then(|| node.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_and_snapshots_are_sources() {
        let claim = |source: Value| -> PersistentVolumeClaim {
            serde_json::from_value(json!({"spec": {"dataSource": source}})).unwrap()
        };
        let named = |group: Value, kind: &str| claim(json!({"apiGroup": group, "kind": kind, "name": "data"}));
        assert_eq!(source(&named(Value::Null, CLAIM)), Some(Source::Claim("data")));
        assert_eq!(source(&named("".into(), CLAIM)), Some(Source::Claim("data")));
        assert_eq!(source(&named("example.com".into(), CLAIM)), None);
        let snapshot = named("snapshot.storage.k8s.io".into(), "VolumeSnapshot");
        assert_eq!(source(&snapshot), Some(Source::Snapshot("data")));
        assert_eq!(source(&named("example.com".into(), "VolumeSnapshot")), None);
        assert_eq!(source(&claim(Value::Null)), None);
        assert_eq!(source(&claim(json!({"kind": CLAIM, "name": "../data"}))), None);
    }

    #[test]
    fn a_content_is_on_its_node_if_it_names_the_snapshot() {
        let snapshot: DynamicObject = serde_json::from_value(json!({
            "metadata": {"uid": "s"}, "status": {"boundVolumeSnapshotContentName": "content"},
        }))
        .unwrap();
        assert_eq!(content_of(&snapshot), Some("content"));
        let path = json!({"metadata": {}, "status": {"boundVolumeSnapshotContentName": "../content"}});
        assert_eq!(content_of(&serde_json::from_value(path).unwrap()), None);
        let content = |driver: &str, uid: &str, labels: Value| -> DynamicObject {
            let spec = json!({"driver": driver, "volumeSnapshotRef": {"uid": uid}});
            serde_json::from_value(json!({"metadata": {"labels": labels}, "spec": spec})).unwrap()
        };
        let label = json!({MANAGED_BY: "one"});
        assert_eq!(node_of(&content(DRIVER_NAME, "s", label.clone()), &snapshot).as_deref(), Some("one"));
        assert_eq!(node_of(&content(DRIVER_NAME, "other", label.clone()), &snapshot), None);
        assert_eq!(node_of(&content("example.invalid", "s", label), &snapshot), None);
        assert_eq!(node_of(&content(DRIVER_NAME, "s", json!({})), &snapshot), None);
    }
}
