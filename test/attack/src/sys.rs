//! Native and 32-bit system calls.

use core::arch::asm;
use core::ffi::CStr;
use core::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use core::slice;

use crate::errno::Errno;

/// Size of a [`Page`]. The kernel reads and writes less than this for every command of [`ioctl`] (304 bytes, `struct
/// loop_config`).
const PAGE: usize = 4096;

/// System calls of x86-64, arch/x86/entry/syscalls/syscall_64.tbl.
mod number {
    pub(super) const WRITE: usize = 1;
    pub(super) const CLOSE: usize = 3;
    pub(super) const FSTAT: usize = 5;
    pub(super) const MMAP: usize = 9;
    pub(super) const IOCTL: usize = 16;
    pub(super) const PREAD: usize = 17;
    pub(super) const PWRITE: usize = 18;
    pub(super) const PAUSE: usize = 34;
    pub(super) const NANOSLEEP: usize = 35;
    pub(super) const FORK: usize = 57;
    pub(super) const WAIT4: usize = 61;
    pub(super) const KILL: usize = 62;
    pub(super) const FSYNC: usize = 74;
    pub(super) const FTRUNCATE: usize = 77;
    pub(super) const FCHDIR: usize = 81;
    pub(super) const GETUID: usize = 102;
    pub(super) const CAPGET: usize = 125;
    pub(super) const IOPL: usize = 172;
    pub(super) const INIT_MODULE: usize = 175;
    pub(super) const DELETE_MODULE: usize = 176;
    pub(super) const QUOTACTL: usize = 179;
    pub(super) const EXIT_GROUP: usize = 231;
    pub(super) const KEXEC_LOAD: usize = 246;
    pub(super) const OPENAT: usize = 257;
    pub(super) const MKDIRAT: usize = 258;
    pub(super) const MKNODAT: usize = 259;
    pub(super) const UNLINKAT: usize = 263;
    pub(super) const OPEN_BY_HANDLE_AT: usize = 304;
    pub(super) const FINIT_MODULE: usize = 313;
    pub(super) const KEXEC_FILE_LOAD: usize = 320;
    pub(super) const BPF: usize = 321;
    pub(super) const QUOTACTL_FD: usize = 443;
    pub(super) const FILE_SETATTR: usize = 469;
}

/// System calls of i386, arch/x86/entry/syscalls/syscall_32.tbl.
mod compat_number {
    pub(super) const IOCTL: u32 = 54;
    pub(super) const QUOTACTL: u32 = 131;
}

/// Bits 32 to 63 of a command. The kernel reads `unsigned int cmd`, so a filter that compares 64 bits does not match.
const HIGH_BITS: usize = 0xdead_beef_0000_0000;

/// `AT_FDCWD`.
const CURRENT: File = File(-100);

pub(crate) const READ_ONLY: u32 = 0;
pub(crate) const READ_WRITE: u32 = 0o2;
pub(crate) const CREATE: u32 = 0o100;
pub(crate) const TRUNCATE: u32 = 0o1000;
/// `execve` closes the descriptor.
const CLOSE_ON_EXEC: u32 = 0o2_000_000;

/// Offset of the records that [`inodes_from`] writes to the page (after `struct xfs_bulk_ireq`), and size of a record
/// (`struct xfs_bulkstat`), fs/xfs/libxfs/xfs_fs.h.
pub(crate) const INODES_START: usize = 64;
pub(crate) const INODE: usize = 192;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// System call of a 64-bit program.
    Native,
    /// System call of a 64-bit program, with bits 32 to 63 of the command set.
    HighBits,
    /// System call of a 32-bit program, by `int 0x80`.
    Compat,
}

/// Descriptor of an open file. It stays open until the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File(i32);

impl File {
    pub const fn descriptor(number: i32) -> Self {
        Self(number)
    }

    pub fn print(self, line: &str) {
        _ = write(self, line.as_bytes());
        _ = write(self, b"\n");
    }

    pub(crate) const fn number(self) -> u32 {
        self.0.cast_unsigned()
    }

    const fn argument(self) -> usize {
        self.0 as usize
    }

    const fn of(value: usize) -> Self {
        Self(value as i32)
    }
}

