//! Filesystem volumes on a real disk: XFS with project quotas, real mounts. Runs as root in a machine of its own.

mod kubelet;
mod machine;
mod traced;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use csi::{Calls, Found, Host, Inspection, Mode, Purpose, Question, Shape, Sharing, Step, Target, TargetPath};
use dir::Name;
use kubelet::{MANY, SINGLE};
use machine::{Node, SIZE, mounted, mounts_at};
use mount::{Attributes, Filesystem};
use nix::libc::{
    SYS_ioctl, SYS_mkdirat, SYS_mount_setattr, SYS_move_mount, SYS_open_tree, SYS_openat2, SYS_quotactl_fd,
};
use nix::mount::MsFlags;
use nix::sys::statvfs::statvfs;
use proto::csi::volume_usage::Unit;
use proto::csi::{NodePublishVolumeRequest, NodeUnpublishVolumeRequest};
use tonic::Code;
use traced::calls;
use volume::Volumes as _;

/// Of the mount of a directory.
const DIRECTORY: Attributes = Attributes { no_exec: false, ..Attributes::INERT };

#[tokio::test]
async fn a_volume_is_mounted_inert_and_once() {
    let mut node = Node::start().await;
    let volume = node.provision("pvc-1");
    let target = node.target("mount");
    for _ in 0..2 {
        node.publish(node.kubelet.publish("pvc-1", "mount", MANY)).await.expect("publish");
        assert_eq!(mounted(&target), Some(DIRECTORY));
        assert_eq!(mounts_at(&target), 1);
    }
    fs::write(target.join("file"), "here").expect("write");
    let inside = node.store.open_volume(&volume).expect("the volume");
    assert_eq!(
        inside.dir().read(&Name::try_from("file").expect("a name")).expect("read").as_deref(),
        Some(&b"here"[..])
    );
    let seen = statvfs(&target).expect("statvfs");
    assert_eq!(seen.blocks() * seen.fragment_size(), SIZE.get(), "the file system shows the quota as its size");
    drop(inside);
    node.stop().await;
}

#[tokio::test]
async fn a_read_only_volume_takes_no_writes_and_is_not_published_writable_beside() {
    let mut node = Node::start().await;
    node.provision("pvc-1");
    let read_only = NodePublishVolumeRequest { readonly: true, ..node.kubelet.publish("pvc-1", "mount", MANY) };
    for _ in 0..2 {
        node.publish(read_only.clone()).await.expect("publish");
    }
    let target = node.target("mount");
    assert_eq!(mounted(&target), Some(Attributes { read_only: true, ..DIRECTORY }));
    let refused = fs::write(target.join("file"), "x").expect_err("it is read-only");
    assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(node.publish(node.kubelet.publish("pvc-1", "mount", MANY)).await, Err(Code::AlreadyExists));
    node.stop().await;
}

#[tokio::test]
async fn unpublishing_works_from_every_state_and_twice() {
    let mut node = Node::start().await;
    node.provision("pvc-1");
    let target = node.target("mount");

    node.publish(node.kubelet.publish("pvc-1", "mount", MANY)).await.expect("publish");
    for _ in 0..2 {
        node.unpublish("pvc-1", "mount").await.expect("unpublish");
        assert!(!target.exists());
    }
    fs::create_dir(&target).expect("a reboot left it");
    node.unpublish("pvc-1", "mount").await.expect("half-made");
    assert!(!target.exists());
    node.unpublish("pvc-1", "absent/mount").await.expect("its parent is gone");
    node.unpublish("pvc-unknown", "mount").await.expect("kubelet would ask for ever");
    node.stop().await;
}

#[tokio::test]
async fn a_directory_that_an_earlier_call_left_is_used() {
    let mut node = Node::start().await;
    node.provision("pvc-1");
    fs::create_dir(node.target("mount")).expect("a directory");
    node.publish(node.kubelet.publish("pvc-1", "mount", MANY)).await.expect("publish");
    assert_eq!(mounted(&node.target("mount")), Some(DIRECTORY));
    node.stop().await;
}

