//! The system calls that nix lacks.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::libc;

/// `FILEID_KERNFS`, include/linux/exportfs.h.
const FILEID_KERNFS: libc::c_int = 0xfe;

/// `struct file_handle`, include/linux/fs.h, with room for the handle of a kernfs.
#[repr(C)]
struct Handle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    id: [u8; 8],
}
const _: () = assert!(size_of::<Handle>() == 16);

/// The 64-bit ID of an inode of a kernfs: of a cgroup, its ID (`name_to_handle_at`, Linux 5.5 for such IDs).
pub(crate) fn kernfs_id(inode: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut handle = Handle { bytes: 8, kind: 0, id: [0; 8] };
    let mut mount: libc::c_int = 0;
    // SAFETY: `inode` is open during the call, and the path is empty and ends with NUL. The kernel reads the number of bytes
    // from `handle`, writes at most that many behind its header and one int to `mount`, and keeps no pointer.
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
