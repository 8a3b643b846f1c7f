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

use super::attributes::{keep_capability, kind, restore_capability};
use super::error::Fault;
use super::pass::{LISTING, is_entry, open, open_below};
use super::scratch::existing;
use super::{MAX_DEPTH, TreeError};
use crate::{Extent, extents, sys};

/// Calls `visit` for each shared extent of each file in the tree, with the file open for reading and writing, until it
/// breaks. A `visit` that calls [`unshare`](crate::unshare) ends the sharing, and a later call continues with the rest.
/// A file with several names is visited once for each name.
///
/// No other process may change the tree, for example the target of a [`TreeClone`](crate::TreeClone). One descriptor is
/// open for each of at most 128 levels, and two for a file.
///
/// # Attributes
/// `visit` writes to a file without a change of its times of access and modification, and of its time of change unless
/// the file has a capability. The kernel removes the capability (`security.capability`), and `for_each_shared` sets it
/// again after the last visit of the file. Until then, the attribute `trusted.reflink.capability` has the value: if a
/// kill, a power cut or an error ends the call in between, the next call restores the capability, also of a file that
/// shares nothing any more. After a call that neither breaks nor fails, all files have their capabilities. A call that
/// breaks does so also if the capability of the last file cannot be restored.
///
/// # Errors
/// [`TreeError::Entry`]: an entry cannot be read, or a file with shared blocks cannot be opened for writing (`EPERM`:
/// it is immutable or append-only, or the process has no `CAP_SYS_ADMIN`; `ENOTTY`: the file system is not an XFS);
/// dirty pages of a file cannot be written (`EIO`); an attribute does not fit (`ENOSPC`, `EDQUOT`).
/// [`TreeError::TooDeep`].
///
/// `FS_IOC_FIEMAP`, Linux 2.6.33; `openat2`, Linux 5.6; `XFS_IOC_OPEN_BY_HANDLE`, whose descriptors keep the times
/// during fallocate(2) since Linux 5.17. `CAP_SYS_ADMIN`, `CAP_DAC_OVERRIDE`, and `CAP_SETFCAP` for capabilities.
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
    let file = open(dir.as_fd(), name, OFlag::O_RDONLY)?;
    // An earlier call may have ended in between.
    restore_capability(file.as_fd())?;
    let begin = || {
        let writer = sys::open_timeless(dir.as_fd(), file.as_fd())?;
        keep_capability(file.as_fd()).map(|()| writer)
    };
    let (mut at, mut writer) = (Bytes::ZERO, None::<OwnedFd>);
    let flow = 'file: loop {
        let batch = extents(&file, at)?;
        let Some(last) = batch.last() else { break ControlFlow::Continue(()) };
        at = last.end();
        for extent in batch.iter().filter(|extent| extent.shared) {
            let writer: &OwnedFd = match writer {
                Some(ref writer) => writer,
                None => writer.insert(begin()?),
            };
            let flow = visit(writer.as_fd(), *extent);
            if flow.is_break() {
                break 'file flow;
            }
        }
    };
    if writer.is_none() {
        return Ok(flow);
    }
    match restore_capability(file.as_fd()) {
        // Often, `visit` broke for the same reason, such as a full disk. The next call restores the capability.
        Err(errno) if flow.is_continue() => Err(errno),
        _ => Ok(flow),
    }
}
