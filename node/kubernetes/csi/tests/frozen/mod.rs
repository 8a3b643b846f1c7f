//! Snapshots of volumes while a pod writes to them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ktest_support::{Writer, eventually, mount_cgroups, numbers, this_program};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prometheus::{Registry, TextEncoder};
use tonic::Code;
use volume::{
    ActError, Claim, Error, FreezeError, GroupRequest, SnapshotRequest, State, Store, VolumeId, Volumes as _,
};

use crate::kubelet::MANY;
use crate::machine::{Node, TestDisk, mounts_at};

const PATIENCE: Duration = Duration::from_secs(30);
/// Time to wait for a call, longer than a call takes.
const WAIT: Duration = Duration::from_millis(500);
const TARGET: &str = "pods/pod-of-files/volumes/kubernetes.io~csi/pvc-1/mount";
const POD: &str = "kubepods/besteffort/podpod-of-files";
const FILES: [&str; 2] = ["one", "two"];

/// The guard, if this program was started as one.
#[test]
#[ignore = "started by the tests"]
fn the_guard() {
    freezer::guard();
}

/// The pod, if this program was started as one.
#[test]
#[ignore = "started by the tests"]
fn the_writer() {
    Writer::run(|_, _| ());
}

/// Request for a snapshot of the volume. The members of a group have the same claim.
pub fn snapshot_of(source: VolumeId) -> SnapshotRequest {
    let claim = Claim { uid: "1".into(), namespace: "shop".into(), name: "before".into() };
    let (owner, sharing) = (volume::Owner::Provisioner, volume::Sharing::Temporary);
    SnapshotRequest { claim, owner, class: "local".into(), source, max_pause: PATIENCE, sharing }
}

/// Ends the pod, and removes its cgroups, because other tests use the same hierarchy.
fn end(cgroups: &Path, pod: &Path, writer: Writer) {
    drop(writer);
    for cgroup in pod.join("container").ancestors().take_while(|path| *path != cgroups) {
        fs::remove_dir(cgroup).expect("the cgroup is empty");
    }
}

fn metric(store: &Store, series: &str) -> String {
    let registry = Registry::new();
    for collector in store.calls().collectors() {
        registry.register(collector).expect("metrics have different names");
    }
    let text = TextEncoder::new().encode_to_string(&registry.gather()).expect("metrics are text");
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("{series} in:\n{text}")).to_owned()
}

/// The pause ends before it begins, so that it is too short on each machine. The pod runs again when the call returns,
/// and the snapshot leaves no trace.
fn a_pod_that_stops_too_late_runs_on(node: &Node, pod: &Path, snapshot: &VolumeId, want: &SnapshotRequest) {
    let space = node.store.space().expect("the space");
    let late = SnapshotRequest { max_pause: Duration::ZERO, ..want.clone() };
    let error = node.store.take_snapshot(snapshot, &late).expect_err("the pod stops too late");
    assert_eq!(fs::read_to_string(pod.join("cgroup.freeze")).expect("the state").trim(), "0");
    // The store returns `Late` if all processes stop before the guard compares the time.
    let is_late = match &error {
        Error::Act { source: ActError::Late { budget }, .. } => budget.is_zero(),
        Error::Act { source: ActError::Pods(cause), .. } => {
            cause.to_string() == "the processes could not be frozen in 0ns"
        }
        _ => false,
    };
    assert!(is_late, "{error:?}");

    assert_eq!(node.store.record(snapshot).expect("the records"), None);
    assert_eq!(node.store.space().expect("the space"), space);
    let volumes = node.disk.path().join("volumes");
    for place in ["pending", "records", "staging", "live", "trash", "anchors"] {
        assert!(!volumes.join(place).join(snapshot.as_str()).exists(), "{place}");
    }
    let target = node.target(TARGET);
    let [_, last] = numbers(&target, &FILES).expect("both files");
    eventually("the pod runs on", || numbers(&target, &FILES).is_some_and(|[_, two]| two > last));
}

