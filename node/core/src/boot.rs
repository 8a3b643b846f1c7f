//! The boot, top to bottom.

use std::error::Error;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use ::clock::Keeper;
use ::status::Recent;
use announce::{Announcement, StageState};
use config::{Config, NODE_PREFIX, Role};
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::jiff::Timestamp;
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use network::{Network, NetworkError};
use nix::errno::Errno;
use nix::sys::reboot::set_cad_enabled;
use nodelog::Stream;
use prometheus::Registry;
use provisioner::csinode;
use services::{
    Credentials, Identity, Requested, apiserver, containerd, controller_manager, etcd, kubelet, proxy, scheduler,
};
use supervisor::{BoxError, Change, Context, Handle, Settings, State, Supervisor};
use time::OffsetDateTime;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::certificates::{Certificates, Kept};
use crate::command_line::{CommandLine, CommandLineError};
use crate::host::{Host, Writer};
use crate::metrics::Metrics;
use crate::power::{End, Requests};
use crate::source::{self, SourceError};
use crate::status::Facts;
use crate::storage::{Storage, StorageError};
use crate::system::{self, SystemError};
use crate::uplink::Uplink;
use crate::{log, orphans, restart, status, timekeeping};

const BOOT_MODULES: &str = "/usr/lib/modules/boot";
const NETWORK_MODULES: &str = "/usr/lib/modules/network";

/// How long the services may take to stop.
const STOP: Duration = Duration::from_secs(60);

