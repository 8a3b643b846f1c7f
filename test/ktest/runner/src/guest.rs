//! One boot of the machine, from its start to its end.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use ktest_init::{Answer, Order, Outcome, PORT, PowerCut, Request, Run, StepError, Unpack, Word, receive, send};
use qemu::{Disk, Exit, Vm};

use crate::{disks, verdict};

/// Time limit for the end of a guest after its result. Then the VM is killed.
const POWER_OFF_LIMIT: Duration = Duration::from_secs(10);

/// Time limit of a boot, also on a busy host.
const READY_LIMIT: Duration = Duration::from_secs(120);

/// Duration of one wait for a program without a deadline. The wait repeats.
const PATIENCE: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Exit(Outcome),
    /// A test requests a power cut. The guest still runs.
    PowerCut(PowerCut),
    /// The guest could not run the program: the causes, the outermost first.
    Fault(Vec<String>),
    Panicked,
    Gone(Exit),
    /// The VM did not end, but the guest's port is closed.
    Silent,
    /// The program did not end before the deadline. The stacks of the guest are on its console.
    Hung,
}

pub(crate) trait Audience {
    fn stdout(&mut self, text: &str);
    fn stderr(&mut self, text: &str);
}

/// A running VM. Its power is cut when it is dropped.
pub(crate) struct Guest {
    vm: Vm,
    disks: Vec<Disk>,
    console: PathBuf,
    margin: Duration,
    port: UnixStream,
    words: Receiver<Word>,
}

impl Guest {
    pub(crate) fn new(vm: Vm, disks: Vec<Disk>, console: PathBuf, margin: Duration) -> Result<Self, StepError> {
        let port =
            vm.take_port(PORT).ok_or("QEMU gives no connection").map_err(StepError::of("listen to the guest"))?;
        let words = port.try_clone().and_then(listen).map_err(StepError::of("listen to the guest"))?;
        Ok(Self { vm, disks, console, margin, port, words })
    }

    /// Saves the guest once it waits for its first order.
    pub(crate) fn save(self) -> Result<(), StepError> {
        let failed = match self.words.recv_timeout(READY_LIMIT) {
            Ok(Word::Ready) => return self.vm.save().map(drop).map_err(StepError::of("save the guest")),
            Ok(word) => format!("it sends {word:?}"),
            Err(_) => verdict::fault(&self.gone(), READY_LIMIT),
        };
        Err(StepError::of("save the guest, which is not ready")(failed))
    }

    /// Orders a restored guest to unpack the payload and to set its clock.
    pub(crate) fn unpack(&self, disk: &str) {
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // If the guest is gone, the order that follows reports it.
        let _ = send(&self.port, &Order::Unpack(Unpack { disk: disk.to_owned(), time }));
    }

    /// Runs the test program to its end, but not beyond the deadline.
    pub(crate) fn run(&self, run: Run, deadline: Option<Instant>, audience: &mut impl Audience) -> End {
        if send(&self.port, &Order::Run(run)).is_err() {
            return self.gone();
        }
        loop {
            let left = deadline.map_or(PATIENCE, |deadline| deadline.saturating_duration_since(Instant::now()));
            match self.words.recv_timeout(left) {
                Ok(Word::Stdout(text)) => audience.stdout(&text),
                Ok(Word::Stderr(text)) => audience.stderr(&text),
                Ok(Word::Exit(outcome)) => return End::Exit(outcome),
                Ok(Word::Ask(Request::PowerCut(cut))) => return End::PowerCut(cut),
                Ok(Word::Ask(request)) => {
                    // If the guest is gone, the next receive returns at once.
                    let _ = send(&self.port, &Order::Answer(self.answer(&request)));
                }
                Ok(Word::Fault(causes)) => {
                    self.power_off();
                    return End::Fault(causes);
                }
                Ok(Word::Ready | Word::Dumped) => {}
                Err(RecvTimeoutError::Timeout) if deadline.is_none() => {}
                Err(RecvTimeoutError::Timeout) => {
                    self.dump(audience);
                    return End::Hung;
                }
                Err(RecvTimeoutError::Disconnected) => return self.gone(),
            }
        }
    }

    /// Orders the guest to power off and waits for its end, so that its last messages are on the console.
    pub(crate) fn power_off(&self) {
        // The order fails if the guest has ended already.
        let _ = send(&self.port, &Order::PowerOff);
        if self.vm.wait(POWER_OFF_LIMIT).is_none() {
            eprintln!("the guest did not power off");
        }
    }

    fn answer(&self, request: &Request) -> Answer {
        let done = |result: Result<(), _>| result.map(|()| Answer::Done);
        let answer = match request {
            Request::Stats(serial) => disks::stats(&self.vm, &self.disks, serial).map(Answer::Stats),
            Request::Cut(serial) => done(disks::cut(&self.vm, &self.disks, serial)),
            Request::Restore(serial) => done(disks::restore(&self.vm, &self.disks, serial)),
            Request::PowerCut(_) => Ok(Answer::Refused("the power is cut already".into())),
        };
        answer.unwrap_or_else(|error| Answer::Refused(error.to_string()))
    }

    fn gone(&self) -> End {
        match self.vm.wait(POWER_OFF_LIMIT) {
            None => End::Silent,
            Some(exit) => {
                let console = qemu::console_tail(&self.console, usize::MAX).unwrap_or_default();
                let panicked = console.iter().any(|line| line.contains("Kernel panic - "));
                if panicked { End::Panicked } else { End::Gone(exit) }
            }
        }
    }

    /// Orders the guest to print its stacks, and waits for at most half of the margin.
    fn dump(&self, audience: &mut impl Audience) {
        if send(&self.port, &Order::Dump).is_err() {
            return;
        }
        let deadline = Instant::now() + self.margin / 2;
        while let Ok(word) = self.words.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            match word {
                Word::Dumped => return,
                Word::Stdout(text) => audience.stdout(&text),
                Word::Stderr(text) => audience.stderr(&text),
                Word::Ready | Word::Exit(_) | Word::Fault(_) | Word::Ask(_) => {}
            }
        }
    }
}

pub(crate) fn order(arguments: Vec<String>, boot: u32, disks: Vec<String>, tools: &[String]) -> Run {
    let environment = BTreeMap::from([("RUST_BACKTRACE".into(), "1".into()), ("KTEST_BOOT".into(), boot.to_string())]);
    Run { arguments, environment, disks, tools: tools.to_owned() }
}

/// Receives the guest's messages in a thread. The channel ends with the guest's end of the port.
fn listen(port: UnixStream) -> io::Result<Receiver<Word>> {
    let (sender, words) = mpsc::channel();
    thread::Builder::new().name("listen".into()).spawn(move || {
        let mut port = BufReader::new(port);
        let mut pending = Vec::new();
        loop {
            match receive(&mut port, &mut pending) {
                Ok(word) => {
                    if sender.send(word).is_err() {
                        return;
                    }
                }
                Err(error) => {
                    if error.kind() == io::ErrorKind::InvalidData {
                        eprintln!("invalid message of the guest: {error}");
                    }
                    return;
                }
            }
        }
    })?;
    Ok(words)
}

/// Prints output for users. A failed write is ignored, because the verdict does not depend on it.
pub(crate) fn show(mut to: impl Write, text: &str) {
    let _ = to.write_all(text.as_bytes()).and_then(|()| to.flush());
}
