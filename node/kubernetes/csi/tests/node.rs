//! Filesystem volumes on a real disk: XFS with project quotas, real mounts. Runs as root in a separate virtual machine.

#[allow(dead_code, reason = "block.rs and server.rs use the rest")]
mod kubelet;
#[allow(dead_code, reason = "block.rs uses the rest")]
mod machine;
mod traced;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::num::NonZeroU64;
use std::os::unix::fs::OpenOptionsExt as _;

use csi::{Host as _, Publish, Stats};
use fsquota::Limits;
use kernel::text::{Message, failed_disk};
use ktest_support::cut;
use kubelet::{MANY, connect};
use machine::{Node, SIZE, mounted};
use mount::Attributes;
use nix::errno::Errno;
use nix::libc::{
    O_NONBLOCK, SYS_ioctl, SYS_mkdirat, SYS_mount_setattr, SYS_move_mount, SYS_open_tree, SYS_openat2, SYS_quotactl_fd,
};
use nix::mount::MsFlags;
use proto::csi::controller_client::ControllerClient;
use proto::csi::group_controller_client::GroupControllerClient;
use proto::csi::identity_client::IdentityClient;
use proto::csi::plugin_capability::{Type, service};
use proto::csi::{
    CapacityRange, ControllerExpandVolumeRequest, CreateSnapshotRequest, CreateVolumeGroupSnapshotRequest,
    CreateVolumeRequest, DeleteSnapshotRequest, DeleteVolumeRequest, GetPluginCapabilitiesRequest,
    ListSnapshotsRequest, ListVolumesRequest, Topology, TopologyRequirement, VolumeCondition,
};
use tonic::transport::Channel;
use tonic::{Code, Status};
use traced::calls;
use volume::{DiskFault, DiskObserver, Volumes as _};

/// Attributes of the mount of a directory.
const DIRECTORY: Attributes = Attributes { no_exec: false, ..Attributes::INERT };

