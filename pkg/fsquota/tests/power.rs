//! State after a power failure at every write that changes what XFS recovers. Requires root and three scratch disks.

use std::fs::{self, File};

use fsquota::{Allocator, Limits, ProjectId};
use ktest_support::Mounted;
use ktest_support::process::{Flush, without_flush};
use ktest_support::replay::{Cut, Recorder, Replay, Tearing};
use units::{Bytes, Inodes};

fn limits(round: u64) -> Limits {
    Limits { bytes: Some(Bytes::new((16 + round) << 20)), inodes: Some(Inodes::new(100 + round)) }
}

/// The number of marks `WORD 0`, `WORD 1`, ….
fn passed<'a>(marks: impl Iterator<Item = &'a str>, word: &str) -> usize {
    marks.filter(|mark| mark.split(' ').next() == Some(word)).count()
}

fn open(mounted: &Mounted<'_>, name: &str) -> Option<File> {
    File::open(mounted.path().join(name)).ok()
}

/// Cuts that XFS recovers differently, and cuts that lose unflushed writes.
fn cuts(replay: &Replay) -> Vec<Cut> {
    let mut cuts = replay.every_recovered_cut();
    cuts.extend(replay.lossy_cuts(1, 20, Tearing::Sectors));
    cuts.sort_by_key(Cut::position);
    cuts
}

const ROUNDS: usize = 5;

/// Creates volumes in the order that the crate documentation describes: `assign`, `sync`, and only then the mark that
/// the volume exists.
#[test]
fn synced_ids_and_limits_survive_a_power_failure() {
    let recorder = Recorder::on_xfs();
    let mounted = recorder.mount("prjquota");
    let ids = Allocator::open(File::open(mounted.path()).unwrap()).unwrap();
    let mut given = Vec::new();
    for round in 0..ROUNDS {
        let path = mounted.path().join(format!("v{round}"));
        fs::create_dir(&path).unwrap();
        let dir = File::open(&path).unwrap();
        let id = fsquota::set(&dir, limits(round as u64), &ids).unwrap().into_inner();
        given.push(id);
        dir.sync_all().unwrap();
        recorder.mark(&format!("fsync {round}"));
        fsquota::sync(&dir).unwrap();
        recorder.mark(&format!("sync {round}"));
    }
    drop(ids);
    drop(mounted);

    let mut replay = recorder.finish();
    for cut in &cuts(&replay) {
        let disk = replay.restore(cut);
        let mounted = disk.mount("prjquota");
        let (fsynced, synced) = (passed(cut.marks(), "fsync"), passed(cut.marks(), "sync"));
        for (round, id) in given.iter().enumerate() {
            let Some(dir) = open(&mounted, &format!("v{round}")) else {
                assert!(round >= fsynced, "v{round} is lost");
                continue;
            };
            let found = fsquota::project(&dir).unwrap();
            // The ID is part of the inode, so fsync makes it durable.
            assert!(found == Some(*id) || round >= fsynced && found.is_none(), "v{round} has project {found:?}");
            // The limits precede the ID in the log, so a directory with the ID has them, also before the sync.
            if round < synced || found.is_some() {
                assert_eq!(fsquota::quota(&dir, *id).unwrap().limits, limits(round as u64), "limits of v{round}");
            }
            // Recorded limits can be set again in any state.
            fsquota::assign(&dir, *id, limits(round as u64)).unwrap();
            assert_eq!(fsquota::get(&dir).unwrap().limits, limits(round as u64));
        }
    }
}

/// The checks of this file can fail: without flushes, synced limits are lost.
#[test]
fn a_disk_that_drops_flushes_loses_synced_limits() {
    let recorder = Recorder::on_xfs();
    let mounted = recorder.mount("prjquota");
    let ids = Allocator::open(File::open(mounted.path()).unwrap()).unwrap();
    fs::create_dir(mounted.path().join("a")).unwrap();
    let dir = open(&mounted, "a").unwrap();
    let id = fsquota::set(&dir, limits(0), &ids).unwrap().into_inner();
    fsquota::sync(&dir).unwrap();
    recorder.drop_flushes();
    recorder.mark("sync 0");
    for round in 1..=ROUNDS as u64 {
        fsquota::set_limits(&dir, id, limits(round)).unwrap();
        fsquota::sync(&dir).unwrap();
        recorder.mark(&format!("sync {round}"));
    }
    drop((dir, ids));
    drop(mounted);

    let mut replay = recorder.finish();
    let lost = cuts(&replay).iter().any(|cut| {
        let Some(last) = passed(cut.marks(), "sync").checked_sub(1) else { return false };
        let disk = replay.restore(cut);
        let Ok(mounted) = disk.try_mount("prjquota") else { return false };
        let found = fsquota::quota(File::open(mounted.path()).unwrap(), id);
        found.is_ok_and(|found| ![last, last + 1].map(|round| limits(round as u64)).contains(&found.limits))
    });
    assert!(lost, "no cut lost a limit");
}

