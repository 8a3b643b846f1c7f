//! Limits of a volume's I/O: the parameters of a VolumeAttributesClass, for claims and for CSI's Controller service,
//! and the interface that applies them. Pure.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;

use cluster::quantity;
use serde::{Deserialize, Serialize};
use units::Bytes;

use crate::{VolumeId, VolumeMode};

const READ_OPERATIONS: &str = "readIOPS";
const WRITE_OPERATIONS: &str = "writeIOPS";
const READ_BYTES: &str = "readBytesPerSecond";
const WRITE_BYTES: &str = "writeBytesPerSecond";
/// The value of a parameter without a limit. A class needs at least one parameter.
const UNLIMITED: &str = "max";
/// Parameter of other drivers.
const WEIGHT: &str = "weight";

/// Range of operations per second. The kernel rejects 1, and has no limit from `u32::MAX` on.
const LEAST_OPERATIONS: u32 = 10;
const MOST_OPERATIONS: u32 = u32::MAX - 1;
/// Fewest bytes per second. A request of 1 MiB then takes 16 seconds; with less, the kernel would report hung tasks.
const LEAST_BYTES: Bytes = Bytes::new(64 << 10);

/// Limits of all pods that have the volume, together. `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IoLimits {
    /// Per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_operations: Option<u32>,
    /// Per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_operations: Option<u32>,
    /// Per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<Bytes>,
    /// Per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_bytes: Option<Bytes>,
}

