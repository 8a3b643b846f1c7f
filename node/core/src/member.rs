//! The services of every node, control plane and worker.

use std::future::pending;
use std::net::Ipv4Addr;
use std::sync::Arc;

use ::clock::Keeper;
use cluster::Networking;
use config::NodeName;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use programs::{Credentials, Identity, Requested, Stale, containerd, kubelet, pods, proxy};
use provisioner::{NoticeQueue, csinode};
use supervisor::{BoxError, Context, Handle};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tracing::info;

use crate::certificates::{CertificateStatus, renewal};
use crate::dns::Dns;
use crate::guard::PodGuard;
use crate::host::Host;
use crate::image_gc::ImageGc;
use crate::images::GivenArchives;
use crate::mesh::Mesh;
use crate::modules::Modules;
use crate::status::Facts;
use crate::storage::Storage;
use crate::uplink::Uplink;
use crate::{images, orphans, restart, status, system};

const NETWORK_MODULES: &str = "/usr/lib/modules/network";

pub(crate) struct Member {
    pub(crate) node: NodeName,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) services: programs::Config,
    pub(crate) storage: Storage,
    pub(crate) plugin: Arc<csi::Plugin<csi::Linux>>,
    pub(crate) mesh: Arc<Mesh>,
    pub(crate) guard: Arc<PodGuard>,
    pub(crate) modules: Option<Arc<Modules>>,
    pub(crate) image_gc: Arc<ImageGc>,
    pub(crate) notices: NoticeQueue,
    pub(crate) uplink: Arc<Uplink>,
    pub(crate) facts: Facts,
    pub(crate) metrics: provisioner::Metrics,
    pub(crate) since: Timestamp,
    pub(crate) host: Host,
}

/// Services without dependencies, for which others wait.
pub(crate) struct BaseServices {
    pub(crate) modules: Handle,
    pub(crate) guard: Handle,
}

impl Member {
    /// Starts the services that do not need the cluster. `server` is the API server's address if another node runs it.
    pub(crate) fn start_base(&self, cx: &Context, server: Option<Ipv4Addr>) -> BaseServices {
        cx.start("orphans", orphans::run);
        let uplink = Arc::clone(&self.uplink);
        let keeper = Arc::clone(&self.keeper);
        cx.start("uplink", move |cx| {
            let (uplink, missed) = (Arc::clone(&uplink), keeper.missed());
            async move { uplink.run(cx, missed).await }
        });
        let keeper = Arc::clone(&self.keeper);
        cx.start("clock", move |cx| Arc::clone(&keeper).run(cx));
        let (address, facts) = (self.services.address, self.facts.clone());
        cx.start("status", move |cx| status::run(cx, address, server, facts.clone()));
        let modules = cx.start("network-modules", network_modules);
        if let Some(modules) = self.modules.clone() {
            cx.start("kernel-modules", move |cx| Arc::clone(&modules).run(cx));
        }
        let guard = Arc::clone(&self.guard);
        let guard = cx.start("pod-guard", move |cx| Arc::clone(&guard).run(cx));
        BaseServices { modules, guard }
    }

    /// Starts containerd when pods are restricted, then the image import and the CSI plugin, which the kubelet needs.
    pub(crate) async fn start_runtime(&self, cx: &Context, guard: Handle) -> Result<[Handle; 2], BoxError> {
        guard.healthy().await?;
        cx.start("containerd", containerd::service(&self.services)).healthy().await?;
        let ephemeral = self.services.paths.ephemeral.clone();
        let given = spawn_blocking(move || GivenArchives::find(&ephemeral)).await??;
        let images = cx.start("images", images::service(&self.services, given));
        let plugin = Arc::clone(&self.plugin);
        let csi = cx.start("csi", restart::on_request(move |cx| Arc::clone(&plugin).run(cx)));
        Ok([images, csi])
    }

    /// Starts kube-proxy with the identity `proxy` if the node has kube-proxy, the removal of unused images, and the
    /// kubelet. The certificates of kube-proxy and the kubelet must exist.
    pub(crate) async fn start_pods(
        &self,
        cx: &Context,
        credentials: &Arc<Credentials>,
        proxy: Identity,
        modules: Handle,
        runtime: [Handle; 2],
    ) -> Result<(), BoxError> {
        modules.healthy().await?;
        if self.services.settings.networking.has_kube_proxy() {
            cx.start("kube-proxy", proxy::service(&self.services, credentials, proxy));
        }
        for handle in runtime {
            handle.healthy().await?;
        }
        let gc = Arc::clone(&self.image_gc);
        cx.start("image-gc", move |cx| Arc::clone(&gc).run(cx));
        cx.start("kubelet", self.guard.while_restricted(kubelet::service(&self.services, credentials)));
        Ok(())
    }

