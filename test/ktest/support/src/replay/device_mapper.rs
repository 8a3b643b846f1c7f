//! Devices of the device mapper, without libdevmapper: a guest has no udev to wait for.

use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::errno::Errno;
use nix::libc;

use super::sys::{self, Command, Header, PAYLOAD, Request};
use crate::busy;

static CONTROL: LazyLock<File> = LazyLock::new(|| {
    let path = "/dev/mapper/control";
    let opened = File::options().read(true).write(true).open(path);
    opened.unwrap_or_else(|error| panic!("cannot open {path}, is a dm module in the ktest's `modules`? {error}"))
});

/// `struct dm_target_spec`: two 64-bit numbers, two 32-bit numbers, 16 bytes of name.
const TARGET_SPEC: usize = 40;

/// A mapped device of one target. It is removed on drop; nothing may have it open then.
#[derive(Debug)]
pub(crate) struct Mapped {
    name: String,
    path: PathBuf,
}

impl Mapped {
    /// Maps `length` bytes by the target `kind` with `arguments`, as dmsetup(8) takes them.
    pub(crate) fn new(kind: &str, length: u64, arguments: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{kind}-{}-{number}", std::process::id());
        let mut request = request(&name);
        ask(Command::Create, &mut request)
            .unwrap_or_else(|error| panic!("cannot make the mapped device {name}: {error}"));
        // The device node has the kernel's name: without udev there are no links in /dev/mapper.
        let mapped = Self { path: format!("/dev/dm-{}", libc::minor(request.header.dev)).into(), name };
        mapped.load(kind, length, arguments);
        mapped
    }

    fn load(&self, kind: &str, length: u64, arguments: &str) {
        let mut load = request(&self.name);
        load.header.target_count = 1;
        put(&mut load.payload, 8, &(length / 512).to_ne_bytes());
        put(&mut load.payload, 24, kind.as_bytes());
        put(&mut load.payload, TARGET_SPEC, arguments.as_bytes());
        ask(Command::Load, &mut load)
            .and_then(|()| ask(Command::Resume, &mut request(&self.name)))
            .unwrap_or_else(|error| panic!("cannot map by {kind} {arguments}, is its module loaded? {error}"));
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Sends a message to the target. Blanks separate the words of the message; see [`word`].
    pub(crate) fn message(&self, message: &str) -> Result<(), Errno> {
        let mut request = request(&self.name);
        // `struct dm_target_msg`: the sector that selects the target, then the text.
        put(&mut request.payload, 8, message.as_bytes());
        ask(Command::Message, &mut request)
    }

    pub(crate) fn status(&self) -> Result<String, Errno> {
        let mut request = request(&self.name);
        ask(Command::Status, &mut request)?;
        let text = request.payload[TARGET_SPEC..].split(|&byte| byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let removed = busy::retry(|| ask(Command::Remove, &mut request(&self.name)));
        if let Err(error) = removed
            && !thread::panicking()
        {
            panic!("cannot remove the mapped device {}, is something still open on it? {error}", self.name);
        }
    }
}

/// Escapes `text` as one word of a message or of a target's arguments.
pub(crate) fn word(text: &str) -> String {
    let escape = |character| [Some('\\').filter(|_| matches!(character, ' ' | '\t' | '\\')), Some(character)];
    text.chars().flat_map(escape).flatten().collect()
}

pub(crate) fn length(device: &Path) -> u64 {
    let end = File::open(device).and_then(|mut file| file.seek(SeekFrom::End(0)));
    end.unwrap_or_else(|error| panic!("cannot measure {}: {error}", device.display()))
}

fn ask(command: Command, request: &mut Request) -> Result<(), Errno> {
    sys::control(CONTROL.as_fd(), command, request)
}

fn request(name: &str) -> Request {
    let mut header = Header {
        // First version of the interface, which all kernels support.
        version: [4, 0, 0],
        data_size: 0,
        data_start: size_of::<Header>() as u32,
        target_count: 0,
        open_count: 0,
        flags: 0,
        event_nr: 0,
        padding: 0,
        dev: 0,
        name: [0; 128],
        uuid: [0; 129],
        data: [0; 7],
    };
    put(&mut header.name, 0, name.as_bytes());
    Request { header, payload: [0; PAYLOAD] }
}

/// Copies `bytes` into a field of zeros. The zero byte after them terminates the text.
fn put(field: &mut [u8], start: usize, bytes: &[u8]) {
    let end = start + bytes.len();
    assert!(end < field.len(), "{:?} is too long for the device mapper", String::from_utf8_lossy(bytes));
    field[start..end].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_in_a_word_are_escaped() {
        assert_eq!(word(r"written 7 \ times"), r"written\ 7\ \\\ times");
        assert_eq!(word("plain"), "plain");
    }

    #[test]
    #[should_panic(expected = "too long for the device mapper")]
    fn a_name_that_is_too_long_is_rejected() {
        request(&"n".repeat(128));
    }
}
