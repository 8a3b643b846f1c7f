//! Tests with the kernel's freezer, and guards that are this program again.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use freezer::{FreezeError, Frozen, MARK, freeze, thaw_marked};
use ktest_support::process::parent_killed_before;
use ktest_support::{eventually, mount_cgroups, this_program};
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

/// A budget that no test exceeds.
const LONG: Duration = Duration::from_secs(60);
const ROOT: &str = "/tmp/cgroup";
const TASKS: usize = 40;
/// Number of reads of all counters while the tasks are frozen, which together take much longer than a running task
/// sleeps.
const LOOKS: usize = 300;
/// A cgroup that a container creates, below that of the pod.
const THREADS: &str = "container/threads";

/// Runs the guard, if this program was started as one.
#[test]
#[ignore = "started by the tests"]
fn the_guard() {
    fs::write("/tmp/guard", process::id().to_string()).unwrap();
    freezer::guard();
}

fn guard() -> Command {
    this_program("the_guard")
}

/// Runs the writer, if this program was started as one: in the cgroup `CGROUP`, each thread counts in a file.
#[test]
#[ignore = "started by the tests"]
fn the_writer() {
    let (cgroup, counters) = (std::env::var("CGROUP").unwrap(), std::env::var("COUNTERS").unwrap());
    fs::write(Path::new(&cgroup).join("cgroup.procs"), "0").unwrap();
    for task in 0..TASKS {
        let counter = File::create(Path::new(&counters).join(task.to_string())).unwrap();
        thread::spawn(move || {
            for count in 1_u64.. {
                counter.write_all_at(&count.to_le_bytes(), 0).unwrap();
                // Leave the CPUs to the test.
                thread::sleep(Duration::from_millis(5));
            }
        });
    }
    loop {
        thread::park();
    }
}

/// Runs a pod that starts processes all the time, if this program was started as one. Four threads append a byte for
/// each process.
#[test]
#[ignore = "started by the tests"]
fn the_forker() {
    let (cgroup, started) = (std::env::var("CGROUP").unwrap(), std::env::var("STARTED").unwrap());
    fs::write(Path::new(&cgroup).join("cgroup.procs"), "0").unwrap();
    for _ in 0..4 {
        let mut log = File::options().append(true).create(true).open(&started).unwrap();
        thread::spawn(move || {
            // The program runs no test and ends.
            while this_program("missing").status().is_ok() {
                log.write_all(b".").unwrap();
            }
        });
    }
    loop {
        thread::park();
    }
}

/// A cgroup with a child, in which a process with many threads writes. The tests take turns.
struct Pod {
    path: PathBuf,
    counters: PathBuf,
    writer: Child,
    _turn: MutexGuard<'static, ()>,
}