    /// Runs the provisioner, and the watch that registers the CSI plugin again if its CSINode entry is lost. Healthy
    /// when the provisioner is healthy.
    async fn provision(self: Arc<Self>, cx: Context, identity: StorageIdentity) -> Result<(), BoxError> {
        identity
            .with_client(&cx, |client| {
                let settings = provisioner::Settings {
                    client: client.clone(),
                    node: self.node.to_string(),
                    store: self.storage.volumes(),
                    parallel: provisioner::Settings::PARALLEL,
                    metrics: self.metrics.clone(),
                    revoked: self.plugin.revoked(),
                    notices: self.notices.clone(),
                };
                let volumes = cx.start("volumes", move |cx| provisioner::run(cx, settings.clone()));
                let member = Arc::clone(&self);
                [volumes, cx.start("csinode", move |cx| Arc::clone(&member).watch_csinode(cx, client.clone()))]
            })
            .await
    }

    /// Runs the pod network and the mesh. Healthy when pods have addresses.
    async fn connect(self: Arc<Self>, cx: Context, identity: StorageIdentity) -> Result<(), BoxError> {
        identity
            .with_client(&cx, |client| {
                let (pods_client, config) = (client.clone(), self.services.clone());
                let pods = cx.start("pods", move |cx| pods::run(cx, pods_client.clone(), config.clone()));
                let mesh = Arc::clone(&self.mesh);
                [pods, cx.start("mesh", move |cx| Arc::clone(&mesh).run(cx, client.clone()))]
            })
            .await
    }

    /// `certificate` is CoreDNS' certificate if the node requests it.
    pub(crate) fn start_network_and_storage(
        self: &Arc<Self>,
        cx: &Context,
        credentials: &Arc<Credentials>,
        identity: &StorageIdentity,
        certificate: Option<Requested>,
    ) {
        let (member, network) = (Arc::clone(self), identity.clone());
        let network = match self.services.settings.networking {
            Networking::BuiltIn => cx.start("pod-network", move |cx| Arc::clone(&member).connect(cx, network.clone())),
            Networking::Plugin(_) => cx.start("node-rules", move |cx| pods::protect(cx, member.services.clone())),
        };
        let dns = Arc::new(Dns {
            services: self.services.clone(),
            credentials: Arc::clone(credentials),
            certificate: certificate.map(Arc::new),
            clock: self.keeper.state(),
            name_servers: self.uplink.name_servers(),
            network,
        });
        cx.start("dns", move |cx| Arc::clone(&dns).run(cx));
        let (member, storage) = (Arc::clone(self), identity.clone());
        cx.start("provisioner", restart::on_request(move |cx| Arc::clone(&member).provision(cx, storage.clone())));
    }

    async fn watch_csinode(self: Arc<Self>, cx: Context, client: Client) -> Result<(), csinode::WatchEnded> {
        csinode::run(cx, client, self.node.as_str(), || self.plugin.register_again()).await
    }

    pub(crate) async fn watch_node(self: Arc<Self>, cx: Context, client: Client) -> Result<(), BoxError> {
        let nodes: Api<Node> = Api::all(client);
        let ready = await_condition(nodes, self.node.as_str(), |node: Option<&Node>| {
            node.is_some_and(|node| kubelet::is_ready(node, self.since))
        });
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            found = ready => {
                // Once per boot: the kubelet writes this field when it registers the node.
                if let Some(system) = found?.and_then(|node| node.status?.node_info) {
                    self.facts.kubernetes.get_or_init(|| system.into());
                }
            }
        }
        let memory = system::own_memory().map(|memory| memory.to_string());
        info!(node = %self.node, memory, "node is Ready");
        cx.done();
        Ok(())
    }
}

/// The identity of the node's storage. A control plane signs the certificate with its others, a worker requests it.
#[derive(Clone)]
pub(crate) struct StorageIdentity {
    credentials: Arc<Credentials>,
    source: CertificateSource,
}

