//! Snapshots and clones of an image with many extents, and a copy of the file, with counts and times.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use bench::{Subject, TimeSample, Timed, print};
use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use tempfile::{TempDir, tempfile_in};
use units::Bytes;
use volume::{
    Access, Allocation, Error, Mode, Request, Settings, SnapshotRequest, State, Store, VolumeId, Volumes as _,
};

use crate::call::{CallError, arrange};
use crate::region::measured;
use crate::volumes::{end, id, open_with, request, sync};

/// Sizes of an image and of its extents, in bytes. A hole of the same size follows each extent.
#[derive(Clone, Copy)]
pub(crate) struct Image {
    size: Bytes,
    extent: usize,
}

pub(crate) const SMALL: Image = Image { size: Bytes::new(16 << 20), extent: BLOCK.len() };
/// Image and extents are 8 times as large as in [`SMALL`].
pub(crate) const LARGE: Image = Image { size: Bytes::new(128 << 20), extent: 8 * BLOCK.len() };

pub(crate) const THIN: Mode = Mode::Block { allocation: Allocation::Thin };

const BLOCK: [u8; 4096] = [7; 4096];

pub(crate) fn take(mount: &Path, image: Image, extents: u32) -> Result<(), CallError> {
    let (store, source) = with_source(mount, image, extents)?;
    let (snapshot, want) = snapshot_of(&source)?;
    drop(measured(|| store.take_snapshot(&snapshot, &want))??);
    store.remove_snapshot(&snapshot)?;
    end(&store, &source)
}

pub(crate) fn clone(mount: &Path, image: Image, extents: u32) -> Result<(), CallError> {
    let (store, source) = with_source(mount, image, extents)?;
    let (clone, want) = clone_of(&source, image)?;
    begun(measured(|| store.provision(&clone, &want))?)?;
    store.undo(&clone)?;
    end(&store, &source)
}

pub(crate) fn finish(mount: &Path, extents: u32) -> Result<(), CallError> {
    let (store, source) = with_source(mount, SMALL, extents)?;
    let (snapshot, want) = snapshot_of(&source)?;
    store.take_snapshot(&snapshot, &want)?;
    drop(store);
    sync(mount)?;
    // A pass without a time limit, because the progress of a one-second pass depends on the machine.
    let store = open_with(mount, Settings { pass: Duration::from_hours(1), ..Settings::default() })?;
    measured(|| -> Result<(), Error> {
        while store.take_snapshot(&snapshot, &want)?.snapshots.state != State::Announced {}
        Ok(())
    })??;
    store.remove_snapshot(&snapshot)?;
    end(&store, &source)
}

/// Times all operations in a directory of this machine, and prints the samples.
pub(crate) fn time_in(directory: &Path, runs: u32) -> Result<(), CallError> {
    let scratch = TempDir::with_prefix_in("bench-", directory).map_err(arrange("create a directory in", directory))?;
    for run in 1..=runs {
        for extents in Subject::Snapshot.populations() {
            time(scratch.path(), extents, run)?.iter().try_for_each(print)?;
        }
    }
    Ok(())
}

/// Times all operations on images with this number of extents.
pub(crate) fn time(mount: &Path, extents: u32, run: u32) -> Result<Vec<TimeSample>, CallError> {
    let (store, source) = with_source(mount, SMALL, extents)?;
    let image = File::from(store.open_volume(&source)?.image(Access::ReadOnly)?);
    let fragmented = fragmented(mount, extents)?;
    let mut samples = Vec::new();
    let path = mount.join("copy");
    let (snapshot, want) = snapshot_of(&source)?;
    let (clone, request) = clone_of(&source, SMALL)?;
    for timed in Timed::ALL {
        let to = File::create_new(&path).map_err(arrange("create", &path))?;
        // Write earlier changes to the disk first.
        sync(mount)?;
        let start = Instant::now();
        match timed {
            Timed::CloneImage => reflink::clone_file(&image, &to)?,
            Timed::CloneFragmented => reflink::clone_file(&fragmented, &to)?,
            Timed::TakeSnapshot => drop(store.take_snapshot(&snapshot, &want)?),
            Timed::CloneVolume => begun(store.provision(&clone, &request))?,
            Timed::CopyImage => copy_extents(&image, &to).map_err(arrange("copy into", &path))?,
        }
        let microseconds = u64::try_from(start.elapsed().as_micros())?;
        samples.push(TimeSample { timed, extents, run, microseconds });
        store.remove_snapshot(&snapshot)?;
        store.undo(&clone)?;
        // XFS frees the extents of a deleted file in the background, during the next call.
        to.set_len(0).map_err(arrange("empty", &path))?;
        fs::remove_file(&path).map_err(arrange("remove", &path))?;
    }
    drop(image);
    end(&store, &source)?;
    Ok(samples)
}

