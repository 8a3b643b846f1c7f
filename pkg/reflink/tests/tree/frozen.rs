//! Clones whose last pass runs while the writers are frozen.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::unistd::syncfs;

use crate::{PATIENCE, Stage};

const CGROUP: &str = "/tmp/cgroup/pod";
const BUDGET: Duration = Duration::from_secs(60);
/// Files that the writer changes.
const FILES: u64 = 8;

/// The guard, if this program was started as one.
#[test]
#[ignore = "started by the tests"]
fn the_guard() {
    freezer::guard();
}

/// The writer, if this program was started as one: writes each number to all files, one after the other, and renames a
/// file to it.
#[test]
#[ignore = "started by the tests"]
fn the_writer() {
    let top = PathBuf::from(std::env::var("TOP").unwrap());
    fs::write(Path::new(CGROUP).join("cgroup.procs"), "0").unwrap();
    let files: Vec<File> = (0..FILES).map(|number| File::create(top.join(number.to_string())).unwrap()).collect();
    fs::write(top.join("name-0"), "").unwrap();
    for number in 1_u64.. {
        for file in &files {
            file.write_all_at(&number.to_le_bytes(), 0).unwrap();
        }
        fs::rename(top.join(format!("name-{}", number - 1)), top.join(format!("name-{number}"))).unwrap();
    }
}

fn this_program(test: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", test, "--ignored", "--nocapture"]).stdout(Stdio::null());
    command
}

/// A writer in a cgroup.
struct Pod(Child);

impl Pod {
    fn start(top: &Path) -> Self {
        fs::create_dir("/tmp/cgroup").unwrap();
        mount(Some("cgroup2"), "/tmp/cgroup", Some("cgroup2"), MsFlags::empty(), None::<&str>).unwrap();
        fs::create_dir(CGROUP).unwrap();
        let pod = Self(this_program("frozen::the_writer").env("TOP", top).spawn().unwrap());
        let end = Instant::now() + PATIENCE;
        while numbers(top).is_none_or(|numbers| numbers[0] <= 10) {
            assert!(Instant::now() < end, "the writer does not write");
            thread::yield_now();
        }
        pod
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        fs::write(Path::new(CGROUP).join("cgroup.kill"), "1").unwrap();
        self.0.wait().unwrap();
    }
}

/// The numbers in the files, and that of the name.
fn numbers(top: &Path) -> Option<Vec<u64>> {
    let files = (0..FILES).map(|number| fs::read(top.join(number.to_string())).ok()?.try_into().ok());
    let mut numbers: Vec<u64> = files.map(|content| content.map(u64::from_le_bytes)).collect::<Option<_>>()?;
    let names: Vec<u64> = fs::read_dir(top)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("name-")?.parse().ok())
        .collect();
    let [name] = names[..] else { return None };
    numbers.push(name);
    Some(numbers)
}

#[test]
fn a_clone_of_frozen_writers_has_one_instant_in_all_its_files() {
    let stage = Stage::new();
    let _pod = Pod::start(&stage.from);
    let mut last = 0;
    for _ in 0..4 {
        let mut clone = stage.begin();
        clone.approach(None).unwrap();
        clone.sync().unwrap();
        let frozen = freezer::freeze(this_program("frozen::the_guard"), &[CGROUP], BUDGET).unwrap();
        let complete = clone.complete(Some(frozen.deadline())).unwrap();
        stage.expect_equal();
        let pause = frozen.thaw().unwrap();
        complete.finish().unwrap();
        println!("frozen after {:?}, paused for {:?}", pause.freeze, pause.total);
        // Each number is written after the one before it.
        let numbers = numbers(&stage.to).expect("all files");
        assert!(numbers.is_sorted_by(|one, next| one >= next), "{numbers:?}");
        assert!(numbers[0] - numbers[FILES as usize] <= 1 && numbers[0] > last, "{numbers:?} after {last}");
        last = numbers[0];
        stage.clear();
    }
}

/// The last pass over 1,000 files, of which 20 have changed, beside a copy with its sync.
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

    let mut clone = stage.begin();
    clone.approach(None).unwrap();
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

/// Not by `fs::copy`, which clones.
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
