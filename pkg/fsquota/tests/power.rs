//! What a power cut leaves, at every write that reached the disk. Needs root and three scratch disks.

use std::fs::{self, File};

use fsquota::{Allocator, Limits, ProjectId};
use ktest_support::Mounted;
use ktest_support::process::{Flush, without_flush};
use ktest_support::replay::{Cut, Recorder, Replay, Tearing};
use units::{Bytes, Inodes};

fn limits(round: u64) -> Limits {
    Limits { bytes: Some(Bytes::new((16 + round) << 20)), inodes: Some(Inodes::new(100 + round)) }
}

/// How many of the marks `WORD 0`, `WORD 1`, … are there.
fn passed<'a>(marks: impl Iterator<Item = &'a str>, word: &str) -> usize {
    marks.filter(|mark| mark.split(' ').next() == Some(word)).count()
}

fn open(mounted: &Mounted<'_>, name: &str) -> Option<File> {
    File::open(mounted.path().join(name)).ok()
}

/// After every write, and some in which not all arrived that was not flushed.
fn cuts(replay: &Replay) -> Vec<Cut> {
    let mut cuts = replay.every_cut();
    cuts.extend(replay.lossy_cuts(1, 20, Tearing::Sectors));
    cuts.sort_by_key(Cut::position);
    cuts
}

const ROUNDS: usize = 5;

/// Volumes are made one after the other as the crate's documentation says: `assign`, `sync`, and only then
/// is it told that the volume is there.
#[test]
fn an_id_and_its_limits_are_there_after_a_power_cut_that_follows_sync() {
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
            // An ID is part of the inode: fsync is enough for it.
            assert!(found == Some(*id) || round >= fsynced && found.is_none(), "v{round} has project {found:?}");
            // The limits come first in the log, so that whoever has the ID has them, also before the sync.
            if round < synced || found.is_some() {
                assert_eq!(fsquota::quota(&dir, *id).unwrap().limits, limits(round as u64), "limits of v{round}");
            }
            // What a record of the caller says can be set again, whatever there is.
            fsquota::assign(&dir, *id, limits(round as u64)).unwrap();
            assert_eq!(fsquota::get(&dir).unwrap().limits, limits(round as u64));
        }
    }
}

/// Shows that the checks of this file can fail: what `sync` promised is lost with the flushes.
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
fn no_id_is_given_twice_after_a_power_cut() {
    let recorder = Recorder::on_xfs();
    let mounted = recorder.mount("prjquota");
    let mut given: Vec<ProjectId> = Vec::new();
    for round in 0..ROUNDS {
        // A new start each time, so that each time the counter is written.
        let ids = Allocator::open(File::open(mounted.path()).unwrap()).unwrap();
        given.push(ids.next().unwrap());
        recorder.mark(&format!("given {round}"));
    }
    drop(mounted);

    assert_eq!(given_twice(recorder.finish(), &given), None);
}

/// The first ID that is given again after a cut. What was given away before it may be in somebody's record, though no
/// inode carries it yet.
fn given_twice(mut replay: Replay, given: &[ProjectId]) -> Option<ProjectId> {
    cuts(&replay).iter().find_map(|cut| {
        let disk = replay.restore(cut);
        let mounted = disk.mount("prjquota");
        let next = Allocator::open(File::open(mounted.path()).unwrap()).unwrap().next().unwrap();
        let last = passed(cut.marks(), "given").checked_sub(1)?;
        (next <= given[last]).then_some(next)
    })
}

/// Shows that the check above can fail: the allocator runs in a process in which its only flush is not carried out.
#[test]
fn without_the_fdatasync_of_the_counter_an_id_is_given_twice() {
    let recorder = Recorder::on_xfs();
    let mounted = recorder.mount("prjquota");
    let next = || Allocator::open(File::open(mounted.path()).unwrap()).unwrap().next().unwrap();
    // A new counter has its name synced too.
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
fn a_changed_limit_is_the_old_or_the_new_one_until_sync_and_fsync_is_not_enough() {
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
    for cut in &replay.every_cut() {
        let disk = replay.restore(cut);
        let mounted = disk.mount("prjquota");
        let Some(last) = passed(cut.marks(), "sync").checked_sub(1) else { continue };
        let found = fsquota::quota(File::open(mounted.path()).unwrap(), id).unwrap().limits;
        let last = last as u64;
        assert!(found == limits(last) || found == limits(last + 1), "{found:?} after {last}");
        lost += usize::from(cut.has_passed(&format!("fsync {}", last + 1)) && found == limits(last));
    }
    // The directory itself has not changed, so that its fsync writes nothing.
    assert!(lost > 0, "an fsync of the directory was enough");
}
