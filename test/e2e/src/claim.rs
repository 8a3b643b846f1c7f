//! A claim as a user writes it, and the class that it names.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The CSI driver and provisioner of the node.
pub const DRIVER: &str = "local.granary.dev";

/// A claim for a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its name in the case's namespace.
    pub name: &'static str,
    /// Bytes.
    pub size: u64,
    /// What pods get.
    pub mode: VolumeMode,
    /// Who may use it.
    pub access: AccessMode,
    /// The cluster's default class if absent.
    pub class: Option<String>,
    /// A claim whose content it is to start with.
    pub source: Option<&'static str>,
}

/// What pods get of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeMode {
    /// A directory.
    Filesystem,
    /// A block device.
    Block,
}

/// Who may use a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    /// Pods of one node.
    ReadWriteOnce,
    /// One pod.
    ReadWriteOncePod,
    /// Pods of all nodes, which cannot write.
    ReadOnlyMany,
    /// Pods of all nodes.
    ReadWriteMany,
}

impl VolumeMode {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Filesystem, Self::Block];

    /// As the API names it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Filesystem => "Filesystem",
            Self::Block => "Block",
        }
    }
}

impl AccessMode {
    /// As the API names it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ReadWriteOnce => "ReadWriteOnce",
            Self::ReadWriteOncePod => "ReadWriteOncePod",
            Self::ReadOnlyMany => "ReadOnlyMany",
            Self::ReadWriteMany => "ReadWriteMany",
        }
    }
}

impl Claim {
    /// A new volume of the default class with a file system, for one node.
    pub fn new(name: &'static str, size: u64) -> Self {
        let (mode, access) = (VolumeMode::Filesystem, AccessMode::ReadWriteOnce);
        Self { name, size, mode, access, class: None, source: None }
    }

    /// A new block volume of the default class, for one node.
    pub fn block(name: &'static str, size: u64) -> Self {
        Self { mode: VolumeMode::Block, ..Self::new(name, size) }
    }

    /// Of this class.
    #[must_use]
    pub fn of(self, class: &str) -> Self {
        Self { class: Some(class.to_owned()), ..self }
    }

    /// As the API takes it.
    pub(crate) fn object(&self) -> Result<PersistentVolumeClaim, serde_json::Error> {
        serde_json::from_value(json!({"metadata": {"name": self.name}, "spec": self.spec()}))
    }

    /// The specification alone, as templates of claims have it.
    pub fn spec(&self) -> Value {
        let source = self.source.map(|name| json!({"kind": "PersistentVolumeClaim", "name": name}));
        json!({
            "accessModes": [self.access.as_str()],
            "volumeMode": self.mode.as_str(),
            "storageClassName": self.class,
            "dataSource": source,
            "resources": {"requests": {"storage": self.size.to_string()}},
        })
    }
}

/// A storage class of the node's driver that belongs to one case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// The end of its name; the case makes it different from those of other cases.
    pub name: &'static str,
    /// Parameters of the driver.
    pub parameters: BTreeMap<&'static str, &'static str>,
    /// What mounts of the volumes should be given.
    pub mount_options: Vec<&'static str>,
    /// Whether volumes outlive their claims.
    pub retain: bool,
}

impl Class {
    /// As the API takes it.
    pub(crate) fn object(&self, name: &str, labels: &Value) -> Result<StorageClass, serde_json::Error> {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": labels},
            "provisioner": DRIVER,
            "parameters": self.parameters,
            "mountOptions": self.mount_options,
            "reclaimPolicy": if self.retain { "Retain" } else { "Delete" },
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowVolumeExpansion": true,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_asked_for_is_not_sent() {
        let spec = Claim::new("data", 4096).object().unwrap().spec.unwrap();
        assert_eq!((spec.storage_class_name, spec.data_source), (None, None));
        assert_eq!(spec.resources.unwrap().requests.unwrap()["storage"].0, "4096");
    }
}
