//! The limits of a VolumeAttributesClass. Pure.

use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use volume::{DRIVER_NAME, IoLimits, IoRejection, VolumeMode};

/// Reason why a volume cannot have a class. In a message, the text follows the name of the class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AttributesRejection {
    #[error("it has driverName {driver}; use a class with driverName {DRIVER_NAME}")]
    Driver { driver: String },
    #[error(transparent)]
    Io(#[from] IoRejection),
}

pub(crate) fn limits(class: &VolumeAttributesClass, mode: VolumeMode) -> Result<IoLimits, AttributesRejection> {
    if class.driver_name != DRIVER_NAME {
        return Err(AttributesRejection::Driver { driver: class.driver_name.clone() });
    }
    Ok(IoLimits::of_class(class.parameters.as_ref().unwrap_or(&Default::default()), mode)?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_class_of_the_driver_has_limits_for_block_volumes() {
        let class = |driver: &str| -> VolumeAttributesClass {
            let class = json!({"metadata": {"name": "gold"}, "driverName": driver, "parameters": {"readIOPS": "100"}});
            serde_json::from_value(class).expect("a class")
        };
        let limited = IoLimits { read_operations: Some(100), ..IoLimits::NONE };
        assert_eq!(limits(&class(DRIVER_NAME), VolumeMode::Block), Ok(limited));
        let files = limits(&class(DRIVER_NAME), VolumeMode::Filesystem);
        assert_eq!(files, Err(AttributesRejection::Io(IoRejection::Filesystem)));
        let foreign = limits(&class("example.invalid"), VolumeMode::Block).expect_err("it is rejected");
        assert!(foreign.to_string().contains("example.invalid"), "{foreign}");
    }
}
