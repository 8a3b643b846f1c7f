//! The traced side: arranges one operation, makes it in a measured region, and cleans up.

use std::io;
use std::path::{Path, PathBuf};

use bench::Operation;
use nix::errno::Errno;

use crate::{files, loops, publishes, quota, volumes};

/// Why a figure cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("cannot {what} {path}")]
    Arrange { what: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot be traced")]
    Trace(#[from] Errno),
    #[error("project quotas do not work")]
    Fs(#[from] fsquota::FsError),
    #[error("no project ID")]
    Allocate(#[from] fsquota::AllocateError),
    #[error("limits cannot be set")]
    Set(#[from] fsquota::SetError),
    #[error("limits cannot be read")]
    Get(#[from] fsquota::GetError),
    #[error("the project cannot be removed")]
    Remove(#[from] fsquota::RemoveError),
    #[error("the file cannot be written")]
    Dir(#[from] dir::Error),
    #[error("the file's name is wrong")]
    Name(#[from] dir::NameError),
    #[error("the volumes directory cannot be used")]
    Start(#[from] volume::StartError),
    #[error("the volume's name is wrong")]
    VolumeId(#[from] volume::VolumeIdError),
    #[error("the volume cannot be changed")]
    Volume(#[from] volume::Error),
    #[error("the volume cannot be opened")]
    Open(#[from] volume::OpenError),
    #[error("the plugin refuses the call")]
    Plugin(#[from] tonic::Status),
    #[error("there are no loop devices")]
    Control(#[from] loopdev::OpenError),
    #[error("no loop device can be attached")]
    Attach(#[from] loopdev::AttachError),
    #[error("the loop device cannot be looked at")]
    Status(#[from] loopdev::StatusError),
    #[error("the loop device cannot grow")]
    Resize(#[from] loopdev::ResizeError),
    #[error("the loop device cannot be detached")]
    Detach(#[from] loopdev::DetachError),
    #[error("loop devices cannot be listed")]
    List(#[from] loopdev::ListError),
    #[error("the loop device is in use by somebody else and stays for now")]
    Deferred,
    #[error("the {what} is {found}, it must be {expected}")]
    Wrong { what: &'static str, found: u32, expected: u32 },
}

impl CallError {
    /// For `map_err`.
    pub(crate) fn arrange(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Arrange { what, path: path.to_path_buf(), source }
    }
}

/// Makes one operation on the file system at `mount`, where `present` projects or devices exist.
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
        Operation::Claim => volumes::claim_filesystem(mount),
        Operation::ClaimBlock => volumes::claim_block(mount),
        Operation::OpenVolume => volumes::open_volume(mount),
        Operation::VolumeStats => volumes::stats(mount),
        Operation::Expand => volumes::expand_filesystem(mount),
        Operation::ExpandBlock => volumes::expand_block(mount),
        Operation::Retire => volumes::retire(mount),
        Operation::Discard => volumes::discard(mount),
        Operation::Publish => publishes::publish(mount),
        Operation::PublishSingle => publishes::publish_single(mount),
        Operation::PublishBlock => publishes::publish_block(mount),
        Operation::PublishedStats => publishes::stats(mount),
        Operation::Unpublish => publishes::unpublish(mount),
        Operation::UnpublishBlock => publishes::unpublish_block(mount),
        Operation::Attach => loops::attach(mount),
        Operation::Status => loops::status(mount),
        Operation::Refresh => loops::refresh(mount),
        Operation::Detach => loops::detach(mount),
        Operation::List => loops::list(mount, present),
    }
}
