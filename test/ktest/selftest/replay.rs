//! Simulated power cuts: synced data is present at every cut, and the classic mistakes are found.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::thread;

use ktest_support::replay::write_log::Entry;
use ktest_support::replay::{Cut, Recorder, Replay, Tearing};
use ktest_support::run;

const OLD: &[u8] = &[b'o'; 6000];
const NEW: &[u8] = &[b'n'; 9000];

type Replace = fn(directory: &Path);

fn replace_durably(directory: &Path) {
    let mut file = File::create(directory.join("new")).unwrap();
    file.write_all(NEW).unwrap();
    file.sync_all().unwrap();
    fs::rename(directory.join("new"), directory.join("file")).unwrap();
    sync(directory);
}

/// The classic mistake: the new name is durable, the data is not.
fn replace_without_fsync_of_the_file(directory: &Path) {
    fs::write(directory.join("new"), NEW).unwrap();
    fs::rename(directory.join("new"), directory.join("file")).unwrap();
    sync(directory);
}

fn replace_without_fsync_of_the_directory(directory: &Path) {
    let mut file = File::create(directory.join("new")).unwrap();
    file.write_all(NEW).unwrap();
    file.sync_all().unwrap();
    fs::rename(directory.join("new"), directory.join("file")).unwrap();
}

fn sync(path: &Path) {
    File::open(path).unwrap().sync_all().unwrap();
}

fn recorded(replace: Replace, before: impl FnOnce(&Recorder)) -> Replay {
    let recorder = Recorder::on_xfs();
    let mounted = recorder.mount("noquota");
    let file = mounted.path().join("file");
    fs::write(&file, OLD).unwrap();
    sync(&file);
    sync(mounted.path());
    recorder.mark("old");
    before(&recorder);
    replace(mounted.path());
    recorder.mark("replaced");
    drop(mounted);
    recorder.finish()
}

/// A cut: whether it is after the mark `replaced`, and the content of the file. `None` if the file or the whole file
/// system was lost.
struct Found {
    replaced: bool,
    content: Option<Vec<u8>>,
}

/// Adds lossy cuts, and returns the cuts after the mark.
fn with_lossy(replay: &Replay, mut cuts: Vec<Cut>, mark: &str) -> Vec<Cut> {
    cuts.extend(replay.lossy_cuts(1, 20, Tearing::Sectors));
    cuts.retain(|cut| cut.has_passed(mark));
    cuts.sort_by_key(Cut::position);
    assert!(cuts.iter().any(|cut| cut.has_passed("replaced")), "no cut is after the mark");
    cuts
}

fn found_at(replay: &mut Replay, cuts: &[Cut]) -> Vec<Found> {
    let found = |cut: &Cut| {
        let disk = replay.restore(cut);
        let mounted = disk.try_mount("noquota").ok();
        let content = mounted.and_then(|mounted| fs::read(mounted.path().join("file")).ok());
        Found { replaced: cut.has_passed("replaced"), content }
    };
    cuts.iter().map(found).collect()
}

/// Content of the file at each cut after the mark `replaced`.
fn contents(replay: &mut Replay) -> Vec<Option<Vec<u8>>> {
    let cuts = with_lossy(replay, replay.every_recovered_cut(), "replaced");
    found_at(replay, &cuts).into_iter().map(|found| found.content).collect()
}

/// Includes the cuts that `every_recovered_cut` leaves out: XFS recovers the same content at the next cut.
#[test]
fn synced_data_is_there_at_every_cut() {
    let mut replay = recorded(replace_durably, |_| {});
    let cuts = with_lossy(&replay, replay.every_cut(), "old");
    let found = found_at(&mut replay, &cuts);
    for Found { replaced, content } in &found {
        let content = content.as_deref().unwrap();
        assert!(content == NEW || (!replaced && content == OLD), "replaced: {replaced}, {content:?}");
    }
    let recovered: BTreeSet<usize> = replay.every_recovered_cut().iter().map(Cut::position).collect();
    let whole: Vec<_> = cuts.iter().zip(&found).filter(|(cut, _)| !cut.is_lossy()).collect();
    let mut left_out = 0;
    for ((cut, found), (_, next)) in whole.iter().zip(whole.iter().skip(1)) {
        if !recovered.contains(&cut.position()) {
            assert!(found.content == next.content, "{cut}");
            left_out += 1;
        }
    }
    assert!(left_out > 0, "the unmount wrote nothing in place");
}

#[test]
fn a_rename_before_the_data_is_durable_is_found() {
    let mut replay = recorded(replace_without_fsync_of_the_file, |_| {});
    let found = contents(&mut replay);
    assert!(found.iter().any(|found| found.as_deref() == Some(&[])), "the file was never empty");
}

#[test]
fn a_rename_without_a_sync_can_be_lost() {
    let mut replay = recorded(replace_without_fsync_of_the_directory, |_| {});
    let found = contents(&mut replay);
    assert!(found.iter().any(|found| found.as_deref() == Some(OLD)), "the rename was never lost");
    assert!(found.iter().any(|found| found.as_deref() == Some(NEW)), "the rename was always lost");
}

#[test]
fn a_disk_that_drops_flushes_is_found() {
    let mut replay = recorded(replace_durably, Recorder::drop_flushes);
    let found = contents(&mut replay);
    assert!(found.iter().any(|found| found.as_deref() != Some(NEW)), "the new file was never lost");
}