impl Pod {
    fn start() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        if !Path::new(ROOT).exists() {
            mount_cgroups(Path::new(ROOT));
        }
        let (path, counters) = (Path::new(ROOT).join("pod"), PathBuf::from("/tmp/counters"));
        fs::create_dir_all(path.join("container")).unwrap();
        fs::create_dir_all(&counters).unwrap();
        let writer = this_program("the_writer")
            .env("CGROUP", path.join("container"))
            .env("COUNTERS", &counters)
            .spawn()
            .unwrap();
        let pod = Self { path, counters, writer, _turn: turn };
        eventually("all tasks write", || (0..TASKS).all(|task| pod.count(task) > 0));
        pod
    }

    fn freeze(&self, budget: Duration) -> Result<Frozen, FreezeError> {
        freeze(guard(), &[&self.path], budget)
    }

    /// Freezes the cgroup as if both processes were killed: this one does not thaw.
    fn leave_frozen(&self) {
        std::mem::forget(self.freeze(LONG).unwrap());
        kill(guard_pid(), Signal::SIGKILL).unwrap();
        eventually("the guard has ended", || File::open(&self.path).unwrap().try_lock().is_ok());
        assert!(self.is_frozen() && self.is_marked());
    }

    fn count(&self, task: usize) -> u64 {
        let content = fs::read(self.counters.join(task.to_string())).unwrap_or_default();
        content.try_into().map_or(0, u64::from_le_bytes)
    }

    fn counts(&self) -> Vec<u64> {
        (0..TASKS).map(|task| self.count(task)).collect()
    }

    fn requested(&self) -> String {
        fs::read_to_string(self.path.join("cgroup.freeze")).unwrap().trim().to_owned()
    }

    fn is_frozen(&self) -> bool {
        fs::read_to_string(self.path.join("cgroup.events")).unwrap().contains("frozen 1")
    }

    fn is_marked(&self) -> bool {
        rustix::fs::getxattr(&self.path, MARK, &mut [0; 8][..]).is_ok()
    }

    /// Checks that all tasks run and that no trace of the freeze is left.
    fn expect_thawed(&self) {
        let before = self.counts();
        eventually("the tasks run again", || self.counts().iter().zip(&before).all(|(now, before)| now > before));
        assert_eq!((self.requested().as_str(), self.is_frozen(), self.is_marked()), ("0", false, false));
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // `cgroup.kill` ends frozen processes too.
        fs::write(self.path.join("cgroup.kill"), "1").unwrap();
        self.writer.wait().unwrap();
        eventually("the cgroup is empty", || {
            // One test creates this cgroup.
            let _ = fs::remove_dir(self.path.join(THREADS));
            fs::remove_dir(self.path.join("container")).is_ok()
        });
        fs::remove_dir(&self.path).unwrap();
        fs::remove_dir_all(&self.counters).unwrap();
    }
}

/// Whether a guard runs. A guard that has ended has no arguments.
fn has_guard() -> bool {
    let arguments = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
    fs::read_dir("/proc").unwrap().any(|entry| arguments(entry.unwrap()).contains("the_guard"))
}

/// Whether one of the threads is in this system call, proc_pid_syscall(5).
fn is_in_call(pid: &str, call: i64) -> bool {
    let calls = |task: fs::DirEntry| fs::read_to_string(task.path().join("syscall")).unwrap_or_default();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.map(calls).any(|found| found.starts_with(&format!("{call} ")))
}

fn guard_pid() -> Pid {
    Pid::from_raw(fs::read_to_string("/tmp/guard").unwrap().parse().unwrap())
}

#[test]
fn frozen_processes_do_not_run_until_they_are_thawed() {
    let pod = Pod::start();
    let begin = Instant::now();
    let frozen = pod.freeze(LONG).unwrap();
    assert!(pod.is_frozen() && pod.is_marked());
    let counts = pod.counts();
    for _ in 0..LOOKS {
        assert_eq!(pod.counts(), counts);
    }
    assert!(frozen.deadline() > Instant::now() && frozen.deadline() < Instant::now() + LONG);
    let pause = frozen.thaw().unwrap();
    assert!(pause.freeze < pause.total && pause.total < begin.elapsed(), "{pause:?}");
    pod.expect_thawed();
}

#[test]
fn dropping_thaws() {
    let pod = Pod::start();
    drop(pod.freeze(LONG).unwrap());
    pod.expect_thawed();
}

/// The program is killed before each system call that may change something, among them the start of the guard, the
/// request, and calls while the cgroup is frozen.
#[test]
fn a_killed_program_leaves_no_cgroup_frozen_for_a_second() {
    let pod = Pod::start();
    let work = || {
        // Blocked, because the signal at the end of the guard would stop this process for its tracer.
        let mut ends = SigSet::empty();
        ends.add(Signal::SIGCHLD);
        ends.thread_block().unwrap();
        let frozen = pod.freeze(LONG).unwrap();
        // These writes take the place of a clone.
        fs::write("/tmp/stage", "frozen").unwrap();
        fs::write("/tmp/stage", "cloned").unwrap();
        frozen.thaw().unwrap();
        fs::write("/tmp/stage", "thawed").unwrap();
    };
    let (mut step, mut stages) = (0, Vec::new());
    loop {
        fs::write("/tmp/stage", "before").unwrap();
        if !parent_killed_before(step, |call| call.may_change_files(), work) {
            break;
        }
        let killed = Instant::now();
        // A guard that starts later finds its socket closed.
        eventually("the cgroup is thawed", || pod.requested() == "0" && !pod.is_marked());
        assert!(killed.elapsed() < Duration::from_secs(1), "step {step}: {:?}", killed.elapsed());
        stages.push(fs::read_to_string("/tmp/stage").unwrap());
        // A guard that still runs may freeze the cgroup once more for an instant, during the next step.
        eventually("the guard has ended", || !has_guard());
        step += 1;
    }
    for stage in ["before", "frozen", "cloned"] {
        assert!(stages.iter().any(|reached| reached == stage), "{stage}: {stages:?}");
    }
    pod.expect_thawed();
}