/// Creates a file without holes. Every second block was overwritten while another file shared it, so that each block is
/// an extent.
fn fragmented(mount: &Path, extents: u32) -> Result<File, CallError> {
    let blocks = usize::try_from(extents)?;
    let create = || -> std::io::Result<File> {
        let (file, other) = (tempfile_in(mount)?, tempfile_in(mount)?);
        file.write_all_at(&BLOCK.repeat(blocks), 0)?;
        file.sync_all()?;
        reflink::clone_file(&file, &other)?;
        for start in (0..).step_by(2 * BLOCK.len()).take(blocks / 2) {
            file.write_all_at(&BLOCK, start)?;
        }
        file.sync_all()?;
        other.set_len(0)?;
        Ok(file)
    };
    create().map_err(arrange("create a file in", mount))
}

pub(crate) fn copy(mount: &Path, extents: u32) -> Result<(), CallError> {
    let (store, source) = with_source(mount, SMALL, extents)?;
    let image = File::from(store.open_volume(&source)?.image(Access::ReadOnly)?);
    let path = mount.join("copy");
    let to = File::create_new(&path).map_err(arrange("create", &path))?;
    measured(|| copy_extents(&image, &to))?.map_err(arrange("copy into", &path))?;
    fs::remove_file(&path).map_err(arrange("remove", &path))?;
    drop(image);
    end(&store, &source)
}

fn copy_extents(from: &File, to: &File) -> std::io::Result<()> {
    let (mut at, mut block) = (0, BLOCK);
    loop {
        let start = match lseek(from, at, Whence::SeekData) {
            Ok(start) => start,
            Err(Errno::ENXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        at = lseek(from, start, Whence::SeekHole)?;
        for position in (start.cast_unsigned()..at.cast_unsigned()).step_by(block.len()) {
            from.read_exact_at(&mut block, position)?;
            to.write_all_at(&block, position)?;
        }
    }
    to.set_len(SMALL.size.get())?;
    to.sync_all()
}

/// Creates a thin volume on a store that copies one piece in each call.
fn with_source(mount: &Path, image: Image, extents: u32) -> Result<(Store, VolumeId), CallError> {
    let Image { size, extent } = image;
    let data = vec![BLOCK[0]; extent];
    let (store, source) =
        (open_with(mount, Settings { pass: Duration::ZERO, ..Settings::default() })?, id("source", 0)?);
    store.provision(&source, &request(&source, THIN, size))?;
    store.announce(&source)?;
    let image = File::from(store.open_volume(&source)?.image(Access::ReadWrite)?);
    for start in (0..).step_by(2 * extent).take(usize::try_from(extents)?) {
        image.write_all_at(&data, start).map_err(arrange("write the image of", mount))?;
    }
    image.sync_all().map_err(arrange("sync the image of", mount))?;
    sync(mount)?;
    Ok((store, source))
}

fn clone_of(source: &VolumeId, image: Image) -> Result<(VolumeId, Request), CallError> {
    let clone = id("clone", 0)?;
    let want = Request { source: Some(source.clone()), ..request(&clone, THIN, image.size) };
    Ok((clone, want))
}

/// Accepts an unfinished clone: one pass is enough.
fn begun<T>(provisioned: Result<T, Error>) -> Result<(), CallError> {
    match provisioned {
        Ok(_) | Err(Error::Copying { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn snapshot_of(source: &VolumeId) -> Result<(VolumeId, SnapshotRequest), CallError> {
    let (snapshot, source) = (id("snapshot", 0)?, source.clone());
    let Request { claim, class, .. } = request(&snapshot, THIN, Bytes::ZERO);
    let (owner, max_pause) = (volume::Owner::Provisioner, volume::DEFAULT_PAUSE);
    let sharing = volume::Sharing::Temporary;
    Ok((snapshot, SnapshotRequest { claim, owner, class, source, max_pause, sharing }))
}
