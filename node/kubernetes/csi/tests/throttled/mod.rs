//! Limits of the I/O of pods on published devices.

mod killed;
#[expect(unsafe_code, reason = "nix has no safe mapping of a file")]
mod sys;
mod tenant;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::slice;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use csi::{Host as _, Linux, Step};
use ktest_support::eventually;
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{major, minor};
use tonic::Code;
use units::Bytes;
use volume::{IoLimits, Volumes as _};

use crate::machine::{Node, TestDisk};
use crate::throttled::tenant::{Window, Work, work_if_started_so};
use crate::{PUBLISH, look};

const BYTES: Bytes = Bytes::new(2 << 20);
const LIMITED: IoLimits = IoLimits { write_bytes: Some(BYTES), read_bytes: Some(BYTES), ..IoLimits::NONE };
const FASTER: IoLimits = IoLimits { write_bytes: Some(Bytes::new(3 << 20)), ..IoLimits::NONE };
const OPERATIONS: u32 = 100;
const FEW: IoLimits =
    IoLimits { write_operations: Some(OPERATIONS), read_operations: Some(OPERATIONS), ..IoLimits::NONE };
/// Slow enough that a MiB takes 16 seconds.
const SLOWEST: IoLimits = IoLimits { write_bytes: Some(Bytes::new(64 << 10)), ..IoLimits::NONE };
/// The target of another volume of the first pod.
const OTHER: &str = "plugins/kubernetes.io/csi/volumeDevices/publish/pvc-2/pod-1";
const SECOND: &str = "plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/pod-2";
const PATIENCE: Duration = Duration::from_secs(30);
/// Attempts to reach a rate: on a busy machine, requests are delayed and the rate is too low.
const ATTEMPTS: usize = 5;

const TEST: &str = "throttled::pods_read_and_write_as_fast_as_the_class_allows";
const TEST_OF_WAITING: &str = "throttled::a_pod_that_waits_for_limited_io_is_stopped";

/// A cgroup hierarchy with the controllers `io` and `memory` in the cgroups of pods, as the kubelet creates it. The
/// controller `memory` gives writeback an owner.
struct Hierarchy(PathBuf);

impl Hierarchy {
    fn mount() -> Self {
        let root = PathBuf::from("/tmp/cgroup");
        // Another test may have mounted the hierarchy, and the kernel rejects a second mount at the same place
        // (mount(2), EBUSY).
        if root.join("cgroup.procs").exists() {
            return Self(root);
        }
        fs::create_dir_all(&root).expect("a directory");
        mount(Some("cgroup2"), &root, Some("cgroup2"), MsFlags::empty(), None::<&str>).expect("mount");
        Self(root)
    }

    /// Creates the cgroup of a pod.
    fn make(&self, pod: &str) -> PathBuf {
        let mut path = self.0.clone();
        for part in ["kubepods", "burstable", pod] {
            fs::write(path.join("cgroup.subtree_control"), "+io +memory").expect("the controllers");
            path.push(part);
            fs::create_dir_all(&path).expect("a cgroup");
        }
        path
    }

    fn limits(&self) -> String {
        fs::read_to_string(self.0.join("kubepods/io.max")).expect("limits")
    }

    /// Removes the cgroups of all pods, because other tests use the same hierarchy. Their processes have ended.
    fn end(self) {
        let class = self.0.join("kubepods/burstable");
        let entries: Vec<_> = fs::read_dir(&class).expect("cgroups").flatten().map(|entry| entry.path()).collect();
        let pods = entries.into_iter().filter(|path| path.is_dir());
        for cgroup in pods.chain([class, self.0.join("kubepods")]) {
            fs::remove_dir(cgroup).expect("the cgroup is empty");
        }
    }
}

fn line(device: &Path, IoLimits { read_operations, write_operations, read_bytes, write_bytes }: IoLimits) -> String {
    let text = |limit: Option<u64>| limit.map_or_else(|| "max".to_owned(), |limit| limit.to_string());
    let [rbps, wbps] = [read_bytes, write_bytes].map(|limit| text(limit.map(Bytes::get)));
    let [riops, wiops] = [read_operations, write_operations].map(|limit| text(limit.map(u64::from)));
    let device = fs::metadata(device).expect("the device").rdev();
    format!("{}:{} rbps={rbps} wbps={wbps} riops={riops} wiops={wiops}\n", major(device), minor(device))
}

