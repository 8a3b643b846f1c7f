//! The objects of the demonstration.

use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod};
use kube::api::ObjectMeta;
use serde_json::{Value, json};
use std::fmt;
use units::Bytes;
use workload::{Check, Request};

pub(crate) const NAMESPACE: &str = "demo";
/// Port of the pods of the mesh.
pub(crate) const PORT: u16 = 8080;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DemoClaim {
    pub(crate) claim: String,
    pub(crate) pod: String,
    pub(crate) node: String,
    pub(crate) mode: Mode,
    pub(crate) capacity: Bytes,
}

/// `volumeMode`.
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

/// A claim of each mode for each node. Names of the first node have no number.
pub(crate) fn demo_claims(nodes: &[String]) -> Vec<DemoClaim> {
    let demo_claims = nodes.iter().enumerate().map(|(index, node)| {
        let number = if index == 0 { String::new() } else { format!("-{index}") };
        let demo_claim = |claim: &str, mode, mebibytes: u64| DemoClaim {
            claim: format!("{claim}{number}"),
            pod: format!("{claim}{number}-writer"),
            node: node.clone(),
            mode,
            capacity: Bytes::new(mebibytes << 20),
        };
        [demo_claim("notes", Mode::Filesystem, 64), demo_claim("disk", Mode::Block, 32)]
    });
    demo_claims.flatten().collect()
}

pub(crate) fn namespace() -> Namespace {
    Namespace {
        metadata: ObjectMeta { name: Some(NAMESPACE.to_owned()), ..ObjectMeta::default() },
        ..Namespace::default()
    }
}

pub(crate) fn claim(demo_claim: &DemoClaim) -> Result<PersistentVolumeClaim, serde_json::Error> {
    serde_json::from_value(json!({
        "metadata": {"name": demo_claim.claim},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "volumeMode": demo_claim.mode.to_string(),
            "resources": {"requests": {"storage": demo_claim.capacity.get().to_string()}},
        },
    }))
}

/// A pod that fills the volume and writes a note.
pub(crate) fn pod(demo_claim: &DemoClaim, text: &str) -> Result<Pod, serde_json::Error> {
    let (path, field, place) = match demo_claim.mode {
        Mode::Filesystem => ("/data", "volumeMounts", "mountPath"),
        Mode::Block => ("/dev/volume", "volumeDevices", "devicePath"),
    };
    let request = Request { check: Check::Demo { path: path.into(), text: text.to_owned() }, report: true };
    let mut pod = on(&demo_claim.node, &demo_claim.pod, &request);
    pod["spec"]["containers"][0][field] = json!([{"name": "volume", place: path}]);
    pod["spec"]["volumes"] = json!([{"name": "volume", "persistentVolumeClaim": {"claimName": demo_claim.claim}}]);
    serde_json::from_value(pod)
}

pub(crate) fn mesh_pod(node: &str, name: &str) -> Result<Pod, serde_json::Error> {
    let check = Check::Serve { port: PORT, farewell: None };
    serde_json::from_value(on(node, name, &Request { check, report: false }))
}

fn on(node: &str, name: &str, request: &Request) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "restartPolicy": "Never",
            // No pod asks the API server: kubelet has no token to request and to mount.
            "automountServiceAccountToken": false,
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
    fn each_node_has_a_claim_of_each_mode() {
        let demo_claims = demo_claims(&nodes());
        let rows: Vec<_> = demo_claims.iter().map(|it| (it.claim.as_str(), it.node.as_str(), it.mode)).collect();
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
    fn a_pod_runs_on_its_node() {
        let of = |pod: Pod| pod.spec.unwrap().node_selector.unwrap()["kubernetes.io/hostname"].clone();
        assert_eq!(of(pod(&demo_claims(&nodes())[2], "").unwrap()), "granary-1");
        let mesh_pod = mesh_pod("granary-1", "mesh-1").unwrap();
        assert_eq!(mesh_pod.spec.as_ref().unwrap().containers[0].args.as_deref().unwrap(), ["serve", "8080"]);
        assert_eq!(of(mesh_pod), "granary-1");
    }
}