#[tokio::test]
async fn statistics_equal_the_quota() {
    let mut node = Node::start().await;
    let volume = node.provision("pvc-1");
    node.publish(node.kubelet.publish("pvc-1", "mount", MANY)).await.expect("publish");
    fs::write(node.target("mount/file"), vec![1; 1 << 20]).expect("write");
    File::open(node.target("mount/file")).and_then(|file| file.sync_all()).expect("sync");

    let message = node.kubelet.stats("pvc-1", "mount");
    let stats = node.client.node_get_volume_stats(message).await.expect("stats").into_inner();
    let quota = node.store.open_volume(&volume).expect("the volume").quota().expect("its quota");
    let signed = |number: u64| i64::try_from(number).expect("small");
    let (used, inodes) = (signed(quota.used.bytes.get()), signed(quota.used.inodes.get()));
    assert!(used >= 1 << 20, "{used}");
    let size = signed(SIZE.get());
    let numbers: Vec<_> =
        stats.usage.iter().map(|usage| (usage.unit(), usage.total, usage.used, usage.available)).collect();
    assert_eq!(numbers, [(Unit::Bytes, size, used, size - used), (Unit::Inodes, 1000, inodes, 1000 - inodes)]);
    assert!(!stats.volume_condition.expect("a condition").abnormal);

    let absent = node.kubelet.stats("pvc-1", "other");
    assert_eq!(node.client.node_get_volume_stats(absent).await.expect_err("no such path").code(), Code::NotFound);
    node.stop().await;
}

#[tokio::test]
async fn expansion_tells_what_the_quota_was_raised_to() {
    let mut node = Node::start().await;
    let volume = node.provision("pvc-1");
    node.publish(node.kubelet.publish("pvc-1", "mount", MANY)).await.expect("publish");
    let double = SIZE.checked_mul(2).expect("it fits");
    let wanted = i64::try_from(double.get()).expect("small");
    let message = node.kubelet.expand("pvc-1", "mount", Some((wanted, 0)));
    let early = node.client.node_expand_volume(message.clone()).await.expect_err("not raised yet");
    assert_eq!(early.code(), Code::OutOfRange);

    node.store.expand(&volume, double).expect("raise it");

    let answer = node.client.node_expand_volume(message).await.expect("expand").into_inner();
    assert_eq!(answer.capacity_bytes, wanted);
    node.stop().await;
}

#[tokio::test]
async fn unknown_volumes_other_modes_and_paths_outside_are_refused() {
    let mut node = Node::start().await;
    node.provision("pvc-1");
    assert_eq!(node.publish(node.kubelet.publish("pvc-unknown", "mount", MANY)).await, Err(Code::NotFound));
    assert!(!node.target("mount").exists(), "nothing was made");
    for target in ["../mount", "/mount", "pods/../../mount"] {
        let message = node.kubelet.publish("pvc-1", target, MANY);
        assert_eq!(node.publish(message).await, Err(Code::InvalidArgument), "{target}");
    }
    assert_eq!(node.publish(node.kubelet.publish("pvc-1", "absent/mount", MANY)).await, Err(Code::FailedPrecondition));
    node.provision_block("pvc-device");
    assert_eq!(node.publish(node.kubelet.publish("pvc-device", "mount", MANY)).await, Err(Code::InvalidArgument));
    assert_eq!(node.publish(node.kubelet.publish_block("pvc-1", "mount", MANY)).await, Err(Code::InvalidArgument));
    node.stop().await;
}

#[tokio::test]
async fn a_link_is_followed_neither_on_the_way_nor_at_the_end() {
    let mut node = Node::start().await;
    node.provision("pvc-1");
    let outside = node.ground.path().join("outside");
    fs::create_dir(&outside).expect("a directory");
    symlink(&outside, node.target("pods")).expect("a link");
    symlink(&outside, node.target("mount")).expect("a link");

    assert_eq!(node.publish(node.kubelet.publish("pvc-1", "pods/mount", MANY)).await, Err(Code::InvalidArgument));
    assert_eq!(node.publish(node.kubelet.publish("pvc-1", "mount", MANY)).await, Err(Code::FailedPrecondition));
    assert_eq!(node.unpublish("pvc-1", "mount").await, Err(Code::FailedPrecondition));
    assert_eq!(node.unpublish("pvc-1", "pods/mount").await, Err(Code::InvalidArgument));
    assert!(fs::read_dir(&outside).expect("read").next().is_none(), "nothing was made");
    assert_eq!(mounted(&outside), None);
    node.stop().await;
}

