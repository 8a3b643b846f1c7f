//! One run over the steps of a volume.

use std::thread::sleep;
use std::time::{Duration, Instant};

use dir::{Dir, Ensured, Mode};
use fsquota::{RemoveError, SetError};
use nix::errno::Errno;
use tracing::warn;

use crate::error::{ActError, Error};
use crate::files::Home;
use crate::index::{Announcement, Known};
use crate::plan::Step;
use crate::seen::{Limits, Place, Where};
use crate::store::{Store, place};
use crate::{Allocation, Record, Request, VolumeId, image};

/// How long XFS may take for inodes that were deleted: it takes them apart in the background (inodegc, since Linux
/// 5.14), and begins when somebody asks for a quota.
const UNLINKED: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(2);

/// The root of a filesystem volume: any user of a pod may write, with or without `fsGroup`. Nobody else on the node gets
/// this far, since the directories above are private.
const VOLUME_ROOT: Mode = Mode::S_IRWXU.union(Mode::S_IRWXG).union(Mode::S_IRWXO);
/// The directory around an image.
const IMAGE_ROOT: Mode = Mode::S_IRWXU;

pub(crate) struct Acting<'a> {
    pub(crate) store: &'a Store,
    pub(crate) id: &'a VolumeId,
    pub(crate) want: Option<&'a Request>,
    /// What the disk has; after the last step what it has then.
    pub(crate) known: Option<Known>,
    /// Opened once, used by the steps that fill it.
    staged: Option<Dir>,
}

impl<'a> Acting<'a> {
    pub(crate) fn new(store: &'a Store, id: &'a VolumeId, want: Option<&'a Request>, known: Option<Known>) -> Self {
        Self { store, id, want, known, staged: None }
    }

    pub(crate) fn run(&mut self, steps: &[Step]) -> Result<(), Error> {
        for &step in steps {
            if let Err(source) = self.step(step) {
                // A directory that is open is not gone when it is removed.
                self.staged = None;
                return Err(Error::Act { id: self.id.clone(), step, source });
            }
        }
        Ok(())
    }

    fn step(&mut self, step: Step) -> Result<(), ActError> {
        let Store { files, staging, live, trash, quotas, everything, .. } = self.store;
        let (id, name) = (self.id, self.id.name());
        match step {
            Step::WriteRecord => {
                let record = self.want.ok_or(ActError::NoRecord)?.record(self.store.projects.next()?);
                files.create(id, &record)?;
                self.put(Known {
                    record,
                    home: Home::Pending,
                    announcement: Announcement::Volatile,
                    limits: Limits::Durable,
                });
            }
            Step::MakeStaging => self.staged = Some(staging.create_dir(name, self.root_mode()?)?),
            Step::Limit => self.limit()?,
            Step::MakeImage => {
                let (size, allocation) = (self.record()?.size, self.allocation()?);
                image::make(self.staged()?, size, allocation)?;
            }
            Step::Publish => {
                // Its descriptor is of no use any more.
                self.staged = None;
                staging.rename(name, live, name)?;
            }
            Step::SyncLive => live.sync()?,
            Step::RaiseLimits(to) => {
                let record = self.record()?.grown(to);
                quotas.set_limits(record.project, record.limits())?;
                self.change(|known| known.limits = Limits::Volatile);
            }
            Step::GrowImage(to) => image::grow(&live.open_dir(name)?, to, self.allocation()?)?,
            Step::RaiseRecord(to) => {
                let record = self.record()?.grown(to);
                files.replace(id, &record)?;
                self.change(|known| {
                    known.record = record;
                    known.announcement = Announcement::Durable;
                });
            }
            Step::SyncLimits => {
                everything.wait(|| fsquota::sync(&**live))?;
                self.change(|known| known.limits = Limits::Durable);
            }
            Step::DetachLoops(from) => image::detach_loops(&self.from(from).open_dir(name)?)?,
            Step::Trash(from) => match self.from(from).rename(name, trash, name) {
                // Who may, has made the volume's root immutable.
                Err(error) if error.errno() == Errno::EPERM && self.from(from).unprotect(name)? => {
                    self.from(from).rename(name, trash, name)?;
                }
                moved => moved?,
            },
            Step::SyncTrash => trash.sync()?,
            Step::Restore => trash.rename(name, live, name)?,
            Step::RemoveStaging => match place(staging, id, self.record()?.mode.is_block()) {
                // One without a project is as it was made: what is in it is not ours.
                Ok(Place::Present { project: None, .. }) => staging.remove_dir(name)?,
                _ => staging.remove_all(name)?,
            },
            Step::RemoveData => trash.remove_all(name)?,
            Step::ClearLimits => self.clear()?,
            Step::RemoveRecord => {
                if let Some(Known { home, .. }) = self.known {
                    files.remove(home, id)?;
                }
                self.store.index().forget(id);
                self.known = None;
            }
        }
        Ok(())
    }

