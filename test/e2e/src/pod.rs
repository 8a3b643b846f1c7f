//! A pod that makes one check.

use k8s_openapi::api::core::v1 as core;
use serde_json::json;
use workload::{Check, Request};

/// A pod with one container of the image that the node carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its name in the case's namespace.
    pub name: String,
    /// What it does.
    pub check: Check,
    /// What it has at [`Pod::PATH`].
    volume: Volume,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Volume {
    Claim(&'static str),
    /// A directory of the node, for a container that may ask for quotas.
    Node(&'static str),
}

impl Pod {
    /// Where the volume is in the container.
    pub const PATH: &str = "/data";

    /// A pod with a claim's volume.
    pub fn new(name: impl Into<String>, claim: &'static str, check: Check) -> Self {
        Self { name: name.into(), check, volume: Volume::Claim(claim) }
    }

    /// A pod that looks at a directory of the node.
    pub(crate) fn of_the_node(name: impl Into<String>, path: &'static str, check: Check) -> Self {
        Self { name: name.into(), check, volume: Volume::Node(path) }
    }

    /// As the API takes it.
    pub(crate) fn object(&self) -> Result<core::Pod, serde_json::Error> {
        let (volume, security) = match self.volume {
            Volume::Claim(name) => (json!({"name": "volume", "persistentVolumeClaim": {"claimName": name}}), json!({})),
            Volume::Node(path) => (
                json!({"name": "volume", "hostPath": {"path": path, "type": "Directory"}}),
                // quotactl_fd needs the capability, and a filter of system calls may not know it.
                json!({"capabilities": {"add": ["SYS_ADMIN"]}, "seccompProfile": {"type": "Unconfined"}}),
            ),
        };
        let request = Request { check: self.check.clone(), report: true };
        serde_json::from_value(json!({
            "metadata": {"name": self.name},
            "spec": {
                "restartPolicy": "Never",
                "containers": [{
                    "name": "workload",
                    "image": "granary.invalid/workload:1",
                    "imagePullPolicy": "Never",
                    "args": request.arguments(),
                    "securityContext": security,
                    "volumeMounts": [{"name": "volume", "mountPath": Self::PATH}],
                }],
                "volumes": [volume],
            },
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pod_that_looks_at_the_node_has_a_capability() {
        let check = Check::Inspect { path: Pod::PATH.into() };
        let capabilities = |pod: Pod| {
            let spec = pod.object().unwrap().spec.unwrap();
            spec.containers[0].security_context.as_ref().unwrap().capabilities.as_ref().and_then(|all| all.add.clone())
        };
        assert_eq!(capabilities(Pod::new("a", "data", check.clone())), None);
        let look = Pod::of_the_node("a", "/data/volumes", check);
        assert_eq!(capabilities(look), Some(vec!["SYS_ADMIN".to_owned()]));
    }
}
