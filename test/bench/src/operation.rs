//! [`Operation`]: what is counted.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One call of a crate of ours, or what it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// `fsquota::Allocator::next`, of which one in 32 writes the counter.
    Next,
    /// What `Next` is compared with: a walk over all quotas for the first ID that nobody has.
    WalkForId,
    /// `fsquota::set` on an empty directory without a project.
    SetFirst,
    /// `fsquota::set` on a directory that has a project.
    SetAgain,
    /// `fsquota::assign` on an empty directory without a project.
    Assign,
    /// `fsquota::get`.
    Get,
    /// `fsquota::quota`: limits and usage of an ID that the caller knows.
    Quota,
    /// `fsquota::report`, to its end.
    Report,
    /// `fsquota::remove`.
    Remove,
    /// `fsquota::sync` after limits were set.
    Sync,
    /// `dir::Dir::write` of a new file.
    WriteNew,
    /// `dir::Dir::write` over a file.
    WriteOver,
    /// A new filesystem claim: `volume::Store::provision` and `announce`.
    Claim,
    ClaimBlock,
    /// `Store::open_volume`, not for the first time.
    OpenVolume,
    /// Limits and usage of a volume by its name.
    VolumeStats,
    /// `Store::expand` of a filesystem volume.
    Expand,
    /// `Store::expand` of a block volume.
    ExpandBlock,
    /// `Store::retire`.
    Retire,
    /// `Store::discard` of an empty volume.
    Discard,
    /// `NodePublishVolume` of a filesystem volume.
    Publish,
    /// `NodePublishVolume` of a filesystem volume whose claim is for one pod.
    PublishSingle,
    /// `NodePublishVolume` of a block volume.
    PublishBlock,
    /// `NodeGetVolumeStats` of a filesystem volume.
    PublishedStats,
    /// `NodeUnpublishVolume` of a filesystem volume.
    Unpublish,
    /// `NodeUnpublishVolume` of a block volume, the last of its device.
    UnpublishBlock,
    /// `loopdev::Control::attach`.
    Attach,
    /// `loopdev::Device::status`.
    Status,
    /// `loopdev::Device::refresh_size` after the backing file grew.
    Refresh,
    /// `loopdev::Device::detach`.
    Detach,
    /// `loopdev::list`.
    List,
}

/// The crate that an operation is of, and with it what the operation must not depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    Fsquota,
    Dir,
    Volume,
    Csi,
    Loopdev,
}

/// What the contract promises of an operation's file system calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Expected {
    /// How many more there are for each thing that exists already; `None`: only shown.
    pub slope: Option<u32>,
    pub at_most: Option<u32>,
    pub flushes: Option<u32>,
}

impl Operation {
    /// All of them, in the order of the report.
    pub const ALL: [Self; 31] = [
        Self::Next,
        Self::WalkForId,
        Self::SetFirst,
        Self::SetAgain,
        Self::Assign,
        Self::Get,
        Self::Quota,
        Self::Report,
        Self::Remove,
        Self::Sync,
        Self::WriteNew,
        Self::WriteOver,
        Self::Claim,
        Self::ClaimBlock,
        Self::OpenVolume,
        Self::VolumeStats,
        Self::Expand,
        Self::ExpandBlock,
        Self::Retire,
        Self::Discard,
        Self::Publish,
        Self::PublishSingle,
        Self::PublishBlock,
        Self::PublishedStats,
        Self::Unpublish,
        Self::UnpublishBlock,
        Self::Attach,
        Self::Status,
        Self::Refresh,
        Self::Detach,
        Self::List,
    ];

    pub const fn subject(self) -> Subject {
        match self {
            Self::Next
            | Self::WalkForId
            | Self::SetFirst
            | Self::SetAgain
            | Self::Assign
            | Self::Get
            | Self::Quota
            | Self::Report
            | Self::Remove
            | Self::Sync => Subject::Fsquota,
            Self::WriteNew | Self::WriteOver => Subject::Dir,
            Self::Claim
            | Self::ClaimBlock
            | Self::OpenVolume
            | Self::VolumeStats
            | Self::Expand
            | Self::ExpandBlock
            | Self::Retire
            | Self::Discard => Subject::Volume,
            Self::Publish
            | Self::PublishSingle
            | Self::PublishBlock
            | Self::PublishedStats
            | Self::Unpublish
            | Self::UnpublishBlock => Subject::Csi,
            Self::Attach | Self::Status | Self::Refresh | Self::Detach | Self::List => Subject::Loopdev,
        }
    }

