//! Blocks that a copy gives up stay shared until the copy is durable.
//!
//! A piece that is unshared is in memory until XFS forces its log, but its former blocks are the source's alone at once.
//! Pods would overwrite them in place, and a power cut in between recovers a copy that shares them. Therefore each piece is
//! first cloned into a file, which is emptied after a force of the log.

use std::os::fd::{AsFd, OwnedFd};

use dir::{Dir, Mode, Name, OFlag};
use nix::errno::Errno;
use nix::sys::stat::futimens;
use nix::sys::time::TimeSpec;
use units::Bytes;

use crate::clone::failed;
use crate::error::ActError;
use crate::{BLOCK, VolumeId, image};

/// After these, the log is forced. The space is a part of the headroom of the source, whose writes take other blocks meanwhile.
const MAX_BYTES: Bytes = Bytes::new(64 << 20);
const MAX_FILES: u32 = 128;

const DIRECTORY: Mode = Mode::S_IRWXU;

/// The directory of one copy, which exists during a pass only, and after a kill until the next start.
pub(crate) struct Anchor<'a> {
    anchors: &'a Dir,
    copy: &'a VolumeId,
    dir: Option<Dir>,
    /// The last file and its end, if the next piece can follow.
    last: Option<(OwnedFd, Bytes)>,
    files: u32,
    bytes: Bytes,
}

impl<'a> Anchor<'a> {
    pub(crate) const fn new(anchors: &'a Dir, copy: &'a VolumeId) -> Self {
        Self { anchors, copy, dir: None, last: None, files: 0, bytes: Bytes::ZERO }
    }

    /// Keeps the blocks of a piece of the copy, which ends at the end of a block or of the file.
    pub(crate) fn keep(&mut self, file: impl AsFd, start: Bytes, length: Bytes) -> Result<(), ActError> {
        if self.bytes >= MAX_BYTES || self.files >= MAX_FILES {
            self.release()?;
        }
        let (to, at) = match self.last.take() {
            Some(last) => last,
            None => (self.next_file()?, Bytes::ZERO),
        };
        reflink::clone_range(file, start, length, &to, at).map_err(failed("keep"))?;
        self.bytes = self.bytes.saturating_add(length);
        let end = at.saturating_add(length);
        // XFS fills the rest of the last block with zeros before anything can follow, in a block of its own.
        self.last = end.get().is_multiple_of(BLOCK).then_some((to, end));
        Ok(())
    }

    fn next_file(&mut self) -> Result<OwnedFd, ActError> {
        let dir = match self.dir.take() {
            Some(dir) => dir,
            None => {
                self.clear()?;
                self.anchors.create_dir(self.copy.name(), DIRECTORY)?
            }
        };
        let dir = self.dir.insert(dir);
        let name = Name::try_from(self.files.to_string().as_str()).map_err(|_| failed("keep")(Errno::EINVAL))?;
        self.files += 1;
        Ok(dir.open_file(&name, OFlag::O_WRONLY | OFlag::O_CREAT, image::PRIVATE)?)
    }

    /// Makes the pieces durable, and gives up their former blocks.
    fn release(&mut self) -> Result<(), ActError> {
        let Some(dir) = &self.dir else { return Ok(()) };
        force_log(dir)?;
        self.last = None;
        empty(dir)?;
        (self.files, self.bytes) = (0, Bytes::ZERO);
        Ok(())
    }

    /// The end of a pass, also of one that failed.
    pub(crate) fn end(mut self) -> Result<(), ActError> {
        // An earlier pass that failed may have kept blocks, and this one has nothing to copy.
        if self.dir.is_none() {
            return self.clear();
        }
        self.release()?;
        remove(self.anchors, self.copy.name())
    }

    /// Removes the files of a pass that failed.
    pub(crate) fn clear(&self) -> Result<(), ActError> {
        match self.anchors.open_dir(self.copy.name()) {
            Ok(dir) => force_log(&dir)?,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        remove(self.anchors, self.copy.name())
    }
}

/// An fsync writes the log up to the last change of the directory: this one, which follows those of the copy.
fn force_log(dir: &Dir) -> Result<(), ActError> {
    futimens(dir.as_fd(), &TimeSpec::UTIME_NOW, &TimeSpec::UTIME_NOW).map_err(failed("sync"))?;
    Ok(dir.sync()?)
}

/// XFS frees the blocks of a removed file later, and until then the source's writes would take other ones.
fn empty(dir: &Dir) -> Result<(), ActError> {
    for name in dir.names()? {
        drop(dir.open_file(&name, OFlag::O_WRONLY | OFlag::O_TRUNC, Mode::empty())?);
    }
    Ok(())
}

/// Removes the files of a copy that is durable.
pub(crate) fn remove(anchors: &Dir, copy: &Name) -> Result<(), ActError> {
    empty(&anchors.open_dir(copy)?)?;
    Ok(anchors.remove_all(copy)?)
}