#[derive(Clone)]
enum CertificateSource {
    Signed(watch::Receiver<CertificateStatus>),
    Requested { certificate: Arc<Requested>, clock: watch::Receiver<::clock::ClockState> },
}

impl StorageIdentity {
    pub(crate) fn signed(credentials: &Arc<Credentials>, status: watch::Receiver<CertificateStatus>) -> Self {
        Self { credentials: Arc::clone(credentials), source: CertificateSource::Signed(status) }
    }

    pub(crate) fn requested(member: &Member, credentials: &Arc<Credentials>) -> Self {
        let certificate = Arc::new(Requested::storage(&member.services, credentials));
        let source = CertificateSource::Requested { certificate, clock: member.keeper.state() };
        Self { credentials: Arc::clone(credentials), source }
    }

    /// Done when a certificate exists, even if it is due for renewal.
    pub(crate) async fn request(self, cx: Context) -> Result<(), BoxError> {
        if let CertificateSource::Requested { certificate, .. } = &self.source
            && !matches!(certificate.on_disk().await?, Ok(_) | Err(Stale::Expiring))
        {
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                lasting = certificate.ensure() => { lasting?; }
            }
        }
        cx.done();
        Ok(())
    }

    /// Waits for a certificate. The returned future ends when services need another client.
    async fn ensure(&self) -> Result<BoxFuture<'static, ()>, BoxError> {
        match &self.source {
            CertificateSource::Signed(status) => {
                let mut status = status.clone();
                let renewals = status.borrow().client_renewals;
                Ok(Box::pin(async move {
                    if status.wait_for(|status| status.client_renewals != renewals).await.is_err() {
                        pending().await
                    }
                    info!("certificate of the node's storage renewed, connecting again");
                }))
            }
            CertificateSource::Requested { certificate, clock } => {
                let lasting = certificate.ensure().await?;
                let jumps = clock.borrow().jumps;
                let clock = clock.clone();
                Ok(Box::pin(async move {
                    tokio::select! {
                        // Covers a certificate that was rejected only because the clock was wrong.
                        () = renewal(lasting, clock.clone()) => info!("certificate of the node's storage is due for renewal"),
                        () = jump(clock.clone(), jumps) => info!("clock jumped, connecting to the API server again"),
                    }
                }))
            }
        }
    }

    /// Runs services with a client of this identity, and restarts them when they need another client. Healthy when the
    /// first service is healthy.
    async fn with_client(self, cx: &Context, start: impl Fn(Client) -> [Handle; 2]) -> Result<(), BoxError> {
        loop {
            let replaced = tokio::select! {
                () = cx.cancelled() => return Ok(()),
                ensured = self.ensure() => ensured?,
            };
            let [first, second] = start(self.credentials.client(Identity::Storage).await?);
            let ready = async {
                let ready = first.healthy().await;
                if ready.is_ok() {
                    cx.healthy();
                    return pending().await;
                }
                ready
            };
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = replaced => {}
                failed = ready => failed?,
            }
            second.stop().await;
            first.stop().await;
        }
    }
}

/// Waits for the first clock jump after the jump number `jumps`. An API server on another node may have closed
/// connections during the jump, which a watch would notice only after minutes. On a control plane, both ends of a
/// connection stood still. Cancel-safe.
async fn jump(mut clock: watch::Receiver<::clock::ClockState>, jumps: u32) {
    if clock.wait_for(|state| state.jumps != jumps).await.is_err() {
        pending().await
    }
}

async fn network_modules(cx: Context) -> Result<(), BoxError> {
    let report = spawn_blocking(|| kernel::modules::load(NETWORK_MODULES)).await??;
    system::prepare_connections()?;
    info!(loaded = report.loaded.len(), "network modules loaded");
    cx.done();
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// Regression: after the API server had closed the connection, a watch waited for minutes.
    #[tokio::test]
    async fn a_clock_jump_reconnects_to_the_api_server_of_another_node() {
        let sender = watch::Sender::new(::clock::ClockState::default());
        assert_eq!(jump(sender.subscribe(), 0).now_or_never(), None);
        sender.send_modify(|state| state.jumps = 1);
        assert_eq!(jump(sender.subscribe(), 0).now_or_never(), Some(()));
    }
}