#[tokio::test]
async fn two_pods_share_a_volume_and_one_may_leave() {
    let mut node = Node::start().await;
    node.provision("pvc-1");
    for target in ["a", "b"] {
        node.publish(node.kubelet.publish("pvc-1", target, MANY)).await.expect("publish");
    }
    let held = OpenOptions::new().write(true).create_new(true).open(node.target("b/file")).expect("a file");
    node.unpublish("pvc-1", "a").await.expect("unpublish");
    io::Write::write_all(&mut &held, b"still here").expect("write");
    assert_eq!(fs::read(node.target("b/file")).expect("read"), b"still here");
    drop(held);
    node.stop().await;
}

#[tokio::test]
async fn a_single_writer_has_one_target_at_a_time() {
    let mut node = Node::start().await;
    for volume in ["pvc-1", "pvc-2"] {
        node.provision(volume);
    }
    node.publish(node.kubelet.publish("pvc-1", "a", SINGLE)).await.expect("publish");
    node.publish(node.kubelet.publish("pvc-1", "a", SINGLE)).await.expect("publish again");
    assert_eq!(node.publish(node.kubelet.publish("pvc-1", "b", SINGLE)).await, Err(Code::FailedPrecondition));
    node.publish(node.kubelet.publish("pvc-2", "b", SINGLE)).await.expect("another volume");
    node.unpublish("pvc-1", "a").await.expect("unpublish");
    node.publish(node.kubelet.publish("pvc-1", "c", SINGLE)).await.expect("it has no target now");
    node.stop().await;
}

#[tokio::test]
async fn a_volume_is_not_deleted_while_it_is_mounted() {
    let mut node = Node::start().await;
    let volume = node.provision("pvc-1");
    node.publish(node.kubelet.publish("pvc-1", "mount", MANY)).await.expect("publish");
    fs::write(node.target("mount/file"), "here").expect("write");
    let refused = node.store.retire(&volume).expect_err("a pod has it");
    let target = node.target("mount");
    assert!(matches!(&refused, volume::Error::Published { target: found, .. } if *found == target), "{refused}");
    assert_eq!(fs::read(node.target("mount/file")).expect("read"), b"here");
    node.unpublish("pvc-1", "mount").await.expect("unpublish");
    assert!(!node.target("mount").exists());
    node.store.retire(&volume).expect("retire");
    node.stop().await;
}

