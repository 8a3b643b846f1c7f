//! Which disk holds the data, as the configuration says.

use std::fs;
use std::path::{Path, PathBuf};

use config::Disk;
use localstorage::{Content, DataDisk, FindError, Programs, Role, Seen, disks, examine};

/// Why there is no disk for the data.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// None, or none that is ours or empty. Nothing was written.
    #[error("the node has no data disk that it can use")]
    Find(#[from] FindError),
    /// The configuration names a disk that is not there.
    #[error("no disk has {what} {name:?}, which the configuration names; there are {}", .seen.join(", "))]
    Absent {
        /// What it is named by.
        what: &'static str,
        /// The name.
        name: String,
        /// The disks that there are.
        seen: Vec<String>,
    },
}

/// Finds it. Writes nothing.
///
/// # Errors
/// [`DiskError`].
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
    let chosen = seen.iter().find(|disk| read(&blocks.join(&disk.name)).as_ref() == Some(name));
    let chosen = chosen.ok_or_else(|| DiskError::Absent { what, name: name.clone(), seen: names() })?;
    Ok(DataDisk::choose(&[designated(chosen.clone(), &programs)?])?)
}

/// It is for the data, whatever else there is: its content counts too, which is not looked at where there is a
/// disk that says so itself.
fn designated(disk: Seen, programs: &Programs) -> Result<Seen, FindError> {
    if disk.role == Role::System {
        return Ok(disk);
    }
    let content = match disk.content {
        Content::Unexamined => examine(&disk.device, disk.size, programs)?,
        known => known,
    };
    let role = disk.role.max(Role::Data);
    Ok(Seen { role, content, ..disk })
}

/// Of virtio, else of SCSI and NVMe.
fn serial(block: &Path) -> Option<String> {
    let files: [PathBuf; 2] = [block.join("serial"), block.join("device/serial")];
    let text = files.iter().find_map(|file| fs::read_to_string(file).ok())?;
    Some(text.trim().to_owned())
}

/// Of a partition table that has names.
fn partition(block: &Path) -> Option<String> {
    let uevent = fs::read_to_string(block.join("uevent")).ok()?;
    uevent.lines().find_map(|line| line.strip_prefix("PARTNAME=")).map(str::to_owned)
}
