//! A claim like in a user's manifest, and its storage class.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub const DRIVER: &str = "local.granary.dev";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub name: &'static str,
    pub size: u64,
    pub mode: VolumeMode,
    pub class: Option<String>,
    /// Name of the VolumeSnapshot that the volume is restored from.
    pub snapshot: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum VolumeMode {
    Filesystem,
    Block,
}

impl Claim {
    pub fn new(name: &'static str, size: u64) -> Self {
        Self { name, size, mode: VolumeMode::Filesystem, class: None, snapshot: None }
    }

    pub fn block(name: &'static str, size: u64) -> Self {
        Self { mode: VolumeMode::Block, ..Self::new(name, size) }
    }

    pub fn of(self, class: &str) -> Self {
        Self { class: Some(class.to_owned()), ..self }
    }

    pub fn restored_from(self, snapshot: &'static str) -> Self {
        Self { snapshot: Some(snapshot), ..self }
    }

    pub(crate) fn object(&self) -> Result<PersistentVolumeClaim, serde_json::Error> {
        serde_json::from_value(json!({"metadata": {"name": self.name}, "spec": self.spec()}))
    }

    /// The claim's specification alone, for volume claim templates.
    pub fn spec(&self) -> Value {
        let snapshot = |name| json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name});
        json!({
            "accessModes": ["ReadWriteOnce"],
            "dataSource": self.snapshot.map(snapshot),
            "volumeMode": self.mode,
            "storageClassName": self.class,
            "resources": {"requests": {"storage": self.size.to_string()}},
        })
    }
}

/// A storage class of the node's driver that belongs to one case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// Suffix of the name. The case adds a prefix that is unique in the cluster.
    pub name: &'static str,
    pub parameters: BTreeMap<&'static str, &'static str>,
}

impl Class {
    pub(crate) fn object(&self, name: &str, labels: &Value) -> Result<StorageClass, serde_json::Error> {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": labels},
            "provisioner": DRIVER,
            "parameters": self.parameters,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowVolumeExpansion": true,
        }))
    }
}