/// The kubelet mounts a `subPath` of a volume beside the volume's target. A mounted directory whose path resembles that
/// of another volume does not belong to that volume.
#[tokio::test]
async fn a_part_of_a_volume_that_is_mounted_keeps_it_and_no_other() {
    let mut node = Node::start().await;
    let (volume, other) = (node.provision("pvc-1"), node.provision("pvc-2"));
    node.publish(node.kubelet.publish("pvc-1", "mount", MANY)).await.expect("publish");
    let (part, beside) = (node.target("mount/live/pvc-2"), node.target("part"));
    fs::create_dir_all(&part).and_then(|()| fs::create_dir(&beside)).expect("directories");
    nix::mount::mount(Some(&part), &beside, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("bind");
    node.store.retire(&other).expect("no mount shows it");
    let mut unpublishes = node.store.calls().unpublishes();
    node.unpublish("pvc-1", "mount").await.expect("unpublish");
    assert_eq!(unpublishes.try_recv().as_ref(), Ok(&volume), "the provisioner is notified");
    let refused = node.store.retire(&volume).expect_err("a part of it is mounted");
    assert!(matches!(&refused, volume::Error::Published { target: found, .. } if *found == beside), "{refused}");
    mount::unmount(&beside).expect("unmount");
    node.store.retire(&volume).expect("retire");
    node.stop().await;
}

/// Regression: the kubelet mounted its directory on itself, because it was not on a shared mount, after the plugin had
/// started. The plugin's mounts were below the kubelet's own mount, and pods did not see them.
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
async fn system_calls_do_not_grow_with_the_mounts() {
    let mut node = Node::start().await;
    node.provision("pvc-1");
    // The first publish makes the announcement durable.
    node.publish(node.kubelet.publish("pvc-1", "a", MANY)).await.expect("publish");
    node.unpublish("pvc-1", "a").await.expect("unpublish");
    let (host, kubelet) = (node.host(), &node.kubelet.directory);
    assert_eq!(host.adopt().expect("as at the start of the plugin"), 0);
    let publish = |name: &str| {
        let message = node.kubelet.publish("pvc-1", name, MANY);
        calls(|| assert!(csi::call::<Publish>(&host, kubelet, &message).is_ok()))
    };
    let stats = |name: &str| {
        let message = node.kubelet.stats("pvc-1", name);
        calls(|| assert_eq!(csi::call::<Stats>(&host, kubelet, &message).expect("statistics").usage.len(), 2))
    };
    // Calls to open the volume, the target's parent and the missing target, to create the target, and to mount.
    let mount = [SYS_open_tree, SYS_mount_setattr, SYS_move_mount];
    let expected = [&[SYS_openat2; 3][..], &[SYS_mkdirat], &mount].concat();
    assert_eq!(publish("a"), expected);
    assert!(expected.len() <= 10);
    // Calls to open the target, to read its project, and to read the quota of the project.
    assert_eq!(stats("a"), [SYS_openat2, SYS_ioctl, SYS_quotactl_fd]);

    let other = node.target("other");
    fs::create_dir(&other).expect("a directory");
    for _ in 0..500 {
        nix::mount::mount(Some(&other), &other, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("bind");
    }
    assert_eq!(publish("b"), expected);
    assert_eq!(stats("b").len(), 3);
    drop(host);
    node.stop().await;
}

async fn condition(node: &mut Node, target: &str) -> VolumeCondition {
    let message = node.kubelet.stats("pvc-1", target);
    let stats = node.client.node_get_volume_stats(message).await.expect("stats").into_inner();
    stats.volume_condition.expect("a condition")
}

#[tokio::test]
async fn changed_limits_are_an_abnormal_condition() {
    let mut node = Node::start().await;
    let volume = node.provision("pvc-1");
    node.publish(node.kubelet.publish("pvc-1", "mount", MANY)).await.expect("publish");
    assert!(!condition(&mut node, "mount").await.abnormal);
    let project = node.store.open_volume(&volume).expect("the volume").project();
    let root = File::open(node.disk.path()).expect("the disk");
    let limits = |bytes| Limits { bytes: Some(bytes), inodes: None };
    fsquota::set_limits(&root, project, limits(SIZE.saturating_add(SIZE))).expect("other limits");
    let changed = condition(&mut node, "mount").await;
    assert!(changed.abnormal && changed.message.contains("limits were changed"), "{changed:?}");
    fsquota::set_limits(&root, project, limits(SIZE)).expect("its limits");
    assert!(!condition(&mut node, "mount").await.abnormal);
    drop(root);
    node.stop().await;
}

/// A fault as the node reads it in the kernel's log.
#[derive(Debug)]
struct FailedRequest;

impl DiskObserver for FailedRequest {
    fn faults(&self) -> Vec<DiskFault> {
        vec![DiskFault::Requests(NonZeroU64::MIN)]
    }
}

/// Disks of the failed requests in the kernel's log.
fn failed_disks() -> Vec<String> {
    let mut log = File::options().read(true).custom_flags(O_NONBLOCK).open("/dev/kmsg").expect("the kernel's log");
    let (mut buffer, mut found) = (vec![0; 8 << 10], Vec::new());
    loop {
        match log.read(&mut buffer) {
            Ok(length) => {
                let message = Message::parse(&buffer[..length]).filter(|message| message.facility == 0);
                found.extend(message.and_then(|message| failed_disk(&message.text).map(str::to_owned)));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return found,
            // The next record was overwritten. The next read returns a later one.
            Err(error) => assert_eq!(error.raw_os_error(), Some(Errno::EPIPE as i32), "{error}"),
        }
    }
}

/// XFS shuts down when it cannot write its log.
#[tokio::test]
async fn a_disk_that_fails_is_an_abnormal_condition() {
    let mut node = Node::start().await;
    node.provision("pvc-1");
    node.publish(node.kubelet.publish("pvc-1", "mount", MANY)).await.expect("publish");
    assert_eq!(node.store.faults(), Ok(vec![]));
    node.store.observe_disk(Box::new(FailedRequest));
    let file = File::create(node.target("mount/file")).expect("a file");
    let disk = node.disk.device().file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    assert!(!failed_disks().contains(&disk), "{disk} has failed before");
    let off = cut(node.disk.device());
    assert!(file.sync_all().is_err());
    drop((file, off));
    // The kernel logs a failed request before the request ends.
    let failed = failed_disks();
    assert!(failed.contains(&disk), "{failed:?} without {disk}: the kernel's message has another format");
    let kinds: Result<Vec<&str>, _> = node.store.faults().map(|faults| faults.iter().map(DiskFault::kind).collect());
    assert_eq!(kinds, Ok(vec!["shutdown", "io"]));
    let faulty = condition(&mut node, "mount").await;
    assert!(faulty.abnormal, "{faulty:?}");
    for says in ["XFS has shut the file system down", "1 requests to the disk failed"] {
        assert!(faulty.message.contains(says), "{faulty:?}");
    }
    node.stop().await;
}

fn at_least(required_bytes: i64) -> Option<CapacityRange> {
    Some(CapacityRange { required_bytes, limit_bytes: 0 })
}

/// A request for a filesystem volume of 16 MiB.
fn creation(node: &Node, name: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: at_least(16 << 20),
        volume_capabilities: node.kubelet.publish(name, name, MANY).volume_capability.into_iter().collect(),
        ..CreateVolumeRequest::default()
    }
}

fn snapshot_of(volume: &str, name: &str) -> CreateSnapshotRequest {
    let (source_volume_id, name) = (volume.to_owned(), name.to_owned());
    CreateSnapshotRequest { source_volume_id, name, ..CreateSnapshotRequest::default() }
}

fn is_of_the_cluster(status: &Status) -> bool {
    status.code() == Code::FailedPrecondition && status.message().contains("--provisioner=external")
}

/// The services run beside the own provisioner, as on a Granary node.
#[tokio::test]
async fn a_client_has_its_own_volumes_beside_the_provisioner() {
    let node = Node::start().await;
    let channel = connect(node.kubelet.socket()).await.expect("connect");
    let able = IdentityClient::new(channel.clone()).get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await;
    let able = able.expect("capabilities").into_inner().capabilities;
    for served in [service::Type::ControllerService, service::Type::GroupControllerService] {
        let is_served = |found: Option<&Type>| matches!(found, Some(Type::Service(found)) if found.r#type() == served);
        assert!(able.iter().any(|found| is_served(found.r#type.as_ref())), "{served:?}: {able:?}");
    }
    let provisioned = node.provision("pvc-1");
    let before = node.store.record(&provisioned).expect("a record");
    let mut client = ControllerClient::new(channel.clone());

    let created = client.create_volume(creation(&node, "data")).await.expect("create").into_inner();
    assert_eq!(created.volume.expect("a volume").volume_id, "data");
    let expand = |volume: &str| ControllerExpandVolumeRequest {
        volume_id: volume.to_owned(),
        capacity_range: at_least(32 << 20),
        ..ControllerExpandVolumeRequest::default()
    };
    let expanded = client.controller_expand_volume(expand("data")).await.expect("expand").into_inner();
    assert_eq!(expanded.capacity_bytes, 32 << 20);
    let taken = client.create_snapshot(snapshot_of("data", "before")).await.expect("take").into_inner();
    let snapshot_id = taken.snapshot.expect("a snapshot").snapshot_id;
    let volumes = client.list_volumes(ListVolumesRequest::default()).await.expect("volumes").into_inner().entries;
    let volumes: Vec<_> = volumes.into_iter().map(|entry| entry.volume.expect("a volume").volume_id).collect();
    assert_eq!(volumes, ["data", "pvc-1"]);
    let snapshots = client.list_snapshots(ListSnapshotsRequest::default()).await.expect("snapshots").into_inner();
    assert_eq!(snapshots.entries.len(), 1);

    objects_of_the_cluster_are_rejected(&node, channel).await;
    let delete = |volume: &str| DeleteVolumeRequest { volume_id: volume.to_owned(), ..DeleteVolumeRequest::default() };
    let refused = client.delete_volume(delete("pvc-1")).await.expect_err("a volume of the provisioner");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    let refused = client.controller_expand_volume(expand("pvc-1")).await.expect_err("a volume of the provisioner");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");

    let remove = DeleteSnapshotRequest { snapshot_id, ..DeleteSnapshotRequest::default() };
    client.delete_snapshot(remove).await.expect("delete the snapshot");
    client.delete_volume(delete("data")).await.expect("delete");
    let left = node.store.records().expect("records").readable;
    assert_eq!(left.into_iter().collect::<Vec<_>>(), [(provisioned, before.expect("the provisioner's record"))]);
    drop(client);
    node.stop().await;
}

/// A sidecar beside the provisioner would serve each claim and each snapshot a second time.
async fn objects_of_the_cluster_are_rejected(node: &Node, channel: Channel) {
    const UID: &str = "0b6f2f6e-9c1f-4d4e-8d0a-6f1f2a3b4c5d";
    let (mut client, mut groups) = (ControllerClient::new(channel.clone()), GroupControllerClient::new(channel));
    let before = node.store.records().expect("records").readable;
    let elsewhere = Topology { segments: HashMap::from([(volume::TOPOLOGY_KEY.to_owned(), "node-2".to_owned())]) };
    let accessibility_requirements = Some(TopologyRequirement { requisite: vec![elsewhere], preferred: Vec::new() });
    let parameters = HashMap::from([("csi.storage.k8s.io/pvc/name".to_owned(), "data".to_owned())]);
    for claim in [
        creation(node, &format!("pvc-{UID}")),
        creation(node, &format!("local-{UID}")),
        CreateVolumeRequest { parameters: parameters.clone(), ..creation(node, "described") },
        CreateVolumeRequest { mutable_parameters: parameters, ..creation(node, "described") },
        // Another code would let the scheduler select another node for the claim.
        CreateVolumeRequest { accessibility_requirements, ..creation(node, &format!("pvc-{UID}")) },
        // The IDs of the provisioner's snapshots.
        creation(node, &format!("snapshot-{UID}")),
        creation(node, &format!("group-{UID}-data")),
    ] {
        let refused = client.create_volume(claim.clone()).await.expect_err("a claim");
        assert!(is_of_the_cluster(&refused), "{claim:?}: {refused}");
    }
    let refused = client.create_snapshot(snapshot_of("data", &format!("snapshot-{UID}"))).await;
    assert!(is_of_the_cluster(&refused.expect_err("a snapshot")));
    let group = CreateVolumeGroupSnapshotRequest {
        name: format!("groupsnapshot-{UID}"),
        source_volume_ids: vec!["data".to_owned(), "pvc-1".to_owned()],
        ..CreateVolumeGroupSnapshotRequest::default()
    };
    let refused = groups.create_volume_group_snapshot(group).await.expect_err("a group");
    assert!(is_of_the_cluster(&refused), "{refused}");
    assert_eq!(node.store.records().expect("records").readable, before);
}
