//! The seccomp(2) filter of confined programs, assembled from BPF instructions. No I/O.
//!
//! The filter denies system calls that the node's programs never use and that exploits of the kernel have used. It is
//! the second line of defense: most of these calls need a capability that the programs do not have. Except for `clone`,
//! the filter reads only the number of the call. The kernel therefore computes once which calls the filter allows, and
//! does not run it for them (`seccomp_cache_check_allow`).

use nix::libc::{self, c_long, sock_filter};

/// `AUDIT_ARCH_X86_64`, include/uapi/linux/audit.h.
const X86_64: u32 = 0xc000_003e;
/// `__X32_SYSCALL_BIT`, arch/x86/include/uapi/asm/unistd.h.
const X32: u32 = 0x4000_0000;

/// Offsets in `struct seccomp_data`, include/uapi/linux/seccomp.h.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;

/// The flags of clone(2) that create namespaces.
const NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET)
    .cast_unsigned();

pub(crate) const DENIED: [c_long; 61] = [
    // Mounts and roots.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_mount_setattr,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    // Namespaces.
    libc::SYS_setns,
    libc::SYS_unshare,
    // The kernel and its time.
    libc::SYS_reboot,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_vhangup,
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    // Files by handle instead of path, and devices.
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_mknod,
    libc::SYS_mknodat,
    libc::SYS_fanotify_init,
    // Large parts of the kernel that the node's programs do not need.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_personality,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
];

const EPERM: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
/// Error of a kernel without clone3(2): C libraries then call `clone`, whose flags a filter can read.
const ENOSYS: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();

pub(crate) fn filter() -> Vec<sock_filter> {
    let mut filter = Vec::new();
    // 32-bit system calls have another architecture. Those of x32 have this architecture and a bit in their number.
    filter.extend([load(ARCHITECTURE), skip_if_equal(X86_64), answer(EPERM)]);
    filter.extend([load(NUMBER), unless_any_bit(X32), answer(EPERM)]);
    for number in DENIED {
        filter.extend([unless_equal(call(number)), answer(EPERM)]);
    }
    filter.extend([unless_equal(call(libc::SYS_clone3)), answer(ENOSYS)]);
    // For other calls than `clone`, skips the next four instructions.
    filter.push(jump(libc::BPF_JEQ, call(libc::SYS_clone), 0, 3));
    filter.extend([load(FIRST_ARGUMENT), unless_any_bit(NAMESPACES), answer(EPERM)]);
    filter.push(answer(libc::SECCOMP_RET_ALLOW));
    filter
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of DENIED")]
const fn call(number: c_long) -> u32 {
    number as u32
}

const fn load(offset: u32) -> sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

const fn answer(value: u32) -> sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, value)
}

const fn skip_if_equal(value: u32) -> sock_filter {
    jump(libc::BPF_JEQ, value, 1, 0)
}

const fn unless_equal(value: u32) -> sock_filter {
    jump(libc::BPF_JEQ, value, 0, 1)
}

/// The next instruction applies to values with one of these bits.
const fn unless_any_bit(bits: u32) -> sock_filter {
    jump(libc::BPF_JSET, bits, 0, 1)
}

#[expect(clippy::cast_possible_truncation, reason = "codes have 16 bits")]
const fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

#[expect(clippy::cast_possible_truncation, reason = "codes have 16 bits")]
const fn jump(test: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: (libc::BPF_JMP | test | libc::BPF_K) as u16, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    const I386: u32 = 0x4000_0003;

    /// Interprets the filter like the kernel, for a call with the first argument `argument`.
    fn decide(architecture: u32, number: u32, argument: u32) -> u32 {
        let (filter, mut at, mut accumulator) = (filter(), 0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = filter[at];
            at += 1;
            let code = u32::from(code);
            let is_met = match code {
                _ if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    accumulator = match k {
                        NUMBER => number,
                        ARCHITECTURE => architecture,
                        FIRST_ARGUMENT => argument,
                        other => panic!("offset {other}"),
                    };
                    continue;
                }
                _ if code == libc::BPF_RET | libc::BPF_K => return k,
                _ if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => accumulator == k,
                _ if code == libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K => accumulator & k != 0,
                other => panic!("instruction {other:#x}"),
            };
            at += usize::from(if is_met { jt } else { jf });
        }
    }

    #[test]
    fn listed_calls_are_denied_and_all_others_are_allowed() {
        for number in 0..1024 {
            let expected = match c_long::from(number) {
                listed if DENIED.contains(&listed) => EPERM,
                libc::SYS_clone3 => ENOSYS,
                _ => libc::SECCOMP_RET_ALLOW,
            };
            assert_eq!(decide(X86_64, number, 0), expected, "{number}");
        }
    }

    #[test]
    fn no_call_of_another_architecture_is_allowed() {
        for number in [0, 1, call(libc::SYS_getpid), call(libc::SYS_mount)] {
            assert_eq!(decide(I386, number, 0), EPERM);
            assert_eq!(decide(X86_64, number | X32, 0), EPERM);
        }
    }

    #[test]
    fn threads_and_processes_are_allowed_and_namespaces_are_not() {
        let clone = call(libc::SYS_clone);
        // clone(2) flags of Go for threads and for processes (`forkAndExecInChild1`).
        for flags in [0x0005_0f00, 0x0000_4111, 0x11] {
            assert_eq!(decide(X86_64, clone, flags), libc::SECCOMP_RET_ALLOW);
        }
        for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWNET, libc::CLONE_NEWPID] {
            assert_eq!(decide(X86_64, clone, flag.cast_unsigned() | 0x11), EPERM);
        }
    }
}
