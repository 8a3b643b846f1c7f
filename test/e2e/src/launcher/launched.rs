//! A launcher that was started.

use crate::launcher::screen::{Kind, Screen};
use crate::launcher::{PATIENCE, Process, Stub, VARIABLE, WHOLE, sys};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How often a process is looked at that is about to end.
const LOOK: Duration = Duration::from_millis(20);

/// Files of the image: arguments of the launcher, and variables of the test's target. The command line is separate.
const IMAGE: [(&str, &str); 4] = [
    ("--kernel", "GRANARY_KERNEL"),
    ("--initramfs", "GRANARY_INITRAMFS"),
    ("--system", "GRANARY_SYSTEM"),
    ("--disk", "GRANARY_DISK"),
];
/// The command line of a stub, without [`VARIABLE`].
const STUB: &str = "console=ttyS0 quiet panic=-1 nowatchdog audit=0 apparmor=0";

/// Marks the processes of one launcher: each launcher has a value of its own, and what it starts inherits it.
pub(crate) const MARK: &str = "TMPDIR";

/// A launcher that was started, with all that it writes on one [`Screen`]. Killed on drop.
#[derive(Debug)]
pub struct Launched {
    child: Child,
    screen: Option<Screen>,
    /// Its temporary directory, and a directory for logs beside it.
    place: TempDir,
    patience: Duration,
    /// Has the launcher's [`MARK`], so that a search for its processes that finds none is known to have failed.
    witness: Child,
}

#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    /// All that it wrote; to the point where its reader went away.
    pub text: String,
    pub logs: BTreeMap<String, String>,
}

impl Ended {
    pub fn console(&self) -> &str {
        self.log("console.log")
    }

    pub fn worker_console(&self) -> &str {
        self.log("granary-1.console.log")
    }

    fn log(&self, name: &str) -> &str {
        self.logs.get(name).unwrap_or_else(|| panic!("no {name} among {:?}", self.logs.keys()))
    }
}

pub fn directory() -> TempDir {
    // Bazel removes it after the test, even one that was killed.
    let above = env::var_os("TEST_TMPDIR").map_or_else(env::temp_dir, PathBuf::from);
    TempDir::with_prefix_in("launch-", above).expect("a directory can be created")
}

impl Launched {
    /// Starts it with a stub in place of the image, with little memory and one CPU, and with further arguments.
    pub fn start(kind: Kind, stub: Stub, more: &[&str]) -> Self {
        let place = directory();
        let command_line = stub_command_line(place.path(), stub);
        let arguments = [&["--memory=1280M", "--cpus=1"], more].concat();
        Self::with(kind, place, PATIENCE, command_line.into(), &arguments)
    }

    /// Starts it with the image, for a boot to its end and for all that is shown then, with these arguments and no others.
    pub fn start_whole(kind: Kind, arguments: &[&str]) -> Self {
        Self::with(kind, directory(), WHOLE, variable("GRANARY_CMDLINE"), arguments)
    }

    fn with(kind: Kind, place: TempDir, patience: Duration, command_line: OsString, arguments: &[&str]) -> Self {
        let temporary = place.path().join("tmp");
        fs::create_dir(&temporary).expect("a directory can be created");
        let (screen, writer) = Screen::open(kind);
        let mut command = launcher(command_line);
        command.arg(format!("--keep-logs={}", place.path().join("logs").display()));
        command.args(arguments);
        let terminal = if kind == Kind::DumbTerminal { "dumb" } else { "xterm" };
        command.env(MARK, &temporary).env("TERM", terminal);
        let standard = || Stdio::from(writer.try_clone().expect("a descriptor can be copied"));
        match kind {
            Kind::Pipe => command.stdin(Stdio::null()),
            Kind::Terminal | Kind::DumbTerminal => {
                sys::own_terminal(&mut command);
                command.stdin(standard())
            }
        };
        // It ends with its input.
        let mut witness = Command::new("cat");
        let witness = witness.env(MARK, &temporary).stdin(Stdio::piped()).spawn().expect("cat can be started");
        let child = command.stdout(standard()).stderr(standard()).spawn().expect("the launcher can be started");
        Self { child, screen: Some(screen), place, patience, witness }
    }

    pub fn wait_for(&mut self, text: &str) {
        self.screen.as_mut().expect("the screen is open").wait_for(text, self.patience);
    }

    pub fn text(&self) -> &str {
        self.screen.as_ref().map(Screen::text).unwrap_or_default()
    }

