//! Requirements of the Controller service that csi-sanity does not check.

use std::collections::{BTreeSet, HashMap};
use std::error::Error;
use std::num::NonZeroU64;
use std::sync::Arc;

use conformity::{Kind, NODE_NAME, Node, Services, answer, capability};
use proto::csi::controller_client::ControllerClient;
use proto::csi::plugin_capability::{Type, service};
use proto::csi::volume_capability::access_mode::Mode;
use proto::csi::volume_content_source::{self, VolumeSource};
use proto::csi::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerGetVolumeHealthRequest,
    ControllerListVolumeHealthRequest, ControllerModifyVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest,
    GetCapacityRequest, GetPluginCapabilitiesRequest, GroupControllerGetCapabilitiesRequest, ListVolumesRequest,
    NodeGetStorageHealthRequest, NodeGetVolumeHealthRequest, NodePublishVolumeRequest, NodeUnpublishVolumeRequest,
    StorageHealthErrorType, Topology, TopologyRequirement, VolumeContentSource, VolumeHealth, VolumeHealthErrorType,
};
use tonic::Code;
use tonic::transport::Channel;
use units::Bytes;
use volume::{DiskFault, DiskObserver, IoLimits, IoThrottle, Owner, Record, VolumeId, Volumes as _};

use crate::snapshots::{file, groups, remove_group, write};

const SIZE: i64 = 16 << 20;

pub(crate) fn client(node: &Node) -> ControllerClient<Channel> {
    ControllerClient::new(node.channel())
}

fn at_least(required_bytes: i64) -> Option<CapacityRange> {
    Some(CapacityRange { required_bytes, limit_bytes: 0 })
}

fn one(name: &str, value: &str) -> HashMap<String, String> {
    HashMap::from([(name.to_owned(), value.to_owned())])
}

pub(crate) fn request(name: &str, kind: Kind) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: at_least(SIZE),
        volume_capabilities: vec![capability(kind, Mode::SingleNodeWriter)],
        ..CreateVolumeRequest::default()
    }
}

pub(crate) async fn create(node: &Node, request: CreateVolumeRequest) -> Result<proto::csi::Volume, Code> {
    answer(client(node).create_volume(request).await).map(|response| response.volume.expect("a volume"))
}

pub(crate) async fn delete(node: &Node, id: &str) -> Result<(), Code> {
    let request = DeleteVolumeRequest { volume_id: id.to_owned(), ..DeleteVolumeRequest::default() };
    answer(client(node).delete_volume(request).await).map(drop)
}

/// Expands a volume from its first size to twice that size.
async fn double(node: &Node, id: &str) -> Result<ControllerExpandVolumeResponse, Code> {
    let (volume_id, capacity_range) = (id.to_owned(), at_least(2 * SIZE));
    let expand = ControllerExpandVolumeRequest { volume_id, capacity_range, ..Default::default() };
    answer(client(node).controller_expand_volume(expand).await)
}

/// Publishes a volume. Returns the request that unpublishes it.
pub(crate) async fn publish(node: &Node, id: &str, kind: Kind) -> NodeUnpublishVolumeRequest {
    let (volume_id, target) = (id.to_owned(), node.kubelet().join("pods/published"));
    let unpublish = NodeUnpublishVolumeRequest { volume_id, target_path: target.display().to_string() };
    let publish = NodePublishVolumeRequest {
        volume_id: unpublish.volume_id.clone(),
        target_path: unpublish.target_path.clone(),
        volume_capability: Some(capability(kind, Mode::SingleNodeWriter)),
        ..NodePublishVolumeRequest::default()
    };
    answer(node.client().node_publish_volume(publish).await).expect("publish");
    unpublish
}

pub(crate) fn record(node: &Node, id: &str) -> Option<Record> {
    let id: VolumeId = id.parse().expect("an ID");
    node.volumes().store().records().expect("records").readable.remove(&id)
}

