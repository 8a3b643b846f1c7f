//! Selects the data disk by the configuration, and finds the disks with archives of images.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use cluster::IMAGE_ARCHIVE_PREFIX;
use config::Disk;
use localstorage::{DataDisk, FindError, FoundDisk, Programs, disks, disks_among, sysfs};
use programs::containerd::Archive;
use tracing::info;

const BLOCKS: &str = "/sys/class/block";

/// The directory has entries on a machine with a USB controller.
const USB: &str = "/sys/bus/usb/devices";

/// Time for a USB disk to appear: the kernel scans a port after it has loaded the driver of the controller, and the
/// disk a second later (`delay_use` of usb-storage). For all other controllers, the load of the driver waits for the
/// disks. Without its data disk, a node would format another disk, create a new cluster, and reject both disks at its
/// next boot.
const LATE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// No disk, or only disks with other data. The node has written nothing.
    #[error("the node has no usable data disk")]
    Find(#[from] FindError),
    #[error("no disk has {what} {name:?}, which the configuration names; there are {}", .seen.join(", "))]
    Absent { what: &'static str, name: String, seen: Vec<String> },
    #[error("cannot list the disks in {BLOCKS}")]
    List(#[source] io::Error),
}

/// Waits for a data disk that appears late. If no disk has a node's data and the configuration names none, may create a
/// partition on the boot disk ([`DataDisk::find`]).
pub fn find(wanted: &Disk) -> Result<DataDisk, DiskError> {
    // An empty disk ends the wait only if the configuration names it.
    let is_found = || look(wanted).is_ok_and(|disk| disk.has_data() || !matches!(wanted, Disk::Any));
    wait(Path::new(USB), LATE, is_found);
    match wanted {
        Disk::Any => Ok(DataDisk::find()?),
        Disk::Serial(_) | Disk::Partition(_) => look(wanted),
    }
}

/// Selects the data disk among the present disks. Writes nothing.
fn look(wanted: &Disk) -> Result<DataDisk, DiskError> {
    let programs = Programs::default();
    let (what, name, read): (_, _, fn(&Path) -> Option<String>) = match wanted {
        Disk::Any => return Ok(DataDisk::choose(&disks(&programs)?)?),
        Disk::Serial(name) => ("the serial number", name, serial),
        Disk::Partition(name) => ("the partition name", name, partition),
    };
    let has_name = |block: &Path| read(block).as_ref() == Some(name);
    let seen = disks_among(&programs, |disk| has_name(disk) || entries(disk).iter().any(|part| has_name(part)))?;
    let is_selected = |disk: &FoundDisk| has_name(&Path::new(BLOCKS).join(&disk.name));
    match DataDisk::choose_named(&seen, is_selected, &programs)? {
        Some(chosen) => Ok(chosen),
        None => {
            // Lists names only, without reading the disks, which may be broken.
            let disks = entries(Path::new("/sys/block")).into_iter().filter(|disk| disk.join("device").exists());
            let names = disks.filter_map(|disk| Some(disk.file_name()?.to_string_lossy().into_owned()));
            let seen = names.collect::<BTreeSet<_>>().into_iter().collect();
            Err(DiskError::Absent { what, name: name.clone(), seen })
        }
    }
}

/// Empty for a directory that cannot be listed.
fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// On a machine with a USB controller, waits until the disk is found or `limit` has passed.
fn wait(usb: &Path, limit: Duration, mut is_found: impl FnMut() -> bool) {
    if entries(usb).is_empty() || is_found() {
        return;
    }
    info!(?limit, "no data disk yet, waiting for disks on USB");
    let end = Instant::now() + limit;
    while Instant::now() < end {
        thread::sleep(PAUSE);
        if is_found() {
            return;
        }
    }
}

/// Disks and partitions with archives of images, by name.
pub fn image_archives() -> Result<Vec<Archive>, DiskError> {
    archives_among(Path::new(BLOCKS)).map_err(DiskError::List)
}

fn archives_among(blocks: &Path) -> io::Result<Vec<Archive>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(blocks)? {
        let entry = entry?;
        let names = [serial(&entry.path()), partition(&entry.path())];
        if let Some(name) = names.into_iter().flatten().find(|name| name.starts_with(IMAGE_ARCHIVE_PREFIX)) {
            found.push(Archive { name, path: Path::new("/dev").join(entry.file_name()) });
        }
    }
    found.sort();
    Ok(found)
}

fn serial(block: &Path) -> Option<String> {
    sysfs::serial(block).ok().flatten()
}

fn partition(block: &Path) -> Option<String> {
    let uevent = fs::read_to_string(block.join("uevent")).ok()?;
    uevent.lines().find_map(|line| line.strip_prefix("PARTNAME=")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_are_on_no_disk_with_an_archive() {
        assert_eq!(localstorage::ARCHIVE_SERIALS, IMAGE_ARCHIVE_PREFIX);
    }

    /// Regression: the node formatted another disk, or created a partition on the boot disk.
    #[test]
    fn a_disk_that_appears_late_is_waited_for_if_there_is_usb() {
        let usb = tempfile::tempdir().unwrap();
        let looks = |usb: &Path, limit, found_at: u32| {
            let mut looks = 0;
            wait(usb, limit, || {
                looks += 1;
                looks == found_at
            });
            looks
        };
        let limit = Duration::from_secs(60);
        for without in [usb.path(), &usb.path().join("absent")] {
            assert_eq!(looks(without, limit, 2), 0);
        }
        fs::create_dir(usb.path().join("usb1")).unwrap();
        assert_eq!(looks(usb.path(), limit, 1), 1);
        assert_eq!(looks(usb.path(), limit, 2), 2);
        assert_eq!(looks(usb.path(), Duration::ZERO, 2), 1, "the time is over");
    }

    #[test]
    fn archives_are_disks_and_partitions_of_the_name() {
        let blocks = tempfile::tempdir().unwrap();
        for (device, file, text) in [
            ("vda", "serial", "system\n"),
            ("vdc", "serial", "image-2\n"),
            ("vdb", "serial", "image-10\n"),
            ("sda", "device/vpd_pg80", "\0\0\0\x07image-3"),
            ("vda4", "uevent", "DEVTYPE=partition\nPARTNAME=image-app\n"),
            ("vda1", "uevent", "DEVTYPE=partition\nPARTNAME=my-image-app\n"),
            ("loop0", "size", "0\n"),
        ] {
            let file = blocks.path().join(device).join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let found = archives_among(blocks.path()).unwrap();
        let found: Vec<_> = found.iter().map(|archive| (&*archive.name, archive.path.to_str().unwrap())).collect();
        let disks = [("image-10", "/dev/vdb"), ("image-2", "/dev/vdc"), ("image-3", "/dev/sda")];
        assert_eq!(found, [&disks[..], &[("image-app", "/dev/vda4")]].concat());
    }
}
