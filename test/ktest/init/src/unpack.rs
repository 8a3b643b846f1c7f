//! The payload of a restored guest: an archive on a disk.

use std::fs::{self, File, Permissions};
use std::io::{self, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use cpio::newc::Reader;
use ktest_init::StepError;

const PIECE: usize = 1 << 20;
// Types of files in the mode of an entry, inode(7).
const TYPE: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const LINK: u32 = 0o120_000;

/// Unpacks the cpio archive on a disk below `root`, then removes the disk: tests see only the disks that they asked
/// for.
pub(crate) fn from_disk(disk: &Path, root: &Path) -> Result<(), StepError> {
    let archive = File::open(disk).map_err(unread(disk))?;
    unpack(BufReader::with_capacity(PIECE, archive), disk, root)?;
    remove(disk).map_err(StepError::of(format!("remove the disk {} from the guest", disk.display())))
}

fn unpack(mut archive: impl io::Read, disk: &Path, root: &Path) -> Result<(), StepError> {
    loop {
        let mut reader = Reader::new(archive).map_err(unread(disk))?;
        let entry = reader.entry();
        if entry.is_trailer() {
            return Ok(());
        }
        let path = root.join(entry.name());
        let step = format!("create {} from the archive on {}", path.display(), disk.display());
        create(&path, entry.mode(), &mut reader).map_err(StepError::of(step))?;
        archive = reader.finish().map_err(unread(disk))?;
    }
}

fn unread(disk: &Path) -> impl FnOnce(io::Error) -> StepError {
    StepError::of(format!("read the archive on {}", disk.display()))
}

fn create(path: &Path, mode: u32, content: &mut impl io::Read) -> io::Result<()> {
    match mode & TYPE {
        DIRECTORY => fs::create_dir_all(path),
        LINK => symlink(io::read_to_string(content)?, path),
        _ => {
            let mut file = File::create(path)?;
            io::copy(content, &mut file)?;
            file.set_permissions(Permissions::from_mode(mode & 0o777))
        }
    }
}

/// Removes the PCI device of the disk, Documentation/ABI/testing/sysfs-bus-pci. The disk is gone when this returns.
fn remove(disk: &Path) -> io::Result<()> {
    let block = Path::new("/sys/class/block").join(disk.file_name().unwrap_or_default());
    fs::write(block.join("device/../remove"), "1")
}

#[cfg(test)]
mod tests {
    use cpio::newc::Builder;
    use cpio::write_cpio;
    use std::io::Cursor;

    use super::*;

    fn archive() -> Vec<u8> {
        let entry =
            |name: &str, mode: u32, content: &str| (Builder::new(name).mode(mode), Cursor::new(content.to_owned()));
        let entries = [
            entry(".", 0o040_755, ""),
            entry("usr", 0o040_755, ""),
            entry("usr/program", 0o100_755, "content"),
            entry("lib64", 0o120_777, "usr/lib"),
        ];
        write_cpio(entries.into_iter(), Vec::new()).unwrap()
    }

    #[test]
    fn files_links_and_directories_are_created() {
        let root = tempfile::tempdir().unwrap();
        unpack(archive().as_slice(), Path::new("disk"), root.path()).unwrap();
        let program = root.path().join("usr/program");
        assert_eq!(fs::read_to_string(&program).unwrap(), "content");
        assert_eq!(fs::metadata(&program).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(fs::read_link(root.path().join("lib64")).unwrap(), Path::new("usr/lib"));
    }

    #[test]
    fn half_an_archive_is_an_error_that_names_the_disk() {
        let root = tempfile::tempdir().unwrap();
        let half = &archive()[..300];
        let error = unpack(half, Path::new("/dev/vda"), root.path()).unwrap_err();
        assert!(error.to_string().contains("/dev/vda"), "{error}");
    }
}
