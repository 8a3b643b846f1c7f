//! [`Restrictions`]: the BPF programs in force, and the state that outlives them.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use lsm::{Cgroup, DeviceNumber, Guard, Operation};
use provisioner::{Notice, Notices};
use tokio::sync::watch;
use tracing::warn;

use crate::denials::Denials;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Enforcement {
    /// State before the first attempt to load the programs.
    #[default]
    Unknown,
    Enforced,
    Failed(Arc<str>),
}

/// Restrictions of pods. The state outlives a restart of the service that loads the programs.
#[derive(Debug)]
pub struct Restrictions {
    state: Mutex<GuardState>,
    enforcement: watch::Sender<Enforcement>,
    notices: Notices,
}

#[derive(Debug)]
struct GuardState {
    guard: Option<Guard>,
    /// Loop devices of published volumes, including volumes that were published before a guard was loaded.
    published: BTreeSet<DeviceNumber>,
    /// Denials that previous guards counted.
    past: [u64; Operation::ALL.len()],
    denials: Denials,
}

impl Restrictions {
    /// Creates the state without programs. `links` is the kubelet's directory with links to the logs of containers.
    pub fn new(links: impl Into<PathBuf>, notices: Notices) -> Self {
        let denials = Denials::new(links.into());
        let state = GuardState { guard: None, published: BTreeSet::new(), past: [0; Operation::ALL.len()], denials };
        Self { state: Mutex::new(state), enforcement: watch::Sender::default(), notices }
    }

    pub fn enforcement(&self) -> watch::Receiver<Enforcement> {
        self.enforcement.subscribe()
    }

    pub fn set(&self, enforcement: Enforcement) -> bool {
        self.enforcement.send_if_modified(|present| {
            let is_new = *present != enforcement;
            *present = enforcement;
            is_new
        })
    }

    /// The cgroup that the programs apply to. `None` without programs.
    pub fn cgroup(&self) -> Option<Cgroup> {
        self.state().guard.as_ref().map(Guard::cgroup)
    }

    /// Passes the published devices to new programs, and then replaces the previous programs. Previous programs that
    /// are not pinned are detached afterwards.
    ///
    /// # Errors
    /// The kernel rejects a device. The previous programs stay in force.
    pub fn replace(&self, guard: Guard) -> Result<(), lsm::Error> {
        let mut state = self.state();
        for &device in &state.published {
            guard.publish(device)?;
        }
        if let Some(former) = state.guard.replace(guard) {
            let counted = former.denied().unwrap_or_default();
            for (past, operation) in state.past.iter_mut().zip(Operation::ALL) {
                *past += counted.of(operation);
            }
        }
        Ok(())
    }

    /// Denies pods changes of this loop device.
    ///
    /// # Errors
    /// The kernel rejects the device number.
    pub fn publish(&self, device: DeviceNumber) -> Result<(), lsm::Error> {
        let mut state = self.state();
        // Record the device even if the present guard rejects it, for guards that are loaded later.
        state.published.insert(device);
        match &state.guard {
            Some(guard) => guard.publish(device),
            None => Ok(()),
        }
    }

    /// Reverts [`Restrictions::publish`].
    ///
    /// # Errors
    /// The kernel does not remove the device number.
    pub fn withdraw(&self, device: DeviceNumber) -> Result<(), lsm::Error> {
        let mut state = self.state();
        if let Some(guard) = &state.guard {
            guard.withdraw(device)?;
        }
        state.published.remove(&device);
        Ok(())
    }

    /// Denied calls of pods since the programs were first loaded.
    pub fn denied(&self) -> [(Operation, u64); Operation::ALL.len()] {
        let state = self.state();
        let present = state.guard.as_ref().and_then(|guard| guard.denied().ok()).unwrap_or_default();
        let mut past = state.past.into_iter();
        Operation::ALL.map(|operation| (operation, past.next().unwrap_or_default() + present.of(operation)))
    }

    /// Reports calls that were denied since the last report. `hierarchy` is the root of the cgroup hierarchy.
    pub fn report(&self, hierarchy: &Path) {
        if let Err(error) = self.try_report(hierarchy) {
            warn!(error = &*error, "cannot report denied calls of pods");
        }
    }

    fn try_report(&self, hierarchy: &Path) -> Result<(), Box<dyn Error>> {
        let mut state = self.state();
        let Some(guard) = &state.guard else { return Ok(()) };
        let denied = guard.recent()?;
        if denied.is_empty() {
            return Ok(());
        }
        let hierarchy = File::open(hierarchy)?;
        for denied in denied {
            let cgroup = denied.cgroup.path(&hierarchy)?;
            let notice = state.denials.notice(&denied, cgroup.as_deref(), Instant::now());
            notice.into_iter().for_each(|notice| self.notices.send(notice));
        }
        Ok(())
    }

    pub fn notify(&self, notice: Notice) {
        self.notices.send(notice);
    }

    fn state(&self) -> MutexGuard<'_, GuardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Observer that restricts the loop devices that the CSI plugin publishes.
#[derive(Debug)]
pub struct Devices(pub Arc<Restrictions>);

impl csi::DeviceObserver for Devices {
    fn publish(&self, device: DeviceNumber) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.0.publish(device)?)
    }

    fn withdraw(&self, device: DeviceNumber) {
        if let Err(error) = self.0.withdraw(device) {
            let error: &dyn Error = &error;
            warn!(error, %device, "cannot lift the restriction of a removed loop device");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_published_before_the_guard_is_loaded_are_recorded() {
        let restrictions = Restrictions::new("/nonexistent", provisioner::notices().0);
        let device = DeviceNumber { major: 7, minor: 3 };
        restrictions.publish(device).unwrap();
        assert!(restrictions.state().published.contains(&device));
        restrictions.withdraw(device).unwrap();
        assert!(restrictions.state().published.is_empty());
        assert_eq!(restrictions.denied().map(|(_, count)| count), [0; 3]);
    }

    #[test]
    fn a_repeated_reason_is_not_a_change() {
        let restrictions = Restrictions::new("/nonexistent", provisioner::notices().0);
        let failed = || Enforcement::Failed("no BPF".into());
        assert!(restrictions.set(failed()));
        assert!(!restrictions.set(failed()));
        assert!(restrictions.set(Enforcement::Enforced));
        assert!(restrictions.set(failed()));
    }
}
