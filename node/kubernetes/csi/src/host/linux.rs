//! The disk, the mounts and the loop devices: reads their state, and executes single steps.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dir::Dir;
use fsquota::{FsError, Quota};
use loopdev::{Attached, Backing, FileId, Number};
use tracing::{error, warn};
use units::Bytes;
use volume::{
    Access, DiskFault, IoLimits, IoThrottle, OpenError, PodFreezer, Store, VolumeGuard, VolumeId, Volumes as _,
};

use super::block::{self, DeviceId};
use super::cgroup::Cgroups;
use super::devices::{DeviceObserver, NoObserver, PublishedDevices};
use super::filesystem::PublishedDirectories;
use super::freezing::{PublishedPods, this_program};
use super::path::{self, create, remove, unmount};
use super::{ActError, Host, Inspection, LookError, PathContents, WatchReport, filesystem};
use crate::layout::{DEVICES, matches};
use crate::plan::{Device, Elsewhere, Step, Target, Volume, VolumeView};
use crate::request::{LookRequest, Mode, Purpose, Sharing, TargetPath};

mod target;

use target::seen_block;

/// Time that a call waits for the end of a clone. A clone without pods to stop has no limit of time, and calls that wait
/// for it take the connections and threads of others.
const CLONED: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Linux {
    kubelet: PathBuf,
    volumes: Arc<Store>,
    devices: Arc<PublishedDevices>,
    directories: Arc<PublishedDirectories>,
    pods: Arc<PublishedPods>,
}

/// Descriptors that a look opened. All steps use these.
#[derive(Debug)]
pub struct Opened {
    id: VolumeId,
    volume: Option<volume::Opened>,
    image: Option<Image>,
    parent: Option<Dir>,
    target: TargetPath,
    /// The device to publish.
    device: Option<Attached>,
    /// Devices without other targets.
    idle: Vec<(Number, Backing)>,
    /// The device that this call attached.
    fresh: Option<DeviceId>,
    /// Lock of a publish, from its first change of the volume's device or mounts.
    publishing: Option<VolumeGuard>,
}

impl Opened {
    fn parent(&self) -> Result<&Dir, ActError> {
        self.parent.as_ref().ok_or(ActError::ParentGone)
    }
}

/// The image of a block volume, open with the access that the call needs.
#[derive(Debug)]
struct Image {
    file: OwnedFd,
    backing: Backing,
}

/// The mount point of cgroup2.
const CGROUPS: &str = "/sys/fs/cgroup";

impl Linux {
    /// `kubelet` is kubelet's root directory, on the volumes' file system or on another one.
    pub fn new(kubelet: impl Into<PathBuf>, volumes: Arc<Store>) -> Self {
        Self::with_cgroups(kubelet, volumes, CGROUPS)
    }

    /// `cgroups` is the mount point of the host's cgroup2 hierarchy.
    pub fn with_cgroups(kubelet: impl Into<PathBuf>, volumes: Arc<Store>, cgroups: impl Into<PathBuf>) -> Self {
        let (cgroups, kubelet) = (Cgroups::new(cgroups.into()), kubelet.into());
        let directories = Arc::new(PublishedDirectories::new(kubelet.clone(), Arc::clone(&volumes)));
        let devices = Arc::new(PublishedDevices::new(NoObserver, cgroups.clone()));
        let pods = PublishedPods::new(Arc::clone(&directories), Arc::clone(&devices), cgroups, this_program);
        let pods = Arc::new(pods);
        Self { kubelet, volumes, devices, directories, pods }
    }

    /// Sets the command that starts the guard. Its program calls [`guard`](crate::guard), or does the same.
    #[must_use]
    pub fn with_guard(self, guard: fn() -> Command) -> Self {
        Self { pods: Arc::new(self.pods.with_guard(guard)), ..self }
    }

    #[must_use]
    pub fn with_observer(self, observer: impl DeviceObserver) -> Self {
        let devices = Arc::new(self.devices.with_observer(observer));
        Self { pods: Arc::new(self.pods.with_devices(Arc::clone(&devices))), devices, ..self }
    }

    /// Applies changes of the volumes' I/O limits. Pass it to [`Store::throttle_by`].
    pub fn throttle(&self) -> Weak<dyn IoThrottle> {
        let devices: Arc<dyn IoThrottle> = self.devices.clone();
        Arc::downgrade(&devices)
    }

