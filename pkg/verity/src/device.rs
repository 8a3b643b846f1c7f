//! The kernel's device.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::stat::{major, minor};

use crate::root::Root;
use crate::sys::{self, Table};
use crate::tree::BLOCK;

const CONTROL: &str = "/dev/mapper/control";
/// device-mapper counts sectors of 512 bytes.
const SECTORS_PER_BLOCK: u64 = (BLOCK / 512) as u64;

/// What the kernel does when somebody reads a block that is not what it was. Nobody gets it in
/// any case, and the kernel's log has a line with the device's number and the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnCorruption {
    /// The read fails with `EIO`.
    Fail,
    /// The kernel panics. Linux 5.8.
    Panic,
}

/// There is no device.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// What is below it is no block device, or is not there.
    #[error("cannot use {} as a block device", path.display())]
    Source {
        /// What was named.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The kernel has no device-mapper: its module is not loaded.
    #[error("cannot open {CONTROL}; is the module dm-mod loaded?")]
    Control(#[source] io::Error),
    /// The kernel refuses, as with `E2BIG` a table for a larger device; its log says why.
    #[error("cannot {step} device-mapper device {name}")]
    Refused {
        /// What was tried.
        step: &'static str,
        /// The device's name.
        name: String,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
}

/// Makes a read-only block device of what is on `source`: data, and their tree behind them. Returns its
/// node. No block is read yet, so that a wrong root is no error here.
///
/// # Errors
/// [`OpenError`]. No device is left.
pub fn open(name: &str, source: &Path, root: &Root, on_corruption: OnCorruption) -> Result<PathBuf, OpenError> {
    let below = fs::metadata(source).and_then(|metadata| {
        if metadata.file_type().is_block_device() { Ok(metadata.rdev()) } else { Err(Errno::ENOTBLK.into()) }
    });
    let below = below.map_err(|error| OpenError::Source { path: source.to_owned(), source: error })?;
    let control = File::options().read(true).write(true).open(CONTROL).map_err(OpenError::Control)?;
    let refused = |step| move |source| OpenError::Refused { step, name: name.to_owned(), source };

    let (_, number) = sys::create(control.as_fd(), name).map_err(refused("make"))?;
    let parameters = parameters(&format!("{}:{}", major(below), minor(below)), root, on_corruption);
    let sectors = root.blocks.get() * SECTORS_PER_BLOCK;
    let table = Table { sectors, kind: "verity", parameters: &parameters };
    let started = sys::load(control.as_fd(), name, &table)
        .map_err(refused("load the table of"))
        .and_then(|()| sys::resume(control.as_fd(), name).map_err(refused("start")));
    if let Err(error) = started {
        // Nobody uses it yet, and the first error is the one to tell.
        let _ = sys::remove(control.as_fd(), name);
        return Err(error);
    }
    Ok(PathBuf::from(format!("/dev/dm-{number}")))
}

/// Documentation/admin-guide/device-mapper/verity.rst, "Construction Parameters".
fn parameters(device: &str, root: &Root, on_corruption: OnCorruption) -> String {
    let Root { blocks, digest } = root;
    // The tree begins at the block behind the data.
    let fixed = format!("1 {device} {device} {BLOCK} {BLOCK} {blocks} {blocks} sha256 {digest} -");
    match on_corruption {
        OnCorruption::Fail => fixed,
        OnCorruption::Panic => fixed + " 1 panic_on_corruption",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_that_of_the_kernels_documentation() {
        let root = format!("7:{}", "ab".repeat(32)).parse().unwrap();
        assert_eq!(
            parameters("254:2", &root, OnCorruption::Panic),
            format!("1 254:2 254:2 4096 4096 7 7 sha256 {} - 1 panic_on_corruption", "ab".repeat(32))
        );
        assert!(parameters("254:2", &root, OnCorruption::Fail).ends_with(" -"));
    }

    #[test]
    fn what_is_no_block_device_is_refused() {
        let root = format!("7:{}", "ab".repeat(32)).parse().unwrap();
        let opened = open("test", Path::new("/dev/null"), &root, OnCorruption::Fail);
        assert!(matches!(opened, Err(OpenError::Source { .. })));
    }
}
