//! The files of the records.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use dir::{Dir, Mode, Name, OFlag};
use nix::errno::Errno;
use nix::fcntl::renameat;
use nix::unistd::{UnlinkatFlags, unlinkat};
use tracing::{info, warn};

use crate::error::ActError;
use crate::group::Shared;
use crate::id::{VolumeId, volumes_in};
use crate::record::{Record, RecordError, State};

/// Mode of records, images and anchor files. Only the node reads and writes them.
pub(crate) const PRIVATE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);

/// All records. The directory gives the state, also for an unreadable record.
pub(crate) type Found = BTreeMap<VolumeId, (State, Result<Record, RecordError>)>;

#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) pending: Shared,
    pub(crate) records: Shared,
}

impl Files {
    /// Writes the first record of a volume. An existing file is unmanaged (`EEXIST`).
    pub(crate) fn create(&self, id: &VolumeId, record: &Record) -> Result<(), ActError> {
        write_new(&self.pending, id.name(), &record.to_bytes()?)
    }

    /// Replaces a record durably: after a power cut, it is the former or the new record.
    pub(crate) fn replace(&self, id: &VolumeId, record: &Record) -> Result<(), ActError> {
        let (dir, content) = (self.of(record.state), record.to_bytes()?);
        let sibling = format!(".{id}{SIBLING}");
        let sibling = Name::try_from(sibling.as_str()).map_err(|_| ActError::Record(Errno::ENAMETOOLONG))?;
        match dir.remove_file(&sibling) {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            Ok(()) | Err(_) => {} // an interrupted run may have left it
        }
        write_new(dir, &sibling, &content)?;
        renameat(&**dir, sibling.as_os_str(), &**dir, id.name().as_os_str()).map_err(ActError::Record)?;
        Ok(dir.sync()?)
    }

    /// Moves the record to those of announced volumes. The move is durable after the next force of the log.
    pub(crate) fn announce(&self, id: &VolumeId) -> Result<(), ActError> {
        Ok(self.pending.rename(id.name(), &self.records, id.name())?)
    }

    /// Removes a record, durably. Idempotent.
    pub(crate) fn remove(&self, state: State, id: &VolumeId) -> Result<(), ActError> {
        let dir = self.of(state);
        match dir.remove_file(id.name()) {
            Err(error) if !error.is_not_found() => Err(error.into()),
            Ok(()) | Err(_) => Ok(dir.sync()?),
        }
    }

    /// Removes a first record whose write was interrupted.
    pub(crate) fn discard_unwritten(&self, id: &VolumeId) -> Result<(), dir::Error> {
        info!(volume = %id, "incomplete record removed");
        self.pending.remove_file(id.name())
    }

    /// All records, without the temporary files of interrupted runs. A directory or an unreadable file is an unreadable
    /// record.
    pub(crate) fn load(&self) -> Result<Found, dir::Error> {
        let mut found = Found::new();
        for state in [State::Staged, State::Announced] {
            let dir = self.of(state);
            for sibling in dir.names()?.into_iter().filter(is_sibling) {
                // A temporary file that stays is harmless: it is never read as a record.
                if let Err(error) = dir.remove_all(&sibling) {
                    let reason: &dyn std::error::Error = &error;
                    warn!(name = %sibling, error = reason, "unfinished record cannot be removed");
                }
            }
            for id in volumes_in(dir)? {
                let record = match dir.read(id.name()) {
                    Ok(Some(content)) => Record::parse(&content, state),
                    Ok(None) => continue,
                    Err(error) => Err(RecordError::Read(error)),
                };
                found.insert(id, (state, record));
            }
        }
        Ok(found)
    }

    fn of(&self, state: State) -> &Shared {
        match state {
            State::Staged | State::Complete => &self.pending,
            State::Announced => &self.records,
        }
    }
}

const SIBLING: &str = ".new";

fn is_sibling(name: &Name) -> bool {
    let id = name.to_str().and_then(|name| name.strip_prefix('.')?.strip_suffix(SIBLING));
    id.is_some_and(|id| id.parse::<VolumeId>().is_ok())
}

/// Block of the file system, aligned for direct writes.
#[repr(C, align(4096))]
struct Block([u8; Block::SIZE]);

impl Block {
    const SIZE: usize = 4096;
}

/// Writes a new record past the page cache, so that no fsync of this file is needed. When a write returns, the disk has
/// the data, and the log has the file's size and extents before all later changes of the caller. A force of the log
/// flushes the disk's cache before it writes the log (`XLOG_ICL_NEED_FLUSH` in `xlog_cil_set_ctx_write_state`,
/// fs/xfs/xfs_log_cil.c, Linux 5.14): no later change is durable without this record.
fn write_new(dir: &Dir, name: &Name, content: &[u8]) -> Result<(), ActError> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_DIRECT;
    let file = File::from(dir.open_file(name, flags, PRIVATE)?);
    let mut block = Block([b' '; Block::SIZE]);
    for (number, piece) in content.chunks(Block::SIZE).enumerate() {
        let (text, rest) = block.0.split_at_mut(piece.len());
        text.copy_from_slice(piece);
        rest.fill(b' ');
        if let Err(error) = file.write_all_at(&block.0, (number * Block::SIZE) as u64) {
            let _ = unlinkat(dir, name.as_os_str(), UnlinkatFlags::NoRemoveDir);
            return Err(ActError::Record(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::os::fd::OwnedFd;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::plan::Step;
    use crate::{Error, Sharing};

    /// Regression: the file of such a record was empty, and the volume was lost.
    #[test]
    fn a_record_that_cannot_be_encoded_is_an_error_before_a_file_changes() {
        // Each operation on a descriptor that is not a directory fails.
        let shared = || Shared::new(Dir::from(OwnedFd::from(File::open("/dev/null").unwrap())));
        let files = Files { pending: shared(), records: shared() };
        let id: VolumeId = "snapshot-1".parse().unwrap();
        let record = |taken| {
            let content = br#"{"version":2,"claim":{"uid":"u","namespace":"n","name":"c"},"class":"local",
                "mode":{"block":{"allocation":"thin"}},"size_bytes":4096,"project":7}"#;
            let mode = crate::Mode::Snapshot { taken, sharing: Sharing::Temporary };
            Record { mode, ..Record::parse(content, State::Announced).unwrap() }
        };
        let written = |record: &Record| [files.create(&id, record), files.replace(&id, record)].map(Result::unwrap_err);
        for error in written(&record(SystemTime::UNIX_EPOCH)) {
            assert!(matches!(error, ActError::Dir(_)), "{error:?}");
        }
        for source in written(&record(SystemTime::UNIX_EPOCH - Duration::from_nanos(1))) {
            assert!(matches!(source, ActError::Encode(_)), "{source:?}");
            let error = Error::Act { id: id.clone(), step: Step::WriteRecord, source };
            let remedy = error.source().unwrap().to_string();
            assert!(error.to_string().contains("snapshot-1") && remedy.contains("set it"), "{error}: {remedy}");
        }
    }
}
