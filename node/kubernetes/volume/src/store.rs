//! The volumes directory, and its state in memory.
//!
//! The operations read the state, let [`crate::plan`] compute the steps, and execute them. They are in files of their
//! own, which need this one.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use dir::{Dir, Ensured, Mode, Name};
use fsquota::{Allocator, FsError, ProjectId, Quota, Quotas};
use nix::errno::Errno;
use nix::sys::statvfs::fstatvfs;
use tracing::warn;
use units::Bytes;

use crate::disk_state::{DiskState, Place};
use crate::duty_cycle::BackgroundCopies;
use crate::error::{Error, LookError, OpenError, StartError};
use crate::files::Files;
use crate::group::Shared;
use crate::index::{Entry, Index, Known};
use crate::lease::Leases;
use crate::ledger::{Disk, Space};
use crate::plan::Step;
use crate::record::State;
use crate::releases::Releases;
use crate::settings::{Neighbours, Settings};
use crate::{
    Announced, DiskFault, DiskObserver, IoThrottle, Opened, PodFreezer, VolumeCalls, VolumeId, VolumeLocks, image_file,
    published,
};

/// Mode of the store's own directories.
const PRIVATE: Mode = Mode::S_IRWXU;

/// The volumes of one data disk. A process has one store, and a disk has one process.
///
/// All methods wait for the disk: call them where blocking is allowed. Operations on one volume are serialized.
/// Operations on several volumes run in parallel, and share forces of the log.
#[derive(Debug)]
pub struct Store {
    pub(crate) files: Files,
    pub(crate) staging: Dir,
    pub(crate) live: Shared,
    pub(crate) trash: Shared,
    pub(crate) anchors: Dir,
    pub(crate) projects: Allocator,
    pub(crate) quotas: Arc<Quotas>,
    pub(crate) settings: Settings,
    /// Size of the file system at the last query. The size only grows.
    size: AtomicU64,
    others: AtomicU64,
    index: Mutex<Index>,
    /// Whether the start found an unreadable record.
    pub(crate) keeps_headroom: bool,
    /// Lock order: a copy (a clone or snapshot, also that of a rollback) before its source and before the volume of its
    /// rollback; several copies, and several sources, in the order of their IDs. No operation on an announced volume or
    /// snapshot locks a copy of it, and only such volumes and snapshots are locked to be cloned.
    ///
    /// A thin snapshot can outlive its source, and a client of CSI can use the name of the source again for a volume
    /// that is created from this snapshot: each is then the source of the other. Therefore the end or the removal of a
    /// copy, with the lock of the copy, waits for that of its source for at most a second. The creation waits for the
    /// snapshot, and then finds that it does not exist.
    pub(crate) locks: VolumeLocks,
    pub(crate) leases: Leases,
    pub(crate) copies: BackgroundCopies,
    pub(crate) releases: Releases,
    pub(crate) calls: VolumeCalls,
    pub(crate) disk_observer: OnceLock<Box<dyn DiskObserver>>,
    pub(crate) last_faults: Mutex<Vec<DiskFault>>,
    pub(crate) throttle: Mutex<Option<Weak<dyn IoThrottle>>>,
    freezer: Mutex<Option<Weak<dyn PodFreezer>>>,
}

impl Drop for Store {
    /// The file system can be unmounted afterwards.
    fn drop(&mut self) {
        self.releases.finish();
    }
}

