//! A scratch disk: its size, and the faults that a test requests.
//!
//! `1G`, `1G,durable`, `1G,log`, `1G,fail=flush`, `1G,fail=write@2048,fail=read:once`: the size, then one of:
//!
//! - `durable`: flushes reach the disk of the host;
//! - `log`: each write and flush is recorded in a file;
//! - kinds of requests (`read`, `write`, `flush`, `discard`) that fail with EIO, everywhere or at one sector, always or
//!   once.

use std::fs::File;
use std::io;
use std::path::Path;
use std::str::FromStr;

use nix::errno::Errno;
use qemu::{Cache, Disk, DiskModel, IoError, Operation, Serial, Times, Wrap};
use serde::Deserialize;
use units::{Bytes, ParseError};

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Scratch {
    size: Bytes,
    fault: Fault,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// No fault, but a flush is an `fdatasync` of the host.
    Durable,
    Log,
    Errors(Vec<IoError>),
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ScratchError {
    #[error("{0}")]
    Size(#[from] ParseError),
    #[error(
        "{0:?} is not a fault of a disk: write `durable`, `log` or `fail=KIND[@SECTOR][:once]` (read, write, flush, \
         discard)"
    )]
    Fault(String),
    #[error("a disk is either durable, or has a log, or has failing requests")]
    Both,
}

impl TryFrom<String> for Scratch {
    type Error = ScratchError;

    fn try_from(text: String) -> Result<Self, ScratchError> {
        text.parse()
    }
}

impl FromStr for Scratch {
    type Err = ScratchError;

    fn from_str(text: &str) -> Result<Self, ScratchError> {
        let mut words = text.split(',');
        let size = words.next().unwrap_or_default().parse()?;
        let fault = words.try_fold(Fault::None, |fault, word| match (fault, word) {
            (Fault::None, "durable") => Ok(Fault::Durable),
            (Fault::None, "log") => Ok(Fault::Log),
            (Fault::None, _) => Ok(Fault::Errors(vec![failing(word)?])),
            (Fault::Errors(mut errors), word) if !["durable", "log"].contains(&word) => {
                errors.push(failing(word)?);
                Ok(Fault::Errors(errors))
            }
            (Fault::Durable | Fault::Log | Fault::Errors(_), _) => Err(ScratchError::Both),
        })?;
        Ok(Self { size, fault })
    }
}

fn failing(text: &str) -> Result<IoError, ScratchError> {
    parse_failing(text).ok_or_else(|| ScratchError::Fault(text.to_owned()))
}

fn parse_failing(text: &str) -> Option<IoError> {
    let rest = text.strip_prefix("fail=")?;
    let (rest, times) = match rest.strip_suffix(":once") {
        Some(rest) => (rest, Times::Once),
        None => (rest, Times::Always),
    };
    let (kind, sector) = match rest.split_once('@') {
        Some((kind, sector)) => (kind, Some(sector.parse().ok()?)),
        None => (rest, None),
    };
    let operation = match kind {
        "read" => Operation::Read,
        "write" => Operation::Write,
        "flush" => Operation::Flush,
        "discard" => Operation::Discard,
        _ => return None,
    };
    Some(IoError { operation, errno: Errno::EIO, sector, times })
}

impl Scratch {
    pub(crate) fn make(&self, dir: &Path, logs: &Path, serial: Serial) -> io::Result<Disk> {
        let path = dir.join(format!("{serial}.img"));
        File::create_new(&path)?.set_len(self.size.get())?;
        let mut disk = Disk::new(serial.clone(), path);
        disk.wrap = match &self.fault {
            Fault::None | Fault::Durable => Wrap::None,
            Fault::Log => Wrap::WriteLog(logs.join(format!("{serial}.log"))),
            Fault::Errors(errors) => Wrap::Errors(errors.clone()),
        };
        // Writes that the disk has acknowledged stay in the host's page cache when QEMU is killed, so an fdatasync for
        // each flush would only take time. Disks with a log or failing requests keep the cache mode, because their
        // layers receive no flushes otherwise.
        if self.fault == Fault::None {
            disk.cache = Cache::Unsafe;
            // The log of writes needs flushes that end in their order: see `Recorder` of ktest_support.
            disk.model = DiskModel::VirtioOneQueue;
        }
        Ok(disk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Scratch, ScratchError> {
        text.parse()
    }

    #[test]
    fn a_size_alone_is_a_disk_without_faults() {
        assert_eq!(parsed("8G"), Ok(Scratch { size: Bytes::new(8 << 30), fault: Fault::None }));
    }

    #[test]
    fn faults_are_read() {
        let errno = Errno::EIO;
        let write = IoError { operation: Operation::Write, errno, sector: Some(2048), times: Times::Always };
        let flush = IoError { operation: Operation::Flush, errno, sector: None, times: Times::Once };
        let fault = Fault::Errors(vec![write, flush]);
        assert_eq!(parsed("1G,fail=write@2048,fail=flush:once"), Ok(Scratch { size: Bytes::GIB, fault }));
        assert_eq!(parsed("1G,log"), Ok(Scratch { size: Bytes::GIB, fault: Fault::Log }));
        assert_eq!(parsed("1G,durable"), Ok(Scratch { size: Bytes::GIB, fault: Fault::Durable }));
    }

    #[test]
    fn nonsense_is_refused_with_its_word() {
        assert!(matches!(parsed("big"), Err(ScratchError::Size(_))));
        for word in ["fail", "fail=", "fail=sync", "fail=write@x", "slow", ""] {
            assert_eq!(parsed(&format!("1G,{word}")), Err(ScratchError::Fault(word.into())));
        }
        for text in ["1G,log,log", "1G,log,fail=flush", "1G,fail=flush,log", "1G,durable,log", "1G,fail=flush,durable"]
        {
            assert_eq!(parsed(text), Err(ScratchError::Both), "{text}");
        }
    }

    #[test]
    fn flushes_of_a_disk_with_only_a_size_do_not_reach_the_host() {
        let dir = tempfile::tempdir().unwrap();
        let caches = ["1G", "1G,log", "1G,durable", "1G,fail=flush"].map(|text| {
            let serial = format!("scratch-{}", text.len()).parse().unwrap();
            parsed(text).unwrap().make(dir.path(), dir.path(), serial).unwrap().cache
        });
        assert_eq!(caches, [Cache::Unsafe, Cache::WriteBack, Cache::WriteBack, Cache::WriteBack]);
    }

    #[test]
    fn the_file_is_sparse() {
        use std::os::unix::fs::MetadataExt;

        let dir = tempfile::tempdir().unwrap();
        let disk = parsed("8G").unwrap().make(dir.path(), dir.path(), "scratch-0".parse().unwrap()).unwrap();
        let metadata = disk.path.metadata().unwrap();
        assert_eq!((metadata.len(), metadata.blocks()), (8 << 30, 0));
    }
}
