//! Services of a node that need the API server.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Client;
use provisioner::{Metrics, NoticeQueue, csinode};
use supervisor::{BoxError, Context};
use tokio::sync::watch;
use tracing::info;
use volume::{VolumeId, Volumes};

use crate::arguments::{NodeName, Provisioner};
use crate::identity;

#[derive(Clone)]
pub struct Settings {
    /// Client with the pod's token.
    pub client: Client,
    pub node: NodeName,
    pub provisioner: Provisioner,
    pub volumes: Arc<dyn Volumes>,
    pub metrics: Metrics,
    /// Called when the kubelet's record of the CSI driver is lost.
    pub register_again: Arc<dyn Fn() + Send + Sync>,
    /// Number of times that the CSI plugin has revoked the detach of a volume's device, by volume.
    pub revoked: watch::Receiver<BTreeMap<VolumeId, u64>>,
    /// Findings of the restrictions of pods. The own provisioner publishes them as events.
    pub notices: NoticeQueue,
}

/// Checks the kubelet's record of the driver, and runs the provisioner unless it is another program, until cancelled.
/// Healthy once the provisioner is healthy, or the capacity objects of an earlier provisioner are deleted.
///
/// # Errors
/// [`identity::IdentityError`], [`provisioner::WithdrawError`], or the failure of a service.
pub async fn run(cx: Context, settings: Settings) -> Result<(), BoxError> {
    let Settings { client, node, provisioner, volumes, metrics, register_again, revoked, notices } = settings;
    tokio::select! {
        () = cx.cancelled() => return Ok(()),
        checked = identity::check(&client, &node) => checked?,
    }
    info!(%node, "identity verified");
    if provisioner == Provisioner::External {
        // Delete the capacity objects of a former pod with the own provisioner.
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            withdrawn = provisioner::withdraw_capacity(&client, node.as_str()) => withdrawn?,
        }
    }
    let settings = provisioner::Settings {
        client: client.clone(),
        node: node.to_string(),
        store: volumes,
        parallel: provisioner::Settings::PARALLEL,
        metrics,
        revoked,
        notices,
    };
    let volumes = match provisioner {
        Provisioner::Own => Some(cx.start("volumes", move |cx| provisioner::run(cx, settings.clone()))),
        Provisioner::External => None,
    };
    cx.start("csinode", move |cx| {
        let (client, node, again) = (client.clone(), node.clone(), Arc::clone(&register_again));
        async move { csinode::run(cx, client, node.as_str(), || again()).await }
    });
    if let Some(volumes) = volumes {
        volumes.healthy().await?;
    }
    cx.healthy();
    cx.cancelled().await;
    Ok(())
}
