//! Compares what is on the disk with what can be there.

use std::collections::BTreeMap;

use fsquota::{Limits, ProjectId};
use units::Bytes;
use volume::{Mode, Store, Volumes as _};

use crate::facts::{Directory, Facts, Found, Image};
use crate::life::{Body, IMAGE_INODES, Origin, Size};
use crate::model::{Expected, Place};
use crate::node::called;
use crate::operation::{Number, Shape};
use crate::violation::Violation;

/// Everything that must hold at each moment.
pub(crate) fn facts(facts: &Facts, expected: &BTreeMap<Number, Expected>) -> Result<(), Violation> {
    let expected: BTreeMap<String, (Number, &Expected)> =
        expected.iter().map(|(number, expected)| (number.to_string(), (*number, expected))).collect();
    let mut projects: BTreeMap<ProjectId, &str> = BTreeMap::new();
    for (name, found) in &facts.volumes {
        let Found { records, directories } = found;
        if let ([], Some((place, _))) = (records.as_slice(), directories.first()) {
            return Err(Violation::NoRecord { place: *place, name: name.clone() });
        }
        if records.len() > 1 || directories.len() > 1 {
            let registers = records.iter().map(|(register, _)| *register).collect();
            let places = directories.iter().map(|(place, _)| *place).collect();
            return Err(Violation::Twice { name: name.clone(), registers, places });
        }
        if !expected.contains_key(name) {
            return Err(Violation::Stranger { name: name.clone() });
        }
        if let Some(record) = found.record(name)?
            && let Some(other) = projects.insert(record.project, name)
        {
            let (name, other, project) = (name.clone(), other.to_owned(), record.project);
            return Err(Violation::SameProject { name, other, project });
        }
    }
    if let Some((project, limits)) = facts.limits.iter().find(|(project, _)| !projects.contains_key(*project)) {
        return Err(Violation::Stray { project: *project, limits: *limits });
    }
    let is_sharing = expected.values().any(|(_, expected)| expected.sharing.is_some());
    let shared = |found: &Found| found.directories.iter().any(|(_, directory)| directory.is_shared);
    if let Some((name, _)) = facts.volumes.iter().find(|(_, found)| !is_sharing && shared(found)) {
        return Err(Violation::Shared { name: name.clone() });
    }
    let nothing = Found::default();
    expected.iter().try_for_each(|(name, (number, of_volume))| {
        let copies = expected.iter().filter_map(|(copy, (_, expected))| Some((copy, expected.sharing?)));
        let copies = copies.filter(|(_, origin)| origin.source == *number);
        // The limit is raised before blocks are shared, and lowered when none is.
        let headrooms = copies.fold(vec![Bytes::ZERO], |sums, (copy, Origin { headroom, .. })| {
            let raised = sums.iter().map(|sum| sum.saturating_add(headroom));
            let lowered: &[Bytes] = if facts.volumes.get(copy).is_some_and(shared) { &[] } else { &sums };
            raised.chain(lowered.iter().copied()).collect()
        });
        one(*number, of_volume, facts.volumes.get(name).unwrap_or(&nothing), facts, name, &headrooms)
    })
}

