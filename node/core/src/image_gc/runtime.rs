//! containerd's images and containers, by the Container Runtime Interface.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use proto::cri::image_service_client::ImageServiceClient;
use proto::cri::runtime_service_client::RuntimeServiceClient;
use proto::cri::{ImageSpec, ListContainersRequest, ListImagesRequest, RemoveImageRequest};
use tonic::transport::{Channel, Endpoint};

use super::GcError;
use super::plan::{Image, ImageId, Usage};

/// For one call. containerd removes the files of an image before it answers.
const LIMIT: Duration = Duration::from_secs(120);
/// The kubelet's limit for a message of a container runtime.
const LARGEST: usize = 16 << 20;

#[derive(Clone, Debug)]
pub(crate) struct Runtime {
    images: ImageServiceClient<Channel>,
    containers: RuntimeServiceClient<Channel>,
}

impl Runtime {
    /// Connects at the first call, and again after a restart of containerd.
    pub(crate) fn at(socket: &Path) -> Result<Self, GcError> {
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display())).map_err(GcError::Socket)?;
        let channel = endpoint.timeout(LIMIT).connect_lazy();
        Ok(Self {
            images: ImageServiceClient::new(channel.clone()).max_decoding_message_size(LARGEST),
            containers: RuntimeServiceClient::new(channel).max_decoding_message_size(LARGEST),
        })
    }

    /// The containers are listed last: an image is in use if a container started from it meanwhile.
    pub(crate) async fn images(&mut self) -> Result<Vec<Image>, GcError> {
        let listed = self.images.list_images(ListImagesRequest {}).await;
        let listed = listed.map_err(failed("list images"))?.into_inner().images;
        let containers = self.containers.list_containers(ListContainersRequest {}).await;
        let containers = containers.map_err(failed("list containers"))?.into_inner().containers;
        let used: BTreeSet<String> = containers.into_iter().map(|container| container.image_id).collect();
        let image = |image: proto::cri::Image| Image {
            usage: if image.pinned {
                Usage::Pinned
            } else if used.contains(&image.id) {
                Usage::InUse
            } else {
                Usage::Unused
            },
            name: image.repo_tags.iter().chain(&image.repo_digests).next().unwrap_or(&image.id).clone(),
            id: ImageId(image.id),
        };
        Ok(listed.into_iter().map(image).collect())
    }

    /// With all its names. Done if it does not exist.
    pub(crate) async fn remove(&mut self, Image { id, name, .. }: &Image) -> Result<(), GcError> {
        let image = Some(ImageSpec { image: id.0.clone() });
        let failed = |status| GcError::Remove { image: name.clone(), source: Box::new(status) };
        self.images.remove_image(RemoveImageRequest { image }).await.map(drop).map_err(failed)
    }
}

fn failed(call: &'static str) -> impl FnOnce(tonic::Status) -> GcError {
    move |status| GcError::Call { call, source: Box::new(status) }
}
