//! A tenant whose claims are deleted while its pod runs.

use core::ffi::CStr;
use core::fmt::{self, Write as _};

use crate::errno::Errno;
use crate::loops;
use crate::sys::{self, File, Page, Way};
use crate::target::Target;
use crate::text::Text;

/// Offsets in a device where each tenant writes its mark: as its owner, and as an intruder.
const OWN: usize = 0;
const INTRUSION: usize = 1 << 20;
/// Files that a turn creates.
const FILES: u32 = 20;

/// A tenant that keeps using its device and its directory. It detaches the device again and again, and keeps a descriptor
/// of what may be the next tenant's device by then.
#[derive(Debug)]
pub struct Tenant<'a> {
    target: Target<'a>,
    mark: &'a CStr,
    foreign: &'a CStr,
    /// Open from one turn to the next.
    device: Option<File>,
    page: Page,
    turns: u32,
    files: u32,
}

/// What a turn found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Its number, from 1.
    pub number: u32,
    /// Whether the device has bytes of the other tenant.
    pub foreign: bool,
    /// The files that it created, or why it created no more.
    pub created: Result<u32, Errno>,
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, foreign, .. } = self;
        let bytes = if *foreign { "FOREIGN BYTES" } else { "no foreign bytes" };
        match self.created {
            Ok(files) => write!(f, "turn {number}: {bytes}, {files} files"),
            Err(errno) => write!(f, "turn {number}: {bytes}, {errno}"),
        }
    }
}

impl<'a> Tenant<'a> {
    /// Writes the tenant's mark to its device. `foreign` is the mark of the other tenant.
    ///
    /// # Errors
    /// The device cannot be written.
    pub fn new(target: Target<'a>, mark: &'a CStr, foreign: &'a CStr) -> Result<Self, Errno> {
        let page = Page::new()?;
        let mut tenant = Self { target, mark, foreign, device: None, page, turns: 0, files: 0 };
        let device = sys::open(target.device, sys::READ_WRITE)?;
        tenant.write(device, OWN)?;
        sys::sync(device)?;
        sys::close(device)?;
        Ok(tenant)
    }

    /// Looks for the other tenant's mark, leaves its own, detaches the device, and creates files.
    pub fn turn(&mut self) -> Turn {
        let device = self.device.take().or_else(|| sys::open(self.target.device, sys::READ_WRITE).ok());
        let mut foreign = false;
        if let Some(device) = device {
            foreign = self.has_foreign(device, OWN) || self.has_foreign(device, INTRUSION);
            _ = self.write(device, INTRUSION);
            _ = sys::sync(device);
            // Denied on a node. Otherwise the device loses its file when it is closed.
            _ = loops::clear(device, Way::Native);
            _ = sys::close(device);
        }
        self.device = sys::open(self.target.device, sys::READ_WRITE).ok();
        self.turns += 1;
        Turn { number: self.turns, foreign, created: self.create_files() }
    }

    /// Takes turns and writes a line for each.
    pub fn run(mut self, turns: u32, output: File) {
        const PAUSE: u32 = 500;
        for _ in 0..turns {
            let mut line = Text::<128>::new();
            // It fits.
            _ = writeln!(line, "{}", self.turn());
            _ = sys::write(output, line.as_bytes());
            sys::sleep(PAUSE);
        }
    }

    fn has_foreign(&mut self, device: File, offset: usize) -> bool {
        let mark = self.foreign.to_bytes();
        sys::read_page(device, &mut self.page, offset).is_ok_and(|bytes| bytes >= mark.len())
            && self.page.bytes().starts_with(mark)
    }

    fn write(&mut self, device: File, offset: usize) -> Result<(), Errno> {
        self.page.clear();
        self.page.put(0, self.mark.to_bytes());
        sys::write_page(device, &self.page, offset).map(drop)
    }

    fn create_files(&mut self) -> Result<u32, Errno> {
        let volume = sys::open(self.target.volume, sys::READ_ONLY)?;
        let created = (0..FILES).try_for_each(|_| {
            self.files += 1;
            let mut name = Text::<32>::new();
            // It fits.
            _ = write!(name, "file-{}", self.files);
            sys::close(sys::open_at(volume, name.as_c_str(), sys::READ_WRITE | sys::CREATE)?)
        });
        sys::close(volume)?;
        created.map(|()| FILES)
    }
}
