//! Where the node's configuration comes from: the machine it runs on, or a file beside the system image.

use std::error::Error;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use config::{Config, ParseError};
use localstorage::sysfs::holds;
use mount::{Filesystem, FilesystemError, UnmountError};
use nix::libc::dev_t;
use nix::mount::MsFlags;
use nix::sys::stat::stat;
use tracing::warn;

/// The name in QEMU's fw_cfg, as the kernel's module `qemu_fw_cfg` shows it.
const FW_CFG: &str = "/sys/firmware/qemu_fw_cfg/by_name/opt/dev.granary/config/raw";
/// The name in the partition table that the disk image gives its EFI system partition.
const ESP: &str = "ESP";
const FILE: &str = "granary.json";
/// Empty at this time; the file system that belongs here is mounted later.
const PLACE: &str = "/ephemeral";
const LARGEST: u64 = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    FwCfg,
    Esp(PathBuf),
    Nowhere,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FwCfg => f.write_str("fw_cfg (opt/dev.granary/config)"),
            Self::Esp(device) => write!(f, "{FILE} on {}", device.display()),
            Self::Nowhere => f.write_str("nowhere: the defaults"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot read {found}")]
    File { found: Source, source: io::Error },
    #[error("{found} has more than 64 KiB: that is not a configuration")]
    TooLarge { found: Source },
    #[error("cannot mount the EFI system partition {device}; put a FAT file system on it, or name it otherwise")]
    Mount { device: PathBuf, source: FilesystemError },
    #[error("cannot unmount the EFI system partition")]
    Unmount(#[source] UnmountError),
    #[error("the node's configuration from {found} cannot be used")]
    Parse { found: Source, source: ParseError },
}

pub fn read() -> Result<(Source, Config), SourceError> {
    let (found, text) = find()?;
    // Nothing at all is as good as `{}`.
    let text = if text.trim().is_empty() { "{}" } else { &text };
    match Config::parse(text) {
        Ok(config) => Ok((found, config)),
        Err(source) => Err(SourceError::Parse { found, source }),
    }
}

fn find() -> Result<(Source, String), SourceError> {
    if let Some(text) = text(Path::new(FW_CFG), Source::FwCfg)? {
        return Ok((Source::FwCfg, text));
    }
    let root = stat("/").map_err(|errno| SourceError::Read { path: "/".into(), source: errno.into() })?.st_dev;
    let Partitions { all, of_the_system } = Partitions::look(Path::new("/sys/class/block"), root)?;
    for device in all {
        let source = Source::Esp(device.clone());
        let what = Filesystem {
            kind: "vfat",
            source: &device,
            target: Path::new(PLACE),
            flags: MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
            // The character sets whose modules the image has.
            data: "codepage=437,iocharset=ascii",
        };
        match mount::filesystem(what) {
            Ok(()) => {}
            Err(source) if of_the_system => return Err(SourceError::Mount { device, source }),
            Err(error) => {
                let error: &dyn Error = &error;
                warn!(device = %device.display(), error, "passed over: a partition named ESP that cannot be mounted");
                continue;
            }
        }
        let found = text(&Path::new(PLACE).join(FILE), source.clone());
        mount::unmount(Path::new(PLACE)).map_err(SourceError::Unmount)?;
        if let Some(text) = found? {
            return Ok((source, text));
        }
    }
    Ok((Source::Nowhere, String::new()))
}

/// `None` if there is no such file.
fn text(path: &Path, found: Source) -> Result<Option<String>, SourceError> {
    let read = |source| SourceError::File { found: found.clone(), source };
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(read)?,
    };
    let mut text = String::new();
    file.take(LARGEST + 1).read_to_string(&mut text).map_err(read)?;
    if text.len() as u64 > LARGEST { Err(SourceError::TooLarge { found }) } else { Ok(Some(text)) }
}

#[derive(Debug, PartialEq, Eq)]
struct Partitions {
    all: Vec<PathBuf>,
    /// They are on the disk that the node has started from. Otherwise QEMU has started it, from an image without
    /// partitions, and other systems may own them.
    of_the_system: bool,
}

impl Partitions {
    /// Those of the disk that holds the device `root`, or else all.
    fn look(blocks: &Path, root: dev_t) -> Result<Self, SourceError> {
        let read = |source| SourceError::Read { path: blocks.to_owned(), source };
        let (mut ours, mut others) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(blocks).map_err(read)? {
            let entry = entry.map_err(read)?;
            // A disk may go away at any time.
            let Ok(uevent) = fs::read_to_string(entry.path().join("uevent")) else { continue };
            if uevent.lines().any(|line| line.strip_prefix("PARTNAME=") == Some(ESP)) {
                // A partition's directory lies in its disk's.
                let place = fs::canonicalize(entry.path());
                let is_ours =
                    place.is_ok_and(|place| place.parent().is_some_and(|disk| holds(disk, root).unwrap_or(false)));
                let found = if is_ours { &mut ours } else { &mut others };
                found.push(Path::new("/dev").join(entry.file_name()));
            }
        }
        let of_the_system = !ours.is_empty();
        let mut all = if of_the_system { ours } else { others };
        all.sort();
        Ok(Self { all, of_the_system })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::makedev;

    use super::*;

    #[test]
    fn a_file_that_is_too_large_is_refused_before_it_is_read() {
        let refused = text(Path::new("/dev/zero"), Source::FwCfg);
        assert!(matches!(refused, Err(SourceError::TooLarge { found: Source::FwCfg })), "{refused:?}");
        assert!(matches!(text(Path::new("/no/such/file"), Source::FwCfg), Ok(None)));
    }

    /// A sysfs with two disks, on the second the system behind dm-verity, and a third without partitions.
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

    /// A foreign disk with an EFI system partition was asked first.
    #[test]
    fn only_the_disk_that_the_system_is_on_configures_it() {
        let sysfs = sysfs();
        let second = (vec![PathBuf::from("/dev/vdb2")], true);
        assert_eq!(found(&sysfs, makedev(253, 0)), second);
        assert_eq!(found(&sysfs, makedev(254, 19)), second);
    }

    #[test]
    fn a_system_without_partitions_is_configured_by_any_partition_of_the_name() {
        let all = vec![PathBuf::from("/dev/vda1"), PathBuf::from("/dev/vdb2")];
        assert_eq!(found(&sysfs(), makedev(254, 32)), (all, false));
    }
}
