//! Parameters of a storage class. Pure.

use k8s_openapi::api::storage::v1::StorageClass;
use units::{Bytes, Inodes};
use volume::{Allocation, Mode};

/// Class parameter: bytes of a filesystem volume per inode.
const BYTES_PER_INODE: &str = "bytesPerInode";
/// Class parameter: when the blocks of a block volume are allocated.
const BLOCK_ALLOCATION: &str = "blockAllocation";
/// Size of an XFS inode, and therefore the smallest value of `bytesPerInode`.
const INODE: u64 = 512;
const LEAST_INODES: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) bytes_per_inode: InodeRatio,
    pub(crate) allocation: Allocation,
    pub(crate) reclaim: ReclaimPolicy,
}

/// Bytes per inode; `None` is the default of quotas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InodeRatio(Option<u64>);

/// `spec.volumeMode` of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VolumeMode {
    Filesystem,
    Block,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReclaimPolicy {
    Delete,
    Retain,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClassRejection {
    #[error("it has mountOptions, which would not reach the container; remove them")]
    MountOptions,
    #[error(
        "it has the unknown parameter {name:?}; use {BYTES_PER_INODE} (filesystem volumes) or {BLOCK_ALLOCATION} (block \
         volumes)"
    )]
    Unknown { name: String },
    #[error("it has {BYTES_PER_INODE}={value:?}; use a whole number from {INODE} on")]
    InodeRatio { value: String },
    #[error(
        "it has {BLOCK_ALLOCATION}={value:?}; use thick (all blocks at once) or thin (each when it is first written)"
    )]
    Allocation { value: String },
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
    let mut found = Parameters { bytes_per_inode: InodeRatio::default(), allocation: Allocation::Thick, reclaim };
    for (name, value) in class.parameters.iter().flatten() {
        match name.as_str() {
            BYTES_PER_INODE => {
                let bytes = value.parse().ok().filter(|bytes| *bytes >= INODE);
                let bytes = bytes.ok_or_else(|| ClassRejection::InodeRatio { value: value.clone() })?;
                found.bytes_per_inode = InodeRatio(Some(bytes));
            }
            BLOCK_ALLOCATION => {
                found.allocation = match value.as_str() {
                    "thick" => Allocation::Thick,
                    "thin" => Allocation::Thin,
                    _ => return Err(ClassRejection::Allocation { value: value.clone() }),
                };
            }
            _ => return Err(ClassRejection::Unknown { name: name.clone() }),
        }
    }
    Ok(found)
}

impl Parameters {
    pub(crate) fn mode(&self, mode: VolumeMode, size: Bytes) -> Mode {
        match mode {
            VolumeMode::Filesystem => Mode::Filesystem { inodes: self.bytes_per_inode.inodes(size) },
            VolumeMode::Block => Mode::Block { allocation: self.allocation },
        }
    }
}

impl InodeRatio {
    pub(crate) fn inodes(self, size: Bytes) -> Inodes {
        match self.0 {
            Some(bytes) => Inodes::new((size.get() / bytes).max(LEAST_INODES)),
            None => fsquota::default_inodes(size),
        }
    }
}

impl VolumeMode {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Filesystem => "Filesystem",
            Self::Block => "Block",
        }
    }
}

impl From<Mode> for VolumeMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Filesystem { .. } => Self::Filesystem,
            Mode::Block { .. } | Mode::Snapshot { .. } => Self::Block,
        }
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
            Self::Unknown { .. } | Self::InodeRatio { .. } | Self::Allocation { .. } => "Parameter",
            Self::Reclaim(_) => "ReclaimPolicy",
        }
    }
}

#[cfg(test)]
mod tests {
    use volume::DRIVER_NAME;

    use super::*;

    fn class() -> StorageClass {
        StorageClass { provisioner: DRIVER_NAME.into(), ..StorageClass::default() }
    }

    fn with(parameters: &[(&str, &str)]) -> StorageClass {
        let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        StorageClass { parameters: Some(parameters.collect()), ..class() }
    }

