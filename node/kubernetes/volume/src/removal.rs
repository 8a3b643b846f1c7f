//! Removes volumes: into the trash and out of it, from the disk, and those that never had a PV.

use dir::Ensured;
use fsquota::ProjectId;
use tracing::info;

use crate::disk_state::{DiskState, Place, Where};
use crate::error::{ActError, Error, refused};
use crate::execution::Execution;
use crate::index::{Entry, Known};
use crate::plan::{self, Step, VolumeRefusal};
use crate::record::{Record, RecordError, State};
use crate::store::{Store, place};
use crate::{IdlePasses, VolumeId};

impl Store {
    pub(crate) fn retire(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        let (known, seen) = self.look(id)?;
        let steps = plan::retire(&seen).map_err(refused(id))?;
        let retires = steps.iter().any(|step| matches!(step, Step::Trash(_)));
        if steps.contains(&Step::Trash(Where::Live)) {
            self.check_unpublished(id, &self.live)?;
        }
        if let (true, Some(Known { record, .. })) = (retires, &known) {
            let Record { claim, class, mode, size, project, .. } = record;
            // This audit line precedes the first change.
            info!(volume = %id, %claim, uid = claim.uid, class, %mode, limit = %size, %project, "volume will be deleted");
        }
        Execution::new(self, id, None, known).run(&steps)?;
        Ok(ensured(retires))
    }

    pub(crate) fn restore(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        let trash = || place(&self.trash, id, false).map_err(|source| Error::Look { id: id.clone(), source });
        if self.known(id)?.is_none() || trash()? == Place::Absent {
            return Ok(Ensured::Unchanged(()));
        }
        let (known, seen) = self.look(id)?;
        let steps = plan::restore(&seen).map_err(refused(id))?;
        Execution::new(self, id, None, known).run(&steps)?;
        let restored = steps.contains(&Step::Restore);
        if restored {
            info!(volume = %id, "volume restored");
        }
        Ok(ensured(restored))
    }

    pub(crate) fn discard(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        let (known, seen) = self.look(id)?;
        let steps = plan::discard(&seen).map_err(refused(id))?;
        if steps.contains(&Step::RemoveData) {
            // A publish may have been in progress when the volume was retired.
            self.check_unpublished(id, &self.trash)?;
        }
        Execution::new(self, id, None, known).run(&steps)?;
        if !steps.is_empty() {
            info!(volume = %id, "volume removed");
        }
        Ok(ensured(!steps.is_empty()))
    }

    pub(crate) fn undo(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        let entry = self.index().volumes.get(id).cloned();
        match entry {
            Some(Entry::Known(Known { record: Record { state: State::Announced, .. }, .. })) => {
                Err(Error::Announced { id: id.clone() })
            }
            Some(Entry::Closed { state: State::Staged, error: RecordError::Syntax(_), project }) => {
                let DiskState { staging, live, trash, .. } = self.seen(id, None)?;
                if live.is_present() || trash.is_present() {
                    return Err(refused(id)(VolumeRefusal::Foreign));
                }
                self.remove_closed(id, if staging.is_present() { project.as_slice() } else { &[] })?;
                Ok(Ensured::Created(()))
            }
            Some(_) | None => self.undo_known(id),
        }
    }

    pub(crate) fn undo_known(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        let (known, seen) = self.look(id)?;
        let steps = plan::undo(&seen).map_err(refused(id))?;
        if let (false, Some(Known { record, .. })) = (steps.is_empty(), &known) {
            info!(volume = %id, claim = %record.claim, uid = record.claim.uid, "incomplete volume will be removed");
        }
        Execution::new(self, id, None, known).run(&steps)?;
        Ok(ensured(!steps.is_empty()))
    }

    /// Runs all passes of [`Store::undo_known`]. They end, because no other process has a staged directory open.
    pub(crate) fn undo_all(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        in_passes(|| self.undo_known(id))
    }

    /// Removes the rest of an interrupted run whose volume was never live: the staged directory, the limits of these
    /// projects, and the record.
    fn remove_closed(&self, id: &VolumeId, projects: &[ProjectId]) -> Result<(), Error> {
        let remove = || -> Result<(), ActError> {
            self.staging.remove_all(id.name())?;
            projects.iter().try_for_each(|project| self.quotas.clear(*project))?;
            self.files.remove(State::Staged, id)
        };
        remove().map_err(|source| Error::Act { id: id.clone(), step: Step::RemoveRecord, source })?;
        self.index().forget(id);
        info!(volume = %id, "unfinished record removed");
        Ok(())
    }
}

/// Repeats a removal, of which each call is one pass, until it ends or its passes stay idle. No other process is
/// expected to have the directory open.
pub(crate) fn in_passes(mut remove: impl FnMut() -> Result<Ensured<()>, Error>) -> Result<Ensured<()>, Error> {
    let mut idle = IdlePasses::default();
    loop {
        match remove() {
            Err(error) if idle.continues(&error) => {}
            done => return done,
        }
    }
}

const fn ensured(changed: bool) -> Ensured<()> {
    if changed { Ensured::Created(()) } else { Ensured::Unchanged(()) }
}
