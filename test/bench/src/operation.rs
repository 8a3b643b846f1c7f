//! [`Operation`]: what is counted.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! operations {
    ($($subject:ident { $($(#[$doc:meta])* $variant:ident $name:literal $title:literal,)* })*) => {
        /// A call of a crate of this project, or the baseline that it is compared with.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Operation {
            $($($(#[$doc])* $variant,)*)*
        }

        impl Operation {
            /// In the order of the report.
            pub const ALL: &[Self] = &[$($(Self::$variant,)*)*];

            pub const fn subject(self) -> Subject {
                match self {
                    $($(Self::$variant)|* => Subject::$subject,)*
                }
            }

            /// On command lines and in JSON.
            pub const fn name(self) -> &'static str {
                match self {
                    $($(Self::$variant => $name,)*)*
                }
            }

            /// In the table.
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
        /// `fsquota::Allocator::next`, of which one in 32 writes the counter.
        Next "next" "Allocator::next, one of 32",
        /// The baseline of `Next`: a walk over all quotas for the first free ID.
        WalkForId "walk-for-id" "(baseline: walk for an ID)",
        /// `fsquota::set` on an empty directory without a project.
        SetFirst "set-first" "set, first time",
        /// `fsquota::set` on a directory that has a project.
        SetAgain "set-again" "set, other limits",
        /// `fsquota::assign` on an empty directory without a project.
        Assign "assign" "assign",
        /// `fsquota::get`.
        Get "get" "get",
        /// `fsquota::quota`: limits and usage of a given ID.
        Quota "quota" "quota, ID known",
        /// `fsquota::report`, to its end.
        Report "report" "report, all projects",
        /// `fsquota::remove`.
        Remove "remove" "remove",
        /// `fsquota::sync` after limits were set.
        Sync "sync" "sync",
    }
    Dir {
        /// `dir::Dir::write` of a new file.
        WriteNew "write-new" "Dir::write, new file",
        /// `dir::Dir::write` over a file.
        WriteOver "write-over" "Dir::write, replace",
    }
    Volume {
        /// A new filesystem claim: `volume::Store::provision` and `announce`.
        Claim "claim" "claim, filesystem",
        ClaimBlock "claim-block" "claim, block (thick)",
        /// `Store::open_volume`, not for the first time.
        OpenVolume "open-volume" "open_volume",
        /// Limits and usage of a volume by its name.
        VolumeStats "volume-stats" "open_volume, then quota",
        /// `Store::expand` of a filesystem volume.
        Expand "expand" "expand, filesystem",
        /// `Store::expand` of a block volume.
        ExpandBlock "expand-block" "expand, block (thick)",
        /// `Store::retire`.
        Retire "retire" "retire",
        /// `Store::discard` of an empty volume.
        Discard "discard" "discard",
    }
    Snapshot {
        /// `Store::take_snapshot`, to the end of the first piece of the copy.
        TakeSnapshot "take-snapshot" "take_snapshot, first piece",
        /// `Store::provision` with a source, to the end of the first piece of the copy.
        CloneVolume "clone-volume" "clone, first piece",
        /// All other passes of `Store::take_snapshot`, in the background.
        FinishSnapshot "finish-snapshot" "take_snapshot, the rest",
        /// The baseline: the data of each extent is read and written.
        CopyImage "copy-image" "(baseline: copy of the file)",
    }
    Csi {
        /// `NodePublishVolume` of a filesystem volume.
        Publish "publish" "publish, filesystem",
        /// `NodePublishVolume` of a filesystem volume whose claim is for one pod.
        PublishSingle "publish-single" "publish, for one pod",
        /// `NodePublishVolume` of a block volume.
        PublishBlock "publish-block" "publish, block",
        /// `NodeGetVolumeStats` of a filesystem volume.
        PublishedStats "published-stats" "volume statistics",
        /// `NodeUnpublishVolume` of a filesystem volume.
        Unpublish "unpublish" "unpublish, filesystem",
        /// `NodeUnpublishVolume` of a block volume, the last of its device.
        UnpublishBlock "unpublish-block" "unpublish, block",
    }
    Loopdev {
        /// `loopdev::Control::attach`.
        Attach "attach" "attach",
        /// `loopdev::Device::status`.
        Status "status" "status",
        /// `loopdev::Device::refresh_size` after the backing file grew.
        Refresh "refresh" "refresh_size",
        /// `loopdev::Device::detach`.
        Detach "detach" "detach",
        /// `loopdev::list`.
        List "list" "list",
    }
}

/// The crate that an operation is of, and with it what the operation must not depend on.
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

/// Limits of an operation's file system calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Expected {
    /// How many more there are for each thing that exists already; `None`: only shown.
    pub slope: Option<u32>,
    pub at_most: Option<u32>,
    pub flushes: Option<u32>,
}

impl Operation {
    /// How often it is called in one measured region. They share the work that happens once in several calls.
    pub const fn calls(self) -> u32 {
        match self {
            // A batch of the allocator.
            Self::Next => 32,
            _ => 1,
        }
    }

    pub const fn expected(self) -> Expected {
        match self {
            Self::Report => Expected { slope: Some(1), at_most: None, flushes: None },
            Self::Quota | Self::VolumeStats => Expected { slope: Some(0), at_most: Some(3), flushes: None },
            // Three, and the close of the target.
            Self::PublishedStats => Expected { slope: Some(0), at_most: Some(4), flushes: None },
            // Two forces of the log.
            Self::Claim => Expected { slope: Some(0), at_most: Some(16), flushes: Some(4) },
            Self::Publish | Self::PublishSingle => Expected { slope: Some(0), at_most: Some(10), flushes: None },
            Self::PublishBlock | Self::UnpublishBlock => Expected { slope: Some(0), at_most: Some(30), flushes: None },
            Self::TakeSnapshot | Self::CloneVolume => Expected { slope: Some(0), at_most: Some(45), flushes: Some(4) },
            // Half of the calls of `CopyImage`, whatever pieces a pass has.
            Self::FinishSnapshot => Expected { slope: None, at_most: Some(2000), flushes: Some(16) },
            // XFS takes deleted inodes apart in the background: how often it is asked whether it is done differs.
            Self::WalkForId | Self::List | Self::Discard => Expected { slope: None, at_most: None, flushes: None },
            Self::CopyImage => Expected { slope: None, at_most: None, flushes: None },
            _ => Expected { slope: Some(0), at_most: None, flushes: None },
        }
    }
}

impl Subject {
    /// All of them, in the order of the report.
    pub const ALL: [Self; 6] = [Self::Fsquota, Self::Dir, Self::Volume, Self::Snapshot, Self::Csi, Self::Loopdev];

    pub fn operations(self) -> impl Iterator<Item = Operation> {
        Operation::ALL.iter().copied().filter(move |operation| operation.subject() == self)
    }

    /// The two numbers of existing things that its operations are counted at.
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
        f.write_str(match self {
            Self::Fsquota => "fsquota",
            Self::Dir => "dir",
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
            Self::Csi => "csi",
            Self::Loopdev => "loopdev",
        })
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an operation")]
pub struct UnknownOperation(String);

impl FromStr for Operation {
    type Err = UnknownOperation;

    fn from_str(name: &str) -> Result<Self, UnknownOperation> {
        let operation = Self::ALL.iter().copied().find(|operation| operation.name() == name);
        operation.ok_or_else(|| UnknownOperation(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_on_the_command_line_is_the_one_in_json() {
        for &operation in Operation::ALL {
            assert_eq!(operation.name().parse(), Ok(operation));
            assert_eq!(serde_json::to_value(operation).unwrap(), operation.name());
        }
        assert_eq!("sweep".parse::<Operation>(), Err(UnknownOperation("sweep".into())));
    }

    #[test]
    fn operations_come_in_the_order_of_their_subjects() {
        assert!(Operation::ALL.is_sorted_by_key(|operation| operation.subject()));
        assert!(Operation::ALL.is_sorted());
    }
}
