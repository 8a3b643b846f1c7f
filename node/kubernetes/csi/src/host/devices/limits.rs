//! Limits of the I/O of pods on published devices: `io.max` of the cgroup of all pods.
//!
//! The kernel removes the limits of a device with the device. The plugin removes the limits of a device that stays
//! after its volume.

use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::OsString;
use std::sync::Arc;

use loopdev::DeviceNumber;
use tracing::warn;
use volume::{IoLimits, IoThrottle, VolumeId};

use super::{Entry, PublishedDevices, lock};
use crate::host::cgroup::CgroupError;

impl PublishedDevices {
    /// Sets the limits of all devices of the volume. `limits` is called while a device is locked, so that a later
    /// change is also applied later.
    pub(in crate::host) fn limit(&self, volume: &VolumeId, limits: impl Fn() -> IoLimits) -> Result<(), CgroupError> {
        let entries: Vec<_> = lock(&self.open).values().filter(|entry| entry.volume == *volume).cloned().collect();
        entries.iter().try_for_each(|entry| self.limit_device(entry, &limits))
    }

    fn limit_device(&self, entry: &Arc<Entry>, limits: impl Fn() -> IoLimits) -> Result<(), CgroupError> {
        let mut inner = lock(&entry.inner);
        let limits = limits();
        inner.limited |= !limits.is_none();
        if inner.device.is_some() && inner.lifted == 0 {
            self.cgroups.limit(entry.dev, limits)?;
            inner.limited = !limits.is_none();
        }
        Ok(())
    }

    /// Removes the limits of all devices that one of the pods has, until [`Self::restore`]. The kernel issues their
    /// waiting requests at once.
    pub(in crate::host) fn lift(&self, pods: &BTreeSet<OsString>) -> Lifted {
        let entries: Vec<_> = lock(&self.open).values().cloned().collect();
        let lift = |entry: &Arc<Entry>| {
            let mut inner = lock(&entry.inner);
            let is_lifted = inner.limited && inner.device.is_some() && !inner.pods.is_disjoint(pods);
            if is_lifted {
                inner.lifted += 1;
                self.clear_limits(entry.dev, &entry.volume);
            }
            is_lifted
        };
        Lifted(entries.into_iter().filter(lift).collect())
    }

    /// Sets the limits that the volumes have now. After an error, the next watch sets them.
    pub(in crate::host) fn restore(&self, lifted: &Lifted, limits: impl Fn(&VolumeId) -> IoLimits) {
        for entry in &lifted.0 {
            lock(&entry.inner).lifted -= 1;
            if let Err(reason) = self.limit_device(entry, || limits(&entry.volume)) {
                warn!(volume = %entry.volume, error = &reason as &dyn Error, "cannot limit the I/O of the volume again");
            }
        }
    }

    /// Removes the limits of a device before its detach, or while its limits are lifted.
    pub(super) fn clear_limits(&self, device: DeviceNumber, volume: &VolumeId) {
        if let Err(reason) = self.cgroups.limit(device, IoLimits::NONE) {
            warn!(%volume, error = &reason as &dyn Error, "cannot remove the I/O limits of a loop device");
        }
    }
}

/// Devices whose limits are lifted.
#[derive(Debug)]
pub(in crate::host) struct Lifted(Vec<Arc<Entry>>);

/// Applies changes of limits to devices.
impl IoThrottle for PublishedDevices {
    fn check(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.cgroups.check()?)
    }

    fn apply(&self, id: &VolumeId, limits: IoLimits) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.limit(id, || limits)?)
    }
}
