//! Objects of the demonstration.

use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod};
use kube::api::ObjectMeta;
use serde_json::json;
use std::fmt;
use std::path::PathBuf;
use units::Bytes;
use workload::{Check, Request};

pub(crate) const NAMESPACE: &str = "demo";
/// Port on which the pods serve requests.
pub(crate) const PORT: u16 = 8080;

/// The pod of a node, with a claim of each mode. One pod has both claims, because starting a pod takes longer than the
/// checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DemoPod {
    pub(crate) name: String,
    pub(crate) node: String,
    pub(crate) claims: [DemoClaim; 2],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DemoClaim {
    pub(crate) claim: String,
    pub(crate) node: String,
    pub(crate) mode: Mode,
    pub(crate) capacity: Bytes,
}

/// `volumeMode` of a claim.
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

impl DemoClaim {
    /// Path of the volume in the container.
    pub(crate) fn path(&self) -> PathBuf {
        let directory = match self.mode {
            Mode::Filesystem => "/",
            Mode::Block => "/dev",
        };
        PathBuf::from(directory).join(&self.claim)
    }
}

/// Returns a pod for each node. Names of the first node's objects have no number.
pub(crate) fn demo_pods(nodes: &[String]) -> Vec<DemoPod> {
    let demo_pods = nodes.iter().enumerate().map(|(index, node)| {
        let number = if index == 0 { String::new() } else { format!("-{index}") };
        let demo_claim = |claim: &str, mode, mebibytes: u64| DemoClaim {
            claim: format!("{claim}{number}"),
            node: node.clone(),
            mode,
            capacity: Bytes::new(mebibytes << 20),
        };
        let claims = [demo_claim("notes", Mode::Filesystem, 64), demo_claim("disk", Mode::Block, 32)];
        DemoPod { name: format!("writer{number}"), node: node.clone(), claims }
    });
    demo_pods.collect()
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

/// A pod that serves requests to fill its volumes.
pub(crate) fn pod(demo_pod: &DemoPod) -> Result<Pod, serde_json::Error> {
    // If the pod ends early, its status contains the error.
    let request = Request { check: Check::Serve { port: PORT, farewell: None }, report: true };
    let claims = || demo_pod.claims.iter();
    let in_container = |mode: Mode, place: &str| -> Vec<_> {
        let claims = claims().filter(|demo_claim| demo_claim.mode == mode);
        claims.map(|demo_claim| json!({"name": demo_claim.claim, place: demo_claim.path()})).collect()
    };
    let volumes =
        claims().map(|DemoClaim { claim, .. }| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}));
    serde_json::from_value(json!({
        "metadata": {"name": demo_pod.name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": demo_pod.node},
            "restartPolicy": "Never",
            // No pod calls the API server: without a token, the kubelet has nothing to request and to mount.
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "workload",
                "image": "granary.invalid/workload:1",
                "imagePullPolicy": "Never",
                "args": request.arguments(),
                "volumeMounts": in_container(Mode::Filesystem, "mountPath"),
                "volumeDevices": in_container(Mode::Block, "devicePath"),
            }],
            "volumes": volumes.collect::<Vec<_>>(),
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes() -> Vec<String> {
        vec!["granary".to_owned(), "granary-1".to_owned()]
    }

    #[test]
    fn each_node_has_a_claim_of_each_mode() {
        let demo_pods = demo_pods(&nodes());
        let demo_claims = demo_pods.iter().flat_map(|demo_pod| &demo_pod.claims);
        let rows: Vec<_> = demo_claims.map(|it| (it.claim.as_str(), it.node.as_str(), it.mode)).collect();
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
    fn a_pod_runs_on_its_node_with_its_claims() {
        let demo_pod = demo_pods(&nodes()).swap_remove(1);
        let pod = pod(&demo_pod).unwrap();
        assert_eq!(pod.metadata.name.as_deref(), Some("writer-1"));
        let spec = pod.spec.unwrap();
        assert_eq!(spec.node_selector.unwrap()["kubernetes.io/hostname"], "granary-1");
        let container = &spec.containers[0];
        assert_eq!(container.args.as_deref().unwrap(), ["serve", "8080", "--report"]);
        let mounts = container.volume_mounts.iter().flatten().map(|mount| (&*mount.name, &*mount.mount_path));
        assert_eq!(mounts.collect::<Vec<_>>(), [("notes-1", "/notes-1")]);
        let devices = container.volume_devices.iter().flatten().map(|device| (&*device.name, &*device.device_path));
        assert_eq!(devices.collect::<Vec<_>>(), [("disk-1", "/dev/disk-1")]);
        let volumes = spec.volumes.iter().flatten();
        let claims =
            volumes.filter_map(|volume| Some((&*volume.name, &*volume.persistent_volume_claim.as_ref()?.claim_name)));
        assert_eq!(claims.collect::<Vec<_>>(), [("notes-1", "notes-1"), ("disk-1", "disk-1")]);
    }
}
