//! File systems, disks and tools of the test program.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ktest_init::StepError;
use nix::mount::{MsFlags, mount};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_settime};

use crate::wait;

pub(crate) const PROGRAMS: &str = "/usr/bin";

/// File systems and their mount points, in the order in which they are mounted.
const MOUNTS: [(&str, &str); 6] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("debugfs", "/sys/kernel/debug"),
    ("tmpfs", "/tmp"),
    ("tmpfs", "/run"),
];

pub(crate) fn mount_all() -> Result<(), StepError> {
    for (kind, path) in MOUNTS {
        fs::create_dir_all(path).map_err(StepError::of(format!("create the directory {path}")))?;
        let mounted = mount(Some(kind), path, Some(kind), MsFlags::empty(), None::<&str>);
        mounted.map_err(StepError::of(format!("mount {kind} on {path}")))?;
    }
    Ok(())
}

/// Brings up the loopback device. The kernel then gives it 127.0.0.1/8, and ::1 if it supports IPv6.
/// Documentation/ABI/testing/sysfs-class-net.
pub(crate) fn bring_up_loopback() -> Result<(), StepError> {
    // IFF_UP and IFF_LOOPBACK, netdevice(7).
    fs::write("/sys/class/net/lo/flags", "0x9").map_err(StepError::of("bring up the loopback device"))
}

/// Sets the clock. A restored guest continues with the time at which it was saved.
pub(crate) fn set_clock(time: Duration) -> Result<(), StepError> {
    clock_settime(ClockId::CLOCK_REALTIME, TimeSpec::from_duration(time)).map_err(StepError::of("set the clock"))
}

pub(crate) fn disks(serials: &[String], limit: Duration) -> Result<Vec<PathBuf>, StepError> {
    let find = |serial: &String| {
        let device = wait::until(limit, || {
            let name = present().into_iter().find(|(_, found)| found == serial)?.0;
            let device = Path::new("/dev").join(name);
            device.exists().then_some(device)
        });
        let present = || present().into_iter().map(|(_, serial)| serial).collect::<Vec<_>>();
        let found = device.ok_or_else(|| format!("no disk has the serial number {serial}; there are {:?}", present()));
        found.map_err(StepError::of("find a disk"))
    };
    serials.iter().map(find).collect()
}

fn present() -> Vec<(String, String)> {
    let Ok(entries) = fs::read_dir("/sys/block") else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let serial = fs::read_to_string(entry.path().join("serial")).ok()?;
            Some((entry.file_name().into_string().ok()?, serial.trim().to_owned()))
        })
        .collect()
}

pub(crate) fn check_tools(tools: &[String]) -> Result<(), StepError> {
    let Some(tool) = tools.iter().find(|tool| !Path::new(PROGRAMS).join(tool).is_file()) else { return Ok(()) };
    Err(StepError::of("find the tools of the test")(format!(
        "there is no program {tool} in {PROGRAMS}: `tools` of the ktest names it, its payload does not have it"
    )))
}
