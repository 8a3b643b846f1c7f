//! Descriptors of published loop devices.
//!
//! The bind mount of a device node does not hold the device open. Without another opener, a `LOOP_CLR_FD` of a pod,
//! which needs neither a capability nor write access, detaches the device when the pod closes it. So the plugin holds
//! the descriptor that attached the device, from before a target shows it until the last unpublish, which detaches it
//! through this descriptor. `LOOP_CLR_FD` of any other process then only sets the flag AUTOCLEAR, which
//! [`PublishedDevices::watch`] clears.
//!
//! A process may keep a descriptor, a node or a device cgroup's permission of a device that was detached. So a number
//! is not used again: numbers increase, and the device of a former number is removed only when no process has it open,
//! no mount shows its node and no pod exists that had it. Until then it stays, unbound.
//!
//! Publish and unpublish find the devices and targets of a volume here, not among all devices and mounts of the
//! machine. The kernel's state decides: the status of each device is read through its descriptor, each target is
//! checked at its path, and the first difference leads to a list of all devices or mounts.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use loopdev::{
    Attached, Backing, Control, Detach, Device, DeviceNumber, Number, Numbers, Removal, Status, StatusError,
};
use tracing::{info, warn};
use volume::VolumeId;

use super::block::{self, DeviceId};
use super::cgroup::Cgroups;
use super::targets::Targets;
use super::{ActError, LookError, RevokedDetach};

mod limits;

pub(super) use limits::Lifted;

/// Minimum interval between two clears of a device's flag AUTOCLEAR: the kernel freezes the device's queue for each,
/// and a pod can set the flag again at once.
const PAUSE: Duration = Duration::from_secs(10);

/// Observer of published loop devices, for example to deny pods the ioctls of these devices.
pub trait DeviceObserver: fmt::Debug + Send + Sync + 'static {
    /// Called before a target shows the device, possibly twice. After an error the device is not published.
    fn publish(&self, device: DeviceNumber) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// Called after the device was removed: no process has it open.
    fn withdraw(&self, device: DeviceNumber);
}

#[derive(Debug)]
pub(super) struct NoObserver;

impl DeviceObserver for NoObserver {
    fn publish(&self, _: DeviceNumber) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }

    fn withdraw(&self, _: DeviceNumber) {}
}

/// Published devices, and former ones.
#[derive(Debug)]
pub(super) struct PublishedDevices {
    observer: Box<dyn DeviceObserver>,
    cgroups: Cgroups,
    numbers: OnceLock<Numbers>,
    /// Logical block size of the volumes' disk in bytes.
    block_size: OnceLock<u32>,
    open: Mutex<BTreeMap<Number, Arc<Entry>>>,
    former: Mutex<BTreeMap<Number, Former>>,
    /// The images that may have a device that is not in `open`: a device of an earlier process, or one with a pending
    /// detach. `None` until all devices were listed.
    unheld: Mutex<Option<BTreeSet<Backing>>>,
}

#[derive(Debug)]
struct Entry {
    volume: VolumeId,
    backing: Backing,
    dev: DeviceNumber,
    /// The device has a separate lock, because a clear of the flag takes tens of milliseconds.
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// `None` from the start of a detach.
    device: Option<Device>,
    /// `None` if another process attached the device, until the mount table was read.
    targets: Option<Targets>,
    /// UIDs of the pods that have or had the device.
    pods: BTreeSet<OsString>,
    /// Whether the device may have I/O limits.
    limited: bool,
    /// Number of freezes of its pods that need the device without limits.
    lifted: u32,
    /// Time of the last clear of the flag.
    cleared: Option<Instant>,
}

/// A device that is not published any more and still exists.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Former {
    /// A device that these pods had.
    Published { dev: DeviceNumber, pods: BTreeSet<OsString> },
    /// A device that no pod ever had. The next process continues above this number, the highest of the machine.
    Mark,
}

impl PublishedDevices {
    pub(super) fn new(observer: impl DeviceObserver, cgroups: Cgroups) -> Self {
        Self {
            observer: Box::new(observer),
            cgroups,
            numbers: OnceLock::new(),
            block_size: OnceLock::new(),
            open: Mutex::default(),
            former: Mutex::default(),
            unheld: Mutex::default(),
        }
    }

    /// A new instance with another observer, without devices.
    pub(super) fn with_observer(&self, observer: impl DeviceObserver) -> Self {
        Self::new(observer, self.cgroups.clone())
    }

