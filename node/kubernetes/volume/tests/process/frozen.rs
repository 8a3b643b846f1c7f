//! A process is killed while it keeps a pod frozen.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use freezer::MARK;
use ktest_support::eventually;
use ktest_support::process::{Call, parent_killed_before};
use nix::libc::{SYS_clone, SYS_clone3, SYS_futex, SYS_sendto};
use nix::sys::signal::{SigSet, Signal};
use volume::{Claim, SnapshotRequest, State, Store, Strays, Volumes as _};

use crate::cgroup::{CGROUP, Pod};
use crate::killed::may_change_files;
use crate::node::{Node, files, id, snapshot_request};

fn is_frozen() -> bool {
    fs::read_to_string(Path::new(CGROUP).join("cgroup.events")).unwrap().contains("frozen 1")
}

fn is_marked() -> bool {
    rustix::fs::getxattr(CGROUP, MARK, &mut [0; 8][..]).is_ok()
}

/// The calls of the thread that freezes the pod count if they may change files. The last pass over the files runs in
/// another thread, whose calls are not stopped. The wait for its end counts too, so that one kill comes after its start
/// and before the thaw.
#[test]
fn a_pod_runs_within_a_second_if_the_process_is_killed_while_the_pod_is_frozen() {
    let mut node = Node::new();
    let (source, _) = node.made(&files("pvc-source"));
    let pod = Pod::start(&node.path("live", &source));
    let (mut killed, mut last) = (0, 0);
    let calls = loop {
        let snapshot = id(&format!("snapshot-{killed}"));
        let claim = Claim { uid: snapshot.to_string(), namespace: "default".into(), name: "snapshot".into() };
        // The process is slow, because it is stopped at each call.
        let max_pause = Duration::from_secs(60);
        let want = SnapshotRequest { max_pause, ..snapshot_request(claim, source.clone()) };
        let take = |store: &Store| store.take_snapshot(&snapshot, &want).unwrap().snapshots.state;
        let calls = RefCell::new(Vec::new());
        let counted = |call: &Call<'_>| {
            let counts = (call.number() == SYS_futex || may_change_files(call)) && is_frozen();
            if counts {
                calls.borrow_mut().push(call.number());
            }
            counts
        };
        pod.register(&node.store);
        let reached = parent_killed_before(killed, counted, || {
            // Blocked, because the signal at the end of the guard would stop this process for its tracer.
            let mut ends = SigSet::empty();
            ends.add(Signal::SIGCHLD);
            ends.thread_block().unwrap();
            take(&node.store);
        });
        let begin = Instant::now();
        eventually("the pod is thawed", || !is_frozen());
        let calls = calls.into_inner();
        assert!(begin.elapsed() < Duration::from_secs(1), "{:?} after {calls:?}", begin.elapsed());

        node = node.restarted();
        pod.register(&node.store);
        assert_eq!(node.store.strays().unwrap(), Strays::default(), "killed at the last of {calls:?}");
        assert!((0..100).any(|_| take(&node.store) == State::Announced), "killed at the last of {calls:?}");
        assert_eq!((is_frozen(), is_marked()), (false, false), "killed at the last of {calls:?}");
        let number = Pod::number_in(&node.path("live", &snapshot));
        assert!(number > last, "{number} after {last}");
        last = number;
        node.store.remove_snapshot(&snapshot).unwrap();
        assert_eq!(node.traces(&snapshot), [""; 0], "killed at the last of {calls:?}");
        if !reached {
            break calls;
        }
        killed += 1;
    };
    // The last pass is a thread, and the thaw is a message to the guard.
    let has = |call| calls.contains(&call);
    assert!((has(SYS_clone) || has(SYS_clone3)) && has(SYS_sendto), "{calls:?}");
    assert!(killed >= 3, "killed {killed} times, {calls:?}");
    pod.writes_after(last);
}
