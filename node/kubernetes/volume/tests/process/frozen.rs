//! A process is killed while it keeps a pod frozen.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use freezer::MARK;
use ktest_support::eventually;
use ktest_support::process::{Call, parent_killed_before};
use nix::libc::{SYS_clone, SYS_clone3, SYS_ioctl, SYS_ppoll, SYS_sendto, SYS_utimensat};
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

/// Kills with even distances, at most: each takes a fraction of a second in emulation.
const KILLS: usize = 24;

/// A call that may change files while the pod is frozen.
#[derive(Clone, Copy, Debug)]
struct Step {
    call: i64,
    /// The last pass over the files runs in another thread than the freeze and the thaw.
    is_of_pass: bool,
}

/// Indices of the steps at which the process is killed: all of them, or [`KILLS`] with even distances, the start of the
/// pass and the thaw. Until the guard has thawed the pod, the process may make a few more calls after the thaw.
fn kills(steps: &[Step]) -> BTreeSet<usize> {
    let last_of = |calls: &[i64]| steps.iter().rposition(|step| !step.is_of_pass && calls.contains(&step.call));
    let start = last_of(&[SYS_clone, SYS_clone3]).expect("the pass is a thread");
    let thaw = last_of(&[SYS_sendto]).expect("the thaw is a message to the guard");
    let (last, count) = (steps.len() - 1, steps.len().min(KILLS));
    (0..count).map(|kill| kill * last / (count - 1)).chain([start, thaw]).collect()
}

/// The calls of both threads count if they may change files.
#[test]
fn a_pod_runs_within_a_second_if_the_process_is_killed_while_the_pod_is_frozen() {
    let mut node = Node::new();
    let (source, _) = node.made(&files("pvc-source"));
    let pod = Pod::start(&node.path("live", &source));
    // The first run is not killed: it shows the steps.
    let (mut pending, mut killed, mut last) = (VecDeque::from([usize::MAX]), Vec::<Step>::new(), 0);
    for run in 0.. {
        let Some(kill) = pending.pop_front() else { break };
        let snapshot = id(&format!("snapshot-{run}"));
        let claim = Claim { uid: snapshot.to_string(), namespace: "default".into(), name: "snapshot".into() };
        // The process is slow, because it is stopped at each call.
        let max_pause = Duration::from_secs(60);
        let want = SnapshotRequest { max_pause, ..snapshot_request(claim, source.clone()) };
        let take = |store: &Store| store.take_snapshot(&snapshot, &want).unwrap().snapshots.state;
        let steps = RefCell::new(Vec::new());
        let counted = |call: &Call<'_>| {
            // A wait for the guard may begin before or after the freeze.
            let counts = call.number() != SYS_ppoll && may_change_files(call) && is_frozen();
            if counts {
                steps.borrow_mut().push(Step { call: call.number(), is_of_pass: call.is_of_other_thread() });
            }
            counts
        };
        pod.register(&node.store);
        let reached = parent_killed_before(kill, counted, || {
            // Blocked, because the signal at the end of the guard would stop this process for its tracer.
            let mut ends = SigSet::empty();
            ends.add(Signal::SIGCHLD);
            ends.thread_block().unwrap();
            take(&node.store);
        });
        let begin = Instant::now();
        eventually("the pod is thawed", || !is_frozen());
        let steps = steps.into_inner();
        assert!(begin.elapsed() < Duration::from_secs(1), "{:?} after {steps:?}", begin.elapsed());

        node = node.restarted();
        pod.register(&node.store);
        assert_eq!(node.store.strays().unwrap(), Strays::default(), "killed at the last of {steps:?}");
        assert!((0..100).any(|_| take(&node.store) == State::Announced), "killed at the last of {steps:?}");
        assert_eq!((is_frozen(), is_marked()), (false, false), "killed at the last of {steps:?}");
        let number = Pod::number_in(&node.path("live", &snapshot));
        assert!(number > last, "{number} after {last}");
        last = number;
        node.store.remove_snapshot(&snapshot).unwrap();
        assert_eq!(node.traces(&snapshot), [""; 0], "killed at the last of {steps:?}");
        if kill == usize::MAX {
            pending.extend(kills(&steps));
        } else if reached {
            killed.extend(steps.last().copied());
        }
    }
    let at = |is_of_pass: bool, calls: &[i64]| {
        killed.iter().any(|step| step.is_of_pass == is_of_pass && calls.contains(&step.call))
    };
    assert!(at(false, &[SYS_clone, SYS_clone3]) && at(false, &[SYS_sendto]), "start and thaw: {killed:?}");
    // The content and the times of a file.
    assert!(at(true, &[SYS_ioctl]) && at(true, &[SYS_utimensat]), "the pass: {killed:?}");
    pod.writes_after(last);
}