    /// The launcher, and all that it has started and that runs.
    pub fn processes(&self) -> Vec<Process> {
        let mut found = Process::with_variable(MARK, self.place.path().join("tmp").as_os_str());
        let all = found.len();
        found.retain(|process| process.id != self.witness.id().cast_signed());
        assert_eq!(found.len() + 1, all, "the search for processes does not find the witness");
        found
    }

    pub fn qemu(&self) -> Process {
        self.machine(|kind| kind != "none")
    }

    pub fn network(&self) -> Process {
        self.machine(|kind| kind == "none")
    }

    /// The process that removes the launcher's directory if the launcher cannot.
    pub fn sweeper(&self) -> Process {
        self.process("the sweeper", |process| process.words.iter().any(|word| word == "--sweep-up"))
    }

    fn machine(&self, is_it: impl Fn(&str) -> bool) -> Process {
        let kind = |process: &Process| process.words.iter().skip_while(|word| *word != "-machine").nth(1).cloned();
        self.process("QEMU", |process| kind(process).is_some_and(|kind| is_it(&kind)))
    }

    fn process(&self, name: &str, is_it: impl Fn(&Process) -> bool) -> Process {
        let all = self.processes();
        all.iter().find(|process| is_it(process)).unwrap_or_else(|| panic!("{name} does not run, but {all:?}")).clone()
    }

    pub fn signal(&self, signal: Signal) {
        send(self.id(), signal);
    }

    /// Types Ctrl-C on its terminal: all that is in the foreground there is interrupted.
    pub fn type_ctrl_c(&mut self) {
        self.screen.as_mut().expect("the screen is open").type_ctrl_c();
    }

    pub fn kill(&self, process: &Process) {
        send(process.id, Signal::SIGKILL);
    }

    pub fn close_screen(&mut self) -> String {
        let text = self.text().to_owned();
        self.screen = None;
        text
    }

    pub fn end(mut self) -> Ended {
        if let Some(screen) = self.screen.as_mut() {
            screen.rest(self.patience);
        }
        let mut status = None;
        until("the launcher has ended", || {
            status = self.child.try_wait().expect("the launcher is this test's child");
            status.is_some()
        });
        until("no process is left", || self.processes().is_empty());
        until("no file is left", || is_empty(&self.place.path().join("tmp")));
        let status = status.unwrap_or_else(|| ExitStatus::from_raw(0));
        Ended { status, text: self.close_screen(), logs: self.logs() }
    }

    /// A launcher that rejects its arguments does not create the directory.
    fn logs(&self) -> BTreeMap<String, String> {
        let entries = fs::read_dir(self.place.path().join("logs")).into_iter().flatten();
        let read = |entry: fs::DirEntry| {
            let text = fs::read(entry.path()).expect("a log can be read");
            (entry.file_name().to_string_lossy().into_owned(), String::from_utf8_lossy(&text).into_owned())
        };
        entries.map(|entry| read(entry.expect("a directory can be read"))).collect()
    }

    fn id(&self) -> i32 {
        self.child.id().cast_signed()
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        // Fails if it has ended.
        for child in [&mut self.child, &mut self.witness] {
            _ = child.kill();
            _ = child.wait();
        }
    }
}

/// The command line of a stub, in a file of the directory.
pub(crate) fn stub_command_line(directory: &Path, stub: Stub) -> PathBuf {
    let path = directory.join("cmdline.txt");
    fs::write(&path, format!("{STUB} {VARIABLE}={stub}")).expect("a file can be written");
    path
}

pub(crate) fn launcher(command_line: OsString) -> Command {
    let mut command = Command::new(variable("GRANARY_LAUNCH"));
    let image = IMAGE.map(|(argument, name)| (argument, variable(name)));
    for (argument, path) in image.into_iter().chain([("--cmdline", command_line)]) {
        let mut word = OsString::from(format!("{argument}="));
        word.push(path);
        command.arg(word);
    }
    command.env_remove("BUILD_WORKING_DIRECTORY");
    command
}

fn variable(name: &str) -> OsString {
    env::var_os(name).unwrap_or_else(|| panic!("{name} is not set; run the test by its Bazel target"))
}

pub(crate) fn send(id: i32, signal: Signal) {
    kill(Pid::from_raw(id), signal).unwrap_or_else(|errno| panic!("cannot send {signal} to {id}: {errno}"));
}

pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} until {what}");
        thread::sleep(LOOK);
    }
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).expect("the directory is there").next().is_none()
}
