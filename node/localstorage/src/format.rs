//! Formatting, so that a power cut at any moment leaves an empty disk, one that is known to
//! be unfinished, or a whole one.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use dir::Dir;
use tracing::info;

use crate::content::{LABEL, UNFINISHED_LABEL};
use crate::disk::{DataDisk, DiskState};
use crate::error::MountError;
use crate::program::{Bounds, Programs, run};
use crate::sys;

/// `mkfs.xfs` writes some megabytes to a disk of any size. A disk that takes so long for them is broken.
const BOUNDS: Bounds = Bounds { time: Duration::from_secs(600), bytes: 64 << 10 };

/// How much of the disk inodes may take. From 1 TB on `mkfs.xfs` gives them 5 %, from 50 TB on 1 %; a volume gets an
/// inode for 2048 of its bytes, a fifth of the disk in all.
const INODES: &str = "maxpct=25";

impl DataDisk {
    /// Formats an empty disk, with the label of an unfinished file system. Durable when it
    /// returns: `mkfs.xfs` syncs the device.
    pub(crate) fn format(&self, programs: &Programs) -> Result<(), MountError> {
        let more: &[&str] = match self.state {
            DiskState::Formatted => return Ok(()),
            // Without -f the program looks for foreign content once more.
            DiskState::Empty => &[],
            DiskState::Unfinished => &["-f"],
        };
        let mkfs = &programs.mkfs;
        // -K: there is nothing to discard on a disk that is empty.
        let mut command = Command::new(mkfs);
        command.args(["-q", "-K", "-i", INODES, "-L", UNFINISHED_LABEL]).args(more).arg(&self.device);
        let made = run(&mut command, BOUNDS).map_err(|source| MountError::Program {
            program: mkfs.clone(),
            device: self.device.clone(),
            source,
        })?;
        if made.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&made.errors).trim().to_owned();
        Err(MountError::Format { program: mkfs.clone(), device: self.device.clone(), status: made.status, said })
    }

    /// Gives the new, mounted file system the label that later boots look for. From
    /// here on it is not formatted again.
    pub(crate) fn finish(&self, root: &Dir, path: &Path) -> Result<(), MountError> {
        sys::set_label(root.as_fd(), LABEL).map_err(|source| MountError::Label { path: path.to_owned(), source })?;
        // The kernel wrote the superblock, but perhaps only into the disk's cache: what comes next must
        // not outlive it.
        File::open(&self.device)
            .and_then(|disk| disk.sync_all())
            .map_err(|source| MountError::Flush { device: self.device.clone(), source })?;
        info!(device = %self.device.display(), size = %self.size, "data disk formatted");
        Ok(())
    }
}