#[derive(Debug)]
pub(crate) enum Argument<'a> {
    Value(u32),
    Page(&'a mut Page),
}

/// Makes a system call.
///
/// # Safety
/// Each argument that the kernel takes for a pointer points to memory that the kernel may access in this way, for as
/// long as it does.
unsafe fn call(number: usize, arguments: [usize; 6]) -> Result<usize, Errno> {
    let value: usize;
    let [first, second, third, fourth, fifth, sixth] = arguments;
    // SAFETY: `syscall` changes rax, rcx and r11 and, by this function's contract, only memory that the arguments name.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => value,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            in("r8") fifth,
            in("r9") sixth,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result(value.cast_signed())
}

/// Makes a 32-bit system call.
///
/// # Safety
/// As [`call`]. Pointers are below 4 GiB.
unsafe fn compat_call(number: u32, arguments: [u32; 4]) -> Result<usize, Errno> {
    let value: u32;
    let [first, second, third, fourth] = arguments;
    // SAFETY: the first argument belongs into rbx, which is LLVM's: it is exchanged and restored. `int 0x80` changes
    // eax and may clear r8 to r11; memory by this function's contract.
    unsafe {
        asm!(
            "xchg {first:r}, rbx",
            "int 0x80",
            "xchg {first:r}, rbx",
            first = inout(reg) u64::from(first) => _,
            inlateout("eax") number => value,
            in("ecx") second,
            in("edx") third,
            in("esi") fourth,
            lateout("r8") _,
            lateout("r9") _,
            lateout("r10") _,
            lateout("r11") _,
        );
    }
    // The kernel returns an int, so the value is sign-extended.
    result(value.cast_signed() as isize)
}

fn result(value: isize) -> Result<usize, Errno> {
    match u16::try_from(value.unsigned_abs()) {
        Ok(errno @ 1..4096) if value < 0 => Err(Errno(errno)),
        _ => Ok(value.cast_unsigned()),
    }
}

/// System call that takes only numbers and descriptors.
fn plain(number: usize, arguments: [usize; 6]) -> Result<usize, Errno> {
    debug_assert!(PLAIN.contains(&number), "system call {number} takes a pointer");
    // SAFETY: the callers in this module pass a number of `PLAIN`; none of those calls takes a pointer.
    unsafe { call(number, arguments) }
}

const PLAIN: [usize; 10] = [
    number::CLOSE,
    number::PAUSE,
    number::FORK,
    number::KILL,
    number::FSYNC,
    number::FTRUNCATE,
    number::FCHDIR,
    number::GETUID,
    number::IOPL,
    number::EXIT_GROUP,
];

