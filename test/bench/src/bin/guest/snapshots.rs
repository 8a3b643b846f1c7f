//! Snapshots and clones of an image with so many extents, and a copy of the file.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use units::Bytes;
use volume::{
    Access, Allocation, Error, Mode, Request, Settings, SnapshotRequest, State, Store, VolumeId, Volumes as _,
};

use crate::call::{CallError, arrange};
use crate::region::measured;
use crate::volumes::{end, id, open_with, request, sync};

/// Of the image, whatever its number of extents.
const SIZE: Bytes = Bytes::new(16 << 20);
pub(crate) const THIN: Mode = Mode::Block { allocation: Allocation::Thin };

/// Each extent is one block, with a hole behind it.
const BLOCK: [u8; 4096] = [7; 4096];
const STEP: u64 = 2 * BLOCK.len() as u64;

pub(crate) fn take(mount: &Path, extents: u32) -> Result<(), CallError> {
    let (store, source) = with_source(mount, extents)?;
    let (snapshot, want) = snapshot_of(&source)?;
    drop(measured(|| store.take_snapshot(&snapshot, &want))??);
    store.remove_snapshot(&snapshot)?;
    end(&store, &source)
}

pub(crate) fn clone(mount: &Path, extents: u32) -> Result<(), CallError> {
    let (store, source) = with_source(mount, extents)?;
    let clone = id("clone", 0)?;
    let want = Request { source: Some(source.clone()), ..request(&clone, THIN, SIZE) };
    match measured(|| store.provision(&clone, &want))? {
        Ok(_) | Err(Error::Copying { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    store.undo(&clone)?;
    end(&store, &source)
}

pub(crate) fn finish(mount: &Path, extents: u32) -> Result<(), CallError> {
    let (store, source) = with_source(mount, extents)?;
    let (snapshot, want) = snapshot_of(&source)?;
    store.take_snapshot(&snapshot, &want)?;
    drop(store);
    sync(mount)?;
    // How much one of a second copies depends on the machine.
    let store = open_with(mount, Settings { pass: Duration::from_hours(1), ..Settings::default() })?;
    measured(|| -> Result<(), Error> {
        while store.take_snapshot(&snapshot, &want)?.snapshots.state == State::Staged {}
        Ok(())
    })??;
    store.remove_snapshot(&snapshot)?;
    end(&store, &source)
}

pub(crate) fn copy(mount: &Path, extents: u32) -> Result<(), CallError> {
    let (store, source) = with_source(mount, extents)?;
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
    to.set_len(SIZE.get())?;
    to.sync_all()
}

/// A thin volume on a store that copies one piece in each call.
fn with_source(mount: &Path, extents: u32) -> Result<(Store, VolumeId), CallError> {
    let (store, source) =
        (open_with(mount, Settings { pass: Duration::ZERO, ..Settings::default() })?, id("source", 0)?);
    store.provision(&source, &request(&source, THIN, SIZE))?;
    store.announce(&source)?;
    let image = File::from(store.open_volume(&source)?.image(Access::ReadWrite)?);
    for extent in 0..u64::from(extents) {
        image.write_all_at(&BLOCK, extent * STEP).map_err(arrange("write the image of", mount))?;
    }
    image.sync_all().map_err(arrange("sync the image of", mount))?;
    sync(mount)?;
    Ok((store, source))
}

pub(crate) fn snapshot_of(source: &VolumeId) -> Result<(VolumeId, SnapshotRequest), CallError> {
    let (snapshot, source) = (id("snapshot", 0)?, source.clone());
    let Request { claim, class, .. } = request(&snapshot, THIN, SIZE);
    Ok((
        snapshot,
        SnapshotRequest { claim, owner: volume::Owner::Provisioner, class, source, max_pause: volume::DEFAULT_PAUSE },
    ))
}
