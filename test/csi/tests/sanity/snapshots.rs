//! Requirements of snapshots and groups that csi-sanity does not check.

use std::fs;
use std::path::PathBuf;

use conformity::{Kind, Node, Services, answer};
use proto::csi::group_controller_client::GroupControllerClient;
use proto::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
use proto::csi::{
    CreateSnapshotRequest, CreateVolumeGroupSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest,
    DeleteVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotRequest, Snapshot, VolumeContentSource,
    VolumeGroupSnapshot,
};
use tonic::Code;
use tonic::transport::Channel;
use volume::{Claim, Error, RollbackRequest, VolumeId, Volumes as _};

use crate::controller::{client, create, delete, publish, record, request};

pub(crate) fn groups(node: &Node) -> GroupControllerClient<Channel> {
    GroupControllerClient::new(node.channel())
}

async fn take(node: &Node, name: &str, source: &str) -> Result<Snapshot, Code> {
    let request = CreateSnapshotRequest {
        name: name.to_owned(),
        source_volume_id: source.to_owned(),
        ..CreateSnapshotRequest::default()
    };
    answer(client(node).create_snapshot(request).await).map(|response| response.snapshot.expect("a snapshot"))
}

async fn remove(node: &Node, id: &str) -> Result<(), Code> {
    let request = DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..DeleteSnapshotRequest::default() };
    answer(client(node).delete_snapshot(request).await).map(drop)
}

async fn take_group(node: &Node, name: &str, sources: &[&str]) -> Result<VolumeGroupSnapshot, Code> {
    let request = CreateVolumeGroupSnapshotRequest {
        name: name.to_owned(),
        source_volume_ids: sources.iter().map(|source| (*source).to_owned()).collect(),
        ..CreateVolumeGroupSnapshotRequest::default()
    };
    let taken = answer(groups(node).create_volume_group_snapshot(request).await);
    taken.map(|response| response.group_snapshot.expect("a group"))
}

async fn get_group(node: &Node, id: &str, listed: &[String]) -> Result<VolumeGroupSnapshot, Code> {
    let (group_snapshot_id, snapshot_ids) = (id.to_owned(), listed.to_vec());
    let request = GetVolumeGroupSnapshotRequest { group_snapshot_id, snapshot_ids, ..Default::default() };
    let found = answer(groups(node).get_volume_group_snapshot(request).await);
    found.map(|response| response.group_snapshot.expect("a group"))
}

pub(crate) async fn remove_group(node: &Node, id: &str, listed: &[String]) -> Result<(), Code> {
    let (group_snapshot_id, snapshot_ids) = (id.to_owned(), listed.to_vec());
    let request = DeleteVolumeGroupSnapshotRequest { group_snapshot_id, snapshot_ids, ..Default::default() };
    answer(groups(node).delete_volume_group_snapshot(request).await).map(drop)
}

pub(crate) fn records(node: &Node) -> usize {
    node.volumes().store().records().expect("records").readable.len()
}

/// A file of the volume: its image, or one in its directory.
pub(crate) fn file(node: &Node, kind: Kind, id: &str) -> PathBuf {
    let directory = node.kubelet().with_file_name("volumes").join("live").join(id);
    directory.join(match kind {
        Kind::Filesystem => "data",
        Kind::Block => "image",
    })
}

pub(crate) fn write(node: &Node, kind: Kind, id: &str, content: &[u8]) {
    let file = fs::OpenOptions::new().create(true).write(true).truncate(false).open(file(node, kind, id));
    file.and_then(|mut file| std::io::Write::write_all(&mut file, content)).expect("write");
}

fn read(node: &Node, kind: Kind, id: &str) -> Vec<u8> {
    let mut content = fs::read(file(node, kind, id)).expect("read");
    content.truncate(5);
    content
}

