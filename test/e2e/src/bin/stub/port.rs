//! The virtio-serial port for announcements.

use cluster::announcement::{Announcement, PORT};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(5);

pub(crate) struct Port(File);

impl Port {
    /// Waits until the host has assigned a name to the port.
    pub(crate) fn open() -> io::Result<Self> {
        let start = Instant::now();
        loop {
            if let Some(device) = find()? {
                return Ok(Self(File::options().write(true).open(device)?));
            }
            if start.elapsed() > LIMIT {
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("no port has the name {PORT}")));
            }
            thread::sleep(STEP);
        }
    }

    pub(crate) fn announce(&mut self, announcement: &Announcement) -> io::Result<()> {
        self.0.write_all(announcement.to_line()?.as_bytes())
    }
}

fn find() -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir("/sys/class/virtio-ports")? {
        let entry = entry?;
        if fs::read_to_string(entry.path().join("name")).is_ok_and(|name| name.trim_end() == PORT) {
            return Ok(Some(Path::new("/dev").join(entry.file_name())));
        }
    }
    Ok(None)
}