#[test]
fn no_id_is_repeated_after_a_power_failure() {
    let recorder = Recorder::on_xfs();
    let mounted = recorder.mount("prjquota");
    let mut given: Vec<ProjectId> = Vec::new();
    for round in 0..ROUNDS {
        // A new allocator each time, so that it writes the counter each time.
        let ids = Allocator::open(File::open(mounted.path()).unwrap()).unwrap();
        given.push(ids.next().unwrap());
        recorder.mark(&format!("given {round}"));
    }
    drop(mounted);

    assert_eq!(given_twice(recorder.finish(), &given), None);
}

/// The first ID that is allocated again after a cut. A caller may have recorded an ID that was allocated before the
/// cut, although no inode has it yet.
fn given_twice(mut replay: Replay, given: &[ProjectId]) -> Option<ProjectId> {
    cuts(&replay).iter().find_map(|cut| {
        let disk = replay.restore(cut);
        let mounted = disk.mount("prjquota");
        let next = Allocator::open(File::open(mounted.path()).unwrap()).unwrap().next().unwrap();
        let last = passed(cut.marks(), "given").checked_sub(1)?;
        (next <= given[last]).then_some(next)
    })
}

/// The check above can fail: here the allocator runs in a process in which its only flush has no effect.
#[test]
fn without_fdatasync_of_the_counter_an_id_is_repeated() {
    let recorder = Recorder::on_xfs();
    let mounted = recorder.mount("prjquota");
    let next = || Allocator::open(File::open(mounted.path()).unwrap()).unwrap().next().unwrap();
    // For a new counter, the directory is synced too.
    let mut given = vec![next()];
    recorder.mark("given 0");
    for round in 1..ROUNDS {
        let counter = fs::read_to_string(mounted.path().join("next-project-id")).unwrap();
        given.push(ProjectId::new(counter.trim().parse().unwrap()).unwrap());
        let flushes = without_flush(0, || assert_eq!(next(), given[round]));
        assert!(matches!(flushes[..], [Flush::Fdatasync(_)]), "{flushes:?}");
        recorder.mark(&format!("given {round}"));
    }
    drop(mounted);
    assert!(given_twice(recorder.finish(), &given).is_some());
}

#[test]
fn changed_limits_are_durable_after_sync_but_not_after_fsync() {
    let recorder = Recorder::on_xfs();
    let mounted = recorder.mount("prjquota");
    let id = {
        let ids = Allocator::open(File::open(mounted.path()).unwrap()).unwrap();
        fs::create_dir(mounted.path().join("a")).unwrap();
        let dir = open(&mounted, "a").unwrap();
        let id = fsquota::set(&dir, limits(0), &ids).unwrap().into_inner();
        fsquota::sync(&dir).unwrap();
        recorder.mark("sync 0");
        for round in 1..=ROUNDS as u64 {
            fsquota::set_limits(&dir, id, limits(round)).unwrap();
            dir.sync_all().unwrap();
            recorder.mark(&format!("fsync {round}"));
            fsquota::sync(&dir).unwrap();
            recorder.mark(&format!("sync {round}"));
        }
        id
    };
    drop(mounted);

    let mut replay = recorder.finish();
    let mut lost = 0;
    for cut in &replay.every_recovered_cut() {
        let Some(last) = passed(cut.marks(), "sync").checked_sub(1) else { continue };
        let disk = replay.restore(cut);
        let mounted = disk.mount("prjquota");
        let found = fsquota::quota(File::open(mounted.path()).unwrap(), id).unwrap().limits;
        let last = last as u64;
        assert!(found == limits(last) || found == limits(last + 1), "{found:?} after {last}");
        lost += usize::from(cut.has_passed(&format!("fsync {}", last + 1)) && found == limits(last));
    }
    // The directory itself is unchanged, so its fsync writes nothing.
    assert!(lost > 0, "an fsync of the directory made the limits durable");
}
