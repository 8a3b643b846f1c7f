//! Snapshots of a filesystem volume while a pod writes to it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use volume::{ActError, Claim, Error, SnapshotRequest, State, VolumeId, Volumes as _};

use crate::kubelet::MANY;
use crate::machine::{Node, TestDisk};

const PATIENCE: Duration = Duration::from_secs(30);
const TARGET: &str = "pods/pod-of-files/volumes/kubernetes.io~csi/pvc-1/mount";
const POD: &str = "kubepods/besteffort/podpod-of-files";

/// The guard, if this program was started as one.
#[test]
#[ignore = "started by the tests"]
fn the_guard() {
    freezer::guard();
}

/// The pod, if this program was started as one: writes each number to one file, then to the other.
#[test]
#[ignore = "started by the tests"]
fn the_writer() {
    let [top, cgroup] = ["TOP", "CGROUP"].map(|name| PathBuf::from(std::env::var_os(name).expect("a path")));
    fs::write(cgroup.join("cgroup.procs"), "0").expect("a process of the pod");
    let files = ["one", "two"].map(|name| File::create(top.join(name)).expect("a file"));
    for number in 1_u64.. {
        for file in &files {
            file.write_all_at(&number.to_le_bytes(), 0).expect("write");
        }
    }
}

fn numbers(top: &Path) -> Option<[u64; 2]> {
    let number = |name: &str| Some(u64::from_le_bytes(fs::read(top.join(name)).ok()?.try_into().ok()?));
    Some([number("one")?, number("two")?])
}

fn eventually(what: &str, check: impl Fn() -> bool) {
    let begin = Instant::now();
    while !check() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn a_snapshot_stops_the_pod_that_has_the_volume() {
    let cgroups = PathBuf::from("/tmp/cgroups-of-files");
    fs::create_dir_all(&cgroups).expect("a directory");
    mount(Some("cgroup2"), &cgroups, Some("cgroup2"), MsFlags::empty(), None::<&str>).expect("mount");
    let mut node = Node::on_cgroups(TestDisk::new(), &cgroups).await;
    let volume = node.provision("pvc-1");
    let target = node.target(TARGET);
    fs::create_dir_all(target.parent().expect("a directory")).expect("directories");
    node.publish(node.kubelet.publish("pvc-1", TARGET, MANY)).await.expect("publish");

    let snapshot: VolumeId = "snapshot-1".parse().expect("an identifier");
    let claim = Claim { uid: "s".into(), namespace: "shop".into(), name: "before".into() };
    let want = SnapshotRequest { claim, class: "local".into(), source: volume, max_pause: PATIENCE };
    // Processes of a pod without a cgroup could start within the last pass.
    let error = node.store.take_snapshot(&snapshot, &want).expect_err("the pod has no cgroup");
    assert!(matches!(error, Error::Act { source: ActError::Pods(_), .. }), "{error:?}");

    let pod = cgroups.join(POD);
    fs::create_dir_all(pod.join("container")).expect("cgroups");
    let mut writer = Command::new("/proc/self/exe");
    writer.args(["--exact", "frozen::the_writer", "--ignored", "--nocapture"]).stdout(Stdio::null());
    let mut writer = writer.env("TOP", &target).env("CGROUP", pod.join("container")).spawn().expect("a process");
    eventually("the pod writes", || numbers(&target).is_some_and(|[_, two]| two > 10));
    while node.store.take_snapshot(&snapshot, &want).expect("a snapshot").into_inner().state == State::Staged {}
    let copy = node.disk.path().join("volumes/live/snapshot-1");
    let [one, two] = numbers(&copy).expect("both files");
    assert!(one == two || one == two + 1, "{one} {two}");
    eventually("the pod runs again", || numbers(&target).is_some_and(|[_, two]| two > one));
    assert_eq!(fs::read_to_string(pod.join("cgroup.freeze")).expect("the state").trim(), "0");

    fs::write(pod.join("cgroup.kill"), "1").expect("kill");
    writer.wait().expect("the end of the pod");
    node.stop().await;
}