#[test]
fn the_guard_thaws_at_the_deadline_and_the_program_gets_an_error() {
    const BUDGET: Duration = Duration::from_secs(1);
    let pod = Pod::start();
    let frozen = pod.freeze(BUDGET).unwrap();
    let begin = Instant::now();
    eventually("the cgroup is thawed", || pod.requested() == "0");
    assert!(begin.elapsed() < BUDGET + Duration::from_secs(1));
    pod.expect_thawed();
    let error = frozen.thaw().unwrap_err();
    let FreezeError::Late { budget: BUDGET, freeze: Some(freeze), total } = error else { panic!("{error:?}") };
    assert!(freeze < BUDGET && (BUDGET..BUDGET + Duration::from_secs(1)).contains(&total), "{error:?}");
}

#[test]
fn processes_that_cannot_be_frozen_in_time_run_on() {
    let pod = Pod::start();
    let late = match pod.freeze(Duration::from_nanos(1)) {
        Ok(frozen) => frozen.thaw().unwrap_err(),
        Err(error) => error,
    };
    assert!(matches!(late, FreezeError::Late { total, .. } if !total.is_zero()), "{late:?}");
    pod.expect_thawed();
}

#[test]
fn the_program_thaws_if_the_guard_is_killed() {
    let pod = Pod::start();
    let frozen = pod.freeze(LONG).unwrap();
    kill(guard_pid(), Signal::SIGKILL).unwrap();
    assert!(matches!(frozen.thaw(), Err(FreezeError::Guard)));
    pod.expect_thawed();
}

#[test]
fn a_program_that_is_not_a_guard_is_an_error_and_nothing_stays_frozen() {
    let pod = Pod::start();
    assert!(matches!(freeze(this_program("missing"), &[&pod.path], LONG), Err(FreezeError::Guard)));
    assert!(matches!(freeze(Command::new("/missing"), &[&pod.path], LONG), Err(FreezeError::Start(_))));
    pod.expect_thawed();
}

#[test]
fn a_cgroup_that_another_process_froze_is_rejected_and_stays_frozen() {
    let pod = Pod::start();
    fs::write(pod.path.join("cgroup.freeze"), "1").unwrap();
    let error = pod.freeze(LONG).unwrap_err();
    assert!(matches!(&error, FreezeError::AlreadyFrozen { path } if *path == pod.path), "{error:?}");
    assert_eq!((pod.requested().as_str(), pod.is_marked()), ("1", false));
}

/// Regression: a cgroup of a killed run stayed frozen until the next start if another one of the request was rejected.
#[test]
fn a_rejected_freeze_thaws_the_cgroups_of_a_killed_run() {
    let pod = Pod::start();
    // A guard opens the first before the pod, the second after it.
    for name in ["other", "rejected"] {
        let other = Path::new(ROOT).join(name);
        let state = other.join("cgroup.freeze");
        fs::create_dir(&other).unwrap();
        fs::write(&state, "1").unwrap();
        pod.leave_frozen();
        let error = freeze(guard(), &[&pod.path, &other], LONG).unwrap_err();
        assert!(matches!(&error, FreezeError::AlreadyFrozen { path } if *path == other), "{error:?}");
        pod.expect_thawed();
        assert_eq!(fs::read_to_string(state).unwrap().trim(), "1");
        fs::remove_dir(other).unwrap();
    }
}

