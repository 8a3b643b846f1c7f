//! Freezes the pods of volumes while the volumes are cloned.

use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use freezer::{FreezeError, Frozen, Pause, freeze};
use tracing::info;
use volume::{FrozenPods, IoLimits, PodFreezer, PodPause, VolumeGuard, VolumeId, Volumes as _};

use super::cgroup::{CgroupError, Cgroups};
use super::devices::{Lifted, PublishedDevices};
use super::filesystem::PublishedDirectories;
use crate::layout::{DEVICES, MAPS, matches};

/// Argument of the guard, the process that thaws the pods.
const GUARD: &str = "thaw-pods";

/// Runs the guard and returns its exit code if `arguments` are those of the guard. Call it first in `main`.
pub fn guard(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    (arguments.into_iter().nth(1)? == GUARD).then(freezer::guard)
}

/// Command that starts this program as the guard.
pub(super) fn this_program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(GUARD);
    command
}

#[derive(Debug, thiserror::Error)]
enum StopError {
    #[error("cannot find the pods that use the volume")]
    Look(#[from] volume::LookError),
    #[error("the volume is mounted at {}, which is not a path of a pod; unmount it", .0.display())]
    NoPod(PathBuf),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Freeze(#[from] FreezeError),
}

#[derive(Debug)]
pub(super) struct PublishedPods {
    directories: Arc<PublishedDirectories>,
    devices: Arc<PublishedDevices>,
    cgroups: Cgroups,
    guard: fn() -> Command,
}

/// Lifts the I/O limits of the pods until it is dropped, because a process that waits for limited I/O freezes only
/// after that I/O.
struct Unlimited {
    directories: Arc<PublishedDirectories>,
    devices: Arc<PublishedDevices>,
    lifted: Lifted,
}

/// Frozen pods. No pod gets one of the volumes until the value is dropped.
struct Stopped {
    frozen: Option<Frozen>,
    /// Time when all processes were frozen.
    since: Instant,
    // Dropped after `frozen`: the limits return when the pods run again.
    unlimited: Unlimited,
    _publishing: Vec<VolumeGuard>,
}

impl PublishedPods {
    pub(super) const fn new(
        directories: Arc<PublishedDirectories>,
        devices: Arc<PublishedDevices>,
        cgroups: Cgroups,
        guard: fn() -> Command,
    ) -> Self {
        Self { directories, devices, cgroups, guard }
    }

    pub(super) fn with_guard(&self, guard: fn() -> Command) -> Self {
        Self::new(Arc::clone(&self.directories), Arc::clone(&self.devices), self.cgroups.clone(), guard)
    }

    pub(super) fn with_devices(&self, devices: Arc<PublishedDevices>) -> Self {
        Self::new(Arc::clone(&self.directories), devices, self.cgroups.clone(), self.guard)
    }

    /// Thaws the pods that an earlier process left frozen.
    pub(super) fn thaw(&self) -> Result<(), FreezeError> {
        freezer::thaw_marked(self.cgroups.root(), |cgroup| {
            info!(cgroup = %cgroup.display(), "cgroup thawed, an earlier process had frozen it");
        })
    }

    fn stop(&self, ids: &[VolumeId], budget: Duration) -> Result<Stopped, StopError> {
        // All calls lock the volumes in the same order.
        let ids: BTreeSet<_> = ids.iter().collect();
        let publishing = ids.iter().map(|id| self.directories.publishing(id)).collect();
        let (mut cgroups, mut pods) = (Vec::new(), BTreeSet::new());
        for id in ids {
            for target in self.directories.volumes().targets(id)? {
                let pod = pod(self.directories.kubelet(), &target).ok_or_else(|| StopError::NoPod(target.clone()))?;
                // Processes of a pod without a cgroup may start at any time, so a missing cgroup is an error.
                let path = self.cgroups.of(pod)?.path().to_owned();
                pods.insert(pod.to_owned());
                if !cgroups.contains(&path) {
                    cgroups.push(path);
                }
            }
        }
        let unlimited = self.unlimited(&pods);
        let frozen = if cgroups.is_empty() { None } else { Some(freeze((self.guard)(), &cgroups, budget)) };
        let frozen = frozen.transpose().inspect_err(|error| {
            if let Some(pause) = late(error) {
                observe(&self.directories, pause, Duration::ZERO);
            }
        })?;
        Ok(Stopped { frozen, since: Instant::now(), unlimited, _publishing: publishing })
    }

    fn unlimited(&self, pods: &BTreeSet<OsString>) -> Unlimited {
        let (directories, devices) = (Arc::clone(&self.directories), Arc::clone(&self.devices));
        Unlimited { directories, lifted: devices.lift(pods), devices }
    }
}

impl PodFreezer for PublishedPods {
    fn freeze(&self, ids: &[VolumeId], budget: Duration) -> Result<Box<dyn FrozenPods>, Box<dyn Error + Send + Sync>> {
        Ok(Box::new(self.stop(ids, budget)?))
    }
}

impl Drop for Unlimited {
    fn drop(&mut self) {
        let volumes = self.directories.volumes();
        let limits = |id: &VolumeId| volumes.announced(id).map_or(IoLimits::NONE, |volume| volume.io());
        self.devices.restore(&self.lifted, limits);
    }
}

impl FrozenPods for Stopped {
    fn deadline(&self) -> Option<Instant> {
        self.frozen.as_ref().map(Frozen::deadline)
    }

    fn thaw(mut self: Box<Self>) -> Result<(), Box<dyn Error + Send + Sync>> {
        if let Some(frozen) = self.frozen.take() {
            let clone = self.since.elapsed();
            let thawed = frozen.thaw();
            if let Some(pause) = thawed.as_ref().map_or_else(late, |pause| Some(*pause)) {
                observe(&self.unlimited.directories, pause, clone);
            }
            thawed?;
        }
        Ok(())
    }
}

/// The pause that exceeded its budget. If some processes never stopped, the pods were only being frozen.
fn late(error: &FreezeError) -> Option<Pause> {
    let FreezeError::Late { freeze, total, .. } = *error else { return None };
    Some(Pause { freeze: freeze.unwrap_or(total), total })
}

/// Phases of a pause. If it exceeded its budget, the pods ran again during the clone.
fn phases(Pause { freeze, total }: Pause, clone: Duration) -> PodPause {
    let rest = total.saturating_sub(freeze);
    let clone = clone.min(rest);
    PodPause { freeze, clone, thaw: rest - clone }
}

fn observe(directories: &PublishedDirectories, pause: Pause, clone: Duration) {
    let phases = phases(pause, clone);
    info!(pause = ?pause.total, freeze = ?phases.freeze, clone = ?phases.clone, "pause of the volume's pods ended");
    directories.volumes().calls().observe_pause(phases);
}

/// UID of the pod whose directory contains the target, or that gets the device at the target.
fn pod<'a>(kubelet: &Path, target: &'a Path) -> Option<&'a OsStr> {
    let beneath = target.strip_prefix(kubelet).ok()?;
    if matches(beneath, DEVICES) || matches(beneath, MAPS) {
        return beneath.file_name();
    }
    let mut components = beneath.components();
    match (components.next()?, components.next()?) {
        (Component::Normal(pods), Component::Normal(pod)) if pods == "pods" => Some(pod),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pod_of_a_target_is_in_its_path() {
        let kubelet = Path::new("/data/kubelet");
        let of = |target: &str| pod(kubelet, Path::new(target)).map(OsStr::to_owned);
        let uid = Some(OsString::from("11-22"));
        assert_eq!(of("/data/kubelet/pods/11-22/volumes/kubernetes.io~csi/pvc-1/mount"), uid);
        assert_eq!(of("/data/kubelet/pods/11-22/volume-subpaths/pvc-1/web/0"), uid);
        let devices = "/data/kubelet/plugins/kubernetes.io/csi/volumeDevices";
        assert_eq!(of(&format!("{devices}/publish/pvc-1/11-22")), uid);
        assert_eq!(of(&format!("{devices}/pvc-1/dev/11-22")), uid);
        for other in ["/mnt", "/data/kubelet/plugins/11-22", "/data/kubelet/pods", "/data/kubelet"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn the_phases_of_a_pause_are_its_duration() {
        let [zero, one, two, five] = [0, 1, 2, 5].map(Duration::from_secs);
        let in_time = phases(Pause { freeze: one, total: five }, two);
        assert_eq!(in_time, PodPause { freeze: one, clone: two, thaw: two });
        let error = |freeze| FreezeError::Late { budget: two, freeze, total: two };
        let of_late = |freeze, clone| phases(late(&error(freeze)).expect("a pause"), clone);
        assert_eq!(of_late(Some(one), five), PodPause { freeze: one, clone: one, thaw: zero });
        assert_eq!(of_late(None, zero), PodPause { freeze: two, clone: zero, thaw: zero });
        assert_eq!(late(&FreezeError::Guard), None);
    }

    #[test]
    fn only_its_own_argument_starts_the_guard() {
        for arguments in [&["init"][..], &[], &["init", "other"]] {
            assert!(guard(arguments.iter().map(OsString::from)).is_none(), "{arguments:?}");
        }
    }
}
