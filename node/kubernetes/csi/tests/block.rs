//! Block volumes on a real disk: images on XFS, loop devices, mounted nodes. Runs as root in a separate virtual
//! machine.

mod detach;
mod frozen;
mod kubelet;
mod machine;
mod throttled;
mod traced;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use csi::{Host, Linux, LookRequest, Mode, Publish, Purpose, Shape, Sharing, Step, TargetPath};
use dir::Dir;
use frozen::snapshot_of;
use kubelet::MANY;
use loopdev::{Attached, BlockSize, Config, Control, Detach, Device, Number, Numbers};
use machine::{Node, SIZE, mounted, mounts_at};
use mount::{Attributes, Filesystem};
use nix::libc;
use nix::mount::MsFlags;
use proto::csi::NodePublishVolumeRequest;
use proto::csi::volume_capability::access_mode;
use proto::csi::volume_usage::Unit;
use tonic::Code;
use units::Bytes;
use volume::{Access, Allocation, State, Store, VolumeId, Volumes as _};

const NODE: Attributes = Attributes { no_dev: false, ..Attributes::INERT };

/// Target where the plugin publishes, and place where the kubelet mounts the node again, both below the kubelet's
/// directory.
const PUBLISH: &str = "plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/pod-1";
const MAP: &str = "plugins/kubernetes.io/csi/volumeDevices/pvc-1/dev/pod-1";

impl Node {
    fn devices(&self) -> Vec<Attached> {
        self.disk.devices()
    }

    fn image(&self, volume: &VolumeId) -> File {
        let opened = self.store.open_volume(volume).expect("the volume");
        opened.image(Access::ReadWrite).expect("its image").into()
    }

    async fn publish_block(&mut self, volume: &str, target: &str) -> Result<(), Code> {
        self.publish(self.kubelet.publish_block(volume, target, MANY)).await
    }

    async fn publish_read_only(&mut self, volume: &str, target: &str) -> Result<(), Code> {
        let message = self.kubelet.publish_block(volume, target, MANY);
        self.publish(NodePublishVolumeRequest { readonly: true, ..message }).await
    }

    /// Unpublishes the last target, and stops the node.
    async fn finish(mut self, volume: &str, target: &str) {
        self.unpublish(volume, target).await.expect("unpublish");
        assert!(self.devices().is_empty());
        self.stop().await;
    }

    /// Creates the kubelet's mount after a publish. Without our patch, the kubelet also attaches a second loop device.
    fn map(&self, target: &str) -> PathBuf {
        let map = self.target(MAP);
        fs::create_dir_all(map.parent().expect("a directory")).expect("directories");
        File::create(&map).expect("a file");
        let (from, flags) = (self.target(target), MsFlags::MS_BIND);
        nix::mount::mount(Some(&from), &map, None::<&str>, flags, None::<&str>).expect("bind");
        map
    }
}

fn look(host: &Linux, volume: &VolumeId, target: &Path, kubelet: &Path) -> <Linux as Host>::At {
    let target = TargetPath::parse(&target.display().to_string(), kubelet).expect("a path");
    let purpose = Purpose::Publish { mode: Mode::Block, read_only: false, sharing: Sharing::ManyTargets };
    host.look(LookRequest { volume, target: &target, purpose }).expect("look").0
}

const PUBLISH_STEPS: [Step; 3] = [Step::CreateTarget(Shape::File), Step::Attach { read_only: false }, Step::Bind(NODE)];

fn losetup(path: &Path) -> Device {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("open");
    Control::open().expect("the driver").attach(&file, &Config::default()).expect("attach")
}

fn detach(path: &Path) -> Detach {
    let device = Device::open(path).expect("a device");
    let backing = device.backing().expect("attached");
    device.detach_from(backing).expect("detach")
}

fn write(path: &Path, text: &[u8]) {
    let mut file = OpenOptions::new().write(true).open(path).expect("open to write");
    file.write_all(text).and_then(|()| file.sync_all()).expect("write");
}

fn read(path: &Path) -> Vec<u8> {
    let mut found = vec![0; 5];
    File::open(path).expect("open").read_exact(&mut found).expect("read");
    found
}

fn exists(device: Number) -> bool {
    Path::new("/sys/block").join(device.to_string()).exists()
}

fn numbers() -> BTreeSet<u32> {
    let devices = fs::read_dir("/sys/block").expect("devices").map(|entry| entry.expect("a device").file_name());
    devices.filter_map(|name| name.to_str()?.strip_prefix("loop")?.parse().ok()).collect()
}

