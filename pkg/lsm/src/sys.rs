//! The system calls that nix lacks: bpf(2), name_to_handle_at(2), and the calls of the self-test.

use std::ffi::{CStr, c_void};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::libc::{self, c_int, c_long};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::assembler::Instruction;

/// Commands of bpf(2), `enum bpf_cmd`, include/uapi/linux/bpf.h.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
enum Command {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    MapNextKey = 4,
    ProgramLoad = 5,
    Pin = 6,
    Get = 7,
    Info = 15,
    MapTake = 21,
    MapFreeze = 22,
    LinkCreate = 28,
}

/// `BPF_PROG_TYPE_LSM`.
const PROGRAM_LSM: u32 = 29;
/// `BPF_LSM_MAC`.
const LSM_MAC: u32 = 27;

/// Kinds of maps, `enum bpf_map_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum MapKind {
    Hash = 1,
    Array = 2,
    LruHash = 9,
}

/// Writers of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writers {
    All,
    /// Processes, by bpf(2), until the map is frozen. The verifier rejects programs that write the map
    /// (`BPF_F_RDONLY_PROG`, Linux 5.2).
    Processes,
}

impl Writers {
    const fn flags(self) -> u32 {
        match self {
            Self::All => 0,
            Self::Processes => 1 << 7,
        }
    }
}

/// Attributes of `BPF_MAP_CREATE`: the start of `union bpf_attr`. The kernel takes the rest as 0.
#[repr(C)]
struct CreateMap {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
    inner_map: u32,
    numa_node: u32,
    name: [u8; 16],
}
const _: () = assert!(size_of::<CreateMap>() == 44);

/// Attributes of `BPF_MAP_*_ELEM` and `BPF_MAP_GET_NEXT_KEY`.
#[repr(C)]
struct Element {
    map: u32,
    pad: u32,
    key: u64,
    value_or_next: u64,
    flags: u64,
}
const _: () = assert!(size_of::<Element>() == 32);

/// Attributes of `BPF_MAP_FREEZE`.
#[repr(C)]
struct Freeze {
    map: u32,
}
const _: () = assert!(size_of::<Freeze>() == 4);

/// Attributes of `BPF_PROG_LOAD`, up to `attach_btf_id` and padding.
#[repr(C)]
#[derive(Default)]
struct LoadProgram {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
    btf: u32,
    function_info_bytes: u32,
    function_info: u64,
    function_info_count: u32,
    line_info_bytes: u32,
    line_info: u64,
    line_info_count: u32,
    attach_btf_id: u32,
    attach_program: u32,
    pad: u32,
}
const _: () = assert!(size_of::<LoadProgram>() == 120);

/// Attributes of `BPF_LINK_CREATE`.
#[repr(C)]
struct CreateLink {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
}
const _: () = assert!(size_of::<CreateLink>() == 16);

/// Attributes of `BPF_OBJ_PIN` and `BPF_OBJ_GET`.
#[repr(C)]
struct Object {
    path: u64,
    descriptor: u32,
    flags: u32,
}
const _: () = assert!(size_of::<Object>() == 16);

/// Attributes of `BPF_OBJ_GET_INFO_BY_FD`.
#[repr(C)]
struct GetInfo {
    descriptor: u32,
    bytes: u32,
    info: u64,
}
const _: () = assert!(size_of::<GetInfo>() == 16);

/// The start of `struct bpf_map_info`.
#[repr(C)]
#[derive(Default)]
struct MapInfo {
    kind: u32,
    id: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}
const _: () = assert!(size_of::<MapInfo>() == 24);

/// A map whose keys and values have these lengths in bytes.
#[derive(Debug)]
pub(crate) struct Map<const KEY: usize, const VALUE: usize>(OwnedFd);

impl<const KEY: usize, const VALUE: usize> Map<KEY, VALUE> {
    /// Creates a map (`BPF_MAP_CREATE`, Linux 4.15 with a name).
    pub(crate) fn create(kind: MapKind, entries: u32, writers: Writers, name: [u8; 16]) -> Result<Self, Errno> {
        let (key_bytes, value_bytes) = (KEY as u32, VALUE as u32);
        let mut attributes = CreateMap {
            kind: kind as u32,
            key_bytes,
            value_bytes,
            entries,
            flags: writers.flags(),
            inner_map: 0,
            numa_node: 0,
            name,
        };
        // SAFETY: the attributes hold no pointer.
        unsafe { new_descriptor(Command::MapCreate, &mut attributes) }.map(Self)
    }