/// Memory below 4 GiB, so that 32-bit calls can use its address. The page stays mapped until the process ends.
#[derive(Debug)]
pub(crate) struct Page(&'static mut [u8]);

impl Page {
    pub(crate) fn new() -> Result<Self, Errno> {
        // PROT_READ | PROT_WRITE, and MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT.
        let arguments = [0, PAGE, 1 | 2, 0x02 | 0x20 | 0x40, usize::MAX, 0];
        // SAFETY: the kernel chooses the address of a new mapping, which overlaps no other.
        let address = unsafe { call(number::MMAP, arguments) }?;
        // SAFETY: the mapping has this size, is readable, writable and zero, nothing else refers to it, and nothing
        // unmaps it.
        Ok(Self(unsafe { slice::from_raw_parts_mut(with_exposed_provenance_mut(address), PAGE) }))
    }

    pub(crate) fn clear(&mut self) {
        self.0.fill(0);
    }

    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        for (to, from) in self.0.iter_mut().skip(at).zip(bytes) {
            *to = *from;
        }
    }

    pub(crate) fn put_u32(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_ne_bytes());
    }

    pub(crate) fn get_u32(&self, at: usize) -> u32 {
        self.0.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    pub(crate) fn get_u64(&self, at: usize) -> u64 {
        self.0.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0
    }

    fn address(&self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    fn low_address(&self) -> u32 {
        self.address() as u32
    }
}

pub(crate) fn ioctl(way: Way, file: File, command: u32, argument: Argument<'_>) -> Result<usize, Errno> {
    let (value, low) = match &argument {
        Argument::Value(value) => (*value as usize, *value),
        Argument::Page(page) => (page.address(), page.low_address()),
    };
    let high = if way == Way::HighBits { HIGH_BITS } else { 0 };
    match way {
        // SAFETY: the kernel accesses at most 304 bytes at the argument, and keeps no pointer. It is the start of a
        // page that is borrowed until the call returns, or a number of a command that takes none.
        Way::Native | Way::HighBits => unsafe {
            call(number::IOCTL, [file.argument(), high | command as usize, value, 0, 0, 0])
        },
        // SAFETY: as above; the page is below 4 GiB.
        Way::Compat => unsafe { compat_call(compat_number::IOCTL, [file.number(), command, low, 0]) },
    }
}

/// quotactl(2). `special` is the path of the device; `None` is a null pointer.
pub(crate) fn quotactl(
    way: Way,
    command: u32,
    special: Option<&CStr>,
    id: u32,
    page: &mut Page,
) -> Result<usize, Errno> {
    // The path is in the second half of the page, below 4 GiB, so that 32-bit calls can read it.
    page.put(PAGE / 2, special.map_or(&[], CStr::to_bytes_with_nul));
    let offset = special.map(|_| PAGE / 2);
    let (path, low) = offset.map_or((0, 0), |at| (page.address() + at, page.low_address() + (PAGE / 2) as u32));
    let high = if way == Way::HighBits { HIGH_BITS } else { 0 };
    match way {
        // SAFETY: the kernel reads a path that ends with 0 in the second half of the page and accesses at most 160
        // bytes (`struct fs_quota_statv`) at its start. It keeps no pointer, and the page is borrowed until the call
        // returns.
        Way::Native | Way::HighBits => unsafe {
            call(number::QUOTACTL, [high | command as usize, path, id as usize, page.address(), 0, 0])
        },
        // SAFETY: as above; the page is below 4 GiB.
        Way::Compat => unsafe { compat_call(compat_number::QUOTACTL, [command, low, id, page.low_address()]) },
    }
}

/// `quotactl_fd` (Linux 5.14) for the file system of an open file.
pub(crate) fn quotactl_fd(file: File, command: u32, id: u32, page: &mut Page) -> Result<usize, Errno> {
    // SAFETY: the kernel accesses at most 160 bytes at the start of the page and keeps no pointer; the page is borrowed
    // until the call returns.
    unsafe { call(number::QUOTACTL_FD, [file.argument(), command as usize, id as usize, page.address(), 0, 0]) }
}

/// `file_setattr` (Linux 6.17) with a `struct file_attr` of `size` bytes at the start of the page.
pub(crate) fn file_setattr(directory: File, name: &CStr, page: &Page, size: usize) -> Result<usize, Errno> {
    let size = size.min(PAGE);
    // SAFETY: the kernel reads the name, which ends with 0, and `size` bytes of the page. It keeps no pointer.
    unsafe {
        call(
            number::FILE_SETATTR,
            [directory.argument(), name.as_ptr().expose_provenance(), page.address(), size, 0, 0],
        )
    }
}

/// bpf(2) with a `union bpf_attr` of `size` bytes without pointers, at the start of the page.
pub(crate) fn bpf(command: u32, page: &mut Page, size: usize) -> Result<usize, Errno> {
    let size = size.min(PAGE);
    // SAFETY: the kernel reads and writes at most `size` bytes of the page, which is borrowed until the call returns.
    unsafe { call(number::BPF, [command as usize, page.address(), size, 0, 0, 0]) }
}

/// capget(2). Returns whether the process has a capability with a number below 32.
pub(crate) fn has_capability(page: &mut Page, capability: u32) -> Result<bool, Errno> {
    /// `_LINUX_CAPABILITY_VERSION_3`.
    const VERSION: u32 = 0x2008_0522;
    const SETS: usize = 8;
    page.clear();
    page.put_u32(0, VERSION);
    // SAFETY: the kernel reads and writes a header of 8 bytes at the start of the page, writes two records of 12 bytes
    // after it, and keeps no pointer.
    unsafe { call(number::CAPGET, [page.address(), page.address() + SETS, 0, 0, 0, 0]) }?;
    // The first word of the first record is the effective set.
    Ok((page.get_u32(SETS) >> capability) & 1 == 1)
}

/// Maps the whole content of an open file. The mapping stays until the process ends.
pub(crate) fn map(file: File, page: &mut Page) -> Result<&'static [u8], Errno> {
    /// `st_size` of `struct stat`.
    const SIZE: usize = 48;
    device_of(file, page)?;
    let size = usize::try_from(page.get_u64(SIZE)).unwrap_or_default();
    // PROT_READ, and MAP_PRIVATE.
    // SAFETY: the kernel chooses the address of a new mapping, which overlaps no other.
    let address = unsafe { call(number::MMAP, [0, size, 1, 0x02, file.argument(), 0]) }?;
    // SAFETY: the mapping has this size and is readable, nothing unmaps it, and the file of the attack does not change.
    Ok(unsafe { slice::from_raw_parts(with_exposed_provenance(address), size) })
}