/// By one of `headrooms`, the limit of the volume is higher than that of its size.
fn one(
    volume: Number,
    expected: &Expected,
    found: &Found,
    facts: &Facts,
    name: &str,
    headrooms: &[Bytes],
) -> Result<(), Violation> {
    let record = found.record(name)?;
    let directory = found.directories.first();
    let spot = found.records.first().map(|(register, _)| (*register, directory.map(|(place, _)| *place)));
    if !expected.spots.contains(&spot) {
        return Err(Violation::Where { volume, found: spot, allowed: expected.spots.clone() });
    }
    let (Some(record), Some(body)) = (record, &expected.body) else { return Ok(()) };
    let size = |what, found: Option<Size>| {
        let allowed = expected.sizes.clone();
        let right = found.is_some_and(|found| allowed.contains(&found));
        if right { Ok(()) } else { Err(Violation::Size { volume, what, found, allowed }) }
    };
    let inodes = match record.mode {
        Mode::Filesystem { inodes } | Mode::SnapshotTree { inodes, .. } => inodes,
        Mode::Block { .. } | Mode::Snapshot { .. } => IMAGE_INODES,
    };
    size("record", Some(Size { bytes: record.size, inodes }))?;
    let Some((Place::Live, Directory { project, image, .. })) = directory else { return Ok(()) };
    if *project != Some(record.project) {
        return Err(Violation::Project { volume, found: *project, recorded: record.project });
    }
    let mut needed = record.size;
    if body.shape != Shape::Filesystem {
        size("image", image.as_ref().map(|image| Size { bytes: image.length, inodes: IMAGE_INODES }))?;
        needed = image.as_ref().map_or(needed, |image| needed.max(image.length));
    }
    // They are raised before the image and the record, and the log has them in this order.
    let sizes = expected.sizes.iter().filter(|size| size.bytes >= needed).map(|size| body.limits(*size));
    let raised = |limits: Limits| {
        headrooms
            .iter()
            .map(move |headroom| Limits { bytes: limits.bytes.map(|bytes| bytes.saturating_add(*headroom)), ..limits })
    };
    let allowed: Vec<Limits> = sizes.flat_map(raised).collect();
    let found = facts.limits.get(&record.project).copied().unwrap_or_default();
    if !allowed.contains(&found) {
        return Err(Violation::Limits { volume, found, allowed });
    }
    match image {
        Some(Image { allocated, .. }) if is_thick(body) && *allocated < record.size => {
            Err(Violation::NotThick { volume, allocated: *allocated, size: record.size })
        }
        Some(_) | None => Ok(()),
    }
}

/// A snapshot has the holes of its source.
fn is_thick(body: &Body) -> bool {
    body.shape == Shape::Thick && !body.is_snapshot
}

/// The ledger reserves what the volumes have, and no more.
pub(crate) fn ledger(store: &Store, expected: &BTreeMap<Number, Expected>) -> Result<(), Violation> {
    let found = store.space().map_err(called("ask for the space of", "the disk"))?.reserved;
    let wanted = expected.values().map(Expected::reserved).sum();
    if found == wanted { Ok(()) } else { Err(Violation::Ledger { found, wanted }) }
}

#[cfg(test)]
mod tests {
    use units::Inodes;
    use volume::{Record, State};

    use super::*;
    use crate::model::{Register, Wants};
    use crate::node::request;

    const SIZE: Bytes = Bytes::MIB;

    fn project(number: u32) -> ProjectId {
        ProjectId::new(number).expect("an ID")
    }

    fn found(number: u16, shape: Shape, project: ProjectId) -> (String, Found) {
        let volume::Request { claim, owner, class, mode, size, source: _ } = request(Number(number), shape, SIZE);
        let record = Record {
            claim,
            owner,
            class,
            mode,
            size,
            project,
            cloning: None,
            io: volume::IoLimits::NONE,
            state: State::Announced,
        };
        let image = (shape != Shape::Filesystem).then_some(Image { length: SIZE, allocated: SIZE });
        let directory = Directory { path: "live".into(), project: Some(project), image, is_shared: false };
        let records = vec![(Register::Records, record.to_bytes())];
        (Number(number).to_string(), Found { records, directories: vec![(Place::Live, directory)] })
    }

    /// Two volumes as they should be: a directory and a thick image.
    fn well() -> (Facts, BTreeMap<Number, Expected>) {
        let shapes = [(1, Shape::Filesystem), (2, Shape::Thick)];
        let files = Limits { bytes: Some(SIZE), inodes: Some(Inodes::new(256)) };
        // 256 blocks need 3 for their map, and 640 are reserved for writes in flight.
        let image = Limits { bytes: Some(Bytes::new((256 + 3 + 640) << 12)), inodes: Some(Inodes::new(2)) };
        let facts = Facts {
            volumes: shapes.map(|(number, shape)| found(number, shape, project(number.into()))).into(),
            limits: [(project(1), files), (project(2), image)].into(),
            rest: vec![],
        };
        let expected = shapes.map(|(number, shape)| {
            let size = Size::new(shape, SIZE);
            let body = Body { opened: true, ..Body::new(shape, SIZE) };
            let spots = [Some((Register::Records, Some(Place::Live)))].into();
            let wants = Wants::Bound(size);
            (
                Number(number),
                Expected { body: Some(body), spots, sizes: [size].into(), sharing: None, fading: false, wants },
            )
        });
        (facts, expected.into())
    }

