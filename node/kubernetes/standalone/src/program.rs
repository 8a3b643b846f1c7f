//! The program, top to bottom.

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use kube::Client;
use kube::config::InClusterError;
use prometheus::Registry;
use supervisor::{Backoff, BoxError, Context, Settings, Supervisor};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use volume::Volumes as _;

use crate::arguments::{Arguments, Node, Place, Release, Task};
use crate::directory::{Directory, DirectoryError, Locked};
use crate::kubelet::KubeletError;
use crate::limits::{self, Keeper};
use crate::{cluster, kubelet, numbers};

/// How long the services may take to stop: less than the 30 seconds after which kubelet kills a pod.
const STOP: Duration = Duration::from_secs(25);

/// The longest wait for an API server that is away: nobody looks at a pod that waits.
const MOST: Duration = Duration::from_secs(30);

/// Why the program ends by itself.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The directory of the volumes.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// What it can hold.
    #[error("cannot measure the directory")]
    Space(#[from] volume::LookError),
    /// kubelet's directory.
    #[error(transparent)]
    Kubelet(#[from] KubeletError),
    /// No threads, or no signals.
    #[error("cannot start")]
    Runtime(#[source] io::Error),
    /// It runs in no pod, or in one without a service account.
    #[error("cannot find the API server; a pod's service account tells where it is")]
    NotInCluster(#[source] InClusterError),
    /// Certificates or address of the API server.
    #[error("cannot make a client of the API server")]
    Client(#[source] Box<kube::Error>),
    /// Metrics and health.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Two metrics of one name.
    #[error("cannot register metrics")]
    Metrics(#[from] prometheus::Error),
    /// Nobody reads what it prints.
    #[error("cannot print")]
    Print(#[source] io::Error),
}

/// Runs the program with these arguments, the first of which is its name. Returns when it was asked to end (`SIGTERM`,
/// `SIGINT`), is done, or cannot go on, and has said why on standard error.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let task = match Arguments::try_parse_from(arguments) {
        Ok(Arguments { task }) => task,
        Err(error) => {
            let _ = error.print();
            return u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
        }
    };
    let done = match &task {
        Task::Check(place) => check(place),
        Task::Node(_) | Task::Release(_) => serve(task),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Whoever does not listen is told by the status.
            let _ = writeln!(io::stderr(), "error: {}", causes::lines(&error));
            ExitCode::FAILURE
        }
    }
}

fn check(place: &Place) -> Result<(), ProgramError> {
    let space = Directory::open(place)?.volumes().space()?;
    let volume::Space { size, reserved, reserve, .. } = space;
    writeln!(
        io::stdout(),
        "{} can hold volumes: file system of {size}, {reserve} kept for others, {reserved} reserved for volumes, {} free",
        place.directory,
        space.free(),
    )
    .map_err(ProgramError::Print)
}

fn serve(task: Task) -> Result<(), ProgramError> {
    log();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(ProgramError::Runtime)?;
    let done = runtime.block_on(async {
        // First: nothing ends PID 1 of a container that it has not asked for.
        let ending = Ending::watch().map_err(ProgramError::Runtime)?;
        match task {
            Task::Node(arguments) => node(arguments, ending).await,
            Task::Release(arguments) => release(arguments, ending).await,
            Task::Check(place) => check(&place),
        }
    });
    // A thread that waits for the kernel must not hold the end up.
    runtime.shutdown_background();
    done
}

async fn node(arguments: Node, ending: Ending) -> Result<(), ProgramError> {
    let Node { node, kubelet, place, listen, limits, pods_cgroup, sys, container_logs } = arguments;
    kubelet::check(kubelet.as_path())?;
    let locked = Locked::take(&place)?;
    let (notices, queue) = provisioner::notices();
    let settings = limits::Settings {
        limits,
        pods: pods_cgroup,
        sys: sys.as_path().to_owned(),
        directory: place.directory.as_path().to_owned(),
        links: container_logs.as_path().to_owned(),
    };
    let limits = Arc::new(Keeper::new(settings, notices));
    // Before volumes are touched: programs of a former pod do not exempt this one. After the lock: another process that uses
    // the directory stays exempt.
    limits.apply();
    let directory = locked.open(&place)?;
    let volumes = directory.volumes();
    info!(%node, directory = %place.directory, %kubelet, "granary-storage starts");
    let registry = Registry::new();
    let settings = csi::Settings {
        start: csi::Start::BesideKubelet,
        ..csi::Settings::new(kubelet.as_path(), node.as_str(), env!("CARGO_PKG_VERSION"))
    };
    let host = csi::Linux::new(kubelet.as_path(), Arc::clone(&volumes))
        .with_observer(podguard::Devices(limits.restrictions()));
    podguard::Metrics::register(&registry, limits.restrictions())?;
    let plugin = Arc::new(csi::Plugin::new(settings, host, &registry)?);
    let (again, revoked) = (Arc::clone(&plugin), plugin.revoked());
    let metrics = provisioner::Metrics::register(&registry, volumes.clone())?;
    let parts = Parts {
        plugin,
        cluster: cluster::Settings {
            client: client()?,
            node,
            volumes,
            metrics,
            register_again: Arc::new(move || again.register_again()),
            revoked,
            notices: queue,
        },
        limits,
        listener: bind(listen).await?,
        registry,
    };
    until(ending, "storage", move |cx| storage(cx, parts.clone())).await;
    Ok(())
}

#[derive(Clone)]
struct Parts {
    plugin: Arc<csi::Plugin<csi::Linux>>,
    cluster: cluster::Settings,
    limits: Arc<Keeper>,
    listener: Arc<TcpListener>,
    registry: Registry,
}

/// The plugin does not wait for the API server: pods whose volumes exist start without it.
async fn storage(cx: Context, parts: Parts) -> Result<(), BoxError> {
    let Parts { plugin, cluster, limits, listener, registry } = parts;
    let restrictions = limits.restrictions();
    cx.start("status", move |cx| {
        numbers::run(cx, Arc::clone(&listener), registry.clone(), Some(Arc::clone(&restrictions)))
    });
    cx.start("limits", move |cx| Arc::clone(&limits).run(cx));
    cx.start("csi", move |cx| Arc::clone(&plugin).run(cx)).healthy().await?;
    let patient = Settings { backoff: Backoff { most: MOST, ..Backoff::default() }, ..Settings::default() };
    cx.start_with("cluster", patient, move |cx| cluster::run(cx, cluster.clone()));
    cx.healthy();
    cx.cancelled().await;
    Ok(())
}

async fn release(arguments: Release, ending: Ending) -> Result<(), ProgramError> {
    let (client, listener) = (client()?, bind(arguments.listen).await?);
    let registry = Registry::new();
    let released = move |cx: Context| {
        let (client, listener, registry) = (client.clone(), Arc::clone(&listener), registry.clone());
        async move {
            cx.start("status", move |cx| numbers::run(cx, Arc::clone(&listener), registry.clone(), None));
            cx.start("claims", move |cx| reconciler::release(cx, client.clone()));
            cx.healthy();
            cx.cancelled().await;
            Ok::<(), BoxError>(())
        }
    };
    until(ending, "release", released).await;
    Ok(())
}

/// Runs a tree until somebody asks for its end, then stops it in order.
async fn until<F, Fut>(mut ending: Ending, name: &'static str, root: F)
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    let tree = Supervisor::start(name, Settings::default(), root);
    let signal = ending.wait().await;
    info!(signal, "asked to end");
    if let Err(overdue) = tree.stop(STOP).await {
        warn!(error = &overdue as &dyn Error, "services were left behind");
    }
}

/// With the pod's service account. Its token is read again when kubelet renews it.
fn client() -> Result<Client, ProgramError> {
    // By the address in the environment: a static program looks up no names.
    let config = kube::Config::incluster_env().map_err(ProgramError::NotInCluster)?;
    apiclient::client(config).map_err(|source| ProgramError::Client(Box::new(source)))
}

async fn bind(address: SocketAddr) -> Result<Arc<TcpListener>, ProgramError> {
    let bound = TcpListener::bind(address).await;
    bound.map(Arc::new).map_err(|source| ProgramError::Listen { address, source })
}

/// Those who may end the program.
struct Ending {
    terminate: Signal,
    interrupt: Signal,
}

impl Ending {
    fn watch() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn wait(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Lines on standard output: we speak from `info` on, libraries from `warn` on.
fn log() {
    let filter = Targets::new()
        .with_default(LevelFilter::INFO)
        .with_target("kube", LevelFilter::WARN)
        .with_target("kube_runtime", LevelFilter::WARN)
        .with_target("hyper", LevelFilter::WARN)
        .with_target("h2", LevelFilter::WARN)
        .with_target("tower", LevelFilter::WARN)
        .with_target("rustls", LevelFilter::WARN);
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_target(false);
    let _ = tracing_subscriber::registry().with(lines).with(filter).try_init();
}