    /// The devices that are attached to an image. Lists all devices of the machine only if the image may have a device
    /// that is not open here.
    pub(super) fn attached(&self, image: Backing) -> Result<Vec<Attached>, LookError> {
        if self.may_have_unheld(image)? {
            return self.list(image);
        }
        let mut found = Vec::new();
        for (number, entry) in self.on(image) {
            match entry.status()? {
                Some(status) if status.backing == image => found.push(Attached { number, dev: entry.dev, status }),
                _ => return self.list(image),
            }
        }
        Ok(found)
    }

    /// Opens each attached device of the machine for a moment.
    fn list(&self, image: Backing) -> Result<Vec<Attached>, LookError> {
        let found = block::devices(image)?;
        let open: Vec<_> = self.on(image).into_iter().map(|(number, _)| number).collect();
        if let Some(unheld) = &mut *lock(&self.unheld) {
            if found.iter().all(|device| open.contains(&device.number)) {
                unheld.remove(&image);
            } else {
                unheld.insert(image);
            }
        }
        Ok(found)
    }

    fn may_have_unheld(&self, image: Backing) -> Result<bool, LookError> {
        let mut unheld = lock(&self.unheld);
        let known = match unheld.take() {
            Some(known) => known,
            None => loopdev::list()?.into_iter().map(|device| device.status.backing).collect(),
        };
        Ok(unheld.insert(known).contains(&image))
    }

    /// Records that an image has a device that is not open here.
    pub(super) fn note_unheld(&self, image: Backing) {
        if let Some(unheld) = &mut *lock(&self.unheld) {
            unheld.insert(image);
        }
    }

    fn on(&self, image: Backing) -> Vec<(Number, Arc<Entry>)> {
        let open = lock(&self.open);
        let found = open.iter().filter(|(_, entry)| entry.backing == image);
        found.map(|(number, entry)| (*number, Arc::clone(entry))).collect()
    }

    /// Status of the device with these numbers if it is open here. While it is open, no other device can have the
    /// numbers.
    pub(super) fn status(&self, dev: DeviceNumber) -> Result<Option<Status>, LookError> {
        let entry = lock(&self.open).values().find(|entry| entry.dev == dev).cloned();
        Ok(entry.map(|entry| entry.status()).transpose()?.flatten())
    }

    /// Another target of a device, if there is one; `None` if its targets are unknown.
    pub(super) fn target_besides(&self, number: Number, target: &Path) -> Option<Option<PathBuf>> {
        let entry = lock(&self.open).get(&number).cloned()?;
        let inner = lock(&entry.inner);
        Some(inner.targets.as_ref()?.besides(target).map(Path::to_owned))
    }

    /// Sets the targets after a read of the mount table. The caller has the lock of the device's volume.
    pub(super) fn set_targets(&self, number: Number, targets: Targets) {
        self.change(number, |inner| inner.targets = Some(targets));
    }

    /// Adds a target. Call it before the target shows the device.
    pub(super) fn add_target(&self, number: Number, target: &Path) {
        self.change_targets(number, |targets| targets.add(target));
    }

    pub(super) fn ensure_target(&self, number: Number, target: &Path) {
        self.change_targets(number, |targets| targets.ensure(target));
    }

    /// Removes a target of this volume. Call it after its mount point was removed.
    pub(super) fn remove_target(&self, volume: &VolumeId, target: &Path) {
        for (number, _) in self.of(volume) {
            self.change_targets(number, |targets| targets.remove(target));
        }
    }

    fn change_targets(&self, number: Number, change: impl FnOnce(&mut Targets)) {
        self.change(number, |inner| {
            if let Some(targets) = &mut inner.targets {
                change(targets);
            }
        });
    }

    fn change(&self, number: Number, change: impl FnOnce(&mut Inner)) {
        let entry = lock(&self.open).get(&number).cloned();
        if let Some(entry) = entry {
            change(&mut lock(&entry.inner));
        }
    }

    /// Attaches an image to a device with the next number and keeps it open. An error leaves no device behind.
    pub(super) fn attach(
        &self,
        volume: &VolumeId,
        image: BorrowedFd<'_>,
        backing: Backing,
        read_only: bool,
    ) -> Result<DeviceId, ActError> {
        let block_size = read_once(&self.block_size, || block::disk_blocks(image));
        let device = block::attach(self.numbers()?, image, read_only, block_size)?;
        let place = DeviceId::of(&device);
        if let Err(error) = self.insert(volume, device, backing, Some(Targets::default())) {
            if let Err(reason) = self.detach(place.number, backing, volume) {
                warn!(device = %place.number, error = &reason as &dyn Error, "loop device stays attached");
            }
            return Err(error);
        }
        Ok(place)
    }