/// One node for all requirements, because each node needs a file system.
#[test]
fn the_controller_service_works_beside_the_node_service() {
    let node = Node::start(Services::ForSidecars);
    node.block_on(async {
        assert_eq!(
            services(&node).await,
            [
                service::Type::ControllerService,
                service::Type::GroupControllerService,
                service::Type::VolumeAccessibilityConstraints,
            ]
        );
        a_volume_has_the_owner_and_the_place(&node).await;
        a_conflict_exists_already(&node).await;
        a_block_volume_has_limits_that_change(&node).await;
        other_nodes_are_rejected(&node).await;
        volumes_of_the_provisioner_stay_unchanged(&node).await;
        a_published_volume_is_not_deleted(&node).await;
        a_file_with_many_names_is_deleted_by_one_call(&node).await;
        a_clone_has_the_content_of_its_source(&node).await;
        pages_have_every_volume_once(&node).await;
        volumes_without_a_fault_are_not_in_the_list_of_health(&node).await;
        no_volume_is_created_for_limits_that_the_node_does_not_have(&node).await;
        a_message_of_more_than_a_mebibyte_is_rejected(&node).await;
        a_volume_survives_a_restart(&node).await;
        // The last one: the fault stays until the node ends.
        a_fault_of_the_disk_is_in_the_health_of_all_volumes(&node).await;
    });
    node.end();
}

#[test]
fn groups_are_not_announced_if_pods_cannot_be_stopped() {
    let node = Node::start(Services::ForSidecarsAlone);
    node.block_on(async {
        assert_eq!(
            services(&node).await,
            [service::Type::ControllerService, service::Type::VolumeAccessibilityConstraints]
        );
        // The gRPC library's own answer has no message.
        let able = groups(&node).group_controller_get_capabilities(GroupControllerGetCapabilitiesRequest {}).await;
        assert_eq!(able.map(drop).map_err(|status| status.code()), Err(Code::Unimplemented));
    });
    node.end();
}

async fn services(node: &Node) -> Vec<service::Type> {
    let able = answer(node.identity().get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await).expect("answer");
    let services = able.capabilities.iter().filter_map(|capability| match &capability.r#type {
        Some(Type::Service(found)) => Some(found.r#type()),
        Some(Type::VolumeExpansion(_)) | None => None,
    });
    services.collect()
}

async fn a_volume_has_the_owner_and_the_place(node: &Node) {
    let metadata = [("csi.storage.k8s.io/pvc/namespace", "shop"), ("csi.storage.k8s.io/pvc/name", "data")];
    let parameters: HashMap<_, _> = metadata.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    for kind in Kind::ALL {
        let request = CreateVolumeRequest { parameters: parameters.clone(), ..request("pvc-owned", kind) };
        let volume = create(node, request).await.expect("create");
        assert_eq!((volume.volume_id.as_str(), volume.capacity_bytes), ("pvc-owned", SIZE));
        let here = Topology { segments: one(volume::TOPOLOGY_KEY, NODE_NAME) };
        assert_eq!(volume.accessible_topology, [here]);
        let record = record(node, "pvc-owned").expect("a record");
        assert_eq!(record.owner, Owner::Controller { source: None });
        assert_eq!(record.claim.to_string(), "shop/data");
        delete(node, "pvc-owned").await.expect("delete");
        delete(node, "pvc-owned").await.expect("the same again");
        assert_eq!(self::record(node, "pvc-owned"), None);
    }
}

async fn a_conflict_exists_already(node: &Node) {
    let name = "One Name";
    let id = create(node, request(name, Kind::Filesystem)).await.expect("create").volume_id;
    assert!(id.starts_with("csi-"), "{id}");
    let larger = CreateVolumeRequest { capacity_range: at_least(2 * SIZE), ..request(name, Kind::Filesystem) };
    let with = |value: &str| CreateVolumeRequest {
        parameters: one("bytesPerInode", value),
        ..request(name, Kind::Filesystem)
    };
    for (other, code) in [
        (request(name, Kind::Block), Some(Code::AlreadyExists)),
        (larger, Some(Code::AlreadyExists)),
        (with("65536"), Some(Code::AlreadyExists)),
        (with("2048"), None),
        (with("0"), Some(Code::InvalidArgument)),
    ] {
        assert_eq!(create(node, other.clone()).await.err(), code, "{other:?}");
    }
    // The first request still matches the volume after an expansion.
    let grown = double(node, &id).await.expect("expand");
    assert_eq!((grown.capacity_bytes, grown.node_expansion_required), (2 * SIZE, false));
    let again = create(node, request(name, Kind::Filesystem)).await.expect("the same again");
    assert_eq!((again.volume_id.as_str(), again.capacity_bytes), (id.as_str(), 2 * SIZE));
    delete(node, &id).await.expect("delete");
}

