//! Waits until nothing of the cases is left.

use crate::{Failure, PATIENCE, Seen, eventually, observer};
use k8s_openapi::api::core::v1 as core;
use kube::api::ListParams;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Waits until the pods, claims and volumes of the cases are removed from the cluster and from the node.
pub(crate) async fn all_gone(client: &Client, namespaces: &[String]) -> Result<(), Failure> {
    eventually(PATIENCE, "the removal of all pods, claims and volumes of the cases", async || {
        // Each request takes CPU time of the node, and pods are removed first. A look ends at the first kind that is
        // left.
        let mut left = present::<core::Pod>(client, Some(namespaces)).await?;
        if left.is_empty() {
            left = present::<core::PersistentVolumeClaim>(client, Some(namespaces)).await?;
        }
        if left.is_empty() {
            left = present::<core::PersistentVolume>(client, None).await?;
        }
        if left.is_empty() {
            let node = observer::look(client).await?;
            left.extend(node.entries.into_iter().map(|entry| entry.path).filter(|path| path.contains("pvc-")));
            left.extend(node.loops.into_iter().map(|device| format!("{} of {}", device.name, device.file)));
            left.extend(node.mounts.into_iter().map(|mount| format!("a mount at {}", mount.point)));
        }
        Ok(if left.is_empty() { Seen::Done(()) } else { Seen::NotYet(left.join(" ")) })
    })
    .await
}

/// Names of all objects of a kind, or of those in these namespaces.
async fn present<K>(client: &Client, namespaces: Option<&[String]>) -> Result<Vec<String>, Failure>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let found = Api::<K>::all(client.clone()).list_metadata(&ListParams::default()).await;
    let found = found.map_err(Failure::api(format!("list {}", K::plural(&()))))?;
    let mut items = found.items;
    if let Some(namespaces) = namespaces {
        items.retain(|object| object.namespace().is_some_and(|namespace| namespaces.contains(&namespace)));
    }
    Ok(items.iter().map(ResourceExt::name_any).collect())
}
