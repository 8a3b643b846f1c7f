//! The program: parses arguments and runs services.

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use kube::{Api, Client};
use nix::errno::Errno;
use prometheus::Registry;
use provisioner::SnapshotSupport;
use supervisor::{Backoff, BoxError, Context, Settings, Supervisor};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use volume::Volumes as _;

use crate::arguments::{Arguments, Node, Place, Provisioner, Reclaimer, Task};
use crate::directory::{Directory, LockedDirectory};
use crate::endpoint::NodeStatus;
use crate::lease::{Candidate, Times};
use crate::limits::{self, Enforcer};
use crate::{endpoint, kubelet, provisioning};

/// Deadline of a shutdown, less than the 30 seconds after which the kubelet kills a pod.
const STOP_DEADLINE: Duration = Duration::from_secs(25);

/// Maximum delay between connections to an unreachable API server.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Libraries whose messages below `warn` are omitted.
const LIBRARIES: [&str; 6] = ["kube", "kube_runtime", "hyper", "h2", "tower", "rustls"];

#[derive(Debug, thiserror::Error)]
#[error("cannot {what}")]
struct ProgramError {
    what: String,
    source: BoxError,
}

/// Runs the program with these arguments, the first of which is its name. Returns after a signal (`SIGTERM`, `SIGINT`),
/// at the end of its task, or after printing an error.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
        }
    };
    let result = match &arguments.task {
        Task::Check(place) => check(place),
        Task::Node(_) | Task::Reclaimer(_) => serve(arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Ignore errors: if standard error is closed, the exit code remains.
            let _ = writeln!(io::stderr(), "error: {}", causes::lines(&*error));
            ExitCode::FAILURE
        }
    }
}

fn check(place: &Place) -> Result<(), BoxError> {
    let space = Directory::open(place)?.volumes().space().map_err(cannot("measure the directory"))?;
    let (directory, size, reserve, free) = (place.directory.display(), space.size, space.reserve, space.free());
    writeln!(
        io::stdout(),
        "{directory} can hold volumes: file system of {size}, {reserve} reserved for other programs, {free} free for volumes",
    )
    .map_err(cannot("print"))?;
    Ok(())
}

fn serve(arguments: Arguments) -> Result<(), BoxError> {
    log(arguments.log_level);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(cannot("start threads"))?;
    let result = runtime.block_on(async {
        // Handle signals first: the kernel sends PID 1 of a container only the signals that it handles.
        let signals = StopSignals::watch().map_err(cannot("handle signals"))?;
        match arguments.task {
            Task::Node(arguments) => node(arguments, signals).await,
            Task::Reclaimer(arguments) => reclaimer(arguments, signals).await,
            Task::Check(place) => check(&place),
        }
    });
    // A thread that waits for the kernel must not delay the exit.
    runtime.shutdown_background();
    result
}

async fn node(arguments: Node, signals: StopSignals) -> Result<(), BoxError> {
    let Node { node, kubelet, place, provisioner, listen, limits, pods_cgroup, sys, container_logs } = arguments;
    kubelet::check(&kubelet)?;
    let locked = LockedDirectory::lock(&place)?;
    let (notices, queue) = provisioner::notices();
    if provisioner == Provisioner::External {
        // Only this program's own provisioner publishes events. The findings are also in the log.
        queue.close().await;
    }
    let cgroups = sys.join("fs/cgroup");
    let settings =
        limits::Settings { limits, pods: pods_cgroup, sys, directory: place.directory.clone(), links: container_logs };
    let enforcer = Arc::new(Enforcer::new(settings, notices));
    // Apply limits before the volumes are opened, because BPF programs of a former pod do not exempt this pod. Apply
    // them after the lock, so that another process that uses the directory stays exempt.
    enforcer.apply();
    let directory = locked.open(&place)?;
    let volumes = directory.volumes();
    info!(%node, ?provisioner, directory = %place.directory.display(), kubelet = %kubelet.display(), "granary-storage started");
    let registry = Registry::new();
    let settings = csi::Settings {
        start: csi::Start::BesideKubelet,
        ..csi::Settings::new(&kubelet, node.as_str(), env!("CARGO_PKG_VERSION"))
    };
    let host = csi::Linux::with_cgroups(&kubelet, Arc::clone(&volumes), cgroups)
        .with_observer(podguard::Devices(enforcer.restrictions()));
    volumes.throttle_by(host.throttle());
    podguard::Metrics::register(&registry, enforcer.restrictions())?;
    let plugin = csi::Plugin::new(settings, host, &registry)?;
    let plugin = Arc::new(plugin.with_controller(volumes.clone(), provisioner.into()));
    let (again, revoked) = (Arc::clone(&plugin), plugin.revoked());
    let metrics = provisioner::Metrics::register(&registry, volumes.clone())?;
    let snapshots = metrics.snapshot_support().clone();
    let services = NodeServices {
        plugin,
        provisioning: provisioning::Settings {
            client: client()?,
            node,
            provisioner,
            volumes,
            metrics,
            register_again: Arc::new(move || again.register_again()),
            revoked,
            notices: queue,
        },
        enforcer,
        snapshots,
        listener: bind(listen).await?,
        registry,
    };
    until(signals, "storage", move |cx| storage(cx, services.clone())).await;
    Ok(())
}

