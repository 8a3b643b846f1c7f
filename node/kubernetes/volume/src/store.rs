//! The volumes directory: looks, lets [`plan`] decide, acts.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dir::{Dir, Ensured, Name};
use fsquota::{Allocator, Limits, ProjectId};
use nix::errno::Errno;
use nix::sys::stat::Mode;
use nix::sys::statvfs::fstatvfs;
use tracing::{error, info};
use units::Bytes;

use crate::ledger::{Disk, Ledger, Space};
use crate::plan::{self, From as TrashFrom, Place, Refusal, Request, Seen, Step};
use crate::record::{Record, RecordError, State};
use crate::turns::Turns;
use crate::{VolumeId, VolumeIdError};

/// Directories of the store itself.
const PRIVATE: Mode = Mode::S_IRWXU;
/// Records.
const PRIVATE_FILE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);
/// The root of a volume: any user of a pod may write, with or without `fsGroup`. Nobody else on the node gets this far,
/// since the directories above are private.
const VOLUME_ROOT: Mode = Mode::S_IRWXU.union(Mode::S_IRWXG).union(Mode::S_IRWXO);

/// How much of the disk volumes may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Kept for what else lives on the data disk.
    pub reserve: Bytes,
}

/// The volumes of one data disk. There is one in a process, and one process for a disk.
///
/// All methods wait for the disk: call them where blocking is allowed. Operations on one volume wait for each other,
/// those on several go on in parallel.
#[derive(Debug)]
pub struct Store {
    records: Dir,
    staging: Dir,
    live: Dir,
    trash: Dir,
    projects: Allocator,
    ledger: Mutex<Ledger>,
    reserve: Bytes,
    turns: Turns,
}

/// Why [`Store::open_volume`] opens nothing.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No such volume is live.
    #[error("there is no volume {id} on this node")]
    Unknown {
        /// The volume.
        id: VolumeId,
    },
    /// The disk failed.
    #[error("cannot open volume {id}")]
    Dir {
        /// The volume.
        id: VolumeId,
        /// What failed.
        #[source]
        source: dir::Error,
    },
}

