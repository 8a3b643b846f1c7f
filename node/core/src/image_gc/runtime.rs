//! containerd's images and containers, through the Container Runtime Interface.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use proto::cri::image_service_client::ImageServiceClient;
use proto::cri::runtime_service_client::RuntimeServiceClient;
use proto::cri::{ImageSpec, ListContainersRequest, ListImagesRequest, RemoveImageRequest};
use tonic::transport::{Channel, Endpoint};

use super::plan::{Image, ImageId, Usage};
use crate::error::StepError;

/// Deadline of one call. containerd removes the files of an image before it responds.
const LIMIT: Duration = Duration::from_secs(120);
/// The kubelet's size limit for a message of a container runtime.
const LARGEST: usize = 16 << 20;

#[derive(Clone, Debug)]
pub(crate) struct Runtime {
    images: ImageServiceClient<Channel>,
    containers: RuntimeServiceClient<Channel>,
}

impl Runtime {
    /// Connects at the first call, and reconnects after a restart of containerd.
    pub(crate) fn at(socket: &Path) -> Result<Self, StepError> {
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display()));
        let endpoint = endpoint.map_err(StepError::of("containerd's socket has an invalid path"))?;
        let channel = endpoint.timeout(LIMIT).connect_lazy();
        Ok(Self {
            images: ImageServiceClient::new(channel.clone()).max_decoding_message_size(LARGEST),
            containers: RuntimeServiceClient::new(channel).max_decoding_message_size(LARGEST),
        })
    }

    /// Lists the images and whether they are in use. The containers are listed last, so that a container that starts
    /// meanwhile counts.
    pub(crate) async fn images(&mut self) -> Result<Vec<Image>, StepError> {
        let listed = self.images.list_images(ListImagesRequest {}).await;
        let listed = listed.map_err(StepError::of("cannot list the images in containerd"))?.into_inner().images;
        let containers = self.containers.list_containers(ListContainersRequest {}).await;
        let containers =
            containers.map_err(StepError::of("cannot list the containers in containerd"))?.into_inner().containers;
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

    /// Removes the image with all its names. Succeeds if the image does not exist.
    pub(crate) async fn remove(&mut self, Image { id, name, .. }: &Image) -> Result<(), StepError> {
        let image = Some(ImageSpec { image: id.0.clone() });
        let text = format!("cannot remove the image {name} from containerd, will try the others first");
        self.images.remove_image(RemoveImageRequest { image }).await.map(drop).map_err(StepError::of(text))
    }
}
