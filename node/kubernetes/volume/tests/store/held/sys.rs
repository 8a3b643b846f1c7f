//! Memory that delays the system calls that read it.

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::slice;

use nix::errno::Errno;
use nix::libc::{self, c_int};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};

const SIZE: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// `UFFD_API`, include/uapi/linux/userfaultfd.h.
const API: u64 = 0xaa;
/// `UFFDIO_REGISTER_MODE_MISSING`.
const MISSING: u64 = 1 << 0;

/// `struct uffdio_api`.
#[repr(C)]
#[derive(Default)]
struct Handshake {
    api: u64,
    features: u64,
    ioctls: u64,
}
const _: () = assert!(size_of::<Handshake>() == 24);

/// `struct uffdio_register`.
#[repr(C)]
#[derive(Default)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}
const _: () = assert!(size_of::<Register>() == 32);

nix::ioctl_readwrite!(uffdio_api, 0xaa, 0x3f, Handshake);
nix::ioctl_readwrite!(uffdio_register, 0xaa, 0x00, Register);

/// A page that no process has written, and the descriptor that receives its faults (userfaultfd(2)). It is readable
/// when a system call reads the page. The call waits, with all locks that it has, until the descriptor is closed, and
/// reads zeros.
pub fn missing_page() -> (OwnedFd, &'static [u8]) {
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: new memory, at an address that the kernel chooses. It is never unmapped.
    let page: NonNull<c_void> = unsafe { mmap_anonymous(None, SIZE, access, MapFlags::MAP_PRIVATE) }.expect("memory");
    // SAFETY: the call has one argument and no pointer.
    let opened = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    let opened = Errno::result(opened).expect("a descriptor for faults");
    // SAFETY: the kernel has returned this new descriptor, which nothing else owns.
    let faults = unsafe { OwnedFd::from_raw_fd(c_int::try_from(opened).expect("a descriptor")) };
    let mut handshake = Handshake { api: API, ..Handshake::default() };
    // SAFETY: the descriptor is open during the call, in which the kernel reads and writes one `struct uffdio_api`
    // (size asserted above). It keeps nothing.
    unsafe { uffdio_api(faults.as_raw_fd(), &raw mut handshake) }.expect("the version of the kernel");
    let (start, length) = (page.as_ptr() as u64, SIZE.get() as u64);
    let mut register = Register { start, length, mode: MISSING, ..Register::default() };
    // SAFETY: the descriptor is open during the call, in which the kernel reads and writes one `struct uffdio_register`
    // (size asserted above). The range is the page, to which no reference exists.
    unsafe { uffdio_register(faults.as_raw_fd(), &raw mut register) }.expect("faults of the page");
    // SAFETY: the page stays mapped and readable until the process ends, and no code writes it.
    let page = unsafe { slice::from_raw_parts(page.as_ptr().cast::<u8>(), SIZE.get()) };
    (faults, page)
}
