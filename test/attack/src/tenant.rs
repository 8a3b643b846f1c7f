//! A tenant whose claims are deleted while its pod runs.

use core::ffi::CStr;
use core::fmt::{self, Write as _};

use crate::errno::Errno;
use crate::loops;
use crate::sys::{self, File, Page, Way};
use crate::target::Target;
use crate::text::Text;

/// Offsets in a device where each tenant writes its mark: as the owner, and as an intruder.
const OWN: usize = 0;
const INTRUSION: usize = 1 << 20;
const FILES: u32 = 20;

/// A tenant that uses its device and directory, detaches the device repeatedly, and keeps the device's descriptor. By
/// then, the descriptor may refer to the device of the next tenant.
#[derive(Debug)]
pub struct Tenant<'a> {
    target: Target<'a>,
    mark: &'a CStr,
    foreign: &'a CStr,
    device: Option<File>,
    page: Page,
    turns: u32,
    files: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    pub number: u32,
    /// Whether the device contains bytes of the other tenant, or the error of the read. `ENXIO`: the device has lost
    /// its backing file.
    pub foreign: Result<bool, Errno>,
    /// Number of created files, or the error that stopped the creation.
    pub created: Result<u32, Errno>,
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "turn {}: ", self.number)?;
        match self.foreign {
            Ok(true) => f.write_str("FOREIGN BYTES")?,
            Ok(false) => f.write_str("no foreign bytes")?,
            Err(errno) => write!(f, "unreadable {errno}")?,
        }
        match self.created {
            Ok(files) => write!(f, ", {files} files"),
            Err(errno) => write!(f, ", {errno}"),
        }
    }
}

impl<'a> Tenant<'a> {
    /// Writes the tenant's mark to its device. `foreign` is the mark of the other tenant.
    pub fn new(target: Target<'a>, mark: &'a CStr, foreign: &'a CStr) -> Result<Self, Errno> {
        let page = Page::new()?;
        let mut tenant = Self { target, mark, foreign, device: None, page, turns: 0, files: 0 };
        let device = sys::open(target.device, sys::READ_WRITE)?;
        tenant.write(device, OWN)?;
        sys::sync(device)?;
        sys::close(device)?;
        Ok(tenant)
    }

    /// Searches for the other tenant's mark, writes its own mark, detaches the device, and creates files.
    pub fn turn(&mut self) -> Turn {
        let foreign = self.use_device();
        self.device = sys::open(self.target.device, sys::READ_WRITE).ok();
        self.turns += 1;
        Turn { number: self.turns, foreign, created: self.create_files() }
    }

    fn use_device(&mut self) -> Result<bool, Errno> {
        let device = self.device.take().map_or_else(|| sys::open(self.target.device, sys::READ_WRITE), Ok)?;
        let own = self.has_foreign(device, OWN);
        let intruded = self.has_foreign(device, INTRUSION);
        _ = self.write(device, INTRUSION);
        _ = sys::sync(device);
        // The node denies this. Without the protection, the device loses its backing file when it is closed.
        _ = loops::clear(device, Way::Native);
        _ = sys::close(device);
        Ok(own? | intruded?)
    }

    pub fn run(mut self, turns: u32, output: File) {
        const PAUSE: u32 = 500;
        for _ in 0..turns {
            let mut line = Text::<128>::new();
            // The line fits into the buffer.
            _ = writeln!(line, "{}", self.turn());
            _ = sys::write(output, line.as_bytes());
            sys::sleep(PAUSE);
        }
    }

    fn has_foreign(&mut self, device: File, offset: usize) -> Result<bool, Errno> {
        let mark = self.foreign.to_bytes();
        let bytes = sys::read_page(device, &mut self.page, offset)?;
        if bytes < mark.len() { Err(Errno::ENXIO) } else { Ok(self.page.bytes().starts_with(mark)) }
    }

    fn write(&mut self, device: File, offset: usize) -> Result<(), Errno> {
        self.page.clear();
        self.page.put(0, self.mark.to_bytes());
        sys::write_page(device, &self.page, offset).map(drop)
    }

    /// Also removes the files of the previous turn. Otherwise a pod on a slow machine reaches the limit of its volume.
    fn create_files(&mut self) -> Result<u32, Errno> {
        let volume = sys::open(self.target.volume, sys::READ_ONLY)?;
        let created = (0..FILES).try_for_each(|_| {
            self.files += 1;
            sys::close(sys::open_at(volume, file(self.files).as_c_str(), sys::READ_WRITE | sys::CREATE)?)?;
            // The node may have removed the file with the volume.
            _ = self.files.checked_sub(FILES).map(|earlier| sys::unlink(volume, file(earlier).as_c_str()));
            Ok(())
        });
        sys::close(volume)?;
        created.map(|()| FILES)
    }
}

fn file(number: u32) -> Text<32> {
    let mut name = Text::new();
    // The name fits into the buffer.
    _ = write!(name, "file-{number}");
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a device that could not be read was reported as one without foreign bytes.
    #[test]
    fn an_unreadable_device_is_not_reported_as_clean() {
        let turn = |foreign| {
            let mut line = Text::<128>::new();
            write!(line, "{}", Turn { number: 7, foreign, created: Ok(20) }).unwrap();
            core::str::from_utf8(line.as_bytes()).unwrap().to_owned()
        };
        assert_eq!(turn(Ok(false)), "turn 7: no foreign bytes, 20 files");
        assert_eq!(turn(Ok(true)), "turn 7: FOREIGN BYTES, 20 files");
        assert_eq!(turn(Err(Errno::ENXIO)), "turn 7: unreadable ENXIO, 20 files");
    }

    #[test]
    fn a_missing_device_and_one_without_its_file_are_reported() {
        let target = |device| Target { volume: c"/", limit: 0, device, layer: c"/", module: c"/" };
        let tenant = |device| {
            let page = Page::new().unwrap();
            let (mark, foreign) = (c"own", c"foreign");
            Tenant { target: target(device), mark, foreign, device: None, page, turns: 0, files: 0 }
        };
        assert_eq!(tenant(c"/nowhere").use_device(), Err(Errno::ENOENT));
        // Like a device that lost its backing file, `/dev/null` can be opened and has no bytes.
        assert_eq!(tenant(c"/dev/null").use_device(), Err(Errno::ENXIO));
    }
}