async fn a_block_volume_has_limits_that_change(node: &Node) {
    let with = |value: &str| one("writeIOPS", value);
    let limits = || record(node, "limited").expect("a record").io;
    let io = || limits().write_operations;
    let request = CreateVolumeRequest { mutable_parameters: with("100"), ..request("limited", Kind::Block) };
    create(node, request.clone()).await.expect("create");
    assert_eq!(io(), Some(100));
    create(node, request.clone()).await.expect("the same again");
    let modify = async |mutable_parameters: HashMap<String, String>| {
        let volume_id = "limited".to_owned();
        let modify = ControllerModifyVolumeRequest { volume_id, mutable_parameters, ..Default::default() };
        answer(client(node).controller_modify_volume(modify).await).map(drop)
    };
    modify(with("200")).await.expect("modify");
    assert_eq!(io(), Some(200));
    assert_eq!(create(node, request).await.err(), Some(Code::AlreadyExists), "the modification stays");
    assert_eq!(io(), Some(200));
    create(node, self::request("limited", Kind::Block)).await.expect("a request without limits");
    assert_eq!(modify(with("few")).await, Err(Code::InvalidArgument));
    assert_eq!(io(), Some(200));
    // A limit that the parameters do not name does not change.
    for parameters in [one("readIOPS", "300"), HashMap::new()] {
        modify(parameters).await.expect("modify");
        assert_eq!((limits().read_operations, io()), (Some(300), Some(200)));
    }
    modify(with("max")).await.expect("modify");
    assert_eq!((limits().read_operations, io()), (Some(300), None));
    delete(node, "limited").await.expect("delete");
    let request = CreateVolumeRequest { mutable_parameters: with("100"), ..self::request("limited", Kind::Filesystem) };
    assert_eq!(create(node, request).await.err(), Some(Code::InvalidArgument));
}

#[derive(Debug)]
struct Unlimited;

impl IoThrottle for Unlimited {
    fn check(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        Err("the controller io is missing".into())
    }

    fn apply(&self, _: &VolumeId, _: IoLimits) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }
}

/// After this error, external-provisioner does not call `DeleteVolume` if the claim is deleted.
async fn no_volume_is_created_for_limits_that_the_node_does_not_have(node: &Node) {
    let throttle: Arc<dyn IoThrottle> = Arc::new(Unlimited);
    node.volumes().store().throttle_by(Arc::downgrade(&throttle));
    let with = |value: &str| CreateVolumeRequest {
        mutable_parameters: one("writeIOPS", value),
        ..request("pvc-unlimited", Kind::Block)
    };
    assert_eq!(create(node, with("100")).await.err(), Some(Code::FailedPrecondition));
    assert_eq!(record(node, "pvc-unlimited"), None);
    create(node, with("max")).await.expect("without a limit");
    delete(node, "pvc-unlimited").await.expect("delete");
    node.restart().await;
}

async fn other_nodes_are_rejected(node: &Node) {
    let elsewhere = Topology { segments: one(volume::TOPOLOGY_KEY, "node-2") };
    let accessibility_requirements =
        Some(TopologyRequirement { requisite: vec![elsewhere.clone()], ..TopologyRequirement::default() });
    let request = CreateVolumeRequest { accessibility_requirements, ..request("elsewhere", Kind::Block) };
    assert_eq!(create(node, request).await.err(), Some(Code::ResourceExhausted));
    assert_eq!(record(node, "elsewhere"), None);
    for (place, is_here) in [(None, true), (Some(elsewhere), false)] {
        let request = GetCapacityRequest { accessible_topology: place, ..GetCapacityRequest::default() };
        let found = answer(client(node).get_capacity(request).await).expect("capacity");
        assert_eq!(found.available_capacity > 0, is_here, "{found:?}");
        assert_eq!(found.maximum_volume_size.expect("a size") > 0, is_here, "{found:?}");
    }
    let too_large =
        CreateVolumeRequest { capacity_range: at_least(1 << 50), ..self::request("too-large", Kind::Block) };
    assert_eq!(create(node, too_large).await.err(), Some(Code::ResourceExhausted));
    assert_eq!(record(node, "too-large"), None);
}

