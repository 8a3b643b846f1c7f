//! Directories of volumes, mounted on directories.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dir::{Dir, Name};
use fsquota::FsError;
use mount::{Attributes, Detached};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use volume::{Announced, Opened, Store, VolumeGuard, VolumeId, VolumeLocks};

use super::devices::lock;
use super::path::{DIRECTORY, open};
use super::targets::Targets;
use super::{ActError, LookError, PathContents};
use crate::plan::Elsewhere;
use crate::request::TargetPath;

pub(super) fn bind(volume: &Dir, parent: &Dir, name: &Name, attributes: Attributes) -> Result<(), ActError> {
    let mount = Detached::clone_of(volume)?;
    mount.set(attributes)?;
    Ok(mount.attach_at(parent, name.as_os_str())?)
}

/// Needs three system calls, whatever the number of mounts, because only the volume's directory has its project.
pub(super) fn inspect(volume: &Announced, path: &TargetPath) -> Result<PathContents, LookError> {
    // Opened for reading, to read the project. Only a directory: opening it has no side effect.
    let target = match open(path.full(), OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC) {
        Ok(target) => target,
        Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(PathContents::Nothing),
        Err(Errno::ELOOP) => return Err(LookError::Link { parent: path.full().to_owned() }),
        Err(errno) => return Err(LookError::Target(errno)),
    };
    match volume.holds(&target) {
        Ok(true) => Ok(PathContents::Filesystem(volume.quota()?)),
        // The file system at the path has no projects.
        Ok(false) | Err(FsError::System { source: Errno::ENOTTY | Errno::EOPNOTSUPP, .. }) => Ok(PathContents::Nothing),
        Err(error) => Err(error.into()),
    }
}

/// The targets of filesystem volumes.
#[derive(Debug)]
pub(super) struct PublishedDirectories {
    kubelet: PathBuf,
    volumes: Arc<Store>,
    /// Targets by volume; `None` until the mount table was read.
    known: Mutex<Option<BTreeMap<VolumeId, Targets>>>,
    /// Locks of volumes that are being mounted on a target, or whose pods are all frozen.
    publishing: VolumeLocks,
    /// Volumes whose lock a call did not get in time. The next calls do not wait, because the calls for a volume run one
    /// after the other, and their times would add up.
    late: Mutex<BTreeSet<VolumeId>>,
}

impl PublishedDirectories {
    pub(super) fn new(kubelet: PathBuf, volumes: Arc<Store>) -> Self {
        let (known, publishing, late) = (Mutex::default(), VolumeLocks::default(), Mutex::default());
        Self { kubelet, volumes, known, publishing, late }
    }

    pub(super) fn kubelet(&self) -> &Path {
        &self.kubelet
    }

    /// Waits until no other call mounts the volume. Other calls wait while the guard exists.
    pub(super) fn publishing(&self, volume: &VolumeId) -> VolumeGuard {
        let guard = self.publishing.blocking_lock(volume);
        lock(&self.late).remove(volume);
        guard
    }

    /// As [`PublishedDirectories::publishing`], but `None` after this time, or at once if an earlier call waited for the
    /// same clone.
    pub(super) fn publishing_within(&self, volume: &VolumeId, time: Duration) -> Option<VolumeGuard> {
        let is_late = lock(&self.late).contains(volume);
        let guard = self.publishing.lock_within(volume, if is_late { Duration::ZERO } else { time });
        let mut late = lock(&self.late);
        if guard.is_some() {
            late.remove(volume);
        } else {
            late.retain(|other| self.publishing.try_lock(other).is_none());
            late.insert(volume.clone());
        }
        guard
    }

    pub(super) fn volumes(&self) -> &Store {
        &self.volumes
    }

    /// Reads the mount table, if no call did before.
    pub(super) fn find(&self) -> Result<(), LookError> {
        self.change(|_| ())
    }

    /// Adds a target. Call it before the volume is mounted there.
    pub(super) fn add(&self, volume: &VolumeId, target: &Path) -> Result<(), LookError> {
        self.change(|known| known.entry(volume.clone()).or_default().add(target))
    }

    /// Removes a target. Call it after the unmount.
    pub(super) fn remove(&self, volume: &VolumeId, target: &Path) {
        if let Some(known) = &mut *lock(&self.known)
            && let Some(targets) = known.get_mut(volume)
        {
            targets.remove(target);
            if targets.is_empty() {
                known.remove(volume);
            }
        }
    }

    /// Whether a volume has another target. A known target is checked at its path. If it does not show the volume, the
    /// mount table decides, which also has mounts that other mounts hide.
    pub(super) fn elsewhere(&self, volume: &Opened, id: &VolumeId, target: &Path) -> Result<Elsewhere, LookError> {
        let known = |known: &mut BTreeMap<VolumeId, Targets>| known.get(id)?.besides(target).map(Path::to_owned);
        let Some(other) = self.change(known)? else { return Ok(Elsewhere::Nowhere) };
        let identity = mount::identity(volume.dir())?;
        if open(&other, DIRECTORY).is_ok_and(|found| mount::identity(found) == Ok(identity)) {
            return Ok(Elsewhere::Published);
        }
        let table = mount::table()?;
        let root = root(&table, volume.dir())?;
        let shows = |entry: &&mount::Entry| entry.device == identity.device && entry.root == root;
        let found: Targets = beneath(&table, &self.kubelet).filter(shows).map(|entry| entry.point.as_path()).collect();
        let elsewhere = found.besides(target).map_or(Elsewhere::Nowhere, |_| Elsewhere::Published);
        self.change(|known| known.insert(id.clone(), found))?;
        Ok(elsewhere)
    }

    /// Changes the targets under the lock. The first call also reads the mount table under the lock, before it adds a
    /// target that is not mounted yet.
    fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<VolumeId, Targets>) -> T) -> Result<T, LookError> {
        let mut known = lock(&self.known);
        let found = match known.take() {
            Some(known) => known,
            None => self.look()?,
        };
        Ok(change(known.insert(found)))
    }

    fn look(&self) -> Result<BTreeMap<VolumeId, Targets>, LookError> {
        let table = mount::table()?;
        // The directory that contains the directories of all live volumes.
        let live = self.volumes.file_system();
        let (live, disk) = (root(&table, live)?, mount::identity(live)?.device);
        let mut found = BTreeMap::<_, Targets>::new();
        for entry in beneath(&table, &self.kubelet).filter(|entry| entry.device == disk) {
            let name = entry.root.strip_prefix(&live).ok().and_then(Path::to_str);
            if let Some(volume) = name.and_then(|name| name.parse().ok()) {
                found.entry(volume).or_default().add(&entry.point);
            }
        }
        Ok(found)
    }
}

fn beneath<'a>(table: &'a [mount::Entry], kubelet: &'a Path) -> impl Iterator<Item = &'a mount::Entry> {
    table.iter().filter(move |entry| entry.point.starts_with(kubelet))
}

/// Path of a directory from the root of its file system, as in the mount table.
fn root(table: &[mount::Entry], directory: impl AsFd) -> Result<PathBuf, LookError> {
    let own = mount::at(&directory)?.mount;
    let path = fs::read_link(format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd())).map_err(LookError::Path)?;
    let own = table.iter().find(|entry| entry.mount == own).ok_or(LookError::Hidden)?;
    Ok(own.root.join(path.strip_prefix(&own.point).map_err(|_| LookError::Hidden)?))
}
