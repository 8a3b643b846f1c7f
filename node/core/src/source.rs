//! Where the node's configuration comes from: the machine it runs on, or a file beside the system image.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use config::{Config, ParseError};
use mount::{Filesystem, FilesystemError, UnmountError};
use nix::mount::MsFlags;

/// The name in QEMU's fw_cfg, as the kernel's module `qemu_fw_cfg` shows it.
const FW_CFG: &str = "/sys/firmware/qemu_fw_cfg/by_name/opt/dev.granary/config/raw";
/// The name in the partition table that the disk image gives its EFI system partition.
const ESP: &str = "ESP";
/// In the root of that partition.
const FILE: &str = "granary.json";
/// Empty at this time; the file system that belongs here is mounted later.
const PLACE: &str = "/ephemeral";
/// A configuration has a few hundred bytes.
const LARGEST: u64 = 64 << 10;

/// Where a configuration was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// QEMU gave it.
    FwCfg,
    /// It is on this EFI system partition.
    Esp(PathBuf),
    /// There is none: the defaults count.
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

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// It cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// It is no configuration.
    #[error("{found} has more than 64 KiB: that is no configuration")]
    TooLarge {
        /// Where.
        found: Source,
    },
    /// The partition cannot be mounted.
    #[error("cannot mount the EFI system partition {device}; put a FAT file system on it, or name it otherwise")]
    Mount {
        /// The partition.
        device: PathBuf,
        /// Why.
        #[source]
        source: FilesystemError,
    },
    /// The partition cannot be left.
    #[error("cannot unmount the EFI system partition")]
    Unmount(#[source] UnmountError),
    /// It has mistakes.
    #[error("the node's configuration from {found} cannot be used")]
    Parse {
        /// Where it is.
        found: Source,
        /// All that is wrong.
        #[source]
        source: ParseError,
    },
}

/// Finds the configuration, and checks it.
///
/// # Errors
/// [`SourceError`].
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
    for device in partitions(Path::new("/sys/class/block"))? {
        let source = Source::Esp(device.clone());
        let what = Filesystem {
            kind: "vfat",
            source: &device,
            target: Path::new(PLACE),
            flags: MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
            // The character sets whose modules the image has.
            data: "codepage=437,iocharset=ascii",
        };
        mount::filesystem(what).map_err(|source| SourceError::Mount { device, source })?;
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
    let read = |source| SourceError::Read { path: path.to_owned(), source };
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(read)?,
    };
    let mut text = String::new();
    file.take(LARGEST + 1).read_to_string(&mut text).map_err(read)?;
    if text.len() as u64 > LARGEST { Err(SourceError::TooLarge { found }) } else { Ok(Some(text)) }
}

/// EFI system partitions of our image, by name.
fn partitions(blocks: &Path) -> Result<Vec<PathBuf>, SourceError> {
    let read = |source| SourceError::Read { path: blocks.to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(blocks).map_err(read)? {
        let entry = entry.map_err(read)?;
        // A disk may go away at any time.
        let Ok(uevent) = fs::read_to_string(entry.path().join("uevent")) else { continue };
        if uevent.lines().any(|line| line.strip_prefix("PARTNAME=") == Some(ESP)) {
            found.push(Path::new("/dev").join(entry.file_name()));
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_too_large_is_refused_before_it_is_read() {
        let refused = text(Path::new("/dev/zero"), Source::FwCfg);
        assert!(matches!(refused, Err(SourceError::TooLarge { found: Source::FwCfg })), "{refused:?}");
        assert!(matches!(text(Path::new("/no/such/file"), Source::FwCfg), Ok(None)));
    }

    #[test]
    fn partitions_are_found_by_their_names() {
        let blocks = std::env::temp_dir().join(format!("granary-blocks-{}", std::process::id()));
        for (name, uevent) in [
            ("vda", "DEVNAME=vda\nDEVTYPE=disk\n"),
            ("vda2", "DEVNAME=vda2\nPARTNAME=ESP\n"),
            ("vda1", "DEVNAME=vda1\nPARTNAME=ESP\n"),
            ("vda3", "DEVNAME=vda3\nPARTNAME=ESP-2\n"),
        ] {
            fs::create_dir_all(blocks.join(name)).unwrap();
            fs::write(blocks.join(name).join("uevent"), uevent).unwrap();
        }
        let found = partitions(&blocks);
        fs::remove_dir_all(&blocks).unwrap();
        assert_eq!(found.unwrap(), [PathBuf::from("/dev/vda1"), PathBuf::from("/dev/vda2")]);
    }
}