fn is_device(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

#[tokio::test]
async fn a_snapshot_is_not_published() {
    let (mut node, source) = Node::with_block("pvc-1").await;
    let want = snapshot_of(source);
    let id: VolumeId = "snapshot-1".parse().expect("an identifier");
    while node.store.take_snapshot(&id, &want).expect("a snapshot").snapshots.state != State::Announced {}
    assert_eq!(node.publish_block("snapshot-1", "device").await, Err(Code::NotFound));
    assert_eq!(node.publish_read_only("snapshot-1", "device").await, Err(Code::NotFound));
    assert!(node.devices().is_empty() && !node.target("device").exists());
    node.stop().await;
}

#[tokio::test]
async fn a_volume_has_one_device_and_no_node_on_the_disk() {
    let (mut node, _) = Node::with_block("pvc-1").await;
    let target = node.target("device");
    for _ in 0..2 {
        node.publish_block("pvc-1", "device").await.expect("publish");
        assert_eq!((mounted(&target), mounts_at(&target)), (Some(NODE), 1));
        let [device] = node.devices()[..] else { panic!("{:?}", node.devices()) };
        assert_eq!(device.status.size, SIZE);
        assert!(device.status.config.direct_io && !device.status.config.read_only);
    }
    write(&target, b"hello");
    assert_eq!(read(&target), b"hello");

    mount::unmount(&target).expect("what a reboot does");
    let below = fs::symlink_metadata(&target).expect("it is there");
    assert!(below.is_file() && below.len() == 0);
    node.publish_block("pvc-1", "device").await.expect("publish after the reboot");
    assert_eq!(read(&target), b"hello");
    assert_eq!(node.devices().len(), 1);

    for _ in 0..2 {
        node.unpublish("pvc-1", "device").await.expect("unpublish");
        assert!(!target.exists() && node.devices().is_empty());
    }
    node.stop().await;
}

#[tokio::test]
async fn the_kubelets_own_mount_is_not_a_target() {
    let (mut node, _) = Node::with_block("pvc-1").await;
    fs::create_dir_all(node.target(PUBLISH).parent().expect("a directory")).expect("directories");
    let single = access_mode::Mode::SingleNodeSingleWriter;
    let publish = |target| node.kubelet.publish_block("pvc-1", target, single);
    let (first, second) = (publish(PUBLISH), publish("b"));
    node.publish(first.clone()).await.expect("publish");
    let map = node.map(PUBLISH);
    node.publish(first).await.expect("publish again");
    assert_eq!(node.publish(second.clone()).await, Err(Code::FailedPrecondition));
    assert!(!node.target("b").exists());

    let stats = node.client.node_get_volume_stats(node.kubelet.stats("pvc-1", MAP)).await.expect("stats").into_inner();
    let size = i64::try_from(SIZE.get()).expect("small");
    let [usage] = &stats.usage[..] else { panic!("{:?}", stats.usage) };
    assert_eq!((usage.unit(), usage.total), (Unit::Bytes, size));
    assert!(!stats.volume_condition.expect("a condition").abnormal);

    let former = Device::open(&map).expect("a device").number();
    node.unpublish("pvc-1", PUBLISH).await.expect("unpublish");
    node.publish(second).await.expect("it has no target now");
    assert!(exists(former), "a mount shows its node");
    assert_ne!(Device::open(node.target("b")).expect("a device").number(), former);
    node.finish("pvc-1", "b").await;
}

#[tokio::test]
async fn devices_grow_while_they_are_open() {
    let (mut node, volume) = Node::with_block("pvc-1").await;
    node.publish_block("pvc-1", "rw").await.expect("publish");
    node.publish_read_only("pvc-1", "ro").await.expect("publish");
    let held = OpenOptions::new().write(true).open(node.target("rw")).expect("open");
    let double = SIZE.checked_mul(2).expect("it fits");
    let wanted = i64::try_from(double.get()).expect("small");
    let gone = "plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/gone";
    let message = node.kubelet.expand("pvc-1", gone, Some((wanted, 0)));
    let early = node.client.node_expand_volume(message.clone()).await.expect_err("the image did not grow yet");
    assert_eq!(early.code(), Code::OutOfRange);

    node.store.expand(&volume, double).expect("the provisioner grows the image");
    let stats = node.client.node_get_volume_stats(node.kubelet.stats("pvc-1", "rw")).await.expect("stats").into_inner();
    assert!(stats.volume_condition.expect("a condition").abnormal, "not finished");
    for target in ["rw", gone] {
        let message = node.kubelet.expand("pvc-1", target, Some((wanted, 0)));
        let answer = node.client.node_expand_volume(message).await.expect("expand").into_inner();
        assert_eq!(answer.capacity_bytes, wanted, "{target}");
    }
    assert!(node.devices().iter().all(|device| device.status.size == double), "{:?}", node.devices());
    std::os::unix::fs::FileExt::write_all_at(&held, b"end", double.get() - 3).expect("write at the new end");
    drop(held);
    for target in ["rw", "ro"] {
        node.unpublish("pvc-1", target).await.expect("unpublish");
    }
    let message = node.kubelet.expand("pvc-1", "rw", None);
    assert_eq!(node.client.node_expand_volume(message).await.expect_err("not there").code(), Code::NotFound);
    node.stop().await;
}

#[tokio::test]
async fn a_detached_device_is_reported_and_replaced() {
    let (mut node, _) = Node::with_block("pvc-1").await;
    let target = node.target("device");
    node.publish_block("pvc-1", "device").await.expect("publish");
    write(&target, b"hello");
    node.plugin.close();
    assert_eq!((node.devices().len(), read(&target).as_slice()), (1, &b"hello"[..]), "the end of the node detaches it");
    assert_eq!(detach(&target), Detach::Detached);

    let message = node.kubelet.stats("pvc-1", "device");
    let stats = node.client.node_get_volume_stats(message).await.expect("stats").into_inner();
    let condition = stats.volume_condition.expect("a condition");
    assert!(condition.abnormal && condition.message.contains("was detached"), "{}", condition.message);

    node.publish_block("pvc-1", "device").await.expect("publish again");
    assert_eq!((read(&target).as_slice(), mounts_at(&target)), (&b"hello"[..], 1));
    node.plugin.close();
    assert_eq!(detach(&target), Detach::Detached);
    node.unpublish("pvc-1", "device").await.expect("unpublish");
    assert!(!target.exists() && node.devices().is_empty());
    node.stop().await;
}

#[tokio::test]
async fn a_stale_node_never_shows_another_volume() {
    let (mut node, _) = Node::with_block("pvc-1").await;
    node.provision_block("pvc-2");
    let (first, second) = (node.target("first"), node.target("second"));
    node.publish_block("pvc-1", "first").await.expect("publish");
    let number = Device::open(&first).expect("a device").number();
    node.plugin.close();
    assert_eq!(detach(&first), Detach::Detached);
    node.publish_block("pvc-2", "second").await.expect("publish");
    assert_ne!(Device::open(&second).expect("a device").number(), number, "numbers are not used again");

    node.unpublish("pvc-1", "first").await.expect("unpublish");
    write(&second, b"hello");
    assert_eq!(node.unpublish("pvc-1", "second").await, Err(Code::FailedPrecondition), "it is another volume's");
    assert_eq!(node.publish_block("pvc-1", "second").await, Err(Code::AlreadyExists));
    assert_eq!(read(&second), b"hello");
    node.finish("pvc-2", "second").await;
}

/// Without our patch, the kubelet attaches a second device to the node that it mounts itself, so that the first one
/// stays attached.
#[tokio::test]
async fn a_loop_device_of_the_kubelet_does_no_harm() {
    let (mut node, volume) = Node::with_block("pvc-1").await;
    fs::create_dir_all(node.target(PUBLISH).parent().expect("a directory")).expect("directories");
    let elsewhere = ktest_support::Tmpfs::mount();
    fs::write(elsewhere.path().join("other"), [0; 8192]).expect("a file");
    let other = losetup(&elsewhere.path().join("other")).path();

    // The kubelet's order: it detaches its device before it unpublishes.
    node.publish_block("pvc-1", PUBLISH).await.expect("publish");
    let map = node.map(PUBLISH);
    let second = losetup(&map).path();
    write(&node.target(PUBLISH), b"hello");
    node.store.expand(&volume, Bytes::new(2 * SIZE.get())).expect("grow");
    let grown = node.client.node_expand_volume(node.kubelet.expand("pvc-1", PUBLISH, None)).await.expect("expand");
    assert_eq!(grown.into_inner().capacity_bytes, 2 * i64::try_from(SIZE.get()).expect("small"));
    assert_eq!(detach(&second), Detach::Detached);
    mount::unmount(&map).expect("unmount");
    node.unpublish("pvc-1", PUBLISH).await.expect("unpublish");
    assert!(node.devices().is_empty());

    // The other order: the kubelet's device keeps the plugin's device attached, and a new target gets that device. A
    // second device on the image would have a separate cache.
    node.publish_block("pvc-1", PUBLISH).await.expect("publish");
    assert_eq!(node.map(PUBLISH), map);
    let second = losetup(&map).path();
    node.unpublish("pvc-1", PUBLISH).await.expect("unpublish");
    assert_eq!(node.devices().len(), 1, "it is in use");
    node.publish_block("pvc-1", "next").await.expect("publish");
    assert_eq!(node.devices().len(), 1, "it is used again");
    assert_eq!(detach(&second), Detach::Detached);
    assert_eq!(node.devices().len(), 1);
    assert_eq!(read(&node.target("next")), b"hello");
    mount::unmount(&map).expect("unmount");
    node.unpublish("pvc-1", "next").await.expect("unpublish");
    assert!(node.devices().is_empty());

    assert_eq!(detach(&other), Detach::Detached, "it was left alone");
    node.stop().await;
}

#[tokio::test]
async fn at_the_start_only_devices_of_volumes_without_targets_go() {
    let (mut node, _) = Node::with_block("pvc-1").await;
    let left = node.provision_block("pvc-2");
    node.publish_block("pvc-1", "device").await.expect("publish");
    write(&node.target("device"), b"hello");
    // The device of a killed plugin, and a device of another file on the same disk.
    let driver = Control::open().expect("the driver");
    drop(driver.attach(node.image(&left), &Config::default()).expect("attach"));
    let foreign = node.disk.path().join("foreign");
    fs::write(&foreign, [0; 8192]).expect("a file");
    let foreign = losetup(&foreign).path();
    assert_eq!(node.devices().len(), 3);

    let node = Node::on(node.end().await).await;
    assert_eq!(node.devices().len(), 2);
    assert_eq!(read(&node.target("device")), b"hello");
    assert_eq!(detach(&foreign), Detach::Detached, "it was left alone");
    node.finish("pvc-1", "device").await;
}

/// The kernel silently disables direct I/O if a device's blocks are smaller than those of the disk below.
#[test]
fn a_disk_of_larger_blocks_has_direct_io_too() {
    let disk = ktest_support::XfsDisk::without_quota();
    let (file, point) = (disk.path().join("disk"), disk.path().join("mounted"));
    File::create(&file).and_then(|file| file.set_len(400 << 20)).expect("a file");
    fs::create_dir(&point).expect("a directory");
    let block_size = Some(BlockSize::new(4096).expect("a block size"));
    let backing = OpenOptions::new().read(true).write(true).open(&file).expect("open");
    let config = Config { block_size, ..Config::default() };
    let below = Control::open().expect("the driver").attach(&backing, &config).expect("attach");
    let made = Command::new("mkfs.xfs").arg("-q").arg(below.path()).status().expect("mkfs.xfs");
    assert!(made.success());
    let (source, data) = (below.path(), "prjquota");
    let what = Filesystem { kind: "xfs", source: &source, target: &point, flags: MsFlags::empty(), data };
    mount::filesystem(what).expect("mount");
    {
        let kubelet = point.join("kubelet");
        fs::create_dir(&kubelet).and_then(|()| fs::create_dir(point.join("volumes"))).expect("directories");
        let volumes = Dir::open(&point.join("volumes")).expect("open");
        let store = Arc::new(Store::open(&volumes, volume::Settings::default()).expect("a store"));
        let volume = machine::make(&store, "pvc-1", volume::Mode::Block { allocation: Allocation::Thick });
        let target = kubelet.join("device");
        let host = Linux::new(kubelet.clone(), store);
        let before = numbers();
        let mut at = look(&host, &volume, &target, &kubelet);
        for step in PUBLISH_STEPS {
            host.act(&mut at, step).expect("act");
        }
        let config = Device::open(&target).map(|device| device.config()).expect("a device");
        let config = config.expect("it is attached");
        assert!(config.direct_io && config.block_size == block_size, "{config:?}");
        // Regression: a first device with blocks of 512 bytes stayed if any process had it open.
        let highest = before.last().map_or(Numbers::FIRST, |number| Numbers::FIRST.max(number + 1));
        assert_eq!(numbers().difference(&before).collect::<Vec<_>>(), [&highest]);
        for step in [Step::Unmount, Step::RemoveTarget, Step::Detach] {
            host.act(&mut at, step).expect("act");
        }
        assert_eq!(host.attached().expect("devices"), 0);
    }
    mount::unmount(&point).expect("unmount");
    assert_eq!(below.detach(&backing).expect("detach"), Detach::Detached);
}

#[tokio::test]
async fn no_other_program_is_started() {
    let (mut node, _) = Node::with_block("pvc-1").await;
    let host = node.host();
    let message = node.kubelet.publish_block("pvc-1", "device", MANY);
    let publish = || assert!(csi::call::<Publish>(&host, &node.kubelet.directory, &message).is_ok());
    let calls = traced::calls(publish);
    assert!(is_device(&node.target("device")) && calls.contains(&libc::SYS_move_mount));
    let forks = [libc::SYS_fork, libc::SYS_vfork, libc::SYS_clone, libc::SYS_clone3, libc::SYS_execve];
    assert!(!calls.iter().any(|call| forks.contains(call)), "{calls:?}");
    drop(host);
    node.unpublish("pvc-1", "device").await.expect("unpublish");
    node.stop().await;
}