    fn inodes(class: &StorageClass, size: Bytes) -> Inodes {
        match parameters(class).expect("a valid class").mode(VolumeMode::Filesystem, size) {
            Mode::Filesystem { inodes } => inodes,
            Mode::Block { .. } | Mode::Snapshot { .. } => unreachable!("the mode is Filesystem"),
        }
    }

    fn allocation(class: &StorageClass) -> Mode {
        parameters(class).expect("a valid class").mode(VolumeMode::Block, Bytes::GIB)
    }

    #[test]
    fn the_page_describes_every_parameter() {
        const PAGE: &str = include_str!("../../../../docs/operations/storage-classes.md");
        let (_, section) = PAGE.split_once("\n## Parameters\n").expect("the heading");
        for part in [
            format!("\n|---|---|---|---|\n| `{BYTES_PER_INODE}` | a whole number from {INODE} on |"),
            format!(" at least {LEAST_INODES} | 2048 |\n| `{BLOCK_ALLOCATION}` | `thick`, `thin` |"),
            " | `thick` |\n\n".to_owned(),
        ] {
            assert!(section.contains(&part), "{part:?} in {section}");
        }
        assert_eq!(inodes(&with(&[(BYTES_PER_INODE, "2048")]), Bytes::GIB), inodes(&class(), Bytes::GIB));
    }

    #[test]
    fn a_class_without_parameters_is_the_default() {
        assert_eq!(inodes(&class(), Bytes::GIB), Inodes::new(524_288));
        assert_eq!(allocation(&class()), Mode::Block { allocation: Allocation::Thick });
        assert_eq!(parameters(&class()).unwrap().reclaim, ReclaimPolicy::Delete);
    }

    #[test]
    fn a_class_sets_the_number_of_inodes() {
        let class = with(&[(BYTES_PER_INODE, "16384")]);
        assert_eq!(inodes(&class, Bytes::GIB), Inodes::new(65_536));
        assert_eq!(inodes(&class, Bytes::new(4096)), Inodes::new(64));
        for value in ["511", "0", "-1", "many", "", "1.5", "99999999999999999999"] {
            let rejected = parameters(&with(&[(BYTES_PER_INODE, value)])).expect_err(value);
            assert!(matches!(rejected, ClassRejection::InodeRatio { .. }), "{value}: {rejected}");
        }
    }

    #[test]
    fn a_class_sets_the_allocation_of_images() {
        let thin = with(&[(BLOCK_ALLOCATION, "thin")]);
        assert_eq!(allocation(&thin), Mode::Block { allocation: Allocation::Thin });
        assert_eq!(inodes(&thin, Bytes::GIB), Inodes::new(524_288), "no effect on filesystems");
        assert_eq!(
            allocation(&with(&[(BLOCK_ALLOCATION, "thick"), (BYTES_PER_INODE, "4096")])),
            Mode::Block { allocation: Allocation::Thick }
        );
        for value in ["Thin", "", "sparse"] {
            let rejected = parameters(&with(&[(BLOCK_ALLOCATION, value)])).expect_err(value);
            assert!(matches!(rejected, ClassRejection::Allocation { .. }), "{value}: {rejected}");
        }
    }

    #[test]
    fn unsupported_fields_are_rejected() {
        let options = StorageClass { mount_options: Some(vec!["noatime".into()]), ..class() };
        assert_eq!(parameters(&options), Err(ClassRejection::MountOptions));
        let unknown = parameters(&with(&[("csi.storage.k8s.io/fstype", "ext4")])).unwrap_err();
        assert!(unknown.to_string().contains("csi.storage.k8s.io/fstype"), "{unknown}");
        let recycle = StorageClass { reclaim_policy: Some("Recycle".into()), ..class() };
        assert_eq!(parameters(&recycle), Err(ClassRejection::Reclaim("Recycle".into())));
        let retain = StorageClass { reclaim_policy: Some("Retain".into()), ..class() };
        assert_eq!(parameters(&retain).unwrap().reclaim, ReclaimPolicy::Retain);
    }
}