/// Why a class has no limits that a volume can have. The text follows the name of the class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IoRejection {
    #[error(
        "it limits I/O, which is supported for block volumes only: the kernel does not limit the writeback of files that \
         another pod has written first; remove spec.volumeAttributesClassName, or create a claim with volumeMode Block"
    )]
    Filesystem,
    #[error(
        "it has {WEIGHT}, which the kernel applies only with the scheduler BFQ or io.cost on the data disk, and the node \
         configures neither; use {READ_OPERATIONS}, {WRITE_OPERATIONS}, {READ_BYTES} or {WRITE_BYTES}"
    )]
    Weight,
    #[error(
        "it has the unknown parameter {name:?}; use {READ_OPERATIONS}, {WRITE_OPERATIONS}, {READ_BYTES} or {WRITE_BYTES}"
    )]
    Unknown { name: String },
    #[error("it has {name}={value:?}; use a whole number from {LEAST_OPERATIONS} to {MOST_OPERATIONS}, or {UNLIMITED}")]
    Operations { name: &'static str, value: String },
    #[error("it has {name}={value:?}; use at least 64Ki, such as 50Mi, or {UNLIMITED}")]
    Bytes { name: &'static str, value: String },
}

/// Applies the limits of volumes to the pods that use the volumes.
pub trait IoThrottle: fmt::Debug + Send + Sync {
    /// Fails if this node cannot limit I/O.
    fn check(&self) -> Result<(), Box<dyn StdError + Send + Sync>>;

    /// Limits the I/O of all pods that have the volume now, together. Idempotent. A publish reads the limits of the
    /// record.
    fn apply(&self, id: &VolumeId, limits: IoLimits) -> Result<(), Box<dyn StdError + Send + Sync>>;
}

/// Why the limits of a volume are not in force.
#[derive(Debug, thiserror::Error)]
pub enum ThrottleError {
    #[error("this program does not publish volumes")]
    None,
    /// Permanent until the node is changed.
    #[error("this node cannot limit I/O")]
    Unsupported(#[source] Box<dyn StdError + Send + Sync>),
    /// The record has the limits.
    #[error("cannot apply the limits to the pods of the volume")]
    Apply(#[source] Box<dyn StdError + Send + Sync>),
}

impl IoLimits {
    pub const NONE: Self = Self { read_operations: None, write_operations: None, read_bytes: None, write_bytes: None };

    pub fn of_class(parameters: &BTreeMap<String, String>, mode: VolumeMode) -> Result<Self, IoRejection> {
        Self::NONE.changed(parameters, mode)
    }

    /// Replaces the limits that the parameters name. A limit without a parameter stays.
    pub fn changed(self, parameters: &BTreeMap<String, String>, mode: VolumeMode) -> Result<Self, IoRejection> {
        if mode == VolumeMode::Filesystem && !parameters.is_empty() {
            return Err(IoRejection::Filesystem);
        }
        let mut found = self;
        for (name, value) in parameters {
            match name.as_str() {
                READ_OPERATIONS => found.read_operations = operations(READ_OPERATIONS, value)?,
                WRITE_OPERATIONS => found.write_operations = operations(WRITE_OPERATIONS, value)?,
                READ_BYTES => found.read_bytes = bytes(READ_BYTES, value)?,
                WRITE_BYTES => found.write_bytes = bytes(WRITE_BYTES, value)?,
                WEIGHT => return Err(IoRejection::Weight),
                _ => return Err(IoRejection::Unknown { name: name.clone() }),
            }
        }
        Ok(found)
    }

    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

fn operations(name: &'static str, value: &str) -> Result<Option<u32>, IoRejection> {
    let number = value.parse().ok().filter(|number| (LEAST_OPERATIONS..=MOST_OPERATIONS).contains(number));
    match number {
        None if value != UNLIMITED => Err(IoRejection::Operations { name, value: value.to_owned() }),
        number => Ok(number),
    }
}

fn bytes(name: &'static str, value: &str) -> Result<Option<Bytes>, IoRejection> {
    let bytes = quantity::bytes(value).ok().filter(|bytes| *bytes >= LEAST_BYTES);
    match bytes {
        None if value != UNLIMITED => Err(IoRejection::Bytes { name, value: value.to_owned() }),
        bytes => Ok(bytes),
    }
}

/// Formats the limits as parameters of a class.
impl fmt::Display for IoLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return f.write_str("no limits");
        }
        let operations = [(READ_OPERATIONS, self.read_operations), (WRITE_OPERATIONS, self.write_operations)];
        let operations = operations.map(|(name, limit)| Some(format!("{name}={}", limit?)));
        let bytes = [(READ_BYTES, self.read_bytes), (WRITE_BYTES, self.write_bytes)];
        let bytes = bytes.map(|(name, limit)| Some(format!("{name}={}", quantity::text(limit?))));
        let all: Vec<_> = operations.into_iter().chain(bytes).flatten().collect();
        f.write_str(&all.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(parameters: &[(&str, &str)]) -> Result<IoLimits, IoRejection> {
        let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        IoLimits::of_class(&parameters.collect(), VolumeMode::Block)
    }

    #[test]
    fn a_class_sets_each_limit_alone() {
        assert_eq!(of(&[]), Ok(IoLimits::NONE));
        assert_eq!(IoLimits::NONE.to_string(), "no limits");
        let all = of(&[
            ("readIOPS", "10"),
            ("writeIOPS", "4294967294"),
            ("readBytesPerSecond", "50Mi"),
            ("writeBytesPerSecond", "65536"),
        ]);
        let all = all.expect("valid parameters");
        assert_eq!((all.read_operations, all.write_operations), (Some(10), Some(u32::MAX - 1)));
        assert_eq!((all.read_bytes, all.write_bytes), (Some(Bytes::new(50 << 20)), Some(Bytes::new(64 << 10))));
        assert_eq!(
            all.to_string(),
            "readIOPS=10, writeIOPS=4294967294, readBytesPerSecond=50Mi, writeBytesPerSecond=64Ki"
        );
        assert_eq!(of(&[("readIOPS", "max"), ("writeBytesPerSecond", "max")]), Ok(IoLimits::NONE));
        let one = of(&[("writeIOPS", "100")]).expect("valid parameters");
        assert_eq!(one, IoLimits { write_operations: Some(100), ..IoLimits::NONE });
    }

    #[test]
    fn a_change_keeps_the_limits_that_it_does_not_name() {
        let former = of(&[("readIOPS", "100"), ("writeIOPS", "200")]).expect("valid parameters");
        let change = |parameters: [(&str, &str); 2]| {
            let parameters = parameters.map(|(name, value)| (name.to_owned(), value.to_owned()));
            former.changed(&parameters.into(), VolumeMode::Block)
        };
        let changed = change([("writeIOPS", "max"), ("readBytesPerSecond", "1Mi")]).expect("valid parameters");
        assert_eq!(changed, of(&[("readIOPS", "100"), ("readBytesPerSecond", "1Mi")]).expect("valid parameters"));
        assert_eq!(former.changed(&BTreeMap::new(), VolumeMode::Block), Ok(former));
        assert!(change([("writeIOPS", "max"), ("readIOPS", "few")]).is_err());
    }

    #[test]
    fn a_wrong_value_is_rejected_with_its_name() {
        for value in ["9", "0", "-1", "4294967295", "many", "", "10.5", "1k"] {
            let rejected = of(&[("readIOPS", value)]).expect_err(value);
            assert!(
                rejected.to_string().contains("readIOPS=") && rejected.to_string().contains("from 10"),
                "{rejected}"
            );
        }
        for value in ["65535", "0", "-1Mi", "fast", "", "63Ki", "9Ei"] {
            let rejected = of(&[("writeBytesPerSecond", value)]).expect_err(value);
            assert!(rejected.to_string().contains("writeBytesPerSecond="), "{rejected}");
        }
    }

    #[test]
    fn unsupported_parameters_and_modes_have_reasons() {
        let weight = of(&[("readIOPS", "100"), ("weight", "200")]).expect_err("it is rejected");
        assert!(weight.to_string().contains("BFQ"), "{weight}");
        let unknown = of(&[("iops", "200")]).expect_err("it is rejected");
        assert!(unknown.to_string().contains("\"iops\"") && unknown.to_string().contains("readIOPS"), "{unknown}");
        let fast = [("readIOPS".to_owned(), "max".to_owned())].into();
        let files = IoLimits::of_class(&fast, VolumeMode::Filesystem).expect_err("it is rejected");
        assert!(files.to_string().contains("writeback of files"), "{files}");
    }

    #[test]
    fn the_page_describes_every_parameter() {
        const PAGE: &str = include_str!("../../../../docs/operations/io-limits.md");
        for row in [
            format!(
                "| `{READ_OPERATIONS}`, `{WRITE_OPERATIONS}` | a whole number from {LEAST_OPERATIONS} on, or `{UNLIMITED}` |"
            ),
            format!("| `{READ_BYTES}`, `{WRITE_BYTES}` | at least {} bytes,", LEAST_BYTES.get()),
        ] {
            assert!(PAGE.contains(&row), "{row:?}");
        }
    }
}
