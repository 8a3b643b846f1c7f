//! Parameters of a storage class, for claims and for CSI's Controller service. Pure.

use std::collections::BTreeMap;

use units::{Bytes, Inodes};

use crate::{Allocation, Mode, VolumeMode};

/// Class parameter: bytes of a filesystem volume per inode.
const BYTES_PER_INODE: &str = "bytesPerInode";
/// Class parameter: when the blocks of a block volume are allocated.
const BLOCK_ALLOCATION: &str = "blockAllocation";
/// Size of an XFS inode, and therefore the smallest value of `bytesPerInode`.
const INODE: u64 = 512;
const LEAST_INODES: u64 = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    pub bytes_per_inode: InodeRatio,
    pub allocation: Allocation,
}

/// Bytes per inode; `None` is the default of quotas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeRatio(Option<u64>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
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
}

impl Parameters {
    /// Checks all parameters, also those that do not apply to the mode of a volume.
    pub fn parse(parameters: &BTreeMap<String, String>) -> Result<Self, ParameterError> {
        let mut found = Self::default();
        for (name, value) in parameters {
            match name.as_str() {
                BYTES_PER_INODE => {
                    let bytes = value.parse().ok().filter(|bytes| *bytes >= INODE);
                    let bytes = bytes.ok_or_else(|| ParameterError::InodeRatio { value: value.clone() })?;
                    found.bytes_per_inode = InodeRatio(Some(bytes));
                }
                BLOCK_ALLOCATION => {
                    found.allocation = match value.as_str() {
                        "thick" => Allocation::Thick,
                        "thin" => Allocation::Thin,
                        _ => return Err(ParameterError::Allocation { value: value.clone() }),
                    };
                }
                _ => return Err(ParameterError::Unknown { name: name.clone() }),
            }
        }
        Ok(found)
    }

    pub fn mode(&self, mode: VolumeMode, size: Bytes) -> Mode {
        match mode {
            VolumeMode::Filesystem => Mode::Filesystem { inodes: self.bytes_per_inode.inodes(size) },
            VolumeMode::Block => Mode::Block { allocation: self.allocation },
        }
    }
}

impl InodeRatio {
    fn inodes(self, size: Bytes) -> Inodes {
        match self.0 {
            Some(bytes) => Inodes::new((size.get() / bytes).max(LEAST_INODES)),
            None => fsquota::default_inodes(size),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    /// Names of the parameters, one for each field.
    fn names() -> [&'static str; 2] {
        let Parameters { bytes_per_inode: _, allocation: _ } = Parameters::default();
        [BYTES_PER_INODE, BLOCK_ALLOCATION]
    }

    fn parse(parameters: &[(&str, &str)]) -> Result<Parameters, ParameterError> {
        let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Parameters::parse(&parameters.collect())
    }

    fn with(parameters: &[(&str, &str)]) -> Parameters {
        parse(parameters).expect("valid parameters")
    }

    fn inodes(parameters: &Parameters, size: Bytes) -> Inodes {
        match parameters.mode(VolumeMode::Filesystem, size) {
            Mode::Filesystem { inodes } => inodes,
            Mode::Block { .. } | Mode::Snapshot { .. } | Mode::SnapshotTree { .. } => {
                unreachable!("the mode is Filesystem")
            }
        }
    }

    fn allocation(parameters: &Parameters) -> Mode {
        parameters.mode(VolumeMode::Block, Bytes::GIB)
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
        assert_eq!(inodes(&with(&[(BYTES_PER_INODE, "2048")]), Bytes::GIB), inodes(&with(&[]), Bytes::GIB));
        for name in names().into_iter().chain(["…"]) {
            let rejected = parse(&[(name, "…")]).expect_err(name);
            assert!(PAGE.contains(&format!("`{rejected}`")), "{rejected}");
        }
    }

    #[test]
    fn the_chart_accepts_every_parameter() {
        const SCHEMA: &str = include_str!("../../standalone/chart/values.schema.json");
        let schema: Value = serde_json::from_str(SCHEMA).expect("JSON");
        let parameters = &schema["properties"]["storageClasses"]["items"]["properties"]["parameters"];
        assert_eq!(parameters["additionalProperties"], false, "the chart rejects others");
        let fields = parameters["properties"].as_object().expect("the parameters");
        assert_eq!(fields.keys().map(String::as_str).collect::<BTreeSet<_>>(), names().into());
        let values = fields[BLOCK_ALLOCATION]["enum"].as_array().expect("the values").iter().filter_map(Value::as_str);
        let allocations: Vec<_> = values.map(|value| with(&[(BLOCK_ALLOCATION, value)]).allocation).collect();
        assert_eq!(allocations, [Allocation::Thick, Allocation::Thin]);
    }

    #[test]
    fn a_class_without_parameters_is_the_default() {
        assert_eq!(inodes(&with(&[]), Bytes::GIB), Inodes::new(524_288));
        assert_eq!(allocation(&with(&[])), Mode::Block { allocation: Allocation::Thick });
    }

    #[test]
    fn a_class_sets_the_number_of_inodes() {
        let class = with(&[(BYTES_PER_INODE, "16384")]);
        assert_eq!(inodes(&class, Bytes::GIB), Inodes::new(65_536));
        assert_eq!(inodes(&class, Bytes::new(4096)), Inodes::new(64));
        for value in ["511", "0", "-1", "many", "", "1.5", "99999999999999999999"] {
            let rejected = parse(&[(BYTES_PER_INODE, value)]).expect_err(value);
            assert!(matches!(rejected, ParameterError::InodeRatio { .. }), "{value}: {rejected}");
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
            let rejected = parse(&[(BLOCK_ALLOCATION, value)]).expect_err(value);
            assert!(matches!(rejected, ParameterError::Allocation { .. }), "{value}: {rejected}");
        }
    }

    #[test]
    fn an_unknown_parameter_is_rejected_by_name() {
        let unknown = parse(&[("csi.storage.k8s.io/fstype", "ext4")]).unwrap_err();
        assert!(unknown.to_string().contains("csi.storage.k8s.io/fstype"), "{unknown}");
    }
}
