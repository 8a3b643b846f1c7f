//! The guest's end of the port to the host.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use ktest_init::{Answer, Order, PORT, Request, Run, Unpack, Word, receive};

use crate::wait;

pub(crate) enum Task {
    Unpack(Unpack),
    Run(Run),
}

pub(crate) struct Host {
    port: Mutex<File>,
    tasks: Mutex<Receiver<Task>>,
    answers: Mutex<Receiver<Answer>>,
}

/// Channels for orders that other threads carry out. `tasks` is closed by the order to power off.
struct Senders {
    tasks: Sender<Task>,
    answers: Sender<Answer>,
}

impl Host {
    pub(crate) fn connect(limit: Duration) -> io::Result<Self> {
        let path = wait::until(limit, find).ok_or(io::ErrorKind::NotFound)?;
        // The kernel lets a port be opened only once, so the descriptor is duplicated.
        let port = File::options().read(true).write(true).open(path)?;
        let reader = port.try_clone()?;
        let writer = port.try_clone()?;
        let (task_sender, tasks) = mpsc::channel();
        let (answer_sender, answers) = mpsc::channel();
        let senders = Senders { tasks: task_sender, answers: answer_sender };
        thread::Builder::new().name("orders".into()).spawn(move || listen(reader, &writer, senders))?;
        Ok(Self { port: Mutex::new(port), tasks: Mutex::new(tasks), answers: Mutex::new(answers) })
    }

    pub(crate) fn send(&self, word: &Word) {
        let port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = ktest_init::send(&*port, word) {
            eprintln!("error: cannot send to the host: {error}");
        }
    }

    /// Forwards the request of a test to the host. Requests run one after the other, because an answer does not name
    /// its request.
    pub(crate) fn ask(&self, request: Request) -> Answer {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        self.send(&Word::Ask(request));
        answers.recv().unwrap_or_else(|_| Answer::Refused("the host is gone".into()))
    }

    /// The first task; `None` if the host orders to power off.
    pub(crate) fn first_task(&self) -> Option<Task> {
        self.tasks().recv().ok()
    }

    /// The next task. `None` when the host orders to power off, or after `limit`, if there is no host. The host gives
    /// this order after it has received everything: data is still in flight from the port when a write returns.
    pub(crate) fn next_task(&self, limit: Duration) -> Option<Task> {
        self.tasks().recv_timeout(limit).ok()
    }

    fn tasks(&self) -> MutexGuard<'_, Receiver<Task>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find() -> Option<PathBuf> {
    let port = fs::read_dir("/sys/class/virtio-ports").ok()?.flatten().find(|entry| {
        let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        name.trim() == PORT
    })?;
    let device = PathBuf::from("/dev").join(port.file_name());
    device.exists().then_some(device)
}

fn listen(reader: File, writer: &File, senders: Senders) {
    let Senders { tasks, answers } = senders;
    // `None` after the order to power off.
    let mut tasks = Some(tasks);
    let mut reader = BufReader::new(reader);
    let mut pending = Vec::new();
    loop {
        match receive(&mut reader, &mut pending) {
            // Handled in this thread, because the test program may block all others.
            Ok(Order::Dump) => {
                dump();
                let _ = ktest_init::send(writer, &Word::Dumped);
            }
            // A failed send means that the receiver has ended.
            Ok(Order::Unpack(unpack)) => drop(tasks.as_ref().map(|tasks| tasks.send(Task::Unpack(unpack)))),
            Ok(Order::Run(run)) => drop(tasks.as_ref().map(|tasks| tasks.send(Task::Run(run)))),
            Ok(Order::Answer(answer)) => drop(answers.send(answer)),
            Ok(Order::PowerOff) => tasks = None,
            // A read returns no data until the host has opened its end.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => thread::sleep(Duration::from_millis(5)),
            Err(error) => {
                eprintln!("error: cannot receive from the host: {error}");
                return;
            }
        }
    }
}

/// Triggers SysRq keys: all messages to the console (9), then blocked tasks (w), all tasks (t), stacks of all CPUs (l).
fn dump() {
    for key in ["9", "w", "t", "l"] {
        if let Err(error) = fs::write("/proc/sysrq-trigger", key) {
            eprintln!("error: cannot ask the kernel for stacks: {error}");
        }
    }
}