/// kubelet mounts a `subPath` of a volume beside the volume's target. A directory of another volume with a similar path
/// is no part of this one.
#[tokio::test]
async fn a_part_of_a_volume_that_is_mounted_keeps_it_and_no_other() {
    let mut node = Node::start().await;
    let (volume, other) = (node.provision("pvc-1"), node.provision("pvc-2"));
    node.publish(node.kubelet.publish("pvc-1", "mount", MANY)).await.expect("publish");
    let (part, beside) = (node.target("mount/live/pvc-2"), node.target("part"));
    fs::create_dir_all(&part).and_then(|()| fs::create_dir(&beside)).expect("directories");
    nix::mount::mount(Some(&part), &beside, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("bind");
    node.store.retire(&other).expect("no mount shows it");
    node.unpublish("pvc-1", "mount").await.expect("unpublish");
    let refused = node.store.retire(&volume).expect_err("a part of it is mounted");
    assert!(matches!(&refused, volume::Error::Published { target: found, .. } if *found == beside), "{refused}");
    mount::unmount(&beside).expect("unmount");
    node.store.retire(&volume).expect("retire");
    node.stop().await;
}

#[tokio::test]
async fn what_is_not_this_volume_stays() {
    let mut node = Node::start().await;
    for volume in ["pvc-1", "pvc-2"] {
        node.provision(volume);
    }
    node.publish(node.kubelet.publish("pvc-1", "a", MANY)).await.expect("publish");
    assert_eq!(node.publish(node.kubelet.publish("pvc-2", "a", MANY)).await, Err(Code::AlreadyExists));
    assert_eq!(node.unpublish("pvc-2", "a").await, Err(Code::FailedPrecondition));
    assert_eq!(mounts_at(&node.target("a")), 1);

    let foreign = node.target("b");
    fs::create_dir(&foreign).expect("a directory");
    let tmpfs =
        Filesystem { kind: "tmpfs", source: Path::new("b"), target: &foreign, flags: MsFlags::empty(), data: "" };
    mount::filesystem(tmpfs).expect("mount");
    assert_eq!(node.publish(node.kubelet.publish("pvc-1", "b", MANY)).await, Err(Code::FailedPrecondition));
    assert_eq!(node.unpublish("pvc-1", "b").await, Err(Code::FailedPrecondition));
    assert_eq!(mounts_at(&foreign), 1);
    node.stop().await;
}

#[tokio::test]
async fn files_below_the_mount_are_never_deleted() {
    let mut node = Node::start().await;
    node.provision("pvc-1");
    let stray = node.target("mount/stray");
    fs::create_dir(node.target("mount")).expect("a directory");
    fs::write(&stray, "not the volume's").expect("a file");
    node.publish(node.kubelet.publish("pvc-1", "mount", MANY)).await.expect("publish");
    assert!(!stray.exists(), "hidden by the mount");
    for _ in 0..2 {
        assert_eq!(node.unpublish("pvc-1", "mount").await, Err(Code::FailedPrecondition));
        assert_eq!(fs::read(&stray).expect("it is there"), b"not the volume's");
    }
    fs::remove_file(&stray).expect("the operator does it");
    node.unpublish("pvc-1", "mount").await.expect("unpublish");
    node.stop().await;
}

#[tokio::test]
async fn a_volume_in_use_is_not_torn_away() {
    let mut node = Node::start().await;
    node.provision("pvc-1");
    node.publish(node.kubelet.publish("pvc-1", "mount", MANY)).await.expect("publish");
    let held = File::create(node.target("mount/file")).expect("a file");
    assert_eq!(node.unpublish("pvc-1", "mount").await, Err(Code::FailedPrecondition));
    assert_eq!(mounted(&node.target("mount")), Some(DIRECTORY));
    drop(held);
    node.unpublish("pvc-1", "mount").await.expect("unpublish");
    node.stop().await;
}

/// kubelet did so when its directory was not on a shared mount, after the plugin had started: what the plugin mounted
/// was below kubelet's own mount and no pod saw it.
#[tokio::test]
async fn targets_are_where_kubelet_sees_them() {
    let mut node = Node::start().await;
    node.provision("pvc-1");
    let kubelet = node.kubelet.directory.as_path();
    nix::mount::mount(Some(kubelet), kubelet, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("bind");
    node.publish(node.kubelet.publish("pvc-1", "mount", MANY)).await.expect("publish");
    assert_eq!(mounted(&node.target("mount")), Some(DIRECTORY));
    node.unpublish("pvc-1", "mount").await.expect("unpublish");
    node.stop().await;
}

#[tokio::test]
async fn an_unpublish_outside_touches_nothing() {
    let mut node = Node::start().await;
    let outside = node.ground.path().join("outside");
    fs::create_dir(&outside).expect("a directory");
    let target_path = outside.display().to_string();
    let message = NodeUnpublishVolumeRequest { volume_id: "pvc-1".to_owned(), target_path };
    let refused = node.client.node_unpublish_volume(message).await.expect_err("outside");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(outside.exists());
    node.stop().await;
}

#[tokio::test]
async fn publishing_and_statistics_cost_the_same_whatever_else_is_mounted() {
    let mut node = Node::start().await;
    node.provision("pvc-1");
    // The first one makes the announcement durable.
    node.publish(node.kubelet.publish("pvc-1", "a", MANY)).await.expect("publish");
    node.unpublish("pvc-1", "a").await.expect("unpublish");
    let plugin = Calls::new(node.kubelet.directory.clone(), node.host());
    let publish = |name: &str| {
        let message = node.kubelet.publish("pvc-1", name, MANY);
        calls(|| plugin.publish(&message).expect("publish"))
    };
    let stats = |name: &str| {
        let message = node.kubelet.stats("pvc-1", name);
        calls(|| assert!(matches!(plugin.stats(&message), Ok(Found::Filesystem(_))), "it is there"))
    };
    // The volume; who should hold the target; the target, which is not there; it is made; the mount.
    let mount = [SYS_open_tree, SYS_mount_setattr, SYS_move_mount];
    let expected = [&[SYS_openat2; 3][..], &[SYS_mkdirat], &mount].concat();
    assert_eq!(publish("a"), expected);
    assert!(expected.len() <= 10);
    // The target; its project; the quota of that.
    assert_eq!(stats("a"), [SYS_openat2, SYS_ioctl, SYS_quotactl_fd]);

    let other = node.target("other");
    fs::create_dir(&other).expect("a directory");
    for _ in 0..500 {
        nix::mount::mount(Some(&other), &other, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("bind");
    }
    assert_eq!(publish("b"), expected);
    assert_eq!(stats("b").len(), 3);
    drop(plugin);
    node.stop().await;
}
