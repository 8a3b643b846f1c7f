//! Shared blocks of a tree.

use std::ffi::{CStr, OsStr};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::SFlag;
use rustix::fs::RawDir;
use units::Bytes;

use super::attributes::kind;
use super::error::Fault;
use super::pass::{LISTING, is_entry, open, open_below};
use super::scratch::existing;
use super::{MAX_DEPTH, TreeError};
use crate::{Extent, extents};

/// Calls `visit` for each shared extent of each file in the tree, with the file open for reading and writing, until it
/// breaks. A `visit` that calls [`unshare`](crate::unshare) ends the sharing, and a later call continues with the rest.
/// A file with several names is visited once for each name.
///
/// No other process may change the tree, for example the target of a [`TreeClone`](crate::TreeClone). One descriptor is
/// open for each of at most 128 levels.
///
/// # Errors
/// [`TreeError::Entry`]: an entry cannot be read; dirty pages of a file cannot be written (`EIO`).
/// [`TreeError::TooDeep`].
///
/// `FS_IOC_FIEMAP`, Linux 2.6.33; `openat2`, Linux 5.6.
pub fn for_each_shared<B>(
    dir: impl AsFd,
    mut visit: impl FnMut(BorrowedFd<'_>, Extent) -> ControlFlow<B>,
) -> Result<ControlFlow<B>, TreeError> {
    let top = Path::new("");
    let dir = open_below(dir.as_fd(), c".").map_err(|errno| Fault::Source(errno).at(top))?;
    directory(&dir, top, 0, &mut visit)
}

fn directory<B>(
    dir: &OwnedFd,
    path: &Path,
    depth: usize,
    visit: &mut impl FnMut(BorrowedFd<'_>, Extent) -> ControlFlow<B>,
) -> Result<ControlFlow<B>, TreeError> {
    let mut buffer = Vec::with_capacity(LISTING);
    let mut listing = RawDir::new(dir, buffer.spare_capacity_mut());
    while let Some(entry) = listing.next() {
        let entry = entry.map_err(|error| Fault::Source(Errno::from_raw(error.raw_os_error())).at(path))?;
        let name = entry.file_name();
        if !is_entry(name) {
            continue;
        }
        let path = path.join(OsStr::from_bytes(name.to_bytes()));
        let failed = |errno| Fault::Source(errno).at(&path);
        let Some(stat) = existing(dir.as_fd(), name).map_err(failed)? else { continue };
        let flow = match kind(&stat) {
            SFlag::S_IFDIR if depth == MAX_DEPTH => return Err(TreeError::TooDeep { path }),
            SFlag::S_IFDIR => {
                let below = open_below(dir.as_fd(), name).map_err(failed)?;
                directory(&below, &path, depth + 1, visit)?
            }
            SFlag::S_IFREG => file(dir, name, visit).map_err(failed)?,
            _ => ControlFlow::Continue(()),
        };
        if flow.is_break() {
            return Ok(flow);
        }
    }
    Ok(ControlFlow::Continue(()))
}

fn file<B>(
    dir: &OwnedFd,
    name: &CStr,
    visit: &mut impl FnMut(BorrowedFd<'_>, Extent) -> ControlFlow<B>,
) -> Result<ControlFlow<B>, Errno> {
    let file = open(dir.as_fd(), name, OFlag::O_RDWR)?;
    let mut at = Bytes::ZERO;
    loop {
        let batch = extents(&file, at)?;
        let Some(last) = batch.last() else { return Ok(ControlFlow::Continue(())) };
        at = last.end();
        for extent in batch.iter().filter(|extent| extent.shared) {
            let flow = visit(file.as_fd(), *extent);
            if flow.is_break() {
                return Ok(flow);
            }
        }
    }
}
