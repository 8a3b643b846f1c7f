//! Limits of volumes while the program is killed, replaced and disabled.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use fsquota::ProjectId;
use ktest_support::{XfsDisk, eventually};
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{Kubelet, account, run};

/// Environment variable with the task of a child process of the test.
const ROLE: &str = "LIMITS_ROLE";
const PROGRAM: &str = "program";
const ATTACKER: &str = "attacker";
const ONCE: &str = "once";
const CGROUP: &str = "LIMITS_CGROUP";
const ARGUMENTS: &str = "LIMITS_ARGUMENTS";

const TEST: &str = "limits::pods_stay_restricted_while_the_program_is_replaced";
const ADDRESS: &str = "127.0.0.1:7839";
const PATIENCE: Duration = Duration::from_secs(60);

/// Cgroups with the names that the kubelet and containerd use.
const PODS: &str = "/sys/fs/cgroup/kubepods";
const TENANT: &str = "besteffort/pod0b/0b";

fn child(role: &str, cgroup: &str, arguments: &str) -> Child {
    let cgroup = Path::new(PODS).join(cgroup);
    fs::create_dir_all(&cgroup).unwrap();
    Command::new("/proc/self/exe")
        .args(["--exact", TEST, "--nocapture"])
        .envs([(ROLE, role), (CGROUP, cgroup.to_str().unwrap()), (ARGUMENTS, arguments)])
        .envs([("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", "6443")])
        .spawn()
        .unwrap()
}

/// Tries to change the project of a directory until the directory has the file `end`. Fails if a change succeeds.
fn attack(directory: &Path) {
    let deadline = Instant::now() + 3 * PATIENCE;
    let volume = File::open(directory).unwrap();
    let mut denied = 0;
    while !directory.join("end").exists() {
        assert!(Instant::now() < deadline, "the test did not end the attack");
        let changed = fsquota::disown(&volume);
        assert!(changed.is_err(), "the project was changed after {denied} attempts that were denied");
        denied += 1;
        if denied == 1 {
            File::create(directory.join("started")).unwrap();
        }
    }
    assert!(denied > 1, "{denied}");
}

