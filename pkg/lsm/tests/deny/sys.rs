//! System calls as an attacker makes them: any number, any pointer, as a 64-bit and as a 32-bit program.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::libc::{self, c_void};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};

const PAGE: usize = 4096;

/// The third argument of an ioctl.
#[derive(Clone, Copy)]
pub enum Argument {
    /// A number or an invalid pointer.
    Number(i64),
    /// The memory that [`memory`] wrote.
    Memory,
}

/// A page below 4 GiB for pointers of 32-bit calls. Each process has one page, and only one thread of the tests uses
/// it.
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

/// The data that the kernel wrote to the page.
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
pub fn ioctl(file: &File, command: u64, argument: Argument) -> Result<(), Errno> {
    // SAFETY: the file is open during the call. The kernel reads or writes at most the page; the tests' other arguments
    // are numbers and invalid pointers.
    Errno::result(unsafe { libc::syscall(libc::SYS_ioctl, file.as_raw_fd(), command, argument.value()) }).map(drop)
}

/// ioctl(2) of a 32-bit program.
pub fn ioctl32(file: &File, command: u32, argument: Argument) -> Result<(), Errno> {
    let result: i32;
    // SAFETY: the call takes number 54 and three arguments from these registers, returns in EAX and may change R8 to
    // R11. RBX is exchanged because the compiler reserves it, and restored. Memory is as in `ioctl`, below 4 GiB.
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
    if result < 0 { Err(Errno::from_raw(-result)) } else { Ok(()) }
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

/// Replaces the program of a link (`BPF_LINK_UPDATE`).
pub fn link_update(link: &OwnedFd, program: &OwnedFd) -> Result<(), Errno> {
    let [link, program] = [link, program].map(|file| file.as_raw_fd().cast_unsigned());
    bpf(29, [link, program, 0, 0]).map(drop)
}

/// Detaches a link (`BPF_LINK_DETACH`).
pub fn link_detach(link: &OwnedFd) -> Result<(), Errno> {
    bpf(34, [link.as_raw_fd().cast_unsigned(), 0, 0, 0]).map(drop)
}

/// A descriptor of a BPF map by its ID (`BPF_MAP_GET_FD_BY_ID`).
pub fn map(id: u32) -> Result<OwnedFd, Errno> {
    bpf(14, [id, 0, 0, 0]).map(owned)
}

/// The name of a map (`BPF_OBJ_GET_INFO_BY_FD`).
pub fn map_name(map: &OwnedFd) -> Result<Vec<u8>, Errno> {
    // `struct bpf_map_info` up to the end of its name.
    const INFO: usize = 40;
    memory(&[]);
    let [low, high] = halves(page().as_ptr() as u64);
    bpf(15, [map.as_raw_fd().cast_unsigned(), INFO as u32, low, high])?;
    let info: [u8; INFO] = result();
    Ok(info[24..].iter().copied().take_while(|byte| *byte != 0).collect())
}

/// Loads a program (`BPF_PROG_TYPE_SOCKET_FILTER`) that sets the 4 bytes of an 8-byte key of the map to 0.
pub fn load_writer(map: &OwnedFd, key: u64) -> Result<OwnedFd, Errno> {
    let instruction = |code: u8, target: u8, source: u8, offset: i16, number: u32| {
        let [first, second] = offset.to_ne_bytes();
        let [a, b, c, d] = number.to_ne_bytes();
        [code, source << 4 | target, first, second, a, b, c, d]
    };
    // Loads 64 bits. With source 1, the value is the descriptor of a map.
    let wide = |target, source, value: u64| {
        let [low, high] = halves(value);
        [instruction(0x18, target, source, 0, low), instruction(0, 0, 0, 0, high)]
    };
    let program = [
        wide(2, 0, key),
        [instruction(0x7b, 10, 2, -8, 0), instruction(0x7a, 10, 0, -16, 0)],
        wide(1, 1, map.as_raw_fd().cast_unsigned().into()),
        [instruction(0xbf, 2, 10, 0, 0), instruction(0x07, 2, 0, 0, -8_i32 as u32)],
        [instruction(0xbf, 3, 10, 0, 0), instruction(0x07, 3, 0, 0, -16_i32 as u32)],
        // Flags; `bpf_map_update_elem`.
        [instruction(0xb7, 4, 0, 0, 0), instruction(0x85, 0, 0, 0, 2)],
        [instruction(0xb7, 0, 0, 0, 0), instruction(0x95, 0, 0, 0, 0)],
    ];
    let bytes = program.as_flattened().as_flattened();
    let license = bytes.len();
    memory(&[bytes, b"GPL\0"].concat());
    let address = page().as_ptr() as u64;
    let ([low, high], [license_low, license_high]) = (halves(address), halves(address + license as u64));
    bpf(5, [1, (license / 8) as u32, low, high, license_low, license_high]).map(owned)
}

fn halves(number: u64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

fn bpf<const COUNT: usize>(command: i32, mut attributes: [u32; COUNT]) -> Result<RawFd, Errno> {
    // SAFETY: the attributes of these commands are numbers, and addresses in the page, of which the kernel reads or
    // writes a part. It reads as many attributes as it is given.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size_of_val(&attributes)) };
    Errno::result(result).map(|descriptor| RawFd::try_from(descriptor).unwrap())
}

fn owned(descriptor: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just created it, and nothing else has it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}
