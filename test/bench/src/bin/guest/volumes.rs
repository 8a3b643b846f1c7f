//! Operations of volumes: the work for a claim, from the provisioner's first call to the PV, and its deletion.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;

use bench::{Binder, BurstSample, Until, Way};
use dir::{Dir, Name};
use ktest_support::{XfsDisk, block_stats};
use nix::sys::stat::Mode as FileMode;
use units::{Bytes, Inodes};
use volume::{Allocation, Claim, Mode, Owner, Request, Settings, Store, VolumeId, Volumes as _};

use crate::call::CallError;
use crate::region::measured;

const DIRECTORY: &str = "node";

/// Number of claims that the node serves in parallel.
const WORKERS: u32 = 8;

const SIZE: Bytes = Bytes::new(64 << 10);

pub(crate) const BLOCK: Mode = Mode::Block { allocation: Allocation::Thick };

pub(crate) fn populate(mount: &Path, volumes: u32) -> Result<(), CallError> {
    let store = open(mount)?;
    at_once(0..volumes, |number| claim(&store, &id("present", number)?, filesystem()))
}

pub(crate) fn open_volume(mount: &Path) -> Result<(), CallError> {
    let (store, id) = with_volume(mount, filesystem())?;
    drop(measured(|| store.open_volume(&id))??);
    end(&store, &id)
}

pub(crate) fn stats(mount: &Path) -> Result<(), CallError> {
    let (store, id) = with_volume(mount, filesystem())?;
    measured(|| store.open_volume(&id)?.quota().map_err(CallError::from))??;
    end(&store, &id)
}

pub(crate) fn retire(mount: &Path) -> Result<(), CallError> {
    let (store, id) = with_volume(mount, filesystem())?;
    measured(|| store.retire(&id))??;
    end(&store, &id)
}

pub(crate) fn discard(mount: &Path) -> Result<(), CallError> {
    let (store, id) = with_volume(mount, filesystem())?;
    store.retire(&id)?;
    sync(mount)?;
    Ok(measured(|| store.discard(&id).map(drop))??)
}

/// Serves `claims` claims at once on an empty disk, in parallel like the node.
pub(crate) fn burst(run: u32, claims: u32) -> Result<BurstSample, CallError> {
    let disk = XfsDisk::with_project_quota();
    let store = open(disk.path())?;
    sync(disk.path())?;
    let (start, before) = (std::time::Instant::now(), block_stats(disk.device()));
    at_once(0..claims, |number| claim(&store, &id("burst", number)?, filesystem()))?;
    let flushes = block_stats(disk.device()).since(before).flushes;
    let milliseconds = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    let times = BTreeMap::from([(Until::LastPv, milliseconds)]);
    let (way, binder, requests, cpu, without_quota) =
        (Way::Disk, Binder::Stopped, BTreeMap::new(), BTreeMap::new(), None);
    Ok(BurstSample { way, binder, run, claims, requests, flushes, times, cpu, without_quota })
}

pub(crate) fn new_claim(mount: &Path, mode: Mode) -> Result<(), CallError> {
    let (store, id) = (open(mount)?, id("measured", 0)?);
    warm(&store)?;
    sync(mount)?;
    measured(|| claim(&store, &id, mode))??;
    end(&store, &id)
}

pub(crate) fn expand(mount: &Path, mode: Mode) -> Result<(), CallError> {
    let (store, id) = with_volume(mount, mode)?;
    measured(|| store.expand(&id, SIZE.saturating_add(SIZE)))??;
    end(&store, &id)
}

/// Calls everything that the provisioner calls on the disk for a claim.
fn claim(store: &Store, id: &VolumeId, mode: Mode) -> Result<(), CallError> {
    store.provision(id, &request(id, mode, SIZE))?;
    store.announce(id)?;
    Ok(())
}

pub(crate) fn request(id: &VolumeId, mode: Mode, size: Bytes) -> Request {
    let claim = Claim { uid: id.to_string(), namespace: "default".to_owned(), name: "data".to_owned() };
    Request { claim, owner: Owner::Provisioner, class: "local".to_owned(), mode, size, source: None }
}

/// Loads a batch of IDs into the allocator's memory. Of 32 claims, 31 find a loaded batch.
fn warm(store: &Store) -> Result<(), CallError> {
    let id = id("warm", 0)?;
    claim(store, &id, filesystem())?;
    end(store, &id)
}

pub(crate) fn with_volume(mount: &Path, mode: Mode) -> Result<(Store, VolumeId), CallError> {
    let (store, id) = (open(mount)?, id("measured", 0)?);
    claim(&store, &id, mode)?;
    drop(store.open_volume(&id)?);
    sync(mount)?;
    Ok((store, id))
}

/// Writes earlier changes to the disk, so that this does not happen in the region.
pub(crate) fn sync(mount: &Path) -> Result<(), CallError> {
    Ok(fsquota::sync(&Dir::open(mount)?)?)
}

pub(crate) fn remove(mount: &Path, id: &VolumeId) -> Result<(), CallError> {
    end(&open(mount)?, id)
}

pub(crate) fn end(store: &Store, id: &VolumeId) -> Result<(), CallError> {
    store.retire(id)?;
    store.discard(id)?;
    Ok(())
}

fn open(mount: &Path) -> Result<Store, CallError> {
    open_with(mount, Settings::default())
}

pub(crate) fn open_with(mount: &Path, settings: Settings) -> Result<Store, CallError> {
    let volumes = Dir::open(mount)?.ensure_dir(&Name::try_from(DIRECTORY)?, FileMode::S_IRWXU)?.into_inner();
    Ok(Store::open(&volumes, settings)?)
}

pub(crate) fn filesystem() -> Mode {
    Mode::Filesystem { inodes: Inodes::new(64) }
}

pub(crate) fn id(kind: &str, number: u32) -> Result<VolumeId, CallError> {
    Ok(format!("pvc-{kind}-{number}").parse()?)
}

fn at_once(numbers: std::ops::Range<u32>, work: impl Fn(u32) -> Result<(), CallError> + Sync) -> Result<(), CallError> {
    let work = &work;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let mine = numbers.clone().skip(usize_of(worker)).step_by(usize_of(WORKERS));
                scope.spawn(move || mine.into_iter().try_for_each(work))
            })
            .collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn usize_of(worker: u32) -> usize {
    worker.try_into().unwrap_or_default()
}
