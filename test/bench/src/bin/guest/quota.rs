//! Operations of the crate `fsquota`, and the baseline.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use bench::{DirectoryLimit, Operation, create_directory};
use fsquota::{Allocator, FsError, Limits, ProjectId};
use units::Bytes;

use crate::call::{CallError, arrange, wrong};
use crate::region::measured;

/// Parent of the directories with projects, below the mount.
pub(crate) const VOLUMES: &str = "volumes";

/// Creates `projects` directories with projects. Their project IDs are consecutive and start at 1.
pub(crate) fn populate(mount: &Path, projects: u32) -> Result<(), CallError> {
    let fs = open(mount)?;
    let ids = Allocator::open(&fs)?;
    make_dir(&mount.join(VOLUMES))?;
    for number in 0..projects {
        let path = mount.join(VOLUMES).join(format!("volume-{number}"));
        make_dir(&path)?;
        fsquota::set(open(&path)?, limits(), &ids)?;
    }
    // The first ID creates the counter, which no later call has to do.
    ids.next()?;
    Ok(fsquota::sync(&fs)?)
}

/// Verifies that the directory of a volume in a burst has a quota. `mount` must have no projects.
pub(crate) fn check(mount: &Path) -> Result<(), CallError> {
    let path = mount.join("burst");
    create_directory(&path, Bytes::MIB, DirectoryLimit::Quota).map_err(arrange("create", &path))?;
    let dir = open(&path)?;
    let found = fsquota::get(&dir)?.limits;
    if found != limits() {
        return Err(format!("the directory of a volume in a burst has the limits {found:?}").into());
    }
    fsquota::remove(&dir)?;
    fs::remove_dir(&path).map_err(arrange("remove", &path))
}

/// Allocates as many IDs as one write of the counter reserves.
pub(crate) fn next(mount: &Path) -> Result<(), CallError> {
    let fs = open(mount)?;
    let ids = Allocator::open(&fs)?;
    fsquota::sync(&fs)?;
    Ok(measured(|| (0..Operation::Next.calls()).try_for_each(|_| ids.next().map(drop)))??)
}

/// Finds a free project ID without a counter: reads the quotas of all IDs in order, starting at 1, until an ID is
/// unused.
pub(crate) fn walk_for_id(mount: &Path, projects: u32) -> Result<(), CallError> {
    let fs = open(mount)?;
    fsquota::sync(&fs)?;
    let found = measured(|| first_free(&fs))??;
    require("first free project ID", found, projects + 1)
}

fn first_free(fs: impl AsFd) -> Result<u32, FsError> {
    let mut candidate = 1;
    for quota in fsquota::report(&fs)? {
        if quota?.id.get() > candidate {
            break;
        }
        candidate += 1;
    }
    Ok(candidate)
}

pub(crate) fn report(mount: &Path, projects: u32) -> Result<(), CallError> {
    let fs = open(mount)?;
    fsquota::sync(&fs)?;
    let found = measured(|| fsquota::report(&fs)?.try_fold(0, |found, quota| quota.map(|_| found + 1)))??;
    require("number of projects", found, projects)
}

pub(crate) fn set_first(mount: &Path) -> Result<(), CallError> {
    let volume = Volume::bare(mount)?;
    measured(|| fsquota::set(&volume.dir, limits(), &volume.ids))??;
    volume.discard()
}

pub(crate) fn set_again(mount: &Path) -> Result<(), CallError> {
    let volume = Volume::limited(mount)?;
    measured(|| fsquota::set(&volume.dir, Limits::for_size(Bytes::GIB), &volume.ids))??;
    volume.discard()
}

pub(crate) fn assign(mount: &Path) -> Result<(), CallError> {
    let volume = Volume::bare(mount)?;
    measured(|| fsquota::assign(&volume.dir, volume.id, limits()))??;
    volume.discard()
}

pub(crate) fn get(mount: &Path) -> Result<(), CallError> {
    let volume = Volume::limited(mount)?;
    measured(|| fsquota::get(&volume.dir))??;
    volume.discard()
}

pub(crate) fn quota(mount: &Path) -> Result<(), CallError> {
    let volume = Volume::limited(mount)?;
    measured(|| fsquota::quota(&volume.fs, volume.id))??;
    volume.discard()
}

pub(crate) fn remove(mount: &Path) -> Result<(), CallError> {
    let volume = Volume::limited(mount)?;
    measured(|| fsquota::remove(&volume.dir))??;
    volume.discard()
}

pub(crate) fn sync(mount: &Path) -> Result<(), CallError> {
    let volume = Volume::limited(mount)?;
    fsquota::set_limits(&volume.fs, volume.id, Limits::for_size(Bytes::GIB))?;
    measured(|| fsquota::sync(&volume.fs))??;
    volume.discard()
}

fn limits() -> Limits {
    Limits::for_size(Bytes::MIB)
}

fn require(what: &'static str, found: u32, expected: u32) -> Result<(), CallError> {
    if found == expected { Ok(()) } else { Err(wrong(what, found, expected)) }
}

/// A new directory beside the others. Its creation is durable.
struct Volume {
    fs: File,
    /// Allocator with a batch of IDs in memory, so that the next IDs need no write of the counter.
    ids: Allocator,
    id: ProjectId,
    path: PathBuf,
    dir: File,
}

impl Volume {
    fn bare(mount: &Path) -> Result<Self, CallError> {
        let volume = Self::make(mount)?;
        fsquota::sync(&volume.fs)?;
        Ok(volume)
    }

    fn limited(mount: &Path) -> Result<Self, CallError> {
        let volume = Self::make(mount)?;
        fsquota::assign(&volume.dir, volume.id, limits())?;
        fsquota::sync(&volume.fs)?;
        Ok(volume)
    }

    fn make(mount: &Path) -> Result<Self, CallError> {
        let fs = open(mount)?;
        let ids = Allocator::open(&fs)?;
        let id = ids.next()?;
        let path = mount.join(VOLUMES).join("measured");
        make_dir(&path)?;
        Ok(Self { dir: open(&path)?, fs, ids, id, path })
    }

    /// Removes the project, so that a later walk does not find it.
    fn discard(self) -> Result<(), CallError> {
        fsquota::remove(&self.dir)?;
        fs::remove_dir(&self.path).map_err(arrange("remove", &self.path))
    }
}

fn open(path: &Path) -> Result<File, CallError> {
    File::open(path).map_err(arrange("open", path))
}

fn make_dir(path: &Path) -> Result<(), CallError> {
    fs::create_dir(path).map_err(arrange("create", path))
}
