//! Executes the steps of a plan for one volume.

use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use dir::{Dir, Ensured, Mode, OFlag, Progress};
use fsquota::{ProjectId, RemoveError, SetError, Usage};
use nix::errno::Errno;
use nix::libc;
use nix::sys::stat::{fchmod, fstat};
use nix::unistd::fdatasync;
use reflink::TreeClone;
use tracing::{info, warn};
use units::{Bytes, Inodes};

use crate::anchor::Anchor;
use crate::disk_state::{CONFINED, Place, Where, is_confined};
use crate::duty_cycle::DutyCycle;
use crate::error::{ActError, Error, clone_failed};
use crate::flush::Flush;
use crate::index::Known;
use crate::plan::Step;
use crate::record::{Cloning, State};
use crate::store::{Store, place};
use crate::{Allocation, DEFAULT_PAUSE, Record, Request, VolumeId, copy, image_file, tree};

/// How long XFS may take to free deleted inodes. XFS frees them in the background (inodegc, since Linux 5.14), and
/// begins with the next query of a quota.
const UNLINKED: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(2);

/// Mode of the root of a filesystem volume: any user of a pod may write, with or without `fsGroup`. The directories
/// above are private, so no other process on the node reaches it.
const VOLUME_ROOT: Mode = Mode::S_IRWXU.union(Mode::S_IRWXG).union(Mode::S_IRWXO);
/// Mode of the directory around an image.
const IMAGE_ROOT: Mode = Mode::S_IRWXU;

pub(crate) struct Execution<'a> {
    pub(crate) store: &'a Store,
    pub(crate) id: &'a VolumeId,
    pub(crate) want: Option<&'a Request>,
    pub(crate) known: Option<Known>,
    /// Source of a clone, for a new record.
    pub(crate) cloning: Option<Cloning>,
    /// Longest pause of the pods of a source of files.
    pub(crate) max_pause: Duration,
    /// Staged directory, opened once for the steps that fill it.
    staged: Option<Dir>,
}

impl<'a> Execution<'a> {
    pub(crate) fn new(store: &'a Store, id: &'a VolumeId, want: Option<&'a Request>, known: Option<Known>) -> Self {
        Self { store, id, want, known, cloning: None, max_pause: DEFAULT_PAUSE, staged: None }
    }

    pub(crate) fn run(&mut self, steps: &[Step]) -> Result<(), Error> {
        for &step in steps {
            if let Err(source) = self.step(step) {
                // A removed directory keeps its inode while it is open.
                self.staged = None;
                let id = self.id.clone();
                return Err(match source {
                    ActError::Unfinished { freed, left } => Error::Unfinished { id, freed, left },
                    ActError::Copying { left } => Error::Copying { id, left },
                    ActError::Busy { .. } | ActError::Locked { .. } if step == Step::EndSharing => {
                        Error::Copying { id, left: Bytes::ZERO }
                    }
                    source => Error::Act { id, step, source },
                });
            }
        }
        Ok(())
    }

    /// The record after the steps.
    pub(crate) fn into_record(mut self) -> Result<Record, Error> {
        let known = self.known.take();
        known.map(|known| known.record).ok_or_else(|| self.failed(Step::WriteRecord, ActError::NoRecord))
    }

