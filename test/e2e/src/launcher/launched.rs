//! A running launcher.

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

/// Interval between two looks at a process that is about to end.
const LOOK: Duration = Duration::from_millis(20);

/// Files of the image: arguments of the launcher, and environment variables that the test's target sets. The command
/// line is separate.
const IMAGE: [(&str, &str); 4] = [
    ("--kernel", "GRANARY_KERNEL"),
    ("--initramfs", "GRANARY_INITRAMFS"),
    ("--system", "GRANARY_SYSTEM"),
    ("--disk", "GRANARY_DISK"),
];
/// Kernel command line of a stub, without [`VARIABLE`].
const STUB: &str = "console=ttyS0 quiet panic=-1 nowatchdog audit=0 apparmor=0";

/// Environment variable that marks the processes of one launcher. Its value is unique, and the launcher's descendants
/// inherit it.
pub(crate) const MARK: &str = "TMPDIR";

/// A running launcher, whose output is on one [`Screen`]. Dropping the value kills the launcher.
#[derive(Debug)]
pub struct Launched {
    child: Child,
    screen: Option<Screen>,
    /// The launcher's temporary directory, with a directory for logs next to it.
    place: TempDir,
    patience: Duration,
    /// Process with the launcher's [`MARK`]. A search for marked processes that does not find this one has failed.
    witness: Child,
}

#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    /// The launcher's whole output, or its output until the reader closed the screen.
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
    // Bazel removes this directory after the test, even if the test was killed.
    let above = env::var_os("TEST_TMPDIR").map_or_else(env::temp_dir, PathBuf::from);
    TempDir::with_prefix_in("launch-", above).expect("a directory can be created")
}

impl Launched {
    /// Starts the launcher with a stub in place of the image, little memory, one CPU, and the arguments in `more`.
    pub fn start(kind: Kind, stub: Stub, more: &[&str]) -> Self {
        let place = directory();
        let command_line = stub_command_line(place.path(), stub);
        let arguments = [&["--memory=1280M", "--cpus=1"], more].concat();
        Self::with(kind, place, PATIENCE, command_line.into(), &arguments)
    }

    /// Starts the launcher with the image and exactly these arguments, with a deadline for a whole boot and its
    /// demonstration.
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
        // `cat` ends when its standard input is closed.
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

    /// Running processes of the launcher: the launcher itself and its descendants.
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

    /// The process that removes the launcher's directory if the launcher cannot do it.
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

    /// Types Ctrl-C on the launcher's terminal, which interrupts all foreground processes.
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

    /// Contents of the log files. The directory is missing if the launcher rejected its arguments.
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
        // The calls fail if the process has ended.
        for child in [&mut self.child, &mut self.witness] {
            _ = child.kill();
            _ = child.wait();
        }
    }
}

/// Writes the command line of a stub to a file in the directory.
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