/// A recording of one write of `length` bytes that no flush followed, to a disk of zeros.
fn one_write(length: usize) -> Replay {
    let recorder = Recorder::on_empty_disk();
    // Closing a device writes its page cache back, but does not flush the disk.
    File::options().write(true).open(recorder.device()).unwrap().write_all(&vec![b'x'; length]).unwrap();
    recorder.finish()
}

/// Number of written sectors that each cut keeps.
fn sectors_left(replay: &mut Replay, cuts: &[Cut], sectors: usize) -> Vec<usize> {
    let left = |cut| {
        let disk = replay.restore(cut);
        let content = read(disk.device(), sectors * 512);
        let written = [b'x'; 512].as_slice();
        content.chunks(512).filter(|sector| *sector == written).count()
    };
    cuts.iter().map(left).collect()
}

fn read(device: &Path, length: usize) -> Vec<u8> {
    use std::io::Read;

    let mut content = Vec::new();
    File::open(device).unwrap().take(length as u64).read_to_end(&mut content).unwrap();
    content
}

#[test]
fn a_write_that_was_not_flushed_is_there_or_lost() {
    let mut replay = one_write(4096);
    let cuts = replay.lossy_cuts(1, 40, Tearing::Whole);
    let left = sectors_left(&mut replay, &cuts, 8);
    assert!(left.contains(&0) && left.contains(&8), "{left:?}");
    assert!(left.iter().all(|&left| left == 0 || left == 8), "{left:?}");
}

#[test]
fn a_write_can_be_torn_between_sectors() {
    let mut replay = one_write(4096);
    let cuts = replay.lossy_cuts(1, 40, Tearing::Sectors);
    let left = sectors_left(&mut replay, &cuts, 8);
    assert!(left.iter().any(|left| (1..8).contains(left)), "{left:?}");
}

#[test]
fn a_check_does_not_disturb_the_next() {
    let mut replay = one_write(4096);
    let cuts = replay.every_cut();
    let (first, last) = (cuts.first().unwrap(), cuts.last().unwrap());
    for cut in [first, first, last, last] {
        let disk = replay.restore(cut);
        let expected = if cut.position() == first.position() { 0 } else { b'x' };
        assert_eq!(read(disk.device(), 4096), [expected; 4096]);
        File::options().write(true).open(disk.device()).unwrap().write_all(&[b'y'; 8192]).unwrap();
    }
}

#[test]
#[should_panic(expected = "restore cuts in their order")]
fn an_earlier_cut_is_refused() {
    let recorder = Recorder::on_empty_disk();
    let mut device = File::options().write(true).open(recorder.device()).unwrap();
    device.write_all(&[b'x'; 4096]).unwrap();
    device.sync_all().unwrap();
    drop(device);
    let mut replay = recorder.finish();
    let cuts = replay.every_cut();
    replay.restore(cuts.last().unwrap());
    replay.restore(cuts.first().unwrap());
}

/// Each thread overwrites its own block, flushes it, and sets a mark. A flush of another thread may be on its way.
#[test]
fn what_was_flushed_is_before_the_next_mark() {
    const THREADS: u64 = 4;
    const WRITES: usize = 150;

    let recorder = Recorder::on_empty_disk();
    let write = &|thread: u64| {
        let device = File::options().write(true).open(recorder.device()).unwrap();
        for number in 1..=WRITES {
            device.write_all_at(&[number as u8; 4096], thread * 4096).unwrap();
            device.sync_data().unwrap();
            recorder.mark(&format!("{thread} {number}"));
        }
    };
    thread::scope(|scope| (0..THREADS).for_each(|thread| drop(scope.spawn(move || write(thread)))));
    let replay = recorder.finish();

    let (mut written, mut durable) = ([0; THREADS as usize], [0; THREADS as usize]);
    let mut lost = Vec::new();
    for entry in replay.entries() {
        match entry {
            Entry::Write(write) => written[(write.extent.start / 4096) as usize] += 1,
            Entry::Flush => durable = written,
            Entry::Mark(text) => {
                let Some((thread, number)) = text.split_once(' ') else { continue };
                let (thread, number): (usize, usize) = (thread.parse().unwrap(), number.parse().unwrap());
                if durable[thread] < number {
                    lost.push(text);
                }
            }
            Entry::Discard(_) => {}
        }
    }
    assert_eq!(durable, [WRITES; THREADS as usize]);
    assert!(lost.is_empty(), "{} marks precede a write that was flushed before: {lost:?}", lost.len());
}

#[test]
fn marks_are_read_back_as_they_were_set() {
    let recorder = Recorder::on_empty_disk();
    let marks = ["plain", "with blanks and \\ and \"quotes\"", "ümläut", &"long".repeat(100)];
    marks.iter().for_each(|mark| recorder.mark(mark));
    let replay = recorder.finish();
    assert_eq!(replay.every_cut().last().unwrap().marks().collect::<Vec<_>>(), marks);
}

#[test]
fn the_making_of_a_file_system_can_be_cut_too() {
    let recorder = Recorder::on_empty_disk();
    run(Command::new("mkfs.xfs").arg("-q").arg(recorder.device()));
    recorder.mark("made");
    let mut replay = recorder.finish();
    assert!(replay.entries().iter().any(|entry| matches!(entry, Entry::Discard(_))));
    let cuts = replay.every_cut();
    let last = cuts.last().unwrap();
    assert!(last.has_passed("made"));
    replay.restore(last).mount("prjquota");
}