    /// Freezes the pods of volumes while the volumes are cloned. Pass it to [`Store::freeze_by`]; `main` of the program
    /// must call [`guard`](crate::guard). Also thaws the pods that an earlier process left frozen.
    pub fn freezer(&self) -> Weak<dyn PodFreezer> {
        if let Err(reason) = self.pods.thaw() {
            error!(
                error = &reason as &dyn Error,
                "cannot thaw all pods that an earlier process froze; delete those that are still frozen"
            );
        }
        let pods: Arc<dyn PodFreezer> = self.pods.clone();
        Arc::downgrade(&pods)
    }

    /// I/O limits of a volume. A deleted volume has none.
    fn io(&self, id: &VolumeId) -> IoLimits {
        self.volumes.announced(id).map_or(IoLimits::NONE, |volume| volume.io())
    }

    /// The volume, and its image if it is a block volume.
    fn open(
        &self,
        id: &VolumeId,
        access: Access,
    ) -> Result<(Volume, Option<volume::Opened>, Option<Image>), LookError> {
        let opened = match self.volumes.open_volume(id) {
            Ok(opened) => opened,
            Err(OpenError::Unknown { .. }) => return Ok((Volume::Unknown, None, None)),
            Err(OpenError::NotAnnounced { .. }) => return Ok((Volume::NotAnnounced, None, None)),
            Err(reason @ (OpenError::Record { .. } | OpenError::Image { .. })) => return Ok(damaged(&reason)),
            Err(error @ OpenError::Dir { .. }) => return Err(LookError::Volume(error)),
        };
        if !opened.mode().is_block() {
            return Ok((Volume::Known(Mode::Filesystem), Some(opened), None));
        }
        let file = match opened.image(access) {
            Ok(file) => file,
            Err(reason) => return Ok(damaged(&reason)),
        };
        let image = Image { backing: Backing::of(&file)?, file };
        Ok((Volume::Known(Mode::Block), Some(opened), Some(image)))
    }

    /// The device numbers of the volumes' file system.
    fn disk(&self) -> Result<(u32, u32), LookError> {
        Ok(mount::identity(self.volumes.file_system())?.device)
    }

    /// The devices that are attached to files of the volumes' disk.
    fn on_disk(&self) -> Result<Vec<Attached>, LookError> {
        let disk = self.disk()?;
        let mut found = loopdev::list()?;
        found.retain(|device| match device.status.backing {
            Backing::File(FileId { device: on, .. }) => (on.major, on.minor) == disk,
            Backing::Device(_) => false,
        });
        Ok(found)
    }

    /// The images of all block volumes that can be used.
    fn images(&self) -> Result<HashMap<Backing, VolumeId>, LookError> {
        let mut images = HashMap::new();
        for (id, record) in self.volumes.records()?.readable {
            if !record.mode.is_block() {
                continue;
            }
            match self.open(&id, Access::ReadOnly) {
                Ok((_, _, Some(image))) => drop(images.insert(image.backing, id)),
                Ok((_, _, None)) => {}
                // The devices of other volumes are held in any case.
                Err(error) => warn!(volume = %id, error = &error as &dyn Error, "cannot open the volume's image"),
            }
        }
        Ok(images)
    }

    fn attach(&self, at: &Opened, read_only: bool) -> Result<DeviceId, ActError> {
        let image = at.image.as_ref().ok_or(ActError::VolumeGone)?;
        self.devices.attach(&at.id, image.file.as_fd(), image.backing, read_only)
    }

    /// Waits for the end of a clone. Until the end of the call, no other clone begins.
    fn lock(&self, at: &mut Opened) -> Result<(), ActError> {
        if at.publishing.is_none() {
            at.publishing = Some(self.directories.publishing_within(&at.id, CLONED).ok_or(ActError::Cloned)?);
        }
        Ok(())
    }

    /// Holds the device that the target will show. All steps of the call use the same device.
    fn hold(&self, at: &mut Opened) -> Result<DeviceId, ActError> {
        if let Some(fresh) = at.fresh {
            return Ok(fresh);
        }
        let seen = at.device.ok_or(ActError::DeviceGone)?;
        match self.devices.hold(&at.id, &seen) {
            // A detach of the device was pending, and the last process that had the device open closed it.
            Err(ActError::DeviceGone) => {
                let fresh = self.attach(at, seen.status.config.read_only)?;
                at.fresh = Some(fresh);
                Ok(fresh)
            }
            held => held,
        }
    }

