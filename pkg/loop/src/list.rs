//! All attached devices.

use std::fs;
use std::path::Path;

use crate::device::{Device, Status};
use crate::error::{DeviceError, ListError, StatusError};
use crate::number::{DeviceNumber, Number};

/// A device that has a backing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attached {
    /// Number in the device's name.
    pub number: Number,
    /// Major and minor number.
    pub dev: DeviceNumber,
    /// Backing file, configuration and size.
    pub status: Status,
}

/// All attached devices, ordered by number. A snapshot: a device may be attached to another file by the time that it is
/// used, which [`Device::detach_from`] detects.
///
/// Each attached device is opened for a moment, which defers a detach by another process until then. A device without a
/// backing file costs one `stat` in sysfs. A device that is detached meanwhile is not an error.
pub fn list() -> Result<Vec<Attached>, ListError> {
    const DISKS: &str = "/sys/block";
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |source| ListError::Sysfs { path, source }
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(DISKS).map_err(unreadable(Path::new(DISKS)))? {
        let entry = entry.map_err(unreadable(Path::new(DISKS)))?;
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<Number>().ok()) else {
            continue;
        };
        // This directory exists while a file is attached.
        let attached = entry.path().join("loop");
        let is_attached = || attached.try_exists().map_err(unreadable(&attached));
        if !is_attached()? {
            continue;
        }
        match look(number) {
            Ok(device) => found.extend(device),
            // The node is missing if the device was removed after the detach.
            Err(ListError::Device(DeviceError::NotFound { .. })) if !is_attached()? => {}
            Err(error) => return Err(error),
        }
    }
    found.sort_unstable_by_key(|device| device.number);
    Ok(found)
}

/// Reads the status of a device; `None` if it was detached meanwhile.
fn look(number: Number) -> Result<Option<Attached>, ListError> {
    let device = match Device::open(number.path()) {
        Ok(device) => device,
        Err(DeviceError::Gone { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match device.status() {
        Ok(status) => Ok(Some(Attached { number: device.number(), dev: device.dev(), status })),
        Err(StatusError::NotAttached { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