async fn volumes_of_the_provisioner_stay_unchanged(node: &Node) {
    let id = "pvc-shared-filesystem-0";
    let record = || record(node, id).expect("a record");
    let before = record();
    assert_eq!(delete(node, id).await.err(), Some(Code::FailedPrecondition));
    assert_eq!(double(node, id).await.err(), Some(Code::FailedPrecondition));
    let created = create(node, request(id, Kind::Filesystem)).await;
    assert_eq!(created.err(), Some(Code::AlreadyExists));
    assert_eq!(record(), before);
}

async fn a_published_volume_is_not_deleted(node: &Node) {
    for kind in Kind::ALL {
        let id = create(node, request("pvc-published", kind)).await.expect("create").volume_id;
        let published = publish(node, &id, kind).await;
        assert_eq!(delete(node, &id).await.err(), Some(Code::FailedPrecondition), "{kind:?}");
        // The kubelet refreshes the size of a device.
        let expanded = double(node, &id).await.expect("expand");
        assert_eq!(expanded.node_expansion_required, kind == Kind::Block);
        answer(node.client().node_unpublish_volume(published).await).expect("unpublish");
        delete(node, &id).await.expect("delete");
    }
}

/// Regression: a pass that freed no inode ended the call with `ABORTED`, and the client repeated it ever less often.
async fn a_file_with_many_names_is_deleted_by_one_call(node: &Node) {
    let id = create(node, request("pvc-links", Kind::Filesystem)).await.expect("create").volume_id;
    let top = node.kubelet().with_file_name("volumes").join("live").join(&id);
    std::fs::write(top.join("file"), [1; 4096]).expect("a file");
    // More names than one pass removes.
    for number in 0..2500 {
        std::fs::hard_link(top.join("file"), top.join(number.to_string())).expect("a name");
    }
    delete(node, &id).await.expect("delete");
    assert_eq!(record(node, &id), None);
}

