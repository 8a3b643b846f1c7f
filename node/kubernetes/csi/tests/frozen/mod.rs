//! Snapshots of volumes while a pod writes to them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::libc;
use nix::mount::{MsFlags, mount};
use volume::{ActError, Claim, Error, FreezeError, GroupRequest, SnapshotRequest, State, VolumeId, Volumes as _};

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

/// The same on two devices. A write has ended when the disk has it.
#[test]
#[ignore = "started by the tests"]
fn the_writer_of_devices() {
    let [one, two, cgroup] =
        ["ONE", "TWO", "CGROUP"].map(|name| PathBuf::from(std::env::var_os(name).expect("a path")));
    fs::write(cgroup.join("cgroup.procs"), "0").expect("a process of the pod");
    let open = |path| File::options().write(true).custom_flags(libc::O_DSYNC).open(path).expect("a device");
    let devices = [one, two].map(open);
    for number in 1_u64.. {
        for device in &devices {
            device.write_all_at(&number.to_le_bytes(), 0).expect("write");
        }
    }
}

fn number_at(path: &Path) -> u64 {
    let mut number = [0; 8];
    File::open(path).expect("an image").read_exact_at(&mut number, 0).expect("a number");
    u64::from_le_bytes(number)
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

/// Ends the pod, and removes its cgroups: other tests have the same hierarchy.
fn end(cgroups: &Path, pod: &Path, mut writer: Child) {
    fs::write(pod.join("cgroup.kill"), "1").expect("kill");
    writer.wait().expect("the end of the pod");
    for cgroup in pod.join("container").ancestors().take_while(|path| *path != cgroups) {
        fs::remove_dir(cgroup).expect("the cgroup is empty");
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
    let want = SnapshotRequest {
        claim,
        owner: volume::Owner::Provisioner,
        class: "local".into(),
        source: volume,
        max_pause: PATIENCE,
    };
    // Processes of a pod without a cgroup could start within the last pass.
    let error = node.store.take_snapshot(&snapshot, &want).expect_err("the pod has no cgroup");
    assert!(matches!(error, Error::Act { source: ActError::Pods(_), .. }), "{error:?}");

    let pod = cgroups.join(POD);
    fs::create_dir_all(pod.join("container")).expect("cgroups");
    let mut writer = Command::new("/proc/self/exe");
    writer.args(["--exact", "frozen::the_writer", "--ignored", "--nocapture"]).stdout(Stdio::null());
    let writer = writer.env("TOP", &target).env("CGROUP", pod.join("container")).spawn().expect("a process");
    eventually("the pod writes", || numbers(&target).is_some_and(|[_, two]| two > 10));
    while node.store.take_snapshot(&snapshot, &want).expect("a snapshot").into_inner().state == State::Staged {}
    let copy = node.disk.path().join("volumes/live/snapshot-1");
    let [one, two] = numbers(&copy).expect("both files");
    assert!(one == two || one == two + 1, "{one} {two}");
    eventually("the pod runs again", || numbers(&target).is_some_and(|[_, two]| two > one));
    assert_eq!(fs::read_to_string(pod.join("cgroup.freeze")).expect("the state").trim(), "0");

    end(&cgroups, &pod, writer);
    node.stop().await;
}

#[tokio::test]
async fn a_group_stops_the_pod_that_has_its_devices() {
    const VOLUMES: [&str; 2] = ["pvc-1", "pvc-2"];
    const POD: &str = "kubepods/besteffort/podpod-of-devices";
    let cgroups = PathBuf::from("/tmp/cgroups-of-devices");
    fs::create_dir_all(&cgroups).expect("a directory");
    mount(Some("cgroup2"), &cgroups, Some("cgroup2"), MsFlags::empty(), None::<&str>).expect("mount");
    let mut node = Node::on_cgroups(TestDisk::new(), &cgroups).await;
    let mut members = BTreeMap::new();
    let mut targets = Vec::new();
    for volume in VOLUMES {
        let source = node.provision_block(volume);
        let target = format!("plugins/kubernetes.io/csi/volumeDevices/publish/{volume}/pod-of-devices");
        fs::create_dir_all(node.target(&target).parent().expect("a directory")).expect("directories");
        node.publish(node.kubelet.publish_block(volume, &target, MANY)).await.expect("publish");
        targets.push(node.target(&target));
        let claim = Claim { uid: "g".into(), namespace: "shop".into(), name: "both".into() };
        let want = SnapshotRequest {
            claim,
            owner: volume::Owner::Provisioner,
            class: "local".into(),
            source,
            max_pause: PATIENCE,
        };
        members.insert(format!("group-1-{volume}").parse::<VolumeId>().expect("an identifier"), want);
    }
    let want = GroupRequest { id: "group-1".parse().expect("an identifier"), members, max_pause: PATIENCE };
    let error = node.store.take_group(&want).expect_err("the pod has no cgroup");
    assert!(matches!(error, Error::Freeze { source: FreezeError::Freeze(_), .. }), "{error:?}");

    let pod = cgroups.join(POD);
    fs::create_dir_all(pod.join("container")).expect("cgroups");
    let mut writer = Command::new("/proc/self/exe");
    writer.args(["--exact", "frozen::the_writer_of_devices", "--ignored", "--nocapture"]).stdout(Stdio::null());
    writer.env("ONE", &targets[0]).env("TWO", &targets[1]).env("CGROUP", pod.join("container"));
    let writer = writer.spawn().expect("a process");
    let image = |place: &str, id: &str| node.disk.path().join(format!("volumes/{place}/{id}/image"));
    eventually("the pod writes", || number_at(&image("live", "pvc-2")) > 10);
    for round in 0..3 {
        while node.store.take_group(&want).expect("a group").into_inner().values().any(|one| one.state == State::Staged)
        {
        }
        let [one, two] = VOLUMES.map(|volume| number_at(&image("live", &format!("group-1-{volume}"))));
        assert!(one == two || one == two + 1, "{round}: {one} {two}");
        eventually("the pod runs again", || number_at(&image("live", "pvc-2")) > one);
        assert_eq!(fs::read_to_string(pod.join("cgroup.freeze")).expect("the state").trim(), "0");
        for id in want.members.keys() {
            node.store.remove_snapshot(id).expect("remove");
        }
    }

    end(&cgroups, &pod, writer);
    node.stop().await;
}