/// init_module(2), without module parameters.
pub(crate) fn load_module(content: &[u8]) -> Result<(), Errno> {
    let (address, parameters) = (content.as_ptr().expose_provenance(), c"".as_ptr().expose_provenance());
    // SAFETY: the kernel reads the content and a string that ends with 0, and keeps no pointer.
    unsafe { call(number::INIT_MODULE, [address, content.len(), parameters, 0, 0, 0]) }.map(drop)
}

/// finit_module(2), without module parameters.
pub(crate) fn load_module_file(file: File) -> Result<(), Errno> {
    let parameters = c"".as_ptr().expose_provenance();
    // SAFETY: the kernel reads a string that ends with 0, and keeps no pointer.
    unsafe { call(number::FINIT_MODULE, [file.argument(), parameters, 0, 0, 0, 0]) }.map(drop)
}

/// delete_module(2), for an unused module.
pub(crate) fn unload_module(name: &CStr) -> Result<(), Errno> {
    const NONBLOCK: usize = 0o4000;
    // SAFETY: the kernel reads the name, which ends with 0, and keeps no pointer.
    unsafe { call(number::DELETE_MODULE, [name.as_ptr().expose_provenance(), NONBLOCK, 0, 0, 0, 0]) }.map(drop)
}

/// kexec_load(2), with the page as the kernel, for the physical address `to`.
pub(crate) fn load_kernel(page: &mut Page, to: u64) -> Result<(), Errno> {
    // `struct kexec_segment`: address and size of the content, then address and size of its destination.
    let [address, size] = [page.address() as u64, PAGE as u64];
    for (at, word) in [address, size, to, size].into_iter().enumerate() {
        page.put(8 * at, &word.to_ne_bytes());
    }
    let to = usize::try_from(to).unwrap_or_default();
    // SAFETY: the kernel reads one segment at the start of the page, copies its content, which is the page, and keeps
    // no pointer. It starts the copy when reboot(2) demands it, which no function of this crate calls.
    unsafe { call(number::KEXEC_LOAD, [to, 1, page.address(), 0, 0, 0]) }.map(drop)
}

/// kexec_load(2) without segments. Removes the kernel that [`load_kernel`] has loaded.
pub(crate) fn unload_kernel() -> Result<(), Errno> {
    // SAFETY: the kernel reads nothing of an empty list.
    unsafe { call(number::KEXEC_LOAD, [0; 6]) }.map(drop)
}

/// kexec_file_load(2), without an initramfs or a command line.
pub(crate) fn load_kernel_file(kernel: File) -> Result<(), Errno> {
    /// `KEXEC_FILE_NO_INITRAMFS`.
    const NO_INITRAMFS: usize = 4;
    // SAFETY: the kernel reads nothing of an empty command line.
    unsafe { call(number::KEXEC_FILE_LOAD, [kernel.argument(), usize::MAX, 0, 0, NO_INITRAMFS, 0]) }.map(drop)
}

/// iopl(2) with the highest level.
pub(crate) fn enable_io_ports() -> Result<(), Errno> {
    plain(number::IOPL, [3, 0, 0, 0, 0, 0]).map(drop)
}

/// openat(2) relative to the current directory. New files get mode 0600.
pub(crate) fn open(path: &CStr, flags: u32) -> Result<File, Errno> {
    open_at(CURRENT, path, flags)
}

