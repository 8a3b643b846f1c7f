//! Memory limits that the kernel enforces. Needs root, and a machine whose other programs do not use cgroups.
//!
//! The limited program is this test binary. libtest accepts any word after `--skip`; the word [`EATER`] makes the test
//! of the same name act as the program.

use std::env;
use std::fs;
use std::hint::black_box;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use programs::{Paths, Program};
use supervisor::{Backoff, Settings, State, Supervisor};
use tempfile::TempDir;
use units::Bytes;

const LIMIT: Duration = Duration::from_secs(60);

/// Argument of the program: this prefix and a number of MiB.
const EATER: &str = "takes-mib-";

/// Runs in the program: allocates the memory of its argument, and waits until it is stopped.
fn eat_if_started_so() {
    let Some(mib) = env::args().find_map(|word| word.strip_prefix(EATER)?.parse::<usize>().ok()) else { return };
    // Reads the cgroup before the allocation: memory that is allocated in another cgroup has no limit.
    fs::copy("/proc/self/cgroup", format!("/tmp/began-{mib}")).unwrap();
    println!("taking {mib} MiB");
    let mut taken = Vec::new();
    for _ in 0..mib {
        taken.push(black_box(vec![1_u8; 1 << 20]));
    }
    fs::write("/tmp/eaten", "all").unwrap();
    loop {
        thread::park();
    }
}

/// The cgroup2 hierarchy, shared by all tests.
fn cgroups() -> &'static Path {
    static MOUNTED: Mutex<bool> = Mutex::new(false);
    let path = Path::new("/tmp/cgroup");
    let mut is_mounted = MOUNTED.lock().unwrap();
    if !*is_mounted {
        fs::create_dir_all(path).unwrap();
        mount(Some("cgroup2"), path, Some("cgroup2"), MsFlags::empty(), None::<&str>).unwrap();
        *is_mounted = true;
    }
    path
}

struct Node {
    name: &'static str,
    paths: Paths,
    _scratch: TempDir,
}

impl Node {
    fn with(name: &'static str) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let paths = Paths {
            programs: scratch.path().join("bin"),
            ephemeral: scratch.path().join("ephemeral"),
            cgroups: Some(cgroups().to_owned()),
            ..Paths::default()
        };
        fs::create_dir(&paths.programs).unwrap();
        symlink(env::current_exe().unwrap(), paths.programs.join(name)).unwrap();
        Self { name, paths, _scratch: scratch }
    }

    /// Starts this test binary with a test that allocates `mib` MiB.
    fn start(&self, test: &str, mib: u64, limit: Bytes) -> Supervisor {
        let argument = format!("{EATER}{mib}");
        let program = Program {
            name: self.name,
            arguments: ["--exact", test, "--nocapture", "--skip", &argument].map(str::to_owned).into(),
            memory: Some(limit),
            ..Program::default()
        };
        let backoff = Backoff { first: Duration::from_millis(100), ..Backoff::default() };
        let settings = Settings { backoff, ..Settings::default() };
        Supervisor::start(self.name, settings, program.service(&self.paths, || std::future::ready(Ok(()))))
    }
}

fn wait(tree: &Supervisor, what: &str, mut has_come: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !has_come() {
        assert!(Instant::now() < end, "waited for {what}: {:#?}", tree.status());
        thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_above_its_limit_is_killed_and_started_again() {
    eat_if_started_so();
    // The node counts OOM kills only of programs in its list.
    let node = Node::with("kube-proxy");
    let test = "a_program_above_its_limit_is_killed_and_started_again";
    let tree = node.start(test, 4096, Bytes::new(32 << 20));
    wait(&tree, "the third attempt", || tree.status().attempts > 2);
    let error = tree.status().last_error.unwrap();
    let wanted = "kube-proxy was killed: it exceeded its memory limit of 32 MiB; last output: ";
    assert!(error.starts_with(wanted) && error.contains("taking 4096 MiB"), "{error}");
    tree.stop(LIMIT).await.unwrap();
    let counted = programs::out_of_memory(&node.paths);
    let (_, kills) = counted.iter().find(|(program, _)| *program == "kube-proxy").unwrap();
    assert!(*kills >= 2, "{counted:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_takes_less_than_its_limit_is_left_alone() {
    eat_if_started_so();
    let node = Node::with("modest");
    let tree = node.start("a_program_that_takes_less_than_its_limit_is_left_alone", 16, Bytes::new(128 << 20));
    wait(&tree, "its memory", || Path::new("/tmp/eaten").exists());
    assert_eq!(fs::read_to_string("/tmp/began-16").unwrap(), "0::/modest\n");
    let read = |file: &str| fs::read_to_string(cgroups().join("modest").join(file)).unwrap();
    assert_eq!(read("memory.max"), "134217728\n");
    assert_eq!(read("memory.oom.group"), "1\n");
    assert!(read("memory.current").trim_end().parse::<u64>().unwrap() > 16 << 20);
    let process = read("cgroup.procs");
    let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", process.lines().next().unwrap())).unwrap();
    assert_eq!(score, "-999\n");
    let status = tree.status();
    assert_eq!((status.state, status.attempts), (State::Healthy, 1));
    tree.stop(LIMIT).await.unwrap();
}
