//! The node's program is killed while it has stopped a pod and lifted the limits of the pod's device.

use std::cell::RefCell;
use std::fs;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use csi::{Host as _, Linux};
use dir::Dir;
use ktest_support::process::{Call, parent_killed_before};
use ktest_support::{Writer, eventually, numbers};
use nix::libc::{SYS_recvfrom, SYS_sendto, SYS_write};
use nix::sys::signal::{SigSet, Signal};
use volume::{Store, Volumes as _};

use super::{Hierarchy, LIMITED, PATIENCE, line};
use crate::machine::{Node, TestDisk};
use crate::{PUBLISH, frozen, machine};

/// Messages between the freezer and its guard, and changes of limits. Each kill takes the start of a guard, and the
/// other calls change nothing outside of the process. `freeze_ktest` kills before the start of the guard.
const EFFECTIVE: [i64; 3] = [SYS_recvfrom, SYS_sendto, SYS_write];

#[tokio::test]
async fn the_pod_of_a_killed_plugin_runs_and_is_limited_again() {
    const NAMES: [&str; 1] = ["pod-1"];
    let cgroups = Hierarchy::mount();
    let mut node = Node::on_cgroups(TestDisk::new(), &cgroups.0).await;
    let volume = node.provision_block("pvc-1");
    node.store.limit_io(&volume, LIMITED).expect("limits");
    let (target, kubelet) = (node.target(PUBLISH), node.kubelet.directory.clone());
    let top = target.parent().expect("a directory");
    fs::create_dir_all(top).expect("directories");
    let pod = cgroups.make("podpod-1");
    node.publish_block("pvc-1", PUBLISH).await.expect("publish");
    let limited = line(&target, LIMITED);
    let writer = Writer::start("frozen::the_writer", &pod, top, &NAMES);
    let is_stopped = || fs::read_to_string(pod.join("cgroup.freeze")).expect("the state").trim() == "1";

    // A thread of the running plugin may hold a lock, for which a copy of this process would wait forever.
    let disk = node.end().await;
    {
        let volumes = Dir::open(&disk.path().join("volumes")).expect("open");
        let store = Arc::new(Store::open(&volumes, volume::Settings::default()).expect("a store"));
        // The calls of the plugin at its start.
        let start = || {
            let host = Linux::with_cgroups(kubelet.clone(), Arc::clone(&store), &cgroups.0).with_guard(machine::guard);
            let freezer = host.freezer().upgrade().expect("the host");
            assert_eq!(host.adopt().expect("devices"), 0);
            freezer
        };
        let (mut killed, mut calls) = (0, Vec::new());
        loop {
            let freezer = start();
            assert_eq!(cgroups.limits(), limited, "killed at the last of {calls:?}");
            let effective = RefCell::new(Vec::new());
            let counted = |call: &Call<'_>| {
                let counts = EFFECTIVE.contains(&call.number()) && cgroups.limits().is_empty();
                if counts {
                    effective.borrow_mut().push((call.number(), is_stopped()));
                }
                counts
            };
            let reached = parent_killed_before(killed, counted, || {
                // Blocked, because the signal at the end of the guard would stop this process for its tracer.
                let mut ends = SigSet::empty();
                ends.add(Signal::SIGCHLD);
                ends.thread_block().expect("it can be blocked");
                let stopped = freezer.freeze(slice::from_ref(&volume), PATIENCE).expect("the pod stops");
                stopped.thaw().expect("nothing ran");
            });
            let begin = Instant::now();
            eventually("the pod is thawed", || !is_stopped());
            let thaw = begin.elapsed();
            calls = effective.into_inner();
            assert!(thaw < Duration::from_secs(1), "{thaw:?} after {calls:?}");
            // A guard that still runs may stop the pod once more for an instant.
            eventually("the guard has ended", || frozen::guard().is_none());
            let [last] = numbers(top, &NAMES).expect("a number");
            eventually("the pod runs", || numbers(top, &NAMES).is_some_and(|[now]| now > last));
            if !reached {
                break;
            }
            assert_eq!(cgroups.limits(), "", "no process has set the limits after {calls:?}");
            killed += 1;
        }
        assert_eq!(cgroups.limits(), limited, "the freezer sets them again");
        // The request, the reply, the thaw and the limits.
        for call in [(SYS_sendto, false), (SYS_recvfrom, true), (SYS_sendto, true), (SYS_write, false)] {
            assert!(calls.contains(&call), "{call:?} in {calls:?}");
        }
    }

    drop(writer);
    let mut node = Node::on_cgroups(disk, &cgroups.0).await;
    node.unpublish("pvc-1", PUBLISH).await.expect("unpublish");
    cgroups.end();
    node.stop().await;
}