/// openat(2). New files get mode 0600.
pub(crate) fn open_at(directory: File, path: &CStr, flags: u32) -> Result<File, Errno> {
    let arguments =
        [directory.argument(), path.as_ptr().expose_provenance(), (flags | CLOSE_ON_EXEC) as usize, 0o600, 0, 0];
    // SAFETY: the kernel reads the path, which ends with 0, and keeps no pointer.
    unsafe { call(number::OPENAT, arguments) }.map(File::of)
}

/// open_by_handle_at(2), read-only, in the file system of `file`. The `struct file_handle` is at the start of the page.
pub(crate) fn open_by_handle(file: File, page: &Page) -> Result<File, Errno> {
    let flags = READ_ONLY | CLOSE_ON_EXEC;
    // SAFETY: the kernel reads at most 136 bytes of the page (`MAX_HANDLE_SZ` is 128), and keeps no pointer.
    unsafe { call(number::OPEN_BY_HANDLE_AT, [file.argument(), page.address(), flags as usize, 0, 0, 0]) }.map(File::of)
}

/// `XFS_IOC_BULKSTAT` (Linux 5.4): reads inodes with number `first` or higher from the XFS of `file`, as many as fit
/// into the page. Returns the number to continue at and how many inodes it has read; 0 at the end.
pub(crate) fn inodes_from(file: File, page: &mut Page, first: u64) -> Result<(u64, usize), Errno> {
    const XFS_IOC_BULKSTAT: usize = 0x8040_587f;
    const COUNT: usize = (PAGE - INODES_START) / INODE;
    page.clear();
    page.put(0, &first.to_ne_bytes());
    page.put_u32(12, COUNT as u32);
    // SAFETY: the kernel reads and writes a `struct xfs_bulk_ireq` at the start of the page and writes at most `COUNT`
    // records after it, which fit into the page. It keeps no pointer.
    unsafe { call(number::IOCTL, [file.argument(), XFS_IOC_BULKSTAT, page.address(), 0, 0, 0]) }?;
    Ok((page.get_u64(0), (page.get_u32(16) as usize).min(COUNT)))
}

/// mkdirat(2) with mode 0700. Succeeds if the directory exists.
pub(crate) fn make_directory(directory: File, name: &CStr) -> Result<File, Errno> {
    // SAFETY: the kernel reads the name, which ends with 0, and keeps no pointer.
    match unsafe { call(number::MKDIRAT, [directory.argument(), name.as_ptr().expose_provenance(), 0o700, 0, 0, 0]) } {
        Ok(_) | Err(Errno::EEXIST) => open_at(directory, name, READ_ONLY),
        Err(errno) => Err(errno),
    }
}

