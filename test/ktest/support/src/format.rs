//! New XFS file systems on scratch disks.
//!
//! In emulation, `mkfs.xfs` takes much longer to start than to write. A disk that is formatted often therefore receives
//! the blocks that `mkfs.xfs` wrote to a file of the same size, and zeros elsewhere. Each disk has its own template,
//! because XFS does not mount two file systems with the same UUID.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::libc;
use nix::unistd::{Whence, lseek};

use crate::busy;
use crate::tool::run;

/// Number of times that `mkfs.xfs` formats a disk before a template does. Creating a template takes about as long.
const BY_PROGRAM: usize = 3;

/// Bytes that are read and compared with zeros at once.
const PIECE: u64 = 64 << 10;
static ZEROS: [u8; PIECE as usize] = [0; PIECE as usize];

/// Formats of each disk, by device path.
static DISKS: Mutex<BTreeMap<PathBuf, Formats>> = Mutex::new(BTreeMap::new());

#[derive(Debug, Default)]
struct Formats {
    count: usize,
    template: Option<Arc<Template>>,
}

/// Blocks that `mkfs.xfs` writes, by offset, without blocks of zeros.
#[derive(Debug)]
struct Template {
    size: libc::off_t,
    data: Vec<(u64, Vec<u8>)>,
}

/// Creates an XFS on a disk, which must not be mounted.
pub(crate) fn format(device: &Path) {
    let disk = unused(device);
    match template(device, &disk) {
        Some(template) => {
            let written = template.write(&disk);
            written.unwrap_or_else(|error| panic!("cannot format {}: {error}", device.display()));
        }
        None => {
            // `mkfs.xfs` opens the disk with O_EXCL, too.
            drop(disk);
            make(device);
        }
    }
}

/// `-K` skips the discard of all blocks: a scratch disk is a sparse file.
fn make(target: &Path) {
    run(Command::new("mkfs.xfs").args(["-q", "-f", "-K", "-l", "size=64m"]).arg(target));
}

/// Opens a disk exclusively. A process that is ending may keep a former mount for a moment, and O_EXCL fails while the
/// device is mounted, open(2).
fn unused(device: &Path) -> File {
    let mut disk = None;
    let open = || -> Result<(), Errno> {
        let opened = File::options().write(true).custom_flags(libc::O_EXCL).open(device);
        disk = Some(opened.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))?);
        Ok(())
    };
    busy::retry(open).unwrap_or_else(|error| panic!("cannot use {}: {error}", device.display()));
    disk.expect("it is open")
}

/// Counts the formats of a disk. Returns its template if `mkfs.xfs` has formatted it often enough.
fn template(device: &Path, disk: &File) -> Option<Arc<Template>> {
    let mut disks = DISKS.lock().unwrap_or_else(PoisonError::into_inner);
    let formats = disks.entry(device.to_owned()).or_default();
    formats.count += 1;
    if formats.count <= BY_PROGRAM {
        return None;
    }
    let template = formats.template.get_or_insert_with(|| {
        let template = lseek(disk, 0, Whence::SeekEnd).map_err(io::Error::from).and_then(Template::of_size);
        Arc::new(template.unwrap_or_else(|error| panic!("cannot make a template for {}: {error}", device.display())))
    });
    Some(Arc::clone(template))
}

impl Template {
    fn of_size(size: libc::off_t) -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("xfs-template-{}", process::id()));
        File::create_new(&path)?.set_len(size.cast_unsigned())?;
        make(&path);
        let image = File::open(&path)?;
        fs::remove_file(&path)?;
        Self::of(&image)
    }

    /// Reads the parts of a sparse file that were written.
    fn of(image: &File) -> io::Result<Self> {
        let size = lseek(image, 0, Whence::SeekEnd)?;
        let (mut template, mut end) = (Self { size, data: Vec::new() }, 0);
        loop {
            let start = match lseek(image, end, Whence::SeekData) {
                Ok(start) => start,
                // Only a hole follows.
                Err(Errno::ENXIO) => return Ok(template),
                Err(errno) => return Err(errno.into()),
            };
            end = lseek(image, start, Whence::SeekHole)?;
            template.note(image, start.cast_unsigned(), end.cast_unsigned())?;
        }
    }

    fn note(&mut self, image: &File, start: u64, end: u64) -> io::Result<()> {
        for start in (start..end).step_by(PIECE as usize) {
            let mut piece = vec![0; PIECE.min(end - start) as usize];
            image.read_exact_at(&mut piece, start)?;
            if piece[..] != ZEROS[..piece.len()] {
                self.data.push((start, piece));
            }
        }
        Ok(())
    }

    fn write(&self, disk: &File) -> io::Result<()> {
        // Log recovery would treat blocks of a former file system with the same UUID as newer ones.
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(disk, hole, 0, self.size)
            .or_else(|_| fallocate(disk, FallocateFlags::FALLOC_FL_ZERO_RANGE, 0, self.size))?;
        for (start, bytes) in &self.data {
            disk.write_all_at(bytes, *start)?;
        }
        // XFS bypasses the page cache of the device.
        disk.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_has_what_was_written() {
        let path = std::env::temp_dir().join(format!("template-{}", process::id()));
        let image = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        image.set_len(16 * PIECE).unwrap();
        image.write_all_at(&[0; 4096], 0).unwrap();
        image.write_all_at(&ZEROS, 2 * PIECE).unwrap();
        image.write_all_at(&[1; 8192], 4 * PIECE + 4096).unwrap();
        let Template { size, data } = Template::of(&image).unwrap();

        let mut disk = vec![0; size as usize];
        for (start, bytes) in data {
            disk[start as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        let mut content = vec![0; 16 * PIECE as usize];
        image.read_exact_at(&mut content, 0).unwrap();
        assert!(disk == content);
    }
}
