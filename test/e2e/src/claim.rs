//! A claim as a user writes it.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::json;

/// A claim for a filesystem volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its name in the case's namespace.
    pub name: &'static str,
    /// Bytes.
    pub size: u64,
    /// Who may use it.
    pub access: AccessMode,
    /// The cluster's default class if absent.
    pub class: Option<&'static str>,
    /// A claim whose content it is to start with.
    pub source: Option<&'static str>,
}

/// Who may use a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    /// Pods of one node.
    ReadWriteOnce,
    /// Pods of all nodes, which cannot write.
    ReadOnlyMany,
}

impl Claim {
    /// A new volume of the default class, for one node.
    pub fn new(name: &'static str, size: u64) -> Self {
        Self { name, size, access: AccessMode::ReadWriteOnce, class: None, source: None }
    }

    /// As the API takes it.
    pub(crate) fn object(&self) -> Result<PersistentVolumeClaim, serde_json::Error> {
        let access = match self.access {
            AccessMode::ReadWriteOnce => "ReadWriteOnce",
            AccessMode::ReadOnlyMany => "ReadOnlyMany",
        };
        let source = self.source.map(|name| json!({"kind": "PersistentVolumeClaim", "name": name}));
        serde_json::from_value(json!({
            "metadata": {"name": self.name},
            "spec": {
                "accessModes": [access],
                "storageClassName": self.class,
                "dataSource": source,
                "resources": {"requests": {"storage": self.size.to_string()}},
            },
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
