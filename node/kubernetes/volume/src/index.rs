//! The state of the store in memory.

use std::collections::{BTreeMap, BTreeSet};

use fsquota::{Limits, ProjectId};
use units::{Bytes, Inodes};

use crate::VolumeId;
use crate::flush::Flush;
use crate::ledger::Ledger;
use crate::record::{Cloning, Record, RecordError, State};

/// All volumes with a record. The store is the only writer of its directories: an entry that it neither wrote nor found
/// at the start does not exist. Exclusive creates and renames detect entries of other writers.
#[derive(Debug, Default)]
pub(crate) struct Index {
    pub(crate) volumes: BTreeMap<VolumeId, Entry>,
    pub(crate) ledger: Ledger,
    pub(crate) foreign: BTreeSet<VolumeId>,
    /// Volumes that share blocks with their sources.
    pub(crate) clones: BTreeMap<VolumeId, Cloning>,
    /// Snapshots with [`State::Complete`].
    complete: BTreeSet<VolumeId>,
    /// Last flush of each source of files that exceeds its size. For a copy of files that shares nothing any more, the
    /// last pass over it, until its source fits.
    pub(crate) flushes: BTreeMap<VolumeId, Flush>,
    /// Snapshots of rollbacks, with their volumes. Their directories are exchanged, but the records on the disk may be
    /// the former ones. The records in memory have the projects of their directories.
    pub(crate) unwritten: BTreeMap<VolumeId, VolumeId>,
    /// Number of announcements. `durable` counts those that are on the disk.
    pub(crate) announced: u64,
    pub(crate) durable: u64,
}

/// A volume with a record.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "almost all volumes are known")]
pub(crate) enum Entry {
    /// The record is readable.
    Known(Known),
    /// The record is unreadable, or its limits cannot be set. The store does nothing with the volume.
    Closed { state: State, error: RecordError, project: Option<ProjectId> },
}

/// A readable record, and the state of its durability.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) record: Record,
    /// Number of its announcement by this process. A power cut undoes an announcement that is not on the disk.
    pub(crate) announcement: Option<u64>,
    /// Inodes that its project had, without its directory, at the last scan of all inodes of the disk.
    pub(crate) scanned: Option<Inodes>,
}

impl Entry {
    pub(crate) fn project(&self) -> Option<ProjectId> {
        match self {
            Self::Known(known) => Some(known.record.project),
            Self::Closed { project, .. } => *project,
        }
    }

    fn record(&self) -> Option<&Record> {
        match self {
            Self::Known(known) => Some(&known.record),
            Self::Closed { .. } => None,
        }
    }

    pub(crate) fn is_block(&self) -> bool {
        self.record().is_some_and(|record| record.mode.is_block())
    }

    pub(crate) fn is_thin_snapshot(&self) -> bool {
        self.record().is_some_and(|record| record.mode.is_thin())
    }
}

impl Index {
    /// Replaces the record in memory, and updates the reservation and the shared blocks.
    pub(crate) fn put(&mut self, id: &VolumeId, known: Known) {
        self.ledger.note(id.clone(), known.record.reserved());
        match &known.record.cloning {
            Some(cloning) => drop(self.clones.insert(id.clone(), cloning.clone())),
            None => {
                self.clones.remove(id);
                self.flushes.remove(id);
            }
        }
        self.note_state(id, known.record.state);
        self.volumes.insert(id.clone(), Entry::Known(known));
    }

    /// Limits of a volume: those of its size, and space to overwrite blocks that clones share with it.
    pub(crate) fn limits(&self, id: &VolumeId, record: &Record) -> Limits {
        let headroom = self.headroom(id);
        let Limits { bytes, inodes } = record.limits();
        Limits { bytes: bytes.map(|bytes| bytes.saturating_add(headroom).min(Limits::MAX_BYTES.max(bytes))), inodes }
    }

    /// Space to overwrite the blocks that clones share with the volume.
    fn headroom(&self, id: &VolumeId) -> Bytes {
        self.clones.values().filter(|clone| clone.source == *id).map(|clone| clone.headroom).sum()
    }

    /// A clone or snapshot of the volume whose blocks are not copied.
    pub(crate) fn unfinished_copy(&self, id: &VolumeId) -> Option<&VolumeId> {
        let is_copied = |entry: &Entry| entry.record().is_some_and(|record| record.state == State::Announced);
        self.copies(id).find(|(_, entry)| !is_copied(entry)).map(|(copy, _)| copy)
    }

    /// Whether the volume has a thin snapshot other than `ended`.
    pub(crate) fn has_thin_snapshot(&self, id: &VolumeId, ended: Option<&VolumeId>) -> bool {
        self.copies(id).any(|(copy, entry)| entry.is_thin_snapshot() && ended != Some(copy))
    }

