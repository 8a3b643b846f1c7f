//! The Identity service, and the information about the node.

use std::collections::BTreeMap;

use conformity::{NODE_NAME, VERSION, answer, capability, hold, hold_each};
use proto::csi::controller_client::ControllerClient;
use proto::csi::group_controller_client::GroupControllerClient;
use proto::csi::node_service_capability::{Type, rpc};
use proto::csi::plugin_capability::{Service, VolumeExpansion, service, volume_expansion};
use proto::csi::volume_capability::access_mode::Mode;
use proto::csi::{
    ControllerGetCapabilitiesRequest, CreateVolumeRequest, GetPluginCapabilitiesRequest, GetPluginInfoRequest,
    GroupControllerGetCapabilitiesRequest, METHODS, NodeGetCapabilitiesRequest, NodeGetInfoRequest,
    NodeStageVolumeRequest, NodeUnstageVolumeRequest, plugin_capability,
};
use tonic::{Code, Status};

use crate::wire::call;

/// csi-sanity: GetPluginInfo should return appropriate information. Specification: GetPluginInfo, Size Limits.
#[test]
fn the_plugin_has_a_name_of_a_domain_and_a_version() {
    hold(async |case| {
        let info = answer(case.node().identity().get_plugin_info(GetPluginInfoRequest {}).await).expect("info");
        assert_eq!((info.name.as_str(), info.vendor_version.as_str()), (volume::DRIVER_NAME, VERSION));
        assert!((1..=63).contains(&info.name.len()), "{}", info.name);
        assert!(info.name.starts_with(|first: char| first.is_ascii_alphabetic()), "{}", info.name);
        assert!(info.name.ends_with(|last: char| last.is_ascii_alphabetic()), "{}", info.name);
        let allowed = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.');
        assert!(info.name.chars().all(allowed), "{}", info.name);
        assert!(info.name.split('.').all(|label| !label.is_empty() && label.len() <= 63), "{}", info.name);
        assert!(info.vendor_version.len() <= 128, "{}", info.vendor_version);
        assert_eq!(info.manifest.len(), 0);
    });
}

/// csi-sanity: GetPluginCapabilities should return appropriate capabilities. There is no controller service.
#[test]
fn the_plugin_can_do_exactly_what_it_announces() {
    hold(async |case| {
        let request = GetPluginCapabilitiesRequest {};
        let able = answer(case.node().identity().get_plugin_capabilities(request).await).expect("capabilities");
        let able: Vec<_> = able.capabilities.into_iter().map(|found| found.r#type.expect("a type")).collect();
        let topology = Service { r#type: service::Type::VolumeAccessibilityConstraints.into() };
        let online = VolumeExpansion { r#type: volume_expansion::Type::Online.into() };
        let wanted = [plugin_capability::Type::Service(topology), plugin_capability::Type::VolumeExpansion(online)];
        assert_eq!(able, wanted);
    });
}

/// csi-sanity: NodeGetInfo should return appropriate values. Specification: NodeGetInfo.
#[test]
fn the_node_has_an_id_a_place_and_no_limit() {
    hold(async |case| {
        let info = answer(case.node().client().node_get_info(NodeGetInfoRequest {}).await).expect("info");
        assert_eq!(info.node_id, NODE_NAME);
        assert!(info.node_id.len() <= 256);
        assert_eq!(info.max_volumes_per_node, 0);
        let segments: BTreeMap<_, _> = info.accessible_topology.expect("a topology").segments.into_iter().collect();
        assert_eq!(segments, BTreeMap::from([(volume::TOPOLOGY_KEY.to_owned(), NODE_NAME.to_owned())]));
    });
}

/// csi-sanity: NodeGetCapabilities should return appropriate capabilities. Specification: a call whose capability has
/// its name is implemented if the node announces the capability.
#[test]
fn the_node_can_do_exactly_what_it_announces() {
    hold(async |case| {
        let request = NodeGetCapabilitiesRequest {};
        let able = answer(case.node().client().node_get_capabilities(request).await).expect("capabilities");
        let kinds = able.capabilities.iter().map(|found| match &found.r#type {
            Some(Type::Rpc(rpc)) => rpc.r#type(),
            None => rpc::Type::Unknown,
        });
        let mut kinds: Vec<_> = kinds.collect();
        kinds.sort_unstable();
        let mut wanted = vec![rpc::Type::VolumeCondition, rpc::Type::SingleNodeMultiWriter];
        for path in METHODS {
            let capability = path.strip_prefix("/csi.v1.Node/Node").map(capability_name);
            let Some(capability) = capability.and_then(|name| rpc::Type::from_str_name(&name)) else { continue };
            if call(case.node().channel(), path, Vec::new()).await != Code::Unimplemented {
                wanted.push(capability);
            }
        }
        wanted.sort_unstable();
        assert_eq!(kinds, wanted, "correct CAPABILITIES of the plugin's Node service, or implement the call");
        assert!(kinds.contains(&rpc::Type::GetVolumeStats), "{kinds:?}");
    });
}

/// Name of the capability for a call: `GET_VOLUME_STATS` for `GetVolumeStats`.
fn capability_name(name: &str) -> String {
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !words.is_empty() {
            words.push('_');
        }
        words.push(letter.to_ascii_uppercase());
    }
    words
}

/// Specification: Error Scheme, Call not implemented; NodeStageVolume and NodeUnstageVolume without
/// STAGE_UNSTAGE_VOLUME. csi-sanity then skips its tests of staging.
#[test]
fn staging_is_not_implemented_whatever_the_message() {
    hold_each(async |case, kind| {
        let volume = case.volume(kind);
        let (volume_id, staging_target_path) = (volume.id.to_string(), "/staging".to_owned());
        let full = NodeStageVolumeRequest {
            volume_id: volume_id.clone(),
            staging_target_path: staging_target_path.clone(),
            volume_capability: Some(capability(kind, Mode::SingleNodeWriter)),
            ..NodeStageVolumeRequest::default()
        };
        for message in [full, NodeStageVolumeRequest::default()] {
            let staged = answer(case.node().client().node_stage_volume(message).await);
            assert_eq!(staged.err(), Some(Code::Unimplemented));
        }
        let full = NodeUnstageVolumeRequest { volume_id, staging_target_path };
        for message in [full, NodeUnstageVolumeRequest::default()] {
            let unstaged = answer(case.node().client().node_unstage_volume(message).await);
            assert_eq!(unstaged.err(), Some(Code::Unimplemented));
        }
    });
}

/// Specification: Error Scheme, Call not implemented; the services that GetPluginCapabilities does not name.
#[test]
fn services_that_are_not_announced_are_not_implemented() {
    hold(async |case| {
        let code = |status: Status| status.code(); // the gRPC library's own answer has no message
        let mut controller = ControllerClient::new(case.node().channel());
        let able = controller.controller_get_capabilities(ControllerGetCapabilitiesRequest {}).await;
        assert_eq!(able.map_err(code).err(), Some(Code::Unimplemented));
        let created = controller.create_volume(CreateVolumeRequest::default()).await;
        assert_eq!(created.map_err(code).err(), Some(Code::Unimplemented));
        let mut groups = GroupControllerClient::new(case.node().channel());
        let able = groups.group_controller_get_capabilities(GroupControllerGetCapabilitiesRequest {}).await;
        assert_eq!(able.map_err(code).err(), Some(Code::Unimplemented));
    });
}
