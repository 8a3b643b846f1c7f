//! The guest's end of the port.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use ktest_init::{Order, PORT, Run, Word, receive, send};

use crate::wait;

/// The host, as the guest knows it.
pub(crate) struct Host {
    port: Mutex<File>,
    orders: Mutex<Receiver<Order>>,
}

impl Host {
    /// Opens the port and listens on it in a thread.
    pub(crate) fn connect(limit: Duration) -> io::Result<Self> {
        let path = wait::until(limit, find).ok_or(io::ErrorKind::NotFound)?;
        // A port can be open only once.
        let port = File::options().read(true).write(true).open(path)?;
        let ear = port.try_clone()?;
        let mouth = port.try_clone()?;
        let (heard, orders) = mpsc::channel();
        thread::Builder::new().name("orders".into()).spawn(move || listen(ear, &mouth, &heard))?;
        Ok(Self { port: Mutex::new(port), orders: Mutex::new(orders) })
    }

    pub(crate) fn tell(&self, word: &Word) {
        let port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = send(&*port, word) {
            eprintln!("error: cannot speak to the host: {error}");
        }
    }

    /// `None` if the host orders something else.
    pub(crate) fn first_order(&self) -> Option<Run> {
        match self.orders().recv() {
            Ok(Order::Run(run)) => Some(run),
            Ok(Order::Dump | Order::PowerOff) | Err(_) => None,
        }
    }

    /// Data is still under way from the port to the host when a write returns.
    pub(crate) fn wait_for_power_off(&self, limit: Duration) {
        let orders = self.orders();
        while let Ok(order) = orders.recv_timeout(limit) {
            if order == Order::PowerOff {
                break;
            }
        }
    }

    fn orders(&self) -> std::sync::MutexGuard<'_, Receiver<Order>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The port's device, once the host has told its name.
fn find() -> Option<PathBuf> {
    let port = fs::read_dir("/sys/class/virtio-ports").ok()?.flatten().find(|entry| {
        let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        name.trim() == PORT
    })?;
    let device = PathBuf::from("/dev").join(port.file_name());
    device.exists().then_some(device)
}

fn listen(ear: File, mouth: &File, heard: &Sender<Order>) {
    let mut ear = BufReader::new(ear);
    let mut pending = Vec::new();
    loop {
        match receive(&mut ear, &mut pending) {
            // Here, since the test program may have stopped everything else.
            Ok(Order::Dump) => {
                dump();
                let _ = send(mouth, &Word::Dumped);
            }
            Ok(order) => {
                if heard.send(order).is_err() {
                    return;
                }
            }
            // Reading gives nothing while the host has not opened its end.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => thread::sleep(Duration::from_millis(5)),
            Err(error) => {
                eprintln!("error: cannot hear the host: {error}");
                return;
            }
        }
    }
}

/// All messages to the console (9), then blocked tasks (w), all tasks (t), stacks of all CPUs (l).
fn dump() {
    for key in ["9", "w", "t", "l"] {
        if let Err(error) = fs::write("/proc/sysrq-trigger", key) {
            eprintln!("error: cannot ask the kernel for stacks: {error}");
        }
    }
}
