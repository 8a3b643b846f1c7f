//! [`Guard`]: the attached programs and their maps.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use loopdev::DeviceNumber;

use crate::assembler::{AssembleError, Instruction};
use crate::btf::Btf;
use crate::cgroup::{Cgroup, CgroupId};
use crate::denials::{Denials, Recent};
use crate::error::Error;
use crate::layout::{Hook, Layout};
use crate::maps::{self, Maps};
use crate::pins::Pins;
use crate::programs::{self, Scope};
use crate::sys;

/// List of the active LSMs, separated by commas.
const ACTIVE: &str = "/sys/kernel/security/lsm";

/// `LOOP_MAJOR`.
const LOOP_MAJOR: u32 = 7;

/// Size of the buffer for the verifier's log. The log of these programs is shorter.
const LOG_BYTES: usize = 1 << 18;
/// Number of bytes from the end of the log that an error contains.
const LOG_END: usize = 600;

/// The attached programs. Dropping the guard detaches them, unless they are pinned.
#[derive(Debug)]
pub struct Guard {
    pods: Cgroup,
    maps: Maps,
    /// One link for each hook. An open link keeps its program attached.
    links: Vec<(Hook, OwnedFd)>,
}

impl Guard {
    /// Builds, loads and attaches the programs. From now on, tasks in `pods` and its descendants are restricted on
    /// `disk` and on published loop devices, of which there are none at first. No cgroup is exempt, and no process can
    /// change that, because the map is frozen. On errors nothing is attached.
    pub fn load(btf: &Btf, pods: Cgroup, disk: DeviceNumber) -> Result<Self, Error> {
        require_lsm(Path::new(ACTIVE))?;
        let layout = Layout::of(btf)?;
        let maps = Maps::create()?;
        maps.freeze_exempt()?;
        Self::attach(&layout, pods, disk, maps)
    }

    /// Like [`Guard::load`], but maps and links are pinned and outlive the process, and [`Guard::exempt`] can exempt a
    /// cgroup. Maps of an earlier process keep their content, unless another release created them with another shape.
    /// Links of an earlier process are replaced after the new ones are attached, so that programs are always attached;
    /// on errors the earlier links stay.
    pub fn load_pinned(btf: &Btf, pods: Cgroup, disk: DeviceNumber, pins: &Pins<'_>) -> Result<Self, Error> {
        require_lsm(&pins.active_lsms())?;
        let layout = Layout::of(btf)?;
        let guard = Self::attach(&layout, pods, disk, Maps::pinned(&pins.path())?)?;
        let links = guard.links.iter().map(|(hook, link)| (hook.name, link.as_fd()));
        // Pin the maps first, so that a process that finds a link finds its maps.
        pins.replace(guard.maps.objects().into_iter().chain(links))?;
        Ok(guard)
    }

    fn attach(layout: &Layout, pods: Cgroup, disk: DeviceNumber, maps: Maps) -> Result<Self, Error> {
        let scope = Scope { pods, disk, maps: maps.descriptors() };
        let mut links = Vec::new();
        for (hook, program) in plan(layout, &scope) {
            let program = program.map_err(|source| Error::Assemble { hook: hook.name, source })?;
            let link = sys::link(&load(hook, &program)?);
            links.push((hook, link.map_err(|source| Error::Link { hook: hook.name, source })?));
        }
        Ok(Self { pods, maps, links })
    }

    /// The cgroup that the programs apply to. If the directory of that name has another ID now ([`Cgroup::of`]), the
    /// cgroup was removed and created again, and the programs apply to no task.
    pub const fn cgroup(&self) -> Cgroup {
        self.pods
    }

    /// Denies changes of this loop device by tasks in the cgroup from now on. Idempotent.
    ///
    /// # Errors
    /// [`Error::NotALoopDevice`], and [`Error::UseMap`], with `E2BIG` if 4096 devices are published.
    pub fn publish(&self, device: DeviceNumber) -> Result<(), Error> {
        if device.major != LOOP_MAJOR {
            return Err(Error::NotALoopDevice(device));
        }
        self.maps.publish(device)
    }

    /// Reverts [`Guard::publish`]. Idempotent.
    pub fn withdraw(&self, device: DeviceNumber) -> Result<(), Error> {
        self.maps.withdraw(device)
    }

    /// From now on, the programs of a pinned guard do not apply to tasks of this cgroup. The programs still apply to
    /// its descendants, and apply again to cgroups that were exempt before.
    ///
    /// # Errors
    /// [`Error::UseMap`], with `EPERM` if the guard is not pinned.
    pub fn exempt(&self, cgroup: CgroupId) -> Result<(), Error> {
        self.maps.exempt(cgroup)
    }

    /// The number of denied calls since the maps were created.
    pub fn denied(&self) -> Result<Denials, Error> {
        self.maps.denied()
    }

    /// The calls that were denied since the last call of this function, by cgroup and operation. The kernel keeps about
    /// 1024 of the most recent entries.
    pub fn recent(&self) -> Result<Vec<Recent>, Error> {
        self.maps.take_recent()
    }
}

/// The hooks with their programs.
fn plan(layout: &Layout, scope: &Scope) -> Vec<(Hook, Result<Vec<Instruction>, AssembleError>)> {
    let mut plan = vec![
        (layout.file_ioctl, programs::ioctl(layout, scope)),
        (layout.file_ioctl_compat, programs::ioctl(layout, scope)),
        (layout.quotactl, programs::quotactl(scope)),
    ];
    plan.extend(layout.attributes.map(|attributes| (attributes.hook, programs::setattr(layout, &attributes, scope))));
    plan
}

fn load(hook: Hook, program: &[Instruction]) -> Result<sys::Program, Error> {
    let name = maps::object_name(hook.name);
    sys::load(program, hook.function.get(), name, None).map_err(|source| {
        // Load the program again for the log. The reason of the first attempt stands even if this attempt succeeds.
        let mut log = vec![0; LOG_BYTES];
        let _ = sys::load(program, hook.function.get(), name, Some(&mut log));
        Error::Load { hook: hook.name, log: end_of(&log), source }
    })
}

/// The last lines of a log that ends with NUL.
fn end_of(log: &[u8]) -> String {
    let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
    let end = &text[text.len().saturating_sub(LOG_END)..];
    String::from_utf8_lossy(end).trim().to_owned()
}

/// A kernel that has the hooks, but not BPF among its LSMs, attaches the programs and never runs them.
fn require_lsm(list: &Path) -> Result<(), Error> {
    let active = fs::read_to_string(list).map_err(|source| Error::Securityfs { path: list.into(), source })?;
    let active = active.trim_end();
    if active.split(',').any(|name| name == "bpf") {
        Ok(())
    } else {
        Err(Error::Inactive { active: active.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_end_of_the_verifiers_log() {
        assert_eq!(end_of(b"0: (79) r2 = 1\nR2 invalid\n\0\0\0"), "0: (79) r2 = 1\nR2 invalid");
        assert_eq!(end_of(&[0; 8]), "");
        assert_eq!(end_of(&[]), "");
        let long = [&[b'a'; 4096][..], b"the reason\n\0"].concat();
        let end = end_of(&long);
        assert!(end.len() < LOG_END && end.ends_with("athe reason"), "{end}");
    }
}
