//! The virtio-serial port to the host of this virtual machine.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::thread;
use std::time::Duration;

use cluster::announcement::{self, Announcement, StageState};
use nix::time::{ClockId, clock_gettime};

/// Announces stages and errors to the host. Without a port, the announcements are dropped.
///
/// If the host does not read, only the writing thread waits; announcements that do not fit into the queue are dropped.
#[derive(Clone, Debug, Default)]
pub struct Host {
    lines: Option<SyncSender<Announcement>>,
}

/// Length of the queue. A boot sends fewer than a hundred announcements.
const QUEUE: usize = 1024;

/// The writing thread, which ends when the last [`Host`] is dropped.
#[derive(Debug)]
pub struct Writer {
    running: Option<Receiver<()>>,
}

impl Host {
    /// Opens the port. The kernel lists ports in sysfs; udev would create `/dev/virtio-ports`.
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

    pub fn stage(&self, name: &str, state: StageState) {
        self.announce(Announcement::Stage { name: name.to_owned(), state, at_ms: uptime_ms() });
    }

    pub fn announce(&self, announcement: Announcement) {
        if let Some(lines) = &self.lines {
            // The writer ends early only if the port is gone.
            if let Err(TrySendError::Full(lost)) = lines.try_send(announcement) {
                tracing::warn!(announcement = ?lost, "host channel full, announcement dropped");
            }
        }
    }
}

impl Writer {
    /// Waits until the queue is written, but at most for `limit`: the host may have stopped reading. The caller must
    /// drop every [`Host`] first.
    pub fn finish(self, limit: Duration) {
        if self.running.is_some_and(|running| running.recv_timeout(limit) == Err(RecvTimeoutError::Timeout)) {
            tracing::warn!("host channel not read in time, announcements dropped");
        }
    }
}

fn write(mut port: File, announcements: &mpsc::Receiver<Announcement>) {
    for announcement in announcements {
        let written = announcement.to_line().map_err(io::Error::other).and_then(|line| port.write_all(line.as_bytes()));
        if let Err(error) = written {
            tracing::warn!(%error, "cannot write to the host channel");
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
        // A port without a name has no such file.
        if fs::read_to_string(entry.path().join("name")).is_ok_and(|name| name.trim_end() == announcement::PORT) {
            return Ok(Some(Path::new("/dev").join(entry.file_name())));
        }
    }
    Ok(None)
}

pub fn uptime_ms() -> u64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |t| {
        u64::try_from(t.tv_sec()).unwrap_or(0) * 1000 + u64::try_from(t.tv_nsec()).unwrap_or(0) / 1_000_000
    })
}
