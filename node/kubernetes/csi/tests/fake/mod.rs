//! A node without a disk: volumes, targets and loop devices are entries of tables.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use csi::{
    ActError, Device, Elsewhere, Host, Inspection, LookError, LookRequest, LoopDevice, Mode, PathContents, Purpose,
    RevokedDetach, Sharing, Step, Target, TargetPath, Volume, VolumeView, WatchReport,
};
use fsquota::{FsError, Limits, ProjectId, Quota, Usage};
use mount::Attributes;
use units::{Bytes, Inodes};
use volume::{DiskFault, VolumeId};

type There = Option<(VolumeId, Attributes)>;

#[derive(Clone, Copy, Debug)]
enum Content {
    Directory(Quota),
    Image(Bytes),
}

/// The objects of the node, and the calls so far.
#[derive(Debug, Default)]
struct State {
    volumes: BTreeMap<VolumeId, Content>,
    targets: BTreeMap<TargetPath, There>,
    /// Sizes of loop devices, by volume and whether they are read-only.
    devices: BTreeMap<(VolumeId, bool), Bytes>,
    held: BTreeSet<VolumeId>,
    at_work: Vec<VolumeId>,
    steps: Vec<Step>,
    /// Unpublished volumes, each with the number of loop devices at that time.
    unpublished: Vec<(VolumeId, usize)>,
    overlapped: bool,
    panics: bool,
    fails: Vec<Step>,
    releases: usize,
    releases_fail: bool,
    revoked: Vec<RevokedDetach>,
    idle: Vec<VolumeId>,
    adoptions: usize,
    adoptions_fail: bool,
    fault_reads: usize,
    looks: usize,
    most_looks: usize,
    looks_hang: bool,
}

impl State {
    fn mode(&self, volume: &VolumeId) -> Option<Mode> {
        self.volumes.get(volume).map(|content| match content {
            Content::Directory(_) => Mode::Filesystem,
            Content::Image(_) => Mode::Block,
        })
    }

    /// Whether another target shows the volume, on a device of this kind if one is named.
    fn others(&self, volume: &VolumeId, target: &TargetPath, read_only: Option<bool>) -> bool {
        self.targets.iter().any(|(path, there)| {
            let shows = |(found, attributes): &(VolumeId, Attributes)| {
                found == volume && read_only.is_none_or(|read_only| read_only == attributes.read_only)
            };
            path != target && there.as_ref().is_some_and(shows)
        })
    }

    fn idle(&self, volume: &VolumeId, target: &TargetPath) -> Vec<(VolumeId, bool)> {
        let ours = self.devices.keys().filter(|(found, _)| found == volume);
        ours.filter(|(_, read_only)| !self.others(volume, target, Some(*read_only))).cloned().collect()
    }

    fn device(&self, volume: &VolumeId, target: &TargetPath, purpose: Purpose) -> Device {
        let state = |read_only| {
            let shared = self.others(volume, target, Some(read_only));
            if shared { Device::Shared } else { Device::Idle }
        };
        match purpose {
            Purpose::Publish { read_only, .. } => {
                let known = self.devices.contains_key(&(volume.clone(), read_only));
                if known { state(read_only) } else { Device::Absent }
            }
            Purpose::Unpublish if !self.idle(volume, target).is_empty() => Device::Idle,
            Purpose::Unpublish if self.devices.keys().any(|(found, _)| found == volume) => Device::Shared,
            Purpose::Unpublish => Device::Absent,
        }
    }
}

/// A fake host. Clones share the state of one node.
#[derive(Clone, Debug, Default)]
pub struct FakeHost(Arc<(Mutex<State>, Condvar)>);

impl FakeHost {
    /// A host with one filesystem volume of 1 GiB for each name.
    pub fn with_volumes(names: &[&str]) -> Self {
        let host = Self::default();
        let shown = Limits { bytes: Some(Bytes::GIB), inodes: Some(Inodes::new(1000)) };
        let quota = Quota {
            id: NonZeroU32::new(7).and_then(|id| ProjectId::new(id.get())).expect("a project"),
            limits: Limits { bytes: Some(Bytes::TIB), ..shown },
            shown,
            used: Usage { bytes: Bytes::MIB, inodes: Inodes::new(1) },
        };
        host.state().volumes.extend(names.iter().map(|name| (id(name), Content::Directory(quota))));
        host
    }

    /// A host with one block volume of 1 GiB for each name.
    pub fn with_images(names: &[&str]) -> Self {
        let host = Self::default();
        for name in names {
            host.set_image(name, Bytes::GIB);
        }
        host
    }

    pub fn set_image(&self, volume: &str, size: Bytes) {
        self.state().volumes.insert(id(volume), Content::Image(size));
    }

    /// Steps that were executed so far.
    pub fn steps(&self) -> Vec<Step> {
        self.state().steps.clone()
    }

    /// The volumes whose targets or idle devices were removed, in order, each with the number of loop devices at that
    /// time.
    pub fn unpublished(&self) -> Vec<(VolumeId, usize)> {
        self.state().unpublished.clone()
    }

