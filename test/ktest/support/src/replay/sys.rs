//! The control device of the device mapper.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::from_mut;

use nix::errno::Errno;
use nix::libc;

/// `struct dm_ioctl`, include/uapi/linux/dm-ioctl.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) version: [u32; 3],
    pub(crate) data_size: u32,
    pub(crate) data_start: u32,
    pub(crate) target_count: u32,
    pub(crate) open_count: i32,
    pub(crate) flags: u32,
    pub(crate) event_nr: u32,
    pub(crate) padding: u32,
    pub(crate) dev: u64,
    pub(crate) name: [u8; 128],
    pub(crate) uuid: [u8; 129],
    pub(crate) data: [u8; 7],
}
const _: () = assert!(size_of::<Header>() == 312);

/// Maximum size of the targets, messages and answers of this crate.
pub(crate) const PAYLOAD: usize = 4096 - size_of::<Header>();

/// A header and its payload. `data_size` in the header is the length of both.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) header: Header,
    pub(crate) payload: [u8; PAYLOAD],
}
const _: () = assert!(size_of::<Request>() == 4096);

/// The numbers of the commands (`DM_DEV_CREATE_CMD` and so on).
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Command {
    Create = 3,
    Remove = 4,
    /// Makes the loaded table the active one, if the header has no flag.
    Resume = 6,
    Load = 9,
    Status = 12,
    Message = 14,
}

/// Sends `command` to `/dev/mapper/control`; the answer replaces the request.
pub(crate) fn control(control: BorrowedFd<'_>, command: Command, request: &mut Request) -> Result<(), Errno> {
    // DM_IOCTL; all commands have the size of the header alone in their number.
    let number = nix::request_code_readwrite!(0xfd, command as u8, size_of::<Header>());
    request.header.data_size = size_of::<Request>() as u32;
    // SAFETY: `control` is open during the call. The kernel reads and writes at most `data_size` bytes, just
    // set to the size of the whole request, and keeps no pointer. Every bit pattern of it is valid.
    Errno::result(unsafe { libc::ioctl(control.as_raw_fd(), number as _, from_mut(request)) }).map(drop)
}
