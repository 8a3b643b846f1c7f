//! The start of a program without a C library, and functions that the compiler calls.

use core::arch::{asm, global_asm};
use core::ffi::{CStr, c_char, c_int};
use core::panic::PanicInfo;

global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {start}",
    "ud2",
    start = sym start,
);

pub(crate) struct Arguments {
    count: usize,
    /// `count` pointers to NUL-terminated strings.
    words: *const *const c_char,
}

impl Arguments {
    /// Argument at index `at`; index 0 is the program's name.
    pub(crate) fn get(&self, at: usize) -> Option<&CStr> {
        if at >= self.count {
            return None;
        }
        // SAFETY: the kernel put `count` pointers on the stack of the first thread, each to a string that ends with 0
        // and stays as long as the process. Nothing writes to them.
        Some(unsafe { CStr::from_ptr(*self.words.add(at)) })
    }
}

/// Entry point. `stack` is the initial stack: the number of arguments, then pointers to the arguments.
extern "C" fn start(stack: *const usize) -> ! {
    // SAFETY: `_start` passes the initial stack pointer, at which the kernel put the number of arguments (x86-64 psABI,
    // 3.4.1).
    let count = unsafe { *stack };
    let arguments = Arguments { count, words: stack.wrapping_add(1).cast() };
    exit(crate::main(&arguments))
}

fn exit(status: u8) -> ! {
    const EXIT_GROUP: usize = 231;
    // SAFETY: ends the process.
    unsafe { asm!("syscall", in("rax") EXIT_GROUP, in("rdi") usize::from(status), options(noreturn)) }
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    const PANICKED: u8 = 101;
    exit(PANICKED)
}

/// `core` references this symbol, because it was compiled for unwinding. No panic unwinds in this program.
// SAFETY: nothing else defines the symbol, as there is no standard library.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

// SAFETY: as the C library's function, which is not linked.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: the caller owns both ranges, which do not overlap. The direction flag is clear (psABI).
    unsafe { asm!("rep movsb", inout("rcx") count => _, inout("rdi") to => _, inout("rsi") from => _) };
    to
}

// SAFETY: as the C library's function, which is not linked.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if to.addr().wrapping_sub(from.addr()) >= count {
        // SAFETY: the ranges do not overlap, or a copy from the start reads each byte before it is written.
        return unsafe { memcpy(to, from, count) };
    }
    let (last_to, last_from) = (to.wrapping_add(count.wrapping_sub(1)), from.wrapping_add(count.wrapping_sub(1)));
    // SAFETY: the caller owns both ranges; from the end, each byte is read before it is written. The direction flag is
    // cleared again.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rcx") count => _, inout("rdi") last_to => _, inout("rsi") last_from => _);
    }
    to
}

// SAFETY: as the C library's function, which is not linked.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: c_int, count: usize) -> *mut u8 {
    // SAFETY: the caller owns the range. The direction flag is clear (psABI).
    unsafe { asm!("rep stosb", inout("rcx") count => _, inout("rdi") to => _, in("al") byte as u8) };
    to
}

// SAFETY: as the C library's function, which is not linked.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, count: usize) -> c_int {
    for at in 0..count {
        // SAFETY: the caller owns both ranges. A volatile read is not turned into a call of this function.
        let bytes = unsafe { [one.add(at).read_volatile(), other.add(at).read_volatile()] };
        if bytes[0] != bytes[1] {
            return c_int::from(bytes[0]) - c_int::from(bytes[1]);
        }
    }
    0
}

// SAFETY: as the C library's function, which is not linked.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, count: usize) -> c_int {
    // SAFETY: the same contract.
    unsafe { memcmp(one, other, count) }
}

// SAFETY: as the C library's function, which is not linked.
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const c_char) -> usize {
    let mut length = 0;
    // SAFETY: the caller's string ends with 0, and no byte after it is read.
    while unsafe { text.add(length).read_volatile() } != 0 {
        length += 1;
    }
    length
}
