//! Measures syncs of files on an XFS. Meanwhile, a process of another cgroup writes to a loop device whose backing file
//! is on the same XFS, or a snapshot or a clone of a volume on this XFS is copied.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bench::{NeighbourSample, Tenant, print};
use ktest_support::XfsDisk;
use loopdev::{Control, Detach};
use nix::sys::stat::{major, minor};
use units::Bytes;
use volume::{Access, Error, Request, Settings, Store, VolumeId, Volumes as _};

use crate::call::{CallError, arrange};
use crate::cgroup::{self, Cgroup, Place};
use crate::loops::CONFIG;
use crate::snapshots::{THIN, snapshot_of};
use crate::volumes::{id, open_with, request, sync};

const BLOCK: [u8; 4096] = [0x5a; 4096];
const MIB: usize = 1 << 20;
/// Size of the tenant's image.
const SIZE: u64 = 64 << 20;
/// Size of the volume that is copied. One copy takes longer than a measurement.
const COPIED: Bytes = Bytes::new(192 << 20);
/// Pause between two passes of a copy, as in the provisioner.
const NEXT_PASS: Duration = Duration::from_millis(10);
/// Write limit in bytes per second.
const LIMIT: u64 = 2 << 20;

/// Measures `runs` times for the duration `limit` each, and prints the samples.
pub(crate) fn measure(runs: u32, limit: Duration) -> Result<(), CallError> {
    let xfs = XfsDisk::with_project_quota();
    let path = xfs.path().join("image");
    let image =
        File::options().read(true).write(true).create_new(true).open(&path).map_err(arrange("create", &path))?;
    fill(&image, SIZE).map_err(arrange("fill", &path))?;
    let device = Control::open()?.attach(&image, &CONFIG)?;
    let cgroup = Cgroup::make()?;
    let store = open_with(xfs.path(), Settings::default())?;
    let source = source(&store)?;
    let number = fs::metadata(device.path())?.rdev();
    let (of_device, of_disk) = (counts(number), counts(fs::metadata(xfs.device())?.rdev()));
    for run in 1..=runs {
        for tenant in Tenant::ALL {
            let wbps = if tenant == Tenant::Limited { LIMIT.to_string() } else { "max".to_owned() };
            cgroup.limit(&format!("{}:{} wbps={wbps}", major(number), minor(number)))?;
            let counts = if tenant.is_copy() { &of_disk } else { &of_device };
            let before = written(counts)?;
            let start = || cgroup.start("tenant", &device.path(), || written(counts).is_ok_and(|now| now != before));
            let writer = tenant.writes().then(start).transpose()?;
            if tenant.is_copy() {
                // The first pass clones the image and copies the first blocks.
                pass(&store, &source, tenant)?;
            }
            let (begun, before) = (Instant::now(), written(counts)?);
            let measure = || neighbour(xfs.path(), limit);
            let times = if tenant.is_copy() { beside(|| pass(&store, &source, tenant), measure)? } else { measure() };
            let mut times = times.map_err(arrange("create and sync files in", xfs.path()))?;
            let (elapsed_us, written) = (u64::try_from(begun.elapsed().as_micros())?, written(counts)? - before);
            drop(writer);
            end(&store)?;
            sync(xfs.path())?;
            // Flush the device without a limit, so that the next measurement begins without dirty pages.
            cgroup.limit(&format!("{}:{} wbps=max", major(number), minor(number)))?;
            File::open(device.path())?.sync_all()?;
            times.sort_unstable();
            let at = |hundredth| times.get(times.len() * hundredth / 100).copied().unwrap_or_default();
            let (median_ns, high_ns, operations) = (at(50), at(99), u64::try_from(times.len())?);
            print(&NeighbourSample { tenant, run, operations, elapsed_us, median_ns, high_ns, written })?;
        }
    }
    if device.detach(&image)? != Detach::Detached {
        return Err("the loop device is in use by another process".into());
    }
    Ok(())
}