    /// Opens a device if it is still attached to the same file.
    pub(super) fn hold(&self, volume: &VolumeId, seen: &Attached) -> Result<DeviceId, ActError> {
        let place = DeviceId { number: seen.number, dev: seen.dev };
        let is_held = lock(&self.open).get(&seen.number).is_some_and(|entry| entry.backing == seen.status.backing);
        if is_held {
            // An earlier call may have failed to report the device to the observer.
            self.observer.publish(seen.dev).map_err(ActError::Observer)?;
        } else {
            let device = block::reopen(seen.number, seen.status.backing)?;
            // The flag is set if the last unpublish found another opener, or if a process detached the device while the
            // plugin did not hold it.
            if seen.status.config.autoclear && device.clear_autoclear()? {
                info!(%volume, device = %seen.number, "pending detach of a loop device revoked");
            }
            self.insert(volume, device, seen.status.backing, None)?;
        }
        Ok(place)
    }

    fn insert(
        &self,
        volume: &VolumeId,
        device: Device,
        backing: Backing,
        targets: Option<Targets>,
    ) -> Result<(), ActError> {
        let DeviceId { number, dev } = DeviceId::of(&device);
        let announced = self.observer.publish(dev).map_err(ActError::Observer);
        let pods = match lock(&self.former).remove(&number) {
            Some(Former::Published { pods, .. }) => pods,
            Some(Former::Mark) | None => BTreeSet::new(),
        };
        let inner = Mutex::new(Inner { device: Some(device), targets, pods, limited: false, lifted: 0, cleared: None });
        lock(&self.open).insert(number, Arc::new(Entry { volume: volume.clone(), backing, dev, inner }));
        announced
    }

    pub(super) fn serve(&self, number: Number, pod: Option<&OsStr>) {
        self.change(number, |inner| inner.pods.extend(pod.map(OsStr::to_owned)));
    }

    /// Detaches a device from this file only, through the open descriptor. Idempotent.
    pub(super) fn detach(&self, number: Number, backing: Backing, volume: &VolumeId) -> Result<(), ActError> {
        let entry = lock(&self.open).remove(&number);
        let held = entry.and_then(|entry| {
            let mut inner = lock(&entry.inner);
            if inner.limited {
                self.clear_limits(entry.dev, volume);
            }
            inner.device.take().map(|device| (device, std::mem::take(&mut inner.pods)))
        });
        let (device, pods) = match held {
            Some(held) => held,
            // An earlier process attached the device, and no target had it when this process started.
            None => match block::reopen(number, backing) {
                Ok(device) => {
                    // The earlier process may have set limits, which would slow down the writeback of dirty pages.
                    self.clear_limits(device.dev(), volume);
                    (device, BTreeSet::new())
                }
                Err(ActError::DeviceGone) => return Ok(()),
                Err(error) => return Err(error),
            },
        };
        // The driver's first devices exist as long as the driver, so they are not removed.
        if number.get() >= Numbers::FIRST {
            let dev = device.dev();
            let known = lock(&self.former).remove(&number);
            let pods = match known {
                Some(Former::Published { pods: earlier, .. }) => earlier.into_iter().chain(pods).collect(),
                Some(Former::Mark) | None => pods,
            };
            lock(&self.former).insert(number, Former::Published { dev, pods });
        }
        let detached = block::detach(device, backing, volume);
        if !matches!(detached, Ok(Detach::Detached)) {
            self.note_unheld(backing);
        }
        detached.map(drop)
    }

    /// Clears the flag AUTOCLEAR of devices that another process tried to detach, and returns these. `published` is
    /// false for a device without a target, because the deletion of its volume may detach it.
    pub(super) fn watch(&self, published: impl Fn(Number) -> bool) -> Vec<RevokedDetach> {
        let open = lock(&self.open);
        let entries = open.iter().filter(|(number, _)| published(**number));
        let entries: Vec<_> = entries.map(|(number, entry)| (*number, Arc::clone(entry))).collect();
        drop(open);
        entries.into_iter().filter_map(|(number, entry)| entry.watch(number, Instant::now())).collect()
    }

    pub(super) fn of(&self, volume: &VolumeId) -> Vec<(Number, Backing)> {
        let open = lock(&self.open);
        let found = open.iter().filter(|(_, entry)| entry.volume == *volume);
        found.map(|(number, entry)| (*number, entry.backing)).collect()
    }

    pub(super) fn volumes(&self) -> Vec<(Number, VolumeId)> {
        lock(&self.open).iter().map(|(number, entry)| (*number, entry.volume.clone())).collect()
    }

    pub(super) fn has_former(&self) -> bool {
        lock(&self.former).values().any(|former| *former != Former::Mark)
    }

