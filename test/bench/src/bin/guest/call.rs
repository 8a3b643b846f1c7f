//! The traced process: prepares one operation, calls it in a measured region, and cleans up.

use std::error::Error;
use std::io;
use std::path::Path;

use bench::Operation;

use crate::{files, loops, publishes, quota, snapshots, volumes};

/// Error that is only printed.
pub(crate) type CallError = Box<dyn Error + Send + Sync>;

/// Adds the failed step and its path to an error, for `map_err`.
pub(crate) fn arrange(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CallError {
    move |error| format!("cannot {what} {}: {error}", path.display()).into()
}

pub(crate) fn wrong(what: &str, found: u32, expected: u32) -> CallError {
    format!("the {what} is {found}, it must be {expected}").into()
}

/// Calls one operation on the file system at `mount`, which has `present` projects or devices, or an image with
/// `present` extents.
pub(crate) fn make(operation: Operation, mount: &Path, present: u32) -> Result<(), CallError> {
    match operation {
        Operation::Next => quota::next(mount),
        Operation::WalkForId => quota::walk_for_id(mount, present),
        Operation::SetFirst => quota::set_first(mount),
        Operation::SetAgain => quota::set_again(mount),
        Operation::Assign => quota::assign(mount),
        Operation::Get => quota::get(mount),
        Operation::Quota => quota::quota(mount),
        Operation::Report => quota::report(mount, present),
        Operation::Remove => quota::remove(mount),
        Operation::Sync => quota::sync(mount),
        Operation::WriteNew => files::write_new(mount),
        Operation::WriteOver => files::write_over(mount),
        Operation::Claim => volumes::new_claim(mount, volumes::filesystem()),
        Operation::ClaimBlock => volumes::new_claim(mount, volumes::BLOCK),
        Operation::OpenVolume => volumes::open_volume(mount),
        Operation::VolumeStats => volumes::stats(mount),
        Operation::Expand => volumes::expand(mount, volumes::filesystem()),
        Operation::ExpandBlock => volumes::expand(mount, volumes::BLOCK),
        Operation::Retire => volumes::retire(mount),
        Operation::Discard => volumes::discard(mount),
        Operation::TakeSnapshot => snapshots::take(mount, snapshots::SMALL, present),
        Operation::CloneVolume => snapshots::clone(mount, snapshots::SMALL, present),
        Operation::TakeSnapshotLarge => snapshots::take(mount, snapshots::LARGE, present),
        Operation::CloneVolumeLarge => snapshots::clone(mount, snapshots::LARGE, present),
        Operation::FinishSnapshot => snapshots::finish(mount, present),
        Operation::CopyImage => snapshots::copy(mount, present),
        Operation::Publish => publishes::publish(mount, volumes::filesystem()),
        Operation::PublishSingle => publishes::publish_single(mount),
        Operation::PublishBlock => publishes::publish(mount, volumes::BLOCK),
        Operation::PublishedStats => publishes::stats(mount),
        Operation::Unpublish => publishes::unpublish(mount, volumes::filesystem()),
        Operation::UnpublishBlock => publishes::unpublish(mount, volumes::BLOCK),
        Operation::Attach => loops::attach(mount),
        Operation::Status => loops::status(mount),
        Operation::Refresh => loops::refresh(mount),
        Operation::Detach => loops::detach(mount),
        Operation::List => loops::list(mount, present),
    }
}