#[derive(Clone)]
struct NodeServices {
    plugin: Arc<csi::Plugin<csi::Linux>>,
    provisioning: provisioning::Settings,
    enforcer: Arc<Enforcer>,
    snapshots: SnapshotSupport,
    listener: Arc<TcpListener>,
    registry: Registry,
}

/// Starts the services of a node. The plugin does not wait for the API server, so pods with existing volumes start
/// without it.
async fn storage(cx: Context, services: NodeServices) -> Result<(), BoxError> {
    let NodeServices { plugin, provisioning, enforcer, snapshots, listener, registry } = services;
    let shown = NodeStatus { restrictions: enforcer.restrictions(), snapshots };
    cx.start("status", move |cx| endpoint::run(cx, Arc::clone(&listener), registry.clone(), Some(shown.clone())));
    cx.start("limits", move |cx| Arc::clone(&enforcer).run(cx));
    cx.start("csi", move |cx| Arc::clone(&plugin).run(cx)).healthy().await?;
    cx.start_with("cluster", short_backoff(), move |cx| provisioning::run(cx, provisioning.clone()));
    cx.healthy();
    cx.cancelled().await;
    Ok(())
}

async fn reclaimer(arguments: Reclaimer, signals: StopSignals) -> Result<(), BoxError> {
    let Reclaimer { pod, lease, listen } = arguments;
    let (client, listener) = (client()?, bind(listen).await?);
    let leases = Api::default_namespaced(client.clone());
    let candidate = Candidate { leases, name: lease, identity: pod, times: Times::default() };
    let services = move |cx: Context| {
        let (client, listener, candidate) = (client.clone(), Arc::clone(&listener), candidate.clone());
        async move {
            cx.start("status", move |cx| endpoint::run(cx, Arc::clone(&listener), Registry::new(), None));
            cx.start_with("lease", short_backoff(), move |cx| {
                let (client, candidate) = (client.clone(), candidate.clone());
                async move { candidate.run(&cx, move |cx| reconciler::reclaim(cx, client.clone())).await }
            });
            cx.healthy();
            cx.cancelled().await;
            Ok::<(), BoxError>(())
        }
    };
    until(signals, "reclaimer", services).await;
    Ok(())
}

fn short_backoff() -> Settings {
    Settings { backoff: Backoff { most: MAX_BACKOFF, ..Backoff::default() }, ..Settings::default() }
}

/// Runs a tree of services until a signal arrives, then stops it in order.
async fn until<F, Fut>(mut signals: StopSignals, name: &'static str, root: F)
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    let tree = Supervisor::start(name, Settings::default(), root);
    let signal = signals.next().await;
    info!(signal, "stopping");
    if let Err(overdue) = tree.stop(STOP_DEADLINE).await {
        warn!(error = &overdue as &dyn Error, "services did not stop in time");
    }
}

/// A client with the pod's service account. The client reads the token again when the kubelet renews it.
fn client() -> Result<Client, ProgramError> {
    // Use the address in the environment, because a static program cannot look up names.
    let config =
        kube::Config::incluster_env().map_err(cannot("find the API server; run in a pod with a service account"))?;
    apiclient::client(config).map_err(cannot("create a client of the API server"))
}

/// Binds the address. If the kernel does not support IPv6, binds all IPv4 addresses instead of all addresses.
async fn bind(address: SocketAddr) -> Result<Arc<TcpListener>, ProgramError> {
    let mut bound = TcpListener::bind(address).await;
    let is_unsupported = matches!(&bound, Err(error) if error.raw_os_error() == Some(Errno::EAFNOSUPPORT as i32));
    if is_unsupported && address.is_ipv6() && address.ip().is_unspecified() {
        bound = TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await;
    }
    bound.map(Arc::new).map_err(cannot(format!("listen on {address}")))
}

fn cannot<E: Into<BoxError>>(what: impl Into<String>) -> impl FnOnce(E) -> ProgramError {
    let what = what.into();
    move |source| ProgramError { what, source: source.into() }
}

struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn watch() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Logs lines to standard output.
fn log(level: LevelFilter) {
    let libraries = LIBRARIES.map(|library| (library, level.min(LevelFilter::WARN)));
    let filter = Targets::new().with_default(level).with_targets(libraries);
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_target(false);
    let _ = tracing_subscriber::registry().with(lines).with(filter).try_init();
}
