//! Attacks of root on the quota limits, with quotactl(2).

use core::ffi::CStr;

use crate::device;
use crate::failure::Failure;
use crate::project::project_of;
use crate::sys::{self, File, Page, Way};
use crate::target::Target;

pub(crate) const Q_XQUOTAON: u32 = 0x5801;
pub(crate) const Q_XQUOTAOFF: u32 = 0x5802;
const Q_XGETQUOTA: u32 = 0x5803;
const Q_XSETQLIM: u32 = 0x5804;
const Q_SYNC: u32 = 0x0080_0001;
const Q_SETQUOTA: u32 = 0x0080_0008;
/// `PRJQUOTA`.
const PROJECTS: u32 = 2;
/// `FS_QUOTA_PDQ_ENFD`.
const ENFORCEMENT: u32 = 1 << 5;
/// `d_fieldmask` of `struct fs_disk_quota`: hard and soft limits of blocks and inodes.
const FIELD_MASK: usize = 2;
const LIMITS: u16 = 0xf;

const fn command(command: u32) -> u32 {
    command << 8 | PROJECTS
}

/// Opens the volume and reads the limits of its project into the page. Returns the volume and the project ID.
fn limits(target: &Target<'_>, page: &mut Page) -> Result<(File, u32), Failure> {
    let volume = sys::open(target.volume, sys::READ_ONLY).map_err(Failure::step("open the directory"))?;
    let project = project_of(volume, page).map_err(Failure::step("read the project"))?;
    page.clear();
    let read = sys::quotactl_fd(volume, command(Q_XGETQUOTA), project, page);
    read.map_err(Failure::step("read the limits"))?;
    page.put(FIELD_MASK, &LIMITS.to_ne_bytes());
    Ok((volume, project))
}

pub(crate) fn read(target: &Target<'_>, page: &mut Page) -> Result<(), Failure> {
    limits(target, page).map(drop)
}

/// `Q_XSETQLIM` by quotactl(2) with the current limits, so that success changes nothing. The call works without
/// permission to open the device node.
pub(crate) fn set_by_device(target: &Target<'_>, page: &mut Page, way: Way) -> Result<(), Failure> {
    const SPECIAL: &CStr = c"data-disk";
    let (layer, _) = device::make_data_disk(target, page, SPECIAL)?;
    sys::enter(layer).map_err(Failure::step("enter the layer"))?;
    let (_, project) = limits(target, page)?;
    sys::quotactl(way, command(Q_XSETQLIM), Some(SPECIAL), project, page).map(drop).map_err(Failure::Denied)
}

/// `Q_XSETQLIM` by `quotactl_fd` with the current limits.
pub(crate) fn set_by_descriptor(target: &Target<'_>, page: &mut Page) -> Result<(), Failure> {
    let (volume, project) = limits(target, page)?;
    sys::quotactl_fd(volume, command(Q_XSETQLIM), project, page).map(drop).map_err(Failure::Denied)
}

/// `Q_SETQUOTA` of the generic interface, with no valid field, so that success changes nothing.
pub(crate) fn set_generally(target: &Target<'_>, page: &mut Page) -> Result<(), Failure> {
    let (volume, project) = limits(target, page)?;
    page.clear();
    sys::quotactl_fd(volume, command(Q_SETQUOTA), project, page).map(drop).map_err(Failure::Denied)
}

/// `Q_XQUOTAOFF` or `Q_XQUOTAON` of limit enforcement.
pub(crate) fn switch(target: &Target<'_>, page: &mut Page, to: u32) -> Result<(), Failure> {
    let volume = sys::open(target.volume, sys::READ_ONLY).map_err(Failure::step("open the directory"))?;
    page.put_u32(0, ENFORCEMENT);
    sys::quotactl_fd(volume, command(to), 0, page).map(drop).map_err(Failure::Denied)
}

/// `quotactl(Q_SYNC, NULL)`, which tenants may call. A hook that reads the null pointer would crash the kernel.
pub(crate) fn sync_all(_: &Target<'_>, page: &mut Page) -> Result<(), Failure> {
    sys::quotactl(Way::Native, command(Q_SYNC), None, 0, page).map(drop).map_err(Failure::Denied)
}
