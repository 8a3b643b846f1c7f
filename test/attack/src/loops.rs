//! Attacks on the loop device of a block volume.

use core::ffi::CStr;

use crate::failure::Failure;
use crate::sys::{self, Argument, File, Page, Way, ioctl};
use crate::target::Target;

pub(crate) const LOOP_SET_FD: u32 = 0x4c00;
pub(crate) const LOOP_CLR_FD: u32 = 0x4c01;
const LOOP_SET_STATUS64: u32 = 0x4c04;
const LOOP_GET_STATUS64: u32 = 0x4c05;
const LOOP_CHANGE_FD: u32 = 0x4c06;
pub(crate) const LOOP_SET_CAPACITY: u32 = 0x4c07;
pub(crate) const LOOP_SET_DIRECT_IO: u32 = 0x4c08;
pub(crate) const LOOP_SET_BLOCK_SIZE: u32 = 0x4c09;
const LOOP_CONFIGURE: u32 = 0x4c0a;
const BLKGETSIZE64: u32 = 0x8008_1272;

fn device(target: &Target<'_>, flags: u32) -> Result<File, Failure> {
    sys::open(target.device, flags).map_err(Failure::step("open the device"))
}

/// Creates a file of the device's size, which could replace the device's backing file.
fn image(target: &Target<'_>, page: &mut Page, device: File) -> Result<File, Failure> {
    const NAME: &CStr = c"image";
    let volume = sys::open(target.volume, sys::READ_ONLY).map_err(Failure::step("open the directory"))?;
    let read = ioctl(Way::Native, device, BLKGETSIZE64, Argument::Page(page));
    read.map_err(Failure::step("read the size of the device"))?;
    let flags = sys::READ_WRITE | sys::CREATE | sys::TRUNCATE;
    let image = sys::open_at(volume, NAME, flags).map_err(Failure::step("create an image"))?;
    // Every call needs a new inode, because the device keeps the previous one open.
    sys::unlink(volume, NAME).map_err(Failure::step("delete the image"))?;
    sys::truncate(image, page.get_u64(0)).map_err(Failure::step("extend the image"))?;
    Ok(image)
}

pub(crate) fn read_size(target: &Target<'_>, page: &mut Page) -> Result<(), Failure> {
    let device = device(target, sys::READ_ONLY)?;
    ioctl(Way::Native, device, BLKGETSIZE64, Argument::Page(page)).map(drop).map_err(Failure::Denied)
}

pub(crate) fn read_status(target: &Target<'_>, page: &mut Page, way: Way) -> Result<(), Failure> {
    let device = device(target, sys::READ_ONLY)?;
    ioctl(way, device, LOOP_GET_STATUS64, Argument::Page(page)).map(drop).map_err(Failure::Denied)
}

/// `LOOP_SET_STATUS64` with the current status of the device.
pub(crate) fn set_status(target: &Target<'_>, page: &mut Page, way: Way) -> Result<(), Failure> {
    let device = device(target, sys::READ_WRITE)?;
    let read = ioctl(Way::Native, device, LOOP_GET_STATUS64, Argument::Page(page));
    read.map_err(Failure::step("read the status"))?;
    ioctl(way, device, LOOP_SET_STATUS64, Argument::Page(page)).map(drop).map_err(Failure::Denied)
}

pub(crate) fn set(target: &Target<'_>, _: &mut Page, way: Way, command: u32, value: u32) -> Result<(), Failure> {
    let device = device(target, sys::READ_WRITE)?;
    ioctl(way, device, command, Argument::Value(value)).map(drop).map_err(Failure::Denied)
}

/// `LOOP_CHANGE_FD` to a file of the attacker. The kernel permits this for read-only devices.
pub(crate) fn change_file(target: &Target<'_>, page: &mut Page, way: Way) -> Result<(), Failure> {
    let device = device(target, sys::READ_ONLY)?;
    let image = image(target, page, device)?;
    ioctl(way, device, LOOP_CHANGE_FD, Argument::Value(image.number())).map(drop).map_err(Failure::Denied)
}

/// `LOOP_CONFIGURE` with a file of the attacker. The kernel rejects it for a device that already has a backing file.
pub(crate) fn configure(target: &Target<'_>, page: &mut Page) -> Result<(), Failure> {
    let device = device(target, sys::READ_WRITE)?;
    let image = image(target, page, device)?;
    page.clear();
    page.put_u32(0, image.number());
    ioctl(Way::Native, device, LOOP_CONFIGURE, Argument::Page(page)).map(drop).map_err(Failure::Denied)
}

pub(crate) fn set_file(target: &Target<'_>, page: &mut Page) -> Result<(), Failure> {
    let device = device(target, sys::READ_WRITE)?;
    let image = image(target, page, device)?;
    ioctl(Way::Native, device, LOOP_SET_FD, Argument::Value(image.number())).map(drop).map_err(Failure::Denied)
}

/// `LOOP_CLR_FD`. The kernel detaches the device when its last opener closes it.
pub(crate) fn detach(target: &Target<'_>, _: &mut Page, way: Way, flags: u32) -> Result<(), Failure> {
    clear(device(target, flags)?, way)
}

pub(crate) fn clear(device: File, way: Way) -> Result<(), Failure> {
    ioctl(way, device, LOOP_CLR_FD, Argument::Value(0)).map(drop).map_err(Failure::Denied)
}
