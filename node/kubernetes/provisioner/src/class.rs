//! What a storage class asks for. Pure.

use k8s_openapi::api::storage::v1::StorageClass;
use units::{Bytes, Inodes};
use volume::{Allocation, Mode};

/// Class parameter: how many bytes a filesystem volume has for each file it may hold.
const BYTES_PER_INODE: &str = "bytesPerInode";
/// Class parameter: when a block volume gets its blocks.
const BLOCK_ALLOCATION: &str = "blockAllocation";
/// One inode of XFS, and so the least that makes sense.
const INODE: u64 = 512;
/// A volume of any size can hold this many files.
const LEAST_INODES: u64 = 64;

/// What all claims of a class have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) bytes_per_inode: InodeRatio,
    pub(crate) allocation: Allocation,
    pub(crate) reclaim: ReclaimPolicy,
}

/// How many bytes come with one file.
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

/// Why no claim of the class can be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("it has mountOptions; they would not reach the container, leave them out")]
    MountOptions,
    #[error(
        "it has the unknown parameter {name:?}; there are {BYTES_PER_INODE} (filesystem volumes) and {BLOCK_ALLOCATION} \
         (block volumes)"
    )]
    Unknown { name: String },
    #[error("it has {BYTES_PER_INODE}={value:?}; it must be a whole number from {INODE} on")]
    InodeRatio { value: String },
    #[error("it has {BLOCK_ALLOCATION}={value:?}; use thick (all blocks at once) or thin (each when it is written)")]
    Allocation { value: String },
    #[error("it has the reclaimPolicy {0}; use Delete or Retain")]
    Reclaim(String),
}

/// Reads the class. Parameters of the mode that a claim does not have are checked and then of no use to it.
pub(crate) fn parameters(class: &StorageClass) -> Result<Parameters, Refusal> {
    if class.mount_options.as_ref().is_some_and(|options| !options.is_empty()) {
        return Err(Refusal::MountOptions);
    }
    let reclaim = match class.reclaim_policy.as_deref() {
        None | Some("" | "Delete") => ReclaimPolicy::Delete,
        Some("Retain") => ReclaimPolicy::Retain,
        Some(other) => return Err(Refusal::Reclaim(other.to_owned())),
    };
    let mut found = Parameters { bytes_per_inode: InodeRatio::default(), allocation: Allocation::Thick, reclaim };
    for (name, value) in class.parameters.iter().flatten() {
        match name.as_str() {
            BYTES_PER_INODE => {
                let bytes = value.parse().ok().filter(|bytes| *bytes >= INODE);
                let bytes = bytes.ok_or_else(|| Refusal::InodeRatio { value: value.clone() })?;
                found.bytes_per_inode = InodeRatio(Some(bytes));
            }
            BLOCK_ALLOCATION => {
                found.allocation = match value.as_str() {
                    "thick" => Allocation::Thick,
                    "thin" => Allocation::Thin,
                    _ => return Err(Refusal::Allocation { value: value.clone() }),
                };
            }
            _ => return Err(Refusal::Unknown { name: name.clone() }),
        }
    }
    Ok(found)
}

impl Parameters {
    /// What a volume of this size is made as.
    pub(crate) fn mode(&self, mode: VolumeMode, size: Bytes) -> Mode {
        match mode {
            VolumeMode::Filesystem => Mode::Filesystem { inodes: self.bytes_per_inode.inodes(size) },
            VolumeMode::Block => Mode::Block { allocation: self.allocation },
        }
    }
}

impl InodeRatio {
    /// How many files a volume of this size may hold.
    pub(crate) fn inodes(self, size: Bytes) -> Inodes {
        match self.0 {
            Some(bytes) => Inodes::new((size.get() / bytes).max(LEAST_INODES)),
            None => fsquota::default_inodes(size),
        }
    }
}

impl VolumeMode {
    /// As it stands in claims and PVs.
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
            Mode::Block { .. } => Self::Block,
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

impl Refusal {
    /// Events of one object are told apart by this, not by their text.
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
    use crate::page::{code, rows};

    fn class() -> StorageClass {
        StorageClass { provisioner: DRIVER_NAME.into(), ..StorageClass::default() }
    }

    fn with(parameters: &[(&str, &str)]) -> StorageClass {
        let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        StorageClass { parameters: Some(parameters.collect()), ..class() }
    }

