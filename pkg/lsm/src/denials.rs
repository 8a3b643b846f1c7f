//! Denied calls.

use std::fmt;

use crate::cgroup::CgroupId;

/// A kind of call that the programs deny.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// A change of a project ID or of the inherit flag of a directory.
    Project,
    /// A `quotactl` command that changes something.
    Quota,
    /// An ioctl of a published loop device or of `/dev/loop-control`.
    Loop,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 3] = [Self::Project, Self::Quota, Self::Loop];

    /// Name of the operation, a label of a metric.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Project => "project",
            Self::Quota => "quota",
            Self::Loop => "loop",
        }
    }

    /// Number of the operation in the maps.
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::Project => 0,
            Self::Quota => 1,
            Self::Loop => 2,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Numbers of denied calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Denials {
    project: u64,
    quota: u64,
    loops: u64,
}

impl Denials {
    /// Number of denied calls of this operation.
    pub const fn of(self, operation: Operation) -> u64 {
        match operation {
            Operation::Project => self.project,
            Operation::Quota => self.quota,
            Operation::Loop => self.loops,
        }
    }

    pub(crate) fn set(&mut self, operation: Operation, count: u64) {
        let field = match operation {
            Operation::Project => &mut self.project,
            Operation::Quota => &mut self.quota,
            Operation::Loop => &mut self.loops,
        };
        *field = count;
    }
}

/// Calls of one cgroup that were denied since the last [`Guard::recent`](crate::Guard::recent).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recent {
    /// Cgroup of the tasks, that of a pod's container.
    pub cgroup: CgroupId,
    /// The kind of the call.
    pub operation: Operation,
    /// Number of denied calls.
    pub count: u64,
}
