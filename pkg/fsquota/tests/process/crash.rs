//! Kills a process before each system call of an operation that may change files. Afterwards, no ID is allocated twice,
//! no directory has a project without limits, and the next call completes the operation.

use std::collections::BTreeSet;
use std::fs::{self, File};

use fsquota::{Allocator, Limits, ProjectId, Quotas};
use ktest_support::process::killed_before;
use units::Inodes;

use crate::volumes::{SIZE, Volumes, both};

const LIMITS: Limits = Limits { bytes: Some(SIZE), inodes: Some(Inodes::new(100)) };

/// More than the number of system calls of any operation.
const STEPS: usize = 32;

/// Runs an operation repeatedly and kills it one system call later each time, until it completes. Calls `after` each
/// time.
fn killed_everywhere(mut work: impl FnMut(usize), mut after: impl FnMut(usize)) {
    let mut step = 0;
    while killed_before(step, |call| call.may_change_files(), || work(step)) {
        after(step);
        step += 1;
    }
    // The operation completed.
    after(step);
    assert!(step > 2, "only {step} system calls");
}

fn opened(volumes: &Volumes, step: usize) -> File {
    File::open(volumes.path(&step.to_string())).unwrap()
}

/// Creates a directory for each step, so that the killed process runs only the operation.
fn dirs(volumes: &Volumes) {
    (0..STEPS).for_each(|step| drop(volumes.dir(&step.to_string())));
}

#[test]
fn a_killed_allocation_never_repeats_an_id() {
    let volumes = Volumes::new();
    let mut given = BTreeSet::new();
    killed_everywhere(
        |_| {
            let ids = Allocator::open(&volumes.root).unwrap();
            // Two calls, so that an allocation crosses the end of a batch.
            (0..33).for_each(|_| assert!(ids.next().is_ok()));
        },
        |step| {
            let ids = Allocator::open(&volumes.root).unwrap();
            let id = ids.next().unwrap();
            assert!(given.last().is_none_or(|last| *last < id), "step {step}: {id} was there before");
            given.insert(id);
        },
    );
}

#[test]
fn a_killed_set_never_leaves_a_project_without_limits() {
    let volumes = Volumes::new();
    dirs(&volumes);
    let mut used = BTreeSet::new();
    killed_everywhere(
        |step| {
            let ids = Allocator::open(&volumes.root).unwrap();
            fsquota::set(opened(&volumes, step), LIMITS, &ids).unwrap();
        },
        |step| {
            let dir = opened(&volumes, step);
            if fsquota::project(&dir).unwrap().is_some() {
                assert_eq!(fsquota::get(&dir).unwrap().limits, LIMITS, "step {step}");
            }
            let ids = Allocator::open(&volumes.root).unwrap();
            let id = fsquota::set(&dir, LIMITS, &ids).unwrap().into_inner();
            assert_eq!(fsquota::get(&dir).unwrap().limits, LIMITS, "step {step}");
            assert!(used.insert(id), "step {step}: {id} was there before");
        },
    );
    // A killed call leaves at most the limits of an unused ID, which `report` returns and `clear` removes.
    let reported: Vec<_> = fsquota::report(&volumes.root).unwrap().map(Result::unwrap).collect();
    for quota in reported.iter().filter(|quota| !used.contains(&quota.id)) {
        assert_eq!(quota.used.inodes, Inodes::ZERO);
        Quotas::open(&volumes.root).unwrap().clear(quota.id).unwrap();
    }
    assert_eq!(volumes.reported().into_iter().collect::<BTreeSet<_>>(), used);
}

#[test]
fn a_killed_assign_is_completed_with_the_recorded_id() {
    let volumes = Volumes::new();
    dirs(&volumes);
    let ids: Vec<ProjectId> = (0..STEPS).map(|_| volumes.ids.next().unwrap()).collect();
    let mut used = BTreeSet::new();
    killed_everywhere(
        |step| assert!(fsquota::assign(opened(&volumes, step), ids[step], LIMITS).is_ok()),
        |step| {
            let dir = opened(&volumes, step);
            if let Some(found) = fsquota::project(&dir).unwrap() {
                assert_eq!((found, fsquota::get(&dir).unwrap().limits), (ids[step], LIMITS), "step {step}");
            }
            fsquota::assign(&dir, ids[step], LIMITS).unwrap();
            assert_eq!(fsquota::get(&dir).unwrap().limits, LIMITS, "step {step}");
            used.insert(ids[step]);
        },
    );
    // The ID was recorded, so no limits remain.
    assert_eq!(volumes.reported().into_iter().collect::<BTreeSet<_>>(), used);
}