    /// How often it is called in one measured region. What happens once in several calls is then
    /// shared by all of them.
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
            Self::Publish => Expected { slope: Some(0), at_most: Some(10), flushes: None },
            // These read the table of all mounts, of which the kernel gives a page at a time.
            Self::PublishSingle | Self::PublishBlock | Self::UnpublishBlock => {
                Expected { slope: None, at_most: None, flushes: None }
            }
            // XFS takes deleted inodes apart in the background: how often it is asked whether it is done differs.
            Self::WalkForId | Self::List | Self::Discard => Expected { slope: None, at_most: None, flushes: None },
            _ => Expected { slope: Some(0), at_most: None, flushes: None },
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Next => "next",
            Self::WalkForId => "walk-for-id",
            Self::SetFirst => "set-first",
            Self::SetAgain => "set-again",
            Self::Assign => "assign",
            Self::Get => "get",
            Self::Quota => "quota",
            Self::Report => "report",
            Self::Remove => "remove",
            Self::Sync => "sync",
            Self::WriteNew => "write-new",
            Self::WriteOver => "write-over",
            Self::Claim => "claim",
            Self::ClaimBlock => "claim-block",
            Self::OpenVolume => "open-volume",
            Self::VolumeStats => "volume-stats",
            Self::Expand => "expand",
            Self::ExpandBlock => "expand-block",
            Self::Retire => "retire",
            Self::Discard => "discard",
            Self::Publish => "publish",
            Self::PublishSingle => "publish-single",
            Self::PublishBlock => "publish-block",
            Self::PublishedStats => "published-stats",
            Self::Unpublish => "unpublish",
            Self::UnpublishBlock => "unpublish-block",
            Self::Attach => "attach",
            Self::Status => "status",
            Self::Refresh => "refresh",
            Self::Detach => "detach",
            Self::List => "list",
        }
    }

    pub const fn title(self) -> &'static str {
        match self {
            Self::Next => "Allocator::next, one of 32",
            Self::WalkForId => "(baseline: walk for an ID)",
            Self::SetFirst => "set, first time",
            Self::SetAgain => "set, other limits",
            Self::Assign => "assign",
            Self::Get => "get",
            Self::Quota => "quota, ID known",
            Self::Report => "report, all projects",
            Self::Remove => "remove",
            Self::Sync => "sync",
            Self::WriteNew => "Dir::write, new file",
            Self::WriteOver => "Dir::write, replace",
            Self::Claim => "claim, filesystem",
            Self::ClaimBlock => "claim, block (thick)",
            Self::OpenVolume => "open_volume",
            Self::VolumeStats => "open_volume, then quota",
            Self::Expand => "expand, filesystem",
            Self::ExpandBlock => "expand, block (thick)",
            Self::Retire => "retire",
            Self::Discard => "discard",
            Self::Publish => "publish, filesystem",
            Self::PublishSingle => "publish, for one pod",
            Self::PublishBlock => "publish, block",
            Self::PublishedStats => "volume statistics",
            Self::Unpublish => "unpublish, filesystem",
            Self::UnpublishBlock => "unpublish, block",
            Self::Attach => "attach",
            Self::Status => "status",
            Self::Refresh => "refresh_size",
            Self::Detach => "detach",
            Self::List => "list",
        }
    }
}

impl Subject {
    /// All of them, in the order of the report.
    pub const ALL: [Self; 5] = [Self::Fsquota, Self::Dir, Self::Volume, Self::Csi, Self::Loopdev];

    pub fn operations(self) -> impl Iterator<Item = Operation> {
        Operation::ALL.into_iter().filter(move |operation| operation.subject() == self)
    }

    /// The two numbers of existing things that its operations are counted at.
    pub const fn populations(self) -> [u32; 2] {
        match self {
            Self::Fsquota | Self::Dir | Self::Volume => [0, 1000],
            Self::Csi => [0, 500],
            Self::Loopdev => [0, 100],
        }
    }

    pub const fn things(self) -> &'static str {
        match self {
            Self::Fsquota | Self::Dir => "projects",
            Self::Volume => "volumes",
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
#[error("{0:?} is no operation")]
pub struct UnknownOperation(String);

impl FromStr for Operation {
    type Err = UnknownOperation;

    fn from_str(name: &str) -> Result<Self, UnknownOperation> {
        Self::ALL
            .into_iter()
            .find(|operation| operation.name() == name)
            .ok_or_else(|| UnknownOperation(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_on_the_command_line_is_the_one_in_json() {
        for operation in Operation::ALL {
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
