//! Block devices below `/sys/block`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::libc::dev_t;
use nix::sys::stat::{major, minor};
use units::Bytes;

use crate::error::FindError;

/// Unit of sizes and offsets in bytes, independent of the disk's sector size.
const SECTOR: u64 = 512;

/// Maximum depth of stacked devices. The kernel has no limit.
const DEEPEST: u32 = 16;

/// Parses a number in a kernel attribute: decimal, with a line feed.
pub fn number(attribute: &str) -> Option<u64> {
    let digits = attribute.strip_suffix('\n').unwrap_or(attribute);
    // The standard library would accept a sign.
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

pub(crate) fn read_number(path: &Path) -> Result<u64, FindError> {
    let text = fs::read_to_string(path).map_err(look("read", path))?;
    number(&text).ok_or_else(|| FindError::Malformed { path: path.to_owned() })
}

pub(crate) fn read_size(path: &Path) -> Result<Bytes, FindError> {
    let sectors = Bytes::new(read_number(path)?);
    sectors.checked_mul(SECTOR).ok_or_else(|| FindError::Malformed { path: path.to_owned() })
}

/// Name of the device node: that of the device with `/` for each `!`.
pub(crate) fn name(device: &Path) -> Option<String> {
    Some(device.file_name()?.to_str()?.replace('!', "/"))
}

/// Whether a disk has no device node, like the single paths of a multipath NVMe disk.
pub(crate) fn is_hidden(disk: &Path) -> Result<bool, FindError> {
    Ok(read_number(&disk.join("hidden"))? != 0)
}

/// Serial number of a disk. virtio-blk has it at the disk, other drivers at the hardware. SCSI and SATA disks have it
/// in a page of vital product data after a header (SPC-4, "Unit Serial Number"). Some disks have none.
///
/// # Errors
/// [`FindError::Look`]: the driver cannot read the serial number.
pub fn serial(disk: &Path) -> Result<Option<String>, FindError> {
    for (place, head) in [("serial", 0), ("device/serial", 0), ("device/vpd_pg80", 4)] {
        let place = disk.join(place);
        match fs::read(&place) {
            Ok(serial) => {
                let serial = String::from_utf8_lossy(serial.get(head..).unwrap_or_default());
                return Ok(Some(serial.trim().to_owned()));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(look("read", &place)(error)),
        }
    }
    Ok(None)
}

pub(crate) fn partitions(disk: &Path) -> Result<Vec<PathBuf>, FindError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(disk).map_err(look("list", disk))? {
        let path = entry.map_err(look("list", disk))?.path();
        if path.join("partition").exists() {
            found.push(path);
        }
    }
    Ok(found)
}

/// Whether a disk, one of its partitions, or a device that is stacked on them is `device`. `disk` is its directory in
/// sysfs.
///
/// # Errors
/// [`FindError::Look`]: the disk has disappeared.
pub fn holds(disk: &Path, device: dev_t) -> Result<bool, FindError> {
    let wanted = format!("{}:{}", major(device), minor(device));
    let places = partitions(disk)?;
    Ok(is_below(disk, &wanted, DEEPEST) || places.iter().any(|place| is_below(place, &wanted, DEEPEST)))
}

fn is_below(place: &Path, wanted: &str, depth: u32) -> bool {
    if fs::read_to_string(place.join("dev")).is_ok_and(|found| found.trim() == wanted) {
        return true;
    }
    let Some(depth) = depth.checked_sub(1) else { return false };
    // The directory is missing for a device that does not support stacked devices.
    let Ok(holders) = fs::read_dir(place.join("holders")) else { return false };
    holders.flatten().any(|holder| is_below(&holder.path(), wanted, depth))
}

pub(crate) fn look(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FindError {
    let path = path.to_owned();
    move |source| FindError::Look { step, path, source }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_number_is_digits_and_a_line_feed() {
        assert_eq!(number("0\n"), Some(0));
        assert_eq!(number("18446744073709551615\n"), Some(u64::MAX));
        for wrong in ["", "\n", "1\n\n", "+1\n", "-1\n", " 1\n", "0x10\n", "18446744073709551616\n", "1 2\n"] {
            assert_eq!(number(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_serial_number_is_where_the_driver_has_it() {
        for (place, content, wanted) in [
            ("serial", &b"data"[..], Some("data")),
            ("device/serial", b"S4EWNX0M  \n", Some("S4EWNX0M")),
            ("device/vpd_pg80", b"\0\x80\0\x14                data", Some("data")),
            ("device/vpd_pg80", b"\0", Some("")),
            ("device/model", b"QEMU", None),
        ] {
            let disk = tempfile::tempdir().unwrap();
            fs::create_dir(disk.path().join("device")).unwrap();
            fs::write(disk.path().join(place), content).unwrap();
            assert_eq!(serial(disk.path()).unwrap().as_deref(), wanted, "{place}");
        }
    }

    proptest! {
        #[test]
        fn a_number_survives_the_way_through_the_kernel(wanted: u64) {
            prop_assert_eq!(number(&format!("{wanted}\n")), Some(wanted));
        }
    }
}
