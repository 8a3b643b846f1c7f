//! The search for the system among the disks, and the check of what was found.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};
use std::{fmt, io};

use verity::OnCorruption;

use crate::system::{self, Seen, System};

/// The device-mapper device's name.
pub const VERIFIED: &str = "system";
/// How long a disk may take to appear.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long another disk may take to appear when the first has something else on the partition that was asked for.
const SECOND_DISK: Duration = Duration::from_secs(1);

/// There is no system that can be started.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// The disks cannot be listed.
    #[error("cannot read /sys/class/block")]
    Look(#[source] io::Error),
    /// No disk holds it.
    #[error("no disk holds the {wanted}; there {}", Described(.seen))]
    NoSystem {
        /// What was asked for.
        wanted: System,
        /// What is there.
        seen: Vec<Seen>,
    },
    /// The first block is not what it should be.
    #[error("the system on {partition} is damaged, and was not started; write the image to the disk again")]
    Damaged {
        /// Where it is.
        partition: String,
        /// What is wrong.
        source: verity::CheckError,
    },
    /// The kernel does not make the device.
    #[error("{partition} cannot be opened through dm-verity; write the image to the disk again if it is too small")]
    Verity {
        /// Where it is.
        partition: String,
        /// Why not.
        source: verity::OpenError,
    },
}

struct Described<'seen>(&'seen [Seen]);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("is no disk at all");
        }
        write!(f, "are {}", self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
    }
}

/// Disks are probed beside this program, so that one may appear a little later.
///
/// # Errors
/// [`SearchError`].
pub fn find(wanted: &System) -> Result<Seen, SearchError> {
    let start = Instant::now();
    loop {
        let mut seen = system::look().map_err(SearchError::Look)?;
        let is_whole = |seen: &Seen, root: &verity::Root| system::check_first(&seen.device, root).is_ok();
        if let Some(index) = system::choose(&seen, wanted, is_whole, start.elapsed() > SECOND_DISK) {
            return Ok(seen.swap_remove(index));
        }
        if start.elapsed() > PATIENCE {
            return Err(SearchError::NoSystem { wanted: *wanted, seen });
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// The device that gives what the partition holds if it is what the root says.
///
/// # Errors
/// [`SearchError`].
pub fn verified(found: &Seen, root: &verity::Root) -> Result<PathBuf, SearchError> {
    // A partition of another image, or one that was half written, is told in words. The first block has
    // the superblock.
    let partition = found.place();
    if let Err(source) = system::check_first(&found.device, root) {
        return Err(SearchError::Damaged { partition, source });
    }
    verity::open(VERIFIED, &found.device, root, OnCorruption::Panic)
        .map_err(|source| SearchError::Verity { partition, source })
}
