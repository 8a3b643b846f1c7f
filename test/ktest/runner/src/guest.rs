//! The VM of a test, from its start to its end.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use ktest_init::{Order, Outcome, PORT, Run, Word, receive, send};
use qemu::{Accelerator, Boot, Disk, Exit, Port, PortName, Program, Serial, Sink, Vm};
use tempfile::TempDir;

use crate::bazel::Bazel;
use crate::config::Config;

/// `oops=panic`: a kernel that goes on after a fault proves nothing. `panic=-1`: then the VM ends.
const COMMAND_LINE: &str = "console=ttyS0 loglevel=5 oops=panic panic=-1 mitigations=off nowatchdog audit=0 apparmor=0";

/// A guest that has told its result is powered off within this time, or killed.
const POWER_OFF_LIMIT: Duration = Duration::from_secs(10);

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The test program ended.
    Exit(Outcome),
    /// The guest could not run it, for these reasons, the outermost first.
    Fault(Vec<String>),
    /// The kernel panicked.
    Panicked,
    /// The VM ended for another reason.
    Gone(Exit),
    /// The VM did not end, but the guest cannot be heard.
    Silent,
    /// The test did not end in time; its stacks are on the console.
    Hung(Duration),
}

/// What came out of the guest.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) stdout: String,
    pub(crate) end: End,
}

