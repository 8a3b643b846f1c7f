//! The ACPI power button.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::path::Path;

/// Size of `struct input_event` on a 64-bit machine in bytes, include/uapi/linux/input.h.
const EVENT: usize = 24;
/// Type, code and value of a press: `EV_KEY`, `KEY_POWER`, 1; include/uapi/linux/input-event-codes.h.
const PRESS: [u8; 8] = [1, 0, 116, 0, 1, 0, 0, 0];

/// All input devices with the name of a power button. Some machines have two and use only one.
pub(crate) struct Button(Vec<File>);

impl Button {
    pub(crate) fn open() -> io::Result<Self> {
        let mut devices = Vec::new();
        for entry in fs::read_dir("/sys/class/input")? {
            let entry = entry?;
            let name = fs::read_to_string(entry.path().join("device/name")).unwrap_or_default();
            if entry.file_name().as_encoded_bytes().starts_with(b"event") && name.trim_end() == "Power Button" {
                devices.push(File::open(Path::new("/dev/input").join(entry.file_name()))?);
            }
        }
        match devices.is_empty() {
            true => Err(io::Error::new(io::ErrorKind::NotFound, "the machine has no power button")),
            false => Ok(Self(devices)),
        }
    }

    pub(crate) fn wait_for_press(&self) -> io::Result<()> {
        let mut event = [0; EVENT];
        loop {
            let mut ready: Vec<_> =
                self.0.iter().map(|device| PollFd::new(device.as_fd(), PollFlags::POLLIN)).collect();
            poll(&mut ready, PollTimeout::NONE)?;
            let ready: Vec<bool> = ready.iter().map(|device| device.any().unwrap_or(false)).collect();
            for (mut device, _) in self.0.iter().zip(ready).filter(|(_, ready)| *ready) {
                device.read_exact(&mut event)?;
                if event[16..] == PRESS {
                    return Ok(());
                }
            }
        }
    }
}
