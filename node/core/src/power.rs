//! Shutdown requests, and the shutdown of the machine.

use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use config::FailureAction;
use nix::errno::Errno;
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::signal::{self, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, sync};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use units::Bytes;

use crate::mounts;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    #[default]
    PowerOff,
    Restart,
}

impl From<FailureAction> for End {
    fn from(action: FailureAction) -> Self {
        match action {
            FailureAction::PowerOff => Self::PowerOff,
            FailureAction::Reboot => Self::Restart,
        }
    }
}

/// Shutdown requests: SIGTERM or a power button for power-off, SIGINT (Ctrl-Alt-Del at the console) for a restart.
/// Requests count from the creation on.
#[derive(Debug)]
pub struct Requests {
    terminate: Signal,
    interrupt: Signal,
    button: mpsc::Receiver<()>,
    /// Keeps the channel open on a machine without a button.
    _pressed: mpsc::Sender<()>,
}

impl Requests {
    pub fn watch() -> io::Result<Self> {
        let (pressed, button) = mpsc::channel(1);
        // Many machines have two devices with this name, and use one.
        let buttons = buttons(Path::new("/sys/class/input"));
        if buttons.is_empty() {
            tracing::warn!("machine has no power button, shut it down with SIGTERM");
        }
        for device in buttons {
            watch(device, pressed.clone())?;
        }
        let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(Self { terminate, interrupt, button, _pressed: pressed })
    }

    pub async fn next(&mut self) -> End {
        tokio::select! {
            _ = self.terminate.recv() => End::PowerOff,
            _ = self.interrupt.recv() => End::Restart,
            _ = self.button.recv() => End::PowerOff,
        }
    }
}

fn buttons(inputs: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(inputs) else { return Vec::new() };
    let button = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let is_event = name.to_str().is_some_and(|name| name.starts_with("event"));
        let its_name = fs::read_to_string(entry.path().join("device/name")).unwrap_or_default();
        (is_event && its_name.trim_end() == "Power Button").then(|| Path::new("/dev/input").join(name))
    };
    entries.flatten().filter_map(button).collect()
}

/// The thread blocks in read(2) until the machine is off.
fn watch(device: PathBuf, pressed: mpsc::Sender<()>) -> io::Result<()> {
    let mut events = File::open(&device)?;
    thread::Builder::new().name("power-button".into()).spawn(move || {
        let mut event = [0; EVENT];
        while events.read_exact(&mut event).is_ok() {
            if is_press(&event) && pressed.blocking_send(()).is_err() {
                return;
            }
        }
        tracing::warn!(device = %device.display(), "power button removed");
    })?;
    Ok(())
}

/// Bytes of `struct input_event` on a 64-bit machine: time (16), type, code, value.
const EVENT: usize = 24;

/// `EV_KEY` (1), `KEY_POWER` (116), value 1; include/uapi/linux/input-event-codes.h.
fn is_press(event: &[u8; EVENT]) -> bool {
    event[16..] == [1, 0, 116, 0, 1, 0, 0, 0]
}

/// Time for processes to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time without written pages after which an unmount is abandoned. A large machine has dirty pages for minutes.
const STANDSTILL: Duration = Duration::from_secs(60);