    fn step(&mut self, step: Step) -> Result<(), ActError> {
        let Store { files, staging, live, trash, quotas, .. } = self.store;
        let (id, name) = (self.id, self.id.name());
        match step {
            Step::WriteRecord => {
                let want = self.want.ok_or(ActError::NoRecord)?;
                let record = want.record(self.store.projects.next()?, self.cloning.clone());
                files.create(id, &record)?;
                self.put(Known { record, announcement: None, scanned: None });
            }
            Step::MakeStaging => self.staged = Some(staging.create_dir(name, self.root_mode()?)?),
            Step::Limit => self.limit()?,
            Step::MakeImage => {
                let (size, allocation) = (self.record()?.size, self.allocation()?);
                image_file::make(self.staged()?, size, allocation)?;
            }
            Step::CloneImage => {
                let (store, cloning) = (self.store, self.record()?.cloning.clone().ok_or(ActError::NoRecord)?);
                store.releases.forget(&cloning.source);
                store.clone_image(self.staged()?, &cloning)?;
            }
            Step::CloneTree => self.clone_tree()?,
            Step::Complete => self.complete()?,
            Step::CopyBlocks => {
                let (size, pass) = (self.record()?.size, self.store.settings.pass);
                if self.record()?.mode.is_block() {
                    let allocation = self.allocation()?;
                    let (anchor, cycle) = (Anchor::new(&self.store.anchors, id), self.duty_cycle()?);
                    copy::end_sharing(self.staged()?, anchor, size, allocation, pass, &cycle)?;
                } else {
                    let former = self.store.index().flushes.get(id).copied();
                    let begin = Instant::now();
                    // After a pass that has copied all blocks, later ones only wait until the source fits its size.
                    if Flush::is_due(former, begin) {
                        // The top directory has the mode of the source's top, which `staged` would replace.
                        let (dir, project) = (staging.open_dir(name)?, self.record()?.project);
                        let (anchor, cycle) = (Anchor::new(&self.store.anchors, id), self.duty_cycle()?);
                        anchor.during(&cycle, |anchor| {
                            tree::end_sharing(&dir, anchor, quotas, project, size, pass, &cycle)
                        })?;
                        let flush = Flush::after(former, begin, Instant::now());
                        self.store.index().flushes.insert(id.clone(), flush);
                    }
                }
            }
            Step::EndSharing => {
                let mut known = self.known.clone().ok_or(ActError::NoRecord)?;
                let cloning = known.record.cloning.take().ok_or(ActError::NoRecord)?;
                let _guard = self.store.release_headroom(id, &cloning)?;
                self.store.releases.forget(&cloning.source);
                let ended = self.end_sharing(known);
                self.store.settle_limit(&cloning.source);
                ended?;
                self.store.settle_allocations(&cloning.source, None);
            }
            Step::Publish => {
                // The later steps need no descriptor of the staged directory.
                self.staged = None;
                staging.rename(name, live, name)?;
            }
            Step::SyncLive => live.sync()?,
            Step::RaiseLimits(to) => {
                let record = self.record()?.grown(to);
                self.store.set_limits(&record, self.store.limits(id, &record))?;
            }
            Step::GrowImage(to) => image_file::grow(&live.open_dir(name)?, to, self.allocation()?)?,
            Step::RaiseRecord(to) => {
                let record = self.record()?.grown(to);
                files.replace(id, &record)?;
                self.change(|known| {
                    known.record = record;
                    known.announcement = None;
                });
            }
            Step::DetachLoops(from) => image_file::detach_loops(&self.from(from).open_dir(name)?)?,
            Step::Trash(from) => match self.from(from).rename(name, trash, name) {
                Err(error) if error.errno() == Errno::EPERM && self.from(from).unprotect(name)? => {
                    self.from(from).rename(name, trash, name)?;
                }
                moved => moved?,
            },
            Step::SyncTrash => trash.sync()?,
            Step::Restore => {
                self.release()?;
                trash.rename(name, live, name)?;
            }
            Step::RemoveStaging => match place(staging, id, self.record()?.mode.is_block()) {
                // A directory without a project is still empty, or its content is unmanaged.
                Ok(Place::Present { project: None, .. }) => staging.remove_dir(name)?,
                _ => staging.remove_all(name)?,
            },
            Step::RemoveData => self.remove_data()?,
            Step::ClearLimits => self.clear()?,
            Step::RemoveRecord => {
                let record = self.known.as_ref().map(|known| known.record.clone());
                let cloning = record.as_ref().and_then(|record| record.cloning.as_ref());
                // No block is shared: the limits were cleared, which needs a project without blocks.
                let _guard = match cloning {
                    Some(cloning) => {
                        Anchor::new(&self.store.anchors, id).clear()?;
                        Some(self.store.release_headroom(id, cloning)?)
                    }
                    None => None,
                };
                // Only this record names the source to a later call, so the allocation size is reset before the record
                // is removed. The next start also sets the limit of the source.
                if let Some(cloning) = cloning {
                    self.store.settle_allocations(&cloning.source, Some(id));
                }
                let removed = record.as_ref().map_or(Ok(()), |record| files.remove(record.state, id));
                if removed.is_ok() {
                    self.store.index().forget(id);
                    self.known = None;
                }
                if let Some(cloning) = cloning {
                    self.store.releases.forget(&cloning.source);
                    self.store.settle_limit(&cloning.source);
                }
                removed?;
            }
        }
        Ok(())
    }

    /// Writes the record of a copy that shares no blocks any more. The limits change before the record: when the record
    /// has no source, no later pass repeats this step.
    fn end_sharing(&mut self, known: Known) -> Result<(), ActError> {
        let Store { files, quotas, .. } = self.store;
        if !known.record.mode.is_block() {
            quotas.set_limits(known.record.project, known.record.limits())?;
        }
        files.replace(self.id, &known.record)?;
        self.put(known);
        Ok(())
    }

