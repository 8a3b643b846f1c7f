//! File systems, disks and tools of the test program.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_settime};

use crate::wait;

pub(crate) const PROGRAMS: &str = "/usr/bin";

/// File system and where it is mounted, in this order.
const MOUNTS: [(&str, &str); 6] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("debugfs", "/sys/kernel/debug"),
    ("tmpfs", "/tmp"),
    ("tmpfs", "/run"),
];

#[derive(Debug, thiserror::Error)]
pub(crate) enum SetupError {
    #[error("cannot create the directory {path}")]
    Directory { path: &'static str, source: io::Error },
    #[error("cannot mount {kind} on {path}")]
    Mount { kind: &'static str, path: &'static str, source: Errno },
    #[error("cannot set the clock")]
    Clock(#[source] Errno),
    #[error("no disk has the serial number {serial}; there are {present:?}")]
    NoDisk { serial: String, present: Vec<String> },
    #[error("there is no program {tool} in {PROGRAMS}: `tools` of the ktest names it, its payload does not have it")]
    NoTool { tool: String },
}

pub(crate) fn mount_all() -> Result<(), SetupError> {
    for (kind, path) in MOUNTS {
        fs::create_dir_all(path).map_err(|source| SetupError::Directory { path, source })?;
        mount(Some(kind), path, Some(kind), MsFlags::empty(), None::<&str>).map_err(|source| SetupError::Mount {
            kind,
            path,
            source,
        })?;
    }
    Ok(())
}

/// A restored guest has the time at which it was saved.
pub(crate) fn set_clock(time: Duration) -> Result<(), SetupError> {
    clock_settime(ClockId::CLOCK_REALTIME, TimeSpec::from_duration(time)).map_err(SetupError::Clock)
}

pub(crate) fn disks(serials: &[String], limit: Duration) -> Result<Vec<PathBuf>, SetupError> {
    let find = |serial: &String| {
        let device = wait::until(limit, || {
            let name = present().into_iter().find(|(_, found)| found == serial)?.0;
            let device = Path::new("/dev").join(name);
            device.exists().then_some(device)
        });
        device.ok_or_else(|| SetupError::NoDisk {
            serial: serial.clone(),
            present: present().into_iter().map(|(_, serial)| serial).collect(),
        })
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

pub(crate) fn check_tools(tools: &[String]) -> Result<(), SetupError> {
    match tools.iter().find(|tool| !Path::new(PROGRAMS).join(tool).is_file()) {
        Some(tool) => Err(SetupError::NoTool { tool: tool.clone() }),
        None => Ok(()),
    }
}
