//! A node without a disk: volumes and targets are entries of a table.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use csi::{
    ActError, Elsewhere, Host, LookError, Question, QuotaError, ReadyError, Seen, Sharing, Step, Target, TargetPath,
    Volume,
};
use fsquota::{Limits, ProjectId, Quota, Usage};
use mount::Attributes;
use units::{Bytes, Inodes};
use volume::VolumeId;

/// Everything that is there and was done.
#[derive(Debug, Default)]
struct State {
    volumes: BTreeMap<VolumeId, Quota>,
    targets: BTreeMap<TargetPath, Option<(VolumeId, Attributes)>>,
    held: BTreeSet<VolumeId>,
    at_work: Vec<VolumeId>,
    steps: Vec<Step>,
    overlapped: bool,
    panics: bool,
}

/// Clones are the same node.
#[derive(Clone, Debug, Default)]
pub struct FakeHost(Arc<(Mutex<State>, Condvar)>);

impl FakeHost {
    /// With one volume of 1 GiB for each name.
    pub fn with_volumes(names: &[&str]) -> Self {
        let host = Self::default();
        for name in names {
            host.set_quota(name, Some(Bytes::GIB), Bytes::MIB);
        }
        host
    }

    pub fn set_quota(&self, volume: &str, limit: Option<Bytes>, used: Bytes) {
        let quota = Quota {
            id: NonZeroU32::new(7).and_then(|id| ProjectId::new(id.get())).expect("a project"),
            limits: Limits { bytes: limit, inodes: Some(Inodes::new(1000)) },
            used: Usage { bytes: used, inodes: Inodes::new(1) },
        };
        self.state().volumes.insert(id(volume), quota);
    }

    /// Steps that were done so far.
    pub fn steps(&self) -> Vec<Step> {
        self.state().steps.clone()
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

    /// Whether two steps on one volume were ever at work together.
    pub fn overlapped(&self) -> bool {
        self.state().overlapped
    }

    /// The next look is a bug.
    pub fn panic_once(&self) {
        self.state().panics = true;
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

    fn ready(&self) -> Result<(), ReadyError> {
        Ok(())
    }

    fn look(&self, Question { volume, target, sharing }: Question<'_>) -> Result<(Self::At, Seen), LookError> {
        let mut state = self.state();
        if std::mem::take(&mut state.panics) {
            drop(state);
            panic!("a bug, on purpose");
        }
        let other = |(path, there): (&TargetPath, &Option<(VolumeId, Attributes)>)| {
            path != target && there.as_ref().is_some_and(|(found, _)| found == volume)
        };
        let elsewhere = sharing == Sharing::OneTarget && state.targets.iter().any(other);
        let seen = Seen {
            volume: if state.volumes.contains_key(volume) { Volume::Known } else { Volume::Unknown },
            target: match state.targets.get(target) {
                None => Target::Absent,
                Some(None) => Target::Bare,
                Some(Some((found, attributes))) if found == volume => Target::Published(*attributes),
                Some(Some(_)) => Target::OtherVolume,
            },
            elsewhere: if elsewhere { Elsewhere::Published } else { Elsewhere::Nowhere },
        };
        Ok(((volume.clone(), target.clone()), seen))
    }

    fn act(&self, (volume, target): &Self::At, step: Step) -> Result<(), ActError> {
        let mut state = self.state();
        state.overlapped |= state.at_work.contains(volume);
        state.at_work.push(volume.clone());
        let mut state = self.0.1.wait_while(state, |state| state.held.contains(volume)).expect("nothing panicked");
        state.at_work.retain(|busy| busy != volume);
        state.steps.push(step);
        match step {
            Step::MakeTarget | Step::Unmount => state.targets.insert(target.clone(), None),
            Step::Bind(attributes) => state.targets.insert(target.clone(), Some((volume.clone(), attributes))),
            Step::RemoveTarget => state.targets.remove(target),
        };
        Ok(())
    }

    fn quota(&self, (volume, _): &Self::At) -> Result<Quota, QuotaError> {
        self.state().volumes.get(volume).copied().ok_or(QuotaError::Gone)
    }
}