/// Ends all other processes, and unmounts the file systems below `tops`. A disk that does not respond must not keep the
/// machine on.
pub fn leave<const N: usize>(tops: [&'static Path; N]) {
    // From PID 1, -1 is every other process. ESRCH: there is no other process.
    for (stop, patience) in [(signal::Signal::SIGTERM, PATIENCE), (signal::Signal::SIGKILL, PATIENCE)] {
        let _ = kill(Pid::from_raw(-1), stop);
        if wait_for_the_last(patience, || waitpid(None, Some(WaitPidFlag::WNOHANG))) {
            break;
        }
    }
    let (runs, running) = channel();
    let thread = thread::Builder::new().name("unmount".into()).spawn(move || {
        let _runs = runs;
        unmount(&tops);
    });
    match thread {
        Ok(_) if wait_for_the_disk(&running, STANDSTILL, unwritten) => {}
        Ok(_) => {
            tracing::warn!("a disk has written nothing for a minute; its file system replays its log at the next boot")
        }
        Err(_) => unmount(&tops),
    }
}

fn unmount(tops: &[&Path]) {
    mounts::release(tops);
    sync();
}

/// Waits until the thread has ended; `false` if the disk writes no pages for the duration `standstill`.
fn wait_for_the_disk(
    running: &Receiver<Infallible>,
    standstill: Duration,
    mut unwritten: impl FnMut() -> Bytes,
) -> bool {
    let mut before = unwritten();
    while running.recv_timeout(standstill) == Err(RecvTimeoutError::Timeout) {
        let now = unwritten();
        if now >= before {
            return false;
        }
        before = now;
    }
    true
}

/// Amount of data that the kernel still has to write to disks, proc_meminfo(5).
fn unwritten() -> Bytes {
    let table = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    ["Dirty:", "Writeback:"].iter().filter_map(|name| kernel::text::size(&table, name)).sum()
}

/// Turns the machine off or restarts it. Returns only if the kernel rejects the call.
pub fn off(how: End) -> Errno {
    let mode = match how {
        End::PowerOff => RebootMode::RB_POWER_OFF,
        End::Restart => RebootMode::RB_AUTOBOOT,
    };
    let Err(errno) = reboot(mode);
    errno
}

/// Reaps children until none is left: at the shutdown, no service waits for a child. `wait` is waitpid(2) without
/// waiting. Returns `false` after `patience`, also if children that have ended arrive faster than they are reaped.
fn wait_for_the_last(patience: Duration, mut wait: impl FnMut() -> Result<WaitStatus, Errno>) -> bool {
    let start = Instant::now();
    loop {
        match wait() {
            Err(Errno::ECHILD) => return true,
            _ if start.elapsed() > patience => return false,
            Ok(WaitStatus::StillAlive) => thread::sleep(Duration::from_millis(20)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the machine stayed on, and had to be reset.
    #[test]
    fn a_disk_that_writes_nothing_does_not_hold_the_end_up() {
        let (runs, running) = channel();
        let mut left = [3, 2, 1, 1].map(Bytes::new).into_iter();
        assert!(!wait_for_the_disk(&running, Duration::from_millis(1), || left.next().unwrap()));
        assert_eq!(left.next(), None, "it was waited for as long as it wrote");
        drop(runs);
        assert!(wait_for_the_disk(&running, Duration::from_secs(60), || Bytes::ZERO));
    }

    /// Regression: the machine stayed on while processes started others that ended.
    #[test]
    fn processes_that_start_others_do_not_hold_the_end_up() {
        let mut ended = 0;
        let wait = || {
            ended += 1;
            assert!(ended < 1_000_000, "no limit");
            Ok(WaitStatus::Exited(Pid::from_raw(ended), 0))
        };
        assert!(!wait_for_the_last(Duration::ZERO, wait));
        assert!(wait_for_the_last(Duration::ZERO, || Err(Errno::ECHILD)));
    }

    #[test]
    fn only_the_press_of_the_power_key_counts() {
        let event = |kind: u16, code: u16, value: i32| {
            let mut bytes = [7; EVENT];
            bytes[16..18].copy_from_slice(&kind.to_le_bytes());
            bytes[18..20].copy_from_slice(&code.to_le_bytes());
            bytes[20..].copy_from_slice(&value.to_le_bytes());
            bytes
        };
        assert!(is_press(&event(1, 116, 1)));
        assert!(!is_press(&event(1, 116, 0)));
        assert!(!is_press(&event(1, 30, 1)));
        assert!(!is_press(&event(0, 0, 0)));
    }
}