#[tokio::test]
async fn a_snapshot_stops_the_pod_that_has_the_volume() {
    let cgroups = PathBuf::from("/tmp/cgroups-of-files");
    mount_cgroups(&cgroups);
    let mut node = Node::on_cgroups(TestDisk::new(), &cgroups).await;
    let volume = node.provision("pvc-1");
    let target = node.target(TARGET);
    fs::create_dir_all(target.parent().expect("a directory")).expect("directories");
    node.publish(node.kubelet.publish("pvc-1", TARGET, MANY)).await.expect("publish");

    let snapshot: VolumeId = "snapshot-1".parse().expect("an identifier");
    let want = snapshot_of(volume);
    // Processes of a pod without a cgroup could start during the last pass.
    let error = node.store.take_snapshot(&snapshot, &want).expect_err("the pod has no cgroup");
    assert!(matches!(error, Error::Act { source: ActError::Pods(_), .. }), "{error:?}");
    let pauses = |store: &Store| metric(store, "granary_pod_pause_duration_seconds_count");
    let seconds = |store: &Store, series: &str| metric(store, series).parse::<f64>().expect("a number");
    let pause = |store: &Store| seconds(store, "granary_pod_pause_duration_seconds_sum");
    assert_eq!(pauses(&node.store), "0", "no pod was stopped");

    let pod = cgroups.join(POD);
    let writer = Writer::start("frozen::the_writer", &pod.join("container"), &target, &FILES);
    a_pod_that_stops_too_late_runs_on(&node, &pod, &snapshot, &want);
    let late = pause(&node.store);
    assert!(pauses(&node.store) == "1" && late > 0.0, "the pause counts: {late}");
    while node.store.take_snapshot(&snapshot, &want).expect("a snapshot").snapshots.state != State::Announced {}
    let copy = node.disk.path().join("volumes/live/snapshot-1");
    let [one, two] = numbers(&copy, &FILES).expect("both files");
    assert!(one == two || one == two + 1, "{one} {two}");
    eventually("the pod runs again", || numbers(&target, &FILES).is_some_and(|[_, two]| two > one));
    assert_eq!(fs::read_to_string(pod.join("cgroup.freeze")).expect("the state").trim(), "0");
    // The pod was stopped once more, although the snapshot may have needed several passes.
    assert_eq!(pauses(&node.store), "2");
    let pause = pause(&node.store);
    let phases = ["freeze", "clone", "thaw"]
        .map(|phase| seconds(&node.store, &format!("granary_pod_pause_phase_seconds_total{{phase=\"{phase}\"}}")));
    assert!(pause > late && phases[1] > 0.0, "{pause} {late} {phases:?}");
    assert!((phases.iter().sum::<f64>() - pause).abs() < 0.001, "{pause} {phases:?}");

    end(&cgroups, &pod, writer);
    node.stop().await;
}

/// The guard, if one runs. There is at most one, because tests with a disk take turns. A guard that has ended has no
/// arguments.
pub fn guard() -> Option<Pid> {
    let is_guard = |process: &fs::DirEntry| {
        fs::read_to_string(process.path().join("cmdline")).is_ok_and(|text| text.contains("frozen::the_guard"))
    };
    let guard = fs::read_dir("/proc").expect("processes").flatten().find(is_guard)?;
    Some(Pid::from_raw(guard.file_name().to_string_lossy().parse().expect("its ID")))
}

/// The node's program and the guard were killed together.
#[tokio::test]
async fn pods_that_an_earlier_process_left_stopped_run_after_a_start() {
    // The disk comes first, so that no other test uses the hierarchy of cgroups at the same time.
    let disk = TestDisk::new();
    let (cgroups, files) = (PathBuf::from("/tmp/cgroups-of-the-killed"), PathBuf::from("/tmp/files-of-the-killed"));
    mount_cgroups(&cgroups);
    fs::create_dir_all(&files).expect("a directory");
    let pod = cgroups.join(POD);
    let writer = Writer::start("frozen::the_writer", &pod.join("container"), &files, &FILES);
    // A drop would thaw the pod.
    std::mem::forget(freezer::freeze(this_program("frozen::the_guard"), &[&pod], PATIENCE).expect("the pod stops"));
    kill(guard().expect("a guard"), Signal::SIGKILL).expect("kill the guard");
    let state = || fs::read_to_string(pod.join("cgroup.freeze")).expect("the state");
    assert_eq!(state().trim(), "1");
    let [last, _] = numbers(&files, &FILES).expect("both files");

    let node = Node::on_cgroups(disk, &cgroups).await;
    assert_eq!(state().trim(), "0");
    eventually("the pod runs again", || numbers(&files, &FILES).is_some_and(|[_, two]| two > last));

    end(&cgroups, &pod, writer);
    node.stop().await;
}

/// A pod that starts during the last pass would write to its volume.
#[tokio::test]
async fn no_pod_gets_a_volume_while_its_pods_are_stopped() {
    const DEVICE: &str = "plugins/kubernetes.io/csi/volumeDevices/publish/pvc-2/late";
    let node = Node::start().await;
    let volumes = [node.provision("pvc-1"), node.provision_block("pvc-2")];
    let targets = [TARGET, DEVICE].map(|target| node.target(target));
    for target in &targets {
        fs::create_dir_all(target.parent().expect("a directory")).expect("directories");
    }
    let freezer = node.freezer.upgrade().expect("the plugin");
    let stopped = freezer.freeze(&volumes, PATIENCE).expect("no pod has them");
    let messages = [node.kubelet.publish("pvc-1", TARGET, MANY), node.kubelet.publish_block("pvc-2", DEVICE, MANY)];
    let calls = messages.map(|message| {
        let mut client = node.client.clone();
        tokio::spawn(async move { client.node_publish_volume(message).await.map(drop) })
    });
    tokio::time::sleep(WAIT).await;
    assert!(calls.iter().all(|call| !call.is_finished()) && targets.iter().all(|target| mounts_at(target) == 0));
    // Regression: a call attached a device before it waited, and detached it if the clone took long.
    assert!(node.devices().is_empty());
    stopped.thaw().expect("nothing ran");
    for call in calls {
        call.await.expect("a result").expect("publish");
    }
    assert!(targets.iter().all(|target| mounts_at(target) == 1));
    drop(freezer);
    node.stop().await;
}

