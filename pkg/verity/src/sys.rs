//! The ioctls of `/dev/mapper/control`, include/uapi/linux/dm-ioctl.h.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::libc::c_int;

const NAME: usize = 128;
const UUID: usize = 129;
const TYPE: usize = 16;
/// Space for the parameters of a target with NUL, a multiple of 8.
const PARAMETERS: usize = 512;

/// `DM_READONLY_FLAG`.
const READ_ONLY: u32 = 1;

/// `struct dm_ioctl`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Header {
    version: [u32; 3],
    data_size: u32,
    data_start: u32,
    target_count: u32,
    open_count: i32,
    flags: u32,
    event_nr: u32,
    padding: u32,
    dev: u64,
    name: [u8; NAME],
    uuid: [u8; UUID],
    data: [u8; 7],
}
const _: () = assert!(size_of::<Header>() == 312);

/// `struct dm_target_spec`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Target {
    sector_start: u64,
    length: u64,
    status: i32,
    next: u32,
    kind: [u8; TYPE],
}
const _: () = assert!(size_of::<Target>() == 40);

/// Argument of each ioctl: the header and space for one target.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Request {
    header: Header,
    target: Target,
    parameters: [u8; PARAMETERS],
}
const _: () = assert!(size_of::<Request>() == 312 + 40 + PARAMETERS);

mod ioctl {
    use super::Header;

    nix::ioctl_readwrite!(dm_dev_create, 0xfd, 3, Header);
    nix::ioctl_readwrite!(dm_dev_remove, 0xfd, 4, Header);
    nix::ioctl_readwrite!(dm_dev_suspend, 0xfd, 6, Header);
    nix::ioctl_readwrite!(dm_table_load, 0xfd, 9, Header);
}

type Call = unsafe fn(c_int, *mut Header) -> nix::Result<c_int>;

/// A table with a single target.
pub(crate) struct Table<'a> {
    /// Length in sectors of 512 bytes.
    pub(crate) sectors: u64,
    pub(crate) kind: &'a str,
    pub(crate) parameters: &'a str,
}

/// Creates a read-only device without a table. Returns its (major, minor) number.
pub(crate) fn create(control: BorrowedFd<'_>, name: &str) -> Result<(u32, u32), Errno> {
    let mut request = Request::new(name)?;
    request.header.flags = READ_ONLY;
    call(control, ioctl::dm_dev_create, &mut request)?;
    // `huge_encode_dev` of include/linux/kdev_t.h, within 32 bits.
    let dev = u32::try_from(request.header.dev).map_err(|_| Errno::EOVERFLOW)?;
    Ok(((dev & 0x000f_ff00) >> 8, dev & 0xff | dev >> 12 & 0x000f_ff00))
}

/// Loads a table into the inactive slot.
pub(crate) fn load(control: BorrowedFd<'_>, name: &str, table: &Table<'_>) -> Result<(), Errno> {
    let mut request = Request::new(name)?;
    request.header.flags = READ_ONLY;
    request.header.target_count = 1;
    request.target.length = table.sectors;
    put(&mut request.target.kind, table.kind)?;
    put(&mut request.parameters, table.parameters)?;
    call(control, ioctl::dm_table_load, &mut request)
}

/// Activates the loaded table: `DM_DEV_SUSPEND` without `DM_SUSPEND_FLAG` resumes the device.
pub(crate) fn resume(control: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    call(control, ioctl::dm_dev_suspend, &mut Request::new(name)?)
}

/// Removes a device that is not in use.
pub(crate) fn remove(control: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    call(control, ioctl::dm_dev_remove, &mut Request::new(name)?)
}

impl Request {
    fn new(name: &str) -> Result<Self, Errno> {
        let mut request = Self {
            header: Header {
                // Only the major version must be that of the kernel.
                version: [4, 0, 0],
                data_size: size_of::<Self>() as u32,
                data_start: size_of::<Header>() as u32,
                target_count: 0,
                open_count: 0,
                flags: 0,
                event_nr: 0,
                padding: 0,
                dev: 0,
                name: [0; NAME],
                uuid: [0; UUID],
                data: [0; 7],
            },
            target: Target { sector_start: 0, length: 0, status: 0, next: 0, kind: [0; TYPE] },
            parameters: [0; PARAMETERS],
        };
        put(&mut request.header.name, name)?;
        Ok(request)
    }
}

/// Copies a text and a NUL.
fn put(place: &mut [u8], text: &str) -> Result<(), Errno> {
    let last = place.len() - 1;
    place[..last].get_mut(..text.len()).ok_or(Errno::ENAMETOOLONG)?.copy_from_slice(text.as_bytes());
    Ok(())
}

fn call(control: BorrowedFd<'_>, call: Call, request: &mut Request) -> Result<(), Errno> {
    let request = (&raw mut *request).cast::<Header>();
    // SAFETY: `control` is open during the call. The kernel reads and writes `data_size` bytes through the pointer,
    // which is the size of the `Request` that it points to, and does not keep the pointer. Every bit pattern of a
    // `Request` is valid.
    unsafe { call(control.as_raw_fd(), request) }?;
    Ok(())
}
