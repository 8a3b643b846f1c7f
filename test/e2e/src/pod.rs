//! A pod that checks its volumes.

use crate::{Claim, VolumeMode};
use k8s_openapi::api::core::v1 as core;
use serde_json::{Value, json};
use std::path::PathBuf;
use workload::{Check, Request};

pub(crate) const PORT: u16 = 8080;

/// Port of the container of [`Pod::webhook`].
pub const WEBHOOK_PORT: u16 = 8443;

/// A pod with one container from the image that the node contains, or two of them ([`Pod::webhook`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    pub name: String,
    pub check: Check,
    volumes: Vec<Volume>,
    user: Option<u32>,
    group: Option<u32>,
    restarts: bool,
    of_the_node: bool,
    /// `dnsPolicy` and `dnsConfig`.
    dns: (Option<&'static str>, Value),
    /// Name of the required node. If absent, the scheduler selects a node.
    node: Option<String>,
    /// Name of a pod whose node must be a different one.
    other: Option<String>,
    /// Image in a registry, and the Secret to pull it with. If absent, the pod uses the node's own image.
    pulled: Option<(String, Option<&'static str>)>,
    /// Secret with the certificate of the webhook.
    webhook: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Volume {
    name: String,
    source: Value,
    place: Place,
    sub_path: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Directory(String),
    Device(String),
}

impl Volume {
    /// Directory of a claim, at `/NAME`.
    pub fn claim(claim: &str) -> Self {
        let source = json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
        Self::new(claim, source, Place::Directory(format!("/{claim}")))
    }

    /// Block device of a claim, at `/dev/NAME`.
    pub fn device(claim: &str) -> Self {
        Self { place: Place::Device(format!("/dev/{claim}")), ..Self::claim(claim) }
    }

    /// The volume of a claim, where [`Volume::claim`] or [`Volume::device`] mounts it.
    pub fn of(claim: &Claim) -> Self {
        match claim.mode {
            VolumeMode::Filesystem => Self::claim(claim.name),
            VolumeMode::Block => Self::device(claim.name),
        }
    }

    pub fn read_only(mut self) -> Self {
        self.source["persistentVolumeClaim"]["readOnly"] = true.into();
        self
    }

    pub fn sub_path(mut self, path: &'static str) -> Self {
        self.sub_path = Some(path);
        self
    }

    /// Mounts the directory at another path. A pod may mount one claim at several paths.
    pub fn at(self, path: &str) -> Self {
        Self { place: Place::Directory(path.to_owned()), ..self }
    }

    /// Empty directory of the pod on the node, at `/NAME`.
    pub fn empty_directory(name: &str) -> Self {
        Self::new(name, json!({"name": name, "emptyDir": {}}), Place::Directory(format!("/{name}")))
    }

    pub fn secret(name: &str) -> Self {
        let source = json!({"name": name, "secret": {"secretName": name}});
        Self::new(name, source, Place::Directory(format!("/{name}")))
    }

    pub(crate) fn node(name: &str, path: &str) -> Self {
        let source = json!({"name": name, "hostPath": {"path": path, "type": "Directory"}});
        Self::new(name, source, Place::Directory(format!("/{name}")))
    }

    fn new(name: &str, source: Value, place: Place) -> Self {
        Self { name: name.to_owned(), source, place, sub_path: None }
    }
}

impl Pod {
    /// Path of the claim `data` in a container.
    pub const PATH: &str = "/data";
    /// Path of the claim `data` in a container if it is a block volume.
    pub const DEVICE: &str = "/dev/data";

    /// A pod without volumes that runs until it is deleted and makes the checks that [`crate::Server`] requests.
    pub fn server(name: impl Into<String>) -> Self {
        let check = Check::Serve { port: PORT, farewell: None };
        let (user, group, restarts, of_the_node, node, other) = (None, None, false, false, None, None);
        let (name, volumes, dns, pulled, webhook) = (name.into(), Vec::new(), (None, Value::Null), None, None);
        Self { name, check, volumes, user, group, restarts, of_the_node, dns, node, other, pulled, webhook }
    }

    /// Adds a container that denies all requests of the API server, with the certificate of this Secret. A pod of its
    /// own would take longer to start.
    pub fn webhook(self, secret: &str) -> Self {
        Self { webhook: Some(secret.to_owned()), ..self.with(Volume::secret(secret)) }
    }

    /// The pod of [`Pod::server`] writes [`workload::serve::FAREWELL`] to this file when it is terminated.
    pub fn farewell(self, file: impl Into<PathBuf>) -> Self {
        Self { check: Check::Serve { port: PORT, farewell: Some(file.into()) }, ..self }
    }

    pub fn on(self, node: &str) -> Self {
        Self { node: Some(node.to_owned()), ..self }
    }

    /// Schedules the pod on another node than that of the pod `other` of the same namespace.
    pub fn away_from(self, other: &str) -> Self {
        Self { other: Some(other.to_owned()), ..self }
    }

    /// Sets `dnsPolicy` and `dnsConfig` (`null` for none).
    pub fn dns(self, policy: &'static str, config: Value) -> Self {
        Self { dns: (Some(policy), config), ..self }
    }

    /// Uses an image of a registry, and this Secret to pull it.
    pub fn image(self, image: impl Into<String>, secret: Option<&'static str>) -> Self {
        Self { pulled: Some((image.into(), secret)), ..self }
    }

    pub fn with(mut self, volume: Volume) -> Self {
        self.volumes.push(volume);
        self
    }

    /// Runs the pod as this user, with volumes of this group (`fsGroup`).
    pub fn user(self, user: u32, group: u32) -> Self {
        Self { user: Some(user), group: Some(group), ..self }
    }

    /// Restarts the pod whenever it ends, and after a boot.
    pub fn restarting(self) -> Self {
        Self { restarts: true, ..self }
    }

    /// Gives the pod the node's processes and network, and the privileges to query quotas.
    pub(crate) fn of_the_node(self) -> Self {
        Self { of_the_node: true, restarts: true, ..self }
    }

    /// The API object of the pod, with its name as the label `pod`.
    pub(crate) fn object(&self) -> Result<core::Pod, serde_json::Error> {
        serde_json::from_value(json!({
            "metadata": {"name": self.name, "labels": {"pod": self.name}},
            "spec": self.spec(),
        }))
    }

    pub fn spec(&self) -> Value {
        let request = Request { check: self.check.clone(), report: false };
        let mut mounts = Vec::new();
        let mut devices = Vec::new();
        let mut sources: Vec<&Value> = Vec::new();
        for volume in &self.volumes {
            if !sources.contains(&&volume.source) {
                sources.push(&volume.source);
            }
            match &volume.place {
                Place::Directory(path) => {
                    mounts.push(json!({"name": volume.name, "mountPath": path, "subPath": volume.sub_path}));
                }
                Place::Device(path) => devices.push(json!({"name": volume.name, "devicePath": path})),
            }
        }
        let container = if self.of_the_node {
            // quotactl_fd needs SYS_ADMIN, and a seccomp filter may not support the call. /proc/1/ns/net needs
            // SYS_PTRACE.
            json!({"capabilities": {"add": ["SYS_ADMIN", "SYS_PTRACE"]}, "seccompProfile": {"type": "Unconfined"}})
        } else {
            json!({})
        };
        let (image, secret) = match &self.pulled {
            Some((image, secret)) => (image.as_str(), *secret),
            None => ("granary.invalid/workload:1", None),
        };
        let (dns_policy, dns_config) = &self.dns;
        let away_from = |other: &String| {
            let labels = json!({"matchLabels": {"pod": other}});
            let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": labels});
            json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}})
        };
        let mut containers = vec![json!({
            "name": "workload",
            "image": image,
            "imagePullPolicy": if self.pulled.is_some() { "Always" } else { "Never" },
            "args": request.arguments(),
            "securityContext": container,
            "volumeMounts": mounts,
            "volumeDevices": devices,
        })];
        if let Some(secret) = &self.webhook {
            let check = Check::Webhook { port: WEBHOOK_PORT, path: format!("/{secret}").into() };
            let mut webhook = containers[0].clone();
            webhook["name"] = "webhook".into();
            webhook["args"] = json!(Request { check, report: false }.arguments());
            containers.push(webhook);
        }
        json!({
            "dnsPolicy": dns_policy,
            "dnsConfig": dns_config,
            "imagePullSecrets": secret.map(|name| json!([{"name": name}])),
            "restartPolicy": if self.restarts { "Always" } else { "Never" },
            // The pods send no requests to the API server, so the kubelet need not request and mount a token.
            "automountServiceAccountToken": false,
            "affinity": self.other.as_ref().map(away_from),
            "nodeSelector": self.node.as_ref().map(|node| json!({"kubernetes.io/hostname": node})),
            "hostPID": self.of_the_node,
            "hostNetwork": self.of_the_node,
            "securityContext": {
                "runAsUser": self.user,
                "runAsNonRoot": self.user.map(|user| user != 0),
                "fsGroup": self.group,
            },
            "containers": containers,
            "volumes": sources,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pod_that_looks_at_the_node_has_capabilities() {
        let capabilities = |pod: &Pod| {
            let spec = pod.object().unwrap().spec.unwrap();
            spec.containers[0].security_context.as_ref().unwrap().capabilities.as_ref().and_then(|all| all.add.clone())
        };
        let tenant = Pod::server("a").with(Volume::claim("data"));
        assert_eq!(capabilities(&tenant), None);
        assert_eq!(capabilities(&tenant.of_the_node()), Some(["SYS_ADMIN", "SYS_PTRACE"].map(str::to_owned).to_vec()));
    }

    #[test]
    fn a_webhook_is_a_second_container_with_the_secret() {
        let spec = Pod::server("a").webhook("certificate").object().unwrap().spec.unwrap();
        let [server, webhook] = &*spec.containers else { panic!("{:?}", spec.containers) };
        assert_eq!(server.args.as_deref().unwrap_or_default()[0], "serve");
        assert_eq!(webhook.args.as_deref().unwrap_or_default(), ["webhook", "8443", "/certificate"]);
        let mounts = webhook.volume_mounts.as_deref().unwrap_or_default();
        assert!(mounts.iter().any(|mount| mount.mount_path == "/certificate"), "{mounts:?}");
    }
}
