//! The boot, top to bottom.

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use announce::{Announcement, StageState};
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::jiff::Timestamp;
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use nix::errno::Errno;
use nix::sys::reboot::set_cad_enabled;
use prometheus::Registry;
use services::{
    Credentials, Identity, StorageIdentity, apiserver, containerd, controller_manager, etcd, kubelet, proxy, scheduler,
};
use supervisor::{BoxError, Change, Context, Settings, State, Supervisor};
use time::OffsetDateTime;
use tracing::info;

use crate::config::{self, Config, ConfigError};
use crate::host::{Host, Writer};
use crate::network::{self, NetworkError};
use crate::power::{End, Requests};
use crate::storage::{Storage, StorageError};
use crate::system::{self, SystemError};
use crate::{csinode, log, orphans, restart, status};

const BOOT_MODULES: &str = "/usr/lib/modules/boot";
const NETWORK_MODULES: &str = "/usr/lib/modules/network";

/// How long the services may take to stop.
const STOP: Duration = Duration::from_secs(60);

/// Why the node does not start.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// `/proc` is not there.
    #[error("cannot read the kernel's command line")]
    CommandLine(#[source] io::Error),
    /// Not PID 1.
    #[error("cannot take over Ctrl-Alt-Del; this program is for PID 1")]
    CtrlAltDel(#[source] Errno),
    /// It says something that we cannot use.
    #[error("cannot use the kernel's command line")]
    Config(#[from] ConfigError),
    /// A module that every node needs.
    #[error("cannot load the kernel modules")]
    Modules(#[from] kmod::LoadError),
    /// The port to the machine.
    #[error("cannot open the port to the machine that runs this node")]
    Host(#[source] io::Error),
    /// Mounts and settings.
    #[error("cannot prepare the system")]
    System(#[from] SystemError),
    /// The data disk, or what is on it.
    #[error("cannot use the data disk")]
    Storage(#[from] StorageError),
    /// No runtime for the services.
    #[error("cannot start the runtime of the services")]
    Runtime(#[source] io::Error),
    /// The network.
    #[error("cannot configure the network")]
    Network(#[from] NetworkError),
    /// The networks of pods and Services.
    #[error("cannot use the networks of pods and services")]
    Networks(#[from] services::NetworkError),
    /// Keys and certificates.
    #[error("cannot prepare keys and certificates")]
    Pki(#[from] services::PkiError),
    /// The thread that prepares them.
    #[error("preparing keys and certificates ended early")]
    Panicked(#[from] tokio::task::JoinError),
    /// Two metrics of one name.
    #[error("cannot register metrics")]
    Metrics(#[source] prometheus::Error),
    /// Signals.
    #[error("cannot wait for the end")]
    Power(#[source] io::Error),
}

/// Boots the node and returns when somebody has asked for its end, with all services stopped.
///
/// # Errors
/// [`BootError`]: the node cannot start, and no service of it runs. What runs as a service does not come here: it
/// is started again.
pub fn run(host: &mut Host, writer: &mut Option<Writer>) -> Result<End, BootError> {
    // Without this the kernel restarts at Ctrl-Alt-Del at once, and nothing is unmounted, reboot(2).
    set_cad_enabled(false).map_err(BootError::CtrlAltDel)?;
    let line = fs::read_to_string("/proc/cmdline").map_err(BootError::CommandLine)?;
    // A level that is none is an error of the configuration, which is told when the host can hear it.
    log::start(config::level(&line).unwrap_or(tracing::Level::INFO));
    let absent = kmod::load(BOOT_MODULES)?.without_hardware;
    let (opened, its_writer) = Host::open().map_err(BootError::Host)?;
    *host = opened;
    *writer = Some(its_writer);
    host.stage("init", StageState::Ready);
    info!(version = env!("CARGO_PKG_VERSION"), ?absent, "granary starts");

    let config = Config::parse(&line)?;
    system::prepare(&config.node)?;
    host.stage("data-disk", StageState::Started);
    let storage = Storage::open(config.overcommit)?;
    system::prepare_links(storage.ephemeral(), &config.node, config.dns)?;
    host.stage("data-disk", StageState::Ready);

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(BootError::Runtime)?;
    let end = runtime.block_on(serve(&config, storage, host));
    // A thread that waits for the kernel must not hold the end up.
    runtime.shutdown_background();
    end
}

async fn serve(config: &Config, storage: Storage, host: &Host) -> Result<End, BootError> {
    let mut requests = Requests::watch().map_err(BootError::Power)?;
    network::configure(config.interface, config.gateway).await?;
    host.stage("network", StageState::Ready);
    let services = services::Config {
        node: config.node.to_string(),
        address: config.interface.address,
        services: SERVICES.parse()?,
        pods: PODS.parse()?,
        cluster_pods: CLUSTER_PODS.parse()?,
        durability: services::Durability::Durable,
        disk: storage.disk(),
        paths: storage.paths(),
    };
    let wanted = services.clone();
    let credentials =
        tokio::task::spawn_blocking(move || Credentials::ensure(&wanted, OffsetDateTime::now_utc())).await??;
    let credentials = Arc::new(credentials);
    let registry = Registry::new();
    let plugin =
        csi::Plugin::new(storage.csi(&config.node), csi::Linux::new(storage.kubelet(), storage.volumes()), &registry)
            .map_err(BootError::Metrics)?;
    let metrics = provisioner::Metrics::register(&registry, storage.volumes()).map_err(BootError::Metrics)?;
    let cluster = Arc::new(Cluster {
        config: config.clone(),
        identity: StorageIdentity::new(&services, &credentials),
        credentials,
        services,
        storage,
        plugin: Arc::new(plugin),
        registry,
        metrics,
        since: Timestamp::now(),
        host: host.clone(),
    });

    let observer = {
        let host = host.clone();
        move |change: &Change<'_>| tell(&host, change)
    };
    let tree = Supervisor::observed("granary", Settings::default(), observer, move |cx| Arc::clone(&cluster).run(cx));
    let end = requests.next().await;
    info!(?end, "the node is asked to end");
    host.stage("shutdown", StageState::Started);
    if let Err(overdue) = tree.stop(STOP).await {
        tracing::warn!(error = %overdue, "services were left behind");
    }
    Ok(end)
}

/// Cluster addresses of Services, of this node's pods, of all pods.
const SERVICES: &str = "10.96.0.0/16";
const PODS: &str = "10.244.0.0/24";
const CLUSTER_PODS: &str = "10.244.0.0/16";

/// What a running node has.
struct Cluster {
    config: Config,
    credentials: Arc<Credentials>,
    /// What the provisioner is to the API server.
    identity: StorageIdentity,
    services: services::Config,
    storage: Storage,
    plugin: Arc<csi::Plugin<csi::Linux>>,
    /// All metrics of the node.
    registry: Registry,
    /// The provisioner's, which outlive it.
    metrics: provisioner::Metrics,
    /// When the services were started.
    since: Timestamp,
    host: Host,
}

impl Cluster {
    /// The root of the services, in boot order.
    async fn run(self: Arc<Self>, cx: Context) -> Result<(), BoxError> {
        cx.start("orphans", orphans::run);
        let (address, registry) = (self.services.address, self.registry.clone());
        cx.start("status", move |cx| status::run(cx, address, registry.clone()));
        let modules = cx.start("network-modules", network_modules);
        let etcd = cx.start("etcd", etcd::service(&self.services));
        let containerd = cx.start("containerd", containerd::service(&self.services));
        etcd.healthy().await?;
        let apiserver = cx.start("kube-apiserver", apiserver::service(&self.services, &self.credentials));

        // While the API server starts.
        containerd.healthy().await?;
        let images = cx.start("images", containerd::images(&self.services));
        let plugin = Arc::clone(&self.plugin);
        let csi = cx.start("csi", restart::on_request(move |cx| Arc::clone(&plugin).run(cx)));

        apiserver.healthy().await?;
        self.announce_credentials();
        cx.start("kube-controller-manager", controller_manager::service(&self.services, &self.credentials));
        cx.start("kube-scheduler", scheduler::service(&self.services, &self.credentials));
        let admin = self.credentials.client(Identity::Admin).await?;
        let client = admin.clone();
        cx.start("approver", move |cx| reconciler::approve(cx, client.clone()));
        let this = Arc::clone(&self);
        let identity = cx.start("storage-identity", move |cx| Arc::clone(&this).identify(cx));
        modules.healthy().await?;
        cx.start("kube-proxy", proxy::service(&self.services, &self.credentials));
        images.healthy().await?;
        csi.healthy().await?;
        cx.start("kubelet", kubelet::service(&self.services, &self.credentials));

        // What the provisioner's identity may do is one of the reconciler's objects.
        let client = admin.clone();
        cx.start("reconciler", move |cx| reconciler::run(cx, client.clone())).healthy().await?;
        let client = admin.clone();
        cx.start("release", move |cx| reconciler::release(cx, client.clone()));
        let this = Arc::clone(&self);
        cx.start("node", move |cx| Arc::clone(&this).watch_node(cx, admin.clone()));

        identity.healthy().await?;
        let this = Arc::clone(&self);
        cx.start("provisioner", restart::on_request(move |cx| Arc::clone(&this).provision(cx)));
        cx.healthy();
        cx.cancelled().await;
        Ok(())
    }

    /// Done when the storage identity has a certificate.
    async fn identify(self: Arc<Self>, cx: Context) -> Result<(), BoxError> {
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            lasting = self.identity.ensure() => { lasting?; }
        }
        cx.done();
        Ok(())
    }

    /// The provisioner, and what else works with the storage identity: started anew with each certificate.
    async fn provision(self: Arc<Self>, cx: Context) -> Result<(), BoxError> {
        loop {
            let lasting = tokio::select! {
                () = cx.cancelled() => return Ok(()),
                lasting = self.identity.ensure() => lasting?,
            };
            let client = self.credentials.client(Identity::Storage).await?;
            let settings = provisioner::Settings {
                client: client.clone(),
                node: self.config.node.to_string(),
                store: self.storage.volumes(),
                parallel: provisioner::Settings::PARALLEL,
                metrics: self.metrics.clone(),
            };
            let volumes = cx.start("volumes", move |cx| provisioner::run(cx, settings.clone()));
            let this = Arc::clone(&self);
            let csinode = cx.start("csinode", move |cx| Arc::clone(&this).watch_csinode(cx, client.clone()));
            volumes.healthy().await?;
            cx.healthy();
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = lasting.renewal() => info!("the storage identity's certificate is renewed"),
            }
            csinode.stop().await;
            volumes.stop().await;
        }
    }

    async fn watch_csinode(self: Arc<Self>, cx: Context, client: Client) -> Result<(), csinode::WatchEnded> {
        csinode::run(cx, client, self.config.node.as_str(), || self.plugin.register_again()).await
    }

    fn announce_credentials(&self) {
        self.host.tell(Announcement::Credentials { kubeconfig: self.credentials.admin_kubeconfig().to_owned() });
    }

    /// Healthy, once and for all, when the Node object is Ready.
    async fn watch_node(self: Arc<Self>, cx: Context, client: Client) -> Result<(), BoxError> {
        let nodes: Api<Node> = Api::all(client);
        let ready = await_condition(nodes, self.config.node.as_str(), |node: Option<&Node>| {
            node.is_some_and(|node| is_ready(node, self.since))
        });
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            found = ready => { found?; }
        }
        let memory = system::own_memory().map(|memory| memory.to_string());
        info!(node = %self.config.node, memory, "node is Ready");
        cx.done();
        Ok(())
    }
}

/// Ready, by a kubelet that ran after `since`: the object of the last boot says so too.
fn is_ready(node: &Node, since: Timestamp) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let heartbeat = |condition: &NodeCondition| condition.last_heartbeat_time.as_ref().is_some_and(|at| at.0 >= since);
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True" && heartbeat(condition))
}

async fn network_modules(cx: Context) -> Result<(), BoxError> {
    let report = tokio::task::spawn_blocking(|| kmod::load(NETWORK_MODULES)).await??;
    system::prepare_bridge()?;
    info!(loaded = report.loaded.len(), "network modules loaded");
    cx.done();
    Ok(())
}

/// The observer of the service tree, which writes the log itself: the machine hears of the services that
/// [`Cluster::run`] starts, not of their parts.
fn tell(host: &Host, change: &Change<'_>) {
    if change.path.split('.').count() != 2 {
        return;
    }
    let stage = match change.state {
        State::Starting => StageState::Started,
        State::Healthy => StageState::Ready,
        State::Failed => StageState::Failed,
        // A service that is done was healthy before.
        State::Done | State::Stopping | State::Stopped => return,
    };
    host.stage(change.name, stage);
}
