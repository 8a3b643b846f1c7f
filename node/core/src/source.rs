//! The source of the node's configuration: the machine that runs the node, or a file beside the system image.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use config::{Config, ParseError};
use mount::{FilesystemError, UnmountError};
use tracing::warn;

use crate::esp::{self, Partitions, PartitionsError};

/// Path of QEMU's fw_cfg entry in the file system of the kernel module `qemu_fw_cfg`.
const FW_CFG: &str = "/sys/firmware/qemu_fw_cfg/by_name/opt/dev.granary/config/raw";
const FILE: &str = "granary.json";
/// Empty at this time. The file system of this directory is mounted later.
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
    #[error(transparent)]
    Partitions(#[from] PartitionsError),
    #[error("cannot read {found}")]
    File { found: Source, source: io::Error },
    #[error("{found} has more than 64 KiB, the maximum size of a configuration")]
    TooLarge { found: Source },
    #[error("cannot mount the EFI system partition {device}; format it with FAT, or rename it")]
    Mount { device: PathBuf, source: FilesystemError },
    #[error("cannot unmount the EFI system partition")]
    Unmount(#[source] UnmountError),
    #[error("cannot use the node's configuration from {found}")]
    Parse { found: Source, source: ParseError },
}

pub fn read() -> Result<(Source, Config), SourceError> {
    let (found, text) = find()?;
    // An empty text is equivalent to `{}`.
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
    let Partitions { all, of_the_system } = Partitions::find()?;
    for device in all {
        let source = Source::Esp(device.clone());
        match esp::mount(&device, Path::new(PLACE)) {
            Ok(()) => {}
            Err(source) if of_the_system => return Err(SourceError::Mount { device, source }),
            Err(error) => {
                let error = causes::of(&error);
                warn!(device = %device.display(), error, "cannot mount a partition named ESP, skipping it");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_too_large_is_refused_before_it_is_read() {
        let refused = text(Path::new("/dev/zero"), Source::FwCfg);
        assert!(matches!(refused, Err(SourceError::TooLarge { found: Source::FwCfg })), "{refused:?}");
        assert!(matches!(text(Path::new("/no/such/file"), Source::FwCfg), Ok(None)));
    }
}
