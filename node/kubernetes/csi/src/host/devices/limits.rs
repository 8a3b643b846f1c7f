//! Limits of the I/O of pods on published devices: `io.max` of the cgroup of all pods.
//!
//! The kernel removes the limits of a device with the device. One that stays without its volume keeps none.

use std::error::Error;
use std::sync::Arc;

use loopdev::DeviceNumber;
use tracing::warn;
use volume::{IoLimits, IoThrottle, VolumeId};

use super::{Entry, PublishedDevices, lock};
use crate::host::cgroup::CgroupError;

impl PublishedDevices {
    /// Sets the limits of all devices of the volume. A change of the limits reaches the devices from now on: `limits` is called
    /// after that.
    pub(in crate::host) fn limit(&self, volume: &VolumeId, limits: impl Fn() -> IoLimits) -> Result<(), CgroupError> {
        let entries: Vec<_> = lock(&self.open).values().filter(|entry| entry.volume == *volume).cloned().collect();
        entries.iter().try_for_each(|entry| self.limit_device(entry, &limits))
    }

    fn limit_device(&self, entry: &Arc<Entry>, limits: impl Fn() -> IoLimits) -> Result<(), CgroupError> {
        let mut inner = lock(&entry.inner);
        let limits = limits();
        inner.limited |= !limits.is_none();
        if inner.device.is_some() {
            self.cgroups.limit(entry.dev, limits)?;
            inner.limited = !limits.is_none();
        }
        Ok(())
    }

    /// Before the device is detached.
    pub(super) fn clear_limits(&self, device: DeviceNumber, volume: &VolumeId) {
        if let Err(reason) = self.cgroups.limit(device, IoLimits::NONE) {
            warn!(%volume, error = &reason as &dyn Error, "cannot remove the I/O limits of a loop device");
        }
    }
}

/// Applies changes of limits to devices.
impl IoThrottle for PublishedDevices {
    fn check(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.cgroups.check()?)
    }

    fn apply(&self, id: &VolumeId, limits: IoLimits) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.limit(id, || limits)?)
    }
}
