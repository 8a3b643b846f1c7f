//! Numbers of system calls of operations, which do not depend on the number of volumes.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::thread;

use ktest_support::process::{Traced, calls};
use ktest_support::{XfsDisk, eventually};
use nix::libc::{
    SYS_clock_gettime, SYS_clock_nanosleep, SYS_close, SYS_fchmod, SYS_fsync, SYS_ioctl, SYS_mkdirat, SYS_nanosleep,
    SYS_openat2, SYS_pwrite64, SYS_quotactl_fd, SYS_renameat2,
};
use units::Bytes;
use volume::{Access, Error, Mode, Request, State, Store, Volumes as _};

use crate::killed::{THIN, open};
use crate::node::{INODES, Node, SIZE, copied, file, files, id, sized, snapshot_request, without_pods};

/// Request for a volume so small that the disk holds hundreds of them.
fn small(name: &str) -> Request {
    sized(name, Mode::Filesystem { inodes: INODES }, Bytes::new(1 << 20))
}

fn claim(store: &Store, name: &str) -> Vec<i64> {
    let (id, request) = (id(name), small(name));
    calls(|| {
        store.provision(&id, &request).unwrap();
        store.announce(&id).unwrap();
    })
}

#[test]
fn a_claim_takes_14_calls_and_one_force_whatever_is_there() {
    let node = Node::new();
    // The forked process first allocates project IDs of its own. A process makes these ten calls for every 32nd volume.
    let counted = |name: &str| {
        let all = claim(&node.store, name);
        let begin = all.iter().position(|call| *call == SYS_openat2).expect("the record is created");
        all[begin..].to_vec()
    };
    let alone = counted("pvc-1");
    let record = [SYS_openat2, SYS_pwrite64, SYS_close];
    let directory = [SYS_mkdirat, SYS_openat2, SYS_fchmod];
    // The calls read whether the ID is free, read the project of the directory, set the limits, and set the project.
    let limit = [SYS_quotactl_fd, SYS_ioctl, SYS_quotactl_fd, SYS_ioctl];
    let publish = [SYS_close, SYS_renameat2, SYS_fsync];
    let announce = [SYS_renameat2];
    assert_eq!(alone, [&record[..], &directory, &limit, &publish, &announce].concat());
    assert_eq!(alone.len(), 14);
    for number in 0..200 {
        node.made(&small(&format!("pvc-more-{number}")));
    }
    assert_eq!(counted("pvc-2"), alone);
}

#[test]
fn opening_takes_one_call_and_looking_at_the_quota_one_more_whatever_is_there() {
    let (node, first, _) = Node::with_volume(&files("pvc-0"));
    let open = |store: &Store| calls(|| drop(store.open_volume(&first).unwrap()));
    let stats = |store: &Store| calls(|| assert!(store.open_volume(&first).unwrap().quota().is_ok()));
    // The announcement is not durable yet.
    assert_eq!(open(&node.store), [SYS_openat2, SYS_fsync, SYS_close]);
    drop(node.store.open_volume(&first).unwrap());
    assert_eq!(open(&node.store), [SYS_openat2, SYS_close]);
    assert_eq!(stats(&node.store), [SYS_openat2, SYS_quotactl_fd, SYS_close]);
    for number in 0..100 {
        node.made(&small(&format!("pvc-more-{number}")));
    }
    assert_eq!(open(&node.store), [SYS_openat2, SYS_close]);
    assert_eq!(stats(&node.store), [SYS_openat2, SYS_quotactl_fd, SYS_close]);
}

/// Regression: each of the volumes forced the log.
#[test]
fn one_force_is_enough_for_all_announcements_before_it() {
    let node = Node::new();
    let ids = ["pvc-1", "pvc-2", "pvc-3"].map(|name| node.made(&small(name)).0);
    let made = calls(|| ids.iter().for_each(|id| drop(node.store.open_volume(id).unwrap())));
    let again = [SYS_openat2, SYS_close];
    assert_eq!(made, [&[SYS_openat2, SYS_fsync, SYS_close][..], &again, &again].concat());
}