#[test]
fn a_killed_set_limits_leaves_the_old_or_new_limits() {
    let volumes = Volumes::new();
    let larger = both(SIZE.checked_mul(2).unwrap(), 200);
    let (dir, id) = volumes.volume("a", LIMITS);
    killed_everywhere(
        |_| assert!(fsquota::set(&dir, larger, &volumes.ids).is_ok()),
        |step| {
            let found = fsquota::get(&dir).unwrap().limits;
            assert!(found == LIMITS || found == larger, "step {step}: {found:?}");
            fsquota::set_limits(&dir, id, LIMITS).unwrap();
        },
    );
}

#[test]
fn a_killed_transfer_is_finished_with_the_recorded_id() {
    let (volumes, dir, _) = Volumes::with_volume(LIMITS);
    fs::create_dir(volumes.path("a/below")).unwrap();
    for file in ["a/file", "a/below/file"] {
        fs::write(volumes.path(file), file).unwrap();
    }
    fsquota::sync(&dir).unwrap();
    let used = fsquota::get(&dir).unwrap().used;
    // A walk takes several system calls for each inode.
    let ids: Vec<ProjectId> = (0..8 * STEPS).map(|_| volumes.ids.next().unwrap()).collect();
    killed_everywhere(
        |step| assert!(fsquota::transfer(&dir, ids[step], LIMITS).is_ok()),
        |step| {
            for quota in fsquota::report(&volumes.root).unwrap().map(Result::unwrap) {
                // The limits of the former project are cleared once only the directory itself has it.
                assert!(quota.limits == LIMITS || quota.used.inodes == Inodes::new(1), "step {step}: {quota:?}");
            }
            fsquota::transfer(&dir, ids[step], LIMITS).unwrap();
            let found = fsquota::get(&dir).unwrap();
            assert_eq!((found.id, found.limits, found.used), (ids[step], LIMITS, used), "step {step}");
            assert_eq!(fsquota::strays(&dir, ids[step]).unwrap().count(), 0, "step {step}");
            assert_eq!(volumes.reported(), [ids[step]], "step {step}");
        },
    );
}

#[test]
fn a_killed_remove_is_completed_by_the_next() {
    let volumes = Volumes::new();
    dirs(&volumes);
    let ids: Vec<ProjectId> = (0..STEPS)
        .map(|step| fsquota::set(opened(&volumes, step), LIMITS, &volumes.ids).unwrap().into_inner())
        .collect();
    let mut last = 0;
    killed_everywhere(
        |step| assert!(fsquota::remove(opened(&volumes, step)).is_ok()),
        |step| {
            let dir = opened(&volumes, step);
            match fsquota::project(&dir).unwrap() {
                // The directory is still empty, so no data lost its limits.
                Some(found) => assert_eq!(found, ids[step], "step {step}"),
                None => assert_eq!(fsquota::quota(&dir, ids[step]).unwrap().limits, Limits::default()),
            }
            fsquota::remove(&dir).unwrap();
            assert_eq!(fsquota::project(&dir), Ok(None), "step {step}");
            last = step;
        },
    );
    assert_eq!(volumes.reported(), ids[last + 1..]);
}

#[test]
fn a_killed_clear_is_completed_by_the_next() {
    let volumes = Volumes::new();
    dirs(&volumes);
    let ids: Vec<ProjectId> = (0..STEPS)
        .map(|step| fsquota::set(opened(&volumes, step), LIMITS, &volumes.ids).unwrap().into_inner())
        .collect();
    (0..STEPS).for_each(|step| fs::remove_dir(volumes.path(&step.to_string())).unwrap());
    let mut last = 0;
    killed_everywhere(
        |step| Quotas::open(&volumes.root).unwrap().clear(ids[step]).unwrap(),
        |step| {
            Quotas::open(&volumes.root).unwrap().clear(ids[step]).unwrap();
            last = step;
        },
    );
    assert_eq!(volumes.reported(), ids[last + 1..]);
}