async fn a_clone_has_the_content_of_its_source(node: &Node) {
    let source = create(node, request("pvc-source", Kind::Block)).await.expect("create").volume_id;
    let content = vec![7; 1 << 20];
    write(node, Kind::Block, &source, &content);
    let of = |volume_id: &str| {
        let source = VolumeSource { volume_id: volume_id.to_owned() };
        Some(VolumeContentSource { r#type: Some(volume_content_source::Type::Volume(source)) })
    };
    let request = |name: &str, kind| CreateVolumeRequest { volume_content_source: of(&source), ..request(name, kind) };
    let clone = create(node, request("pvc-clone", Kind::Block)).await.expect("clone");
    assert_eq!(clone.content_source, of(&source));
    let copied = std::fs::read(file(node, Kind::Block, &clone.volume_id)).expect("read");
    assert!(copied.starts_with(&content) && copied.len() == usize::try_from(SIZE).unwrap());
    assert_eq!(create(node, request("pvc-files", Kind::Filesystem)).await.err(), Some(Code::InvalidArgument));
    let other = CreateVolumeRequest { volume_content_source: None, ..request("pvc-clone", Kind::Block) };
    assert_eq!(create(node, other).await.err(), Some(Code::AlreadyExists));
    // The source may be deleted first, and the request repeated after that.
    delete(node, &source).await.expect("delete the source");
    create(node, request("pvc-clone", Kind::Block)).await.expect("the same again");
    delete(node, "pvc-clone").await.expect("delete");
}

async fn pages_have_every_volume_once(node: &Node) {
    let list = async |max_entries, starting_token| {
        answer(client(node).list_volumes(ListVolumesRequest { max_entries, starting_token }).await)
    };
    let all = list(0, String::new()).await.expect("all volumes");
    assert_eq!(all.next_token, "");
    let (mut found, mut token) = (Vec::new(), String::new());
    for _ in 0..all.entries.len() {
        let page = list(3, token).await.expect("a page");
        assert!((1..=3).contains(&page.entries.len()));
        found.extend(page.entries);
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(found, all.entries);
    let ids: BTreeSet<_> = found.iter().map(|entry| entry.volume.clone().expect("a volume").volume_id).collect();
    assert_eq!(ids.len(), found.len());
    assert_eq!(list(-1, String::new()).await.err(), Some(Code::InvalidArgument));
}

async fn volumes_without_a_fault_are_not_in_the_list_of_health(node: &Node) {
    let list = async |max_entries| {
        let request = ControllerListVolumeHealthRequest { max_entries, ..ControllerListVolumeHealthRequest::default() };
        answer(client(node).controller_list_volume_health(request).await)
    };
    let found = list(0).await.expect("the health of all");
    assert_eq!((found.entries, found.next_token), (Vec::new(), String::new()));
    assert_eq!(list(-1).await.err(), Some(Code::InvalidArgument));
}

/// `conformity_ktest` has the other services.
async fn a_message_of_more_than_a_mebibyte_is_rejected(node: &Node) {
    const LARGEST: usize = 1 << 20;
    for (size, expected) in [(LARGEST, Ok(())), (LARGEST + 1, Err(Code::OutOfRange))] {
        // The encoding of the ID begins with the number of the field and three bytes of length.
        let id = "x".repeat(size - 4);
        assert_eq!(delete(node, &id).await, expected, "{size} bytes");
        assert_eq!(remove_group(node, &id, &[]).await, expected, "{size} bytes");
    }
}

async fn a_volume_survives_a_restart(node: &Node) {
    let id = create(node, request("pvc-restart", Kind::Block)).await.expect("create").volume_id;
    node.restart().await;
    assert_eq!(create(node, request("pvc-restart", Kind::Block)).await.expect("the same again").volume_id, id);
    assert_eq!(record(node, &id).map(|record| record.size), Some(Bytes::new(SIZE.cast_unsigned())));
    delete(node, &id).await.expect("delete");
}

/// A fault as the node reads it in the kernel's log.
#[derive(Debug)]
struct FailedRequest;

impl DiskObserver for FailedRequest {
    fn faults(&self) -> Vec<DiskFault> {
        vec![DiskFault::Requests(NonZeroU64::MIN)]
    }
}

async fn a_fault_of_the_disk_is_in_the_health_of_all_volumes(node: &Node) {
    const REASON: &str = "DiskRequestsFailed";
    let volume_id = create(node, request("pvc-faulty", Kind::Filesystem)).await.expect("create").volume_id;
    node.volumes().store().observe_disk(Box::new(FailedRequest));
    // The services report the faults that the last check has found.
    assert_eq!(node.volumes().store().faults(), Ok(vec![DiskFault::Requests(NonZeroU64::MIN)]));
    let is_faulty = |health: &VolumeHealth| {
        let found = health.health_statuses.iter().map(|entry| (entry.status(), entry.reason.as_str()));
        found.eq([(VolumeHealthErrorType::Degraded, REASON)])
    };

    let get = ControllerGetVolumeHealthRequest { volume_id: volume_id.clone(), ..Default::default() };
    let of_controller = answer(client(node).controller_get_volume_health(get).await).expect("its health").volume_health;
    let get = NodeGetVolumeHealthRequest { volume_id: volume_id.clone(), ..Default::default() };
    let of_node = answer(node.client().node_get_volume_health(get).await).expect("its health").volume_health;
    for health in [of_controller, of_node] {
        assert!(health.as_ref().is_some_and(|found| found.volume_id == volume_id && is_faulty(found)), "{health:?}");
    }
    let listed = client(node).controller_list_volume_health(ControllerListVolumeHealthRequest::default()).await;
    let listed = answer(listed).expect("the health of all").entries;
    assert!(listed.iter().all(is_faulty), "{listed:?}");
    let all = answer(client(node).list_volumes(ListVolumesRequest::default()).await).expect("all volumes").entries;
    let all: BTreeSet<_> = all.into_iter().map(|entry| entry.volume.expect("a volume").volume_id).collect();
    assert_eq!(listed.into_iter().map(|health| health.volume_id).collect::<BTreeSet<_>>(), all);
    let storage = answer(node.client().node_get_storage_health(NodeGetStorageHealthRequest::default()).await);
    let storage = storage.expect("the health of the disk").backend_health;
    let storage: Vec<_> = storage.iter().map(|entry| (entry.status(), entry.reason.as_str())).collect();
    assert_eq!(storage, [(StorageHealthErrorType::StorageDegraded, REASON)]);
    delete(node, &volume_id).await.expect("delete");
}