/// A force of the log takes as long as the writes of all pods before it. No lock of the store is held meanwhile.
#[test]
fn other_volumes_are_opened_and_announced_during_a_force() {
    let node = Node::new();
    let durable = node.made(&small("pvc-1")).0;
    drop(node.store.open_volume(&durable).unwrap());
    let staged = id("pvc-2");
    node.store.provision(&staged, &small("pvc-2")).unwrap();
    let forcing = node.made(&small("pvc-3")).0;
    let (begun, mut begin) = io::pipe().unwrap();
    let mut child = Traced::start(|| {
        thread::scope(|scope| {
            scope.spawn(|| {
                (&begun).read_exact(&mut [0]).unwrap();
                drop(node.store.open_volume(&durable).unwrap());
                node.store.announce(&staged).unwrap();
            });
            drop(node.store.open_volume(&forcing).unwrap());
        });
    });
    // The first thread stops before the kernel forces the log. The calls of the other one are not stopped.
    while child.next_call().expect("a force").number() != SYS_fsync {}
    begin.write_all(&[0]).unwrap();
    eventually("the announcement of another volume", || node.traces(&staged).contains(&"records"));
    while child.next_call().is_some() {}
}

#[test]
fn a_missing_volume_costs_no_system_calls() {
    let node = Node::new();
    let none = id("pvc-9");
    let made = calls(|| {
        assert!(node.store.open_volume(&none).is_err());
        assert!(node.store.retire(&none).is_ok());
        assert!(node.store.discard(&none).is_ok());
        assert!(matches!(node.store.announce(&none), Err(Error::Unknown { .. })));
        assert!(node.store.records().is_ok());
        assert!(node.store.complete_snapshots().is_empty());
    });
    assert!(made.is_empty(), "{made:?}");
}

/// Regression: each attempt read all inodes of the disk, and waited for a second.
#[test]
fn a_deleted_file_that_stays_open_costs_one_look_at_all_inodes() {
    let (node, id, _) = Node::with_volume(&files("pvc-1"));
    let held = File::create(node.path("live", &id).join("held")).unwrap();
    node.store.retire(&id).unwrap();
    let discard = || assert!(node.store.discard(&id).is_err());
    // These attempts are in one process, which remembers the result of the first one.
    discard();
    let look = [SYS_openat2; 3];
    let again = [SYS_quotactl_fd, SYS_ioctl, SYS_quotactl_fd];
    let mut made = calls(discard);
    // The time is a system call only with some clock sources.
    made.retain(|call| *call != SYS_clock_gettime);
    assert_eq!(made, [&look[..], &again].concat());
    drop(held);
    node.store.discard(&id).unwrap();
    assert_eq!(node.traces(&id), [""; 0]);
}

/// Regression: the copy of a snapshot used the disk without rests, at the expense of pods. The copy of a clone does not
/// rest, because a claim waits for it.
#[test]
fn the_copy_of_a_snapshot_rests_and_that_of_a_clone_does_not() {
    const PIECES: usize = 3;
    let disk = XfsDisk::with_project_quota();
    for source in [files("pvc-files"), sized("pvc-disk", THIN, SIZE)] {
        let volume = id(&source.claim.name);
        let store = open(disk.path());
        copied(&store, &source);
        let file = if source.mode.is_block() {
            File::from(store.open_volume(&volume).unwrap().image(Access::ReadWrite).unwrap())
        } else {
            file(&store, &volume, "one")
        };
        file.write_all_at(&vec![1; PIECES << 20], 0).and_then(|()| file.sync_all()).unwrap();
        drop((file, store));
        // The child is another process, and an open store would not have its changes.
        let rests = |work: &dyn Fn(&Store)| {
            let store = open(disk.path());
            without_pods(&store);
            let made = calls(|| work(&store));
            made.iter().filter(|call| [SYS_nanosleep, SYS_clock_nanosleep].contains(call)).count()
        };
        let clone = sized(&format!("{volume}-clone"), source.mode, source.size);
        let clone = Request { source: Some(volume.clone()), ..clone };
        assert_eq!(rests(&|store: &Store| drop(copied(store, &clone))), 0, "{volume}");
        let snapshot = id(&format!("{volume}-snapshot"));
        let want = snapshot_request(clone.claim.clone(), volume.clone());
        let take = |store: &Store| {
            while store.take_snapshot(&snapshot, &want).unwrap().snapshots.state != State::Announced {}
        };
        // One rest follows each piece, and one the end of the pass.
        assert!(rests(&take) > PIECES, "{volume}");
    }
}
