//! Descriptors of published loop devices.
//!
//! The bind mount of a device node does not hold the device open. Without another opener, a `LOOP_CLR_FD` of a pod, which
//! needs neither a capability nor write access, detaches the device when the pod closes it. So the plugin holds the
//! descriptor that attached the device, from before a target shows it until the last unpublish, which detaches it
//! through this descriptor. `LOOP_CLR_FD` of any other process then only sets the flag AUTOCLEAR, which [`Held::watch`]
//! clears.
//!
//! A process may keep a descriptor, a node or a device cgroup's permission of a device that was detached. So a number is
//! not used again: numbers increase, and the device of a former number is removed only when no process has it open, no
//! mount shows its node and no pod exists that had it. Until then it stays, unbound.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use loopdev::{Attached, Backing, Control, Device, DeviceNumber, Number, Numbers, Removal};
use tracing::{info, warn};
use volume::VolumeId;

use super::{ActError, LookError, block, cgroup};

/// How often the flag AUTOCLEAR of a device is cleared at most: the kernel freezes the device's queue for it, and a pod
/// can set the flag again at once.
const PAUSE: Duration = Duration::from_secs(10);

/// What learns which loop devices pods have, such as the rules that deny pods the ioctls of these devices.
pub trait Published: fmt::Debug + Send + Sync + 'static {
    /// A target is about to show this device. May be called twice for one device.
    ///
    /// # Errors
    /// Any error: the device is not published.
    fn publish(&self, device: DeviceNumber) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// The device was removed: no process can have it open.
    fn withdraw(&self, device: DeviceNumber);
}

/// Nothing is informed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Published for Unobserved {
    fn publish(&self, _: DeviceNumber) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }

    fn withdraw(&self, _: DeviceNumber) {}
}

/// A process tried to detach a published device, and the plugin revoked it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// The volume.
    pub volume: VolumeId,
    /// Its device.
    pub device: Number,
}

/// The numbers of a device, which are its own as long as it is held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) number: Number,
    pub(super) dev: DeviceNumber,
}

impl Place {
    fn of(device: &Device) -> Self {
        Self { number: device.number(), dev: device.dev() }
    }
}

/// Published devices, and those that were.
#[derive(Debug)]
pub(super) struct Held {
    observer: Box<dyn Published>,
    numbers: OnceLock<Numbers>,
    open: Mutex<BTreeMap<Number, Arc<Entry>>>,
    former: Mutex<BTreeMap<Number, Former>>,
}

/// A published device.
#[derive(Debug)]
struct Entry {
    volume: VolumeId,
    backing: Backing,
    /// A lock of its own: to clear the flag takes tens of milliseconds.
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// `None` as soon as it is being detached.
    device: Option<Device>,
    /// The UIDs of the pods that have it or had it.
    pods: BTreeSet<OsString>,
    /// When the flag was cleared last.
    cleared: Option<Instant>,
}

/// A device that is not published any more and still exists.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Former {
    /// These pods had it.
    Published { dev: DeviceNumber, pods: BTreeSet<OsString> },
    /// No pod ever had it: it is the highest device of the machine, above which the next process goes on.
    Mark,
}

impl Held {
    pub(super) fn new(observer: impl Published) -> Self {
        Self {
            observer: Box::new(observer),
            numbers: OnceLock::new(),
            open: Mutex::default(),
            former: Mutex::default(),
        }
    }

    /// Attaches an image to a device with the next number and holds it. What fails leaves no device behind.
    pub(super) fn attach(
        &self,
        volume: &VolumeId,
        image: BorrowedFd<'_>,
        backing: Backing,
        read_only: bool,
    ) -> Result<Place, ActError> {
        let device = block::attach(self.numbers()?, image, read_only)?;
        let place = Place::of(&device);
        if let Err(error) = self.insert(volume, device, backing) {
            if let Err(reason) = self.detach(place.number, backing, volume) {
                warn!(device = %place.number, error = &reason as &dyn Error, "loop device stays attached");
            }
            return Err(error);
        }
        Ok(place)
    }

    /// Holds a device that was seen, if it still stands on the same file.
    pub(super) fn hold(&self, volume: &VolumeId, seen: &Attached) -> Result<Place, ActError> {
        let place = Place { number: seen.number, dev: seen.dev };
        let is_held = lock(&self.open).get(&seen.number).is_some_and(|entry| entry.backing == seen.status.backing);
        if is_held {
            // An earlier call may have failed to announce it.
            self.observer.publish(seen.dev).map_err(ActError::Observer)?;
        } else {
            let device = block::reopen(seen.number, seen.status.backing)?;
            // The last unpublish found another opener, or no process held the device.
            if seen.status.config.autoclear && device.clear_autoclear()? {
                info!(%volume, device = %seen.number, "pending detach of a loop device revoked");
            }
            self.insert(volume, device, seen.status.backing)?;
        }
        Ok(place)
    }