    /// Removes devices that were published before, if no process has them open, no mount below kubelet's directory
    /// shows their nodes, and none of their pods exists.
    pub(super) fn remove_former(&self, nodes: &block::Nodes, kubelet: &Path) -> Result<(), ActError> {
        let former: Vec<_> = lock(&self.former).iter().map(|(number, former)| (*number, former.clone())).collect();
        let (driver, numbers) = (Control::open()?, self.numbers()?);
        let pods = OnceLock::new();
        for (number, former) in former {
            match &former {
                Former::Mark if numbers.is_latest(number) => continue,
                Former::Mark => {}
                Former::Published { pods: had, .. } => {
                    let exists =
                        |pod: &OsString| pods.get_or_init(|| self.cgroups.pods()).iter().any(|found| found.is_of(pod));
                    if nodes.show(number, kubelet) || had.iter().any(exists) {
                        continue;
                    }
                    if numbers.is_latest(number) {
                        match driver.create_next(numbers) {
                            Ok(mark) => drop(lock(&self.former).insert(mark, Former::Mark)),
                            Err(error) => {
                                warn!(
                                    error = &error as &dyn Error,
                                    "cannot create the next loop device, keeping the last one"
                                );
                                continue;
                            }
                        }
                    }
                }
            }
            match driver.remove(number) {
                Ok(Removal::Removed) => self.removed(number, &former),
                Ok(Removal::InUse) => {}
                Err(error) => warn!(device = %number, error = &error as &dyn Error, "cannot remove loop device"),
            }
        }
        Ok(())
    }

    fn removed(&self, number: Number, former: &Former) {
        lock(&self.former).remove(&number);
        if let Former::Published { dev, .. } = former {
            self.observer.withdraw(*dev);
            info!(device = %number, "loop device removed");
        }
    }

    /// Closes all descriptors. Devices stay attached, and targets stay as they are. I/O limits are removed first,
    /// because the last close of a device waits until its dirty pages are written.
    pub(super) fn close(&self) {
        let open = std::mem::take(&mut *lock(&self.open));
        for entry in open.into_values() {
            let mut inner = lock(&entry.inner);
            if inner.limited {
                self.clear_limits(entry.dev, &entry.volume);
            }
            drop(inner.device.take());
        }
        *lock(&self.unheld) = None;
    }

    fn numbers(&self) -> Result<&Numbers, ActError> {
        if let Some(numbers) = self.numbers.get() {
            return Ok(numbers);
        }
        let found = Numbers::after_existing().map_err(LookError::from)?;
        Ok(self.numbers.get_or_init(|| found))
    }
}

impl Entry {
    /// `None` if the device was detached.
    fn status(&self) -> Result<Option<Status>, StatusError> {
        match lock(&self.inner).device.as_ref().map(Device::status) {
            None | Some(Err(StatusError::NotAttached { .. })) => Ok(None),
            Some(status) => status.map(Some),
        }
    }

    fn watch(&self, number: Number, now: Instant) -> Option<RevokedDetach> {
        let mut inner = lock(&self.inner);
        let Inner { device: Some(device), cleared, .. } = &mut *inner else { return None };
        let revoked = match device.is_autoclear() {
            Ok(true) if is_due(*cleared, now) => {
                *cleared = Some(now);
                device.clear_autoclear()
            }
            other => other.map(|_| false),
        };
        match revoked {
            Ok(true) => Some(RevokedDetach { volume: self.volume.clone(), device: number }),
            Ok(false) => None,
            Err(reason) => {
                let (volume, error): (_, &dyn Error) = (&self.volume, &reason);
                warn!(%volume, device = %number, error, "cannot check a published loop device");
                None
            }
        }
    }
}

/// Reads a constant value once. After a failed read, the next call reads it again.
fn read_once(known: &OnceLock<u32>, read: impl FnOnce() -> Option<u32>) -> Option<u32> {
    known.get().copied().or_else(|| read().map(|found| *known.get_or_init(|| found)))
}

fn is_due(cleared: Option<Instant>, now: Instant) -> bool {
    cleared.is_none_or(|last| now.saturating_duration_since(last) >= PAUSE)
}

pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves the tables in a valid state, so poisoning is ignored.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_read_is_repeated_and_a_value_is_kept() {
        let known = OnceLock::new();
        assert_eq!(read_once(&known, || None), None);
        assert_eq!(read_once(&known, || Some(4096)), Some(4096));
        assert_eq!(read_once(&known, || panic!("read again")), Some(4096));
    }

    #[test]
    fn a_flag_is_cleared_at_most_once_in_ten_seconds() {
        let now = Instant::now();
        assert!(is_due(None, now));
        assert!(!is_due(Some(now), now));
        assert!(!is_due(Some(now), now + PAUSE - Duration::from_millis(1)));
        assert!(is_due(Some(now), now + PAUSE));
    }
}