    /// Number of loop devices.
    pub fn devices(&self) -> usize {
        self.state().devices.len()
    }

    /// Leaves an attached image without a target, like a killed plugin or a failed detach. The next watch of the
    /// devices finds it.
    pub fn leave_idle(&self, volume: &str) {
        self.attach(volume);
        self.report_idle(volume);
    }

    /// Attaches an image without a target. No watch of the devices finds it.
    pub fn attach(&self, volume: &str) {
        self.state().devices.insert((id(volume), false), Bytes::GIB);
    }

    /// The next watch of the devices reports the volume, as if its publish were in progress.
    pub fn report_idle(&self, volume: &str) {
        self.state().idle.push(id(volume));
    }

    pub fn delete(&self, volume: &str) {
        self.state().volumes.remove(&id(volume));
    }

    /// Sets whether later detaches of idle devices fail.
    pub fn fail_releases(&self, fail: bool) {
        self.state().releases_fail = fail;
    }

    /// Number of detaches of idle devices that have begun, also of those that failed.
    pub fn releases(&self) -> usize {
        self.state().releases
    }

    /// Sets whether later adoptions of the devices of targets fail.
    pub fn fail_adoptions(&self, fail: bool) {
        self.state().adoptions_fail = fail;
    }

    /// Number of adoptions of the devices of all targets.
    pub fn adoptions(&self) -> usize {
        self.state().adoptions
    }

    /// Sets whether looks at volumes and measurements of the disk hang.
    pub fn hang_looks(&self, hang: bool) {
        self.state().looks_hang = hang;
        self.0.1.notify_all();
    }

    /// Number of looks and measurements that have begun and not ended.
    pub fn looks(&self) -> usize {
        self.state().looks
    }

    /// Largest number of [`FakeHost::looks`] so far.
    pub fn most_looks(&self) -> usize {
        self.state().most_looks
    }

    /// Number of reads of the disk's faults.
    pub fn fault_reads(&self) -> usize {
        self.state().fault_reads
    }

    /// A pod tries to detach the device of this volume.
    pub fn revoke(&self, volume: &str) {
        let device = "loop8".parse().expect("a name");
        self.state().revoked.push(RevokedDetach { volume: id(volume), device });
    }

    /// Steps on this volume do not end before [`FakeHost::release`].
    pub fn hold(&self, volume: &str) {
        self.state().held.insert(id(volume));
    }

    pub fn release(&self, volume: &str) {
        self.state().held.remove(&id(volume));
        self.0.1.notify_all();
    }

    /// Whether a step on the volume has begun and not ended.
    pub fn works_on(&self, volume: &str) -> bool {
        self.state().at_work.contains(&id(volume))
    }

    /// Whether two steps on one volume ever ran at the same time.
    pub fn overlapped(&self) -> bool {
        self.state().overlapped
    }

    /// Makes the next look panic.
    pub fn panic_once(&self) {
        self.state().panics = true;
    }

    pub fn fail(&self, step: Step) {
        self.state().fails.push(step);
    }

    /// Ends the effect of [`FakeHost::fail`].
    pub fn succeed(&self) {
        self.state().fails.clear();
    }

    /// Whether no target exists.
    pub fn is_bare(&self) -> bool {
        self.state().targets.is_empty()
    }

    /// Begins a look, and returns at its end.
    fn wait_for_look(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        if std::mem::take(&mut state.panics) {
            drop(state);
            panic!("a bug, on purpose");
        }
        state.looks += 1;
        state.most_looks = state.most_looks.max(state.looks);
        let mut state = self.0.1.wait_while(state, |state| state.looks_hang).expect("nothing panicked");
        state.looks -= 1;
        state
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().expect("nothing panics while it is held")
    }
}

pub fn id(volume: &str) -> VolumeId {
    volume.parse().expect("an identifier")
}

impl Host for FakeHost {
    type At = (VolumeId, TargetPath);

    fn ready(&self) -> Result<(), volume::LookError> {
        drop(self.wait_for_look());
        Ok(())
    }

    fn look(
        &self,
        LookRequest { volume, target, purpose }: LookRequest<'_>,
    ) -> Result<(Self::At, VolumeView), LookError> {
        let state = self.wait_for_look();
        let asked = matches!(purpose, Purpose::Publish { sharing: Sharing::OneTarget, .. });
        let seen = VolumeView {
            volume: state.mode(volume).map_or(Volume::Unknown, Volume::Known),
            target: match state.targets.get(target) {
                None => Target::Absent,
                Some(None) => Target::Bare(csi::Shape::Directory),
                Some(Some((found, attributes))) if found == volume => Target::Published(*attributes),
                Some(Some(_)) => Target::OtherVolume,
            },
            elsewhere: if asked && state.others(volume, target, None) {
                Elsewhere::Published
            } else {
                Elsewhere::Nowhere
            },
            device: state.device(volume, target, purpose),
        };
        Ok(((volume.clone(), target.clone()), seen))
    }

