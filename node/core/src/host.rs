//! The virtio-serial port to the machine that runs this node, if it gave one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::thread;
use std::time::Duration;

use cluster::announcement::{self, Announcement, StageState};
use nix::time::{ClockId, clock_gettime};

/// Tells the machine what happens. Without a port it tells nobody.
///
/// A machine that does not read stops only the thread that writes; what does not fit into the queue any more
/// is dropped.
#[derive(Clone, Debug, Default)]
pub struct Host {
    lines: Option<SyncSender<Announcement>>,
}

/// Lines that wait for the machine. A boot has fewer than a hundred.
const QUEUE: usize = 1024;

/// The thread that writes; it ends when the last [`Host`] is gone.
#[derive(Debug)]
pub struct Writer {
    /// Disconnected when the thread has ended.
    running: Option<Receiver<()>>,
}

impl Host {
    /// Opens the port. The kernel names ports in sysfs; `/dev/virtio-ports` would be udev's work.
    ///
    /// # Errors
    /// The port is there but cannot be opened.
    pub fn open() -> io::Result<(Self, Writer)> {
        let Some(path) = find(Path::new("/sys/class/virtio-ports"))? else {
            return Ok((Self::default(), Writer { running: None }));
        };
        let port = OpenOptions::new().write(true).open(path)?;
        let (sender, receiver) = mpsc::sync_channel(QUEUE);
        let (runs, running) = mpsc::sync_channel(0);
        thread::Builder::new().name("announce".into()).spawn(move || {
            let _runs = runs;
            write(port, &receiver);
        })?;
        Ok((Self { lines: Some(sender) }, Writer { running: Some(running) }))
    }

    /// Tells how far a stage is, with the time since the kernel started.
    pub fn stage(&self, name: &str, state: StageState) {
        self.tell(Announcement::Stage { name: name.to_owned(), state, at_ms: uptime_ms() });
    }

    /// Tells anything.
    pub fn tell(&self, announcement: Announcement) {
        if let Some(lines) = &self.lines {
            // The writer ends early only when the port is gone, and with it the one who listens.
            if let Err(TrySendError::Full(lost)) = lines.try_send(announcement) {
                tracing::warn!(announcement = ?lost, "the machine that runs this node does not listen");
            }
        }
    }
}

impl Writer {
    /// Waits until all that was told is written, but not longer than `limit`: the machine may have stopped
    /// reading. Every [`Host`] has to be dropped before.
    pub fn finish(self, limit: Duration) {
        if self.running.is_some_and(|running| running.recv_timeout(limit) == Err(RecvTimeoutError::Timeout)) {
            tracing::warn!("the machine that runs this node did not hear everything");
        }
    }
}

fn write(mut port: File, announcements: &mpsc::Receiver<Announcement>) {
    for announcement in announcements {
        let written = announcement.to_line().map_err(io::Error::other).and_then(|line| port.write_all(line.as_bytes()));
        if let Err(error) = written {
            tracing::warn!(%error, "cannot announce to the machine that runs this node");
        }
    }
}

fn find(ports: &Path) -> io::Result<Option<PathBuf>> {
    let entries = match fs::read_dir(ports) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        // A port of the machine that has no name has no such file.
        if fs::read_to_string(entry.path().join("name")).is_ok_and(|name| name.trim_end() == announcement::PORT) {
            return Ok(Some(Path::new("/dev").join(entry.file_name())));
        }
    }
    Ok(None)
}

/// Milliseconds since the kernel started.
pub fn uptime_ms() -> u64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |t| {
        u64::try_from(t.tv_sec()).unwrap_or(0) * 1000 + u64::try_from(t.tv_nsec()).unwrap_or(0) / 1_000_000
    })
}
