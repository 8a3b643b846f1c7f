//! dm-verity devices.

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
/// Number of device-mapper sectors, which have 512 bytes, in a block.
const SECTORS_PER_BLOCK: u64 = (BLOCK / 512) as u64;

/// Reaction of the kernel to a block with a wrong digest. It never returns the block, and logs the device number and
/// the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnCorruption {
    /// The read fails with `EIO`.
    Fail,
    /// The kernel panics. Linux 5.8.
    Panic,
}

/// The device cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The source does not exist or is not a block device.
    #[error("{} is not a usable block device", path.display())]
    Source {
        /// Path of the source.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The kernel has no device-mapper; its module is not loaded.
    #[error("cannot open {CONTROL}; load the module dm-mod")]
    Control(#[source] io::Error),
    /// A device-mapper ioctl failed, for example with `E2BIG` if the device is too small. The kernel log has the
    /// reason.
    #[error("cannot {step} device-mapper device {name}")]
    DeviceMapper {
        /// The failed step.
        step: &'static str,
        /// Name of the device.
        name: String,
        /// Errno of the ioctl.
        source: Errno,
    },
}

/// Creates a read-only device for `source`, which contains the data followed by the tree. Returns the path of its node.
/// Reads no block, so a wrong root digest causes no error here.
///
/// # Errors
/// [`OpenError`]. No device remains.
pub fn open(name: &str, source: &Path, root: &Root, on_corruption: OnCorruption) -> Result<PathBuf, OpenError> {
    let below = fs::metadata(source).and_then(|metadata| {
        if metadata.file_type().is_block_device() { Ok(metadata.rdev()) } else { Err(Errno::ENOTBLK.into()) }
    });
    let below = below.map_err(|error| OpenError::Source { path: source.to_owned(), source: error })?;
    let control = File::options().read(true).write(true).open(CONTROL).map_err(OpenError::Control)?;
    let failed = |step| move |source| OpenError::DeviceMapper { step, name: name.to_owned(), source };

    let (_, number) = sys::create(control.as_fd(), name).map_err(failed("make"))?;
    let parameters = parameters(&format!("{}:{}", major(below), minor(below)), root, on_corruption);
    let sectors = root.blocks.get() * SECTORS_PER_BLOCK;
    let table = Table { sectors, kind: "verity", parameters: &parameters };
    let started = sys::load(control.as_fd(), name, &table)
        .map_err(failed("load the table of"))
        .and_then(|()| sys::resume(control.as_fd(), name).map_err(failed("start")));
    if let Err(error) = started {
        // Nothing uses the device yet. Report the first error if the removal fails too.
        let _ = sys::remove(control.as_fd(), name);
        return Err(error);
    }
    Ok(PathBuf::from(format!("/dev/dm-{number}")))
}

/// Documentation/admin-guide/device-mapper/verity.rst, "Construction Parameters".
fn parameters(device: &str, root: &Root, on_corruption: OnCorruption) -> String {
    let Root { blocks, digest } = root;
    // The tree begins at the block after the data.
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
    fn the_parameters_match_the_kernel_documentation() {
        let root = format!("7:{}", "ab".repeat(32)).parse().unwrap();
        assert_eq!(
            parameters("254:2", &root, OnCorruption::Panic),
            format!("1 254:2 254:2 4096 4096 7 7 sha256 {} - 1 panic_on_corruption", "ab".repeat(32))
        );
        assert!(parameters("254:2", &root, OnCorruption::Fail).ends_with(" -"));
    }

    #[test]
    fn a_file_that_is_not_a_block_device_is_rejected() {
        let root = format!("7:{}", "ab".repeat(32)).parse().unwrap();
        let opened = open("test", Path::new("/dev/null"), &root, OnCorruption::Fail);
        assert!(matches!(opened, Err(OpenError::Source { .. })));
    }
}
