//! Durability of [`Dir`]: a test records every write to the disk and checks the file system after a power failure at
//! each of them that changes what XFS recovers. Another test removes a tree from a full disk.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;

use dir::{Dir, Name, Progress};
use ktest_support::XfsDisk;
use ktest_support::process::without_flush;
use ktest_support::replay::{Cut, Recorder, Replay, Tearing};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::stat::Mode;

fn name(text: &str) -> Name {
    Name::try_from(text).unwrap()
}

/// Records `before` and then `steps` calls of `step` on an XFS, with a mark after each.
fn recorded(steps: usize, before: impl FnOnce(&Recorder, &Dir), step: impl Fn(&Dir, usize)) -> Replay {
    let recorder = Recorder::on_xfs();
    let mounted = recorder.mount("noquota");
    let top = Dir::open(mounted.path()).unwrap();
    before(&recorder, &top);
    recorder.mark("0");
    for number in 0..steps {
        step(&top, number);
        recorder.mark(&(number + 1).to_string());
    }
    drop(top);
    drop(mounted);
    recorder.finish()
}

fn nothing(_: &Recorder, _: &Dir) {}

/// Every cut after the first mark that XFS recovers differently, and some cuts that lose unflushed writes.
fn cuts(replay: &Replay) -> Vec<Cut> {
    let mut cuts = replay.every_recovered_cut();
    cuts.extend(replay.lossy_cuts(2_026, 20, Tearing::Sectors));
    cuts.retain(|cut| cut.has_passed("0"));
    cuts.sort_by_key(Cut::position);
    cuts
}

/// The number of steps that were complete at the cut.
fn done(cut: &Cut) -> usize {
    cut.last_mark().unwrap().parse().unwrap()
}

/// Calls `check` with the file system after each cut and the number of complete steps.
fn check(replay: &mut Replay, check: impl Fn(&Dir, usize)) {
    let cuts = cuts(replay);
    let steps: BTreeSet<usize> = cuts.iter().map(done).collect();
    assert!(steps.len() > 8, "cuts only after the steps {steps:?}");
    for cut in &cuts {
        let disk = replay.restore(cut);
        let mounted = disk.mount("noquota");
        check(&Dir::open(mounted.path()).unwrap(), done(cut));
    }
}

/// Whether `fits` is false at some cut. Skips file systems that cannot be mounted, because they show nothing about the
/// check.
fn fails(replay: &mut Replay, fits: impl Fn(&Dir, usize) -> bool) -> bool {
    cuts(replay).iter().any(|cut| {
        let disk = replay.restore(cut);
        let Ok(mounted) = disk.try_mount("noquota") else { return false };
        !fits(&Dir::open(mounted.path()).unwrap(), done(cut))
    })
}

/// Number of versions, one of each length.
const VERSIONS: usize = 10;

/// Versions have no sector in common, and their lengths straddle sectors, blocks and requests.
fn version(number: usize) -> Vec<u8> {
    let lengths = [70_000, 1, 511, 512, 513, 4095, 4096, 4097, 0, 300_000];
    let length = lengths[number % lengths.len()];
    let mut content = format!("version {number:6}\n").repeat(length / 15 + 1).into_bytes();
    content.truncate(length);
    content
}

fn write(top: &Dir, number: usize) {
    top.write(&name("file"), &version(number), Mode::S_IRWXU).unwrap();
}

/// Whether the file is the last complete version or the one in progress.
fn is_old_or_new(top: &Dir, done: usize) -> bool {
    // A read error counts as a mismatch.
    let content = top.read(&name("file")).ok().flatten();
    content.is_some_and(|content| [done, done + 1].iter().any(|&number| content == version(number)))
}

#[test]
fn a_replaced_file_is_old_or_new_at_every_cut() {
    let before = |_: &Recorder, top: &Dir| write(top, 0);
    let mut replay = recorded(VERSIONS, before, |top, number| write(top, number + 1));
    check(&mut replay, |top, done| assert!(is_old_or_new(top, done), "neither version {done} nor the next one"));
}

/// Number of new files.
const FILES: usize = 8;

fn new_file(number: usize) -> Name {
    name(&format!("file-{number}"))
}

fn write_new(top: &Dir, number: usize) {
    top.write(&new_file(number), &version(number), Mode::S_IRWXU).unwrap();
}

/// Whether each file is complete, or missing if its write was not complete.
fn are_missing_or_whole(top: &Dir, done: usize) -> bool {
    (0..FILES).all(|number| match top.read(&new_file(number)) {
        Ok(Some(content)) => number <= done && content == version(number),
        Ok(None) => number >= done,
        Err(_) => false,
    })
}

#[test]
fn a_new_file_is_missing_or_complete_at_every_cut() {
    let mut replay = recorded(FILES, nothing, write_new);
    check(&mut replay, |top, done| assert!(are_missing_or_whole(top, done), "after {done}"));
}

/// Both flushes of `Dir::write` are necessary, and the checks above detect a missing one: `Dir::write` runs in a
/// process in which one of them has no effect.
#[test]
fn a_write_without_one_of_its_fsyncs_is_lost() {
    for (omitted, missing) in ["file", "directory"].into_iter().enumerate() {
        let before = |_: &Recorder, top: &Dir| write(top, 0);
        let mut replay = recorded(3, before, |top, number| {
            assert_eq!(without_flush(omitted, || write(top, number + 1)).len(), 2);
        });
        assert!(fails(&mut replay, is_old_or_new), "a replaced file needs no fsync of the {missing}");
        let mut replay = recorded(3, nothing, |top, number| {
            assert_eq!(without_flush(omitted, || write_new(top, number)).len(), 2);
        });
        assert!(fails(&mut replay, are_missing_or_whole), "a new file needs no fsync of the {missing}");
    }
}

