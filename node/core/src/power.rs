//! Requests to end the node, and its end.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use config::FailureAction;
use nix::errno::Errno;
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::signal::{self, kill};
use nix::unistd::{Pid, sync};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

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

/// Ways to ask for the end: SIGTERM or a power button for power-off, SIGINT (Ctrl-Alt-Del at the console)
/// for a restart. Watched from its creation.
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
        // Many machines have two of that name, and use one.
        let buttons = buttons(Path::new("/sys/class/input"));
        if buttons.is_empty() {
            tracing::warn!("this machine has no power button; end it with SIGTERM");
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

/// The thread blocks in read(2) until the machine is off: it has no other end.
fn watch(device: PathBuf, pressed: mpsc::Sender<()>) -> io::Result<()> {
    let mut events = File::open(&device)?;
    thread::Builder::new().name("power-button".into()).spawn(move || {
        let mut event = [0; EVENT];
        while events.read_exact(&mut event).is_ok() {
            if is_press(&event) && pressed.blocking_send(()).is_err() {
                return;
            }
        }
        tracing::warn!(device = %device.display(), "the power button is gone");
    })?;
    Ok(())
}

/// Bytes of `struct input_event` on a 64-bit machine: time (16), type, code, value.
const EVENT: usize = 24;

/// `EV_KEY` (1), `KEY_POWER` (116), value 1; include/uapi/linux/input-event-codes.h.
fn is_press(event: &[u8; EVENT]) -> bool {
    event[16..] == [1, 0, 116, 0, 1, 0, 0, 0]
}

/// How long processes may take after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(10);

/// Ends every other process, and gives back what is below `tops`.
pub fn leave(tops: &[&Path]) {
    // From PID 1, -1 means every other process. ESRCH: there is none.
    for (stop, patience) in [(signal::Signal::SIGTERM, PATIENCE), (signal::Signal::SIGKILL, PATIENCE)] {
        let _ = kill(Pid::from_raw(-1), stop);
        if wait_for_the_last(patience) {
            break;
        }
    }
    mounts::release(tops);
    sync();
}

/// Turns the machine off. Does not return unless the kernel refuses.
pub fn off(how: End) -> Errno {
    let mode = match how {
        End::PowerOff => RebootMode::RB_POWER_OFF,
        End::Restart => RebootMode::RB_AUTOBOOT,
    };
    let Err(errno) = reboot(mode);
    errno
}

/// Reaps until no child is left: at the end, no service awaits one.
fn wait_for_the_last(patience: Duration) -> bool {
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
    let start = Instant::now();
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Err(Errno::ECHILD) => return true,
            Ok(WaitStatus::StillAlive) if start.elapsed() > patience => return false,
            Ok(WaitStatus::StillAlive) => thread::sleep(Duration::from_millis(20)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
