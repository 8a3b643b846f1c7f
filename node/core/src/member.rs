//! What every node of a cluster runs, whatever else it is to the cluster.

use std::future::pending;
use std::net::Ipv4Addr;
use std::sync::Arc;

use ::clock::Keeper;
use config::NodeName;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use programs::{Credentials, Identity, Requested, Stale, containerd, kubelet, pods, proxy};
use provisioner::{NoticeQueue, csinode};
use supervisor::{BoxError, Context, Handle};
use tokio::sync::watch;
use tracing::info;

use crate::certificates::renewal;
use crate::guard::PodGuard;
use crate::host::Host;
use crate::mesh::Mesh;
use crate::modules::Modules;
use crate::status::Facts;
use crate::storage::Storage;
use crate::uplink::Uplink;
use crate::{orphans, restart, status, system};

const NETWORK_MODULES: &str = "/usr/lib/modules/network";

/// The node's own parts.
pub(crate) struct Member {
    pub(crate) node: NodeName,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) services: programs::Config,
    pub(crate) storage: Storage,
    pub(crate) plugin: Arc<csi::Plugin<csi::Linux>>,
    pub(crate) mesh: Arc<Mesh>,
    pub(crate) guard: Arc<PodGuard>,
    /// Of the configuration.
    pub(crate) modules: Option<Arc<Modules>>,
    /// Of the guard, for the provisioner's events.
    pub(crate) notices: NoticeQueue,
    pub(crate) uplink: Arc<Uplink>,
    /// What the status pages tell.
    pub(crate) facts: Facts,
    /// The provisioner's, which outlive it.
    pub(crate) metrics: provisioner::Metrics,
    /// When the services were started.
    pub(crate) since: Timestamp,
    pub(crate) host: Host,
}

/// Services that need nobody, and that others need.
pub(crate) struct Ground {
    pub(crate) modules: Handle,
    /// Healthy when pods are restricted.
    pub(crate) guard: Handle,
}

impl Member {
    /// Starts what needs no cluster. `server` is where the API server is, if that is another node.
    pub(crate) fn begin(&self, cx: &Context, server: Option<Ipv4Addr>) -> Ground {
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
        Ground { modules, guard }
    }

    /// Starts containerd when pods are restricted, and then what kubelet finds at its start.
    pub(crate) async fn runtime(&self, cx: &Context, guard: Handle) -> Result<[Handle; 2], BoxError> {
        guard.healthy().await?;
        cx.start("containerd", containerd::service(&self.services)).healthy().await?;
        let images = cx.start("images", containerd::images(&self.services));
        let plugin = Arc::clone(&self.plugin);
        let csi = cx.start("csi", restart::on_request(move |cx| Arc::clone(&plugin).run(cx)));
        Ok([images, csi])
    }

    /// Starts kube-proxy with this identity, and kubelet. The credentials of both have to be there.
    pub(crate) async fn pods(
        &self,
        cx: &Context,
        credentials: &Arc<Credentials>,
        proxy: Identity,
        modules: Handle,
        runtime: [Handle; 2],
    ) -> Result<(), BoxError> {
        modules.healthy().await?;
        cx.start("kube-proxy", proxy::service(&self.services, credentials, proxy));
        for handle in runtime {
            handle.healthy().await?;
        }
        cx.start("kubelet", self.guard.while_restricted(kubelet::service(&self.services, credentials)));
        Ok(())
    }

    /// The provisioner, and what tells the CSI plugin that its entry was lost. Healthy when the provisioner is.
    pub(crate) async fn provision(self: Arc<Self>, cx: Context, own: Own) -> Result<(), BoxError> {
        own.with_client(&cx, |client| {
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
            let this = Arc::clone(&self);
            [volumes, cx.start("csinode", move |cx| Arc::clone(&this).watch_csinode(cx, client.clone()))]
        })
        .await
    }

    /// The pods' network, and the mesh. Healthy when pods have addresses.
    pub(crate) async fn connect(self: Arc<Self>, cx: Context, own: Own) -> Result<(), BoxError> {
        own.with_client(&cx, |client| {
            let (its, config) = (client.clone(), self.services.clone());
            let pods = cx.start("pods", move |cx| pods::run(cx, its.clone(), config.clone()));
            let mesh = Arc::clone(&self.mesh);
            [pods, cx.start("mesh", move |cx| Arc::clone(&mesh).run(cx, client.clone()))]
        })
        .await
    }

