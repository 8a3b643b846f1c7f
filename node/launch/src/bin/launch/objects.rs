//! The objects of the demonstration.

use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod};
use kube::api::ObjectMeta;
use serde_json::json;
use std::fmt;
use units::Bytes;
use workload::{Check, Request};

pub(crate) const NAMESPACE: &str = "demo";

/// A claim and the pod that uses it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) claim: &'static str,
    pub(crate) pod: &'static str,
    pub(crate) mode: Mode,
    /// What is asked for; a volume is of exactly this size.
    pub(crate) capacity: Bytes,
}

/// A claim's `volumeMode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Filesystem,
    Block,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Filesystem => "Filesystem",
            Self::Block => "Block",
        })
    }
}

pub(crate) const MEMBERS: [Member; 2] = [
    Member { claim: "notes", pod: "notes-writer", mode: Mode::Filesystem, capacity: Bytes::new(64 << 20) },
    Member { claim: "disk", pod: "disk-writer", mode: Mode::Block, capacity: Bytes::new(32 << 20) },
];

pub(crate) fn namespace() -> Namespace {
    Namespace {
        metadata: ObjectMeta { name: Some(NAMESPACE.to_owned()), ..ObjectMeta::default() },
        ..Namespace::default()
    }
}

pub(crate) fn claim(member: &Member) -> Result<PersistentVolumeClaim, serde_json::Error> {
    serde_json::from_value(json!({
        "metadata": {"name": member.claim},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "volumeMode": member.mode.to_string(),
            "resources": {"requests": {"storage": member.capacity.get().to_string()}},
        },
    }))
}

/// A pod that fills the volume, and leaves a note in it.
pub(crate) fn pod(member: &Member, text: &str) -> Result<Pod, serde_json::Error> {
    let (path, field, place) = match member.mode {
        Mode::Filesystem => ("/data", "volumeMounts", "mountPath"),
        Mode::Block => ("/dev/volume", "volumeDevices", "devicePath"),
    };
    let request = Request { check: Check::Demo { path: path.into(), text: text.to_owned() }, report: true };
    serde_json::from_value(json!({
        "metadata": {"name": member.pod},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": "workload",
                "image": "granary.invalid/workload:1",
                "imagePullPolicy": "Never",
                "args": request.arguments(),
                field: [{"name": "volume", place: path}],
            }],
            "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": member.claim}}],
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_asks_for_its_mode_and_its_size() {
        let spec = claim(&MEMBERS[1]).unwrap().spec.unwrap();
        assert_eq!(spec.volume_mode.as_deref(), Some("Block"));
        assert_eq!(spec.resources.unwrap().requests.unwrap()["storage"].0, "33554432");
    }

    #[test]
    fn the_pod_is_given_the_volume_where_it_looks_for_it() {
        let container = |member| pod(member, "a note").unwrap().spec.unwrap().containers.swap_remove(0);
        let notes = container(&MEMBERS[0]);
        assert_eq!(notes.args.unwrap(), ["demo", "/data", "a note", "--report"]);
        assert_eq!(notes.volume_mounts.unwrap()[0].mount_path, "/data");
        let disk = container(&MEMBERS[1]);
        assert_eq!(disk.args.unwrap(), ["demo", "/dev/volume", "a note", "--report"]);
        assert_eq!(disk.volume_devices.unwrap()[0].device_path, "/dev/volume");
        assert_eq!(disk.volume_mounts, None);
    }
}
