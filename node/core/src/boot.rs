//! The boot, in order from top to bottom.

use std::fs;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use ::status::Recent;
use cluster::Networking;
use cluster::announcement::StageState;
use config::{Config, Role};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use ipnet::Ipv4Net;
use k8s_openapi::jiff::Timestamp;
use network::Network;
use nix::sys::reboot::set_cad_enabled;
use nodelog::Stream;
use programs::Credentials;
use prometheus::Registry;
use provisioner::NoticeQueue;
use supervisor::{BoxError, Change, Context, Settings, State, Supervisor};
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::certificates::{CertificateStatus, Certificates};
use crate::command_line::CommandLine;
use crate::control_plane::ControlPlane;
use crate::error::StepError;
use crate::guard::PodGuard;
use crate::host::{Host, Writer};
use crate::image_gc::{self, ImageGc};
use crate::member::Member;
use crate::mesh::{self, Mesh};
use crate::modules::{self, Modules};
use crate::power::{End, Requests};
use crate::status::Facts;
use crate::storage::Storage;
use crate::uplink::Uplink;
use crate::worker::Worker;
use crate::{drivers, join, log, plugins, source, system, timekeeping};

const BOOT_MODULES: &str = "/usr/lib/modules/boot";
const CGROUPS: &str = "/sys/fs/cgroup";

const STOP: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum BootError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(
        "the node's address {address} is inside {network}, which is the cluster's: choose other networks in the \
         configuration, {role}.podNetwork and {role}.serviceNetwork"
    )]
    Overlap { address: Ipv4Addr, network: Ipv4Net, role: &'static str },
}

/// Progress of a boot, for the shutdown after a failure.
#[derive(Debug, Default)]
pub struct BootState {
    pub host: Host,
    pub writer: Option<Writer>,
    pub log: Option<Stream>,
    pub on_failure: End,
    /// The restrictions of pods, once they are loaded. They stay in force until the node has ended all processes.
    pub guard: Option<Arc<PodGuard>>,
}

/// Boots the node. Returns after a shutdown request, when all services have stopped.
pub fn run(boot: &mut BootState) -> Result<End, BootError> {
    // Otherwise the kernel restarts the machine immediately at Ctrl-Alt-Del, without unmounting file systems,
    // reboot(2).
    set_cad_enabled(false).map_err(StepError::of("cannot disable Ctrl-Alt-Del; run this program as PID 1"))?;
    let line = fs::read_to_string("/proc/cmdline").map_err(StepError::of("cannot read the kernel's command line"))?;
    let command_line = CommandLine::parse(&line);
    // The error is reported below, when the channel to the host is open.
    let level = command_line.as_ref().map_or(tracing::Level::INFO, |line| line.log);
    let (stream, recent, disk_health) = log::start(level).map_err(StepError::of("cannot start the log"))?;
    boot.log = Some(stream.clone());
    let loaded = kernel::modules::load(BOOT_MODULES).map_err(StepError::of("cannot load the kernel modules"))?;
    let absent = loaded.without_hardware;
    drivers::start().map_err(StepError::of("cannot load the drivers of the machine's devices"))?;
    let opened = Host::open();
    let (opened, writer) = opened.map_err(StepError::of("cannot open the host channel"))?;
    boot.host = opened;
    boot.writer = Some(writer);
    let host = boot.host.clone();
    host.stage("init", StageState::Ready);
    info!(version = env!("CARGO_PKG_VERSION"), ?absent, "starting granary");

    let command_line = command_line.map_err(StepError::of("cannot use the kernel's command line"))?;
    boot.on_failure = command_line.on_failure.into();
    let (source, config) = source::read().map_err(StepError::of("cannot configure the node"))?;
    boot.on_failure = config.on_failure.into();
    info!(%source, node = %config.node, "configured");
    let modules = Modules::find(modules::DIRECTORY, &config.kernel_modules);
    let modules = modules.map_err(StepError::of("cannot use the configuration's list of kernel modules"))?;
    system::prepare(&config.node).map_err(StepError::of("cannot prepare the system"))?;
    host.stage("data-disk", StageState::Started);
    let storage = Storage::open(&config.storage).map_err(StepError::of("cannot use the data disk"))?;
    let links = system::prepare_links(storage.ephemeral(), &config.node);
    links.map_err(StepError::of("cannot prepare the system"))?;
    host.stage("data-disk", StageState::Ready);
    let (directory, bounds) = storage.log();
    for (name, directory) in [("node", &directory), ("audit", &storage.paths().audit)] {
        if let Err(error) = system::show_log(storage.ephemeral(), name, directory) {
            warn!(name, error = causes::of(&error), "cannot show a log through the kubelet");
        }
    }
    stream.keep(directory, bounds);
    match disk_health.observe(storage.volumes().file_system()) {
        Ok(()) => storage.volumes().observe_disk(Box::new(disk_health)),
        Err(error) => warn!(error = causes::of(&error), "cannot observe the data disk, its errors are only logged"),
    }
    if let Err(error) = stream.follow_kernel() {
        warn!(%error, "cannot follow the kernel log, kernel messages are only on the console");
    }

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(StepError::of("cannot start the runtime of the services"))?;
    let (notices, queue) = provisioner::notices();
    let guard = Arc::new(PodGuard::new(CGROUPS, storage.data(), notices));
    boot.guard = Some(Arc::clone(&guard));
    let end = runtime.block_on(serve(&config, storage, (guard, queue), modules, &host, Logs { stream, recent }));
    // A thread that waits for the kernel must not delay the shutdown.
    runtime.shutdown_background();
    end
}

