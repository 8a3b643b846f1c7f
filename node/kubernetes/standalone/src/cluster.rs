//! What a node's storage does with the API server.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Client;
use provisioner::{Metrics, NoticeQueue, csinode};
use supervisor::{BoxError, Context};
use tokio::sync::watch;
use tracing::info;
use volume::{VolumeId, Volumes};

use crate::arguments::NodeName;
use crate::identity;

/// What it needs.
#[derive(Clone)]
pub struct Settings {
    /// With the pod's token.
    pub client: Client,
    /// The node.
    pub node: NodeName,
    /// Its volumes.
    pub volumes: Arc<dyn Volumes>,
    /// What is done is counted here.
    pub metrics: Metrics,
    /// Called when kubelet's record of the CSI driver is lost.
    pub register_again: Arc<dyn Fn() + Send + Sync>,
    /// How many detaches of a volume's device the CSI plugin has revoked.
    pub revoked: watch::Receiver<BTreeMap<VolumeId, u64>>,
    /// What the restrictions of pods found.
    pub notices: NoticeQueue,
}

/// Makes volumes, and sees to kubelet's record of the driver, until it is cancelled. Healthy once the provisioner has seen
/// the cluster.
///
/// # Errors
/// [`identity::IdentityError`], and what ends a part of it: to be started again after a while.
pub async fn run(cx: Context, settings: Settings) -> Result<(), BoxError> {
    let Settings { client, node, volumes, metrics, register_again, revoked, notices } = settings;
    tokio::select! {
        () = cx.cancelled() => return Ok(()),
        known = identity::check(&client, &node) => known?,
    }
    info!(%node, "the API server knows this pod as the node's storage");
    let settings = provisioner::Settings {
        client: client.clone(),
        node: node.to_string(),
        store: volumes,
        parallel: provisioner::Settings::PARALLEL,
        metrics,
        revoked,
        notices,
    };
    let volumes = cx.start("volumes", move |cx| provisioner::run(cx, settings.clone()));
    cx.start("csinode", move |cx| {
        let (client, node, again) = (client.clone(), node.clone(), Arc::clone(&register_again));
        async move { csinode::run(cx, client, node.as_str(), || again()).await }
    });
    volumes.healthy().await?;
    cx.healthy();
    cx.cancelled().await;
    Ok(())
}
