//! Numbers of system calls per operation, and a kernel without one of them.

use fsquota::{FsError, GetError};
use ktest_support::process::{self, Traced};
use nix::libc::{
    SYS_close, SYS_fdatasync, SYS_flock, SYS_fstat, SYS_fstatfs, SYS_getdents64, SYS_ioctl, SYS_newfstatat, SYS_openat,
    SYS_pread64, SYS_pwrite64, SYS_quotactl_fd, SYS_statx,
};
use units::Bytes;

use crate::volumes::{SIZE, Volumes, size};

/// The system calls of `work` in order. Maps the variants of fstat(2), which differ between C libraries, to one number.
fn calls(work: impl FnOnce()) -> Vec<i64> {
    let made = process::calls(work).into_iter();
    made.map(|call| if call == SYS_newfstatat { SYS_fstat } else { call }).collect()
}

#[test]
fn a_kernel_without_quotactl_fd_is_reported() {
    let (_volumes, dir, _) = Volumes::with_volume(size(SIZE));
    let mut child = Traced::start(|| {
        assert_eq!(fsquota::get(&dir), Err(GetError::Fs(FsError::KernelTooOld)));
        assert_eq!(fsquota::require(&dir), Err(FsError::KernelTooOld));
    });
    let mut refused = 0;
    while let Some(call) = child.next_call() {
        if call.number() == SYS_quotactl_fd {
            call.refuse();
            refused += 1;
        }
    }
    // The call itself, and the check whether the kernel has it.
    assert_eq!(refused, 4);
}

#[test]
fn the_cost_of_set_is_independent_of_other_projects() {
    let volumes = Volumes::new();
    volumes.volume("first", size(SIZE));
    let (empty, next) = (volumes.dir("empty"), volumes.dir("next"));
    let set = |dir| calls(|| assert!(fsquota::set(dir, size(SIZE), &volumes.ids).is_ok()));
    let get = |dir| calls(|| assert!(fsquota::get(dir).is_ok()));
    let before = (set(&empty), get(&empty));
    for n in 0..200 {
        volumes.volume(&n.to_string(), size(SIZE));
    }
    assert_eq!((set(&next), get(&next)), before);
}

#[test]
fn operations_make_the_documented_system_calls() {
    let volumes = Volumes::new();
    let (a, b) = (volumes.dir("a"), volumes.dir("b"));
    let id = volumes.ids.next().unwrap();

    // Descriptor; attributes; parent directory and its project, which fails unless this is an XFS; quota state.
    let look = [SYS_openat, SYS_ioctl, SYS_getdents64, SYS_ioctl, SYS_quotactl_fd];
    // End of the entries.
    let empty = [SYS_getdents64];
    // Usage of the ID; limits; project ID.
    let begin = [SYS_quotactl_fd, SYS_quotactl_fd, SYS_ioctl];
    let assign = calls(|| assert!(fsquota::assign(&a, id, size(SIZE)).is_ok()));
    assert_eq!(assign, [&look[..], &empty, &begin, &[SYS_close]].concat());

    // File system of the allocator; a process without IDs in memory moves the counter.
    let moved = [
        [SYS_openat, SYS_flock, SYS_statx, SYS_quotactl_fd, SYS_pread64],
        [SYS_pread64, SYS_quotactl_fd, SYS_pwrite64, SYS_fdatasync, SYS_close],
    ];
    let set = calls(|| assert!(fsquota::set(&b, size(SIZE), &volumes.ids).is_ok()));
    assert_eq!(set, [&look[..], &[SYS_fstat], &empty, moved.as_flattened(), &begin, &[SYS_close]].concat());

    let change = calls(|| assert!(fsquota::set(&a, size(SIZE), &volumes.ids).is_ok()));
    assert_eq!(change, [&look[..], &[SYS_quotactl_fd, SYS_close]].concat());

    // Directory; XFS; quota state; project; quota.
    let get = calls(|| assert!(fsquota::get(&a).is_ok()));
    assert_eq!(get, [SYS_fstat, SYS_fstatfs, SYS_quotactl_fd, SYS_ioctl, SYS_quotactl_fd]);
    let project = calls(|| assert!(fsquota::project(&a).is_ok()));
    assert_eq!(project, [SYS_fstat, SYS_fstatfs, SYS_ioctl]);
    let quota = calls(|| assert!(fsquota::quota(&a, id).is_ok()));
    assert_eq!(quota, [SYS_fstatfs, SYS_quotactl_fd, SYS_quotactl_fd]);

    // No checks of the file system.
    let quotas = fsquota::Quotas::open(&a).unwrap();
    let (c, other) = (volumes.dir("c"), volumes.ids.next().unwrap());
    let new = calls(|| assert!(quotas.assign_new(&c, other, size(SIZE)).is_ok()));
    assert_eq!(new, [SYS_quotactl_fd, SYS_ioctl, SYS_quotactl_fd, SYS_ioctl]);
    assert_eq!(calls(|| assert!(quotas.quota(other).is_ok())), [SYS_quotactl_fd]);
    assert_eq!(calls(|| assert!(quotas.set_limits(other, size(SIZE)).is_ok())), [SYS_quotactl_fd]);
    let showing = calls(|| assert!(quotas.set_limits_showing(other, size(SIZE), Bytes::MIB).is_ok()));
    assert_eq!(showing, [SYS_quotactl_fd; 2]);
    for shown in [Bytes::ZERO, SIZE] {
        let alone = calls(|| assert!(quotas.set_limits_showing(other, size(SIZE), shown).is_ok()));
        assert_eq!(alone, [SYS_quotactl_fd]);
    }

    // Usage of the ID; limits; project ID.
    let remove = calls(|| assert!(fsquota::remove(&a).is_ok()));
    assert_eq!(remove, [&look[..], &empty, &begin, &[SYS_close]].concat());
}

#[test]
fn a_report_makes_one_call_per_project() {
    let volumes = Volumes::new();
    let report = || calls(|| assert!(fsquota::report(&volumes.root).unwrap().all(|quota| quota.is_ok()))).len();
    let none = report();
    for n in 0..20 {
        volumes.volume(&n.to_string(), size(SIZE));
    }
    assert_eq!(report(), none + 20);
    for n in 0..100 {
        std::fs::create_dir_all(volumes.path(&format!("0/{n}/deeper"))).unwrap();
    }
    assert_eq!(report(), none + 20);
}