    fn broken(spoil: impl FnOnce(&mut Facts)) -> Violation {
        let (mut spoilt, expected) = well();
        spoil(&mut spoilt);
        facts(&spoilt, &expected).expect_err("it is not noticed")
    }

    fn of<'a>(facts: &'a mut Facts, name: &str) -> &'a mut Found {
        facts.volumes.get_mut(name).expect("it is there")
    }

    #[test]
    fn volumes_as_they_should_be_are_accepted() {
        let (good, expected) = well();
        facts(&good, &expected).unwrap();
    }

    #[test]
    fn a_directory_without_a_record_is_noticed() {
        let violation = broken(|facts| of(facts, "pvc-1").records.clear());
        assert!(matches!(violation, Violation::NoRecord { place: Place::Live, .. }), "{violation}");
    }

    #[test]
    fn two_records_or_a_lost_volume_are_noticed() {
        let violation = broken(|facts| {
            let again = of(facts, "pvc-1").records[0].1.clone();
            of(facts, "pvc-1").records.push((Register::Pending, again));
        });
        assert!(matches!(violation, Violation::Twice { .. }), "{violation}");
        let violation = broken(|facts| {
            facts.volumes.remove("pvc-1");
            facts.limits.remove(&project(1));
        });
        assert!(matches!(violation, Violation::Where { found: None, .. }), "{violation}");
        let violation = broken(|facts| of(facts, "pvc-1").directories[0].0 = Place::Trash);
        assert!(matches!(violation, Violation::Where { .. }), "{violation}");
    }

    #[test]
    fn a_damaged_record_and_a_strange_one_are_noticed() {
        let violation = broken(|facts| of(facts, "pvc-1").records[0].1.clear());
        assert!(matches!(violation, Violation::Record { .. }), "{violation}");
        let violation = broken(|facts| facts.volumes.extend([found(3, Shape::Thin, project(3))]));
        assert!(matches!(violation, Violation::Stranger { .. }), "{violation}");
    }

    #[test]
    fn a_project_of_two_volumes_or_of_none_is_noticed() {
        let violation = broken(|facts| facts.volumes.extend([found(2, Shape::Thick, project(1))]));
        assert!(matches!(violation, Violation::SameProject { .. }), "{violation}");
        let violation = broken(|facts| facts.limits.extend([(project(9), Limits::for_size(SIZE))]));
        assert!(matches!(violation, Violation::Stray { .. }), "{violation}");
        let violation = broken(|facts| of(facts, "pvc-1").directories[0].1.project = None);
        assert!(matches!(violation, Violation::Project { found: None, .. }), "{violation}");
    }

    #[test]
    fn limits_that_are_lost_too_low_or_too_high_are_noticed() {
        for number in [1, 2] {
            let limited = |change: fn(Limits) -> Limits| {
                broken(|facts| {
                    let limits = facts.limits.get_mut(&project(number)).expect("they are there");
                    *limits = change(*limits);
                })
            };
            let changes: [fn(Limits) -> Limits; 6] = [
                |_| Limits::default(),
                |limits| Limits { inodes: None, ..limits },
                |limits| Limits { bytes: limits.bytes.map(|bytes| bytes.saturating_sub(Bytes::new(4096))), ..limits },
                |limits| Limits { bytes: limits.bytes.map(|bytes| bytes.saturating_add(Bytes::new(4096))), ..limits },
                |limits| Limits { inodes: limits.inodes.map(|inodes| inodes.saturating_sub(Inodes::new(1))), ..limits },
                |limits| Limits { inodes: limits.inodes.map(|inodes| inodes.saturating_add(Inodes::new(1))), ..limits },
            ];
            for violation in changes.map(limited) {
                assert!(matches!(violation, Violation::Limits { .. }), "{violation}");
            }
        }
        let violation = broken(|facts| facts.limits.retain(|found, _| *found != project(1)));
        assert!(matches!(violation, Violation::Limits { .. }), "{violation}");
    }

    #[test]
    fn the_limit_of_a_source_is_raised_while_a_copy_shares_blocks() {
        let (mut left, mut expected) = well();
        let origin = Origin { source: Number(2), headroom: SIZE };
        let size = Size::new(Shape::Thick, SIZE);
        let body = Body { origin: Some(origin), ..Body::new(Shape::Thick, SIZE) };
        let limits = body.limits(size);
        let clone = Expected {
            body: Some(body),
            spots: [Some((Register::Pending, Some(Place::Staging)))].into(),
            sizes: [size].into(),
            sharing: Some(origin),
            fading: false,
            wants: Wants::Claimed,
        };
        let sharing = |is_shared| {
            let (_, Found { records, mut directories }) = found(3, Shape::Thick, project(3));
            directories[0].0 = Place::Staging;
            directories[0].1.is_shared = is_shared;
            Found { records: records.into_iter().map(|(_, record)| (Register::Pending, record)).collect(), directories }
        };
        expected.insert(Number(3), clone);
        left.volumes.insert("pvc-3".into(), sharing(true));
        left.limits.insert(project(3), limits);
        let violation = facts(&left, &expected).unwrap_err();
        assert!(matches!(violation, Violation::Limits { volume: Number(2), .. }), "{violation}");
        left.volumes.insert("pvc-3".into(), sharing(false));
        facts(&left, &expected).unwrap();
        let raised = Limits { bytes: limits.bytes.map(|bytes| bytes.saturating_add(SIZE)), ..limits };
        left.limits.insert(project(2), raised);
        facts(&left, &expected).unwrap();
        left.volumes.insert("pvc-3".into(), sharing(true));
        facts(&left, &expected).unwrap();
        expected.get_mut(&Number(3)).expect("it is there").sharing = None;
        let violation = facts(&left, &expected).unwrap_err();
        assert!(matches!(violation, Violation::Shared { .. }), "{violation}");
        left.volumes.insert("pvc-3".into(), sharing(false));
        let violation = facts(&left, &expected).unwrap_err();
        assert!(matches!(violation, Violation::Limits { volume: Number(2), .. }), "{violation}");
    }

    /// An expansion raises the limits first: what is on the disk of the larger volume has them.
    #[test]
    fn a_grown_volume_with_its_former_limits_is_noticed() {
        let (mut grown, mut expected) = well();
        let larger = Bytes::new(2 << 20);
        for (number, shape) in [(1, Shape::Filesystem), (2, Shape::Thick)] {
            let size = Size { bytes: larger, inodes: Inodes::new(if number == 1 { 512 } else { 2 }) };
            expected.get_mut(&Number(number)).unwrap().sizes.insert(size);
            facts(&grown, &expected).unwrap();
            let limits = Body::new(shape, SIZE).limits(size);
            let raised = grown.limits.insert(project(number.into()), limits).unwrap();
            facts(&grown, &expected).unwrap();
            grown.limits.insert(project(number.into()), raised);
        }
        let image = Image { length: larger, allocated: larger };
        of(&mut grown, "pvc-2").directories[0].1.image = Some(image);
        let violation = facts(&grown, &expected).unwrap_err();
        assert!(matches!(violation, Violation::Limits { volume: Number(2), .. }), "{violation}");
    }

    #[test]
    fn a_record_of_too_many_files_is_noticed() {
        let violation = broken(|facts| {
            let record = of(facts, "pvc-1").record("pvc-1").unwrap().unwrap();
            let record = Record { mode: Mode::Filesystem { inodes: Inodes::new(257) }, ..record };
            of(facts, "pvc-1").records[0].1 = record.to_bytes();
        });
        assert!(matches!(violation, Violation::Size { what: "record", .. }), "{violation}");
    }

    #[test]
    fn a_short_image_and_missing_blocks_are_noticed() {
        let image = |length, allocated| {
            broken(move |facts| of(facts, "pvc-2").directories[0].1.image = Some(Image { length, allocated }))
        };
        let violation = image(Bytes::KIB, SIZE);
        assert!(matches!(violation, Violation::Size { what: "image", .. }), "{violation}");
        let violation = image(SIZE, Bytes::KIB);
        assert!(matches!(violation, Violation::NotThick { .. }), "{violation}");
        let violation = broken(|facts| of(facts, "pvc-2").directories[0].1.image = None);
        assert!(matches!(violation, Violation::Size { what: "image", found: None, .. }), "{violation}");
    }
}
