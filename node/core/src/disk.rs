//! Which disk holds the data, as the configuration says.

use std::fs;
use std::path::{Path, PathBuf};

use config::Disk;
use localstorage::{DataDisk, FindError, Programs, Seen, disks};

#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// None, or none that is ours or empty. Nothing was written.
    #[error("the node has no data disk that it can use")]
    Find(#[from] FindError),
    #[error("no disk has {what} {name:?}, which the configuration names; there are {}", .seen.join(", "))]
    Absent { what: &'static str, name: String, seen: Vec<String> },
}

pub fn find(wanted: &Disk) -> Result<DataDisk, DiskError> {
    let blocks = Path::new("/sys/class/block");
    let (what, name, read): (_, _, fn(&Path) -> Option<String>) = match wanted {
        Disk::Any => return Ok(DataDisk::find()?),
        Disk::Serial(name) => ("the serial number", name, serial),
        Disk::Partition(name) => ("the partition name", name, partition),
    };
    let programs = Programs::default();
    let seen = disks(&programs)?;
    let names = || seen.iter().map(|disk| disk.name.clone()).collect();
    let is_meant = |disk: &Seen| read(&blocks.join(&disk.name)).as_ref() == Some(name);
    let chosen = DataDisk::choose_named(&seen, is_meant, &programs)?;
    chosen.ok_or_else(|| DiskError::Absent { what, name: name.clone(), seen: names() })
}

fn serial(block: &Path) -> Option<String> {
    let files: [PathBuf; 2] = [block.join("serial"), block.join("device/serial")];
    let text = files.iter().find_map(|file| fs::read_to_string(file).ok())?;
    Some(text.trim().to_owned())
}

fn partition(block: &Path) -> Option<String> {
    let uevent = fs::read_to_string(block.join("uevent")).ok()?;
    uevent.lines().find_map(|line| line.strip_prefix("PARTNAME=")).map(str::to_owned)
}
