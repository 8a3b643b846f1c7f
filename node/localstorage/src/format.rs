//! Formats a disk so that a power cut at any time leaves an empty disk, one that is marked as unfinished, or a complete
//! one.

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

/// `mkfs.xfs` writes some megabytes to a disk of any size. A disk that needs more time than this is broken.
const BOUNDS: Bounds = Bounds { time: Duration::from_secs(600), bytes: 64 << 10 };

/// Maximum percentage of the disk for inodes. From 1 TB on `mkfs.xfs` uses 5 %, from 50 TB on 1 %. A volume gets an
/// inode per 2048 bytes, which is a fifth of the disk in total.
const INODES: &str = "maxpct=25";

impl DataDisk {
    /// Formats an empty disk, with the label of an unfinished file system. Durable when this returns: `mkfs.xfs` syncs
    /// the device.
    pub(crate) fn format(&self, programs: &Programs) -> Result<(), MountError> {
        let more: &[&str] = match self.state {
            DiskState::Formatted => return Ok(()),
            // Without -f, mkfs.xfs itself checks for foreign content.
            DiskState::Empty => &[],
            DiskState::Unfinished => &["-f"],
        };
        let mkfs = &programs.mkfs;
        // -K: an empty disk has nothing to discard.
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

    /// Gives the new, mounted file system its final label. Later boots do not format it again.
    pub(crate) fn finish(&self, root: &Dir, path: &Path) -> Result<(), MountError> {
        sys::set_label(root.as_fd(), LABEL).map_err(|source| MountError::Label { path: path.to_owned(), source })?;
        // The kernel has written the superblock, but perhaps only to the disk's cache. Later writes must not become
        // durable before it.
        File::open(&self.device)
            .and_then(|disk| disk.sync_all())
            .map_err(|source| MountError::Flush { device: self.device.clone(), source })?;
        info!(device = %self.device.display(), size = %self.size, "data disk formatted");
        Ok(())
    }
}
