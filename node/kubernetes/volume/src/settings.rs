//! [`Settings`].

use std::collections::BTreeSet;
use std::time::Duration;

use fsquota::ProjectId;
use units::Bytes;

use crate::Overcommit;

/// How much of the disk volumes may have, and how long a call may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Kept for what else lives on the data disk.
    pub reserve: Bytes,
    pub overcommit: Overcommit,
    /// Projects of the same file system other than volumes, which are not [strays](crate::Volumes::strays).
    pub other_projects: BTreeSet<ProjectId>,
    pub neighbours: Neighbours,
    /// How long one call copies the blocks of a clone or a snapshot, a piece at least. Other volumes get their turn between
    /// calls.
    pub pass: Duration,
    /// Names that one pass of a removal takes on, at least 100: a fraction of a second. A process that still has a
    /// directory of the volume open can add names for ever, and each pass occupies one of the threads that remove
    /// volumes.
    pub removed_at_once: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            reserve: Bytes::ZERO,
            overcommit: Overcommit::default(),
            other_projects: BTreeSet::new(),
            neighbours: Neighbours::default(),
            pass: Duration::from_secs(1),
            removed_at_once: 2048,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Neighbours {
    /// Those of [`Settings::other_projects`], each with a limit; the reserve is their sum.
    #[default]
    Limited,
    /// Any process, on other clusters. The space that they use is measured for each query of the space, and kept
    /// on top of the reserve, which is for what they write until the next time. Volumes have projects from
    /// [`Neighbours::FIRST_PROJECT`] on, and what is below is no [stray](crate::Volumes::strays).
    Strangers,
}

impl Neighbours {
    /// Far from where others start: kubelet's quotas of emptyDirs at 2^20 + 1, container engines near 1.
    pub const FIRST_PROJECT: ProjectId = ProjectId::new(0x6772_0000).expect("it is one");

    pub(crate) const fn first_project(self) -> ProjectId {
        match self {
            Self::Limited => ProjectId::FIRST,
            Self::Strangers => Self::FIRST_PROJECT,
        }
    }
}
