//! A launcher that was started.

use crate::screen::{Kind, Screen};
use crate::{PATIENCE, Process, WHOLE, sys};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
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

/// The image's files, as arguments of the launcher and as variables of the test's target.
const IMAGE: [(&str, &str); 5] = [
    ("--kernel", "GRANARY_KERNEL"),
    ("--initramfs", "GRANARY_INITRAMFS"),
    ("--system", "GRANARY_SYSTEM"),
    ("--cmdline", "GRANARY_CMDLINE"),
    ("--disk", "GRANARY_DISK"),
];

/// A launcher that was started, with all that it writes on one [`Screen`]. Killed on drop.
#[derive(Debug)]
pub struct Launched {
    child: Child,
    screen: Option<Screen>,
    /// Its temporary directory, and a directory for logs beside it.
    place: TempDir,
    /// How long anything may take.
    patience: Duration,
    /// Everything that it was seen to start.
    started: Vec<Process>,
}

/// A launcher that has ended, and left nothing.
#[derive(Debug)]
pub struct Ended {
    /// How.
    pub status: ExitStatus,
    /// All that it wrote; to the point where its reader went away.
    pub text: String,
    /// The console of the first guest.
    pub console: String,
    /// The console of the first worker; empty, if there was none.
    pub worker: String,
}

/// A directory for what outlives a launcher.
///
/// # Panics
/// It cannot be made.
pub fn directory() -> TempDir {
    // Bazel removes it after the test, even one that was killed.
    let above = env::var_os("TEST_TMPDIR").map_or_else(env::temp_dir, PathBuf::from);
    TempDir::with_prefix_in("launch-", above).expect("a directory can be made")
}

impl Launched {
    /// Starts it for the beginning of a boot: with as little memory as it takes, and with further arguments.
    ///
    /// # Panics
    /// It cannot be started.
    pub fn start(kind: Kind, more: &[&str]) -> Self {
        Self::with(kind, PATIENCE, &[&["--memory=1280M"], more].concat())
    }

    /// Starts it for a boot to its end and for all that is shown then, with these arguments and no others.
    ///
    /// # Panics
    /// It cannot be started.
    pub fn start_whole(kind: Kind, arguments: &[&str]) -> Self {
        Self::with(kind, WHOLE, arguments)
    }

    fn with(kind: Kind, patience: Duration, arguments: &[&str]) -> Self {
        let place = directory();
        fs::create_dir(place.path().join("tmp")).expect("a directory can be made");
        let (screen, writer) = Screen::open(kind);
        let mut command = Command::new(variable("GRANARY_LAUNCH"));
        for (argument, name) in IMAGE {
            let mut word = OsString::from(format!("{argument}="));
            word.push(variable(name));
            command.arg(word);
        }
        command.arg(format!("--keep-logs={}", place.path().join("logs").display()));
        command.args(arguments);
        let terminal = if kind == Kind::DumbTerminal { "dumb" } else { "xterm" };
        command.env("TMPDIR", place.path().join("tmp")).env("TERM", terminal).env_remove("BUILD_WORKING_DIRECTORY");
        let standard = || Stdio::from(writer.try_clone().expect("a descriptor can be copied"));
        match kind {
            Kind::Pipe => command.stdin(Stdio::null()),
            Kind::Terminal | Kind::DumbTerminal => {
                sys::own_terminal(&mut command);
                command.stdin(standard())
            }
        };
        let child = command.stdout(standard()).stderr(standard()).spawn().expect("the launcher can be started");
        Self { child, screen: Some(screen), place, patience, started: Vec::new() }
    }

    /// Reads until the text is on the screen.
    ///
    /// # Panics
    /// It does not come.
    pub fn wait_for(&mut self, text: &str) {
        self.screen.as_mut().expect("the screen is open").wait_for(text, self.patience);
        for process in Process::below(self.id()) {
            if !self.started.contains(&process) {
                self.started.push(process);
            }
        }
    }

    /// What it wrote so far, as far as it was read.
    pub fn text(&self) -> &str {
        self.screen.as_ref().map(Screen::text).unwrap_or_default()
    }

    /// The process that runs the first guest.
    ///
    /// # Panics
    /// There is none.
    pub fn qemu(&self) -> &Process {
        self.machine(|kind| kind != "none")
    }

    /// The process that is the network between several guests.
    ///
    /// # Panics
    /// There is none.
    pub fn network(&self) -> &Process {
        self.machine(|kind| kind == "none")
    }

    /// The process that removes the launcher's directory if the launcher cannot.
    ///
    /// # Panics
    /// There is none.
    pub fn sweeper(&self) -> &Process {
        let found = self.started.iter().find(|process| process.words.iter().any(|word| word == "--sweep-up"));
        found.expect("a sweeper was started")
    }

    fn machine(&self, is_it: impl Fn(&str) -> bool) -> &Process {
        let kind = |process: &Process| process.words.iter().skip_while(|word| *word != "-machine").nth(1).cloned();
        let found = self.started.iter().find(|process| kind(process).is_some_and(|kind| is_it(&kind)));
        found.expect("QEMU was started")
    }

    /// Sends a signal to the launcher alone.
    ///
    /// # Panics
    /// It has ended.
    pub fn signal(&self, signal: Signal) {
        send(self.id(), signal);
    }

    /// Types Ctrl-C on its terminal: all that is in the foreground there is interrupted.
    ///
    /// # Panics
    /// It has no terminal.
    pub fn type_ctrl_c(&mut self) {
        self.screen.as_mut().expect("the screen is open").type_ctrl_c();
    }

    /// Kills one of the processes that it has started.
    ///
    /// # Panics
    /// It has ended.
    pub fn kill(&self, process: &Process) {
        send(process.id, Signal::SIGKILL);
    }

    /// Nobody reads any more: the pipe or the terminal is closed.
    pub fn close_screen(&mut self) -> String {
        let text = self.text().to_owned();
        self.screen = None;
        text
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// It does not end, or a process or a file is left.
    pub fn end(mut self) -> Ended {
        if let Some(screen) = self.screen.as_mut() {
            screen.rest(self.patience);
        }
        let mut status = None;
        until("the launcher has ended", || {
            status = self.child.try_wait().expect("the launcher is this test's child");
            status.is_some()
        });
        until("no process is left", || !self.started.iter().any(Process::runs));
        until("no file is left", || is_empty(&self.place.path().join("tmp")));
        let (console, worker) = (self.log("console.log"), self.log("granary-1.console.log"));
        let status = status.unwrap_or_else(|| ExitStatus::from_raw(0));
        Ended { status, text: self.close_screen(), console, worker }
    }

    fn log(&self, name: &str) -> String {
        let log = fs::read(self.place.path().join("logs").join(name)).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn id(&self) -> i32 {
        self.child.id().cast_signed()
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        // Fails if it has ended.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn variable(name: &str) -> OsString {
    env::var_os(name).unwrap_or_else(|| panic!("{name} is not set; run the test by its Bazel target"))
}

fn send(id: i32, signal: Signal) {
    kill(Pid::from_raw(id), signal).unwrap_or_else(|errno| panic!("cannot send {signal} to {id}: {errno}"));
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} until {what}");
        thread::sleep(LOOK);
    }
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).expect("the directory is there").next().is_none()
}
