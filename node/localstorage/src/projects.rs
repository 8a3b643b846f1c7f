//! The parts of the data disk get their limits.

use std::path::Path;

use dir::{Dir, Ensured};
use fsquota::{Allocator, SetError};
use nix::sys::statvfs::fstatvfs;
use tracing::{info, warn};
use units::Bytes;

use crate::budget::Budget;
use crate::error::MountError;
use crate::tree::Entry;

/// The limits of one data disk, and the counter of its project IDs.
#[derive(Debug)]
pub(crate) struct Projects {
    budget: Budget,
    ids: Allocator,
}

impl Projects {
    /// Of the data disk with this root and path. The counter is in the directory of the volumes, which
    /// have their IDs from it too: there is one for a file system.
    pub(crate) fn open(root: &Dir, volumes: &Dir, path: &Path) -> Result<Self, MountError> {
        let ids = Allocator::open(volumes).map_err(|source| MountError::Counter { path: path.to_owned(), source })?;
        Ok(Self { budget: budget(root, path)?, ids })
    }

    /// Limits a directory of the tree, if it is a part. Called before anything is made in it: what is in
    /// a directory when it gets its project is not counted.
    ///
    /// At every boot: a limit that was changed last may have been lost in a power cut, and the disk may
    /// have been enlarged.
    pub(crate) fn limit(&self, dir: &Dir, entry: Entry<'_>) -> Result<(), MountError> {
        let Some(part) = entry.part else { return Ok(()) };
        let limits = self.budget.limits(part);
        let path = entry.path.display();
        match fsquota::set(dir, limits, &self.ids) {
            Ok(Ensured::Created(project)) => {
                let (limit, inodes) = (self.budget.bytes(part), limits.inodes.unwrap_or_default().get());
                info!(%path, %limit, %inodes, %project, "directory limited");
                Ok(())
            }
            Ok(Ensured::Unchanged(_)) => Ok(()),
            // Filled by a release that knew no limits. A node that does not start helps nobody.
            Err(SetError::NotEmpty) => {
                warn!(
                    %path,
                    "directory was filled before it had a limit, and goes on without one: it can take what volumes \
                     were promised; move the volumes to a node with a new data disk"
                );
                Ok(())
            }
            // The directory above it had the limit once, and keeps it.
            Err(SetError::Nested { outer }) => {
                info!(%path, project = %outer, "directory is limited by the one above it");
                Ok(())
            }
            Err(source) => Err(MountError::Limit { path: entry.path.to_owned(), source }),
        }
    }
}

/// The budget of the data disk that `root` is the root of.
pub(crate) fn budget(root: &Dir, path: &Path) -> Result<Budget, MountError> {
    let found = fstatvfs(root).map_err(|source| MountError::Size { path: path.to_owned(), source })?;
    Ok(Budget::of(Bytes::new(found.blocks().saturating_mul(found.fragment_size()))))
}
