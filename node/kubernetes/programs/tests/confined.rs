//! Tests that the kernel enforces the rights of a confined program. Needs root.
//!
//! The confined program is this test binary. libtest accepts any word after `--skip`; the words [`ATTACKER`],
//! [`IDENTIFIED`], [`BYSTANDER`] and [`SIGNALS`] make the test of the same name act as the program.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File, Permissions};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, exit};
use std::thread;
use std::time::{Duration, Instant};

use dir::{Dir, Mode, Name};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount, umount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::kill;
use nix::unistd::{Pid, geteuid, getppid};
use programs::{Capability, Confinement, Paths, Program, Rights, User};
use supervisor::{Backoff, Settings, State, Supervisor};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);

/// Argument of the confined program: this prefix and the root of its [`Node`].
const ATTACKER: &str = "attacks-";
/// Argument of the confined program: this prefix and the process ID of its [`Bystander`].
const PEER: &str = "peer-";
/// Argument of a process that waits until it is killed.
const BYSTANDER: &str = "waits";
/// Argument of a process that signals another process: this prefix and the process ID.
const SIGNALS: &str = "signals-";
/// Argument of a program with the set-user-ID bit.
const IDENTIFIED: &str = "prints-its-user";
const PRINTED: &str = "effective user ";

const TEST: &str = "a_confined_program_can_do_nothing_that_it_has_no_right_to";

/// A user ID that no confined program has.
const OTHER_USER: u32 = 1000;

fn name(text: &str) -> Name {
    Name::try_from(text).unwrap()
}

/// The abstract socket, which the program's rules do not include.
fn socket(root: &Path) -> SocketAddr {
    SocketAddr::from_abstract_name(root.as_os_str().as_bytes()).unwrap()
}

/// This test binary as the confined program's user, without the program's rules.
fn unconfined(word: &str) -> Command {
    let id = User::Scheduler.id();
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", TEST, "--nocapture", "--skip", word]).uid(id).gid(id).stdout(Stdio::null());
    command
}

/// Another process of the confined program's user, without the program's rules.
struct Bystander(Child);