/// Why the node does not start.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// `/proc` is not there.
    #[error("cannot read the kernel's command line")]
    ReadCommandLine(#[source] io::Error),
    /// Not PID 1.
    #[error("cannot take over Ctrl-Alt-Del; this program is for PID 1")]
    CtrlAltDel(#[source] Errno),
    /// It says something that we cannot use.
    #[error("cannot use the kernel's command line")]
    CommandLine(#[from] CommandLineError),
    /// The configuration cannot be read, or has mistakes.
    #[error("the node is not configured")]
    Config(#[from] SourceError),
    /// The log.
    #[error("cannot begin the log")]
    Log(#[from] nodelog::StartError),
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
    /// The file for resolvers.
    #[error("cannot write the name servers to resolv.conf")]
    NameServers(#[source] io::Error),
    /// The node's own address is one of the cluster's.
    #[error(
        "the node's address {address} is inside {network}, which is the cluster's: choose other networks in the \
         configuration, controlPlane.podNetwork and controlPlane.serviceNetwork"
    )]
    Overlap {
        /// What DHCP gave.
        address: Ipv4Addr,
        /// The pods' network, or that of Services.
        network: services::Network,
    },
    /// The pods' network has no room for a node's part.
    #[error("the network {0} of pods has no room for a node")]
    Pods(services::Network),
    /// Those of the cluster are others.
    #[error("cannot run the cluster in its networks")]
    Networks(#[from] services::networks::NetworksError),
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

/// How far a boot is, for the case that it fails.
#[derive(Debug, Default)]
pub struct Begun {
    /// Who is told.
    pub host: Host,
    /// What tells them, if it runs.
    pub writer: Option<Writer>,
    /// The log, if it is begun.
    pub log: Option<Stream>,
    /// What to do then.
    pub on_failure: End,
}

/// Boots the node and returns when somebody has asked for its end, with all services stopped.
///
/// # Errors
/// [`BootError`]: the node cannot start, and no service of it runs. What runs as a service does not come here: it
/// is started again.
pub fn run(begun: &mut Begun) -> Result<End, BootError> {
    // Without this the kernel restarts at Ctrl-Alt-Del at once, and nothing is unmounted, reboot(2).
    set_cad_enabled(false).map_err(BootError::CtrlAltDel)?;
    let line = fs::read_to_string("/proc/cmdline").map_err(BootError::ReadCommandLine)?;
    let command_line = CommandLine::parse(&line);
    // What is wrong with it is told when the host can hear it.
    let (stream, recent) = log::start(command_line.as_ref().map_or(tracing::Level::INFO, |line| line.log))?;
    begun.log = Some(stream.clone());
    let absent = kmod::load(BOOT_MODULES)?.without_hardware;
    let (opened, its_writer) = Host::open().map_err(BootError::Host)?;
    begun.host = opened;
    begun.writer = Some(its_writer);
    let host = begun.host.clone();
    host.stage("init", StageState::Ready);
    info!(version = env!("CARGO_PKG_VERSION"), ?absent, "granary starts");

    begun.on_failure = command_line?.on_failure.into();
    let (source, config) = source::read()?;
    begun.on_failure = config.on_failure.into();
    info!(%source, node = %config.node, "configured");
    system::prepare(&config.node)?;
    host.stage("data-disk", StageState::Started);
    let storage = Storage::open(&config.storage)?;
    system::prepare_links(storage.ephemeral(), &config.node)?;
    host.stage("data-disk", StageState::Ready);
    let (directory, bounds) = storage.log();
    if let Err(error) = system::show_log(storage.ephemeral(), &directory) {
        let error: &dyn Error = &error;
        warn!(error, "kubelet does not show the log");
    }
    stream.keep(directory, bounds);
    if let Err(error) = stream.follow_kernel() {
        warn!(%error, "what the kernel says is not in the log, only on the console");
    }

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(BootError::Runtime)?;
    let end = runtime.block_on(serve(&config, storage, &host, Logs { stream, recent }));
    // A thread that waits for the kernel must not hold the end up.
    runtime.shutdown_background();
    end
}

/// The log, and its last warnings.
struct Logs {
    stream: Stream,
    recent: Recent,
}

async fn serve(config: &Config, storage: Storage, host: &Host, logs: Logs) -> Result<End, BootError> {
    let mut requests = Requests::watch().map_err(BootError::Power)?;
    host.stage("network", StageState::Started);
    let network = Network::open(config.network.clone()).await?;
    let addressing = tokio::select! {
        end = requests.next() => return Ok(end),
        // With DHCP for as long as it takes.
        given = network.configure() => given.map_err(NetworkError::from)?,
    };
    let Role::ControlPlane(cluster) = &config.role;
    let address = addressing.interface.address;
    if let Some(&network) = [&cluster.pods, &cluster.services].into_iter().find(|network| network.contains(address)) {
        return Err(BootError::Overlap { address, network });
    }
    let given = addressing.time_servers.clone();
    let time_servers = if config.time_servers.is_empty() { given } else { config.time_servers.clone() };
    let uplink = Uplink::new(network, addressing, storage.ephemeral()).map_err(BootError::NameServers)?;
    let uplink = Arc::new(uplink);
    host.stage("network", StageState::Ready);
    let services = services::Config {
        node: config.node.to_string(),
        address,
        services: cluster.services,
        pods: cluster.pods.first_part(NODE_PREFIX).ok_or(BootError::Pods(cluster.pods))?,
        cluster_pods: cluster.pods,
        durability: services::Durability::Durable,
        disk: storage.disk(),
        paths: services::Paths { memory: system::machine_memory(), ..storage.paths() },
    };
    if services.paths.memory.is_none() {
        warn!("the kernel does not tell how much memory there is: the node's programs have no limits");
    }
    let keeper = timekeeping::start(&time_servers).await;
    let wanted = services.clone();
    let prepare = move || {
        services::networks::keep(&wanted)?;
        Ok::<_, BootError>(Credentials::ensure(&wanted, OffsetDateTime::now_utc())?)
    };
    let credentials = tokio::task::spawn_blocking(prepare).await??;
    let credentials = Arc::new(credentials);
    let certificates = Arc::new(Certificates::new(Arc::clone(&credentials)));
    let registry = Registry::new();
    logs.stream.metrics().register(&registry).map_err(BootError::Metrics)?;
    let plugin =
        csi::Plugin::new(storage.csi(&config.node), csi::Linux::new(storage.kubelet(), storage.volumes()), &registry)
            .map_err(BootError::Metrics)?;
    let metrics = provisioner::Metrics::register(&registry, storage.volumes()).map_err(BootError::Metrics)?;
    let facts = Facts {
        node: config.node.to_string(),
        volumes: storage.volumes(),
        metrics: Arc::new(Metrics::register(registry).map_err(BootError::Metrics)?),
        recent: logs.recent,
        paths: services.paths.clone(),
        keeper: Arc::clone(&keeper),
        certificates: certificates.kept(),
        kubernetes: Arc::default(),
    };
    let cluster = Arc::new(Cluster {
        config: config.clone(),
        identity: Requested::storage(&services, &credentials),
        credentials,
        certificates,
        keeper,
        services,
        storage,
        plugin: Arc::new(plugin),
        uplink: Arc::clone(&uplink),
        facts,
        metrics,
        since: Timestamp::now(),
        host: host.clone(),
    });

    let observer = {
        let host = host.clone();
        move |change: &Change<'_>| tell(&host, change)
    };
    let tree = Supervisor::observed("granary", Settings::default(), observer, move |cx| Arc::clone(&cluster).run(cx));
    let end = tokio::select! {
        end = requests.next() => end,
        () = uplink.moved() => End::Restart,
    };
    info!(?end, "the node is asked to end");
    host.stage("shutdown", StageState::Started);
    if let Err(overdue) = tree.stop(STOP).await {
        warn!(error = %overdue, "services were left behind");
    }
    Ok(end)
}

/// What a running node has.
struct Cluster {
    config: Config,
    credentials: Arc<Credentials>,
    certificates: Arc<Certificates>,
    keeper: Arc<Keeper>,
    /// What the provisioner is to the API server.
    identity: Requested,
    services: services::Config,
    storage: Storage,
    plugin: Arc<csi::Plugin<csi::Linux>>,
    uplink: Arc<Uplink>,
    /// What the status pages tell.
    facts: Facts,
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
        let uplink = Arc::clone(&self.uplink);
        cx.start("uplink", move |cx| {
            let uplink = Arc::clone(&uplink);
            async move { uplink.run(cx).await }
        });
        let keeper = Arc::clone(&self.keeper);
        cx.start("clock", move |cx| Arc::clone(&keeper).run(cx));
        let (certificates, clock) = (Arc::clone(&self.certificates), self.keeper.state());
        cx.start("certificates", move |cx| Arc::clone(&certificates).run(cx, clock.clone()));
        let (address, facts) = (self.services.address, self.facts.clone());
        cx.start("status", move |cx| status::run(cx, address, facts.clone()));
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
        let renewals = self.certificates.kept();
        let seen = renewals.borrow().administrators;
        self.announce_credentials();
        cx.start("kube-controller-manager", controller_manager::service(&self.services, &self.credentials));
        cx.start("kube-scheduler", scheduler::service(&self.services, &self.credentials));
        let admin = self.credentials.client(Identity::Admin).await?;
        let approver = start_approver(&cx, &admin, &self.services);
        let this = Arc::clone(&self);
        let identity = cx.start("storage-identity", move |cx| Arc::clone(&this).identify(cx));
        modules.healthy().await?;
        cx.start("kube-proxy", proxy::service(&self.services, &self.credentials));
        images.healthy().await?;
        csi.healthy().await?;
        cx.start("kubelet", kubelet::service(&self.services, &self.credentials));

        // What the provisioner's identity may do is one of the reconciler's objects.
        let reconciler = start_reconciler(&cx, &admin);
        reconciler.healthy().await?;
        let release = start_release(&cx, &admin);
        let this = Arc::clone(&self);
        cx.start("node", move |cx| Arc::clone(&this).watch_node(cx, admin.clone()));

        identity.healthy().await?;
        let this = Arc::clone(&self);
        cx.start("provisioner", restart::on_request(move |cx| Arc::clone(&this).provision(cx)));
        cx.healthy();
        self.administer(&cx, renewals, seen, [approver, reconciler, release]).await
    }

    /// Starts the services that work with the administrator's client anew with each of its certificates but the one that
    /// they were started with.
    async fn administer(
        &self,
        cx: &Context,
        mut renewals: watch::Receiver<Kept>,
        mut seen: u32,
        mut services: [Handle; 3],
    ) -> Result<(), BoxError> {
        loop {
            let another =
                async { renewals.wait_for(|kept| kept.administrators != seen).await.map(|kept| kept.administrators) };
            seen = tokio::select! {
                () = cx.cancelled() => return Ok(()),
                another = another => another?,
            };
            info!("the administrator's certificate is another one: what uses it starts anew");
            for service in services.iter().rev() {
                service.stop().await;
            }
            self.announce_credentials();
            let admin = self.credentials.client(Identity::Admin).await?;
            services =
                [start_approver(cx, &admin, &self.services), start_reconciler(cx, &admin), start_release(cx, &admin)];
        }
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
        self.host.tell(Announcement::Credentials { kubeconfig: self.credentials.admin_kubeconfig() });
    }

    /// Healthy, once and for all, when the Node object is Ready.
    async fn watch_node(self: Arc<Self>, cx: Context, client: Client) -> Result<(), BoxError> {
        let nodes: Api<Node> = Api::all(client);
        let ready = await_condition(nodes, self.config.node.as_str(), |node: Option<&Node>| {
            node.is_some_and(|node| is_ready(node, self.since))
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
        info!(node = %self.config.node, memory, "node is Ready");
        cx.done();
        Ok(())
    }
}

fn start_approver(cx: &Context, admin: &Client, services: &services::Config) -> Handle {
    let client = admin.clone();
    let reserved = vec![services.services, services.cluster_pods];
    cx.start("approver", move |cx| reconciler::approve(cx, client.clone(), reserved.clone()))
}

fn start_reconciler(cx: &Context, admin: &Client) -> Handle {
    let client = admin.clone();
    cx.start("reconciler", move |cx| reconciler::run(cx, client.clone()))
}

fn start_release(cx: &Context, admin: &Client) -> Handle {
    let client = admin.clone();
    cx.start("release", move |cx| reconciler::release(cx, client.clone()))
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
