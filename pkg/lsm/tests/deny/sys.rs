//! System calls as an attacker makes them: any number, any pointer, as a 64-bit and as a 32-bit program.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::libc::{self, c_long, c_void};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};

const PAGE: usize = 4096;

/// The third argument of an ioctl.
#[derive(Clone, Copy)]
pub enum Argument {
    /// A number, or a pointer that is invalid.
    Number(i64),
    /// The memory that [`memory`] wrote.
    Memory,
}

/// A page below 4 GiB, for pointers of 32-bit calls. One for each process; its tests have one thread that uses it.
fn page() -> NonNull<c_void> {
    static PAGE_ADDRESS: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    let address = PAGE_ADDRESS.get_or_init(|| {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: new memory, at an address that the kernel chooses. It is never unmapped.
        let page = unsafe {
            mmap_anonymous(None, PAGE.try_into().unwrap(), access, MapFlags::MAP_PRIVATE | MapFlags::MAP_32BIT)
        };
        page.unwrap().as_ptr() as usize
    });
    NonNull::new(*address as *mut c_void).unwrap()
}

/// Replaces the memory of [`Argument::Memory`].
pub fn memory(bytes: &[u8]) {
    assert!(bytes.len() <= PAGE);
    let page = page().as_ptr().cast::<u8>();
    // SAFETY: the page is mapped for writing, has this length, and nothing else refers to it.
    unsafe {
        page.write_bytes(0, PAGE);
        page.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
    }
}

/// The kernel's answer.
pub fn result<const COUNT: usize>() -> [u8; COUNT] {
    const { assert!(COUNT <= PAGE) };
    // SAFETY: the page is mapped for reading, is at least so long, and every bit pattern is valid.
    unsafe { page().as_ptr().cast::<[u8; COUNT]>().read_unaligned() }
}

impl Argument {
    fn value(self) -> i64 {
        match self {
            Self::Number(number) => number,
            Self::Memory => page().as_ptr() as i64,
        }
    }
}

/// ioctl(2) with a command of 64 bits.
pub fn ioctl(file: &File, command: u64, argument: Argument) -> Result<c_long, Errno> {
    // SAFETY: the file is open during the call. The kernel reads or writes at most the page; the tests' other arguments are
    // numbers and invalid pointers.
    Errno::result(unsafe { libc::syscall(libc::SYS_ioctl, file.as_raw_fd(), command, argument.value()) })
}

/// ioctl(2) of a 32-bit program.
pub fn ioctl32(file: &File, command: u32, argument: Argument) -> Result<c_long, Errno> {
    let result: i32;
    // SAFETY: the call takes number 54 and three arguments from these registers, returns in EAX and may change R8 to R11. RBX is
    // exchanged because the compiler reserves it, and restored. Memory is as in `ioctl`, below 4 GiB.
    unsafe {
        std::arch::asm!(
            "xchg {first:r}, rbx",
            "int 0x80",
            "xchg {first:r}, rbx",
            first = inout(reg) u64::from(file.as_raw_fd().cast_unsigned()) => _,
            inlateout("eax") 54_u32 => result,
            in("ecx") command,
            in("edx") argument.value() as u32,
            out("r8") _,
            out("r9") _,
            out("r10") _,
            out("r11") _,
        );
    }
    if result < 0 { Err(Errno::from_raw(-result)) } else { Ok(result.into()) }
}

/// quotactl(2) with a command of 64 bits; without a device, for all file systems.
pub fn quotactl(command: u64, device: Option<&Path>, id: u32, argument: Argument) -> Result<(), Errno> {
    let device = device.map(|path| CString::new(path.as_os_str().as_bytes()).unwrap());
    let device = device.as_ref().map_or(std::ptr::null(), |path| path.as_ptr());
    // SAFETY: the path ends with NUL. The kernel reads or writes at most the page.
    let result = unsafe { libc::syscall(libc::SYS_quotactl, command, device, id, argument.value()) };
    Errno::result(result).map(drop)
}

/// quotactl_fd(2).
pub fn quotactl_fd(file: &File, command: u64, id: u32, argument: Argument) -> Result<(), Errno> {
    // SAFETY: the file is open during the call. The kernel reads or writes at most the page.
    let result = unsafe { libc::syscall(libc::SYS_quotactl_fd, file.as_raw_fd(), command, id, argument.value()) };
    Errno::result(result).map(drop)
}

/// A descriptor of a BPF program by its ID (`BPF_PROG_GET_FD_BY_ID`).
pub fn program(id: u32) -> Result<OwnedFd, Errno> {
    bpf(13, [id, 0, 0, 0]).map(owned)
}

/// A descriptor of a BPF link by its ID (`BPF_LINK_GET_FD_BY_ID`).
pub fn link(id: u32) -> Result<OwnedFd, Errno> {
    bpf(30, [id, 0, 0, 0]).map(owned)
}

/// Gives a link another program (`BPF_LINK_UPDATE`).
pub fn link_update(link: &OwnedFd, program: &OwnedFd) -> Result<(), Errno> {
    let [link, program] = [link, program].map(|file| file.as_raw_fd().cast_unsigned());
    bpf(29, [link, program, 0, 0]).map(drop)
}

/// Detaches a link (`BPF_LINK_DETACH`).
pub fn link_detach(link: &OwnedFd) -> Result<(), Errno> {
    bpf(34, [link.as_raw_fd().cast_unsigned(), 0, 0, 0]).map(drop)
}

fn bpf(command: i32, mut attributes: [u32; 4]) -> Result<RawFd, Errno> {
    // SAFETY: the attributes of these commands are numbers, and the kernel reads as many as it is given.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size_of_val(&attributes)) };
    Errno::result(result).map(|descriptor| RawFd::try_from(descriptor).unwrap())
}

fn owned(descriptor: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just created it, and nothing else has it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}
