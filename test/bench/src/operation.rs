//! [`Operation`]: the measured operations.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

macro_rules! operations {
    ($($subject:ident { $($variant:ident $title:literal,)* })*) => {
        /// A call of a crate of this project, or the baseline for the comparison. README.md lists the calls.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum)]
        #[serde(rename_all = "kebab-case")]
        pub enum Operation {
            $($($variant,)*)*
        }

        impl Operation {
            /// All operations, in the order of the report.
            pub const ALL: &[Self] = &[$($(Self::$variant,)*)*];

            pub const fn subject(self) -> Subject {
                match self {
                    $($(Self::$variant)|* => Subject::$subject,)*
                }
            }

            /// Name in the table.
            pub const fn title(self) -> &'static str {
                match self {
                    $($(Self::$variant => $title,)*)*
                }
            }
        }
    };
}

operations! {
    Fsquota {
        Next "Allocator::next, one of 32",
        WalkForId "(baseline: walk for an ID)",
        SetFirst "set, first time",
        SetAgain "set, other limits",
        Assign "assign",
        Get "get",
        Quota "quota, ID known",
        Report "report, all projects",
        Remove "remove",
        Sync "sync",
    }
    Dir {
        WriteNew "Dir::write, new file",
        WriteOver "Dir::write, replace",
    }
    Volume {
        Claim "claim, filesystem",
        ClaimBlock "claim, block (thick)",
        OpenVolume "open_volume",
        VolumeStats "open_volume, then quota",
        Expand "expand, filesystem",
        ExpandBlock "expand, block (thick)",
        Retire "retire",
        Discard "discard",
    }
    Snapshot {
        TakeSnapshot "take_snapshot, first piece",
        CloneVolume "clone, first piece",
        TakeSnapshotLarge "take_snapshot, 8 times the size",
        CloneVolumeLarge "clone, 8 times the size",
        FinishSnapshot "take_snapshot, the rest",
        CopyImage "(baseline: copy of the file)",
    }
    Csi {
        Publish "publish, filesystem",
        PublishSingle "publish, for one pod",
        PublishBlock "publish, block",
        PublishedStats "volume statistics",
        Unpublish "unpublish, filesystem",
        UnpublishBlock "unpublish, block",
    }
    Loopdev {
        Attach "attach",
        Status "status",
        Refresh "refresh_size",
        Detach "detach",
        List "list",
    }
}

/// The crate of an operation. It also determines on which number of existing things the cost must not depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    Fsquota,
    Dir,
    Volume,
    Snapshot,
    Csi,
    Loopdev,
}

/// Limits of an operation's system calls, and of its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Expected {
    /// Additional calls for each existing thing. `None`: shown without a limit.
    pub slope: Option<u32>,
    pub at_most: Option<u32>,
    pub flushes: Option<u32>,
    /// Milliseconds of the disk with the larger number of things. Without times, this limit is not checked.
    pub disk_ms: Option<u32>,
}

const UNLIMITED: Expected = Expected { slope: None, at_most: None, flushes: None, disk_ms: None };

impl Operation {
    /// Number of calls of the operation in one measured region. The calls share work that happens once for several of
    /// them.
    pub const fn calls(self) -> u32 {
        match self {
            // One batch of the allocator.
            Self::Next => 32,
            _ => 1,
        }
    }

    pub const fn expected(self) -> Expected {
        match self {
            Self::Report => Expected { slope: Some(1), ..UNLIMITED },
            Self::Quota | Self::VolumeStats => Expected { slope: Some(0), at_most: Some(3), ..UNLIMITED },
            // Three calls, and the close of the target.
            Self::PublishedStats => Expected { slope: Some(0), at_most: Some(4), ..UNLIMITED },
            // Two log forces.
            Self::Claim => Expected { slope: Some(0), at_most: Some(16), flushes: Some(4), ..UNLIMITED },
            Self::Publish | Self::PublishSingle => Expected { slope: Some(0), at_most: Some(10), ..UNLIMITED },
            Self::PublishBlock | Self::UnpublishBlock => Expected { slope: Some(0), at_most: Some(30), ..UNLIMITED },
            Self::CloneVolume | Self::CloneVolumeLarge => {
                Expected { slope: Some(0), at_most: Some(46), flushes: Some(4), disk_ms: Some(10) }
            }
            // One more durable write of the record: the mark of a complete snapshot.
            Self::TakeSnapshot | Self::TakeSnapshotLarge => {
                Expected { slope: Some(0), at_most: Some(52), flushes: Some(6), disk_ms: Some(10) }
            }
            // Half of the calls of `CopyImage`, regardless of the size of the pieces of a pass.
            Self::FinishSnapshot => Expected { at_most: Some(2000), flushes: Some(16), ..UNLIMITED },
            // XFS removes deleted inodes in the background, so the number of polls for the end of this work varies.
            Self::WalkForId | Self::List | Self::Discard => UNLIMITED,
            Self::CopyImage => UNLIMITED,
            _ => Expected { slope: Some(0), ..UNLIMITED },
        }
    }
}

impl Subject {
    /// All subjects, in the order of the report.
    pub const ALL: [Self; 6] = [Self::Fsquota, Self::Dir, Self::Volume, Self::Snapshot, Self::Csi, Self::Loopdev];

    pub fn operations(self) -> impl Iterator<Item = Operation> {
        Operation::ALL.iter().copied().filter(move |operation| operation.subject() == self)
    }

    /// The two numbers of existing things at which the operations are counted.
    pub const fn populations(self) -> [u32; 2] {
        match self {
            Self::Fsquota | Self::Dir | Self::Volume => [0, 1000],
            Self::Snapshot => [1, 1000],
            Self::Csi => [0, 500],
            Self::Loopdev => [0, 100],
        }
    }

    pub const fn things(self) -> &'static str {
        match self {
            Self::Fsquota | Self::Dir => "projects",
            Self::Volume => "volumes",
            Self::Snapshot => "extents",
            Self::Csi => "mounts",
            Self::Loopdev => "devices",
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Name on the command line and in JSON.
impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_on_the_command_line_is_the_one_in_json() {
        for &operation in Operation::ALL {
            assert_eq!(Operation::from_str(&operation.to_string(), false), Ok(operation));
            assert_eq!(serde_json::to_value(operation).unwrap(), operation.to_string());
        }
    }

    #[test]
    fn operations_come_in_the_order_of_their_subjects() {
        assert!(Operation::ALL.is_sorted_by_key(|operation| operation.subject()));
        assert!(Operation::ALL.is_sorted());
    }
}
