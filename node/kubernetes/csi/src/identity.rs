//! The Identity service, and the information about the node.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use proto::csi::identity_server::Identity;
use proto::csi::plugin_capability::{Service, VolumeExpansion, service, volume_expansion};
use proto::csi::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    NodeGetInfoResponse, PluginCapability, ProbeRequest, ProbeResponse, Topology, plugin_capability,
};
use tonic::{Request, Response, Status};
use tracing::warn;

use crate::host::Host;
use crate::threads::Threads;

pub(crate) struct IdentityService<H> {
    pub(crate) version: String,
    /// Services that depend on the plugin's settings.
    pub(crate) services: Vec<service::Type>,
    pub(crate) host: Arc<H>,
    /// Threads that measure the disk.
    pub(crate) measurements: Threads,
}

#[tonic::async_trait]
impl<H: Host> Identity for IdentityService<H> {
    async fn get_plugin_info(
        &self,
        _request: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: volume::DRIVER_NAME.to_owned(),
            vendor_version: self.version.clone(),
            manifest: HashMap::new(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _request: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let services = self.services.iter().chain(&[service::Type::VolumeAccessibilityConstraints]);
        let services = services.map(|service| plugin_capability::Type::Service(Service { r#type: (*service).into() }));
        let expansion = VolumeExpansion { r#type: volume_expansion::Type::Online.into() };
        let types = services.chain([plugin_capability::Type::VolumeExpansion(expansion)]);
        let capabilities = types.map(|r#type| PluginCapability { r#type: Some(r#type) }).collect();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _request: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let host = Arc::clone(&self.host);
        let ready = self.measurements.run(move || host.ready()).await;
        if let Err(error) = &ready {
            warn!(error = error as &dyn Error, "cannot serve volumes");
        }
        Ok(Response::new(ProbeResponse { ready: Some(ready.is_ok()) }))
    }
}

/// Topology of the node's volumes, which only pods on this node can use.
pub(crate) fn topology(node: &str) -> Topology {
    Topology { segments: HashMap::from([(volume::TOPOLOGY_KEY.to_owned(), node.to_owned())]) }
}

pub(crate) fn node_info(node: &str) -> NodeGetInfoResponse {
    NodeGetInfoResponse {
        node_id: node.to_owned(),
        max_volumes_per_node: 0, // limited by the disk only
        accessible_topology: Some(topology(node)),
    }
}
