//! Opens the store, and takes over the volumes of an earlier process.

use std::collections::BTreeSet;
use std::sync::Arc;

use dir::Dir;
use fsquota::ProjectId;
use tracing::warn;
use units::Bytes;

use crate::anchor::Anchor;
use crate::disk_state::{Place, is_confined};
use crate::error::{LookError, StartError};
use crate::id::{VolumeId, volumes_in};
use crate::image_file;
use crate::index::{Entry, Index, Known};
use crate::record::{Record, RecordError, State};
use crate::settings::Settings;
use crate::store::{Store, place};

impl Store {
    /// Opens the volumes directory, creates missing directories in it, and sets all recorded limits again, because a
    /// power cut may have undone the last changes of limits. A faulty volume is closed alone.
    ///
    /// # Errors
    /// [`StartError`]: no volume can be used.
    pub fn open(volumes: &Dir, settings: Settings) -> Result<Self, StartError> {
        let mut store = Self::prepare(volumes, settings)?;
        let (mut index, mut found) = (Index::default(), store.files.load()?);
        store.follow_exchanges(&mut index, &mut found);
        found.retain(|id, (state, record)| {
            let is_torn = matches!(record, Err(error) if *state == State::Staged && error.is_torn());
            !(is_torn && store.drop_unwritten(id))
        });
        store.keeps_headroom = found.values().any(|(_, record)| record.is_err());
        // The clones are in the index before the limits of their sources are set, whose pods may write.
        let clones =
            found.iter().filter_map(|(id, (_, record))| Some((id.clone(), record.as_ref().ok()?.cloning.clone()?)));
        index.clones = clones.collect();
        for (id, (state, record)) in found {
            store.take_over(&mut index, &id, state, record);
        }
        let places = [&store.staging, &*store.live, &*store.trash];
        for place in places {
            let names = volumes_in(place)?.into_iter();
            index.foreign.extend(names.filter(|id| !index.volumes.contains_key(id)));
        }
        *store.index() = index;
        store.finish_exchanges();
        store.measure()?;
        // From here on, all changes of an earlier process are on the disk, also announcements and limits.
        fsquota::sync(volumes)?;
        store.remove_anchors();
        Ok(store)
    }

    /// Removes a first record whose write was interrupted, if the volume has no other parts. Returns whether it was
    /// removed.
    fn drop_unwritten(&self, id: &VolumeId) -> bool {
        let places = [&self.staging, &*self.live, &*self.trash];
        let nowhere = places.into_iter().all(|dir| place(dir, id, false).is_ok_and(|place| place == Place::Absent));
        nowhere && self.files.discard_unwritten(id).is_ok()
    }

    /// Adds a volume of an earlier process to the index.
    fn take_over(&self, index: &mut Index, id: &VolumeId, state: State, record: Result<Record, RecordError>) {
        let taken = record.and_then(|record| {
            let record = self.finish_growth(id, record);
            // The limits do not change: for a restoration, they mark that the removal has begun.
            if self.removal_has_begun(id, &record) {
                return Ok(record);
            }
            match self.set_limits(&record, index.limits(id, &record)) {
                Ok(()) => Ok(record),
                Err(error) => {
                    index.ledger.note(id.clone(), record.reserved());
                    Err(RecordError::Limits(Arc::new(error)))
                }
            }
        });
        match taken {
            Ok(record) => {
                index.put(id, Known { record, announcement: None, scanned: None });
            }
            Err(error) => {
                let (project, reservation) = self.closed(id);
                if !matches!(error, RecordError::Limits(_)) {
                    index.ledger.note(id.clone(), reservation);
                }
                let reason: &dyn std::error::Error = &error;
                tracing::error!(volume = %id, error = reason, reservation = %reservation, "volume is closed and kept");
                index.volumes.insert(id.clone(), Entry::Closed { state, error, project });
            }
        }
    }

    /// Removes the anchor files of passes that a kill ended; all copies are durable. After an error, the next pass of
    /// the copy tries again.
    fn remove_anchors(&self) {
        let names = self.anchors.names().unwrap_or_else(|error| {
            let reason: &dyn std::error::Error = &error;
            warn!(error = reason, "cannot list the former blocks of unfinished copies");
            Vec::new()
        });
        let copies: BTreeSet<VolumeId> =
            names.iter().filter_map(|name| name.to_str()?.split('~').next()?.parse().ok()).collect();
        for copy in &copies {
            if let Err(error) = Anchor::new(&self.anchors, copy).clear() {
                let reason: &dyn std::error::Error = &error;
                warn!(volume = %copy, error = reason, "cannot remove the former blocks of an unfinished copy");
            }
        }
    }

    /// Whether [`Store::discard`] has begun, and the volume was not restored since.
    fn removal_has_begun(&self, id: &VolumeId, record: &Record) -> bool {
        let confined = || self.quotas.quota(record.project).is_ok_and(is_confined);
        let absent = |dir| place(dir, id, false).is_ok_and(|place| place == Place::Absent);
        confined() && absent(&self.staging) && absent(&self.live)
    }

    /// Completes an interrupted expansion: an image that is larger than its record grew before the record was written.
    fn finish_growth(&self, id: &VolumeId, record: Record) -> Record {
        if !record.mode.is_block() || record.state != State::Announced {
            return record;
        }
        let image = self.live.open_dir(id.name()).map_err(LookError::from).and_then(|dir| image_file::size_in(&dir));
        let Ok(Some(size)) = image else { return record };
        if size <= record.size {
            return record;
        }
        let grown = record.grown(size);
        if let Err(error) = self.files.replace(id, &grown) {
            // The next start tries again; until then the record is in memory.
            let reason: &dyn std::error::Error = &error;
            warn!(volume = %id, error = reason, "cannot write the record of an expanded image");
        }
        grown
    }

    /// Project and reservation of an unreadable volume, from its quota.
    fn closed(&self, id: &VolumeId) -> (Option<ProjectId>, Bytes) {
        let places = [&*self.live, &self.staging, &*self.trash];
        let found = places.into_iter().find_map(|place| fsquota::project(place.open_dir(id.name()).ok()?).ok()?);
        let quota = found.and_then(|project| self.quotas.quota(project).ok());
        let reservation = quota.map_or(Bytes::ZERO, |quota| {
            let bytes = quota.limits.bytes.unwrap_or(quota.used.bytes);
            let inodes = quota.limits.inodes.unwrap_or(quota.used.inodes);
            bytes.saturating_add(crate::record::inodes(inodes))
        });
        (found, reservation)
    }
}
