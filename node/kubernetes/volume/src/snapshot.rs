//! Snapshots of volumes.
//!
//! A snapshot is taken like a clone: at one instant, it shares the blocks of its source, and passes copy them. Pods
//! cannot use it. When its content is durable, a mark in its record makes it complete: it may be reported as ready, and
//! only a deletion ends it. A snapshot becomes live and announced when it shares no block. A thin snapshot shares its
//! blocks for as long as it exists, and is live and announced at once.

use std::collections::BTreeSet;
use std::time::Duration;

use dir::Ensured;
use tracing::info;
use units::Bytes;

use crate::error::{Error, SourceError, refused};
use crate::execution::Execution;
use crate::index::Known;
use crate::passes::{Copying, Taken};
use crate::plan::{self, VolumeRefusal};
use crate::record::{Claim, Mode, Owner, Record, Sharing, State};
use crate::removal::in_passes;
use crate::store::Store;
use crate::{Request, VolumeGuard, VolumeId};

/// Size that no image exceeds.
pub(crate) const ANY: Bytes = Bytes::new(u64::MAX);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotRequest {
    /// Namespace and name of the snapshot, and the UID of its content.
    pub claim: Claim,
    pub owner: Owner,
    pub class: String,
    pub source: VolumeId,
    /// The longest time for which the pods of a filesystem volume may be stopped.
    pub max_pause: Duration,
    pub sharing: Sharing,
}

impl SnapshotRequest {
    pub(crate) fn of(&self, (mode, size): (Mode, Bytes)) -> Request {
        let Self { claim, owner, class, source, max_pause: _, sharing } = self.clone();
        Request { claim, owner, class, mode: mode.snapshot(sharing), size, source: Some(source) }
    }
}

impl Store {
    pub(crate) fn take_snapshot(&self, id: &VolumeId, want: &SnapshotRequest) -> Result<Ensured<Taken<Record>>, Error> {
        let known = self.known(id)?.map(|known| known.record);
        let of = match &known {
            Some(record) => (record.mode, record.size),
            None => self.to_copy(&want.source).map_err(|source| Error::Source { id: id.clone(), source })?,
        };
        let was_complete = known.as_ref().is_some_and(|record| record.state.is_reported());
        let copying = match self.provision(id, &want.of(of), want.max_pause) {
            Ok(_) => self.announce_durably(id).map(|_| None)?,
            // The snapshot is taken. The next pass returns the error of its copy.
            Err(error) if error.copying().is_none() && !was_complete && self.is_complete(id) => Some(Copying::InPart),
            Err(error) => Some(error.copying().ok_or(error)?),
        };
        let Some(Known { record, .. }) = self.known(id)? else { return Err(Error::Unknown { id: id.clone() }) };
        Ok(Taken::since(known, record, copying))
    }

    /// Runs one pass over a complete snapshot, and announces it after the last one. `None` for any other volume, and
    /// for a snapshot whose removal has begun: its data is in the trash, or nowhere.
    pub(crate) fn copy_snapshot(&self, id: &VolumeId) -> Result<Ensured<Option<Copying>>, Error> {
        let (Some(known), seen) = self.look(id)? else { return Ok(Ensured::Unchanged(None)) };
        if known.record.state != State::Complete || seen.trash.is_present() || !seen.is_anywhere() {
            return Ok(Ensured::Unchanged(None));
        }
        let steps = plan::finish(&known.record, &seen).map_err(refused(id))?;
        let reserved = known.record.mode.reserved(known.record.size);
        match Execution::new(self, id, None, Some(known)).run(&steps) {
            Ok(()) => {
                self.announce_durably(id)?;
                info!(volume = %id, "blocks of the snapshot copied");
                Ok(Ensured::Created(None))
            }
            Err(Error::Act { source, .. }) if source.is_full() => Err(self.full(id, reserved)),
            Err(error) => match error.copying().ok_or(error)? {
                Copying::InPart => Ok(Ensured::Created(Some(Copying::InPart))),
                Copying::Waits => Ok(Ensured::Unchanged(Some(Copying::Waits))),
            },
        }
    }

    pub(crate) fn is_complete(&self, id: &VolumeId) -> bool {
        matches!(self.known(id), Ok(Some(Known { record, .. })) if record.state == State::Complete)
    }

    /// Mode and size of a volume to copy. A snapshot is not copied, because the copy would be the same.
    pub(crate) fn to_copy(&self, source: &VolumeId) -> Result<(Mode, Bytes), SourceError> {
        if self.is_snapshot(source) {
            return Err(SourceError::Unknown { volume: source.clone() });
        }
        self.check_source(source, ANY)
    }

    pub(crate) fn remove_snapshot(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.finish_exchange(id)?;
        match self.known(id)? {
            None => return Ok(Ensured::Unchanged(())),
            Some(Known { record, .. }) if !record.mode.is_snapshot() => return Err(refused(id)(VolumeRefusal::Volume)),
            Some(Known { record, .. }) => {
                self.check_ended(id, &record)?;
                // The copy also shares blocks with the source of the snapshot. The limit of that source has space for
                // them until the snapshot ends.
                if let Some(copy) = self.index().unfinished_copy(id).filter(|_| record.mode.is_thin()) {
                    return Err(refused(id)(VolumeRefusal::Restoring(copy.clone())));
                }
            }
        }
        self.retire(id)?;
        // Only a process that opened the content of a volume before a rollback can have it open.
        in_passes(|| self.discard(id))
    }

    /// Locks the snapshots in the order of their IDs, as for a group.
    pub(crate) fn undo_snapshots(&self, ids: &BTreeSet<VolumeId>) -> Result<Ensured<()>, Error> {
        let _guards: Vec<VolumeGuard> = ids.iter().map(|id| self.locks.blocking_lock(id)).collect();
        let mut found = Vec::new();
        for id in ids {
            if let (Some(Known { record, .. }), seen) = self.look(id)? {
                let is_ending = seen.trash.is_present() || !seen.is_anywhere();
                found.push((record.state == State::Staged, is_ending, id));
            }
        }
        let is_incomplete = found.iter().any(|(is_staged, ..)| *is_staged);
        found.retain(|(_, is_ending, _)| is_incomplete || *is_ending);
        // If this call ends in between, the staged ones show the next one that the group is not complete.
        found.sort_by_key(|(is_staged, ..)| *is_staged);
        for (.., id) in &found {
            self.remove_snapshot(id)?;
        }
        Ok(if found.is_empty() { Ensured::Unchanged(()) } else { Ensured::Created(()) })
    }
}
