//! Attacks on the project quota of a volume: moving files out of their project.

use core::ffi::CStr;

use crate::errno::Errno;
use crate::failure::Failure;
use crate::sys::{self, Argument, File, Page, Way, ioctl};
use crate::target::Target;

const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
pub(crate) const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
/// The same command for 32-bit programs.
pub(crate) const FS_IOC32_SETFLAGS: u32 = 0x4004_6602;
const FS_NODUMP_FL: u32 = 0x40;
const FS_PROJINHERIT_FL: u32 = 0x2000_0000;
const FS_XFLAG_PROJINHERIT: u32 = 0x200;

/// Field offsets and size of `struct fsxattr`.
const XFLAGS: usize = 0;
const PROJECT: usize = 12;
const FSXATTR: usize = 28;

/// Offset of the project and size of `struct file_attr`, include/uapi/linux/fs.h.
const FILE_ATTR_PROJECT: usize = 16;
const FILE_ATTR: usize = 24;

/// The attacker's directory and file. Both inherit the project of their parent directory.
const DIRECTORY: &CStr = c"attack";
const FILE: &CStr = c"file";

#[derive(Clone, Copy, Debug)]
pub(crate) enum Other {
    None,
    First,
    Next,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Volume,
    File,
    Layer,
}

impl Place {
    fn open(self, target: &Target<'_>) -> Result<File, Failure> {
        let path = if matches!(self, Self::Layer) { target.layer } else { target.volume };
        let directory = sys::open(path, sys::READ_ONLY).map_err(Failure::step("open the directory"))?;
        let own = sys::make_directory(directory, DIRECTORY).map_err(Failure::step("create a directory"))?;
        match self {
            Self::Volume | Self::Layer => Ok(own),
            Self::File => {
                sys::open_at(own, FILE, sys::READ_WRITE | sys::CREATE).map_err(Failure::step("create a file"))
            }
        }
    }
}

/// Project ID of an open file. The page then contains its `struct fsxattr`.
pub(crate) fn project_of(file: File, page: &mut Page) -> Result<u32, Errno> {
    ioctl(Way::Native, file, FS_IOC_FSGETXATTR, Argument::Page(page))?;
    Ok(page.get_u32(PROJECT))
}

pub(crate) fn read(target: &Target<'_>, page: &mut Page) -> Result<(), Failure> {
    let directory = Place::Volume.open(target)?;
    project_of(directory, page).map(drop).map_err(Failure::Denied)
}

/// `FS_IOC_FSSETXATTR` with another project.
pub(crate) fn set(target: &Target<'_>, page: &mut Page, place: Place, way: Way, project: Other) -> Result<(), Failure> {
    change(place.open(target)?, page, way, |page| {
        let own = page.get_u32(PROJECT);
        let other = match project {
            Other::None => 0,
            Other::First => 1,
            Other::Next => own.wrapping_add(1),
        };
        page.put_u32(PROJECT, other);
    })
}

/// `FS_IOC_FSSETXATTR` without the flag that makes new files inherit the project ID.
pub(crate) fn clear_inherit_attribute(target: &Target<'_>, page: &mut Page, way: Way) -> Result<(), Failure> {
    change(Place::Volume.open(target)?, page, way, |page| {
        page.put_u32(XFLAGS, page.get_u32(XFLAGS) & !FS_XFLAG_PROJINHERIT);
    })
}

/// Changes the attributes and restores them, so that the next attack starts from the same attributes.
fn change(file: File, page: &mut Page, way: Way, modify: impl FnOnce(&mut Page)) -> Result<(), Failure> {
    project_of(file, page).map_err(Failure::step("read the project"))?;
    let before: [u8; FSXATTR] = *page.bytes().first_chunk().unwrap_or(&[0; FSXATTR]);
    modify(page);
    ioctl(way, file, FS_IOC_FSSETXATTR, Argument::Page(page)).map_err(Failure::Denied)?;
    page.put(0, &before);
    let restored = ioctl(Way::Native, file, FS_IOC_FSSETXATTR, Argument::Page(page));
    restored.map(drop).map_err(Failure::step("restore the attributes"))
}

/// `FS_IOC_SETFLAGS` without the flag that makes new files inherit the project ID.
pub(crate) fn clear_inherit(
    target: &Target<'_>,
    page: &mut Page,
    place: Place,
    way: Way,
    command: u32,
) -> Result<(), Failure> {
    let directory = place.open(target)?;
    let flags = flags_of(directory, page)?;
    page.put_u32(0, flags & !FS_PROJINHERIT_FL);
    ioctl(way, directory, command, Argument::Page(page)).map_err(Failure::Denied)?;
    page.put_u32(0, flags);
    let restored = ioctl(Way::Native, directory, FS_IOC_SETFLAGS, Argument::Page(page));
    restored.map(drop).map_err(Failure::step("restore the flags"))
}

/// `FS_IOC_SETFLAGS` on a file, like `chattr +d`. Tenants may do this.
pub(crate) fn change_flags_of_file(target: &Target<'_>, page: &mut Page) -> Result<(), Failure> {
    let file = Place::File.open(target)?;
    let flags = flags_of(file, page)?;
    page.put_u32(0, flags ^ FS_NODUMP_FL);
    ioctl(Way::Native, file, FS_IOC_SETFLAGS, Argument::Page(page)).map(drop).map_err(Failure::Denied)
}

fn flags_of(file: File, page: &mut Page) -> Result<u32, Failure> {
    // The kernel writes an int.
    let read = ioctl(Way::Native, file, FS_IOC_GETFLAGS, Argument::Page(page));
    read.map_err(Failure::step("read the flags"))?;
    Ok(page.get_u32(0))
}

/// `file_setattr` with project 0. Linux has the call since 6.17.
pub(crate) fn set_by_name(target: &Target<'_>, page: &mut Page) -> Result<(), Failure> {
    Place::File.open(target)?;
    let directory = Place::Volume.open(target)?;
    page.clear();
    page.put_u32(FILE_ATTR_PROJECT, 0);
    sys::file_setattr(directory, FILE, page, FILE_ATTR).map(drop).map_err(Failure::Denied)
}

/// Writes more than the volume's limit to a file, after an attempt to move the parent directory out of the project.
pub(crate) fn write_past_the_limit(target: &Target<'_>, page: &mut Page) -> Result<(), Failure> {
    /// More than a partly filled block, and small enough for any disk.
    const EXCESS: u64 = 8 << 20;
    const NAME: &CStr = c"past-the-limit";
    let volume = Place::Volume.open(target)?;
    let directory = sys::make_directory(volume, NAME).map_err(Failure::step("create a directory"))?;
    if project_of(directory, page).is_ok() {
        page.put_u32(PROJECT, 0);
        _ = ioctl(Way::Native, directory, FS_IOC_FSSETXATTR, Argument::Page(page));
    }
    let flags = sys::READ_WRITE | sys::CREATE | sys::TRUNCATE;
    let file = sys::open_at(directory, FILE, flags).map_err(Failure::step("create a file"))?;
    page.clear();
    let mut written = 0;
    let result = loop {
        match sys::write(file, page.bytes()) {
            Ok(bytes) => written += bytes as u64,
            Err(errno) => break Err(errno),
        }
        if written > target.limit + EXCESS {
            break Ok(());
        }
    };
    sys::unlink(directory, FILE).map_err(Failure::step("delete the file"))?;
    sys::close(file).map_err(Failure::step("close the file"))?;
    match result {
        Err(errno) if written <= target.limit => Err(Failure::Denied(errno)),
        Err(_) | Ok(()) => Ok(()),
    }
}
