//! Searches the disks for the system and verifies its first block.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};
use std::{fmt, io};

use verity::OnCorruption;

use crate::system::{self, BlockDevice, System};

pub const VERIFIED: &str = "system";
const PATIENCE: Duration = Duration::from_secs(20);
/// Time to wait for another disk if the partition of the first one contains another system.
const SECOND_DISK: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    #[error("cannot read /sys/class/block")]
    Look(#[source] io::Error),
    #[error("no disk holds the {wanted}; there {}", DeviceList(.seen))]
    NoSystem { wanted: System, seen: Vec<BlockDevice> },
    /// The first block does not match the root hash.
    #[error("the system on {partition} is damaged, and was not started; write the image to the disk again")]
    Damaged { partition: String, source: verity::CheckError },
    #[error("cannot open {partition} through dm-verity; if it is too small, write the image to the disk again")]
    Verity { partition: String, source: verity::OpenError },
}

struct DeviceList<'seen>(&'seen [BlockDevice]);

impl fmt::Display for DeviceList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("are none");
        }
        write!(f, "are {}", self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
    }
}

/// Finds the system. The kernel probes disks concurrently, so a disk may appear later: `load_drivers` loads the drivers
/// of devices that appeared since its last call.
pub fn find(wanted: &System, mut load_drivers: impl FnMut()) -> Result<BlockDevice, SearchError> {
    load_drivers();
    let start = Instant::now();
    loop {
        let mut seen = system::look().map_err(SearchError::Look)?;
        let is_whole = |seen: &BlockDevice, root: &verity::Root| system::check_first(&seen.device, root).is_ok();
        if let Some(index) = system::choose(&seen, wanted, is_whole, start.elapsed() > SECOND_DISK) {
            return Ok(seen.swap_remove(index));
        }
        if start.elapsed() > PATIENCE {
            return Err(SearchError::NoSystem { wanted: *wanted, seen });
        }
        thread::sleep(Duration::from_millis(10));
        load_drivers();
    }
}

/// Creates the dm-verity device of the partition after verifying its first block.
pub fn verified(found: &BlockDevice, root: &verity::Root) -> Result<PathBuf, SearchError> {
    // The first block contains the superblock. Verify it here, so that a partition of another image or an incompletely
    // written one is reported with the remedy.
    let partition = found.place();
    if let Err(source) = system::check_first(&found.device, root) {
        return Err(SearchError::Damaged { partition, source });
    }
    verity::open(VERIFIED, &found.device, root, OnCorruption::Panic)
        .map_err(|source| SearchError::Verity { partition, source })
}
