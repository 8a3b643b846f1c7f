//! Allocation of project IDs.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::thread;

use fsquota::{AllocateError, Allocator, Ensured, ProjectId, SetError};
use units::Inodes;

use crate::volumes::{SIZE, Volumes, size};

const COUNTER: &str = "next-project-id";

fn counted_from(volumes: &Volumes, next: u32) -> Allocator {
    fs::write(volumes.path(COUNTER), format!("{next:010}\n")).unwrap();
    Allocator::open(&volumes.root).unwrap()
}

#[test]
fn threads_never_get_the_same_id() {
    let volumes = Volumes::new();
    // A second allocator on the same file, like in another process.
    let other = Allocator::open(&volumes.root).unwrap();
    let take = |ids: &Allocator| (0..100).map(|_| ids.next().unwrap()).collect::<Vec<_>>();
    let taken: Vec<ProjectId> = thread::scope(|scope| {
        let threads: Vec<_> = [&volumes.ids, &volumes.ids, &other].map(|ids| scope.spawn(move || take(ids))).into();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), 300);
}

#[test]
fn allocation_ends_after_the_last_id() {
    let volumes = Volumes::new();
    let last = ProjectId::MAX.get();
    let ids = counted_from(&volumes, last - 2);
    for wanted in last - 2..=last {
        let dir = volumes.dir(&format!("v{wanted}"));
        let id = ProjectId::new(wanted).unwrap();
        assert_eq!(fsquota::set(&dir, size(SIZE), &ids).unwrap(), Ensured::Created(id));
        assert_eq!(fsquota::get(&dir).unwrap().limits, size(SIZE));
    }
    let reported: Vec<u32> = volumes.reported().into_iter().map(ProjectId::get).collect();
    assert_eq!(reported, [last - 2, last - 1, last]);
    let dir = volumes.dir("more");
    for ids in [&ids, &Allocator::open(&volumes.root).unwrap()] {
        let refused = fsquota::set(&dir, size(SIZE), ids);
        assert!(matches!(refused, Err(SetError::Allocate(AllocateError::Exhausted))), "{refused:?}");
    }
    assert_eq!(fsquota::project(&dir), Ok(None));
}

#[test]
fn ids_assigned_by_hand_are_skipped() {
    let volumes = Volumes::new();
    let last = ProjectId::MAX.get();
    for taken in [last - 3, last - 1, last] {
        fsquota::set_limits(&volumes.root, ProjectId::new(taken).unwrap(), size(SIZE)).unwrap();
    }
    let ids = counted_from(&volumes, last - 4);
    assert_eq!(ids.next().unwrap().get(), last - 4);
    assert_eq!(ids.next().unwrap().get(), last - 2);
    assert!(matches!(ids.next(), Err(AllocateError::Exhausted)));
}

#[test]
fn ids_in_use_are_skipped_after_losing_the_counter() {
    let volumes = Volumes::new();
    let used: BTreeSet<_> = (0..5).map(|n| volumes.volume(&format!("v{n}"), size(SIZE)).1).collect();
    fs::remove_file(volumes.path(COUNTER)).unwrap();
    let ids = Allocator::open(&volumes.root).unwrap();
    assert!((0..100).all(|_| !used.contains(&ids.next().unwrap())));
}

#[test]
fn the_id_of_a_removed_project_is_not_reused() {
    let (volumes, dir, id) = Volumes::with_volume(size(SIZE));
    fsquota::remove(&dir).unwrap();
    let later = Allocator::open(&volumes.root).unwrap();
    assert!(later.next().unwrap() > id);
}

#[test]
fn a_damaged_counter_stops_the_allocation() {
    let volumes = Volumes::new();
    for damaged in ["many\n", "0000000000\n", "4294967296\n", "0000000001"] {
        fs::write(volumes.path(COUNTER), damaged).unwrap();
        assert!(matches!(volumes.ids.next(), Err(AllocateError::Damaged { .. })), "{damaged:?}");
    }
}

#[test]
fn a_deleted_counter_is_created_again() {
    let volumes = Volumes::new();
    fs::write(volumes.path(COUNTER), "damaged\n").unwrap();
    volumes.ids.next().unwrap_err();
    fs::remove_file(volumes.path(COUNTER)).unwrap();
    let (_dir, id) = volumes.volume("a", size(SIZE));
    // The allocator uses the new file, not the deleted one.
    assert!(Allocator::open(&volumes.root).unwrap().next().unwrap() > id);
}

#[test]
fn a_counter_behind_a_symbolic_link_is_not_opened() {
    let volumes = Volumes::new();
    fs::remove_file(volumes.path(COUNTER)).unwrap();
    std::os::unix::fs::symlink("elsewhere", volumes.path(COUNTER)).unwrap();
    assert!(matches!(Allocator::open(&volumes.root), Err(AllocateError::Counter { step: "open", .. })));
    assert!(!volumes.path("elsewhere").exists());
}

#[test]
fn an_assign_that_stopped_after_the_limits_is_completed() {
    let volumes = Volumes::new();
    let (dir, id) = (volumes.dir("a"), volumes.ids.next().unwrap());
    fsquota::set_limits(&volumes.root, id, size(crate::files::mib(1))).unwrap();
    assert_eq!(fsquota::assign(&dir, id, size(SIZE)).unwrap(), Ensured::Created(id));
    assert_eq!(fsquota::assign(&dir, id, size(SIZE)).unwrap(), Ensured::Unchanged(id));
    assert_eq!(fsquota::get(&dir).unwrap().limits, size(SIZE));
}

#[test]
fn directories_that_join_a_project_have_its_limits_together() {
    let (volumes, first, id) = Volumes::with_volume(size(SIZE));
    let second = volumes.dir("b");
    assert!(matches!(fsquota::assign(&second, id, size(SIZE)), Err(SetError::InUse { .. })));
    assert_eq!(fsquota::join(&second, id, size(SIZE)).unwrap(), Ensured::Created(id));
    assert_eq!(fsquota::join(&second, id, size(SIZE)).unwrap(), Ensured::Unchanged(id));
    fs::write(volumes.path("a/file"), [1; 4096]).unwrap();
    fs::write(volumes.path("b/file"), [1; 4096]).unwrap();
    let quota = fsquota::get(&first).unwrap();
    assert_eq!((quota.limits, quota.used.inodes), (size(SIZE), Inodes::new(4)));
    assert_eq!(quota, fsquota::get(&second).unwrap());

    fs::create_dir(volumes.path("c")).unwrap();
    fs::write(volumes.path("c/file"), "").unwrap();
    let filled = File::open(volumes.path("c")).unwrap();
    assert!(matches!(fsquota::join(&filled, id, size(SIZE)), Err(SetError::NotEmpty)));
    assert_eq!(fsquota::project(&filled), Ok(None));
}
