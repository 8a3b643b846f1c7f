//! Published devices that pods detach, keep open, or have while their volume is deleted.

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi::{DeviceObserver, Host, Publish, Shape, Step, Unpublish};
use ktest_support::Tmpfs;
use loopdev::{Config, Control, Detach, Device, DeviceNumber};
use nix::sys::stat::{Mode as Permissions, SFlag, mknod};
use tonic::Code;
use volume::Volumes as _;

use crate::kubelet::MANY;
use crate::machine::{Node, TestDisk};
use crate::{NODE, PUBLISH_STEPS, detach, exists, look, read, write};

/// Deadline of actions that the plugin starts itself.
const LIMIT: Duration = Duration::from_secs(30);

/// The device node that a container's runtime creates, with the numbers of the node at the target.
fn containers_node(dir: &Path, target: &Path) -> PathBuf {
    let own = dir.join("device");
    let device = fs::metadata(target).expect("the target").rdev();
    mknod(&own, SFlag::S_IFBLK, Permissions::from_bits_truncate(0o600), device).expect("mknod");
    own
}

#[tokio::test]
async fn a_volume_is_not_deleted_under_its_target() {
    let (mut node, volume) = Node::with_block("pvc-1").await;
    let target = node.target("device");
    node.publish_block("pvc-1", "device").await.expect("publish");
    write(&target, b"hello");
    let refused = node.store.retire(&volume).expect_err("a pod has it");
    assert!(matches!(&refused, volume::Error::Published { target: found, .. } if *found == target), "{refused}");
    assert_eq!(read(&target), b"hello");
    let [device] = node.devices()[..] else { panic!("{:?}", node.devices()) };
    assert!(!device.status.config.autoclear, "nothing has changed");

    node.unpublish("pvc-1", "device").await.expect("unpublish");
    node.store.retire(&volume).expect("retire");
    assert!(!target.exists() && node.devices().is_empty());
    node.stop().await;
}

/// Regression: `LOOP_CLR_FD`, which needs neither a capability nor write access, detached the device, and the next
/// volume got its number. The container, whose node and permission stayed, read and overwrote that volume.
#[tokio::test]
async fn a_pod_cannot_reach_the_next_volume_through_its_device() {
    let mut node = Node::start().await;
    for volume in ["pvc-1", "pvc-2", "pvc-3"] {
        node.provision_block(volume);
    }
    let container = Tmpfs::mount();
    let (first, second, third) = (node.target("first"), node.target("second"), node.target("third"));
    node.publish_block("pvc-1", "first").await.expect("publish");
    write(&first, b"hello");
    let number = Device::open(&first).expect("a device").number();
    let own = containers_node(container.path(), &first);

    assert_eq!(detach(&own), Detach::Deferred, "the node holds the device");
    node.publish_block("pvc-2", "second").await.expect("publish");
    write(&second, b"other");
    assert_ne!(Device::open(&second).expect("a device").number(), number);
    assert_eq!(read(&own), b"hello");
    assert_eq!(read(&first), b"hello");

    // The descriptor of a process that outlives its pod, or to which a process of the pod passed the descriptor.
    let mut stolen = File::open(&own).expect("open");
    node.unpublish("pvc-1", "first").await.expect("unpublish");
    node.publish_block("pvc-3", "third").await.expect("publish");
    write(&third, b"third");
    assert_ne!(Device::open(&third).expect("a device").number(), number);
    assert!(exists(number), "it is open");
    let mut found = [0; 5];
    stolen.read_exact(&mut found).expect("read");
    assert_eq!(&found, b"hello");
    drop(stolen);
    // Without the driver's parameter max_loop, the open creates an empty device.
    let found = fs::read(&own).unwrap_or_default();
    assert!(!found.starts_with(b"other") && !found.starts_with(b"third"));
    for (volume, target) in [("pvc-2", "second"), ("pvc-3", "third")] {
        node.unpublish(volume, target).await.expect("unpublish");
    }
    assert!(node.devices().is_empty());
    node.stop().await;
}

/// The kernel sends no uevent for such a detach.
#[tokio::test]
async fn a_detach_by_a_pod_is_revoked() {
    let mut node = Node::on_with(TestDisk::new(), |settings| settings.watch = Duration::from_millis(20)).await;
    let volume = node.provision_block("pvc-1");
    let target = node.target("device");
    node.publish_block("pvc-1", "device").await.expect("publish");
    write(&target, b"hello");
    let mut revoked = node.plugin.revoked();
    assert_eq!(detach(&target), Detach::Deferred);
    tokio::time::timeout(LIMIT, revoked.changed()).await.expect("in time").expect("the plugin runs");
    assert_eq!(revoked.borrow().get(&volume), Some(&1));
    let [device] = node.devices()[..] else { panic!("{:?}", node.devices()) };
    assert!(!device.status.config.autoclear, "{device:?}");

    let node = Node::on(node.end().await).await;
    let [kept] = node.devices()[..] else { panic!("{:?}", node.devices()) };
    assert_eq!(kept.number, device.number);
    assert_eq!(read(&target), b"hello");
    assert_eq!(detach(&target), Detach::Deferred, "the next plugin holds it too");
    assert_eq!(read(&target), b"hello");
    node.finish("pvc-1", "device").await;
}

