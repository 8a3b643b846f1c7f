//! Limits of the I/O of pods on published devices: `io.max` of the cgroup of the pod, which has all its containers.
//!
//! The kernel removes the limits of a device with the device, and those of a cgroup with the cgroup. A device that stays
//! when a pod gives it back would keep the pod's limits for the next volume: they are removed before.

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use loopdev::{DeviceNumber, Number};
use tracing::warn;
use volume::{IoLimits, IoThrottle, VolumeId};

use super::{Entry, PublishedDevices, lock};
use crate::host::ActError;
use crate::host::cgroup::{CgroupError, PodCgroup};

/// The kubelet creates the cgroup of a pod and publishes its volumes at the same time.
const CREATION: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_millis(20);

impl PublishedDevices {
    /// Limits the I/O of a pod before its target shows the device. A change of the limits reaches the pod from now on:
    /// `limits` is called after that.
    pub(in crate::host) fn limit(
        &self,
        number: Number,
        pod: &OsStr,
        limits: impl FnOnce() -> IoLimits,
    ) -> Result<(), ActError> {
        self.cgroups.check()?;
        let cgroup = self.created(pod)?;
        let entry = lock(&self.open).get(&number).cloned().ok_or(ActError::DeviceGone)?;
        let mut inner = lock(&entry.inner);
        inner.users.insert(pod.to_owned());
        inner.limited.insert(pod.to_owned());
        Ok(cgroup.limit(entry.dev, limits())?)
    }

    fn created(&self, pod: &OsStr) -> Result<PodCgroup, CgroupError> {
        let begin = Instant::now();
        loop {
            match self.cgroups.of(pod) {
                Err(CgroupError::Missing { .. }) if begin.elapsed() < CREATION => sleep(INTERVAL),
                found => return found,
            }
        }
    }

    /// Whether a pod may have limits on a device of the volume.
    pub(in crate::host) fn is_limited(&self, volume: &VolumeId, pod: &OsStr) -> bool {
        self.entries_of(volume).iter().any(|entry| lock(&entry.inner).limited.contains(pod))
    }

    /// Removes the limits of a pod that gives the volume back.
    pub(in crate::host) fn unlimit(&self, volume: &VolumeId, pod: &OsStr) -> Result<(), CgroupError> {
        let cgroup = self.cgroups.of(pod).ok();
        for entry in self.entries_of(volume) {
            let mut inner = lock(&entry.inner);
            if let Some(cgroup) = cgroup.as_ref().filter(|_| inner.limited.contains(pod)) {
                cgroup.limit(entry.dev, IoLimits::NONE)?;
            }
            inner.limited.remove(pod);
            inner.users.remove(pod);
        }
        Ok(())
    }

    /// The pod gives the volume back.
    pub(in crate::host) fn leave(&self, volume: &VolumeId, pod: &OsStr) {
        for entry in self.entries_of(volume) {
            lock(&entry.inner).users.remove(pod);
        }
    }

    /// Sets the limits of all pods that have the volume. A pod without a cgroup has ended.
    pub(in crate::host) fn apply_limits(
        &self,
        volume: &VolumeId,
        limits: impl Fn() -> IoLimits,
    ) -> Result<(), CgroupError> {
        let mut cgroups = None;
        for entry in self.entries_of(volume) {
            let mut inner = lock(&entry.inner);
            for pod in inner.users.clone() {
                let cgroups = cgroups.get_or_insert_with(|| self.cgroups.pods());
                let Some(cgroup) = cgroups.iter().find(|cgroup| cgroup.is_of(&pod)) else { continue };
                let limits = limits();
                if !limits.is_none() {
                    inner.limited.insert(pod.clone());
                }
                cgroup.limit(entry.dev, limits)?;
                if limits.is_none() {
                    inner.limited.remove(&pod);
                }
            }
        }
        Ok(())
    }

    /// Before the device is detached: pods of which no unpublish arrived keep no limits.
    pub(super) fn clear_limits<'a>(&self, device: DeviceNumber, pods: impl IntoIterator<Item = &'a OsString>) {
        for pod in pods {
            let Ok(cgroup) = self.cgroups.of(pod) else { continue };
            if let Err(reason) = cgroup.limit(device, IoLimits::NONE) {
                warn!(?pod, error = &reason as &dyn Error, "cannot remove the I/O limits of a pod");
            }
        }
    }

    fn entries_of(&self, volume: &VolumeId) -> Vec<Arc<Entry>> {
        lock(&self.open).values().filter(|entry| entry.volume == *volume).cloned().collect()
    }
}

/// Applies changes of limits to pods.
impl IoThrottle for PublishedDevices {
    fn check(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.cgroups.check()?)
    }

    fn apply(&self, id: &VolumeId, limits: IoLimits) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.apply_limits(id, || limits)?)
    }
}