    fn clone_tree(&mut self) -> Result<(), ActError> {
        let cloning = self.record()?.cloning.clone().ok_or(ActError::NoRecord)?;
        let (store, max_pause) = (self.store, self.max_pause);
        let taken = store.clone_tree(self.staged()?, &cloning, max_pause)?;
        let record = self.record()?;
        // The step `Complete` follows: one write of the record is enough for both.
        let state = if record.mode.is_complete_early(&record.owner) { State::Complete } else { State::Staged };
        self.complete_tree(taken, state)
    }

    /// Writes the mark of a complete snapshot into the record. The force of the log that makes the record durable also
    /// makes the clone before it durable, whose data `FICLONE` has written.
    fn complete(&mut self) -> Result<(), ActError> {
        let mut known = self.known.clone().ok_or(ActError::NoRecord)?;
        if known.record.state == State::Staged {
            known.record.state = State::Complete;
            self.store.files.replace(self.id, &known.record)?;
            self.put(known);
        }
        Ok(())
    }

    /// Begins a clone of all files of the source, which is locked.
    pub(crate) fn begin_tree(&mut self) -> Result<TreeClone, ActError> {
        let cloning = self.record()?.cloning.clone().ok_or(ActError::NoRecord)?;
        let store = self.store;
        store.begin_tree(self.staged()?, &cloning)
    }

    /// Writes into the record that all files are cloned, the instant of a snapshot, and this state. A member of a group
    /// is complete only when all members are.
    pub(crate) fn complete_tree(&mut self, taken: SystemTime, state: State) -> Result<(), ActError> {
        let Store { files, quotas, .. } = self.store;
        let mut known = self.known.clone().ok_or(ActError::NoRecord)?;
        known.record.cloning.as_mut().ok_or(ActError::NoRecord)?.complete = true;
        let Record { project, .. } = known.record;
        let limits = known.record.limits();
        if !tree::fits(quotas.settled(project).map_err(ActError::Quota)?.used, known.record.complete_limits()) {
            return Err(ActError::Overfull);
        }
        known.record.mode = known.record.mode.taken_at(taken);
        known.record.state = state;
        files.replace(self.id, &known.record)?;
        // The record in memory changes before a later error: an undo must find that the tree is complete.
        self.put(known);
        Ok(quotas.set_limits(project, limits)?)
    }

    /// Writes a new instant into the record of a snapshot: of one whose image an earlier run has not cloned, or of a
    /// member of a group. The source is locked.
    pub(crate) fn renew_instant(&mut self, taken: SystemTime) -> Result<(), Error> {
        let Some(mut known) = self.known.clone().filter(|known| known.record.mode.is_snapshot()) else { return Ok(()) };
        known.record.mode = known.record.mode.taken_at(taken);
        let id = self.id.clone();
        let written = self.store.files.replace(self.id, &known.record);
        written.map_err(|source| Error::Act { id, step: Step::WriteRecord, source })?;
        self.put(known);
        Ok(())
    }

    pub(crate) fn sync_image(&mut self) -> Result<(), ActError> {
        let image = image_file::open(self.staged()?, OFlag::O_RDONLY)?;
        fdatasync(image).map_err(clone_failed("sync"))
    }

    /// Runs a part of a step. An error names the step.
    pub(crate) fn attempt<T>(
        &mut self,
        step: Step,
        part: impl FnOnce(&mut Self) -> Result<T, ActError>,
    ) -> Result<T, Error> {
        part(self).map_err(|source| self.failed(step, source))
    }

    pub(crate) fn failed(&mut self, step: Step, source: ActError) -> Error {
        // A removed directory keeps its inode while it is open.
        self.staged = None;
        Error::Act { id: self.id.clone(), step, source }
    }

    fn limit(&mut self) -> Result<(), ActError> {
        let Store { files, quotas, projects, .. } = self.store;
        loop {
            let (project, limits) = (self.record()?.project, self.record()?.limits());
            let done = match self.staged.take() {
                // This run has created the directory.
                Some(dir) => {
                    let done = quotas.assign_new(&dir, project, limits);
                    self.staged = Some(dir);
                    done
                }
                None => fsquota::assign(self.staged()?, project, limits).map(drop),
            };
            match done {
                Err(SetError::InUse { id: taken, used }) => {
                    // An administrator assigned the ID elsewhere since it was allocated.
                    warn!(volume = %self.id, project = %taken, %used.inodes, %used.bytes, "project is in use elsewhere");
                    let mut known = self.known.clone().ok_or(ActError::NoRecord)?;
                    known.record.project = projects.next()?;
                    files.replace(self.id, &known.record)?;
                    self.put(known);
                }
                done => return Ok(done?),
            }
        }
    }