fn metrics_error(error: prometheus::Error) -> StepError {
    StepError::of("cannot register metrics")(error)
}

struct Logs {
    stream: Stream,
    recent: Recent,
}

async fn serve(
    config: &Config,
    storage: Storage,
    (guard, notices): (Arc<PodGuard>, NoticeQueue),
    modules: Option<Arc<Modules>>,
    host: &Host,
    logs: Logs,
) -> Result<End, BootError> {
    let mut requests = Requests::watch().map_err(StepError::of("cannot watch for shutdown requests"))?;
    host.stage("network", StageState::Started);
    let network = Network::open(config.network.clone()).await.map_err(StepError::of("cannot configure the network"))?;
    let addressing = tokio::select! {
        end = requests.next() => return Ok(end),
        // With DHCP, this waits without a limit.
        given = network.configure() => given.map_err(StepError::of("cannot configure the network"))?,
    };
    let cluster = config.role.networks();
    let address = addressing.interface.addr();
    if let Some(&network) = [&cluster.pods, &cluster.services].into_iter().find(|network| network.contains(&address)) {
        return Err(BootError::Overlap { address, network, role: config.role.field() });
    }
    let given = addressing.time_servers.clone();
    let time_servers = if config.time_servers.is_empty() { given } else { config.time_servers.clone() };
    let uplink = Uplink::new(network, addressing, storage.ephemeral());
    let uplink = Arc::new(uplink.map_err(StepError::of("cannot write the name servers to resolv.conf"))?);
    host.stage("network", StageState::Ready);
    let services = programs::Config {
        node: config.node.to_string(),
        address,
        uplink: uplink.interface().to_owned(),
        api_server: config.role.api_server(address),
        services: cluster.services,
        cluster_pods: cluster.pods,
        mesh: mesh::of_uplink(uplink.mtu()),
        durability: programs::Durability::Durable,
        settings: config.programs.clone(),
        disk: storage.disk(),
        paths: programs::Paths { memory: system::machine_memory(), ..storage.paths() },
    };
    if let Networking::Plugin(_) = services.settings.networking {
        plugins::mount(&storage, &services.paths)
            .map_err(StepError::of("cannot mount the directories of CNI plugins"))?;
    }
    if services.paths.memory.is_none() {
        warn!("cannot read the size of the memory, starting programs without memory limits");
    }
    let keeper = timekeeping::start(&time_servers).await;
    let certificates = watch::Sender::default();
    let role = Prepared::of(&config.role, &services, certificates.clone()).await?;
    let registry = Registry::new();
    logs.stream.metrics().register(&registry).map_err(metrics_error)?;
    let linux =
        csi::Linux::new(storage.kubelet(), storage.volumes()).with_observer(podguard::Devices(guard.restrictions()));
    storage.volumes().throttle_by(linux.throttle());
    storage.volumes().freeze_by(linux.freezer());
    let plugin = csi::Plugin::new(storage.csi(&config.node), linux, &registry).map_err(metrics_error)?;
    let plugin = plugin.with_controller(storage.volumes(), csi::Provisioner::Own);
    let metrics = provisioner::Metrics::register(&registry, storage.volumes()).map_err(metrics_error)?;
    podguard::Metrics::register(&registry, guard.restrictions()).map_err(metrics_error)?;
    let images = image_gc::Metrics::register(&registry).map_err(metrics_error)?;
    let image_gc = ImageGc::new(storage.images(), services.paths.containerd_socket(), images);
    let mesh = Arc::new(Mesh::new(&services, &registry));
    let facts = Facts {
        node: config.node.to_string(),
        volumes: storage.volumes(),
        registry,
        recent: logs.recent,
        paths: services.paths.clone(),
        keeper: Arc::clone(&keeper),
        certificates: certificates.subscribe(),
        mesh: Arc::clone(&mesh),
        kubernetes: Arc::default(),
    };
    let plugin = Arc::new(plugin);
    let member = Arc::new(Member {
        node: config.node.clone(),
        keeper,
        services,
        storage,
        plugin: Arc::clone(&plugin),
        mesh,
        guard,
        modules,
        image_gc: Arc::new(image_gc),
        notices,
        uplink: Arc::clone(&uplink),
        facts,
        metrics,
        since: Timestamp::now(),
        host: host.clone(),
    });

    let observer = {
        let host = host.clone();
        move |change: &Change<'_>| announce_stage(&host, change)
    };
    let tree = Supervisor::observed("granary", Settings::default(), observer, role.run(member));
    let end = tokio::select! {
        end = requests.next() => end,
        () = uplink.moved() => End::Restart,
    };
    info!(?end, "shutting down");
    host.stage("shutdown", StageState::Started);
    if let Err(overdue) = tree.stop(STOP).await {
        warn!(error = %overdue, "services did not stop in time");
    }
    // Closes the descriptors before the loop devices are detached: a device that any process has open would keep the
    // data disk mounted. The last close of a device waits until its dirty pages are written. A disk that does not
    // respond must not keep the machine on.
    if timeout(STOP, spawn_blocking(move || plugin.close())).await.is_err() {
        warn!("loop devices were not closed in time");
    }
    Ok(end)
}

