//! Inodes of a volume that are not counted to its project.

use std::path::PathBuf;

use fsquota::{Drift, FsError, Stray};
use tracing::debug;
use units::Inodes;

use crate::VolumeId;
use crate::index::Entry;
use crate::store::Store;

/// Inodes that one look takes on. A process may add inodes meanwhile.
const MOST: Inodes = Inodes::new(1_000_000);

/// Inodes of a volume that count to no limit, or to that of another project.
/// They were found by a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drifted {
    /// How many inodes have another project, or none, or do not pass it on.
    pub inodes: Inodes,
    /// One of them, from the volume's root on, and what is wrong with it.
    pub first: Option<(PathBuf, Drift)>,
}

/// Why a volume's inodes could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum DriftError {
    #[error(transparent)]
    Dir(#[from] dir::Error),
    #[error("cannot look at the inodes of the volume")]
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
                    // The tenant chooses how deep its tree is. The rest is looked at.
                    Err(error) => {
                        let reason: &dyn std::error::Error = &error;
                        debug!(volume = %id, error = reason, "inode not looked at");
                    }
                }
            }
        }
        Ok(found)
    }
}