/// The program's response to a request. `None` if the program does not listen.
fn get(path: &str) -> Option<String> {
    let request = || -> io::Result<String> {
        let mut stream = TcpStream::connect(ADDRESS)?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    request().ok()
}

struct Agent(Child);

impl Agent {
    /// Starts the program, and waits until the metric `granary_limits_enforced` has the value.
    fn start(container: &str, arguments: &str, is_enforced: bool) -> Self {
        let mut child = child(PROGRAM, &format!("besteffort/pod0a/{container}"), arguments);
        let line = format!("granary_limits_enforced {}", u8::from(is_enforced));
        eventually(&line, || {
            assert_eq!(child.try_wait().unwrap(), None, "the program ended");
            get("/metrics").is_some_and(|metrics| metrics.lines().any(|found| found == line))
        });
        Self(child)
    }

    fn end(mut self) {
        kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

/// Mounts a file system, unless another test has mounted it.
fn ensure_mounted(kind: &str, path: &str) {
    if fs::read_to_string("/proc/mounts").unwrap().lines().all(|line| line.split(' ').nth(1) != Some(path)) {
        mount(Some(kind), path, Some(kind), MsFlags::empty(), None::<&str>).unwrap();
    }
}

#[test]
fn pods_stay_restricted_while_the_program_is_replaced() {
    if let Ok(role) = env::var(ROLE) {
        let arguments = env::var(ARGUMENTS).unwrap();
        fs::write(Path::new(&env::var(CGROUP).unwrap()).join("cgroup.procs"), "0").unwrap();
        match &*role {
            PROGRAM => assert_eq!(run(&arguments.split(' ').collect::<Vec<_>>()), ExitCode::SUCCESS),
            ATTACKER => attack(Path::new(&arguments)),
            ONCE => assert_eq!(fsquota::disown(File::open(arguments).unwrap()).ok(), Some(true)),
            other => panic!("{other}"),
        }
        return;
    }
    for (kind, path) in [("cgroup2", "/sys/fs/cgroup"), ("securityfs", "/sys/kernel/security"), ("bpf", "/sys/fs/bpf")]
    {
        ensure_mounted(kind, path);
    }
    let disk = XfsDisk::with_project_quota();
    let kubelet = Kubelet::new(MsFlags::MS_SHARED);
    account(&kubelet);
    let volume = disk.path().join("tenant");
    fs::create_dir(&volume).unwrap();
    let project = ProjectId::new(77).unwrap();
    let limits = fsquota::Limits::for_size(units::Bytes::GIB);
    let own = || fsquota::assign(File::open(&volume).unwrap(), project, limits).map(drop);
    own().unwrap();
    // Runs an attack while the closure runs.
    let is_denied_during = |happens: &mut dyn FnMut()| {
        let mut attacker = child(ATTACKER, TENANT, volume.to_str().unwrap());
        eventually("the attack", || {
            assert_eq!(attacker.try_wait().unwrap(), None, "the attack ended");
            volume.join("started").exists()
        });
        happens();
        File::create(volume.join("end")).unwrap();
        assert!(attacker.wait().unwrap().success(), "every call is denied");
        ["started", "end"].iter().for_each(|name| fs::remove_file(volume.join(name)).unwrap());
    };

    let [directory, shared] = [disk.path(), kubelet.path()].map(|path| path.display().to_string());
    let words = format!("node --node=n1 --directory={directory} --kubelet={shared} --listen={ADDRESS}");
    let pins = Path::new("/sys/fs/bpf/granary");
    let mut first = Agent::start("0a", &words, true);
    assert!(pins.join("file_ioctl").exists());
    is_denied_during(&mut || {
        first.0.kill().unwrap();
        first.0.wait().unwrap();
    });
    // The second program is in another cgroup.
    let mut second = None;
    is_denied_during(&mut || second = Some(Agent::start("0c", &words, true)));
    let metrics = get("/metrics").unwrap();
    let denied = metrics.lines().find_map(|line| line.strip_prefix("granary_denied_total{operation=\"project\"} "));
    assert!(denied.unwrap().parse::<u64>().unwrap() > 1, "{denied:?}");
    assert!(!get("/readyz").unwrap().contains("advisory"));
    let once = |cgroup| child(ONCE, cgroup, volume.to_str().unwrap()).wait().unwrap().success();
    assert!(!once("besteffort/pod0a/0a"), "the former container is not exempt any more");
    assert!(once("besteffort/pod0a/0c"), "the container of the program is exempt");
    second.unwrap().end();
    // For a moment, the kernel still counts removed files of the project.
    eventually("the project of the directory", || own().is_ok());
    is_denied_during(&mut || assert!(pins.join("file_ioctl").exists()));

    let disabled = Agent::start("0e", &format!("{words} --limits=advisory"), false);
    assert!(!pins.exists());
    assert!(get("/readyz").unwrap().contains("limits are advisory: disabled by --limits=advisory"));
    // The kernel detaches programs in the background.
    eventually("a change that is allowed", || once(TENANT));
    disabled.end();

    // Simulate a kernel without BPF among its LSMs.
    let without: PathBuf = env::temp_dir().join("host-sys");
    fs::create_dir_all(without.join("kernel/security")).unwrap();
    fs::write(without.join("kernel/security/lsm"), "capability,yama\n").unwrap();
    fs::create_dir_all(without.join("fs/cgroup")).unwrap();
    mount(Some("/sys/fs/cgroup"), &without.join("fs/cgroup"), None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let unsupported = Agent::start("0d", &format!("{words} --sys={}", without.display()), false);
    let ready = get("/readyz").unwrap();
    assert!(ready.contains("limits are advisory: BPF is not an active LSM (active: capability,yama)"), "{ready}");
    unsupported.end();
    nix::mount::umount(&without.join("fs/cgroup")).unwrap();

    eventually("the project of the directory", || own().is_ok());
    assert!(once(TENANT));
}
