//! Requests to the host: statistics and faults of disks, and power cuts.

use std::env;
use std::fs;
use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

use ktest_init::{Answer, PowerCut, Request, SOCKET, receive, send};

use crate::disk;

pub use ktest_init::BlockStats;

/// Environment variable with the number of this boot for the running test.
const BOOT: &str = "KTEST_BOOT";

/// Whether the host writes the standard error of a `guest_program` to a terminal. In the guest, standard error is a
/// pipe.
pub fn stderr_is_terminal() -> bool {
    env::var_os("KTEST_TERMINAL").is_some()
}

/// Requests of a scratch disk since the boot of the guest, as QEMU counts them.
pub fn block_stats(device: &Path) -> BlockStats {
    match ask(&Request::Stats(serial(device))) {
        Answer::Stats(stats) => stats,
        answer @ (Answer::Done | Answer::Refused(_)) => unexpected(&answer),
    }
}

/// A disk that fails all requests until this value is dropped.
#[derive(Debug)]
#[must_use = "the disk works again when this is dropped"]
pub struct Cut {
    serial: String,
}

/// Makes reads, writes, discards and flushes of a scratch disk fail with `EIO` until the value is dropped. The disk
/// keeps its data.
pub fn cut(device: &Path) -> Cut {
    let serial = serial(device);
    done(&Request::Cut(serial.clone()));
    Cut { serial }
}

impl Drop for Cut {
    fn drop(&mut self) {
        // A test that panics has failed already: a second panic would abort the program.
        if !thread::panicking() {
            done(&Request::Restore(self.serial.clone()));
        } else if let Err(error) = exchange(&Request::Restore(self.serial.clone())) {
            eprintln!("the disk {} stays cut off: {error}", self.serial);
        }
    }
}

/// Cuts the power of the machine: the memory of the guest is lost, the content of its disks stays. The machine starts
/// again and runs this test alone, from its beginning; [`boot`] then returns the next number.
///
/// In the next boot, the first disks that the test takes are those that this thread holds now. Other tests that were
/// running run again later. A disk keeps all writes that it has acknowledged, because the host's page cache is not
/// lost: only a [`replay`](crate::replay) of a log of writes finds a missing flush.
pub fn power_cut() -> ! {
    let test = thread::current().name().unwrap_or_default().to_owned();
    assert!(!test.is_empty(), "power_cut() is called on the test's own thread, whose name is the test's");
    let disks = disk::held().iter().map(|device| serial(device)).collect();
    unexpected(&ask(&Request::PowerCut(PowerCut { test, disks })))
}

/// Number of this boot for the running test: 1, then 2 after its first [`power_cut`], and so on.
pub fn boot() -> u32 {
    env::var(BOOT).ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

fn done(request: &Request) {
    match ask(request) {
        Answer::Done => {}
        answer @ (Answer::Stats(_) | Answer::Refused(_)) => unexpected(&answer),
    }
}

fn ask(request: &Request) -> Answer {
    exchange(request).unwrap_or_else(|error| panic!("cannot ask the host through {SOCKET}: {error}"))
}

fn exchange(request: &Request) -> io::Result<Answer> {
    let stream = UnixStream::connect(SOCKET)?;
    send(&stream, request)?;
    receive(&mut BufReader::new(&stream), &mut Vec::new())
}

fn unexpected(answer: &Answer) -> ! {
    match answer {
        Answer::Refused(why) => panic!("the host refuses: {why}"),
        Answer::Stats(_) | Answer::Done => panic!("the host answers something else: {answer:?}"),
    }
}

fn serial(device: &Path) -> String {
    let name = device.file_name().unwrap_or_default();
    let path = Path::new("/sys/class/block").join(name).join("serial");
    match fs::read_to_string(&path) {
        Ok(serial) => serial.trim().to_owned(),
        Err(error) => panic!("{} is not a scratch disk: {}: {error}", device.display(), path.display()),
    }
}
