//! Which disk holds the data, as the configuration says, and which ones hold images.

use std::path::Path;
use std::{fs, io};

use cluster::IMAGE_ARCHIVE_PREFIX;
use config::Disk;
use localstorage::{DataDisk, FindError, FoundDisk, Programs, disks, sysfs};
use programs::containerd::Archive;

const BLOCKS: &str = "/sys/class/block";

#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// None, or none that is ours or empty. Nothing was written.
    #[error("the node has no data disk that it can use")]
    Find(#[from] FindError),
    #[error("no disk has {what} {name:?}, which the configuration names; there are {}", .seen.join(", "))]
    Absent { what: &'static str, name: String, seen: Vec<String> },
    #[error("cannot list the disks in {BLOCKS}")]
    List(#[source] io::Error),
}

pub fn find(wanted: &Disk) -> Result<DataDisk, DiskError> {
    let blocks = Path::new(BLOCKS);
    let (what, name, read): (_, _, fn(&Path) -> Option<String>) = match wanted {
        Disk::Any => return Ok(DataDisk::find()?),
        Disk::Serial(name) => ("the serial number", name, serial),
        Disk::Partition(name) => ("the partition name", name, partition),
    };
    let programs = Programs::default();
    let seen = disks(&programs)?;
    let names = || seen.iter().map(|disk| disk.name.clone()).collect();
    let is_meant = |disk: &FoundDisk| read(&blocks.join(&disk.name)).as_ref() == Some(name);
    let chosen = DataDisk::choose_named(&seen, is_meant, &programs)?;
    chosen.ok_or_else(|| DiskError::Absent { what, name: name.clone(), seen: names() })
}

/// The disks and partitions whose content is an archive of images, by name.
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
