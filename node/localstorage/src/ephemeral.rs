//! The directory tree that is empty after each boot.

use std::path::Path;

use mount::Filesystem;
use nix::mount::MsFlags;

use crate::error::MountError;
use crate::mounted::{Mounted, mounted, open};
use crate::tree::{Ephemeral, Tree};

pub(crate) const INERT: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);

/// Mounts a tmpfs of at most a quarter of the memory, and creates the directories. Does nothing if a file system with
/// the right flags is already mounted there.
pub fn mount_ephemeral(tree: Ephemeral) -> Result<Mounted<Ephemeral>, MountError> {
    if mounted(&open(tree.path())?, tree.path())?.is_none() {
        mount::filesystem(Filesystem {
            kind: "tmpfs",
            source: Path::new("ephemeral"),
            target: tree.path(),
            flags: INERT,
            data: "mode=0700,size=25%",
        })?;
    }
    Mounted::complete(tree, |_, _| Ok(()))
}
