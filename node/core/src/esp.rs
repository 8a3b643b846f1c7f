//! EFI system partitions (ESP), on which the administrator puts files for the node.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use localstorage::sysfs::holds;
use mount::{Filesystem, FilesystemError};
use nix::libc::dev_t;
use nix::mount::MsFlags;
use nix::sys::stat::stat;

/// Name of the EFI system partition in the partition table of the disk image.
const NAME: &str = "ESP";
const BLOCKS: &str = "/sys/class/block";

#[derive(Debug, thiserror::Error)]
#[error("cannot read {path}")]
pub struct PartitionsError {
    path: PathBuf,
    source: io::Error,
}

/// Mounts a partition read-only at an existing directory.
pub(crate) fn mount(device: &Path, place: &Path) -> Result<(), FilesystemError> {
    mount::filesystem(Filesystem {
        kind: "vfat",
        source: device,
        target: place,
        flags: MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
        // Character sets whose modules the image contains.
        data: "codepage=437,iocharset=ascii",
    })
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Partitions {
    pub(crate) all: Vec<PathBuf>,
    /// The partitions are on the disk from which the node has started. Otherwise QEMU has started the node from an
    /// image without partitions, and the partitions may belong to other systems.
    pub(crate) of_the_system: bool,
}

impl Partitions {
    /// The partitions of the disk from which the node has started. If it has none, the partitions of all disks.
    pub(crate) fn find() -> Result<Self, PartitionsError> {
        let root = stat("/").map_err(|errno| PartitionsError { path: "/".into(), source: errno.into() })?.st_dev;
        Self::look(Path::new(BLOCKS), root)
    }

    /// `root` is the device of the node's root file system.
    fn look(blocks: &Path, root: dev_t) -> Result<Self, PartitionsError> {
        let read = |source| PartitionsError { path: blocks.to_owned(), source };
        let (mut system, mut others) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(blocks).map_err(read)? {
            let entry = entry.map_err(read)?;
            // A disk may disappear at any time.
            let Ok(uevent) = fs::read_to_string(entry.path().join("uevent")) else { continue };
            if uevent.lines().any(|line| line.strip_prefix("PARTNAME=") == Some(NAME)) {
                // The directory of a partition is below that of its disk.
                let place = fs::canonicalize(entry.path());
                let is_system =
                    place.is_ok_and(|place| place.parent().is_some_and(|disk| holds(disk, root).unwrap_or(false)));
                let found = if is_system { &mut system } else { &mut others };
                found.push(Path::new("/dev").join(entry.file_name()));
            }
        }
        let of_the_system = !system.is_empty();
        let mut all = if of_the_system { system } else { others };
        all.sort();
        Ok(Self { all, of_the_system })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::makedev;

    use super::*;

    /// A sysfs with three disks: the second has the system with dm-verity, the third has no partitions.
    fn sysfs() -> tempfile::TempDir {
        let sysfs = tempfile::tempdir().unwrap();
        let blocks = sysfs.path().join("class");
        fs::create_dir(&blocks).unwrap();
        for (place, dev, uevent) in [
            ("vda", "254:0", "DEVTYPE=disk\n"),
            ("vda/vda1", "254:1", "PARTNAME=ESP\n"),
            ("vdb", "254:16", "DEVTYPE=disk\n"),
            ("vdb/vdb1", "254:17", "PARTNAME=ESP-2\n"),
            ("vdb/vdb2", "254:18", "PARTNAME=ESP\n"),
            ("vdb/vdb3", "254:19", "PARTNAME=SYSTEM-A\n"),
            ("vdc", "254:32", "DEVTYPE=disk\n"),
            ("dm-0", "253:0", "DEVTYPE=disk\n"),
        ] {
            let device = sysfs.path().join("devices").join(place);
            fs::create_dir_all(device.join("holders")).unwrap();
            fs::write(device.join("dev"), format!("{dev}\n")).unwrap();
            fs::write(device.join("uevent"), uevent).unwrap();
            if place.contains('/') {
                fs::write(device.join("partition"), "1\n").unwrap();
            }
            symlink(&device, blocks.join(device.file_name().unwrap())).unwrap();
        }
        let devices = sysfs.path().join("devices");
        symlink(devices.join("dm-0"), devices.join("vdb/vdb3/holders/dm-0")).unwrap();
        sysfs
    }

    fn found(sysfs: &tempfile::TempDir, root: dev_t) -> (Vec<PathBuf>, bool) {
        let Partitions { all, of_the_system } = Partitions::look(&sysfs.path().join("class"), root).unwrap();
        (all, of_the_system)
    }

    /// Regression: the node read the EFI system partition of a foreign disk first.
    #[test]
    fn only_the_disk_that_the_system_is_on_configures_it() {
        let sysfs = sysfs();
        let second = (vec![PathBuf::from("/dev/vdb2")], true);
        assert_eq!(found(&sysfs, makedev(253, 0)), second);
        assert_eq!(found(&sysfs, makedev(254, 19)), second);
    }

    #[test]
    fn without_system_partitions_any_named_partition_configures() {
        let all = vec![PathBuf::from("/dev/vda1"), PathBuf::from("/dev/vdb2")];
        assert_eq!(found(&sysfs(), makedev(254, 32)), (all, false));
    }
}