impl Store {
    /// Opens the directories and the quotas, and creates missing directories. The store has no volumes yet.
    pub(crate) fn prepare(volumes: &Dir, settings: Settings) -> Result<Self, StartError> {
        let projects = Allocator::open_from(volumes, settings.neighbours.first_project())?;
        if let Some(project) = fsquota::project(volumes)? {
            return Err(StartError::Project { project });
        }
        let sub = |name| -> Result<Dir, StartError> {
            let dir = volumes.ensure_dir(&fixed(name), PRIVATE)?.into_inner();
            // XFS rejects a rename into a directory that inherits another project.
            if fsquota::disown(&dir)? {
                warn!(directory = name, "project of a directory of the store removed");
            }
            Ok(dir)
        };
        Ok(Self {
            files: Files { pending: Shared::new(sub("pending")?), records: Shared::new(sub("records")?) },
            staging: sub("staging")?,
            live: Shared::new(sub("live")?),
            trash: Shared::new(sub("trash")?),
            anchors: sub("anchors")?,
            projects,
            quotas: Arc::new(Quotas::open(volumes)?),
            settings,
            size: AtomicU64::new(0),
            others: AtomicU64::new(0),
            index: Mutex::default(),
            keeps_headroom: false,
            locks: VolumeLocks::default(),
            leases: Leases::default(),
            copies: BackgroundCopies::default(),
            releases: Releases::default(),
            calls: VolumeCalls::default(),
            disk_observer: OnceLock::new(),
            last_faults: Mutex::default(),
            throttle: Mutex::default(),
            freezer: Mutex::default(),
        })
    }

    /// Opens an announced volume: one system call, and a force of the log if the announcement is not on the disk yet.
    ///
    /// # Errors
    /// [`OpenError::Unknown`] also while the volume is being deleted; [`OpenError::NotAnnounced`] before it has a PV.
    pub fn open_volume(&self, id: &VolumeId) -> Result<Opened, OpenError> {
        let lease = loop {
            match self.leases.open(id) {
                Some(lease) => break lease,
                // A rollback is exchanging the content of the volume.
                None => drop(self.locks.blocking_lock(id)),
            }
        };
        let known = self.in_use(id)?;
        let failed = |source: dir::Error| {
            let id = id.clone();
            if source.is_not_found() { OpenError::Unknown { id } } else { OpenError::Dir { id, source } }
        };
        let dir = self.live.open_dir(id.name()).map_err(failed)?;
        self.sync_announcement(&known).map_err(failed)?;
        Ok(Opened { id: id.clone(), dir, record: known.record, quotas: Arc::clone(&self.quotas), _lease: lease })
    }

    /// Makes an announcement durable. One force of the log is enough for all announcements before it.
    fn sync_announcement(&self, known: &Known) -> Result<(), dir::Error> {
        let Index { announced, durable, .. } = *self.index();
        if known.announcement > Some(durable) {
            self.files.records.sync()?;
            let mut index = self.index();
            index.durable = index.durable.max(announced);
        }
        Ok(())
    }

    /// The mounts that show a live volume or its device.
    ///
    /// # Errors
    /// [`LookError`]: also if the volume is not live.
    pub fn targets(&self, id: &VolumeId) -> Result<Vec<PathBuf>, LookError> {
        published::targets(&self.live.open_dir(id.name())?)
    }

    pub fn announced(&self, id: &VolumeId) -> Result<Announced, OpenError> {
        let Known { record, .. } = self.in_use(id)?;
        Ok(Announced { record, quotas: Arc::clone(&self.quotas) })
    }

    fn in_use(&self, id: &VolumeId) -> Result<Known, OpenError> {
        match self.index().volumes.get(id) {
            None => Err(OpenError::Unknown { id: id.clone() }),
            Some(Entry::Closed { error, .. }) => Err(OpenError::Record { id: id.clone(), source: error.clone() }),
            // No pod can use a snapshot.
            Some(Entry::Known(known)) if known.record.mode.is_snapshot() => Err(OpenError::Unknown { id: id.clone() }),
            Some(Entry::Known(known)) if known.record.state == State::Staged => {
                Err(OpenError::NotAnnounced { id: id.clone() })
            }
            Some(Entry::Known(known)) => Ok(known.clone()),
        }
    }

    pub(crate) fn full(&self, id: &VolumeId, wanted: Bytes) -> Error {
        let free = self.space().map(|space| space.free()).unwrap_or_default();
        Error::Full { id: id.clone(), wanted, free }
    }