/// Regression: a clone without pods, which has no longest pause, held the connections of the kubelet. The calls for a
/// volume run one after the other, and their times added up.
#[tokio::test]
async fn the_kubelet_gets_an_answer_while_a_volume_is_cloned() {
    let mut node = Node::start().await;
    let volumes = [node.provision("pvc-1")];
    let names: Vec<_> = (0..16).map(|pod| format!("pods/pod-{pod}/volumes/kubernetes.io~csi/pvc-1/mount")).collect();
    let targets: Vec<_> = names.iter().map(|name| node.target(name)).collect();
    for target in &targets {
        fs::create_dir_all(target.parent().expect("a directory")).expect("directories");
    }
    let freezer = node.freezer.upgrade().expect("the plugin");
    let stopped = freezer.freeze(&volumes, PATIENCE).expect("no pod has it");
    let mut calls = Vec::new();
    for name in &names {
        let (mut client, message) = (node.client.clone(), node.kubelet.publish("pvc-1", name, MANY));
        calls.push(tokio::spawn(async move { client.node_publish_volume(message).await.map(drop) }));
    }
    let answers = async {
        for call in calls {
            let answer = call.await.expect("a result").map_err(|status| status.code());
            assert_eq!(answer, Err(Code::Unavailable));
        }
    };
    tokio::time::timeout(PATIENCE, answers).await.expect("all answers");
    assert!(targets.iter().all(|target| !target.exists()), "the failed calls left no target");
    stopped.thaw().expect("nothing ran");
    let message = node.kubelet.publish("pvc-1", &names[0], MANY);
    node.publish(message).await.expect("publish");
    assert_eq!(mounts_at(&targets[0]), 1);
    drop(freezer);
    node.stop().await;
}

#[tokio::test]
async fn a_group_stops_the_pod_that_has_its_devices() {
    const VOLUMES: [&str; 2] = ["pvc-1", "pvc-2"];
    const DEVICES: &str = "plugins/kubernetes.io/csi/volumeDevices/publish";
    const POD: &str = "kubepods/besteffort/podpod-of-devices";
    let cgroups = PathBuf::from("/tmp/cgroups-of-devices");
    mount_cgroups(&cgroups);
    let mut node = Node::on_cgroups(TestDisk::new(), &cgroups).await;
    let mut members = BTreeMap::new();
    for volume in VOLUMES {
        let source = node.provision_block(volume);
        let target = format!("{DEVICES}/{volume}/pod-of-devices");
        fs::create_dir_all(node.target(&target).parent().expect("a directory")).expect("directories");
        node.publish(node.kubelet.publish_block(volume, &target, MANY)).await.expect("publish");
        members.insert(format!("group-1-{volume}").parse::<VolumeId>().expect("an identifier"), snapshot_of(source));
    }
    let want = GroupRequest { id: "group-1".parse().expect("an identifier"), members, max_pause: PATIENCE };
    let error = node.store.take_group(&want).expect_err("the pod has no cgroup");
    assert!(matches!(error, Error::Freeze { source: FreezeError::Freeze(_), .. }), "{error:?}");

    let pod = cgroups.join(POD);
    let top = node.target(DEVICES);
    let names = ["pvc-1/pod-of-devices", "pvc-2/pod-of-devices"];
    let writer = Writer::start("frozen::the_writer", &pod.join("container"), &top, &names);
    let live = node.disk.path().join("volumes/live");
    for round in 0..3 {
        let shares = |one: &volume::Record| one.state != State::Announced;
        while node.store.take_group(&want).expect("a group").snapshots.values().any(shares) {}
        let [one, two] = numbers(&live, &["group-1-pvc-1/image", "group-1-pvc-2/image"]).expect("both images");
        assert!(one == two || one == two + 1, "{round}: {one} {two}");
        eventually("the pod runs again", || numbers(&live, &["pvc-2/image"]).is_some_and(|[two]| two > one));
        assert_eq!(fs::read_to_string(pod.join("cgroup.freeze")).expect("the state").trim(), "0");
        for id in want.members.keys() {
            node.store.remove_snapshot(id).expect("remove");
        }
    }

    end(&cgroups, &pod, writer);
    node.stop().await;
}