/// mknodat(2). Succeeds if the device node exists.
pub(crate) fn make_node(directory: File, name: &CStr, mode: u32, device: u64) -> Result<(), Errno> {
    let device = usize::try_from(device).unwrap_or_default();
    let arguments = [directory.argument(), name.as_ptr().expose_provenance(), mode as usize, device, 0, 0];
    // SAFETY: the kernel reads the name, which ends with 0, and keeps no pointer.
    match unsafe { call(number::MKNODAT, arguments) } {
        Ok(_) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// unlinkat(2), for a file.
pub(crate) fn unlink(directory: File, name: &CStr) -> Result<(), Errno> {
    // SAFETY: the kernel reads the name, which ends with 0, and keeps no pointer.
    unsafe { call(number::UNLINKAT, [directory.argument(), name.as_ptr().expose_provenance(), 0, 0, 0, 0]) }.map(drop)
}

/// Device number of the file system, `st_dev` of fstat(2).
pub(crate) fn device_of(file: File, page: &mut Page) -> Result<u64, Errno> {
    // SAFETY: the kernel writes one `struct stat` (144 bytes) to the page, and keeps no pointer.
    unsafe { call(number::FSTAT, [file.argument(), page.address(), 0, 0, 0, 0]) }?;
    Ok(page.get_u64(0))
}

pub(crate) fn write(file: File, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the kernel reads the bytes, and keeps no pointer.
    unsafe { call(number::WRITE, [file.argument(), bytes.as_ptr().expose_provenance(), bytes.len(), 0, 0, 0]) }
}

pub(crate) fn read_page(file: File, page: &mut Page, offset: usize) -> Result<usize, Errno> {
    // SAFETY: the kernel writes at most the size of the page, and keeps no pointer.
    unsafe { call(number::PREAD, [file.argument(), page.address(), PAGE, offset, 0, 0]) }
}

pub(crate) fn write_page(file: File, page: &Page, offset: usize) -> Result<usize, Errno> {
    // SAFETY: the kernel reads at most the size of the page, and keeps no pointer.
    unsafe { call(number::PWRITE, [file.argument(), page.address(), PAGE, offset, 0, 0]) }
}

pub(crate) fn truncate(file: File, size: u64) -> Result<(), Errno> {
    let size = usize::try_from(size).unwrap_or_default();
    plain(number::FTRUNCATE, [file.argument(), size, 0, 0, 0, 0]).map(drop)
}

pub(crate) fn sync(file: File) -> Result<(), Errno> {
    plain(number::FSYNC, [file.argument(), 0, 0, 0, 0, 0]).map(drop)
}

pub(crate) fn close(file: File) -> Result<(), Errno> {
    plain(number::CLOSE, [file.argument(), 0, 0, 0, 0, 0]).map(drop)
}

pub(crate) fn enter(directory: File) -> Result<(), Errno> {
    plain(number::FCHDIR, [directory.argument(), 0, 0, 0, 0, 0]).map(drop)
}

/// getuid(2), which cannot fail.
pub(crate) fn user() -> usize {
    plain(number::GETUID, [0; 6]).unwrap_or_default()
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process(usize);

/// fork(2). Returns `None` in the child. The crate has no lock or allocator that another thread could hold.
pub(crate) fn fork() -> Result<Option<Process>, Errno> {
    let child = plain(number::FORK, [0; 6])?;
    Ok((child != 0).then_some(Process(child)))
}

/// wait4(2). Returns the signal that killed the child, or 0 if the child exited.
pub(crate) fn wait(child: Process) -> Result<u32, Errno> {
    let mut status = 0_u32;
    // SAFETY: the kernel writes one int, and keeps no pointer.
    unsafe { call(number::WAIT4, [child.0, (&raw mut status).expose_provenance(), 0, 0, 0, 0]) }?;
    Ok(status & 0x7f)
}

/// kill(2) with SIGKILL.
pub(crate) fn kill(child: Process) -> Result<(), Errno> {
    plain(number::KILL, [child.0, 9, 0, 0, 0, 0]).map(drop)
}

pub(crate) fn pause() {
    _ = plain(number::PAUSE, [0; 6]);
}

pub(crate) fn sleep(milliseconds: u32) {
    let time = [u64::from(milliseconds / 1000), u64::from(milliseconds % 1000) * 1_000_000];
    // SAFETY: the kernel reads one `struct timespec`, two 64-bit numbers, and keeps no pointer.
    _ = unsafe { call(number::NANOSLEEP, [time.as_ptr().expose_provenance(), 0, 0, 0, 0, 0]) };
}

/// `exit_group`(2) with status 0.
pub(crate) fn exit() -> ! {
    loop {
        _ = plain(number::EXIT_GROUP, [0; 6]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_the_last_page_of_addresses() {
        assert_eq!(result(-1), Err(Errno::EPERM));
        assert_eq!(result(-4095), Err(Errno(4095)));
        assert_eq!(result(-4096), Ok(-4096_isize as usize));
        assert_eq!(result(0), Ok(0));
    }

    #[test]
    fn a_page_is_below_four_gib_and_what_does_not_fit_is_left_out() {
        let mut page = Page::new().unwrap();
        assert!(u32::try_from(page.address()).is_ok());
        page.put(PAGE - 2, &[1, 2, 3]);
        assert_eq!(page.bytes()[PAGE - 2..], [1, 2]);
        page.put_u32(8, 7);
        assert_eq!((page.get_u32(8), page.get_u64(8), page.get_u32(PAGE - 3)), (7, 7, 0));
    }

    #[test]
    fn a_signal_ends_a_child() {
        let Some(child) = fork().unwrap() else {
            loop {
                pause();
            }
        };
        kill(child).unwrap();
        assert_eq!(wait(child), Ok(9));
    }
}