#[test]
fn snapshots_and_groups_are_those_of_the_store() {
    let node = Node::start(Services::ForSidecars);
    let before = records(&node);
    node.block_on(async {
        for kind in Kind::ALL {
            a_snapshot_and_a_clone_have_the_former_content(&node, kind).await;
        }
        a_group_is_of_one_instant_and_deleted_as_a_whole(&node).await;
        a_group_is_taken_as_a_whole_or_not_at_all(&node).await;
        the_snapshot_of_a_rollback_is_the_provisioners(&node).await;
    });
    assert_eq!(records(&node), before);
    node.end();
}

async fn a_snapshot_and_a_clone_have_the_former_content(node: &Node, kind: Kind) {
    let source = create(node, request("pvc-kept", kind)).await.expect("create").volume_id;
    write(node, kind, &source, b"first");
    let snapshot = take(node, "snapshot-kept", &source).await.expect("take");
    assert_eq!((snapshot.snapshot_id.as_str(), snapshot.source_volume_id.as_str()), ("snapshot-kept", "pvc-kept"));
    assert!(snapshot.ready_to_use && snapshot.size_bytes > 0, "{snapshot:?}");
    write(node, kind, &source, b"later");
    assert_eq!(take(node, "snapshot-kept", &source).await, Ok(snapshot), "the same again");
    assert_eq!(take(node, "snapshot-kept", "pvc-other").await.err(), Some(Code::AlreadyExists));
    assert_eq!(take(node, "snapshot-new", "pvc-other").await.err(), Some(Code::NotFound));
    // Calls for volumes reject a snapshot, and calls for snapshots reject a volume.
    assert_eq!(delete(node, "snapshot-kept").await.err(), Some(Code::InvalidArgument));
    assert_eq!(remove(node, &source).await.err(), Some(Code::InvalidArgument));
    assert_eq!(create(node, request("snapshot-kept", kind)).await.err(), Some(Code::AlreadyExists));
    let of = |of| Some(VolumeContentSource { r#type: Some(of) });
    let [kept, volume] = [
        of(Type::Snapshot(SnapshotSource { snapshot_id: "snapshot-kept".to_owned() })),
        of(Type::Volume(VolumeSource { volume_id: source.clone() })),
    ];
    for (name, content, expected) in [("pvc-restored", &kept, b"first"), ("pvc-cloned", &volume, b"later")] {
        let of_source =
            |name, kind| CreateVolumeRequest { volume_content_source: content.clone(), ..request(name, kind) };
        let restored = create(node, of_source(name, kind)).await.expect("create");
        assert_eq!(restored.content_source, *content);
        assert_eq!(read(node, kind, name), expected);
        create(node, of_source(name, kind)).await.expect("the same again");
        assert_eq!(create(node, of_source("pvc-mode", kind.other())).await.err(), Some(Code::InvalidArgument));
        delete(node, name).await.expect("delete");
    }
    let confused = of(Type::Snapshot(SnapshotSource { snapshot_id: source.clone() }));
    let confused = CreateVolumeRequest { volume_content_source: confused, ..request("pvc-confused", kind) };
    assert_eq!(create(node, confused).await.err(), Some(Code::NotFound));
    // The snapshot does not need its source.
    delete(node, &source).await.expect("delete the source");
    take(node, "snapshot-kept", &source).await.expect("the same again");
    remove(node, "snapshot-kept").await.expect("delete");
    remove(node, "snapshot-kept").await.expect("the same again");
}

async fn a_group_is_of_one_instant_and_deleted_as_a_whole(node: &Node) {
    let sources = ["pvc-data", "pvc-log"];
    for source in sources {
        create(node, request(source, Kind::Block)).await.expect("create");
    }
    let group = take_group(node, "groupsnapshot-1", &sources).await.expect("take");
    assert_eq!((group.group_snapshot_id.as_str(), group.ready_to_use), ("groupsnapshot-1", true));
    let of = group.snapshots.iter().map(|snapshot| (snapshot.source_volume_id.as_str(), &*snapshot.group_snapshot_id));
    assert_eq!(of.collect::<Vec<_>>(), sources.map(|source| (source, "groupsnapshot-1")));
    assert!(group.snapshots.iter().all(|snapshot| snapshot.creation_time == group.creation_time), "{group:?}");
    assert_eq!(take_group(node, "groupsnapshot-1", &sources).await, Ok(group.clone()), "the same again");
    for other in [&sources[..1], &["pvc-data", "pvc-log", "pvc-shared-block-0"]] {
        assert_eq!(take_group(node, "groupsnapshot-1", other).await.err(), Some(Code::AlreadyExists), "{other:?}");
    }
    let all: Vec<_> = group.snapshots.iter().map(|snapshot| snapshot.snapshot_id.clone()).collect();
    assert_eq!(get_group(node, "groupsnapshot-1", &all).await, Ok(group));
    assert_eq!(get_group(node, "groupsnapshot-1", &all[..1]).await.err(), Some(Code::InvalidArgument));
    assert_eq!(get_group(node, "groupsnapshot-2", &all).await.err(), Some(Code::NotFound));
    assert_eq!(remove(node, &all[0]).await.err(), Some(Code::InvalidArgument), "a member alone");
    assert_eq!(remove_group(node, "groupsnapshot-1", &all[..1]).await.err(), Some(Code::InvalidArgument));
    assert!(record(node, &all[0]).is_some());
    remove_group(node, "groupsnapshot-1", &all).await.expect("delete");
    remove_group(node, "groupsnapshot-1", &all).await.expect("the same again");
    assert_eq!(record(node, &all[0]), None);
    for source in sources {
        delete(node, source).await.expect("delete");
    }
}

/// The group has a volume that the node does not have, and a volume without a pod that the plugin can freeze.
async fn a_group_is_taken_as_a_whole_or_not_at_all(node: &Node) {
    create(node, request("pvc-data", Kind::Block)).await.expect("create");
    let before = records(node);
    assert_eq!(take_group(node, "g", &["pvc-data", "pvc-elsewhere"]).await.err(), Some(Code::NotFound));
    assert_eq!(take_group(node, "g", &[]).await.err(), Some(Code::InvalidArgument));
    assert_eq!(records(node), before);
    let published = publish(node, "pvc-data", Kind::Block).await;
    let taken = take_group(node, "g", &["pvc-data", "pvc-shared-block-0"]).await;
    assert_eq!(taken.err(), Some(Code::Aborted), "its pod has no cgroup");
    assert_eq!(records(node), before);
    answer(node.client().node_unpublish_volume(published).await).expect("unpublish");
    let group = take_group(node, "g", &["pvc-data", "pvc-shared-block-0"]).await.expect("take");
    let all: Vec<_> = group.snapshots.iter().map(|snapshot| snapshot.snapshot_id.clone()).collect();
    remove_group(node, &group.group_snapshot_id, &all).await.expect("delete");
    delete(node, "pvc-data").await.expect("delete");
}

/// The Controller service rejects the snapshot before the exchange of the content, and after it.
async fn the_snapshot_of_a_rollback_is_the_provisioners(node: &Node) {
    let source = create(node, request("pvc-rolled", Kind::Block)).await.expect("create").volume_id;
    take(node, "snapshot-rolled", &source).await.expect("take");
    let id = |text: &str| text.parse::<VolumeId>().expect("an identifier");
    let claim = Claim { uid: "uid".to_owned(), namespace: "default".to_owned(), name: "before".to_owned() };
    let want = RollbackRequest { claim, volume: id(&source), source: id("snapshot-rolled") };
    let (store, kept) = (node.volumes().store(), id("snapshot-before"));
    while let Err(error) = store.roll_back(&kept, &want) {
        assert!(matches!(error, Error::Copying { .. }), "{error:?}");
        assert_eq!(remove(node, "snapshot-before").await.err(), Some(Code::FailedPrecondition));
    }
    assert_eq!(remove(node, "snapshot-before").await.err(), Some(Code::FailedPrecondition));
    store.end_rollback(&kept).expect("end");
    store.remove_snapshot(&kept).expect("remove");
    remove(node, "snapshot-rolled").await.expect("delete");
    delete(node, &source).await.expect("delete");
}