/// The tenant's process: enters the cgroup, writes to the device and syncs it after each MiB.
pub(crate) fn write(Place { cgroup, file: device }: &Place) -> Result<(), CallError> {
    cgroup::enter(cgroup)?;
    let file = OpenOptions::new().write(true).open(device).map_err(arrange("open", device))?;
    let piece = vec![7; MIB];
    for number in 0.. {
        let place = number * piece.len() as u64 % SIZE;
        file.write_all_at(&piece, place).and_then(|()| file.sync_data()).map_err(arrange("write", device))?;
    }
    Ok(())
}

/// Nanoseconds of each operation.
fn neighbour(directory: &Path, limit: Duration) -> io::Result<Vec<u64>> {
    let (path, begun, mut times) = (directory.join("neighbour"), Instant::now(), Vec::new());
    while begun.elapsed() < limit {
        let start = Instant::now();
        let mut file = File::create_new(&path)?;
        file.write_all(&BLOCK)?;
        file.sync_all()?;
        times.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        fs::remove_file(&path)?;
    }
    Ok(times)
}

/// Creates the volume that is copied.
fn source(store: &Store) -> Result<VolumeId, CallError> {
    let source = id("source", 0)?;
    store.provision(&source, &request(&source, THIN, COPIED))?;
    store.announce(&source)?;
    fill(&File::from(store.open_volume(&source)?.image(Access::ReadWrite)?), COPIED.get())?;
    Ok(source)
}

/// Runs one pass of the copy. The pass after a complete copy begins another copy.
fn pass(store: &Store, source: &VolumeId, tenant: Tenant) -> Result<(), CallError> {
    if tenant == Tenant::SnapshotCopy {
        let (snapshot, want) = snapshot_of(source)?;
        if store.take_snapshot(&snapshot, &want)?.copying.is_none() {
            store.remove_snapshot(&snapshot)?;
        }
        return Ok(());
    }
    let clone = id("clone", 0)?;
    let want = Request { source: Some(source.clone()), ..request(&clone, THIN, COPIED) };
    match store.provision(&clone, &want) {
        Ok(_) => {
            store.undo(&clone)?;
        }
        Err(Error::Copying { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Removes unfinished copies.
fn end(store: &Store) -> Result<(), CallError> {
    store.remove_snapshot(&id("snapshot", 0)?)?;
    store.undo(&id("clone", 0)?)?;
    Ok(())
}

/// Repeats passes during a measurement.
fn beside<T>(pass: impl Fn() -> Result<(), CallError> + Sync, measure: impl FnOnce() -> T) -> Result<T, CallError> {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| -> Result<T, CallError> {
        let copy = scope.spawn(|| -> Result<(), CallError> {
            while !ended.load(Ordering::Relaxed) {
                pass()?;
                thread::sleep(NEXT_PASS);
            }
            Ok(())
        });
        let measured = measure();
        ended.store(true, Ordering::Relaxed);
        copy.join().map_err(|_| "the copy panicked")??;
        Ok(measured)
    })
}

/// Writes all blocks, so that no write of the tenant allocates and a copy has blocks to copy.
fn fill(image: &File, size: u64) -> io::Result<()> {
    let piece = vec![1; MIB];
    for place in (0..size).step_by(piece.len()) {
        image.write_all_at(&piece, place)?;
    }
    image.sync_all()
}

fn counts(device: u64) -> PathBuf {
    format!("/sys/dev/block/{}:{}/stat", major(device), minor(device)).into()
}

/// Bytes written to a device (Documentation/block/stat.rst: the seventh number, in sectors of 512 bytes).
fn written(counts: &Path) -> Result<u64, CallError> {
    let text = fs::read_to_string(counts).map_err(arrange("read", counts))?;
    let sectors: u64 = text.split_whitespace().nth(6).ok_or("no number of sectors")?.parse()?;
    Ok(sectors * 512)
}
