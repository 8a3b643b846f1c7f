//! Lists of volumes, strays, usage and faults.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::PoisonError;

use dir::{Dir, Name};
use fsquota::{FsError, Limits, ProjectId, Quota, Usage};
use units::Bytes;

use crate::disk_state::{Where, is_confined};
use crate::error::{ListError, UsageError};
use crate::id::{VolumeId, volumes_in};
use crate::index::{Entry, Known};
use crate::record::{Record, RecordError, State};
use crate::store::Store;
use crate::{DiskFault, DiskObserver};

#[derive(Clone, Debug, Default)]
pub struct Records {
    pub readable: BTreeMap<VolumeId, Record>,
    /// Volumes that are closed and kept: the record is unreadable, or the limits cannot be set.
    pub unreadable: BTreeMap<VolumeId, RecordError>,
}

/// Entries without a record. They are reported, and never deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strays {
    pub directories: Vec<(Where, Name)>,
    /// Projects that have a limit or usage.
    pub projects: Vec<ProjectId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeUsage {
    pub id: VolumeId,
    pub record: Record,
    pub used: Usage,
    /// Limits that the kernel has instead of those of the record, see [`Store::changed_limits`].
    pub changed: Option<Limits>,
}

/// Names and projects of volumes with a record.
#[derive(Default)]
struct KnownVolumes {
    volumes: BTreeSet<VolumeId>,
    projects: BTreeSet<ProjectId>,
}

impl Store {
    pub(crate) fn records(&self) -> Records {
        let mut records = Records::default();
        for (id, entry) in &self.index().volumes {
            match entry {
                Entry::Known(known) => drop(records.readable.insert(id.clone(), known.record.clone())),
                Entry::Closed { error, .. } => drop(records.unreadable.insert(id.clone(), error.clone())),
            }
        }
        records
    }

    pub(crate) fn retired(&self) -> Result<Vec<VolumeId>, ListError> {
        // The records are read before the directories: a volume that is announced in between must not look lost.
        let Records { readable, .. } = self.records();
        let names = |dir| -> Result<BTreeSet<VolumeId>, ListError> { Ok(volumes_in(dir)?.into_iter().collect()) };
        // Volumes move through the directories in this order, so none is missed.
        let (staging, live, trash) = (names(&self.staging)?, names(&self.live)?, names(&self.trash)?);
        let retired = readable.into_iter().filter(|(id, record)| {
            let nowhere = !staging.contains(id) && !live.contains(id);
            trash.contains(id) || nowhere && record.state.is_reported()
        });
        Ok(retired.map(|(id, _)| id).collect())
    }

    pub(crate) fn strays(&self) -> Result<Strays, ListError> {
        // The records are read before and after the directories: entries that are created or removed meanwhile are not
        // strays.
        let mut known = self.known_volumes();
        let mut found = Strays::default();
        let places: [(Where, &Dir); 3] =
            [(Where::Staging, &self.staging), (Where::Live, &self.live), (Where::Trash, &self.trash)];
        for (place, dir) in places {
            found.directories.extend(dir.names()?.into_iter().map(|name| (place, name)));
        }
        for quota in self.quotas.report() {
            found.projects.push(quota?.id);
        }
        let after = self.known_volumes();
        known.volumes.extend(after.volumes);
        known.projects.extend(after.projects);
        found.directories.retain(|(_, name)| !known.has(name));
        let first = self.settings.neighbours.first_project();
        found.projects.retain(|project| *project >= first && !known.projects.contains(project));
        Ok(found)
    }

    fn known_volumes(&self) -> KnownVolumes {
        let mut known = KnownVolumes { projects: self.settings.other_projects.clone(), ..KnownVolumes::default() };
        for (id, entry) in &self.index().volumes {
            known.volumes.insert(id.clone());
            known.projects.extend(entry.project());
        }
        known
    }

    pub(crate) fn usage(&self) -> Result<Vec<VolumeUsage>, UsageError> {
        let mut quotas = BTreeMap::new();
        for quota in self.quotas.report() {
            let quota = quota?;
            quotas.insert(quota.id, quota);
        }
        let index = self.index();
        let known = index.volumes.iter().filter_map(|(id, entry)| match entry {
            Entry::Known(known) => Some((id, &known.record)),
            Entry::Closed { .. } => None,
        });
        let usage = known.map(|(id, record)| {
            let found = quotas.get(&record.project).copied();
            let used = found.map(|quota| quota.used).unwrap_or_default();
            (VolumeUsage { id: id.clone(), record: record.clone(), used, changed: None }, found)
        });
        let volumes: Vec<_> = usage.collect();
        drop(index);
        let checked = volumes.into_iter().map(|(volume, found)| -> Result<_, UsageError> {
            let changed = self.changed_limits(&volume.id, found.as_ref())?;
            Ok(VolumeUsage { changed, ..volume })
        });
        checked.collect()
    }