/// Fails unless a process of the pod reads or writes as fast as the limit allows, with the tolerance of the window.
/// `limit` is in bytes per second.
fn measure(pod: &Path, device: &Path, work: Work, limit: u64, window: Window) {
    let limit = limit * 1000 / u64::try_from(work.size()).expect("small");
    let mut slow = Vec::new();
    while slow.len() < ATTEMPTS {
        let found = tenant::rate(TEST, pod, device, work, window);
        println!("{work:?}: {found} operations in 1000 s, the limit is {limit}");
        assert!(found <= limit * (100 + window.percent) / 100, "{work:?}: {found} of {limit}");
        if found >= limit * (100 - window.percent) / 100 {
            return;
        }
        slow.push(found);
    }
    panic!("{work:?}: {slow:?} of {limit}");
}

/// [`measure`] of reads and writes at the same time: each direction has a separate limit.
fn measure_both(pod: &Path, device: &Path, works: [Work; 2], limit: u64) {
    thread::scope(|scope| {
        for work in works {
            scope.spawn(move || measure(pod, device, work, limit, Window::DOCUMENTED));
        }
    });
}

#[tokio::test]
async fn pods_read_and_write_as_fast_as_the_class_allows() {
    if work_if_started_so() {
        return;
    }
    let cgroups = Hierarchy::mount();
    let mut node = Node::on_cgroups(TestDisk::new(), &cgroups.0).await;
    let volume = node.provision_block("pvc-1");
    assert_eq!(node.store.limit_io(&volume, LIMITED).expect("limits").into_inner().io, LIMITED);
    let target = node.target(PUBLISH);
    fs::create_dir_all(target.parent().expect("a directory")).expect("directories");

    // The kubelet has not created the pod's cgroup.
    assert_eq!(node.publish_block("pvc-1", PUBLISH).await, Err(Code::Unavailable));
    assert!(!target.exists() && node.devices().is_empty(), "nothing stays");

    let pod = cgroups.make("podpod-1");
    node.publish_block("pvc-1", PUBLISH).await.expect("publish");
    assert_eq!(cgroups.limits(), line(&target, LIMITED));
    // The limits of each device are separate, so two devices are measured at the same time.
    let other = node.provision_block("pvc-2");
    let device = node.target(OTHER);
    fs::create_dir_all(device.parent().expect("a directory")).expect("directories");
    node.store.limit_io(&other, LIMITED).expect("limits");
    node.publish_block("pvc-2", OTHER).await.expect("publish");
    thread::scope(|scope| {
        scope.spawn(|| measure_both(&pod, &device, [Work::DirectWrites, Work::DirectReads], BYTES.get()));
        measure_both(&pod, &target, [Work::Writes, Work::Reads], BYTES.get());
    });
    node.store.limit_io(&other, FEW).expect("limits");
    let small = [Work::SmallDirectWrites, Work::SmallDirectReads];
    let mapped = [Work::MappedWrites, Work::MappedReads];
    thread::scope(|scope| {
        scope.spawn(|| measure_both(&pod, &device, small, u64::from(OPERATIONS) * 4096));
        measure_both(&pod, &target, mapped, BYTES.get());
    });
    node.unpublish("pvc-2", OTHER).await.expect("unpublish");

    // The limits apply in the next process, which sets them again if another program changed them.
    let mut node = Node::on_cgroups(node.end().await, &cgroups.0).await;
    assert_eq!(cgroups.limits(), line(&target, LIMITED));
    fs::write(cgroups.0.join("kubepods/io.max"), line(&target, IoLimits::NONE)).expect("another program");
    let begin = Instant::now();
    while cgroups.limits() != line(&target, LIMITED) {
        assert!(begin.elapsed() < PATIENCE, "{:?}", cgroups.limits());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    // The first pod owns the writeback, and ends while the second one has the device.
    let second = cgroups.make("podpod-2");
    node.publish_block("pvc-1", SECOND).await.expect("publish");
    node.unpublish("pvc-1", PUBLISH).await.expect("unpublish");
    fs::remove_dir(&pod).expect("its processes ended");
    let target = node.target(SECOND);
    // After a restart of both the plugin and the pod, the limits are as accurate as before. Buffered writes come first,
    // because the kernel can move the writeback out of the removed cgroup in the background.
    measure_both(&second, &target, [Work::Writes, Work::Reads], BYTES.get());
    measure_both(&second, &target, mapped, BYTES.get());
    measure_both(&second, &target, [Work::DirectWrites, Work::DirectReads], BYTES.get());

    // A change applies at once, also to the writeback that the first pod owned.
    node.store.limit_io(&volume, FASTER).expect("limits");
    assert_eq!(cgroups.limits(), line(&target, FASTER));
    measure(&second, &target, Work::Writes, 3 << 20, Window::SHORT);
    node.store.limit_io(&volume, FEW).expect("limits");
    assert_eq!(cgroups.limits(), line(&target, FEW));

    // The next process reads the limits in the record.
    let disk = node.end().await;
    fs::write(cgroups.0.join("kubepods/io.max"), line(&target, IoLimits::NONE)).expect("another program");
    let mut node = Node::on_cgroups(disk, &cgroups.0).await;
    assert_eq!(cgroups.limits(), line(&target, FEW));
    measure_both(&second, &target, small, u64::from(OPERATIONS) * 4096);

    // The limits end with the device.
    node.unpublish("pvc-1", SECOND).await.expect("unpublish");
    assert!(cgroups.limits().is_empty() && node.devices().is_empty());
    node.publish_block("pvc-1", SECOND).await.expect("publish");
    assert_eq!(cgroups.limits(), line(&target, FEW));
    node.store.limit_io(&volume, IoLimits::NONE).expect("no limits");
    assert_eq!(cgroups.limits(), "");
    node.store.limit_io(&volume, LIMITED).expect("limits");
    assert_eq!(cgroups.limits(), line(&target, LIMITED));

    // A shutdown of the node removes the limits, so that it does not wait for slow writeback of a tenant's dirty pages.
    node.plugin.close();
    assert_eq!(cgroups.limits(), "");

    // The next device of a volume without limits has no limits.
    node.unpublish("pvc-1", SECOND).await.expect("unpublish");
    node.store.limit_io(&volume, IoLimits::NONE).expect("no limits");
    node.publish_block("pvc-1", SECOND).await.expect("publish");
    assert_eq!(cgroups.limits(), "");
    node.unpublish("pvc-1", SECOND).await.expect("unpublish");
    cgroups.end();
    node.stop().await;
}

/// Whether a thread of the pod waits uninterruptibly, proc_pid_stat(5).
fn waits_for_io(pod: &Path) -> bool {
    let processes = fs::read_to_string(pod.join("cgroup.procs")).expect("processes");
    let tasks =
        processes.lines().flat_map(|process| fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten());
    let is_waiting =
        |task: fs::DirEntry| fs::read_to_string(task.path().join("stat")).is_ok_and(|stat| stat.contains(") D "));
    tasks.flatten().any(is_waiting)
}

/// Regression: the pod froze only after its write had ended, and the snapshot exceeded the budget of the pause.
#[tokio::test]
async fn a_pod_that_waits_for_limited_io_is_stopped() {
    const BUDGET: Duration = Duration::from_secs(5);
    if work_if_started_so() {
        return;
    }
    let cgroups = Hierarchy::mount();
    let mut node = Node::on_cgroups(TestDisk::new(), &cgroups.0).await;
    let volume = node.provision_block("pvc-1");
    node.store.limit_io(&volume, SLOWEST).expect("limits");
    let target = node.target(PUBLISH);
    fs::create_dir_all(target.parent().expect("a directory")).expect("directories");
    let pod = cgroups.make("podpod-1");
    node.publish_block("pvc-1", PUBLISH).await.expect("publish");
    let mut process = tenant::tenant(TEST_OF_WAITING, &pod, &target, Work::Writes, Window::SHORT);
    let mut process = process.stdout(Stdio::null()).spawn().expect("a process");
    // Several checks in a row, because the process also waits for a moment while its program is read from the disk.
    eventually("the pod waits for its write", || {
        (0..5).all(|_| {
            thread::sleep(Duration::from_millis(100));
            waits_for_io(&pod)
        })
    });

    let freezer = node.freezer.upgrade().expect("the plugin");
    let stopped = freezer.freeze(slice::from_ref(&volume), BUDGET).expect("the pod stops");
    assert_eq!(cgroups.limits(), "");
    // The plugin compares the limits in this time.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(cgroups.limits(), "");
    stopped.thaw().expect("nothing ran");
    assert_eq!(cgroups.limits(), line(&target, SLOWEST));

    // Without limits, the process need not wait for its write to end.
    node.store.limit_io(&volume, IoLimits::NONE).expect("no limits");
    process.kill().and_then(|()| process.wait()).expect("the end of the process");
    node.unpublish("pvc-1", PUBLISH).await.expect("unpublish");
    cgroups.end();
    drop(freezer);
    node.stop().await;
}

/// Two pods share a device with limits, and two snapshots freeze them.
#[tokio::test]
async fn limits_stay_lifted_until_the_last_pod_of_the_device_runs() {
    let cgroups = Hierarchy::mount();
    let mut node = Node::on_cgroups(TestDisk::new(), &cgroups.0).await;
    let shared = node.provision_block("pvc-1");
    node.store.limit_io(&shared, LIMITED).expect("limits");
    let target = |claim: &str, pod: &str| PUBLISH.replace("pvc-1", claim).replace("pod-1", pod);
    for pod in ["podpod-1", "podpod-2"] {
        cgroups.make(pod);
    }
    let targets = [("pvc-1", "pod-1"), ("pvc-1", "pod-2"), ("pvc-2", "pod-1"), ("pvc-3", "pod-2")];
    let own = ["pvc-2", "pvc-3"].map(|claim| node.provision_block(claim));
    for (claim, pod) in targets {
        let path = node.target(&target(claim, pod));
        fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
        node.publish_block(claim, &target(claim, pod)).await.expect("publish");
    }
    let limited = line(&node.target(PUBLISH), LIMITED);
    assert_eq!(cgroups.limits(), limited);

    let freezer = node.freezer.upgrade().expect("the plugin");
    let [first, second] = own.map(|id| freezer.freeze(slice::from_ref(&id), PATIENCE).expect("the pod stops"));
    assert_eq!(cgroups.limits(), "");
    first.thaw().expect("nothing ran");
    assert_eq!(cgroups.limits(), "");
    second.thaw().expect("nothing ran");
    assert_eq!(cgroups.limits(), limited);

    for (claim, pod) in targets {
        node.unpublish(claim, &target(claim, pod)).await.expect("unpublish");
    }
    cgroups.end();
    drop(freezer);
    node.stop().await;
}

/// Regression: the next plugin wrote the device's dirty pages as slowly as the limits allowed, before it served a call.
#[tokio::test]
async fn the_limited_device_of_a_killed_plugin_is_detached_without_limits() {
    let cgroups = PathBuf::from("/tmp/files");
    let file = cgroups.join("kubepods/io.max");
    fs::create_dir_all(cgroups.join("kubepods")).expect("directories");
    fs::write(cgroups.join("cgroup.controllers"), "io").expect("write");
    fs::write(&file, "").expect("write");
    let limits = || fs::read_to_string(&file).expect("limits");
    let node = Node::on_cgroups(TestDisk::new(), &cgroups).await;
    let volume = node.provision_block("pvc-1");
    node.store.limit_io(&volume, LIMITED).expect("limits");
    let plugin = || Linux::with_cgroups(node.kubelet.directory.clone(), Arc::clone(&node.store), &cgroups);
    let killed = plugin();
    let mut at = look(&killed, &volume, &node.target("device"), &node.kubelet.directory);
    for step in [Step::Attach { read_only: false }, Step::Limit] {
        killed.act(&mut at, step).expect("act");
    }
    drop((at, killed));
    assert!(limits().contains(&format!("wbps={}", BYTES.get())), "{}", limits());
    plugin().release(&volume).expect("release");
    assert!(limits().contains("wbps=max"), "{}", limits());
    assert!(node.devices().is_empty());
    node.stop().await;
}