    /// Detaches the device that this call attached, and the devices without other targets.
    fn detach(&self, at: &mut Opened) -> Result<(), ActError> {
        if let (Some(fresh), Some(image)) = (at.fresh.take(), &at.image) {
            self.devices.detach(fresh.number, image.backing, &at.id)?;
        }
        for (number, backing) in at.idle.drain(..) {
            self.devices.detach(number, backing, &at.id)?;
        }
        Ok(())
    }

    /// Removes unused devices. After an error, the watch tries again. An unpublish does not remove them, because that
    /// requires all mounts.
    fn remove_former(&self, nodes: &block::Nodes) {
        if self.devices.has_former()
            && let Err(reason) = self.devices.remove_former(nodes, &self.kubelet)
        {
            warn!(error = &reason as &dyn std::error::Error, "cannot remove unused loop devices yet");
        }
    }

    /// Sets the limits of volumes again, because another program may have changed them or an earlier process may not
    /// have set them. Removes no limits.
    fn limit_again<'a>(&self, volumes: impl Iterator<Item = &'a VolumeId>) {
        for volume in volumes.filter(|volume| !self.io(volume).is_none()) {
            if let Err(reason) = self.devices.limit(volume, || self.io(volume)) {
                warn!(%volume, error = &reason as &dyn Error, "cannot limit the I/O of the volume");
            }
        }
    }

    /// Finds the open devices of a block volume that has no record any more.
    fn open_devices(&self, at: &mut Opened, seen: &mut VolumeView, target: &TargetPath) -> Result<(), LookError> {
        at.idle = self.devices.of(&at.id);
        if at.idle.is_empty() {
            return Ok(());
        }
        let nodes = block::Nodes::look()?;
        at.idle.retain(|(number, _)| !nodes.has_targets(*number, &self.kubelet, Some(target)));
        seen.device = if at.idle.is_empty() { Device::Shared } else { Device::Idle };
        Ok(())
    }

    /// Finds the devices of a block volume, as far as the purpose needs them.
    fn devices(
        &self,
        at: &mut Opened,
        seen: &mut VolumeView,
        target: &TargetPath,
        purpose: Purpose,
    ) -> Result<(), LookError> {
        let Some(image) = &at.image else { return Ok(()) };
        let (mut shared, mut idle) = (Vec::new(), Vec::new());
        for device in self.devices.attached(image.backing)? {
            if self.is_shared(&device, target)? { shared.push(device) } else { idle.push(device) }
        }
        at.idle = idle.iter().map(|device| (device.number, device.status.backing)).collect();
        if !shared.is_empty() {
            seen.elsewhere = Elsewhere::Published;
        }
        let known = match purpose {
            Purpose::Publish { read_only, .. } => {
                at.device =
                    shared.iter().chain(&idle).find(|found| found.status.config.read_only == read_only).copied();
                at.device
            }
            Purpose::Unpublish => idle.first().or(shared.first()).copied(),
        };
        let state = |device| if idle.contains(&device) { Device::Idle } else { Device::Shared };
        seen.device = known.map_or(Device::Absent, state);
        Ok(())
    }
}

impl Host for Linux {
    type At = Opened;

    fn ready(&self) -> Result<(), volume::LookError> {
        self.volumes.space().map(drop)
    }

    fn look(
        &self,
        LookRequest { volume: id, target, purpose }: LookRequest<'_>,
    ) -> Result<(Opened, VolumeView), LookError> {
        let access = match purpose {
            Purpose::Publish { read_only: false, .. } => Access::ReadWrite,
            Purpose::Publish { read_only: true, .. } | Purpose::Unpublish => Access::ReadOnly,
        };
        let (volume, opened, image) = self.open(id, access)?;
        let parent = path::parent(target)?;
        let there = match &parent {
            Some(parent) => self.at_target(parent, target.name(), opened.as_ref(), image.as_ref())?,
            None => Target::NoParent,
        };
        let there = match (&parent, there, volume) {
            (Some(parent), Target::OtherVolume, Volume::Unknown | Volume::NotAnnounced | Volume::Damaged)
                if !self.is_anothers(id, parent, target.name())? =>
            {
                Target::Stale
            }
            _ => there,
        };
        let (elsewhere, device) = (Elsewhere::Nowhere, Device::Absent);
        let mut seen = VolumeView { volume, target: there, elsewhere, device };
        let mut at = Opened {
            id: id.clone(),
            volume: opened,
            image,
            parent: parent.map(Dir::from),
            target: target.clone(),
            device: None,
            idle: Vec::new(),
            fresh: None,
            publishing: None,
        };
        match (volume, purpose) {
            // The plan rejects the other mode.
            (Volume::Known(is), Purpose::Publish { mode, .. }) if is != mode => {}
            // Already published.
            (_, Purpose::Publish { .. }) if matches!(there, Target::Published(_)) => {}
            (Volume::Known(Mode::Block), _) => self.devices(&mut at, &mut seen, target, purpose)?,
            (Volume::Known(Mode::Filesystem), Purpose::Publish { sharing: Sharing::OneTarget, .. }) => {
                if let Some(volume) = &at.volume {
                    seen.elsewhere = self.directories.elsewhere(volume, id, target.full())?;
                }
            }
            (Volume::NotAnnounced | Volume::Damaged | Volume::Unknown, Purpose::Unpublish) => {
                self.open_devices(&mut at, &mut seen, target)?;
            }
            (Volume::Known(Mode::Filesystem) | Volume::NotAnnounced | Volume::Damaged | Volume::Unknown, _) => {}
        }
        Ok((at, seen))
    }