/// A detach that was pending when the plugin ended would complete with the close of the last descriptor.
#[tokio::test]
async fn a_plugin_that_starts_revokes_pending_detaches() {
    let (mut node, _) = Node::with_block("pvc-1").await;
    let target = node.target("device");
    node.publish_block("pvc-1", "device").await.expect("publish");
    // A pod has the device open all the time.
    let pod = File::open(&target).expect("open");
    assert_eq!(detach(&target), Detach::Deferred);
    let node = Node::on(node.end().await).await;
    drop(pod);
    let [device] = node.devices()[..] else { panic!("{:?}", node.devices()) };
    assert!(!device.status.config.autoclear, "{device:?}");
    node.finish("pvc-1", "device").await;
}

/// A publish and a deletion share no lock.
#[tokio::test]
async fn a_volume_retired_during_its_publish_is_kept() {
    let (node, volume) = Node::with_block("pvc-1").await;
    let (host, target) = (node.host(), node.target("device"));
    let mut at = look(&host, &volume, &target, &node.kubelet.directory);
    node.store.retire(&volume).expect("no mount shows it yet");
    for step in PUBLISH_STEPS {
        host.act(&mut at, step).expect("act");
    }
    drop(at);
    write(&target, b"hello");
    let refused = node.store.discard(&volume).expect_err("it is published");
    assert!(refused.is_in_use(), "{refused}");
    assert_eq!(read(&target), b"hello");

    let message = node.kubelet.unpublish("pvc-1", "device");
    csi::call::<Unpublish>(&host, &node.kubelet.directory, &message).expect("unpublish");
    assert!(!target.exists() && node.devices().is_empty());
    node.store.discard(&volume).expect("discard");
    drop(host);
    node.stop().await;
}

/// Regression: the deletion of a volume detached a device that a failed publish left, and the plugin reported it as a
/// pod's attempt.
#[tokio::test]
async fn a_detach_of_a_device_without_targets_is_not_revoked() {
    let (node, volume) = Node::with_block("pvc-1").await;
    let host = node.host();
    let mut at = look(&host, &volume, &node.target("device"), &node.kubelet.directory);
    host.act(&mut at, Step::Attach { read_only: false }).expect("attach");
    drop(at);
    let [device] = node.devices()[..] else { panic!("{:?}", node.devices()) };
    assert_eq!(detach(&device.number.path()), Detach::Deferred, "the node holds the device");
    let found = host.watch().expect("watch");
    assert_eq!((found.revoked, found.idle), (Vec::new(), vec![volume.clone()]));
    assert!(host.release(&volume).expect("release"), "it had a device");
    assert!(node.devices().is_empty());
    assert!(!host.release(&volume).expect("release"), "it has none");
    drop(host);
    node.stop().await;
}

/// Regression: the publish attached the image twice, and the device at the target had no I/O limits.
#[tokio::test]
async fn an_image_whose_device_is_detached_during_its_publish_is_attached_once() {
    let (node, volume) = Node::with_block("pvc-1").await;
    let (host, target) = (node.host(), node.target("device"));
    let driver = Control::open().expect("the driver");
    let left = driver.attach(node.image(&volume), &Config::default()).expect("attach");
    let mut at = look(&host, &volume, &target, &node.kubelet.directory);
    assert_eq!(detach(&left.number().path()), Detach::Deferred, "this process has it open");
    drop(left);
    assert!(node.devices().is_empty());
    for step in [Step::CreateTarget(Shape::File), Step::Limit, Step::Bind(NODE)] {
        host.act(&mut at, step).expect("act");
    }
    drop(at);
    let [device] = node.devices()[..] else { panic!("{:?}", node.devices()) };
    assert_eq!(Device::open(&target).expect("a device").number(), device.number);
    let message = node.kubelet.unpublish("pvc-1", "device");
    csi::call::<Unpublish>(&host, &node.kubelet.directory, &message).expect("unpublish");
    assert!(!target.exists() && node.devices().is_empty());
    drop(host);
    node.stop().await;
}

/// An observer that fails to set its rules.
#[derive(Debug)]
struct NoRules;

impl DeviceObserver for NoRules {
    fn publish(&self, _: DeviceNumber) -> Result<(), Box<dyn Error + Send + Sync>> {
        Err("no rules".into())
    }

    fn withdraw(&self, _: DeviceNumber) {}
}

#[tokio::test]
async fn a_device_without_its_rules_is_not_published() {
    let (node, _) = Node::with_block("pvc-1").await;
    let host = node.host().with_observer(NoRules);
    let message = node.kubelet.publish_block("pvc-1", "device", MANY);
    let refused = csi::call::<Publish>(&host, &node.kubelet.directory, &message).expect_err("no rules");
    assert_eq!(refused.code(), Code::Internal);
    assert!(!node.target("device").exists() && node.devices().is_empty());
    drop(host);
    node.stop().await;
}

/// The kernel drops dirty pages of a device that is detached by its only opener.
#[tokio::test]
async fn the_last_unpublish_writes_unsynced_data_to_the_image() {
    let (mut node, volume) = Node::with_block("pvc-1").await;
    let content = vec![7; 4 << 20];
    node.publish_block("pvc-1", "device").await.expect("publish");
    let mut pod = OpenOptions::new().write(true).open(node.target("device")).expect("open");
    pod.write_all(&content).expect("write");
    drop(pod);
    node.unpublish("pvc-1", "device").await.expect("unpublish");
    let mut found = vec![0; content.len()];
    node.image(&volume).read_exact(&mut found).expect("read");
    assert!(found == content, "the image lacks what was written");
    node.stop().await;
}
