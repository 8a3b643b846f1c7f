//! The fields of a storage class. Pure.

use k8s_openapi::api::storage::v1::StorageClass;
use units::Bytes;
use volume::{Mode, ParameterError, VolumeMode};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameters {
    volume: volume::Parameters,
    pub(crate) reclaim: ReclaimPolicy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReclaimPolicy {
    Delete,
    Retain,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClassRejection {
    #[error("it has mountOptions, which this driver does not support; remove them")]
    MountOptions,
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    #[error("it has the reclaimPolicy {0}; use Delete or Retain")]
    Reclaim(String),
}

/// Whether the control plane selects the node, not the scheduler.
pub(crate) fn binds_immediately(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref().is_none_or(|mode| mode == "Immediate")
}

/// Checks all parameters, also those that do not apply to the mode of a claim.
pub(crate) fn parameters(class: &StorageClass) -> Result<Parameters, ClassRejection> {
    if class.mount_options.as_ref().is_some_and(|options| !options.is_empty()) {
        return Err(ClassRejection::MountOptions);
    }
    let reclaim = match class.reclaim_policy.as_deref() {
        None | Some("" | "Delete") => ReclaimPolicy::Delete,
        Some("Retain") => ReclaimPolicy::Retain,
        Some(other) => return Err(ClassRejection::Reclaim(other.to_owned())),
    };
    let volume = class.parameters.as_ref().map(volume::Parameters::parse).transpose()?.unwrap_or_default();
    Ok(Parameters { volume, reclaim })
}

impl Parameters {
    pub(crate) fn mode(&self, mode: VolumeMode, size: Bytes) -> Mode {
        self.volume.mode(mode, size)
    }
}

impl ReclaimPolicy {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Delete => "Delete",
            Self::Retain => "Retain",
        }
    }
}

impl ClassRejection {
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::MountOptions => "MountOptions",
            Self::Parameter(_) => "Parameter",
            Self::Reclaim(_) => "ReclaimPolicy",
        }
    }
}

#[cfg(test)]
mod tests {
    use volume::{Allocation, DRIVER_NAME};

    use super::*;

    fn class() -> StorageClass {
        StorageClass { provisioner: DRIVER_NAME.into(), ..StorageClass::default() }
    }

    fn with(name: &str, value: &str) -> StorageClass {
        StorageClass { parameters: Some([(name.to_owned(), value.to_owned())].into()), ..class() }
    }

    #[test]
    fn parameters_select_the_mode() {
        let thin = parameters(&with("blockAllocation", "thin")).unwrap();
        assert_eq!(thin.mode(VolumeMode::Block, Bytes::GIB), Mode::Block { allocation: Allocation::Thin });
        assert_eq!(parameters(&class()).unwrap().reclaim, ReclaimPolicy::Delete);
    }

    #[test]
    fn unsupported_fields_are_rejected() {
        let options = StorageClass { mount_options: Some(vec!["noatime".into()]), ..class() };
        assert_eq!(parameters(&options), Err(ClassRejection::MountOptions));
        let unknown = parameters(&with("csi.storage.k8s.io/fstype", "ext4")).unwrap_err();
        assert!(unknown.to_string().contains("csi.storage.k8s.io/fstype"), "{unknown}");
        let recycle = StorageClass { reclaim_policy: Some("Recycle".into()), ..class() };
        assert_eq!(parameters(&recycle), Err(ClassRejection::Reclaim("Recycle".into())));
        let retain = StorageClass { reclaim_policy: Some("Retain".into()), ..class() };
        assert_eq!(parameters(&retain).unwrap().reclaim, ReclaimPolicy::Retain);
    }
}
