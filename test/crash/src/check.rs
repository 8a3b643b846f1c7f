//! Compares the content of the disk with the states that the model allows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use fsquota::{Limits, ProjectId};
use units::Bytes;
use volume::{Mode, Store, Volumes as _};

use crate::facts::{Directory, Facts, Found, Image};
use crate::life::{Body, IMAGE_INODES, Origin, Size};
use crate::model::{Expected, Place, Rollback};
use crate::node::called;
use crate::operation::{Number, Shape};
use crate::violation::Violation;

/// Replaces the expected state of each rollback that is under way by the state after the exchange, if the disk has that
/// state.
pub(crate) fn exchanged(
    facts: &Facts,
    expected: &BTreeMap<Number, Expected>,
) -> Result<BTreeMap<Number, Expected>, Violation> {
    let is_exchanged = |Rollback { kept, .. }: &Rollback| {
        let name = kept.to_string();
        facts.volumes.get(&name).map_or(Ok(false), |found| found.is_exchanged(&name))
    };
    let one = |(number, expected): (&Number, &Expected)| match &expected.rollback {
        Some(rollback) if is_exchanged(rollback)? => Ok((*number, (*rollback.exchanged).clone())),
        Some(_) | None => Ok((*number, expected.clone())),
    };
    expected.iter().map(one).collect()
}

/// Projects of the volumes, by name. After the exchange of a rollback, both records have the former projects until they
/// are written: the result has the projects that the next start writes.
fn projects(facts: &Facts) -> Result<BTreeMap<String, ProjectId>, Violation> {
    let mut projects = BTreeMap::new();
    let mut half = Vec::new();
    for (name, found) in &facts.volumes {
        let Some(record) = found.record(name)? else { continue };
        projects.insert(name.clone(), record.project);
        if let Some(rollback) = record.rollback().filter(|_| !record.is_exchanged())
            && found.is_exchanged(name)?
        {
            half.extend([(rollback.volume.to_string(), record.project), (name.clone(), rollback.project)]);
        }
    }
    projects.extend(half);
    Ok(projects)
}

/// Checks all invariants that hold at each moment.
pub(crate) fn facts(facts: &Facts, expected: &BTreeMap<Number, Expected>) -> Result<(), Violation> {
    let expected: BTreeMap<String, (Number, &Expected)> =
        expected.iter().map(|(number, expected)| (number.to_string(), (*number, expected))).collect();
    for (name, Found { records, directories }) in &facts.volumes {
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
    }
    let projects = projects(facts)?;
    let mut owners: BTreeMap<ProjectId, &str> = BTreeMap::new();
    for (name, &project) in &projects {
        if let Some(other) = owners.insert(project, name) {
            let (name, other) = (name.clone(), other.to_owned());
            return Err(Violation::SameProject { name, other, project });
        }
    }
    if let Some((project, limits)) = facts.limits.iter().find(|(project, _)| !owners.contains_key(*project)) {
        return Err(Violation::Stray { project: *project, limits: *limits });
    }
    let copies = expected.values().filter_map(|(number, expected)| Some([*number, expected.sharing?.source]));
    let sharing: BTreeSet<Number> = copies.flatten().collect();
    // After a rollback, the thin snapshots of the volume share their blocks with the kept snapshot, which has no
    // source.
    let is_kept = |body: &Body| body.is_snapshot && body.origin.is_none();
    let may_share = |name: &String| {
        expected.get(name).is_some_and(|(number, expected)| {
            sharing.contains(number) || !sharing.is_empty() && expected.body.as_ref().is_some_and(is_kept)
        })
    };
    let shared = |found: &Found| found.directories.iter().any(|(_, directory)| directory.is_shared);
    if let Some((name, _)) = facts.volumes.iter().find(|(name, found)| shared(found) && !may_share(name)) {
        return Err(Violation::Shared { name: name.clone() });
    }
    expected.values().try_for_each(|(number, expected)| of_one_instant(*number, expected, facts))?;
    let nothing = Found::default();
    expected.iter().try_for_each(|(name, (number, of_volume))| {
        let copies = expected.iter().filter_map(|(copy, (_, expected))| Some((copy, expected.sharing?)));
        let copies = copies.filter(|(_, origin)| origin.source == *number);
        // After a rollback, the volume shares no blocks with its thin snapshots.
        let is_shared = facts.volumes.get(name).is_some_and(shared);
        // The limit is raised before blocks are shared, and lowered after no block is shared. In between, it may have
        // either value.
        let headrooms = copies.fold(vec![Bytes::ZERO], |sums, (copy, Origin { headroom, .. })| {
            let raised = sums.iter().map(|sum| sum.saturating_add(headroom));
            let needed = is_shared && facts.volumes.get(copy).is_some_and(shared);
            let lowered: &[Bytes] = if needed { &[] } else { &sums };
            raised.chain(lowered.iter().copied()).collect()
        });
        let project = projects.get(name).copied();
        let of = |limits: &BTreeMap<ProjectId, Limits>| project.and_then(|project| limits.get(&project).copied());
        let limits = of(&facts.limits).unwrap_or_default();
        let limits = [limits, of(&facts.shown).unwrap_or(limits)];
        one(*number, of_volume, facts.volumes.get(name).unwrap_or(&nothing), project, limits, &headrooms)
    })
}

