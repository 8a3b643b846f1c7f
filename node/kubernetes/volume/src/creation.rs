//! Creates volumes and snapshots.

use std::time::{Duration, SystemTime};

use dir::Ensured;
use fsquota::ProjectId;
use tracing::info;

use crate::error::{Error, SourceError, refused};
use crate::execution::Execution;
use crate::plan::{self, Step, VolumeRefusal};
use crate::record::{Record, State};
use crate::store::Store;
use crate::{Request, VolumeGuard, VolumeId};

impl Store {
    /// `max_pause` limits the pause of the pods of a source of files.
    pub(crate) fn provision(
        &self,
        id: &VolumeId,
        want: &Request,
        max_pause: Duration,
    ) -> Result<Ensured<Record>, Error> {
        let (known, seen) = self.look(id)?;
        let steps = plan::provision(want, &seen).map_err(refused(id))?;
        let mut execution = Execution::new(self, id, Some(want), known);
        execution.max_pause = max_pause;
        let is_clone = |step: &Step| matches!(step, Step::CloneImage | Step::CloneTree);
        let (undo, make) =
            steps.split_at(steps.iter().position(|step| *step == Step::RemoveRecord).map_or(0, |at| at + 1));
        match execution.run(undo) {
            // No other process has the directory open, so the passes end.
            Err(Error::Unfinished { .. }) => {
                self.undo_all(id)?;
                return self.provision(id, want, max_pause);
            }
            undone => undone?,
        }
        let source = match want.source.as_ref().filter(|_| make.iter().any(is_clone)) {
            Some(source) => Some(self.begin_clone(&mut execution, source, want)?),
            None => None,
        };
        if source.is_some() {
            execution.renew_instant(SystemTime::now())?;
        }
        if execution.known.is_none() {
            let wanted = want.record(ProjectId::FIRST, execution.cloning.clone()).reserved();
            self.reserve(id, wanted, |index, reservation, disk| index.ledger.reserve(id, reservation, disk))?;
        }
        let (clone, rest) = make.split_at(make.iter().position(is_clone).map_or(0, |at| at + 1));
        let cloned = execution.run(clone);
        // The source is unlocked, because copying takes long, and a failure of it locks the source again.
        drop(source);
        match cloned.and_then(|()| execution.run(rest)) {
            Ok(()) => {
                let record = execution.into_record()?;
                if !steps.contains(&Step::Publish) {
                    return Ok(Ensured::Unchanged(record));
                }
                let Record { claim, mode, size, project, .. } = &record;
                info!(volume = %id, %claim, %mode, limit = %size, %project, "volume provisioned");
                Ok(Ensured::Created(record))
            }
            Err(error) => Err(self.after_failed_provision(execution, want, error)),
        }
    }

    /// Locks the source. If the source cannot be cloned, or needs more than the reserved space, the work of earlier
    /// calls is undone.
    fn begin_clone(
        &self,
        execution: &mut Execution<'_>,
        source: &VolumeId,
        want: &Request,
    ) -> Result<VolumeGuard, Error> {
        let id = execution.id;
        let locked = self.lock_source(source, want).and_then(|(guard, cloning)| {
            let begun = execution.known.as_ref().and_then(|known| known.record.cloning.as_ref());
            match begun.filter(|begun| begun.headroom < cloning.headroom) {
                Some(_) => Err(SourceError::Grown { volume: source.clone() }),
                None => Ok((guard, cloning)),
            }
        });
        match locked {
            Ok((guard, cloning)) => {
                execution.cloning = Some(cloning);
                Ok(guard)
            }
            Err(source) => {
                self.undo_known(id)?;
                let source = match source {
                    // A snapshot has the size that its source had at the first call.
                    SourceError::Larger { volume, .. } if want.mode.is_snapshot() => SourceError::Grown { volume },
                    source => source,
                };
                Err(Error::Source { id: id.clone(), source })
            }
        }
    }

    pub(crate) fn after_failed_provision(&self, mut execution: Execution<'_>, want: &Request, error: Error) -> Error {
        let id = execution.id;
        let Error::Act { step, source, .. } = &error else { return error };
        // The directory has the content that a volume had before its rollback, and no other copy of it exists.
        if execution.known.as_ref().is_some_and(|known| known.record.is_exchanged()) {
            return error;
        }
        // The snapshot may be reported as ready. The next pass tries to copy its blocks again.
        if execution.known.as_ref().is_some_and(|known| known.record.state == State::Complete) {
            return if source.is_full() { self.full(id, want.reserved()) } else { error };
        }
        let undone = match step {
            Step::WriteRecord if execution.known.is_none() => {
                self.index().ledger.release(id);
                Ok(())
            }
            // The existing directory is unmanaged; only the record is removed.
            Step::MakeStaging if source.is_foreign() => execution.run(&[Step::RemoveRecord]),
            Step::Publish if source.is_foreign() => self.undo_all(id).map(drop),
            // The volume is live, and may have been for long.
            Step::SyncLive => return error,
            // The clone is undone: until the next attempt, the source has no headroom, and the space is not reserved.
            Step::CloneTree => self.undo_all(id).map(drop),
            _ if source.is_full() || source.is_too_large() || source.is_unsupported() => self.undo_all(id).map(drop),
            _ => return error,
        };
        if let Err(error) = undone {
            return error;
        }
        if source.is_foreign() {
            return refused(id)(VolumeRefusal::Foreign);
        }
        if let (true, Some(volume)) = (source.is_unsupported(), want.source.clone()) {
            return Error::Source { id: id.clone(), source: SourceError::Unsupported { volume } };
        }
        if let (true, Some(volume)) = (source.is_overfull(), want.source.clone()) {
            return Error::Source { id: id.clone(), source: SourceError::Overfull { volume } };
        }
        if source.is_too_large() {
            return Error::TooLarge { id: id.clone(), wanted: want.size };
        }
        if source.is_full() { self.full(id, want.reserved()) } else { error }
    }
}