/// Why the guest could not be run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GuestError {
    #[error("cannot make a directory for the VM's files")]
    Directory(#[source] io::Error),
    #[error("cannot make a scratch disk")]
    Disk(#[source] io::Error),
    #[error("the port's name is wrong")]
    Name(#[from] qemu::NameError),
    #[error("the VM does not start")]
    Start(#[from] qemu::StartError),
    #[error("QEMU gives no connection to the guest")]
    NoPort,
    #[error("cannot speak to the guest")]
    Speak(#[source] io::Error),
    #[error("cannot listen to the guest")]
    Listen(#[source] io::Error),
}

pub(crate) struct Guest {
    // Before the directory: QEMU ends before its files go.
    vm: Vm,
    console: PathBuf,
    disks: Vec<Serial>,
    margin: Duration,
    start: Instant,
    _dir: TempDir,
}

impl Guest {
    pub(crate) fn start(
        program: &Program,
        accelerator: Accelerator,
        config: &Config,
        bazel: &Bazel,
    ) -> Result<Self, GuestError> {
        let dir = match &bazel.scratch {
            Some(scratch) => TempDir::with_prefix_in("ktest", scratch),
            None => TempDir::with_prefix("ktest"),
        };
        let dir = dir.map_err(GuestError::Directory)?;
        let console = dir.path().join("console.log");
        let disks = make_disks(config, dir.path()).map_err(GuestError::Disk)?;
        let serials = disks.iter().map(|disk| disk.serial.clone()).collect();
        let vm = Vm::start(program, accelerator, &machine(config, PORT.parse()?, disks, console.clone()))?;
        Ok(Self { vm, console, disks: serials, margin: bazel.margin(), start: Instant::now(), _dir: dir })
    }

    /// Runs the test program to its end, but not beyond `deadline`; prints its output meanwhile.
    pub(crate) fn run(&self, config: &Config, arguments: &[String], deadline: Instant) -> Result<Heard, GuestError> {
        let port = self.vm.take_port(PORT).ok_or(GuestError::NoPort)?;
        let words = listen(port.try_clone().map_err(GuestError::Listen)?).map_err(GuestError::Listen)?;
        let run = Run {
            arguments: arguments.to_owned(),
            environment: BTreeMap::from([("RUST_BACKTRACE".into(), "1".into())]),
            disks: self.disks.iter().map(ToString::to_string).collect(),
            tools: config.tools.clone(),
        };
        send(&port, &Order::Run(run)).map_err(GuestError::Speak)?;
        let mut stdout = String::new();
        let end = loop {
            match words.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Word::Stdout(text)) => {
                    show(io::stdout(), &text);
                    stdout.push_str(&text);
                }
                Ok(Word::Stderr(text)) => show(io::stderr(), &text),
                Ok(Word::Exit(outcome)) => break self.end(&port, End::Exit(outcome)),
                Ok(Word::Fault(causes)) => break self.end(&port, End::Fault(causes)),
                Ok(Word::Dumped) => {}
                Err(RecvTimeoutError::Timeout) => {
                    self.dump(&port, &words);
                    break End::Hung(self.start.elapsed());
                }
                Err(RecvTimeoutError::Disconnected) => break self.gone(),
            }
        };
        Ok(Heard { stdout, end })
    }

    /// The last lines of the console.
    pub(crate) fn console(&self) -> io::Result<Vec<String>> {
        qemu::console_tail(&self.console, usize::MAX)
    }

    /// Lets the guest power off: what it says by then is on the console.
    fn end(&self, port: &UnixStream, end: End) -> End {
        // If it is gone already, so much the better.
        let _ = send(port, &Order::PowerOff);
        if self.vm.wait(POWER_OFF_LIMIT).is_none() {
            eprintln!("the guest did not power off");
        }
        end
    }

    /// Nothing more can come from the guest.
    fn gone(&self) -> End {
        match self.vm.wait(POWER_OFF_LIMIT) {
            None => End::Silent,
            Some(exit) => {
                let console = self.console().unwrap_or_default();
                let panicked = console.iter().any(|line| line.contains("Kernel panic - "));
                if panicked { End::Panicked } else { End::Gone(exit) }
            }
        }
    }

    /// Lets the guest print its stacks, as long as there is time for it.
    fn dump(&self, port: &UnixStream, words: &Receiver<Word>) {
        if send(port, &Order::Dump).is_err() {
            return;
        }
        let deadline = Instant::now() + self.margin / 2;
        while let Ok(word) = words.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            match word {
                Word::Dumped => return,
                Word::Stdout(text) | Word::Stderr(text) => show(io::stderr(), &text),
                Word::Exit(_) | Word::Fault(_) => {}
            }
        }
    }
}

fn make_disks(config: &Config, dir: &Path) -> io::Result<Vec<Disk>> {
    let make = |(index, scratch): (usize, &crate::scratch::Scratch)| {
        let serial = format!("scratch-{index}").parse().map_err(io::Error::other)?;
        scratch.make(dir, serial)
    };
    config.disks.iter().enumerate().map(make).collect()
}

fn machine(config: &Config, name: PortName, disks: Vec<Disk>, console: PathBuf) -> qemu::Config {
    let mut machine = qemu::Config::new(Boot::Kernel {
        kernel: config.kernel.clone(),
        initrd: Some(config.initramfs.clone()),
        command_line: COMMAND_LINE.into(),
    });
    machine.memory = config.memory.0;
    machine.cpus = config.cpus;
    machine.disks = disks;
    machine.console = Sink::File(console);
    machine.ports = vec![Port { name, sink: Sink::Stream }];
    machine
}

/// Words as they come; the channel ends when the guest's end of the port does.
fn listen(port: UnixStream) -> io::Result<Receiver<Word>> {
    let (heard, words) = mpsc::channel();
    thread::Builder::new().name("listen".into()).spawn(move || {
        let mut port = BufReader::new(port);
        let mut pending = Vec::new();
        loop {
            match receive(&mut port, &mut pending) {
                Ok(word) => {
                    if heard.send(word).is_err() {
                        return;
                    }
                }
                Err(error) => {
                    if error.kind() == io::ErrorKind::InvalidData {
                        eprintln!("the guest says what is not understood: {error}");
                    }
                    return;
                }
            }
        }
    })?;
    Ok(words)
}

/// Output is for people; when nobody takes it, the verdict still counts.
fn show(mut to: impl Write, text: &str) {
    let _ = to.write_all(text.as_bytes()).and_then(|()| to.flush());
}