    fn act(&self, at: &mut Opened, step: Step) -> Result<(), ActError> {
        match step {
            Step::CreateTarget(shape) => create(at.parent()?, at.target.name(), shape),
            Step::Attach { read_only } => {
                self.lock(at)?;
                at.fresh = Some(self.attach(at, read_only)?);
                Ok(())
            }
            Step::Limit => {
                self.lock(at)?;
                // The device is held first, so that later changes of the limits reach it.
                self.hold(at)?;
                if self.io(&at.id).is_none() {
                    return Ok(());
                }
                Ok(self.devices.limit(&at.id, || self.io(&at.id))?)
            }
            Step::Bind(attributes) => {
                self.lock(at)?;
                match (&at.image, &at.volume) {
                    (None, Some(volume)) => {
                        self.directories.add(&at.id, at.target.full())?;
                        filesystem::bind(volume.dir(), at.parent()?, at.target.name(), attributes)
                    }
                    (Some(_), _) => {
                        let device = self.hold(at)?;
                        self.devices.serve(device.number, pod(at.target.beneath()).as_deref());
                        self.devices.add_target(device.number, at.target.full());
                        block::bind(device, at.parent()?, at.target.name(), attributes)
                    }
                    (None, None) => Err(ActError::VolumeGone),
                }
            }
            Step::Unmount => {
                unmount(at.parent()?, at.target.name())?;
                // Only after the unmount: a mount that another one hides, or that was moved away, still counts for
                // other targets.
                self.directories.remove(&at.id, at.target.full());
                Ok(())
            }
            Step::RemoveTarget => {
                remove(at.parent()?, at.target.name())?;
                self.devices.remove_target(&at.id, at.target.full());
                Ok(())
            }
            Step::Detach => self.detach(at),
        }
    }

    fn unpublished(&self, id: &VolumeId) {
        self.volumes.calls().unpublished(id);
    }

    fn inspect(&self, id: &VolumeId, path: &TargetPath) -> Result<Inspection, LookError> {
        let known = self.volumes.announced(id);
        if let Ok(volume) = &known
            && !volume.mode().is_block()
        {
            let found = filesystem::inspect(volume, path)?;
            return Ok(Inspection { volume: Volume::Known(Mode::Filesystem), found });
        }
        let (volume, opened, image) = self.open(id, Access::ReadOnly)?;
        let Some(parent) = path::parent(path)? else { return Ok(Inspection { volume, found: PathContents::Nothing }) };
        let there = self.at_target(&parent, path.name(), opened.as_ref(), image.as_ref())?;
        let found = match (volume, there, &image) {
            (Volume::Damaged, Target::OtherVolume | Target::Stale, _) => PathContents::Unusable,
            (Volume::Known(Mode::Block), Target::Published(_) | Target::Stale, Some(image)) => {
                seen_block(&parent, path.name(), image)?
            }
            _ => PathContents::Nothing,
        };
        Ok(Inspection { volume, found })
    }

    fn volume(&self, id: &VolumeId) -> Result<Volume, LookError> {
        self.open(id, Access::ReadOnly).map(|(volume, ..)| volume)
    }

    fn disk_faults(&self) -> Vec<DiskFault> {
        self.volumes.last_faults()
    }

    fn read_faults(&self) -> Result<(), FsError> {
        self.volumes.faults().map(drop)
    }

