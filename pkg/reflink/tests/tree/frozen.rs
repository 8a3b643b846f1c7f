//! Clones whose last pass runs while the writers are frozen.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use ktest_support::{Writer, mount_cgroups, numbers, this_program};
use nix::unistd::syncfs;

use crate::Stage;

const CGROUP: &str = "/tmp/cgroup/pod";
const BUDGET: Duration = Duration::from_secs(60);
/// Files that the writer changes.
const FILES: [&str; 8] = ["0", "1", "2", "3", "4", "5", "6", "7"];

/// The guard, if this program was started as one.
#[test]
#[ignore = "started by the tests"]
fn the_guard() {
    freezer::guard();
}

/// The writer, if this program was started as one. It renames a file to each number.
#[test]
#[ignore = "started by the tests"]
fn the_writer() {
    Writer::run(|top, number| {
        let name = |number| top.join(format!("name-{number}"));
        if number == 1 {
            fs::write(name(1), "").unwrap();
        } else {
            fs::rename(name(number - 1), name(number)).unwrap();
        }
    });
}

/// The numbers in the files, and that of the name.
fn all_numbers(top: &Path) -> Vec<u64> {
    let mut all = numbers(top, &FILES).expect("all files").to_vec();
    let names = fs::read_dir(top).unwrap().filter_map(|entry| Some(entry.unwrap().file_name().to_str()?.to_owned()));
    let names: Vec<u64> = names.filter_map(|name| name.strip_prefix("name-")?.parse().ok()).collect();
    let [name] = names[..] else { panic!("{names:?}") };
    all.push(name);
    all
}

#[test]
fn a_clone_of_frozen_writers_has_one_instant_in_all_its_files() {
    let stage = Stage::new();
    mount_cgroups(Path::new("/tmp/cgroup"));
    let _writer = Writer::start("frozen::the_writer", Path::new(CGROUP), &stage.from, &FILES);
    let mut last = 0;
    for _ in 0..4 {
        let clone = stage.approached();
        clone.sync().unwrap();
        let frozen = freezer::freeze(this_program("frozen::the_guard"), &[CGROUP], BUDGET).unwrap();
        let complete = clone.complete(Some(frozen.deadline())).unwrap();
        stage.expect_equal();
        let pause = frozen.thaw().unwrap();
        complete.finish().unwrap();
        println!("frozen after {:?}, paused for {:?}", pause.freeze, pause.total);
        // Each number is written after the one before it.
        let numbers = all_numbers(&stage.to);
        assert!(numbers.is_sorted_by(|one, next| one >= next), "{numbers:?}");
        assert!(numbers[0] - numbers[FILES.len()] <= 1 && numbers[0] > last, "{numbers:?} after {last}");
        last = numbers[0];
        stage.clear();
    }
}

/// Compares the last pass over 1,000 files, of which 20 have changed, with a copy and its sync.
#[test]
fn the_last_pass_takes_at_most_a_third_of_a_copy() {
    let stage = Stage::new();
    for number in 0..1000 {
        let dir = stage.from.join((number % 20).to_string());
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(number.to_string()), vec![1; 8192]).unwrap();
    }
    let other = stage.disk.path().join("copy");
    let disk = File::open(stage.disk.path()).unwrap();
    syncfs(&disk).unwrap();
    let begin = Instant::now();
    copy(&stage.from, &other);
    syncfs(&disk).unwrap();
    let copied = begin.elapsed();

    let clone = stage.approached();
    clone.sync().unwrap();
    for number in 0..20 {
        fs::write(stage.from.join(number.to_string()).join(number.to_string()), "changed").unwrap();
    }
    let begin = Instant::now();
    let complete = clone.complete(None).unwrap();
    let paused = begin.elapsed();
    println!("last pass {paused:?} ({:?}), copy {copied:?}", complete.counts());
    complete.finish().unwrap();
    stage.expect_equal();
    assert!(paused * 3 <= copied, "{paused:?} against {copied:?}");
}

/// Copies without `fs::copy`, which clones.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::write(to, fs::read(entry.path()).unwrap()).unwrap();
        }
    }
}