/// The root of the services. Each call is one attempt.
type Root = Box<dyn Fn(Context) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync>;

/// The node's role, after the check of its data disk.
enum Prepared {
    ControlPlane(Arc<Credentials>, Arc<Certificates>),
    Worker(Box<config::Worker>, watch::Sender<CertificateStatus>),
}

impl Prepared {
    async fn of(
        role: &Role,
        services: &programs::Config,
        kept: watch::Sender<CertificateStatus>,
    ) -> Result<Self, BootError> {
        let (role, services) = (role.clone(), services.clone());
        let prepare = move || match role {
            Role::ControlPlane(_) => {
                programs::networks::keep(&services).map_err(StepError::of("cannot use the networks of the cluster"))?;
                let credentials = Credentials::ensure(&services, OffsetDateTime::now_utc());
                let credentials = Arc::new(credentials.map_err(StepError::of("cannot prepare keys and certificates"))?);
                let certificates = Arc::new(Certificates::new(Arc::clone(&credentials), kept));
                Ok(Self::ControlPlane(credentials, certificates))
            }
            Role::Worker(worker) => {
                join::check_disk(&services, worker.ca).map_err(StepError::of("cannot join this cluster"))?;
                Ok(Self::Worker(Box::new(worker), kept))
            }
        };
        let prepared = spawn_blocking(prepare).await;
        prepared.map_err(StepError::of("the task that prepares keys and certificates panicked"))?
    }

    fn run(self, member: Arc<Member>) -> Root {
        match self {
            Self::ControlPlane(credentials, certificates) => {
                let node = Arc::new(ControlPlane::new(member, credentials, certificates));
                Box::new(move |cx| Arc::clone(&node).run(cx).boxed())
            }
            Self::Worker(worker, kept) => {
                let node = Arc::new(Worker::new(member, *worker, kept));
                Box::new(move |cx| Arc::clone(&node).run(cx).boxed())
            }
        }
    }
}

/// Observer of the service tree. Announces only direct children of the root to the host: the services of the role,
/// without their parts.
fn announce_stage(host: &Host, change: &Change<'_>) {
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