    fn act(&self, (volume, target): &mut Self::At, step: Step) -> Result<(), ActError> {
        let mut state = self.state();
        if state.fails.contains(&step) {
            return Err(ActError::Node);
        }
        state.overlapped |= state.at_work.contains(volume);
        state.at_work.push(volume.clone());
        let mut state = self.0.1.wait_while(state, |state| state.held.contains(volume)).expect("nothing panicked");
        state.at_work.retain(|busy| busy != volume);
        state.steps.push(step);
        match step {
            Step::CreateTarget(_) | Step::Unmount => drop(state.targets.insert(target.clone(), None)),
            Step::Bind(attributes) => drop(state.targets.insert(target.clone(), Some((volume.clone(), attributes)))),
            Step::RemoveTarget => drop(state.targets.remove(target)),
            Step::Attach { read_only } => {
                let Some(Content::Image(size)) = state.volumes.get(volume).copied() else {
                    return Err(ActError::VolumeGone);
                };
                state.devices.insert((volume.clone(), read_only), size);
            }
            Step::Limit => {}
            Step::Detach => {
                for idle in state.idle(volume, target) {
                    state.devices.remove(&idle);
                }
            }
        }
        Ok(())
    }

    fn unpublished(&self, volume: &VolumeId) {
        let mut state = self.state();
        let devices = state.devices.len();
        state.unpublished.push((volume.clone(), devices));
    }

    fn inspect(&self, volume: &VolumeId, path: &TargetPath) -> Result<Inspection, LookError> {
        let state = self.wait_for_look();
        let known = state.mode(volume).map_or(Volume::Unknown, Volume::Known);
        let there = state.targets.get(path).and_then(Option::as_ref).filter(|(found, _)| found == volume);
        let found = match (state.volumes.get(volume), there) {
            (Some(Content::Directory(quota)), Some(_)) => PathContents::Filesystem(*quota),
            (Some(Content::Image(image)), Some((_, Attributes { read_only, .. }))) => {
                let size = state.devices.get(&(volume.clone(), *read_only)).copied();
                PathContents::Block { image: *image, device: size.map(|size| LoopDevice { size, direct_io: true }) }
            }
            (None, _) | (_, None) => PathContents::Nothing,
        };
        Ok(Inspection { volume: known, found })
    }

    fn volume(&self, volume: &VolumeId) -> Result<Volume, LookError> {
        Ok(self.state().mode(volume).map_or(Volume::Unknown, Volume::Known))
    }

    fn disk_faults(&self) -> Vec<DiskFault> {
        Vec::new()
    }

    fn read_faults(&self) -> Result<(), FsError> {
        self.state().fault_reads += 1;
        Ok(())
    }

    fn limits_changed(&self, _: &VolumeId, _: &Quota) -> bool {
        false
    }

    fn grow(&self, volume: &VolumeId) -> Result<Option<Bytes>, ActError> {
        let mut state = self.state();
        let Some(Content::Image(size)) = state.volumes.get(volume).copied() else { return Ok(None) };
        let ours = state.devices.iter_mut().filter(|((found, _), _)| found == volume);
        Ok(ours.map(|(_, device)| *device = size).count().checked_sub(1).map(|_| size))
    }

    fn attached(&self) -> Result<usize, LookError> {
        Ok(self.devices())
    }

    fn adopt(&self) -> Result<usize, LookError> {
        let mut state = self.state();
        state.adoptions += 1;
        Ok(usize::from(state.adoptions_fail))
    }

    fn watch(&self) -> Result<WatchReport, LookError> {
        let mut state = self.state();
        let (revoked, idle) = (std::mem::take(&mut state.revoked), std::mem::take(&mut state.idle));
        Ok(WatchReport { revoked, idle, held: state.volumes.keys().cloned().collect() })
    }

    fn close(&self) {}

    fn idle(&self) -> Result<Vec<VolumeId>, LookError> {
        let state = self.state();
        let published = |volume: &VolumeId| state.targets.values().flatten().any(|(found, _)| found == volume);
        let volumes: BTreeSet<_> = state.devices.keys().map(|(volume, _)| volume.clone()).collect();
        Ok(volumes.into_iter().filter(|volume| !published(volume)).collect())
    }

    fn release(&self, volume: &VolumeId) -> Result<bool, ActError> {
        let mut state = self.state();
        state.releases += 1;
        state.at_work.push(volume.clone());
        let mut state = self.0.1.wait_while(state, |state| state.held.contains(volume)).expect("nothing panicked");
        state.at_work.retain(|busy| busy != volume);
        if state.releases_fail {
            return Err(ActError::Node);
        }
        let State { devices, targets, .. } = &mut *state;
        let before = devices.len();
        devices.retain(|(found, read_only), _| {
            let shows = |there: &(VolumeId, Attributes)| there.0 == *found && there.1.read_only == *read_only;
            found != volume || targets.values().flatten().any(shows)
        });
        Ok(devices.len() < before)
    }
}
