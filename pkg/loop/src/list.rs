//! All attached devices.

use std::fs;
use std::path::Path;

use crate::device::{Device, Status};
use crate::error::{DeviceError, ListError, StatusError};
use crate::number::{DeviceNumber, Number};

/// A device that has a backing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attached {
    /// The number in its name.
    pub number: Number,
    /// Major and minor number.
    pub dev: DeviceNumber,
    /// What it stands on, how it behaves, how large it is.
    pub status: Status,
}

/// All attached devices, ordered by their numbers.
///
/// A picture: by the time it is looked at, a device may be detached and attached to something else.
/// [`Device::detach_from`] with what is seen here cannot hit another file's device.
///
/// Each attached device is opened for a moment, no other one is; a detach by somebody else in that moment is
/// deferred by so long. A device without a backing file, which the kernel keeps (it never removes one by
/// itself), costs one `stat` in sysfs.
///
/// # Errors
/// [`ListError`]; a device that is detached meanwhile is none.
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
        // The kernel makes this directory when it attaches a file.
        let attached = entry.path().join("loop");
        let is_attached = || attached.try_exists().map_err(unreadable(&attached));
        if !is_attached()? {
            continue;
        }
        match look(number) {
            Ok(device) => found.extend(device),
            // Its node goes when somebody removes it after the detach.
            Err(ListError::Device(DeviceError::NotFound { .. })) if !is_attached()? => {}
            Err(error) => return Err(error),
        }
    }
    found.sort_unstable_by_key(|device| device.number);
    Ok(found)
}

/// `None` if it was detached meanwhile.
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