    pub(crate) fn announce(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        let Some(Known { record, .. }) = self.known(id)? else { return Err(Error::Unknown { id: id.clone() }) };
        if record.state == State::Announced {
            return Ok(Ensured::Unchanged(()));
        }
        let failed = |source| Error::Act { id: id.clone(), step: Step::WriteRecord, source };
        self.files.announce(id).map_err(failed)?;
        let mut index = self.index();
        index.announced += 1;
        let announcement = Some(index.announced);
        index.change(id, |known| {
            known.record.state = State::Announced;
            known.announcement = announcement;
        });
        Ok(Ensured::Created(()))
    }

    pub(crate) fn announce_durably(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        let announced = self.announce(id)?;
        // The sync of an earlier call may have failed after its announcement.
        if let Some(known) = self.known(id)? {
            let failed =
                |source: dir::Error| Error::Act { id: id.clone(), step: Step::SyncLive, source: source.into() };
            self.sync_announcement(&known).map_err(failed)?;
        }
        Ok(announced)
    }

    pub(crate) fn check_unpublished(&self, id: &VolumeId, from: &Dir) -> Result<(), Error> {
        let found = from.open_dir(id.name()).map_err(LookError::from).and_then(|volume| published::targets(&volume));
        match found.map(|targets| targets.into_iter().next()) {
            Ok(None) => Ok(()),
            Ok(Some(target)) => Err(Error::Published { id: id.clone(), target }),
            Err(source) => Err(Error::Look { id: id.clone(), source }),
        }
    }

    /// The observed state of the volume. Without a record, the store reads the disk only if an entry existed
    /// in its place at the start.
    pub(crate) fn look(&self, id: &VolumeId) -> Result<(Option<Known>, DiskState), Error> {
        let known = self.known(id)?;
        if known.is_none() && !self.index().foreign.contains(id) {
            return Ok((None, DiskState::NOTHING));
        }
        let seen = self.seen(id, known.as_ref())?;
        if known.is_none() && seen == DiskState::NOTHING {
            self.index().foreign.remove(id);
        }
        Ok((known, seen))
    }

    pub(crate) fn seen(&self, id: &VolumeId, known: Option<&Known>) -> Result<DiskState, Error> {
        let record = known.map(|known| known.record.clone());
        let block = record.as_ref().is_some_and(|record| record.mode.is_block());
        let look = |dir| place(dir, id, block).map_err(|source| Error::Look { id: id.clone(), source });
        Ok(DiskState { record, staging: look(&self.staging)?, live: look(&self.live)?, trash: look(&self.trash)? })
    }

    pub(crate) fn known(&self, id: &VolumeId) -> Result<Option<Known>, Error> {
        match self.index().volumes.get(id) {
            None => Ok(None),
            Some(Entry::Known(known)) => Ok(Some(known.clone())),
            Some(Entry::Closed { error, .. }) => Err(Error::Closed { id: id.clone(), source: error.clone() }),
        }
    }

    pub(crate) fn is_snapshot(&self, id: &VolumeId) -> bool {
        let index = self.index();
        matches!(index.volumes.get(id), Some(Entry::Known(Known { record, .. })) if record.mode.is_snapshot())
    }

    /// Reserves space. Before it fails, it reads the size of the disk again.
    pub(crate) fn reserve(
        &self,
        id: &VolumeId,
        wanted: Bytes,
        make: impl Fn(&mut Index, Bytes, Disk) -> Result<(), Space>,
    ) -> Result<(), Error> {
        if make(&mut self.index(), wanted, self.disk()).is_ok() {
            return Ok(());
        }
        self.measure().map_err(|source| Error::Look { id: id.clone(), source })?;
        let made = make(&mut self.index(), wanted, self.disk());
        made.map_err(|space| Error::Full { id: id.clone(), wanted, free: space.free() })
    }