/// Checks that both members of a group have the same instant.
fn of_one_instant(volume: Number, expected: &Expected, facts: &Facts) -> Result<(), Violation> {
    let other = expected.body.as_ref().and_then(|body| body.together).filter(|_| !expected.is_begun);
    let Some(other) = other else { return Ok(()) };
    let taken = |number: Number| -> Result<Option<SystemTime>, Violation> {
        let name = number.to_string();
        let record = facts.volumes.get(&name).map(|found| found.record(&name)).transpose()?.flatten();
        Ok(record.and_then(|record| record.mode.taken()))
    };
    match (taken(volume)?, taken(other)?) {
        (Some(one), Some(two)) if one != two => Err(Violation::Times { volume, other }),
        _ => Ok(()),
    }
}

/// Checks one volume. Its limit is that of its size, raised by one of `headrooms`. In a filesystem volume, `statfs`
/// shows its size.
fn one(
    volume: Number,
    expected: &Expected,
    found: &Found,
    project: Option<ProjectId>,
    limits: [Limits; 2],
    headrooms: &[Bytes],
) -> Result<(), Violation> {
    let record = found.record(&volume.to_string())?;
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
    let Some((Place::Live, Directory { project: carried, image, .. })) = directory else { return Ok(()) };
    if *carried != project {
        return Err(Violation::Project { volume, found: *carried, recorded: record.project });
    }
    let mut needed = record.size;
    if body.shape != Shape::Filesystem {
        size("image", image.as_ref().map(|image| Size { bytes: image.length, inodes: IMAGE_INODES }))?;
        needed = image.as_ref().map_or(needed, |image| needed.max(image.length));
    }
    // Limits are raised before the image and the record, and the log has these changes in this order.
    let sizes = expected.sizes.iter().filter(|size| size.bytes >= needed);
    // After an exchange, a project gets the limits of its new use before the record of the volume names it.
    let former = Body { is_snapshot: true, ..body.clone() };
    let former = (project != Some(record.project)).then_some(&former);
    let bodies = [Some(body), former];
    let sizes = sizes.flat_map(|size| bodies.into_iter().flatten().map(|body| (body, body.limits(*size))));
    let raised = |(body, limits): (&Body, Limits)| {
        let shows_size = body.shape == Shape::Filesystem && !body.is_snapshot;
        headrooms.iter().map(move |headroom| {
            let raised = Limits { bytes: limits.bytes.map(|bytes| bytes.saturating_add(*headroom)), ..limits };
            [raised, if shows_size { limits } else { raised }]
        })
    };
    let allowed: Vec<[Limits; 2]> = sizes.flat_map(raised).collect();
    if !allowed.contains(&limits) {
        return Err(Violation::Limits { volume, found: limits, allowed });
    }
    match image {
        Some(Image { allocated, .. }) if is_thick(body) && *allocated < record.size => {
            Err(Violation::NotThick { volume, allocated: *allocated, size: record.size })
        }
        Some(_) | None => Ok(()),
    }
}