impl Bystander {
    fn start() -> Self {
        Self(unconfined(BYSTANDER).spawn().unwrap())
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

struct Node {
    paths: Paths,
    rights: Rights,
    bystander: Bystander,
    _listener: UnixListener,
    scratch: TempDir,
}

impl Node {
    fn new(confinement: Confinement) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path();
        let paths = Paths {
            programs: root.join("bin"),
            ephemeral: root.join("ephemeral"),
            cgroups: None,
            confinement,
            ..Paths::default()
        };
        for (directory, mode) in [("", 0o755), ("bin", 0o755), ("ephemeral", 0o711), ("pki", 0o711), ("public", 0o777)]
        {
            fs::create_dir_all(root.join(directory)).unwrap();
            fs::set_permissions(root.join(directory), Permissions::from_mode(mode)).unwrap();
        }
        symlink(env::current_exe().unwrap(), paths.programs.join("kube-scheduler")).unwrap();
        fs::write(root.join("public/file"), "public").unwrap();
        for key in ["own.key", "other.key"] {
            Dir::open(&root.join("pki")).unwrap().write(&name(key), b"key", Mode::S_IRUSR).unwrap();
        }
        chown(root.join("pki/other.key"), Some(User::Etcd.id()), Some(User::Etcd.id())).unwrap();
        // Files of a release that ran the program as root.
        fs::create_dir_all(root.join("data/member/log")).unwrap();
        fs::write(root.join("data/member/log/1"), "old").unwrap();
        symlink("../public/file", root.join("data/link")).unwrap();
        let raised = root.join("raised");
        fs::copy(env::current_exe().unwrap(), &raised).unwrap();
        fs::set_permissions(&raised, Permissions::from_mode(0o4755)).unwrap();
        let rights = Rights {
            owns: vec![root.join("data")],
            starts: vec![raised],
            ..Rights::new(User::Scheduler, [root.join("pki/own.key")])
        };
        let listener = UnixListener::bind_addr(&socket(root)).unwrap();
        Self { paths, rights, bystander: Bystander::start(), _listener: listener, scratch }
    }

    fn start(&self) -> Supervisor {
        let attacker = format!("{ATTACKER}{}", self.scratch.path().display());
        let peer = format!("{PEER}{}", self.bystander.0.id());
        let program = Program {
            name: "kube-scheduler",
            arguments: ["--exact", TEST, "--nocapture", "--skip", &attacker, "--skip", &peer].map(str::to_owned).into(),
            rights: Some(self.rights.clone()),
            ..Program::default()
        };
        let backoff = Backoff { first: Duration::from_secs(1000), ..Backoff::default() };
        let settings = Settings { backoff, ..Settings::default() };
        Supervisor::start("program", settings, program.service(&self.paths, || std::future::ready(Ok(()))))
    }

    fn report(&self, tree: &Supervisor) -> BTreeMap<String, String> {
        let path = self.scratch.path().join("data/report");
        wait(tree, &path);
        let lines = fs::read_to_string(path).unwrap();
        lines.lines().filter_map(|line| line.split_once('=')).map(|(a, b)| (a.to_owned(), b.to_owned())).collect()
    }

    /// Owner of a file, without following a link.
    fn owner(&self, path: &str) -> u32 {
        fs::symlink_metadata(self.scratch.path().join(path)).unwrap().uid()
    }
}

fn wait(tree: &Supervisor, file: &Path) {
    let end = Instant::now() + LIMIT;
    while !file.exists() {
        let status = tree.status();
        assert!(Instant::now() < end && status.state != State::Failed, "{status:#?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Attempts that the sandbox must prevent. Without the sandbox, all succeed.
const FORBIDDEN: [&str; 10] = [
    "write outside",
    "read outside",
    "read a key",
    "mount",
    "trace",
    "signal",
    OWN_USER,
    ABSTRACT,
    "namespace",
    "become root",
];
/// Only Landlock denies these two.
const OWN_USER: &str = "signal a process of its user";
const ABSTRACT: &str = "connect to an abstract socket";
const ALLOWED: [&str; 4] = ["write inside", "rename inside", "read its key", "read a renewed key"];

/// Runs in the program: makes all attempts, writes the results to a file, and waits until it is stopped.
fn attack_if_started_so() {
    if env::args().any(|word| word == IDENTIFIED) {
        println!("{PRINTED}{}", geteuid());
        return;
    }
    if env::args().any(|word| word == BYSTANDER) {
        loop {
            thread::park();
        }
    }
    let process = |prefix: &str| {
        let number = env::args().find_map(|word| word.strip_prefix(prefix).map(str::to_owned));
        number.map(|number| Pid::from_raw(number.parse().unwrap()))
    };
    if let Some(other) = process(SIGNALS) {
        exit(i32::from(kill(other, None).is_err()));
    }
    let Some(root) = env::args().find_map(|word| word.strip_prefix(ATTACKER).map(PathBuf::from)) else { return };
    let peer = process(PEER).unwrap();
    let data = root.join("data");
    fs::create_dir_all(data.join("mounted")).unwrap();
    let parent = getppid();
    let text = |result: std::io::Result<()>| result.map_or_else(|error| error.to_string(), |()| "done".to_owned());
    let read = |path: PathBuf| text(fs::read(path).map(drop));
    let renewed = || {
        let end = Instant::now() + LIMIT;
        while !matches!(fs::read(root.join("pki/own.key")).as_deref(), Ok(b"renewed")) {
            if Instant::now() > end {
                return "the renewed key cannot be read".to_owned();
            }
            thread::sleep(Duration::from_millis(20));
        }
        "done".to_owned()
    };
    let mounted = || -> std::io::Result<()> {
        mount(Some("tmpfs"), &data.join("mounted"), Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
        Ok(umount(&data.join("mounted"))?)
    };
    let raised = || {
        let mut command = Command::new(root.join("raised"));
        // A root process is root already, so it changes to another user first.
        if geteuid().is_root() {
            command.uid(OTHER_USER);
        }
        let output = command.args(["--exact", TEST, "--nocapture", "--skip", IDENTIFIED]).output().unwrap();
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        let user = output.lines().find_map(|line| line.split_once(PRINTED)).map(|(_, user)| user.trim().to_owned());
        if user.as_deref() == Some("0") { "done".to_owned() } else { format!("user {user:?}: {output}") }
    };
    fs::write(data.join("ready"), "").unwrap();
    let found = [
        ("write outside", text(fs::write(root.join("public/written"), ""))),
        ("read outside", read(root.join("public/file"))),
        ("read a key", read(root.join("pki/other.key"))),
        ("mount", text(mounted())),
        ("trace", text(File::open(format!("/proc/{parent}/mem")).map(drop))),
        ("signal", text(kill(parent, None).map_err(Into::into))),
        (OWN_USER, text(kill(peer, None).map_err(Into::into))),
        (ABSTRACT, text(UnixStream::connect_addr(&socket(&root)).map(drop))),
        ("become root", raised()),
        ("write inside", text(fs::write(data.join("one"), ""))),
        ("rename inside", text(fs::rename(data.join("one"), data.join("member/two")))),
        ("read its key", read(root.join("pki/own.key"))),
        ("read a renewed key", renewed()),
        // The last attempt, because without a sandbox it changes the process.
        ("namespace", namespace()),
    ];
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let status = status.lines().filter_map(|line| line.split_once(":\t")).map(|(a, b)| format!("{a}={b}\n"));
    let found = found.into_iter().map(|(what, came)| format!("{what}={came}\n"));
    fs::write(data.join("report.new"), found.chain(status).collect::<String>()).unwrap();
    fs::rename(data.join("report.new"), data.join("report")).unwrap();
    loop {
        thread::park();
    }
}

/// A process with threads cannot create a user namespace: the kernel returns EINVAL after the permission check.
fn namespace() -> String {
    match unshare(CloneFlags::CLONE_NEWUSER) {
        Ok(()) | Err(Errno::EINVAL) => "done".to_owned(),
        Err(errno) => errno.to_string(),
    }
}

/// Replaces the key while the program runs, as PID 1 does.
fn renew_key(node: &Node, tree: &Supervisor) {
    wait(tree, &node.scratch.path().join("data/ready"));
    let pki = Dir::open(&node.scratch.path().join("pki")).unwrap();
    pki.write(&name("own.key"), b"renewed", Mode::S_IRUSR).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confined_program_can_do_nothing_that_it_has_no_right_to() {
    attack_if_started_so();
    let node = Node::new(Confinement::Enforced);
    let tree = node.start();
    renew_key(&node, &tree);
    let report = node.report(&tree);
    for attempt in ALLOWED {
        assert_eq!(report[attempt], "done", "{attempt}: {report:#?}");
    }
    for attempt in FORBIDDEN {
        assert_ne!(report[attempt], "done", "{attempt}: {report:#?}");
    }
    for attempt in [OWN_USER, ABSTRACT] {
        assert_eq!(report[attempt], std::io::Error::from(Errno::EPERM).to_string(), "{attempt}");
    }
    // The user ID alone does not prevent the signal.
    let signaller = unconfined(&format!("{SIGNALS}{}", node.bystander.0.id())).status().unwrap();
    assert!(signaller.success(), "{signaller}");
    let id = User::Scheduler.id();
    let ids = format!("{id}\t{id}\t{id}\t{id}");
    let none = "0000000000000000";
    for (field, value) in [
        ("Uid", &*ids),
        ("Gid", &*ids),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
        ("CapEff", none),
        ("CapPrm", none),
        ("CapAmb", none),
        ("CapBnd", none),
    ] {
        assert_eq!(report[field].trim(), value, "{field}");
    }
    assert_eq!(report["Groups"].trim(), "");
    for path in ["data", "data/member", "data/member/log", "data/member/log/1", "pki/own.key"] {
        assert_eq!(node.owner(path), id, "{path}");
    }
    for path in ["data/link", "public/file"] {
        assert_eq!(node.owner(path), 0, "{path}");
    }
    assert_eq!(fs::metadata(node.scratch.path().join("data")).unwrap().mode() & 0o7777, 0o700);
    tree.stop(LIMIT).await.unwrap();
}

/// Control: the sandbox is the only reason for the failure of the attempts.
#[tokio::test(flavor = "multi_thread")]
async fn without_confinement_each_attempt_succeeds() {
    let node = Node::new(Confinement::Disabled);
    let tree = node.start();
    renew_key(&node, &tree);
    let report = node.report(&tree);
    for attempt in ALLOWED.into_iter().chain(FORBIDDEN) {
        assert_eq!(report[attempt], "done", "{attempt}: {report:#?}");
    }
    tree.stop(LIMIT).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confined_program_has_the_capability_that_it_needs() {
    let mut node = Node::new(Confinement::Enforced);
    node.rights.capabilities = &[Capability::NetAdmin];
    let tree = node.start();
    renew_key(&node, &tree);
    let report = node.report(&tree);
    for set in ["CapEff", "CapPrm", "CapAmb", "CapBnd"] {
        assert_eq!(report[set].trim(), "0000000000001000", "{set}");
    }
    tree.stop(LIMIT).await.unwrap();
}

/// Some files belong to another user after a power cut or a repair by an administrator.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_corrects_owners_and_rejects_a_second_name() {
    let node = Node::new(Confinement::Enforced);
    let file = node.scratch.path().join("data/member/log/1");
    chown(node.scratch.path().join("data"), Some(User::Scheduler.id()), None).unwrap();
    let tree = node.start();
    renew_key(&node, &tree);
    node.report(&tree);
    assert_eq!(node.owner("data/member/log/1"), User::Scheduler.id());
    tree.stop(LIMIT).await.unwrap();

    chown(&file, Some(0), Some(0)).unwrap();
    fs::hard_link(&file, node.scratch.path().join("second")).unwrap();
    let tree = node.start();
    let end = Instant::now() + LIMIT;
    while tree.status().state != State::Failed {
        assert!(Instant::now() < end, "{:#?}", tree.status());
        thread::sleep(Duration::from_millis(20));
    }
    let error = tree.status().last_error.unwrap();
    assert!(error.contains("data") && error.contains("Too many links"), "{error}");
    assert_eq!(node.owner("second"), 0);
    tree.stop(LIMIT).await.unwrap();
}
