//! Inodes of a volume that are not counted to its project.

use std::path::PathBuf;

use fsquota::{Drift, FsError, Stray};
use tracing::debug;
use units::Inodes;

use crate::VolumeId;
use crate::index::Entry;
use crate::store::Store;

/// Maximum number of inodes in one walk. A process may add inodes meanwhile.
const MOST: Inodes = Inodes::new(1_000_000);

/// Inodes of a volume that count to no limit, or to the limit of another project, as a walk found them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drifted {
    /// Number of inodes that have another project, or none, or do not pass it on.
    pub inodes: Inodes,
    /// First of these inodes, as a path from the volume's root, and its fault.
    pub first: Option<(PathBuf, Drift)>,
}

/// Why the inodes of a volume could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DriftError {
    #[error(transparent)]
    Dir(#[from] dir::Error),
    #[error("cannot read the inodes of the volume")]
    Walk(#[from] FsError),
}

impl Store {
    pub(crate) fn drifted(&self, id: &VolumeId) -> Result<Drifted, DriftError> {
        let entry = self.index().volumes.get(id).cloned();
        let Some(Entry::Known(known)) = entry else { return Ok(Drifted::default()) };
        let mut found = Drifted::default();
        for place in [&*self.live, &*self.trash] {
            let dir = match place.open_dir(id.name()) {
                Ok(dir) => dir,
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(error.into()),
            };
            for stray in fsquota::strays(&dir, known.record.project)?.at_most(MOST) {
                match stray {
                    Ok(Stray { path, drift }) => {
                        found.inodes = Inodes::new(found.inodes.get().saturating_add(1));
                        found.first.get_or_insert((path, drift));
                    }
                    // The tenant chooses the depth of its tree, so the walk may not reach an inode. It continues with
                    // the others.
                    Err(error) => {
                        let reason: &dyn std::error::Error = &error;
                        debug!(volume = %id, error = reason, "inode not checked");
                    }
                }
            }
        }
        Ok(found)
    }
}