/// Regression: both freezes had one pause, which the first thaw ended, and a third freeze hid that from the second.
#[test]
fn a_second_freeze_has_a_pause_of_its_own() {
    let pod = Pod::start();
    let first = pod.freeze(LONG).unwrap();
    let guard = guard_pid().to_string();
    thread::scope(|scope| {
        let second = scope.spawn(|| pod.freeze(LONG));
        // The second guard waits for its turn. A pause that began at once would wait too, and the first thaw would end
        // it.
        eventually("the second guard waits", || {
            let pid = fs::read_to_string("/tmp/guard").unwrap();
            pid != guard && is_in_call(&pid, libc::SYS_ppoll)
        });
        assert!(!second.is_finished());
        first.thaw().unwrap();
        let second = second.join().unwrap().unwrap();
        assert!(pod.is_frozen() && pod.is_marked());
        let counts = pod.counts();
        thread::sleep(Duration::from_millis(100));
        assert_eq!(pod.counts(), counts);
        second.thaw().unwrap();
    });
    pod.expect_thawed();
}

#[test]
fn a_cgroup_that_is_named_twice_is_frozen_once() {
    let pod = Pod::start();
    freeze(guard(), &[&pod.path, &pod.path], LONG).unwrap().thaw().unwrap();
    pod.expect_thawed();
}

#[test]
fn a_thaw_by_another_process_is_reported() {
    let pod = Pod::start();
    let frozen = pod.freeze(LONG).unwrap();
    fs::write(pod.path.join("cgroup.freeze"), "0").unwrap();
    let thawed = frozen.thaw();
    assert!(matches!(&thawed, Err(FreezeError::Thawed { path }) if *path == pod.path), "{thawed:?}");
    pod.expect_thawed();
}

#[test]
fn cgroups_that_are_missing_or_vanish_count_as_frozen() {
    let pod = Pod::start();
    let (empty, missing) = (Path::new(ROOT).join("empty"), Path::new(ROOT).join("missing"));
    fs::create_dir(&empty).unwrap();
    let frozen = freeze(guard(), &[&empty, &pod.path, &missing], LONG).unwrap();
    fs::remove_dir(&empty).unwrap();
    assert!(pod.is_frozen());
    frozen.thaw().unwrap();
    pod.expect_thawed();
}

/// The container runtime starts a process in a container by moving it there, for example for a probe.
#[test]
fn a_process_that_enters_a_frozen_cgroup_does_not_run() {
    let pod = Pod::start();
    let frozen = pod.freeze(LONG).unwrap();
    let mut late = this_program("the_writer")
        .env("CGROUP", pod.path.join("container"))
        .env("COUNTERS", "/missing")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = late.id().to_string();
    eventually("the process is in the cgroup", || {
        fs::read_to_string(pod.path.join("container/cgroup.procs")).unwrap().lines().any(|line| line == pid)
    });
    frozen.thaw().unwrap();
    // The process fails at its first counter, but not before the thaw.
    assert!(!late.wait().unwrap().success());
    pod.expect_thawed();
}

/// A process that is being started belongs to the cgroup before it has run, and its parent waits for it.
#[test]
fn a_pod_that_starts_processes_all_the_time_is_frozen_as_a_whole() {
    let pod = Pod::start();
    let (container, started) = (pod.path.join("container"), Path::new("/tmp/started"));
    fs::write(started, "").unwrap();
    let mut forker = this_program("the_forker").env("CGROUP", &container).env("STARTED", started).spawn().unwrap();
    let count = || fs::metadata(started).unwrap().len();
    let processes = || fs::read_to_string(container.join("cgroup.procs")).unwrap();
    for _ in 0..8 {
        let before = count();
        eventually("processes are started", || count() > before);
        let frozen = pod.freeze(LONG).unwrap();
        let seen = (count(), processes(), pod.counts());
        thread::sleep(Duration::from_millis(100));
        assert_eq!((count(), processes(), pod.counts()), seen);
        assert!(pod.is_frozen());
        frozen.thaw().unwrap();
    }
    pod.expect_thawed();
    // Dropping the pod ends the process.
    drop(pod);
    forker.wait().unwrap();
    fs::remove_file(started).unwrap();
}