    /// Snapshots of the volume's rollbacks that have not ended.
    pub(crate) fn rollbacks(&self, volume: &VolumeId) -> Vec<VolumeId> {
        let is_of_volume = |entry: &Entry| {
            entry.record().and_then(Record::rollback).is_some_and(|rollback| rollback.volume == *volume)
        };
        self.volumes.iter().filter(|(_, entry)| is_of_volume(entry)).map(|(id, _)| id.clone()).collect()
    }

    fn copies<'a>(&'a self, id: &VolumeId) -> impl Iterator<Item = (&'a VolumeId, &'a Entry)> {
        let of_volume = self.clones.iter().filter(move |(_, cloning)| cloning.source == *id);
        of_volume.filter_map(move |(copy, _)| Some((copy, self.volumes.get(copy)?)))
    }

    /// Changes the entry of a volume that has a readable record.
    pub(crate) fn change(&mut self, id: &VolumeId, change: impl FnOnce(&mut Known)) {
        if let Some(Entry::Known(known)) = self.volumes.get_mut(id) {
            change(known);
            let state = known.record.state;
            self.note_state(id, state);
        }
    }

    fn note_state(&mut self, id: &VolumeId, state: State) {
        if state == State::Complete {
            self.complete.insert(id.clone());
        } else {
            self.complete.remove(id);
        }
    }

    /// Complete snapshots. The time of the call does not depend on the number of other volumes.
    pub(crate) fn complete_snapshots(&self) -> BTreeMap<VolumeId, Record> {
        let entry = |id: &VolumeId| Some((id.clone(), self.volumes.get(id)?.record()?.clone()));
        self.complete.iter().filter_map(entry).collect()
    }

    /// Removes the volume from memory after its record, and releases the reservation.
    pub(crate) fn forget(&mut self, id: &VolumeId) {
        self.volumes.remove(id);
        self.clones.remove(id);
        self.complete.remove(id);
        self.flushes.remove(id);
        self.unwritten.remove(id);
        self.ledger.release(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Request;
    use crate::record::{Allocation, Claim, Mode, Owner, Rollback, Sharing};

    fn id(text: &str) -> VolumeId {
        text.parse().expect("an identifier")
    }

    fn known(owner: Owner, mode: Mode, state: State) -> Known {
        let claim = Claim { uid: "uid".into(), namespace: "default".into(), name: "data".into() };
        let want = Request { claim, owner, class: String::new(), mode, size: Bytes::GIB, source: None };
        let record = Record { state, ..want.record(ProjectId::FIRST, None) };
        Known { record, announcement: None, scanned: None }
    }

    #[test]
    fn a_complete_snapshot_is_listed_until_it_is_announced_or_removed() {
        let mode = Mode::Block { allocation: Allocation::Thick }.snapshot(Sharing::Temporary);
        let of_state = |state| known(Owner::Provisioner, mode, state);
        let mut index = Index::default();
        let [begun, announced, removed, left] = ["begun", "announced", "removed", "left"].map(id);
        index.put(&begun, of_state(State::Staged));
        for snapshot in [&announced, &removed, &left] {
            index.put(snapshot, of_state(State::Staged));
            index.put(snapshot, of_state(State::Complete));
        }
        let listed = |index: &Index| index.complete_snapshots().into_keys().collect::<Vec<_>>();
        assert_eq!(listed(&index), [&announced, &left, &removed].map(VolumeId::clone));
        index.change(&announced, |known| known.record.state = State::Announced);
        index.forget(&removed);
        assert_eq!(listed(&index), [left]);
    }

    #[test]
    fn a_volume_has_only_its_own_rollbacks_that_have_not_ended() {
        let of = |volume: &str| {
            let (volume, source, allocation) = (id(volume), id("snapshot-source"), Allocation::Thick);
            Owner::Rollback(Rollback { volume, source, project: ProjectId::FIRST, allocation })
        };
        let mut index = Index::default();
        for (name, owner) in [
            ("pvc-1", Owner::Provisioner),
            ("snapshot-ended", Owner::Provisioner),
            ("snapshot-first", of("pvc-1")),
            ("snapshot-other", of("pvc-2")),
            ("snapshot-second", of("pvc-1")),
        ] {
            let mode = Mode::Block { allocation: Allocation::Thick };
            index.put(&id(name), known(owner, mode, State::Staged));
        }
        assert_eq!(index.rollbacks(&id("pvc-1")), [id("snapshot-first"), id("snapshot-second")]);
        assert!(index.rollbacks(&id("snapshot-source")).is_empty(), "it is not the volume");
    }
}