    fn inodes(class: &StorageClass, size: Bytes) -> Inodes {
        match parameters(class).expect("the class is understood").mode(VolumeMode::Filesystem, size) {
            Mode::Filesystem { inodes } => inodes,
            Mode::Block { .. } => unreachable!("a filesystem was asked for"),
        }
    }

    fn allocation(class: &StorageClass) -> Mode {
        parameters(class).expect("the class is understood").mode(VolumeMode::Block, Bytes::GIB)
    }

    #[test]
    fn the_page_has_every_parameter_with_its_values_and_its_default() {
        let rows = rows(include_str!("../../../../docs/operations/storage-classes.md"), "Parameters");
        let described: Vec<&str> = rows.iter().flat_map(|row| code(row[0])).collect();
        assert_eq!(described, [BYTES_PER_INODE, BLOCK_ALLOCATION]);

        let [_, ratios, of_files, ratio] = rows[0][..] else { panic!("{rows:?}") };
        assert!(ratios.ends_with(&format!("from {INODE} on")), "{ratios}");
        assert!(of_files.ends_with(&format!("at least {LEAST_INODES}")), "{of_files}");
        assert_eq!(inodes(&with(&[(BYTES_PER_INODE, ratio)]), Bytes::GIB), inodes(&class(), Bytes::GIB));

        let [_, allocations, _, default] = rows[1][..] else { panic!("{rows:?}") };
        let mode = |value| allocation(&with(&[(BLOCK_ALLOCATION, value)]));
        let all = [Allocation::Thick, Allocation::Thin].map(|allocation| Mode::Block { allocation });
        assert_eq!(code(allocations).map(mode).collect::<Vec<_>>(), all);
        assert_eq!(code(default).map(mode).collect::<Vec<_>>(), [allocation(&class())]);
    }

    #[test]
    fn a_class_without_parameters_is_the_default() {
        assert_eq!(inodes(&class(), Bytes::GIB), Inodes::new(524_288));
        assert_eq!(allocation(&class()), Mode::Block { allocation: Allocation::Thick });
        assert_eq!(parameters(&class()).unwrap().reclaim, ReclaimPolicy::Delete);
    }

    #[test]
    fn a_class_chooses_how_many_files_a_volume_holds() {
        let class = with(&[(BYTES_PER_INODE, "16384")]);
        assert_eq!(inodes(&class, Bytes::GIB), Inodes::new(65_536));
        assert_eq!(inodes(&class, Bytes::new(4096)), Inodes::new(64));
        for value in ["511", "0", "-1", "many", "", "1.5", "99999999999999999999"] {
            let refused = parameters(&with(&[(BYTES_PER_INODE, value)])).expect_err(value);
            assert!(matches!(refused, Refusal::InodeRatio { .. }), "{value}: {refused}");
        }
    }

    #[test]
    fn a_class_chooses_when_images_get_their_blocks() {
        let thin = with(&[(BLOCK_ALLOCATION, "thin")]);
        assert_eq!(allocation(&thin), Mode::Block { allocation: Allocation::Thin });
        assert_eq!(inodes(&thin, Bytes::GIB), Inodes::new(524_288), "of no use to filesystems");
        assert_eq!(
            allocation(&with(&[(BLOCK_ALLOCATION, "thick"), (BYTES_PER_INODE, "4096")])),
            Mode::Block { allocation: Allocation::Thick }
        );
        for value in ["Thin", "", "sparse"] {
            let refused = parameters(&with(&[(BLOCK_ALLOCATION, value)])).expect_err(value);
            assert!(matches!(refused, Refusal::Allocation { .. }), "{value}: {refused}");
        }
    }

    #[test]
    fn what_would_be_ignored_is_refused_by_name() {
        let options = StorageClass { mount_options: Some(vec!["noatime".into()]), ..class() };
        assert_eq!(parameters(&options), Err(Refusal::MountOptions));
        let unknown = parameters(&with(&[("csi.storage.k8s.io/fstype", "ext4")])).unwrap_err();
        assert!(unknown.to_string().contains("csi.storage.k8s.io/fstype"), "{unknown}");
        let recycle = StorageClass { reclaim_policy: Some("Recycle".into()), ..class() };
        assert_eq!(parameters(&recycle), Err(Refusal::Reclaim("Recycle".into())));
        let retain = StorageClass { reclaim_policy: Some("Retain".into()), ..class() };
        assert_eq!(parameters(&retain).unwrap().reclaim, ReclaimPolicy::Retain);
    }
}
