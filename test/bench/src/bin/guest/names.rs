//! Names of system calls.

use nix::libc;

macro_rules! names {
    ($($call:ident)*) => { &[$((libc::$call, stringify!($call))),*] };
}

const NAMES: &[(libc::c_long, &str)] = names! {
    SYS_brk SYS_clock_gettime SYS_clone SYS_clone3 SYS_close SYS_dup SYS_exit SYS_faccessat SYS_faccessat2 SYS_fadvise64 SYS_fallocate
    SYS_fchmod SYS_fchmodat SYS_fchownat SYS_fcntl SYS_fdatasync SYS_flock SYS_fork SYS_fstat SYS_fstatfs SYS_fsync
    SYS_ftruncate SYS_futex SYS_getdents64 SYS_getpgid SYS_getpid SYS_getppid SYS_getrandom SYS_gettid SYS_ioctl SYS_linkat SYS_lseek
    SYS_lstat SYS_madvise SYS_mkdirat SYS_mknodat SYS_mmap SYS_mount SYS_mount_setattr SYS_move_mount SYS_mprotect SYS_mremap
    SYS_munmap SYS_nanosleep
    SYS_clock_nanosleep SYS_newfstatat SYS_open SYS_open_tree SYS_openat SYS_openat2 SYS_poll SYS_ppoll SYS_prctl SYS_pread64 SYS_pwrite64
    SYS_quotactl SYS_quotactl_fd SYS_read SYS_readlink SYS_readlinkat SYS_readv SYS_rename SYS_renameat SYS_renameat2
    SYS_rmdir SYS_rseq SYS_rt_sigaction SYS_rt_sigprocmask SYS_sched_getaffinity SYS_sched_yield SYS_set_robust_list SYS_sigaltstack SYS_stat SYS_statfs SYS_statx
    SYS_symlinkat SYS_sync_file_range SYS_syncfs SYS_umount2 SYS_uname SYS_unlink SYS_unlinkat SYS_utimensat SYS_vfork
    SYS_write SYS_writev
};

/// Name of a system call. A call that is not in the list is named by its number, so that every call is counted.
pub(crate) fn name(number: libc::c_long) -> String {
    let known = NAMES.iter().find(|(known, _)| *known == number);
    known.map_or_else(|| format!("syscall {number}"), |(_, name)| name.trim_start_matches("SYS_").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_kernels_and_none_is_lost() {
        assert_eq!(name(libc::SYS_quotactl_fd), "quotactl_fd");
        assert_eq!(name(9999), "syscall 9999");
    }

    #[test]
    fn no_number_has_two_names() {
        let mut numbers: Vec<_> = NAMES.iter().map(|(number, _)| number).collect();
        numbers.sort_unstable();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