    /// Limits of an announced filesystem volume in the kernel, if they differ from those of its record because another
    /// program changed them. A block volume never exceeds the size of its image.
    ///
    /// `found` is the quota that the caller has read, if it exists. If its limits differ, the method reads them again,
    /// while no operation has the volume: operations change the record and the limits one after the other.
    pub fn changed_limits(&self, id: &VolumeId, found: Option<&Quota>) -> Result<Option<Limits>, FsError> {
        let recorded = || {
            let index = self.index();
            match index.volumes.get(id) {
                Some(Entry::Known(Known { record, .. }))
                    if record.state == State::Announced && !record.mode.is_block() =>
                {
                    let limits = index.limits(id, record);
                    Some((record.project, [limits, record.shown(limits)]))
                }
                Some(_) | None => None,
            }
        };
        let is_unchanged = |wanted| found.is_some_and(|found| other_than(wanted, found).is_none());
        if recorded().is_none_or(|(_, wanted)| is_unchanged(wanted)) {
            return Ok(None);
        }
        let Some(_guard) = self.locks.try_lock(id) else { return Ok(None) };
        let Some((project, wanted)) = recorded() else { return Ok(None) };
        let quota = self.quotas.quota(project)?;
        Ok(other_than(wanted, &quota).filter(|_| !is_confined(quota)))
    }

    /// Volume that contains an open file or directory of the data disk, by its project. The volume may be in the trash.
    pub fn volume_of(&self, inode: impl AsFd) -> Result<Option<VolumeId>, FsError> {
        let Some(project) = self.quotas.project(inode)? else { return Ok(None) };
        let index = self.index();
        Ok(index.volumes.iter().find_map(|(id, entry)| match entry {
            Entry::Known(known) if known.record.project == project => Some(id.clone()),
            Entry::Known(_) | Entry::Closed { .. } => None,
        }))
    }

    pub(crate) fn faults(&self) -> Result<Vec<DiskFault>, FsError> {
        let of_file_system = self.quotas.faults()?.into_iter().map(DiskFault::FileSystem);
        let of_disk = self.disk_observer.get().map(|observer| observer.faults());
        let found: Vec<_> = of_file_system.chain(of_disk.into_iter().flatten()).collect();
        self.last_faults.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&found);
        Ok(found)
    }

    /// Faults that the last call of [`Volumes::faults`](crate::Volumes::faults) found. The CSI plugin and the
    /// provisioner call it once a minute.
    pub fn last_faults(&self) -> Vec<DiskFault> {
        self.last_faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds the faults that an observer detects. Only the first call has an effect.
    pub fn observe_disk(&self, observer: Box<dyn DiskObserver>) {
        self.disk_observer.get_or_init(|| observer);
    }

    /// Directory of the file system with the volumes, for queries of the kernel.
    pub fn file_system(&self) -> BorrowedFd<'_> {
        self.live.as_fd()
    }

    /// Number of forces of the log so far. In a burst, it is smaller than the number of created volumes.
    pub fn forces(&self) -> u64 {
        let dirs = [&self.files.pending, &self.files.records, &self.live, &self.trash];
        dirs.iter().map(|dir| dir.forces()).sum::<u64>()
    }
}

/// Largest block of XFS. Limits are rounded up to whole blocks.
const BLOCK: Bytes = Bytes::new(64 << 10);

/// The first of the limits of the kernel, and of those that `statfs` shows, that are not the wanted ones.
fn other_than(wanted: [Limits; 2], found: &Quota) -> Option<Limits> {
    let mut both = [found.limits, found.shown].into_iter().zip(wanted);
    both.find(|(found, wanted)| !are_of(*found, *wanted)).map(|(found, _)| found)
}

/// Whether the limits of the kernel are the wanted ones.
fn are_of(found: Limits, wanted: Limits) -> bool {
    let bytes = match (found.bytes, wanted.bytes) {
        (Some(found), Some(wanted)) => found >= wanted && found.saturating_sub(wanted) < BLOCK,
        (found, wanted) => found == wanted,
    };
    bytes && found.inodes == wanted.inodes
}

impl KnownVolumes {
    /// Whether a volume has this name, or the name is that of a part which was moved aside for its removal
    /// (`.ID.NUMBER`).
    fn has(&self, name: &Name) -> bool {
        let volume = |text: &str| text.parse().is_ok_and(|id: VolumeId| self.volumes.contains(&id));
        let Some(text) = name.to_str() else { return false };
        let piece = text.strip_prefix('.').and_then(|text| text.rsplit_once('.'));
        volume(text) || piece.is_some_and(|(id, number)| number.bytes().all(|byte| byte.is_ascii_digit()) && volume(id))
    }
}