/// Why the disk could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// A directory or record could not be opened or read.
    #[error(transparent)]
    Dir(#[from] dir::Error),
    /// A record could not be understood.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A project could not be read.
    #[error("cannot read the project of a directory")]
    Quota(#[from] fsquota::FsError),
    /// The size of the file system could not be read.
    #[error("cannot read the size of the data disk")]
    Size(#[source] Errno),
}

/// Why a step failed. The next call goes on from there.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// A file or directory.
    #[error(transparent)]
    Dir(#[from] dir::Error),
    /// No project.
    #[error("cannot allocate a project")]
    Allocate(#[from] fsquota::AllocateError),
    /// No limits.
    #[error("cannot limit the directory")]
    Limit(#[from] fsquota::SetError),
    /// The limits cannot be cleared.
    #[error("cannot clear the limits")]
    Clear(#[from] fsquota::RemoveError),
    /// A record vanished between two steps.
    #[error("the record vanished; someone else writes to the volumes directory")]
    NoRecord,
}

/// Why a volume was not made, put away or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The disk has no room for the promise. Nothing of the volume is left.
    #[error(
        "volume {id} needs {wanted} (files included), the data disk has {free} to promise; delete volumes or ask for less"
    )]
    Full {
        /// The volume.
        id: VolumeId,
        /// What it would be promised.
        wanted: Bytes,
        /// What could be.
        free: Bytes,
    },
    /// What stands on the disk must be kept.
    #[error("volume {id} cannot be touched")]
    Refused {
        /// The volume.
        id: VolumeId,
        /// Why.
        #[source]
        source: Refusal,
    },
    /// The disk could not be read.
    #[error("cannot look at volume {id}")]
    Look {
        /// The volume.
        id: VolumeId,
        /// Why.
        #[source]
        source: LookError,
    },
    /// The disk could not be changed.
    #[error("cannot finish the step {step:?} of volume {id}")]
    Act {
        /// The volume.
        id: VolumeId,
        /// Where it stopped.
        step: Step,
        /// Why.
        #[source]
        source: ActError,
    },
    /// A volume with a PV is no one's to undo.
    #[error("volume {id} is announced; it goes when its PV is deleted")]
    Announced {
        /// The volume.
        id: VolumeId,
    },
}

/// Why the volumes directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A directory of the store.
    #[error("cannot prepare the volumes directory")]
    Dir(#[from] dir::Error),
    /// Project quotas.
    #[error("the volumes directory has no project quotas")]
    Quota(#[from] fsquota::AllocateError),
    /// The recorded limits could not be set again.
    #[error("cannot limit volume {id} again")]
    Limit {
        /// The volume.
        id: VolumeId,
        /// Why.
        #[source]
        source: fsquota::SetError,
    },
}

/// Why the list of records cannot be read. Single bad records are logged and passed over.
#[derive(Debug, thiserror::Error)]
#[error("cannot list the volumes")]
pub struct ListError(#[from] dir::Error);

impl ActError {
    /// Whether the disk has no room.
    fn is_full(&self) -> bool {
        use fsquota::{AllocateError, FsError, SetError};

        match self {
            Self::Dir(error) => is_full(error.errno()),
            Self::Allocate(AllocateError::Counter { source, .. }) => {
                source.raw_os_error().is_some_and(|errno| is_full(Errno::from_raw(errno)))
            }
            Self::Allocate(AllocateError::Fs(FsError::System { source, .. }))
            | Self::Limit(SetError::Fs(FsError::System { source, .. })) => is_full(*source),
            Self::Allocate(_) | Self::Limit(_) | Self::Clear(_) | Self::NoRecord => false,
        }
    }
}

impl Store {
    /// Opens the volumes directory, makes what is missing in it, and sets all recorded limits again: those that were
    /// changed last may have been lost in a power cut.
    ///
    /// # Errors
    /// [`StartError`]: nothing can be served.
    pub fn open(volumes: &Dir, settings: Settings) -> Result<Self, StartError> {
        let projects = Allocator::open(volumes)?;
        let sub = |name| volumes.ensure_dir(&fixed(name), PRIVATE).map(Ensured::into_inner);
        let store = Self {
            records: sub("records")?,
            staging: sub("staging")?,
            live: sub("live")?,
            trash: sub("trash")?,
            projects,
            ledger: Mutex::default(),
            reserve: settings.reserve,
            turns: Turns::default(),
        };
        volumes.sync()?;
        for (id, record) in store.records().map_err(|ListError(source)| source)? {
            fsquota::set_limits(&store.live, record.project, limits(&record))
                .map_err(|source| StartError::Limit { id: id.clone(), source })?;
            store.ledger().note(id, record.promised());
        }
        store.live.syncfs()?;
        Ok(store)
    }

    /// The directory of a live volume.
    ///
    /// # Errors
    /// [`OpenError::Unknown`] also while the volume is being made or deleted.
    pub fn open_volume(&self, id: &VolumeId) -> Result<Dir, OpenError> {
        self.live.open_dir(id.name()).map_err(|source| {
            let id = id.clone();
            if source.is_not_found() { OpenError::Unknown { id } } else { OpenError::Dir { id, source } }
        })
    }

    /// All readable records, by one look at the disk. Unreadable ones are logged.
    ///
    /// # Errors
    /// [`ListError`]: the directory itself cannot be read.
    pub fn records(&self) -> Result<BTreeMap<VolumeId, Record>, ListError> {
        let mut records = BTreeMap::new();
        for id in volumes_in(&self.records)? {
            match self.record(&id) {
                Ok(Some(record)) => {
                    records.insert(id, record);
                }
                Ok(None) => {} // deleted since
                Err(reason) => {
                    let reason: &dyn std::error::Error = &reason;
                    error!(volume = %id, error = reason, "volume record is unreadable; the volume is kept");
                }
            }
        }
        Ok(records)
    }

    /// The volumes whose removal has begun: those in the trash, and those whose data is gone already while their
    /// limits and record stayed, because a program held a deleted file open, or because the power failed.
    ///
    /// The latter are also volumes whose data was lost: who has a PV of one keeps it.
    ///
    /// # Errors
    /// [`ListError`].
    pub fn retired(&self) -> Result<Vec<VolumeId>, ListError> {
        let mut retired: BTreeSet<_> = volumes_in(&self.trash)?.into_iter().collect();
        for id in volumes_in(&self.records)? {
            // What cannot be looked at is not called removed.
            if self.look(&id).is_ok_and(|seen| seen.is_emptied()) {
                retired.insert(id);
            }
        }
        Ok(retired.into_iter().collect())
    }

    /// What the disk has and may still promise.
    ///
    /// # Errors
    /// [`LookError::Size`].
    pub fn space(&self) -> Result<Space, LookError> {
        let disk = self.disk()?;
        Ok(self.ledger().space(disk))
    }

    /// Makes the volume as asked, or finishes what an earlier call began. When it returns, the volume is durable and
    /// has its limits. `Created` if this call made it live.
    ///
    /// # Errors
    /// [`Error::Full`]: what was begun is undone. [`Error::Refused`]: nothing was touched.
    pub fn provision(&self, id: &VolumeId, want: &Request) -> Result<Ensured<Record>, Error> {
        let _turn = self.turns.take(id);
        let seen = self.look(id)?;
        let steps = plan::provision(want, &seen).map_err(refused(id))?;
        if seen.record.is_none() {
            let wanted = want.promised();
            let disk = self.disk().map_err(looking(id))?;
            self.ledger().promise(id, wanted, disk).map_err(|space| Error::Full {
                id: id.clone(),
                wanted,
                free: space.free(),
            })?;
        }
        let published = steps.contains(&Step::Publish);
        match self.act(id, &steps, Some(want), seen.record) {
            Ok(Some(record)) if published => {
                self.ledger().note(id.clone(), record.promised());
                let (limit, project) = (record.size, record.project);
                info!(volume = %id, claim = %record.claim, %limit, %project, "volume provisioned");
                Ok(Ensured::Created(record))
            }
            Ok(Some(record)) => Ok(Ensured::Unchanged(record)),
            Ok(None) => Err(Error::Act { id: id.clone(), step: Step::WriteRecord, source: ActError::NoRecord }),
            Err(Error::Act { source, .. }) if source.is_full() => {
                self.undo_in_turn(id)?;
                let free = self.space().map_err(looking(id))?.free();
                Err(Error::Full { id: id.clone(), wanted: want.promised(), free })
            }
            Err(error) => {
                if self.record(id).is_ok_and(|record| record.is_none()) {
                    self.ledger().release(id);
                }
                Err(error)
            }
        }
    }

    /// Notes that the volume's PV exists: from now on only [`Store::retire`] ends it. Does nothing to a volume that is
    /// gone since.
    ///
    /// # Errors
    /// [`Error::Look`], [`Error::Act`].
    pub fn announce(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        let _turn = self.turns.take(id);
        match self.record(id).map_err(looking(id))? {
            Some(record) if record.state == State::Staged => {
                self.write(id, &Record { state: State::Announced, ..record }).map_err(|source| Error::Act {
                    id: id.clone(),
                    step: Step::WriteRecord,
                    source: source.into(),
                })?;
                Ok(Ensured::Created(()))
            }
            Some(_) | None => Ok(Ensured::Unchanged(())),
        }
    }

    /// Takes the volume out of use, into the trash. Its data is still there until [`Store::discard`]. A volume that is
    /// not there is no error.
    ///
    /// # Errors
    /// [`Error::Refused`]: a directory without a record is not ours to delete.
    pub fn retire(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        let _turn = self.turns.take(id);
        self.retire_in_turn(id)
    }

    /// Removes a retired volume: its data, its limits, its record. A volume that is not there is no error.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`Refusal::NotRetired`]. [`Error::Act`] may pass: a program that still has a deleted
    /// file open keeps its project in use.
    pub fn discard(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        let _turn = self.turns.take(id);
        self.discard_in_turn(id)
    }

    /// Removes a volume that no PV was made for.
    ///
    /// # Errors
    /// [`Error::Announced`]: it has, or had, a PV. Else those of [`Store::retire`] and [`Store::discard`].
    pub fn undo(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        let _turn = self.turns.take(id);
        match self.record(id).map_err(looking(id))? {
            Some(Record { state: State::Announced, .. }) => Err(Error::Announced { id: id.clone() }),
            Some(Record { state: State::Staged, .. }) | None => self.undo_in_turn(id),
        }
    }

    fn undo_in_turn(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        self.retire_in_turn(id)?;
        self.discard_in_turn(id)
    }

    fn retire_in_turn(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        let seen = self.look(id)?;
        let steps = plan::retire(&seen).map_err(refused(id))?;
        let retires = steps.iter().any(|step| matches!(step, Step::Trash(_)));
        if let (true, Some(record)) = (retires, &seen.record) {
            let Record { claim, class, size, project, .. } = record;
            // The audit line: it stands before the first change.
            info!(volume = %id, %claim, uid = claim.uid, class, limit = %size, %project, "volume will be deleted");
        }
        self.act(id, &steps, None, seen.record)?;
        Ok(if retires { Ensured::Created(()) } else { Ensured::Unchanged(()) })
    }

    fn discard_in_turn(&self, id: &VolumeId) -> Result<Ensured<()>, Error> {
        let seen = self.look(id)?;
        let steps = plan::discard(&seen).map_err(refused(id))?;
        self.act(id, &steps, None, seen.record)?;
        self.ledger().release(id);
        if steps.is_empty() {
            return Ok(Ensured::Unchanged(()));
        }
        info!(volume = %id, "volume removed");
        Ok(Ensured::Created(()))
    }

    fn look(&self, id: &VolumeId) -> Result<Seen, Error> {
        let look = || -> Result<Seen, LookError> {
            Ok(Seen {
                record: self.record(id)?,
                staging: place(&self.staging, id)?,
                live: place(&self.live, id)?,
                trash: place(&self.trash, id)?,
            })
        };
        look().map_err(looking(id))
    }

    fn record(&self, id: &VolumeId) -> Result<Option<Record>, LookError> {
        Ok(self.records.read(id.name())?.map(|content| Record::parse(&content)).transpose()?)
    }

    fn write(&self, id: &VolumeId, record: &Record) -> Result<(), dir::Error> {
        self.records.write(id.name(), &record.to_bytes(), PRIVATE_FILE)
    }

    fn disk(&self) -> Result<Disk, LookError> {
        let stat = fstatvfs(self.live.as_fd()).map_err(LookError::Size)?;
        let size = Bytes::new(stat.blocks().saturating_mul(stat.fragment_size()));
        Ok(Disk { size, reserve: self.reserve })
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // It is whole between its own calls, whoever panicked.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the record there is after the last step.
    fn act(
        &self,
        id: &VolumeId,
        steps: &[Step],
        want: Option<&Request>,
        record: Option<Record>,
    ) -> Result<Option<Record>, Error> {
        let mut act = Acting { store: self, id, want, record, staged: None };
        for &step in steps {
            act.step(step).map_err(|source| Error::Act { id: id.clone(), step, source })?;
        }
        Ok(act.record)
    }
}

/// One run over the steps of one volume.
struct Acting<'a> {
    store: &'a Store,
    id: &'a VolumeId,
    want: Option<&'a Request>,
    record: Option<Record>,
    /// Opened once, used by the steps that fill it.
    staged: Option<Dir>,
}

impl Acting<'_> {
    fn step(&mut self, step: Step) -> Result<(), ActError> {
        let Store { records, staging, live, trash, .. } = self.store;
        let name = self.id.name();
        match step {
            Step::WriteRecord => {
                let record = self.want.ok_or(ActError::NoRecord)?.record(self.store.projects.next()?);
                self.store.write(self.id, &record)?;
                self.record = Some(record);
            }
            Step::MakeStaging => self.staged = Some(staging.ensure_dir(name, VOLUME_ROOT)?.into_inner()),
            Step::Limit => {
                let record = self.record.as_ref().ok_or(ActError::NoRecord)?;
                let (project, limits) = (record.project, limits(record));
                fsquota::assign(self.staged()?, project, limits)?;
            }
            Step::SyncStaging => self.staged()?.sync()?,
            Step::Publish => staging.rename(name, live, name)?,
            Step::SyncLive => live.sync()?,
            Step::Trash(TrashFrom::Staging) => staging.rename(name, trash, name)?,
            Step::Trash(TrashFrom::Live) => live.rename(name, trash, name)?,
            Step::SyncTrash => trash.sync()?,
            Step::RemoveData => {
                trash.remove_all(name)?;
                trash.sync()?;
            }
            Step::ClearLimits => {
                let record = self.record.as_ref().ok_or(ActError::NoRecord)?;
                fsquota::clear(trash, record.project)?;
            }
            Step::RemoveRecord => {
                match records.remove_file(name) {
                    Err(error) if !error.is_not_found() => return Err(error.into()),
                    Ok(()) | Err(_) => records.sync()?,
                }
                self.record = None;
            }
        }
        Ok(())
    }

    fn staged(&mut self) -> Result<&Dir, ActError> {
        let dir = match self.staged.take() {
            Some(dir) => dir,
            None => self.store.staging.open_dir(self.id.name())?,
        };
        Ok(self.staged.insert(dir))
    }
}

/// The names of the store's own directories.
fn fixed(name: &'static str) -> Name {
    Name::try_from(name).expect("the store's own names are names")
}

fn volumes_in(dir: &Dir) -> Result<Vec<VolumeId>, dir::Error> {
    // What cut runs left beside (`.ID.new`, `.ID.1`) is no volume.
    let volume = |name: Name| -> Option<Result<VolumeId, VolumeIdError>> { name.to_str().map(str::parse) };
    Ok(dir.names()?.into_iter().filter_map(volume).filter_map(Result::ok).collect())
}

fn place(parent: &Dir, id: &VolumeId) -> Result<Place, LookError> {
    match parent.open_dir(id.name()) {
        Ok(dir) => Ok(Place::Present(project(&dir)?)),
        Err(error) if error.is_not_found() => Ok(Place::Absent),
        // A file or a link in a directory's place: present, and nothing of ours.
        Err(error) if matches!(error.errno(), Errno::ENOTDIR | Errno::ELOOP) => Ok(Place::Present(None)),
        Err(error) => Err(error.into()),
    }
}

fn project(dir: &Dir) -> Result<Option<ProjectId>, LookError> {
    Ok(fsquota::project(dir)?)
}

fn limits(record: &Record) -> Limits {
    Limits { bytes: Some(record.size), inodes: Some(record.inodes) }
}

const fn is_full(errno: Errno) -> bool {
    matches!(errno, Errno::ENOSPC | Errno::EDQUOT)
}

fn refused(id: &VolumeId) -> impl FnOnce(Refusal) -> Error {
    |source| Error::Refused { id: id.clone(), source }
}

fn looking(id: &VolumeId) -> impl FnOnce(LookError) -> Error {
    |source| Error::Look { id: id.clone(), source }
}