    fn limit(&mut self) -> Result<(), ActError> {
        let Store { files, quotas, projects, .. } = self.store;
        loop {
            let (project, limits) = (self.record()?.project, self.record()?.limits());
            let done = match self.staged.take() {
                // Made by this run.
                Some(dir) => {
                    let done = quotas.assign_new(&dir, project, limits);
                    self.staged = Some(dir);
                    done
                }
                None => fsquota::assign(self.staged()?, project, limits).map(drop),
            };
            match done {
                Err(SetError::InUse { id: taken, used }) => {
                    // Somebody took the number by hand since it was allocated.
                    warn!(volume = %self.id, project = %taken, %used.inodes, %used.bytes, "project is in use elsewhere");
                    let mut known = self.known.clone().ok_or(ActError::NoRecord)?;
                    known.record.project = projects.next()?;
                    files.rewrite(self.id, &known.record)?;
                    self.put(known);
                }
                done => return Ok(done?),
            }
        }
    }

    fn clear(&self) -> Result<(), ActError> {
        let Record { project, .. } = self.record()?;
        let begin = Instant::now();
        let cleared = loop {
            match self.store.quotas.clear(*project) {
                Err(RemoveError::InUse { .. }) if begin.elapsed() < UNLINKED => sleep(PAUSE),
                done => break done,
            }
        };
        match cleared {
            Err(RemoveError::InUse { id: project, used }) if self.store.quotas.is_carried(project)? => {
                // Whoever took the number by hand keeps it, with the limits: no volume gets it again.
                warn!(volume = %self.id, %project, %used.inodes, %used.bytes, "project is in use elsewhere; its quota stays");
                Ok(())
            }
            // Deleted files that a program has open are over when it ends.
            cleared => Ok(cleared?),
        }
    }

    fn staged(&mut self) -> Result<&Dir, ActError> {
        let dir = match self.staged.take() {
            Some(dir) => dir,
            // Its mode too: an earlier run may have ended before it was set.
            None => match self.store.staging.ensure_dir(self.id.name(), self.root_mode()?)? {
                Ensured::Created(dir) | Ensured::Unchanged(dir) => dir,
            },
        };
        Ok(self.staged.insert(dir))
    }

    fn from(&self, from: Where) -> &Dir {
        match from {
            Where::Staging => &self.store.staging,
            Where::Live => &self.store.live,
            Where::Trash => &self.store.trash,
        }
    }

    fn record(&self) -> Result<&Record, ActError> {
        self.known.as_ref().map(|known| &known.record).ok_or(ActError::NoRecord)
    }

    fn allocation(&self) -> Result<Allocation, ActError> {
        Ok(match self.record()?.mode {
            crate::Mode::Block { allocation } => allocation,
            crate::Mode::Filesystem { .. } => Allocation::default(),
        })
    }

    fn root_mode(&self) -> Result<Mode, ActError> {
        Ok(if self.record()?.mode.is_block() { IMAGE_ROOT } else { VOLUME_ROOT })
    }

    fn put(&mut self, known: Known) {
        self.store.index().put(self.id, known.clone());
        self.known = Some(known);
    }

    fn change(&mut self, change: impl FnOnce(&mut Known)) {
        if let Some(known) = &mut self.known {
            change(known);
            self.store.index().change(self.id, |same| known.clone_into(same));
        }
    }
}