/// Control: the checks above can fail.
#[test]
fn a_disk_that_drops_flushes_loses_written_files() {
    let before = |recorder: &Recorder, top: &Dir| {
        write(top, 0);
        recorder.drop_flushes();
    };
    let mut replay = recorded(VERSIONS, before, |top, number| write(top, number + 1));
    assert!(fails(&mut replay, is_old_or_new));
}

/// Three directories, so that the previous, the last complete and the next rename have different targets.
#[test]
fn a_renamed_file_has_one_of_its_names_at_every_cut() {
    const RENAMES: usize = 8;
    let places = ["first", "second", "third"].map(name);
    let place = |top: &Dir, number: usize| top.open_dir(&places[number % places.len()]).unwrap();
    let before = |_: &Recorder, top: &Dir| {
        for place in &places {
            top.create_dir(place, Mode::S_IRWXU).unwrap();
        }
        top.sync().unwrap();
        place(top, 0).write(&name("file"), &version(0), Mode::S_IRWXU).unwrap();
    };
    let mut replay = recorded(RENAMES, before, |top, number| {
        let [from, to] = [number, number + 1].map(|number| place(top, number));
        from.rename(&name("file"), &to, &name("file")).unwrap();
        to.sync().unwrap();
        from.sync().unwrap();
    });
    check(&mut replay, |top, done| {
        let read = |number| place(top, number).read(&name("file")).unwrap();
        let found: Vec<usize> = (0..places.len()).filter(|number| read(*number).is_some()).collect();
        // The next rename may be durable before the call returns.
        let allowed = [Some(done), (done < RENAMES).then_some(done + 1)];
        let number = allowed.into_iter().flatten().find(|number| found == [number % places.len()]);
        let number = number.unwrap_or_else(|| panic!("after {done} the file is in {found:?}"));
        assert_eq!(read(number).unwrap(), version(0));
    });
}

#[test]
fn a_synced_rename_is_durable() {
    const FILES: usize = 8;
    let before = |_: &Recorder, top: &Dir| {
        for number in 0..FILES {
            top.write(&name(&format!("old-{number}")), &version(number), Mode::S_IRWXU).unwrap();
        }
    };
    let mut replay = recorded(FILES, before, |top, number| {
        top.rename(&name(&format!("old-{number}")), top, &name(&format!("new-{number}"))).unwrap();
        top.sync().unwrap();
    });
    check(&mut replay, |top, done| {
        for number in 0..FILES {
            let [old, new] = ["old", "new"].map(|side| top.read(&name(&format!("{side}-{number}"))).unwrap());
            assert!(old.is_some() != new.is_some(), "{number} after {done} has two names or none");
            assert!(new.is_some() || number >= done, "rename {number} is lost after {done}");
            assert!(old.is_some() || number <= done, "rename {number} is there after {done}");
        }
    });
}

#[test]
fn a_synced_directory_is_durable_with_its_mode() {
    const DIRECTORIES: usize = 8;
    let directory = |number: usize| name(&format!("directory-{number}"));
    let mode = Mode::S_IRWXU | Mode::S_IRWXG | Mode::S_IWOTH | Mode::S_ISGID;
    let mut replay = recorded(DIRECTORIES, nothing, |top, number| {
        top.create_dir(&directory(number), mode).unwrap().sync().unwrap();
        top.sync().unwrap();
    });
    check(&mut replay, |top, done| {
        for number in 0..DIRECTORIES {
            match top.open_dir(&directory(number)) {
                Ok(found) if number < done => assert_eq!(mode_of(found), mode.bits(), "{number} after {done}"),
                Ok(_) => assert_eq!(number, done),
                Err(error) => assert!(error.is_not_found() && number >= done, "{number} after {done}: {error}"),
            }
        }
    });
}

fn mode_of(dir: Dir) -> u32 {
    File::from(OwnedFd::from(dir)).metadata().unwrap().permissions().mode() & 0o7777
}

/// Allocates all space of the disk to a file.
fn fill(file: &File) {
    let (mut end, mut size) = (0, 1 << 30);
    while size >= 4096 {
        match fallocate(file, FallocateFlags::empty(), end, size) {
            Ok(()) => end += size,
            Err(errno) => {
                assert_eq!(errno, Errno::ENOSPC);
                size /= 2;
            }
        }
    }
}

/// Regression: without space for the directory of deep subtrees, each pass over a tree failed, and freed nothing if the
/// tree had all its files in deep directories.
#[test]
fn a_deep_tree_is_removed_from_a_full_disk() {
    const STEPS: u64 = 2048;
    let disk = XfsDisk::without_quota();
    let top = Dir::open(disk.path()).unwrap();
    let mut deep = top.create_dir(&name("tree"), Mode::S_IRWXU).unwrap();
    for _ in 0..STEPS {
        deep = deep.create_dir(&name("d"), Mode::S_IRWXU).unwrap();
    }
    deep.write(&name("file"), &vec![1; 1 << 20], Mode::S_IRWXU).unwrap();
    drop(deep);
    fill(&File::create(disk.path().join("full")).unwrap());
    assert_eq!(top.create_dir(&name("new"), Mode::S_IRWXU).unwrap_err().errno(), Errno::ENOSPC);
    let mut passes = 0;
    while top.remove_all_within(&name("tree"), STEPS).unwrap() == Progress::Unfinished {
        passes += 1;
        assert!(passes < 100, "the removal does not end");
    }
    assert_eq!(top.names().unwrap(), [name("full")]);
}