/// Root in a container can create cgroups below its own one, if it can mount cgroup2.
#[test]
fn threads_in_a_cgroup_that_a_container_created_are_frozen_too() {
    let pod = Pod::start();
    let threads = pod.path.join(THREADS);
    fs::create_dir(&threads).unwrap();
    fs::write(threads.join("cgroup.type"), "threaded").unwrap();
    let tasks = fs::read_dir(format!("/proc/{}/task", pod.writer.id())).unwrap();
    let task = tasks.last().unwrap().unwrap().file_name().into_string().unwrap();
    fs::write(threads.join("cgroup.threads"), task).unwrap();
    let frozen = pod.freeze(LONG).unwrap();
    let counts = pod.counts();
    // The container has no access to the cgroup above its own one.
    fs::write(threads.join("cgroup.freeze"), "0").unwrap();
    for _ in 0..LOOKS {
        assert_eq!(pod.counts(), counts);
    }
    assert!(pod.is_frozen());
    frozen.thaw().unwrap();
    pod.expect_thawed();
}

/// The container's own freeze does not count as the freeze of another process, and stays.
#[test]
fn a_cgroup_that_a_container_froze_stays_frozen() {
    let pod = Pod::start();
    let container = pod.path.join("container");
    fs::write(container.join("cgroup.freeze"), "1").unwrap();
    pod.freeze(LONG).unwrap().thaw().unwrap();
    assert_eq!(fs::read_to_string(container.join("cgroup.freeze")).unwrap().trim(), "1");
    fs::write(container.join("cgroup.freeze"), "0").unwrap();
    pod.expect_thawed();
}

#[test]
fn too_many_cgroups_for_one_request_are_an_error() {
    let pod = Pod::start();
    let missing: Vec<PathBuf> =
        (0..2000).map(|number| Path::new(ROOT).join("x".repeat(200)).join(number.to_string())).collect();
    assert!(matches!(freeze(guard(), &missing, LONG), Err(FreezeError::TooMany)));
    pod.expect_thawed();
}

#[test]
fn a_directory_that_is_not_a_cgroup_is_an_error() {
    let pod = Pod::start();
    let error = freeze(guard(), &[&pod.path, Path::new("/tmp/counters")], LONG).unwrap_err();
    assert!(matches!(error, FreezeError::Cgroup { errno: Errno::ENOENT, .. }), "{error:?}");
    pod.expect_thawed();
}

#[test]
fn marked_cgroups_are_thawed_at_the_start_and_others_stay_frozen() {
    let pod = Pod::start();
    let other = Path::new(ROOT).join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("cgroup.freeze"), "1").unwrap();
    pod.leave_frozen();
    let mut thawed = Vec::new();
    thaw_marked(Path::new(ROOT), |path| thawed.push(path.to_owned())).unwrap();
    assert_eq!(thawed, std::slice::from_ref(&pod.path));
    pod.expect_thawed();
    assert_eq!(fs::read_to_string(other.join("cgroup.freeze")).unwrap().trim(), "1");
    thaw_marked(Path::new(ROOT), |path| panic!("{} was thawed again", path.display())).unwrap();
    fs::remove_dir(other).unwrap();
}

/// Regression: after an error, the caller did not get the paths.
#[test]
fn thawed_cgroups_are_named_despite_an_error() {
    let pod = Pod::start();
    pod.leave_frozen();
    let mut thawed = Vec::new();
    // The directories there are not cgroups that can be frozen.
    let error = thaw_marked(Path::new("/tmp"), |path| thawed.push(path.to_owned())).unwrap_err();
    assert!(matches!(error, FreezeError::Cgroup { errno: Errno::ENOENT, .. }), "{error:?}");
    assert_eq!(thawed, std::slice::from_ref(&pod.path));
    pod.expect_thawed();
}