    pub(crate) fn measure(&self) -> Result<Disk, LookError> {
        let used = || match self.settings.neighbours {
            Neighbours::Limited => Ok(None),
            Neighbours::Strangers => self.used().map(Some),
        };
        let before = used()?;
        let stat = fstatvfs(self.live.as_fd()).map_err(LookError::Size)?;
        let bytes = |blocks: u64| Bytes::new(blocks.saturating_mul(stat.fragment_size()));
        self.size.store(bytes(stat.blocks()).get(), Ordering::Relaxed);
        if let (Some(before), Some(after)) = (before, used()?) {
            // Data that is written or freed between the two sums counts as that of strangers, in this measurement only.
            // Data that a volume frees and writes again between the sums does not.
            let least = before.iter().filter_map(|(project, used)| after.get(project).map(|later| *used.min(later)));
            let all = bytes(stat.blocks().saturating_sub(stat.blocks_free()));
            self.others.store(least.fold(all, Bytes::saturating_sub).get(), Ordering::Relaxed);
        }
        Ok(self.disk())
    }

    pub(crate) fn space(&self) -> Result<Space, LookError> {
        let disk = self.measure()?;
        Ok(self.index().ledger.space(disk))
    }

    /// Space that each volume with a reservation uses, by its project.
    fn used(&self) -> Result<BTreeMap<ProjectId, Bytes>, FsError> {
        // The ledger reserves nothing for thin snapshots. Blocks that only they have count like those of strangers, and
        // the others count to their sources.
        let is_reserved = |entry: &&Entry| !entry.is_thin_snapshot();
        let own: BTreeSet<ProjectId> =
            self.index().volumes.values().filter(is_reserved).filter_map(Entry::project).collect();
        let taken = |Quota { id, used, .. }| (id, used.bytes.saturating_add(crate::record::inodes(used.inodes)));
        let all = self.quotas.report().map(|quota| quota.map(taken));
        all.filter(|taken| taken.as_ref().map_or(true, |(id, _)| own.contains(id))).collect()
    }

    fn disk(&self) -> Disk {
        let Settings { reserve, overcommit, .. } = self.settings;
        let [size, others] = [&self.size, &self.others].map(|kept| Bytes::new(kept.load(Ordering::Relaxed)));
        Disk { size, reserve: reserve.saturating_add(others), overcommit }
    }

    /// Registers the part of the process that stops pods. Each call replaces the registration before it. Without a
    /// freezer, files are cloned from snapshots only, and groups of snapshots fail. Only Granary nodes have a freezer:
    /// cloned files keep their times since Linux 5.17 ([`reflink::for_each_shared`]), and the kernels of other nodes
    /// may be older.
    pub fn freeze_by(&self, freezer: Weak<dyn PodFreezer>) {
        *self.freezer.lock().unwrap_or_else(PoisonError::into_inner) = Some(freezer);
    }

    pub(crate) fn freezer(&self) -> Option<Arc<dyn PodFreezer>> {
        self.freezer.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.upgrade()
    }

    pub(crate) fn index(&self) -> MutexGuard<'_, Index> {
        // The index is consistent between its own calls, also after a panic. No caller waits for the disk while it is
        // locked.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The names of the store's own directories.
fn fixed(name: &'static str) -> Name {
    Name::try_from(name).expect("the store's own names are names")
}

pub(crate) fn place(parent: &Dir, id: &VolumeId, block: bool) -> Result<Place, LookError> {
    match parent.open_dir(id.name()) {
        Ok(dir) => {
            let image = if block { image_file::size_in(&dir)? } else { None };
            Ok(Place::Present { project: fsquota::project(&dir)?, image })
        }
        Err(error) if error.is_not_found() => Ok(Place::Absent),
        // A file or a link in the place of a directory is present, and unmanaged.
        Err(error) if matches!(error.errno(), Errno::ENOTDIR | Errno::ELOOP) => {
            Ok(Place::Present { project: None, image: None })
        }
        Err(error) => Err(error.into()),
    }
}
