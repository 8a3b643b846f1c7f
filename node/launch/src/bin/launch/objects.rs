//! The objects of the demonstration.

use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod};
use kube::api::ObjectMeta;
use serde_json::{Value, json};
use std::fmt;
use units::Bytes;
use workload::{Check, Request};

pub(crate) const NAMESPACE: &str = "demo";
/// Where the pods of the mesh answer.
pub(crate) const PORT: u16 = 8080;

/// A claim and the pod that uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) claim: String,
    pub(crate) pod: String,
    /// Where the pod runs, and with it the volume is.
    pub(crate) node: String,
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

/// A member of each mode for every node. The names of the first node's have no number.
pub(crate) fn members(nodes: &[String]) -> Vec<Member> {
    let members = nodes.iter().enumerate().map(|(index, node)| {
        let number = if index == 0 { String::new() } else { format!("-{index}") };
        let member = |claim: &str, mode, mebibytes: u64| Member {
            claim: format!("{claim}{number}"),
            pod: format!("{claim}{number}-writer"),
            node: node.clone(),
            mode,
            capacity: Bytes::new(mebibytes << 20),
        };
        [member("notes", Mode::Filesystem, 64), member("disk", Mode::Block, 32)]
    });
    members.flatten().collect()
}

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
    let mut pod = on(&member.node, &member.pod, &request);
    pod["spec"]["containers"][0][field] = json!([{"name": "volume", place: path}]);
    pod["spec"]["volumes"] = json!([{"name": "volume", "persistentVolumeClaim": {"claimName": member.claim}}]);
    serde_json::from_value(pod)
}

/// A pod that answers, and asks others when it is told to.
pub(crate) fn neighbour(node: &str, name: &str) -> Result<Pod, serde_json::Error> {
    let check = Check::Serve { port: PORT, farewell: None };
    serde_json::from_value(on(node, name, &Request { check, report: false }))
}

fn on(node: &str, name: &str, request: &Request) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "restartPolicy": "Never",
            "containers": [{
                "name": "workload",
                "image": "granary.invalid/workload:1",
                "imagePullPolicy": "Never",
                "args": request.arguments(),
            }],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes() -> Vec<String> {
        vec!["granary".to_owned(), "granary-1".to_owned()]
    }

    #[test]
    fn every_node_has_a_claim_of_each_mode() {
        let members = members(&nodes());
        let rows: Vec<_> = members.iter().map(|it| (it.claim.as_str(), it.node.as_str(), it.mode)).collect();
        assert_eq!(
            rows,
            [
                ("notes", "granary", Mode::Filesystem),
                ("disk", "granary", Mode::Block),
                ("notes-1", "granary-1", Mode::Filesystem),
                ("disk-1", "granary-1", Mode::Block),
            ]
        );
    }

    #[test]
    fn a_claim_asks_for_its_mode_and_its_size() {
        let spec = claim(&members(&nodes())[1]).unwrap().spec.unwrap();
        assert_eq!(spec.volume_mode.as_deref(), Some("Block"));
        assert_eq!(spec.resources.unwrap().requests.unwrap()["storage"].0, "33554432");
    }

    #[test]
    fn the_pod_is_given_the_volume_where_it_looks_for_it() {
        let members = members(&nodes());
        let container = |member| pod(member, "a note").unwrap().spec.unwrap().containers.swap_remove(0);
        let notes = container(&members[0]);
        assert_eq!(notes.args.unwrap(), ["demo", "/data", "a note", "--report"]);
        assert_eq!(notes.volume_mounts.unwrap()[0].mount_path, "/data");
        let disk = container(&members[1]);
        assert_eq!(disk.args.unwrap(), ["demo", "/dev/volume", "a note", "--report"]);
        assert_eq!(disk.volume_devices.unwrap()[0].device_path, "/dev/volume");
        assert_eq!(disk.volume_mounts, None);
    }

    #[test]
    fn a_pod_runs_on_the_node_that_it_is_for() {
        let of = |pod: Pod| pod.spec.unwrap().node_selector.unwrap()["kubernetes.io/hostname"].clone();
        assert_eq!(of(pod(&members(&nodes())[2], "").unwrap()), "granary-1");
        let neighbour = neighbour("granary-1", "mesh-1").unwrap();
        assert_eq!(neighbour.spec.as_ref().unwrap().containers[0].args.as_deref().unwrap(), ["serve", "8080"]);
        assert_eq!(of(neighbour), "granary-1");
    }
}