    fn limits_changed(&self, id: &VolumeId, found: &Quota) -> bool {
        self.volumes.changed_limits(id, Some(found)).is_ok_and(|changed| changed.is_some())
    }

    fn grow(&self, id: &VolumeId) -> Result<Option<Bytes>, ActError> {
        let (_, _, image) = self.open(id, Access::ReadOnly)?;
        let Some(image) = image else { return Ok(None) };
        block::grow(&block::devices(image.backing)?)
    }

    fn attached(&self) -> Result<usize, LookError> {
        Ok(self.on_disk()?.len())
    }

    fn idle(&self) -> Result<Vec<VolumeId>, LookError> {
        let mut candidates = self.on_disk()?;
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        let nodes = block::Nodes::look()?;
        candidates.retain(|device| !nodes.has_targets(device.number, &self.kubelet, None));
        let mut images = self.images()?;
        images.retain(|backing, _| candidates.iter().any(|device| device.status.backing == *backing));
        Ok(images.into_values().collect())
    }

    fn release(&self, id: &VolumeId) -> Result<bool, ActError> {
        let mut devices: BTreeMap<_, _> = self.devices.of(id).into_iter().collect();
        if let (_, _, Some(image)) = self.open(id, Access::ReadOnly)? {
            let attached = block::devices(image.backing)?.into_iter();
            devices.extend(attached.map(|device| (device.number, device.status.backing)));
        }
        let nodes = block::Nodes::look()?;
        devices.retain(|number, _| !nodes.has_targets(*number, &self.kubelet, None));
        let is_idle = !devices.is_empty();
        for (number, backing) in devices {
            self.devices.detach(number, backing, id)?;
        }
        self.remove_former(&nodes);
        Ok(is_idle)
    }

    fn adopt(&self) -> Result<usize, LookError> {
        self.directories.find()?;
        let nodes = block::Nodes::look()?;
        let mut targets = nodes.targets(&self.kubelet).peekable();
        if targets.peek().is_none() {
            return Ok(0);
        }
        let (images, devices) = (self.images()?, loopdev::list()?);
        let mut failed = 0;
        for (number, target) in targets {
            let pod = target.strip_prefix(&self.kubelet).ok().and_then(pod);
            let target = target.display();
            let Some(device) = devices.iter().find(|device| device.number == number) else {
                warn!(%target, device = %number, "published device was detached; restart the pods that use it");
                continue;
            };
            let Some(volume) = images.get(&device.status.backing) else {
                error!(
                    %target, device = %number, backing = %device.status.backing,
                    "published device does not belong to a volume"
                );
                failed += 1;
                continue;
            };
            match self.devices.hold(volume, device) {
                Ok(_) => self.devices.serve(number, pod.as_deref()),
                Err(reason) => {
                    let error: &dyn std::error::Error = &reason;
                    error!(%volume, %target, device = %number, error, "cannot open a published device");
                    failed += 1;
                }
            }
        }
        self.limit_again(images.values());
        Ok(failed)
    }

    fn watch(&self) -> Result<WatchReport, LookError> {
        let held = self.devices.volumes();
        if held.is_empty() && !self.devices.has_former() {
            return Ok(WatchReport::default());
        }
        let nodes = block::Nodes::look()?;
        self.limit_again(held.iter().map(|(_, volume)| volume));
        let is_published = |number| nodes.has_targets(number, &self.kubelet, None);
        let revoked = self.devices.watch(is_published);
        self.remove_former(&nodes);
        // Add the mounts of other processes.
        nodes.targets(&self.kubelet).for_each(|(number, target)| self.devices.ensure_target(number, target));
        let idle = held.iter().filter(|(number, _)| !is_published(*number)).map(|(_, volume)| volume.clone());
        Ok(WatchReport { revoked, idle: idle.collect(), held: held.iter().map(|(_, volume)| volume.clone()).collect() })
    }

    fn close(&self) {
        self.devices.close();
    }
}

/// The pod of a block volume's target, which is the last component of its path.
fn pod(beneath: &Path) -> Option<OsString> {
    if matches(beneath, DEVICES) { beneath.file_name().map(OsStr::to_owned) } else { None }
}

fn damaged(reason: &OpenError) -> (Volume, Option<volume::Opened>, Option<Image>) {
    warn!(error = reason as &dyn std::error::Error, "volume cannot be used");
    (Volume::Damaged, None, None)
}