    fn insert(&self, volume: &VolumeId, device: Device, backing: Backing) -> Result<(), ActError> {
        let Place { number, dev } = Place::of(&device);
        let announced = self.observer.publish(dev).map_err(ActError::Observer);
        let pods = match lock(&self.former).remove(&number) {
            Some(Former::Published { pods, .. }) => pods,
            Some(Former::Mark) | None => BTreeSet::new(),
        };
        let inner = Mutex::new(Inner { device: Some(device), pods, cleared: None });
        lock(&self.open).insert(number, Arc::new(Entry { volume: volume.clone(), backing, inner }));
        announced
    }

    /// Notes which pod gets a device.
    pub(super) fn serve(&self, number: Number, pod: Option<&OsStr>) {
        let entry = lock(&self.open).get(&number).cloned();
        if let (Some(entry), Some(pod)) = (entry, pod) {
            lock(&entry.inner).pods.insert(pod.to_owned());
        }
    }

    /// Detaches a device from this file and no other, through the descriptor that is held. Done already is done.
    pub(super) fn detach(&self, number: Number, backing: Backing, volume: &VolumeId) -> Result<(), ActError> {
        let entry = lock(&self.open).remove(&number);
        let held = entry.and_then(|entry| {
            let mut inner = lock(&entry.inner);
            inner.device.take().map(|device| (device, std::mem::take(&mut inner.pods)))
        });
        let (device, pods) = match held {
            Some(held) => held,
            // An earlier process attached it, and no target had it when this one started.
            None => match block::reopen(number, backing) {
                Ok(device) => (device, BTreeSet::new()),
                Err(ActError::DeviceGone) => return Ok(()),
                Err(error) => return Err(error),
            },
        };
        // The driver's first devices exist as long as the driver.
        if number.get() >= Numbers::FIRST {
            let dev = device.dev();
            let known = lock(&self.former).remove(&number);
            let pods = match known {
                Some(Former::Published { pods: earlier, .. }) => earlier.into_iter().chain(pods).collect(),
                Some(Former::Mark) | None => pods,
            };
            lock(&self.former).insert(number, Former::Published { dev, pods });
        }
        block::detach(device, backing, volume)
    }

    /// Clears the flag AUTOCLEAR of devices that some process tried to detach. Returns these. A device that no target shows
    /// is not `published`: the deletion of its volume may be what detaches it.
    pub(super) fn watch(&self, published: impl Fn(Number) -> bool) -> Vec<Revoked> {
        let open = lock(&self.open);
        let entries = open.iter().filter(|(number, _)| published(**number));
        let entries: Vec<_> = entries.map(|(number, entry)| (*number, Arc::clone(entry))).collect();
        drop(open);
        entries.into_iter().filter_map(|(number, entry)| entry.watch(number, Instant::now())).collect()
    }

    /// The devices of a volume that are held, and what they stand on.
    pub(super) fn of(&self, volume: &VolumeId) -> Vec<(Number, Backing)> {
        let open = lock(&self.open);
        let found = open.iter().filter(|(_, entry)| entry.volume == *volume);
        found.map(|(number, entry)| (*number, entry.backing)).collect()
    }

    /// The devices that are held, and their volumes.
    pub(super) fn volumes(&self) -> Vec<(Number, VolumeId)> {
        lock(&self.open).iter().map(|(number, entry)| (*number, entry.volume.clone())).collect()
    }

    /// Whether [`Held::remove_former`] has something to look at.
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
                    let exists = |pod: &OsString| pods.get_or_init(cgroup::pods).iter().any(|found| found.is_of(pod));
                    if nodes.show(number, kubelet) || had.iter().any(exists) {
                        continue;
                    }
                    if numbers.is_latest(number) {
                        match driver.create_next(numbers) {
                            Ok(mark) => drop(lock(&self.former).insert(mark, Former::Mark)),
                            Err(error) => {
                                warn!(error = &error as &dyn Error, "no next loop device: the last one is kept");
                                continue;
                            }
                        }
                    }
                }
            }
            match driver.remove(number) {
                Ok(Removal::Removed) => self.removed(number, &former),
                Ok(Removal::InUse) => {}
                Err(error) => warn!(device = %number, error = &error as &dyn Error, "loop device is not removed"),
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

    /// Closes all descriptors. Devices stay attached, and targets stay as they are.
    pub(super) fn close(&self) {
        for entry in std::mem::take(&mut *lock(&self.open)).into_values() {
            drop(lock(&entry.inner).device.take());
        }
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
    fn watch(&self, number: Number, now: Instant) -> Option<Revoked> {
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
            Ok(true) => Some(Revoked { volume: self.volume.clone(), device: number }),
            Ok(false) => None,
            Err(reason) => {
                let (volume, error): (_, &dyn Error) = (&self.volume, &reason);
                warn!(%volume, device = %number, error, "cannot look at a published loop device");
                None
            }
        }
    }
}

fn is_due(cleared: Option<Instant>, now: Instant) -> bool {
    cleared.is_none_or(|last| now.saturating_duration_since(last) >= PAUSE)
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every state of the tables is a good one.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_cleared_at_most_once_in_ten_seconds() {
        let now = Instant::now();
        assert!(is_due(None, now));
        assert!(!is_due(Some(now), now));
        assert!(!is_due(Some(now), now + PAUSE - Duration::from_millis(1)));
        assert!(is_due(Some(now), now + PAUSE));
    }
}
