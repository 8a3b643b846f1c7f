//! Returns a volume to the content of a snapshot.
//!
//! A snapshot record is created with the image or the files of that snapshot, in the size of the volume. When the new
//! snapshot shares no block, one rename exchanges its directory and that of the volume. A directory keeps its project,
//! because XFS moves no file between projects; then both records get the project of their directories. The exchange is
//! over if the snapshot's directory has the volume's former project, whatever the records contain: the next call, or
//! the next start, writes the records. In memory, the records follow their directories at once, because the disk may
//! have no space for them.

use dir::Ensured;
use nix::errno::Errno;
use tracing::{error, info};
use units::Bytes;

use crate::disk_state::{Place, Where};
use crate::error::{ActError, Error, RollbackError, refused};
use crate::execution::Execution;
use crate::files::Found;
use crate::index::{Entry, Index, Known};
use crate::plan::{Step, VolumeRefusal};
use crate::record::{Claim, Mode, Owner, Record, Rollback, Sharing, State};
use crate::store::{Store, place};
use crate::{DEFAULT_PAUSE, Request, VolumeId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollbackRequest {
    /// Namespace and name of the snapshot that keeps the former content, and the UID of the volume's claim.
    pub claim: Claim,
    pub volume: VolumeId,
    /// The snapshot whose content the volume gets.
    pub source: VolumeId,
}

impl RollbackRequest {
    fn request(&self, rollback: Rollback, (mode, size): (Mode, Bytes)) -> Request {
        let Self { claim, source, .. } = self.clone();
        let owner = Owner::Rollback(rollback);
        Request {
            claim,
            owner,
            class: String::new(),
            mode: mode.snapshot(Sharing::Temporary).at_present(),
            size,
            source: Some(source),
        }
    }
}

impl Store {
    pub(crate) fn roll_back(&self, id: &VolumeId, want: &RollbackRequest) -> Result<Ensured<Record>, Error> {
        self.finish_exchange(id)?;
        let known = self.known(id)?.map(|known| known.record);
        let (rollback, of) = match &known {
            Some(record) => match record.rollback() {
                Some(rollback) if rollback.volume == want.volume && rollback.source == want.source => {
                    self.check_size(record, rollback)?;
                    (rollback.clone(), (record.mode, record.size))
                }
                _ => {
                    let Record { claim, size, .. } = record;
                    let (claim, uid, size) = (claim.to_string(), claim.uid.clone(), *size);
                    return Err(refused(id)(VolumeRefusal::Differs { claim, uid, size }));
                }
            },
            None => self.check_volume(want)?,
        };
        let request = want.request(rollback.clone(), of);
        // The source is a snapshot: there are no pods to stop.
        let provision = || self.provision(id, &request, DEFAULT_PAUSE);
        let record = provision()?.into_inner();
        if !record.is_exchanged() {
            self.exchange(id, &record, &rollback)?;
            provision()?;
        }
        if record.state == State::Staged {
            // Pods may have left dirty pages of the former content in the page cache.
            self.flush_source(id, record.mode.is_block());
        }
        let announced = self.announce_durably(id)?;
        let Some(Known { record, .. }) = self.known(id)? else { return Err(Error::Unknown { id: id.clone() }) };
        Ok(announced.map(|()| record))
    }

    /// Checks the volume of a new rollback. Returns the rollback, and the mode and size of the volume.
    fn check_volume(&self, want: &RollbackRequest) -> Result<(Rollback, (Mode, Bytes)), Error> {
        let RollbackRequest { volume, source, .. } = want;
        let failed = |source| Error::Rollback { id: volume.clone(), source };
        let Some(Known { record, .. }) = self.known(volume)? else { return Err(failed(RollbackError::Unknown)) };
        match record.mode {
            mode @ (Mode::Block { .. } | Mode::Filesystem { .. }) if record.state == State::Announced => {
                let (volume, source, project) = (volume.clone(), source.clone(), record.project);
                Ok((Rollback { volume, source, project, allocation: mode.allocation() }, (mode, record.size)))
            }
            Mode::Block { .. } | Mode::Filesystem { .. } => Err(refused(volume)(VolumeRefusal::NotAnnounced)),
            Mode::Snapshot { .. } | Mode::SnapshotTree { .. } => Err(refused(volume)(VolumeRefusal::Snapshot)),
        }
    }

    /// Rejects content that was copied for another size of the volume. The exchange verifies the size again.
    fn check_size(&self, record: &Record, rollback: &Rollback) -> Result<(), Error> {
        match self.known(&rollback.volume)? {
            Some(Known { record: former, .. }) if former.size != record.size && !record.is_exchanged() => {
                Err(Error::Rollback { id: rollback.volume.clone(), source: RollbackError::Grown })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Exchanges the directory of the snapshot, which shares no block, and that of the volume, which no process has
    /// open.
    fn exchange(&self, id: &VolumeId, record: &Record, rollback: &Rollback) -> Result<(), Error> {
        let volume = &rollback.volume;
        let failed = |source| Error::Rollback { id: volume.clone(), source };
        let _guard = self.locks.blocking_lock(volume);
        let Some(_alone) = self.leases.exclusive(volume) else { return Err(failed(RollbackError::Opened)) };
        let (known, seen) = self.look(volume)?;
        let (Some(Known { record: former, .. }), Place::Present { image, .. }) = (&known, seen.live) else {
            return Err(failed(RollbackError::Unknown));
        };
        if !seen.live.is_of(former) || former.project != rollback.project {
            return Err(refused(volume)(VolumeRefusal::Foreign));
        }
        if former.size != record.size || former.mode.is_block() && image != Some(record.size) {
            return Err(failed(RollbackError::Grown));
        }
        // An earlier exchange of the volume is not recorded. The records on the disk have its projects, and the next
        // start would complete it with them.
        if self.index().unwritten.values().any(|other| other == volume) {
            return Err(refused(id)(VolumeRefusal::RollingBack(volume.clone())));
        }
        // The limit of the volume has space to overwrite shared blocks, which the other directory would need after the
        // exchange. Blocks of a thin snapshot are then shared by two snapshots, which are not written.
        if self.index().unfinished_copy(volume).is_some() {
            return Err(failed(RollbackError::Shared));
        }
        self.check_unpublished(volume, &self.live)?;
        if former.mode.is_block() {
            Execution::new(self, volume, None, known).run(&[Step::DetachLoops(Where::Live)])?;
        }
        self.releases.forget(volume);
        let exchange = || self.staging.exchange(id.name(), &self.live, volume.name());
        let exchanged = match exchange() {
            // The owner of the files has protected the directory.
            Err(error) if error.errno() == Errno::EPERM => self.live.unprotect(volume.name()).and_then(|_| exchange()),
            exchanged => exchanged,
        };
        exchanged.map_err(|source| Error::Act { id: volume.clone(), step: Step::Publish, source: source.into() })?;
        self.write_exchanged(id, volume)?;
        info!(volume = %volume, snapshot = %id, "content exchanged; the snapshot has the former content");
        Ok(())
    }

    /// Completes an exchange that an earlier call could not complete.
    pub(crate) fn finish_exchange(&self, id: &VolumeId) -> Result<(), Error> {
        let Some(Known { record, .. }) = self.known(id)? else { return Ok(()) };
        match record.rollback() {
            Some(rollback) if self.is_unwritten(id) || self.has_exchanged(id, &record, rollback) => {
                let _guard = self.locks.blocking_lock(&rollback.volume);
                self.write_exchanged(id, &rollback.volume)?;
                info!(volume = %rollback.volume, snapshot = %id, "interrupted exchange of the content completed");
                Ok(())
            }
            Some(_) | None => Ok(()),
        }
    }

    fn is_unwritten(&self, id: &VolumeId) -> bool {
        self.index().unwritten.contains_key(id)
    }

    /// Whether the directories were exchanged, and the records may be the former ones.
    fn has_exchanged(&self, id: &VolumeId, record: &Record, rollback: &Rollback) -> bool {
        let found = place(&self.staging, id, false);
        let exchanged = Place::Present { project: Some(rollback.project), image: None };
        !record.is_exchanged() && found.is_ok_and(|found| found == exchanged)
    }

    /// Writes the records of an exchange; the caller holds the locks of both. Both records change in memory first: each
    /// operation on the volume before they are written, also its removal, then limits the project of its directory. The
    /// limits follow, then the record of the volume: the record of the snapshot has both projects until it is written.
    fn write_exchanged(&self, id: &VolumeId, volume: &VolumeId) -> Result<(), Error> {
        let Some(kept) = self.known(id)? else { return Ok(()) };
        let Some(former) = self.known(volume)? else { return self.write_kept(id, kept) };
        let records = if kept.record.is_exchanged() {
            Some([kept.record.clone(), former.record.clone()])
        } else {
            exchanged(&kept.record, &former.record)
        };
        let Some([kept_record, record]) = records else { return Ok(()) };
        let both = [(volume, Known { record, ..former }), (id, Known { record: kept_record, ..kept })];
        {
            let mut index = self.index();
            index.unwritten.insert(id.clone(), volume.clone());
            both.iter().for_each(|(id, known)| index.put(id, known.clone()));
        }
        for (id, _) in &both {
            // `limit_source` keeps the limits of a volume whose removal has begun.
            let set = self.limit_source(id);
            set.map_err(|source| Error::Act { id: (*id).clone(), step: Step::Limit, source })?;
        }
        for (id, Known { record, .. }) in &both {
            let act = |source: ActError| Error::Act { id: (*id).clone(), step: Step::WriteRecord, source };
            self.files.replace(id, record).map_err(act)?;
        }
        self.index().unwritten.remove(id);
        Ok(())
    }

    /// Writes the record of the snapshot after the volume was deleted, with the directory that had the project of this
    /// record.
    fn write_kept(&self, id: &VolumeId, kept: Known) -> Result<(), Error> {
        let failed = |step, source| Error::Act { id: id.clone(), step, source };
        let mut record = kept.record.clone();
        // If the record is exchanged already, the removal of the volume has cleared the other project.
        if !record.is_exchanged() {
            let Some(exchanged) = after_exchange(&record) else { return Ok(()) };
            self.quotas.clear(record.project).map_err(|source| failed(Step::ClearLimits, source.into()))?;
            record = exchanged;
        }
        let set = self.quotas.set_limits(record.project, self.limits(id, &record));
        set.map_err(|source| failed(Step::Limit, source.into()))?;
        self.files.replace(id, &record).map_err(|source| failed(Step::WriteRecord, source))?;
        self.index().put(id, Known { record, ..kept });
        self.index().unwritten.remove(id);
        Ok(())
    }

    /// Runs at the start, before anything is compared with the records: the records in memory follow their directories.
    pub(crate) fn follow_exchanges(&self, index: &mut Index, found: &mut Found) {
        let half: Vec<(VolumeId, [Record; 2], VolumeId)> = found
            .iter()
            .filter_map(|(id, (_, record))| {
                let record = record.as_ref().ok()?;
                let rollback = record.rollback().filter(|rollback| self.has_exchanged(id, record, rollback))?;
                let (_, Ok(former)) = found.get(&rollback.volume)? else { return None };
                Some((id.clone(), exchanged(record, former)?, rollback.volume.clone()))
            })
            .collect();
        for (id, [kept, record], volume) in half {
            index.unwritten.insert(id.clone(), volume.clone());
            found.insert(id, (kept.state, Ok(kept)));
            found.insert(volume, (record.state, Ok(record)));
        }
    }

    /// Runs at the start, after [`Store::follow_exchanges`]: writes these records, and that of a snapshot whose volume
    /// was deleted before.
    pub(crate) fn finish_exchanges(&self) {
        let is_kept =
            |entry: &Entry| matches!(entry, Entry::Known(Known { record, .. }) if record.rollback().is_some());
        let all: Vec<VolumeId> =
            self.index().volumes.iter().filter(|(_, entry)| is_kept(entry)).map(|(id, _)| id.clone()).collect();
        for id in &all {
            // The next call for the snapshot, or the next start, tries again. Until then, the store does nothing else
            // with the snapshot.
            if let Err(reason) = self.finish_exchange(id) {
                let reason: &dyn std::error::Error = &reason;
                error!(snapshot = %id, error = reason, "cannot record the exchange, will retry");
            }
        }
    }

    pub(crate) fn end_rollback(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        let Some(mut known) = self.known(id)? else { return Ok(Ensured::Unchanged(())) };
        let Owner::Rollback(rollback) = &known.record.owner else { return Ok(Ensured::Unchanged(())) };
        if !known.record.is_exchanged() || known.record.state == State::Staged {
            return Err(refused(id)(VolumeRefusal::RollingBack(rollback.volume.clone())));
        }
        known.record.owner = Owner::Provisioner;
        let act = |source: ActError| Error::Act { id: id.clone(), step: Step::WriteRecord, source };
        self.files.replace(id, &known.record).map_err(act)?;
        self.index().put(id, known);
        Ok(Ensured::Created(()))
    }

    /// Rejects the removal of the former content while the rollback may be repeated.
    pub(crate) fn check_ended(&self, id: &VolumeId, record: &Record) -> Result<(), Error> {
        match record.rollback() {
            Some(Rollback { volume, .. }) if record.is_exchanged() && self.known(volume)?.is_some() => {
                Err(refused(id)(VolumeRefusal::RollingBack(volume.clone())))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// The records of the snapshot and of the volume after the exchange of their directories.
fn exchanged(kept: &Record, former: &Record) -> Option<[Record; 2]> {
    let record = Record { project: kept.project, ..former.clone() };
    Some([after_exchange(kept)?, record])
}

fn after_exchange(kept: &Record) -> Option<Record> {
    let project = kept.rollback()?.project;
    Some(Record { project, mode: kept.mode.at_present(), ..kept.clone() })
}