    /// Opens a pinned map (`BPF_OBJ_GET`, Linux 4.4). `EMEDIUMTYPE` if the map has another shape.
    pub(crate) fn open(kind: MapKind, entries: u32, writers: Writers, path: &CStr) -> Result<Self, Errno> {
        let descriptor = object(path)?;
        let mut info = MapInfo::default();
        let mut attributes = GetInfo {
            descriptor: number(&descriptor),
            bytes: size_of::<MapInfo>() as u32,
            info: (&raw mut info) as u64,
        };
        // SAFETY: the kernel writes at most as many bytes as `info` has through the pointer, whatever the object is,
        // and keeps no pointer; every bit pattern of it is valid.
        unsafe { bpf(Command::Info, &mut attributes) }?;
        // If the object is not a map, `info` has other content, and all calls about maps fail with EINVAL.
        let wanted = (kind as u32, KEY as u32, VALUE as u32, entries, writers.flags());
        if (info.kind, info.key_bytes, info.value_bytes, info.entries, info.flags) != wanted {
            return Err(Errno::EMEDIUMTYPE);
        }
        Ok(Self(descriptor))
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The value of a key; `None` if there is none.
    pub(crate) fn get(&self, key: &[u8; KEY]) -> Result<Option<[u8; VALUE]>, Errno> {
        self.read(Command::MapLookup, key)
    }

    /// Returns the value of a key and removes the key in one step (Linux 5.14 for hashes).
    pub(crate) fn take(&self, key: &[u8; KEY]) -> Result<Option<[u8; VALUE]>, Errno> {
        self.read(Command::MapTake, key)
    }

    fn read(&self, command: Command, key: &[u8; KEY]) -> Result<Option<[u8; VALUE]>, Errno> {
        let mut value = [0; VALUE];
        let mut attributes = self.element(key.as_ptr(), value.as_mut_ptr());
        // SAFETY: the map has keys and values of these lengths, since it was created so or its shape was compared. The
        // kernel reads one key, writes one value through the pointers and keeps neither.
        match unsafe { bpf(command, &mut attributes) } {
            Ok(_) => Ok(Some(value)),
            Err(Errno::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets the value of a key.
    pub(crate) fn set(&self, key: &[u8; KEY], mut value: [u8; VALUE]) -> Result<(), Errno> {
        let mut attributes = self.element(key.as_ptr(), value.as_mut_ptr());
        // SAFETY: as in `read`; the kernel reads the value.
        unsafe { bpf(Command::MapUpdate, &mut attributes) }.map(drop)
    }

    /// Removes a key, if it is there.
    pub(crate) fn remove(&self, key: &[u8; KEY]) -> Result<(), Errno> {
        let mut attributes = self.element(key.as_ptr(), std::ptr::null_mut());
        // SAFETY: as in `read`; there is no value.
        match unsafe { bpf(Command::MapDelete, &mut attributes) } {
            Ok(_) | Err(Errno::ENOENT) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns the key after this one in the order of the map, or the first key if `key` is `None` or not in the map.
    /// `None` at the end.
    pub(crate) fn next_key(&self, key: Option<&[u8; KEY]>) -> Result<Option<[u8; KEY]>, Errno> {
        let mut next = [0; KEY];
        let key = key.map_or(std::ptr::null(), |key| key.as_ptr());
        let mut attributes = self.element(key, next.as_mut_ptr());
        // SAFETY: as in `read`; the kernel reads a key if there is one, and writes one.
        match unsafe { bpf(Command::MapNextKey, &mut attributes) } {
            Ok(_) => Ok(Some(next)),
            Err(Errno::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Prevents processes from changing the map. Programs can still change it, unless [`Writers`] excludes them
    /// (`BPF_MAP_FREEZE`, Linux 5.2).
    pub(crate) fn freeze(&self) -> Result<(), Errno> {
        let mut attributes = Freeze { map: number(&self.0) };
        // SAFETY: the attributes hold no pointer.
        unsafe { bpf(Command::MapFreeze, &mut attributes) }.map(drop)
    }

    fn element(&self, key: *const u8, value_or_next: *mut u8) -> Element {
        let [key, value_or_next] = [key as u64, value_or_next as u64];
        Element { map: number(&self.0), pad: 0, key, value_or_next, flags: 0 }
    }
}

/// A loaded program.
#[derive(Debug)]
pub(crate) struct Program(OwnedFd);

/// Loads a program for an LSM hook (`BPF_PROG_LOAD`, Linux 5.7). The verifier writes its log into the buffer, if there
/// is one.
pub(crate) fn load(
    instructions: &[Instruction],
    function: u32,
    name: [u8; 16],
    log: Option<&mut [u8]>,
) -> Result<Program, Errno> {
    let mut attributes = LoadProgram {
        kind: PROGRAM_LSM,
        count: u32::try_from(instructions.len()).map_err(|_| Errno::E2BIG)?,
        instructions: instructions.as_ptr() as u64,
        // LSM programs need a license that is compatible with the GPL.
        license: c"GPL".as_ptr() as u64,
        name,
        attach_type: LSM_MAC,
        attach_btf_id: function,
        ..LoadProgram::default()
    };
    if let Some(log) = log {
        attributes.log_level = 1;
        attributes.log_bytes = u32::try_from(log.len()).map_err(|_| Errno::E2BIG)?;
        attributes.log = log.as_mut_ptr() as u64;
    }
    // SAFETY: the kernel reads `count` instructions of 8 bytes and a string that ends with NUL, and writes at most as
    // many bytes as the buffer has. It keeps no pointer.
    unsafe { new_descriptor(Command::ProgramLoad, &mut attributes) }.map(Program)
}

/// Attaches a program to its hook until the link is closed (`BPF_LINK_CREATE`, Linux 5.19 for LSM hooks; 5.7 through
/// `BPF_RAW_TRACEPOINT_OPEN`).
pub(crate) fn link(program: &Program) -> Result<OwnedFd, Errno> {
    let mut attributes = CreateLink { program: number(&program.0), target: 0, attach_type: LSM_MAC, flags: 0 };
    // SAFETY: the attributes hold no pointer.
    unsafe { new_descriptor(Command::LinkCreate, &mut attributes) }
}

/// Pins an object to a name in a bpffs. The object then exists without a descriptor (`BPF_OBJ_PIN`, Linux 4.4).
pub(crate) fn pin(descriptor: BorrowedFd<'_>, path: &CStr) -> Result<(), Errno> {
    let descriptor = descriptor.as_raw_fd().cast_unsigned();
    let mut attributes = Object { path: path.as_ptr() as u64, descriptor, flags: 0 };
    // SAFETY: the kernel reads a string that ends with NUL and keeps no pointer.
    unsafe { bpf(Command::Pin, &mut attributes) }.map(drop)
}

/// Opens a pinned object (`BPF_OBJ_GET`).
fn object(path: &CStr) -> Result<OwnedFd, Errno> {
    let mut attributes = Object { path: path.as_ptr() as u64, descriptor: 0, flags: 0 };
    // SAFETY: the kernel reads a string that ends with NUL and keeps no pointer.
    unsafe { new_descriptor(Command::Get, &mut attributes) }
}

fn number(descriptor: &OwnedFd) -> u32 {
    descriptor.as_raw_fd().cast_unsigned()
}

/// bpf(2) with a command whose result is a new descriptor.
///
/// # Safety
/// The requirements of [`bpf`]. The command must return a descriptor.
unsafe fn new_descriptor<T>(command: Command, attributes: &mut T) -> Result<OwnedFd, Errno> {
    // SAFETY: the caller's.
    let descriptor = unsafe { bpf(command, attributes) }?;
    // SAFETY: the kernel created the descriptor in this call, and nothing else has it. It opens all of them with
    // O_CLOEXEC.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// bpf(2), Linux 3.18.
///
/// # Safety
/// The attributes are those of the command, and their pointers are valid for what the command reads and writes.
unsafe fn bpf<T>(command: Command, attributes: &mut T) -> Result<c_int, Errno> {
    // SAFETY: the kernel reads and writes at most as many bytes of the attributes as it is given here. The rest is the
    // caller's.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command as c_int, &raw mut *attributes, size_of::<T>()) };
    Errno::result(result).map(descriptor)
}

/// Converts the result of a call, which is a descriptor or 0.
fn descriptor(result: c_long) -> c_int {
    c_int::try_from(result).unwrap_or(-1)
}

/// `FILEID_KERNFS`, include/linux/exportfs.h.
const FILEID_KERNFS: c_int = 0xfe;

/// `struct file_handle`, include/linux/fs.h, with space for the handle of a kernfs.
#[repr(C)]
struct Handle {
    bytes: libc::c_uint,
    kind: c_int,
    id: [u8; 8],
}
const _: () = assert!(size_of::<Handle>() == 16);

/// The 64-bit ID of an inode of a kernfs, which for a cgroup is its ID (`name_to_handle_at`, Linux 5.5 for such IDs).
pub(crate) fn kernfs_id(inode: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut handle = Handle { bytes: 8, kind: 0, id: [0; 8] };
    let mut mount: c_int = 0;
    // SAFETY: `inode` is open during the call, and the path is empty and ends with NUL. The kernel reads the number of
    // bytes from `handle`, writes at most that many behind its header and one int to `mount`, and keeps no pointer.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            inode.as_raw_fd(),
            c"".as_ptr(),
            &raw mut handle,
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    Errno::result(result)?;
    if (handle.bytes, handle.kind) != (8, FILEID_KERNFS) {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(u64::from_ne_bytes(handle.id))
}

/// Opens the inode of a kernfs with this ID; `ESTALE` if there is none (`open_by_handle_at`). `directory` is any open
/// directory of that file system.
pub(crate) fn open_kernfs(directory: BorrowedFd<'_>, id: u64) -> Result<OwnedFd, Errno> {
    let mut handle = Handle { bytes: 8, kind: FILEID_KERNFS, id: id.to_ne_bytes() };
    let flags = libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: `directory` is open during the call. The kernel reads the handle, whose length it finds in it, and keeps
    // no pointer.
    let result = unsafe { libc::syscall(libc::SYS_open_by_handle_at, directory.as_raw_fd(), &raw mut handle, flags) };
    let descriptor = Errno::result(result).map(descriptor)?;
    // SAFETY: the kernel created the descriptor in this call, and nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// A page below 4 GiB, so that pointers of 32-bit calls reach it.
#[derive(Debug)]
pub(crate) struct Page(NonNull<c_void>);

impl Page {
    const BYTES: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

    pub(crate) fn new() -> Result<Self, Errno> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_32BIT;
        // SAFETY: new memory, at an address that the kernel chooses.
        unsafe { mmap_anonymous(None, Self::BYTES, access, flags) }.map(Self)
    }

    /// Writes to the start of the page, and fills the rest with 0.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let page = self.bytes_mut();
        page.fill(0);
        page.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    }

    /// The start of the page.
    pub(crate) fn start<const COUNT: usize>(&mut self) -> [u8; COUNT] {
        const { assert!(COUNT <= Self::BYTES.get()) };
        std::array::from_fn(|at| self.bytes_mut().get(at).copied().unwrap_or_default())
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory was mapped with this length for reading and writing, is filled with zeros, and belongs to
        // this value alone until it is dropped.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr().cast(), Self::BYTES.get()) }
    }

    fn address(&self) -> usize {
        self.0.as_ptr() as usize
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped with this length, and no reference to it is left.
        let _ = unsafe { munmap(self.0, Self::BYTES.get()) };
    }
}

/// Calls an ioctl whose argument is a structure of at most a page. The command has 64 bits, of which the kernel should
/// use 32.
pub(crate) fn ioctl(file: BorrowedFd<'_>, command: u64, argument: &mut Page) -> Result<(), Errno> {
    // SAFETY: `file` is open during the call. The kernel reads or writes at most the page and keeps no pointer; every
    // bit pattern of it is valid.
    let result = unsafe { libc::syscall(libc::SYS_ioctl, file.as_raw_fd(), command, argument.address()) };
    Errno::result(result).map(drop)
}

/// Calls an ioctl with the argument -1, which is neither a valid pointer nor a valid number.
pub(crate) fn ioctl_invalid(file: BorrowedFd<'_>, command: u64) -> Result<(), Errno> {
    // SAFETY: `file` is open during the call; at the last address of memory, nothing is mapped.
    let result = unsafe { libc::syscall(libc::SYS_ioctl, file.as_raw_fd(), command, -1_isize) };
    Errno::result(result).map(drop)
}

/// [`ioctl`] as a 32-bit program calls it.
pub(crate) fn ioctl32(file: BorrowedFd<'_>, command: u32, argument: &mut Page) -> Result<(), Errno> {
    // The page is below 4 GiB.
    let address = u32::try_from(argument.address()).map_err(|_| Errno::EFAULT)?;
    // SAFETY: `file` is open during the call. The kernel reads or writes at most the page and keeps no pointer; every
    // bit pattern of it is valid.
    unsafe { call32(SYS_IOCTL32, file.as_raw_fd().cast_unsigned(), command, address) }
}

/// [`ioctl_invalid`] as a 32-bit program calls it.
pub(crate) fn ioctl32_invalid(file: BorrowedFd<'_>, command: u32) -> Result<(), Errno> {
    // SAFETY: `file` is open during the call. At the last address below 4 GiB nothing is mapped: the kernel gives this
    // page to no program that does not ask for it.
    unsafe { call32(SYS_IOCTL32, file.as_raw_fd().cast_unsigned(), command, u32::MAX) }
}

/// Number of `ioctl` in the table of 32-bit programs.
const SYS_IOCTL32: u32 = 54;

/// Makes a system call like a 32-bit program. On a kernel without IA32 emulation, the process gets SIGSEGV.
///
/// # Safety
/// The requirements of the system call. Pointers have 32 bits.
unsafe fn call32(number: u32, first: u32, second: u32, third: u32) -> Result<(), Errno> {
    let result: i32;
    // SAFETY: the call takes its number and arguments from these registers, returns in EAX, and may change R8 to R11.
    // RBX is exchanged because the compiler reserves it, and restored. Memory is the caller's.
    unsafe {
        std::arch::asm!(
            "xchg {first:r}, rbx",
            "int 0x80",
            "xchg {first:r}, rbx",
            first = inout(reg) u64::from(first) => _,
            inlateout("eax") number => result,
            in("ecx") second,
            in("edx") third,
            out("r8") _,
            out("r9") _,
            out("r10") _,
            out("r11") _,
        );
    }
    if result < 0 { Err(Errno::from_raw(-result)) } else { Ok(()) }
}

/// Calls `quotactl_fd` (Linux 5.14) with an invalid pointer.
pub(crate) fn quotactl_invalid(file: BorrowedFd<'_>, command: u32, id: u32) -> Result<(), Errno> {
    // SAFETY: `file` is open during the call; at the last address of memory, nothing is mapped.
    let result = unsafe { libc::syscall(libc::SYS_quotactl_fd, file.as_raw_fd(), command, id, -1_isize) };
    Errno::result(result).map(drop)
}

/// Calls `file_setattr`, Linux 6.17. The page starts with a `struct file_attr`.
pub(crate) fn file_setattr(file: BorrowedFd<'_>, attributes: &mut Page) -> Result<(), Errno> {
    const SYS_FILE_SETATTR: c_long = 469;
    const FILE_ATTR_BYTES: usize = 24;
    // SAFETY: `file` is open during the call, the path is empty and ends with NUL. The kernel reads 24 bytes of the
    // page and keeps no pointer.
    let result = unsafe {
        libc::syscall(
            SYS_FILE_SETATTR,
            file.as_raw_fd(),
            c"".as_ptr(),
            attributes.address(),
            FILE_ATTR_BYTES,
            libc::AT_EMPTY_PATH,
        )
    };
    Errno::result(result).map(drop)
}
