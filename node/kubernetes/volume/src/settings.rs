//! [`Settings`].

use std::collections::BTreeSet;
use std::time::Duration;

use fsquota::ProjectId;
use units::Bytes;

use crate::Overcommit;

/// How much of the disk volumes may have, and how long a call may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Space that is kept for other data on the data disk.
    pub reserve: Bytes,
    pub overcommit: Overcommit,
    /// Projects of the same file system other than volumes, which are not [strays](crate::Volumes::strays).
    pub other_projects: BTreeSet<ProjectId>,
    pub neighbours: Neighbours,
    /// How long one call copies the blocks of a clone or a snapshot, but at least one piece. Between calls, other
    /// volumes are served.
    pub pass: Duration,
    /// Names that one pass of a removal processes, at least 100; the default takes a fraction of a second. A process
    /// that still has a directory of the volume open can add names without end, and each pass occupies one of the
    /// threads that remove volumes.
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
    /// Only the projects of [`Settings::other_projects`], each with a limit. The reserve is the sum of these limits.
    #[default]
    Limited,
    /// Any process, on other clusters. The store measures the space that they use for each query of the space. It keeps
    /// this space in addition to the reserve, which is for their writes until the next query. Volumes have projects
    /// from [`Neighbours::FIRST_PROJECT`] on, and a project below is not a [stray](crate::Volumes::strays).
    Strangers,
}

impl Neighbours {
    /// First project of volumes beside strangers, far from the first projects of other programs: kubelet's quotas of
    /// emptyDirs at 2^20 + 1, container engines near 1.
    pub const FIRST_PROJECT: ProjectId = ProjectId::new(0x6772_0000).expect("it is one");

    pub(crate) const fn first_project(self) -> ProjectId {
        match self {
            Self::Limited => ProjectId::FIRST,
            Self::Strangers => Self::FIRST_PROJECT,
        }
    }
}