    /// Starts the services that need the storage identity: [`connect`](Self::connect) and [`provision`](Self::provision).
    pub(crate) fn network_and_storage(self: &Arc<Self>, cx: &Context, own: &Own) {
        let (this, its) = (Arc::clone(self), own.clone());
        cx.start("pod-network", move |cx| Arc::clone(&this).connect(cx, its.clone()));
        let (this, its) = (Arc::clone(self), own.clone());
        cx.start("provisioner", restart::on_request(move |cx| Arc::clone(&this).provision(cx, its.clone())));
    }

    async fn watch_csinode(self: Arc<Self>, cx: Context, client: Client) -> Result<(), csinode::WatchEnded> {
        csinode::run(cx, client, self.node.as_str(), || self.plugin.register_again()).await
    }

    /// Healthy, once and for all, when the Node object is Ready.
    pub(crate) async fn watch_node(self: Arc<Self>, cx: Context, client: Client) -> Result<(), BoxError> {
        let nodes: Api<Node> = Api::all(client);
        let ready = await_condition(nodes, self.node.as_str(), |node: Option<&Node>| {
            node.is_some_and(|node| kubelet::is_ready(node, self.since))
        });
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            found = ready => {
                // Told once for each boot: kubelet writes it when it registers the node.
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

/// Which node runs the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// This one.
    Here,
    /// Another one.
    Elsewhere,
}

/// The node's own identity, that of its storage.
#[derive(Clone)]
pub(crate) struct Own {
    credentials: Arc<Credentials>,
    certificate: Arc<Requested>,
    clock: watch::Receiver<::clock::ClockState>,
    server: Server,
}

impl Own {
    pub(crate) fn new(member: &Member, credentials: &Arc<Credentials>, server: Server) -> Self {
        let certificate = Arc::new(Requested::storage(&member.services, credentials));
        Self { credentials: Arc::clone(credentials), certificate, clock: member.keeper.state(), server }
    }

    /// Done when there is a certificate, though it may be time for another one.
    pub(crate) async fn identify(self, cx: Context) -> Result<(), BoxError> {
        if !matches!(self.certificate.on_disk().await?, Ok(_) | Err(Stale::Expiring)) {
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                lasting = self.certificate.ensure() => { lasting?; }
            }
        }
        cx.done();
        Ok(())
    }

    /// Has services work with this identity, started anew when they need another client. Healthy when the first of them is.
    async fn with_client(self, cx: &Context, start: impl Fn(Client) -> [Handle; 2]) -> Result<(), BoxError> {
        loop {
            let lasting = tokio::select! {
                () = cx.cancelled() => return Ok(()),
                lasting = self.certificate.ensure() => lasting?,
            };
            let jumps = self.clock.borrow().jumps;
            let [first, second] = start(self.credentials.client(Identity::Storage).await?);
            let ready = async {
                let ready = first.healthy().await;
                if ready.is_ok() {
                    cx.healthy();
                    // Then until it is time for another certificate.
                    return pending().await;
                }
                ready
            };
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                // Also of one that is refused because the clock was wrong when it was looked at.
                () = renewal(lasting, self.clock.clone()) => info!("the certificate of the node's storage is renewed"),
                () = disconnected(self.clock.clone(), jumps, self.server) => info!("clock jumped, connecting to the API server again"),
                failed = ready => failed?,
            }
            second.stop().await;
            first.stop().await;
        }
    }
}

/// Waits until the clock has jumped another time than so often, if the API server runs on another node: it may have closed
/// connections while this node stood still, and a watch, which only listens, would see that after minutes. On the control
/// plane both ends stood still. Cancel-safe.
async fn disconnected(mut clock: watch::Receiver<::clock::ClockState>, jumps: u32, server: Server) {
    if server == Server::Here || clock.wait_for(|state| state.jumps != jumps).await.is_err() {
        pending().await
    }
}

async fn network_modules(cx: Context) -> Result<(), BoxError> {
    let report = tokio::task::spawn_blocking(|| kmod::load(NETWORK_MODULES)).await??;
    system::prepare_connections()?;
    info!(loaded = report.loaded.len(), "network modules loaded");
    cx.done();
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// A watch of an API server that had closed the connection waited for minutes.
    #[tokio::test]
    async fn a_jump_has_clients_of_another_nodes_api_server_connect_again() {
        let sender = watch::Sender::new(::clock::ClockState::default());
        let disconnected = |server| disconnected(sender.subscribe(), 0, server).now_or_never();
        assert_eq!(disconnected(Server::Elsewhere), None);
        sender.send_modify(|state| state.jumps = 1);
        assert_eq!(disconnected(Server::Elsewhere), Some(()));
        assert_eq!(disconnected(Server::Here), None);
    }
}