    /// Runs one pass over the data: first sets the limits, then removes files.
    fn remove_data(&self) -> Result<(), ActError> {
        let Store { trash, quotas, .. } = self.store;
        let Record { project, .. } = self.record()?;
        quotas.set_limits(*project, CONFINED)?;
        let before = quotas.quota(*project).map_err(ActError::Quota)?.used.inodes;
        match trash.remove_all_within(self.id.name(), self.store.settings.removed_at_once)? {
            Progress::Done => Ok(()),
            Progress::Unfinished => {
                // A process that outlived its pod may use a file of the volume, and must not delay this call.
                let left = quotas.without_deleted(*project).map_err(ActError::Quota)?.used.inodes;
                Err(ActError::Unfinished { freed: before.saturating_sub(left), left })
            }
        }
    }

    /// Reverts the beginning of the removal of a volume in the trash: first owner and mode, then the limits, which mark
    /// that the removal has begun. The former owner and mode are lost. The volume gets those of a new one, and the
    /// kubelet applies `fsGroup` again when a pod mounts it.
    fn release(&self) -> Result<(), ActError> {
        let Store { trash, quotas, .. } = self.store;
        let record = self.record()?;
        if !is_confined(quotas.quota(record.project).map_err(ActError::Quota)?) {
            return Ok(());
        }
        let root = trash.open_dir(self.id.name())?;
        let stat = fstat(&root).map_err(ActError::Root)?;
        if (stat.st_uid, stat.st_gid, stat.st_mode & !libc::S_IFMT) == (0, 0, libc::S_IRWXU) {
            fchmod(&root, self.root_mode()?).map_err(ActError::Root)?;
        }
        self.store.set_limits(record, self.store.limits(self.id, record))?;
        info!(volume = %self.id, "limits and mode of a volume restored after its removal had begun");
        Ok(())
    }

    fn clear(&mut self) -> Result<(), ActError> {
        let record = self.record()?.clone();
        let scanned = self.known.as_ref().and_then(|known| known.scanned);
        let Some((project, used)) = self.clear_unused(record.project, scanned)? else { return Ok(()) };
        // All inodes of the disk are read once, and again only after this number has changed.
        let is_carried = || self.store.quotas.is_carried(project).map_err(ActError::Quota);
        if scanned != Some(used.inodes) && is_carried()? {
            // The directory to which an administrator assigned the ID keeps the ID and the limits. No volume gets this
            // ID again.
            self.store.quotas.set_limits(project, record.limits())?;
            warn!(volume = %self.id, %project, %used.inodes, %used.bytes, "project is in use elsewhere; its quota stays");
            return Ok(());
        }
        self.change(|known| known.scanned = Some(used.inodes));
        // A deleted file that a program has open exists until the program closes it.
        Err(RemoveError::InUse { id: project, used }.into())
    }

    /// Clears the limits, or returns the usage of a project that is in use. Waits for inodes that were just deleted,
    /// but not for those that an earlier attempt found in use.
    fn clear_unused(
        &self,
        project: ProjectId,
        scanned: Option<Inodes>,
    ) -> Result<Option<(ProjectId, Usage)>, ActError> {
        let begin = Instant::now();
        loop {
            match self.store.quotas.clear(project) {
                Ok(()) => return Ok(None),
                Err(RemoveError::InUse { used, .. }) if scanned != Some(used.inodes) && begin.elapsed() < UNLINKED => {
                    sleep(PAUSE);
                }
                Err(RemoveError::InUse { id, used }) => return Ok(Some((id, used))),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn staged(&mut self) -> Result<&Dir, ActError> {
        let dir = match self.staged.take() {
            Some(dir) => dir,
            // `ensure_dir` also sets the mode, because an earlier run may have ended before that.
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
        Ok(self.record()?.allocation())
    }

    /// Duty cycle of the copy. A pod waits for a clone, because its claim is bound when the copy ends, and often for a
    /// rollback: these copies do not rest.
    fn duty_cycle(&self) -> Result<DutyCycle<'a>, ActError> {
        let record = self.record()?;
        let is_background = record.mode.is_snapshot() && record.rollback().is_none();
        Ok(if is_background { self.store.copies.begin() } else { DutyCycle::full() })
    }

    fn root_mode(&self) -> Result<Mode, ActError> {
        let mode = self.record()?.mode;
        Ok(if mode.is_block() || mode.is_snapshot() { IMAGE_ROOT } else { VOLUME_ROOT })
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
