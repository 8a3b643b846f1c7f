//! The provisioner's comparison at its start, which applies to the disk what the cluster wants.

use std::collections::{BTreeMap, BTreeSet};

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use units::Bytes;
use volume::{Access, State, Store, Strays, VolumeId, Volumes as _};

use crate::life::{Body, Origin};
use crate::model::{Expected, Rollback, Wants};
use crate::node::{
    called, clone_request, finish_clone, finish_group, finish_snapshot, id, request, roll_back, snapshot_request,
};
use crate::operation::{Number, Shape};
use crate::violation::Violation;

/// Volume numbers that no history has.
const NEXT_TENANTS: [Number; 2] = [Number(60_001), Number(60_002)];

/// Compares the disk with the cluster once, and applies the differences to the disk.
pub(crate) fn reconcile(store: &Store, expected: &BTreeMap<Number, Expected>) -> Result<(), Violation> {
    let records = store.records().map_err(called("list the records", "all volumes"))?;
    if let Some((id, source)) = records.unreadable.into_iter().next() {
        return Err(Violation::Record { name: id.to_string(), source });
    }
    let strays = store.strays().map_err(called("look for strays", "all volumes"))?;
    if strays != Strays::default() {
        return Err(Violation::Strays(format!("{strays:?}")));
    }
    let retired = store.retired().map_err(called("list the trash", "all volumes"))?;
    let retired: BTreeSet<VolumeId> = retired.into_iter().collect();
    let record = |number| records.readable.get(&id(number));
    let state = |number| record(number).map(|record| record.state);
    let announced = expected.iter().filter(|(_, expected)| matches!(expected.wants, Wants::Bound(_) | Wants::Released));
    for (&number, _) in announced.filter(|(number, _)| state(**number) == Some(State::Staged)) {
        store.announce(&id(number)).map_err(called("announce", number))?;
    }
    // A copy that is not on the disk begins again, before its source grows or is removed.
    for (&number, Expected { wants, body, rollback, .. }) in expected {
        if let Some(Rollback { kept, volume, source, .. }) = rollback {
            let has_ended = record(number).is_some_and(|record| record.rollback().is_none());
            if *kept == number && !has_ended {
                roll_back(store, *kept, *volume, *source)?;
            }
            continue;
        }
        let Some((Body { shape, asked, is_thin, .. }, Origin { source, .. })) =
            body.as_ref().and_then(|body| Some((body, body.origin?)))
        else {
            continue;
        };
        match wants {
            Wants::Claimed => finish_clone(store, number, &clone_request(number, *shape, *asked, source))?,
            Wants::Taken => match other_member(number, expected) {
                Some(other) => finish_group(store, [(number, source), other])?,
                None => finish_snapshot(store, number, &snapshot_request(number, source, *is_thin))?,
            },
            Wants::Bound(_) | Wants::Released | Wants::Kept | Wants::Nothing => {}
        }
    }
    for (&number, Expected { wants, body, .. }) in expected {
        let id = id(number);
        match (wants, body) {
            (Wants::Claimed, Some(body)) => {
                if body.origin.is_none() {
                    let request = request(number, body.shape, body.asked);
                    store.provision(&id, &request).map_err(called("provision", number))?;
                }
                store.announce(&id).map_err(called("announce", number))?;
            }
            (Wants::Bound(size), Some(_)) => {
                if retired.contains(&id) {
                    store.restore(&id).map_err(called("restore", number))?;
                }
                store.expand(&id, size.bytes).map_err(called("expand", number))?;
            }
            (Wants::Released, _) => {
                store.retire(&id).map_err(called("retire", number))?;
                store.discard(&id).map_err(called("discard", number))?;
            }
            (Wants::Nothing, _) if record(number).is_some_and(|record| record.mode.is_snapshot()) => {
                store.remove_snapshot(&id).map_err(called("remove the snapshot", number))?;
            }
            (Wants::Nothing, _) if state(number) == Some(State::Staged) => {
                store.undo(&id).map_err(called("undo", number))?;
            }
            (Wants::Nothing, _) if retired.contains(&id) => {
                store.discard(&id).map_err(called("discard", number))?;
            }
            (Wants::Nothing | Wants::Claimed | Wants::Bound(_) | Wants::Kept | Wants::Taken, _) => {}
        }
    }
    Ok(())
}

/// The other member of a group, if it was not removed, and its source.
fn other_member(number: Number, expected: &BTreeMap<Number, Expected>) -> Option<(Number, Number)> {
    let other = expected.get(&number)?.body.as_ref()?.together?;
    let Expected { wants: Wants::Taken, body: Some(body), .. } = expected.get(&other)? else { return None };
    Some((other, body.origin?.source))
}

/// Allocates all free space to new claims, whose volumes must be empty.
pub(crate) fn next_tenants(store: &Store) -> Result<(), Violation> {
    let [directory, image] = NEXT_TENANTS;
    store
        .provision(&id(directory), &request(directory, Shape::Filesystem, Bytes::MIB))
        .map_err(called("provision", directory))?;
    store.announce(&id(directory)).map_err(called("announce", directory))?;
    let opened = store.open_volume(&id(directory)).map_err(called("open", directory))?;
    if !opened.dir().is_empty().map_err(called("list", directory))? {
        return Err(Violation::NotEmpty { volume: directory });
    }

    let space = store.space().map_err(called("ask for the space of", "the disk"))?;
    store
        .provision(&id(image), &request(image, Shape::Thick, space.largest_block()))
        .map_err(called("provision", image))?;
    store.announce(&id(image)).map_err(called("announce", image))?;
    let opened = store.open_volume(&id(image)).map_err(called("open", image))?;
    let file = opened.image(Access::ReadOnly).map_err(called("open the image", image))?;
    // Unwritten extents read as zeros. SEEK_DATA finds them faster than a read of hundreds of MiB.
    match lseek(&file, 0, Whence::SeekData) {
        Err(Errno::ENXIO) => Ok(()),
        Ok(_) | Err(_) => Err(Violation::NotEmpty { volume: image }),
    }
}
