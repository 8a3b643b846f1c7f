//! Keeps the former blocks of a copy shared until the copy is durable.
//!
//! The new mapping of an unshared piece is only in memory until XFS forces its log, but the former blocks belong to the
//! source alone at once. Pods would overwrite them in place, and a power cut in between recovers a copy that shares
//! them. Therefore the pass first clones each piece into an anchor file, and empties that file after a force of the
//! log.

use std::os::fd::{AsFd, OwnedFd};

use dir::{Dir, Name, OFlag};
use nix::errno::Errno;
use nix::sys::stat::{Mode, futimens};
use nix::sys::time::TimeSpec;
use nix::unistd::{fsync, ftruncate};
use units::Bytes;

use crate::duty_cycle::DutyCycle;
use crate::error::{ActError, clone_failed};
use crate::files::PRIVATE;
use crate::{BLOCK, VolumeId};

/// Bytes and files after which the log is forced. The kept blocks use a part of the source's headroom: while they are
/// shared, writes of the source take other blocks.
const MAX_BYTES: Bytes = Bytes::new(64 << 20);
const MAX_FILES: u32 = 128;

/// Anchor files of one copy: `ID`, `ID~1`, `ID~2`… They exist only during a pass, and after a kill until the next
/// start.
///
/// The files are created in this order and removed in reverse order: the first missing name is the end.
pub(crate) struct Anchor<'a> {
    dir: &'a Dir,
    copy: &'a VolumeId,
    files: u32,
    /// Last file, and the end of its content.
    last: Option<(OwnedFd, Bytes)>,
    /// Bytes copied since the last force of the log.
    bytes: Bytes,
}

impl<'a> Anchor<'a> {
    pub(crate) const fn new(dir: &'a Dir, copy: &'a VolumeId) -> Self {
        Self { dir, copy, files: 0, last: None, bytes: Bytes::ZERO }
    }

    /// Runs one pass, which keeps each piece before it copies it. The former blocks are released at the end of the
    /// pass, also if it fails. If an error prevents the release, the next pass releases them.
    pub(crate) fn during(
        mut self,
        cycle: &DutyCycle<'_>,
        pass: impl FnOnce(&mut Self) -> Result<(), ActError>,
    ) -> Result<(), ActError> {
        let copied = pass(&mut self);
        // A pass without pieces of its own removes the files that an earlier failed pass has left.
        let ended = cycle.run(|| if self.files == 0 { self.clear() } else { self.release() });
        ended.and(copied)
    }

    /// Clones a range of the copy into an anchor file, which keeps its blocks. The range ends at the end of a block or
    /// of the file.
    pub(crate) fn keep(&mut self, file: impl AsFd, start: Bytes, length: Bytes) -> Result<(), ActError> {
        if self.bytes >= MAX_BYTES || self.files >= MAX_FILES {
            self.release()?;
        }
        let (to, at) = match self.last.take() {
            Some((to, end)) if end.get().is_multiple_of(BLOCK) => (to, end),
            // To append after a partial block, XFS would first fill the rest of it with zeros, in a new block.
            last => {
                self.last = last;
                (self.create()?, Bytes::ZERO)
            }
        };
        let kept = reflink::clone_range(file, start, length, &to, at).map_err(clone_failed("keep"));
        self.last = Some((to, at.saturating_add(length)));
        kept
    }

    /// Copies a piece whose blocks an anchor file keeps.
    pub(crate) fn unshare(&mut self, file: impl AsFd, start: Bytes, length: Bytes) -> Result<(), ActError> {
        self.bytes = self.bytes.saturating_add(length);
        reflink::unshare(file, start, length).map_err(clone_failed("copy"))
    }

    /// Removes the files of a pass that failed or was killed.
    pub(crate) fn clear(&mut self) -> Result<(), ActError> {
        loop {
            match self.open(OFlag::O_WRONLY) {
                Ok(file) => self.last = Some((file, Bytes::ZERO)),
                Err(error) if error.is_not_found() => return self.release(),
                Err(error) => return Err(error.into()),
            }
            self.files += 1;
        }
    }

    fn create(&mut self) -> Result<OwnedFd, ActError> {
        const NEW: OFlag = OFlag::O_WRONLY.union(OFlag::O_CREAT).union(OFlag::O_EXCL);
        let file = match self.open(NEW) {
            Err(error) if error.errno() == Errno::EEXIST => {
                self.clear()?;
                self.open(NEW)
            }
            opened => opened,
        }?;
        self.files += 1;
        Ok(file)
    }

    /// Opens the file that follows the last one.
    fn open(&self, flags: OFlag) -> Result<OwnedFd, dir::Error> {
        self.dir.open_file(&self.name(self.files), flags, PRIVATE)
    }

    /// Name of a file. A volume ID contains no `~`, so it cannot be the ID of another volume.
    fn name(&self, number: u32) -> Name {
        match number {
            0 => self.copy.name().clone(),
            _ => Name::try_from(format!("{}~{number}", self.copy).as_str()).expect("it is short, and without a slash"),
        }
    }

    /// Makes the copied pieces durable, and then releases their former blocks.
    fn release(&mut self) -> Result<(), ActError> {
        let Some((last, _)) = &self.last else { return Ok(()) };
        // An fsync writes the log up to the last change of the file. The new times are later than the changes of the
        // copy.
        futimens(last, &TimeSpec::UTIME_NOW, &TimeSpec::UTIME_NOW)
            .and_then(|()| fsync(last))
            .map_err(clone_failed("sync"))?;
        while let Some(number) = self.files.checked_sub(1) {
            let name = self.name(number);
            // XFS frees the blocks of a removed file later. Until then, writes of the source would still take other
            // blocks.
            match self.last.take() {
                Some((last, _)) => ftruncate(last, 0).map_err(clone_failed("empty"))?,
                None => drop(self.dir.open_file(&name, OFlag::O_WRONLY | OFlag::O_TRUNC, Mode::empty())?),
            }
            self.dir.remove_file(&name)?;
            self.files = number;
        }
        self.bytes = Bytes::ZERO;
        Ok(())
    }
}
