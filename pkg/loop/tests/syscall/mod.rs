//! System calls that a seccomp filter lets fail, and one that has no wrapper.

use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd as _};
use std::thread;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc::{self, c_long, c_ulong, seccomp_data, sock_filter, sock_fprog};

/// A set of system calls: all with one number, or those with this value of one argument.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    number: c_long,
    argument: Option<(usize, u32)>,
}

impl Call {
    pub const READLINK: Self = Self { number: libc::SYS_readlink, argument: None };

    pub const fn ioctl(request: u32) -> Self {
        Self { number: libc::SYS_ioctl, argument: Some((1, request)) }
    }

    /// Opens with exactly these flags.
    pub const fn open(flags: OFlag) -> Self {
        Self { number: libc::SYS_openat, argument: Some((2, flags.bits().cast_unsigned())) }
    }
}

/// Runs `work` in a thread of its own, in which these calls fail with `errno` and have no effect.
pub fn without<T: Send>(call: Call, errno: Errno, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            refuse(call, errno);
            work()
        });
        thread.join().unwrap()
    })
}

/// Installs the filter in this thread, for the rest of its life.
fn refuse(call: Call, errno: Errno) {
    let load = |offset: usize| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset.try_into().unwrap(), 0);
    // Continues with the next instruction if the value is equal, and skips `otherwise` instructions if not.
    let equal = |value, otherwise| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, otherwise);
    let answer = |value| instruction(libc::BPF_RET | libc::BPF_K, value, 0);
    let refused = answer(libc::SECCOMP_RET_ERRNO | (errno as i32).cast_unsigned());
    let allowed = answer(libc::SECCOMP_RET_ALLOW);
    let (nr, number) = (load(offset_of!(seccomp_data, nr)), call.number.try_into().unwrap());
    let mut filter = match call.argument {
        None => vec![nr, equal(number, 1), refused, allowed],
        // The lower half of an argument: x86-64 is little-endian.
        Some((index, value)) => {
            let argument = load(offset_of!(seccomp_data, args) + index * size_of::<u64>());
            vec![nr, equal(number, 3), argument, equal(value, 1), refused, allowed]
        }
    };
    let program = sock_fprog { len: filter.len().try_into().unwrap(), filter: filter.as_mut_ptr() };
    let mode = c_ulong::from(libc::SECCOMP_MODE_FILTER);
    // SAFETY: the kernel copies the instructions that `program` points to, which live until the end of this
    // function, and keeps no pointer.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) };
    Errno::result(set).unwrap();
}

fn instruction(code: u32, k: u32, otherwise: u8) -> sock_filter {
    sock_filter { code: code.try_into().unwrap(), jt: 0, jf: otherwise, k }
}

nix::ioctl_write_int_bad!(loop_ctl_remove, 0x4C81);

/// Removes the loop device itself, if it is unused (`LOOP_CTL_REMOVE`).
pub fn remove_device(control: impl AsFd, number: i32) -> Result<(), Errno> {
    // SAFETY: `control` is open during the call, which takes no pointer.
    unsafe { loop_ctl_remove(control.as_fd().as_raw_fd(), number) }.map(drop)
}