/// Whether all blocks of the image must be allocated. A snapshot has the holes of its source.
fn is_thick(body: &Body) -> bool {
    body.shape == Shape::Thick && !body.is_snapshot
}

/// Checks that the ledger reserves the space of the expected volumes, and no more.
pub(crate) fn ledger(store: &Store, expected: &BTreeMap<Number, Expected>) -> Result<(), Violation> {
    let found = store.space().map_err(called("ask for the space of", "the disk"))?.reserved;
    let wanted = expected.values().map(Expected::reserved).sum();
    if found == wanted { Ok(()) } else { Err(Violation::Ledger { found, wanted }) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use units::Inodes;
    use volume::{Owner, Record, Sharing, State};

    use super::*;
    use crate::history::History;
    use crate::model::{self, Progress, Register, Wants, begin, end};
    use crate::node::request;
    use crate::operation::{Action, Operation};

    const SIZE: Bytes = Bytes::MIB;

    fn project(number: u32) -> ProjectId {
        ProjectId::new(number).expect("an ID")
    }

    fn found(number: u16, shape: Shape, project: ProjectId) -> (String, Found) {
        let volume::Request { claim, owner, class, mode, size, source: _ } = request(Number(number), shape, SIZE);
        let (cloning, io, state) = (None, volume::IoLimits::NONE, State::Announced);
        let record = Record { claim, owner, class, mode, size, project, cloning, io, state };
        let image = (shape != Shape::Filesystem).then_some(Image { length: SIZE, allocated: SIZE });
        let directory = Directory { path: "live".into(), project: Some(project), image, is_shared: false };
        let records = vec![(Register::Records, record.to_bytes().unwrap())];
        (Number(number).to_string(), Found { records, directories: vec![(Place::Live, directory)] })
    }

    /// Two volumes in their expected state: a directory and a thick image.
    fn well() -> (Facts, BTreeMap<Number, Expected>) {
        let shapes = [(1, Shape::Filesystem), (2, Shape::Thick)];
        let files = Limits { bytes: Some(SIZE), inodes: Some(Inodes::new(256)) };
        // 256 blocks need 3 for their map, and 640 are reserved for writes in flight.
        let image = Limits { bytes: Some(Bytes::new((256 + 3 + 640) << 12)), inodes: Some(Inodes::new(2)) };
        let facts = Facts {
            volumes: shapes.map(|(number, shape)| found(number, shape, project(number.into()))).into(),
            limits: [(project(1), files), (project(2), image)].into(),
            ..Facts::default()
        };
        let expected = shapes.map(|(number, shape)| {
            let size = Size::new(shape, SIZE);
            let body = Body { opened: true, ..Body::new(shape, SIZE) };
            let spots = [Some((Register::Records, Some(Place::Live)))].into();
            let wants = Wants::Bound(size);
            (Number(number), Expected { body: Some(body), spots, sizes: [size].into(), wants, ..Expected::nothing() })
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
            wants: Wants::Claimed,
            ..Expected::nothing()
        };
        let sharing = |is_shared| {
            let (_, Found { records, mut directories }) = found(3, Shape::Thick, project(3));
            directories[0].0 = Place::Staging;
            directories[0].1.is_shared = is_shared;
            Found { records: records.into_iter().map(|(_, record)| (Register::Pending, record)).collect(), directories }
        };
        expected.insert(Number(3), clone);
        left.volumes.insert("pvc-3".into(), sharing(true));
        of(&mut left, "pvc-2").directories[0].1.is_shared = true;
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
        of(&mut left, "pvc-2").directories[0].1.is_shared = false;
        let violation = facts(&left, &expected).unwrap_err();
        assert!(matches!(violation, Violation::Limits { volume: Number(2), .. }), "{violation}");
    }

    #[test]
    fn a_source_of_files_that_shows_its_raised_limit_is_noticed() {
        let (mut left, mut expected) = well();
        let sharing = Some(Origin { source: Number(1), headroom: SIZE });
        expected.insert(Number(3), Expected { sharing, ..Expected::nothing() });
        let limits = left.limits[&project(1)];
        let raised = Limits { bytes: limits.bytes.map(|bytes| bytes.saturating_add(SIZE)), ..limits };
        left.limits.insert(project(1), raised);
        left.shown.insert(project(1), limits);
        facts(&left, &expected).unwrap();
        left.shown.clear();
        let violation = facts(&left, &expected).unwrap_err();
        assert!(matches!(violation, Violation::Limits { volume: Number(1), .. }), "{violation}");
    }

    #[test]
    fn a_volume_that_shares_blocks_beside_a_thin_snapshot_is_noticed() {
        let (mut left, mut expected) = well();
        let origin = Origin { source: Number(2), headroom: SIZE };
        let size = Size::new(Shape::Thick, SIZE);
        let body = Body { origin: Some(origin), is_snapshot: true, is_thin: true, ..Body::new(Shape::Thick, SIZE) };
        let limits = body.limits(size);
        let thin = Expected {
            body: Some(body),
            spots: [Some((Register::Records, Some(Place::Live)))].into(),
            sizes: [size].into(),
            sharing: Some(origin),
            wants: Wants::Taken,
            ..Expected::nothing()
        };
        expected.insert(Number(3), thin);
        left.volumes.extend([found(3, Shape::Thick, project(3))]);
        left.limits.insert(project(3), limits);
        let raised = Limits { bytes: limits.bytes.map(|bytes| bytes.saturating_add(SIZE)), ..limits };
        left.limits.insert(project(2), raised);
        for name in ["pvc-2", "pvc-3"] {
            of(&mut left, name).directories[0].1.is_shared = true;
        }
        facts(&left, &expected).unwrap();
        of(&mut left, "pvc-1").directories[0].1.is_shared = true;
        let violation = facts(&left, &expected).unwrap_err();
        assert!(matches!(&violation, Violation::Shared { name } if name == "pvc-1"), "{violation}");
        // Volume 1 keeps the content of the source from before a rollback.
        let kept = expected.get_mut(&Number(1)).and_then(|expected| expected.body.as_mut()).expect("a body");
        kept.is_snapshot = true;
        let limits = kept.limits(Size::new(Shape::Filesystem, SIZE));
        left.limits.insert(project(1), limits);
        facts(&left, &expected).unwrap();
    }

    #[test]
    fn members_of_a_group_with_different_times_are_noticed() {
        let member = |number: u16, seconds| {
            let (name, mut found) = found(number, Shape::Filesystem, project(number.into()));
            let record = found.record(&name).unwrap().unwrap();
            let taken = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            let mode = Mode::SnapshotTree { taken, inodes: Inodes::new(256), sharing: Sharing::Temporary };
            found.records[0].1 = Record { mode, ..record }.to_bytes().unwrap();
            (name, found)
        };
        let times = |seconds, is_begun| {
            let left = Facts { volumes: [member(1, 1), member(2, seconds)].into(), ..Facts::default() };
            let body = Body { together: Some(Number(2)), ..Body::new(Shape::Filesystem, SIZE) };
            of_one_instant(Number(1), &Expected { body: Some(body), is_begun, ..Expected::nothing() }, &left)
        };
        times(1, false).unwrap();
        times(2, true).unwrap();
        let violation = times(2, false).unwrap_err();
        assert!(matches!(violation, Violation::Times { .. }), "{violation}");
    }

    /// A rollback of a directory that is under way: of volume 1 to snapshot 3. Snapshot 2 keeps the former content.
    struct RollingBack {
        /// Projects in the records, and of the directories, of the volume and of the kept snapshot.
        records: [u32; 2],
        directories: [u32; 2],
        /// The project with the limits of the volume.
        limited: u32,
    }

    impl RollingBack {
        fn check(self) -> Result<(), Violation> {
            let Self { records, directories, limited } = self;
            let [volume, kept, source] = [1, 2, 3].map(Number);
            let operations = [
                (volume, Action::Provision { shape: Shape::Filesystem, size: SIZE }),
                (volume, Action::Announce),
                (volume, Action::Open),
                (source, Action::Snapshot { source: volume, is_thin: false }),
                (source, Action::Copy),
                (kept, Action::RollBack { volume, source }),
            ];
            let history = History::sequence(operations.map(|(volume, action)| Operation { volume, action }));
            let marks: Vec<String> = (0..6).flat_map(|number| [begin(number), end(number)]).collect();
            let expected = model::expected(&history, &Progress::from_marks(marks[..11].iter().map(String::as_str)));

            let of = |number: Number, project: u32, carried: u32, owner: Owner, place| {
                let (name, mut found) = found(number.0, Shape::Filesystem, self::project(project));
                let record = found.record(&name).unwrap().unwrap();
                let mode = match number {
                    Number(1) => record.mode,
                    _ => Mode::SnapshotTree {
                        taken: SystemTime::UNIX_EPOCH,
                        inodes: Inodes::new(256),
                        sharing: Sharing::Temporary,
                    },
                };
                let register = if place == Place::Live { Register::Records } else { Register::Pending };
                found.records = vec![(register, Record { mode, owner, ..record }.to_bytes().unwrap())];
                found.directories[0].0 = place;
                found.directories[0].1.project = Some(self::project(carried));
                (name, found)
            };
            let rollback = volume::Rollback {
                volume: volume.to_string().parse().unwrap(),
                source: source.to_string().parse().unwrap(),
                project: project(1),
                allocation: volume::Allocation::default(),
            };
            let volumes = [
                of(volume, records[0], directories[0], Owner::Provisioner, Place::Live),
                of(kept, records[1], directories[1], Owner::Rollback(rollback), Place::Staging),
                of(source, 3, 3, Owner::Provisioner, Place::Live),
            ];
            let size = Size::new(Shape::Filesystem, SIZE);
            let body = Body::new(Shape::Filesystem, SIZE);
            let snapshot = Body { is_snapshot: true, ..body.clone() }.limits(size);
            let limits =
                [1, 2, 3].map(|number| (project(number), if number == limited { body.limits(size) } else { snapshot }));
            let left = Facts { volumes: volumes.into(), limits: limits.into(), ..Facts::default() };
            facts(&left, &exchanged(&left, &expected)?)
        }
    }

    #[test]
    fn records_of_an_exchange_have_either_project_until_both_are_written() {
        let steps =
            [([1, 2], [1, 2], 1), ([1, 2], [2, 1], 1), ([1, 2], [2, 1], 2), ([2, 2], [2, 1], 2), ([2, 1], [2, 1], 2)];
        for (records, directories, limited) in steps {
            RollingBack { records, directories, limited }.check().unwrap();
        }
        let violation = RollingBack { records: [2, 2], directories: [2, 1], limited: 1 }.check().unwrap_err();
        assert!(matches!(violation, Violation::Limits { volume: Number(1), .. }), "{violation}");
        let violation = RollingBack { records: [2, 2], directories: [1, 2], limited: 1 }.check().unwrap_err();
        assert!(matches!(violation, Violation::SameProject { .. }), "{violation}");
        let violation = RollingBack { records: [1, 2], directories: [1, 1], limited: 1 }.check().unwrap_err();
        assert!(matches!(violation, Violation::Project { volume: Number(1), .. }), "{violation}");
    }

    /// An expansion raises the limits first: if any part of the larger volume is on the disk, so are its limits.
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
            of(facts, "pvc-1").records[0].1 = record.to_bytes().unwrap();
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
