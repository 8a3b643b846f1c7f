//! The programs of a control plane.

use std::env;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::{API_PORT, STORAGE_GROUP, STORAGE_USER_PREFIX};
use ipnet::Ipv4Net;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use programs::{
    Confinement, Credentials, Disk, Durability, Identity, Paths, apiserver, controller_manager, dns, etcd, scheduler,
    snapshot_controller,
};
use supervisor::{Backoff, BoxError, Context, Ended, Overdue, Settings, Supervisor};
use tempfile::TempDir;
use time::OffsetDateTime;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::sleep;
use units::Bytes;

/// Variables that the target of a suite sets: the multi-call program of Kubernetes, and etcd.
const KUBE: &str = "ENVTEST_KUBE";
const ETCD: &str = "ENVTEST_ETCD";

/// Variable that the target of a suite sets if a case calls [`Cluster::start_dns`].
const COREDNS: &str = "ENVTEST_COREDNS";

const NODE: &str = "granary";

/// Advertised address of the API server, from a documentation network. No process listens there.
const ADVERTISED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Service network of [`Cluster::start_dns`]. CoreDNS listens on its tenth address. All of these addresses belong to
/// the loopback interface.
const LOOPBACK: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(127, 96, 0, 0), 16);

const STOP: Duration = Duration::from_secs(20);

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0} is not set; run the test by its Bazel target")]
    Missing(&'static str),
    #[error("cannot prepare a directory for the control plane")]
    Directory(#[from] io::Error),
    #[error("cannot create keys and certificates")]
    Pki(#[from] programs::PkiError),
    #[error("{program} does not start: {reason}")]
    Program { program: &'static str, reason: String, source: Ended },
    #[error("cannot use the administrator's kubeconfig")]
    Kubeconfig(#[from] KubeconfigError),
    #[error("cannot impersonate another identity")]
    Impersonation(#[source] Box<kube::Error>),
    #[error("cannot create a client of the API server")]
    Client(#[from] programs::ClientError),
}

pub struct Cluster {
    config: programs::Config,
    credentials: Arc<Credentials>,
    admin: Client,
    api_server: Mutex<Option<Supervisor>>,
    controllers: Mutex<Option<Supervisor>>,
    etcd: Mutex<Option<Supervisor>>,
    // Declared after the programs, so that it is dropped last.
    _directory: TempDir,
}

impl Cluster {
    /// Starts the programs. Returns when the default service account exists.
    pub async fn start() -> Result<Self, StartError> {
        let directory = TempDir::with_prefix("envtest-")?;
        let programs = directory.path().join("bin");
        std::fs::create_dir(&programs)?;
        let (kube, server) = (program(KUBE)?, program(ETCD)?);
        symlink(server, programs.join("etcd"))?;
        for name in ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "snapshot-controller"] {
            symlink(&kube, programs.join(name))?;
        }
        let config = config(directory.path(), programs)?;
        let credentials = Arc::new(Credentials::ensure(&config, OffsetDateTime::now_utc())?);
        let etcd = start("etcd", etcd::service(&config)).await?;
        let api_server = start("kube-apiserver", apiserver::service(&config, &credentials)).await?;
        let controllers = start("kube-controller-manager", controller_manager::service(&config, &credentials)).await?;
        let admin = credentials.client(Identity::Admin).await?;
        Ok(Self {
            config,
            credentials,
            admin,
            api_server: Mutex::new(Some(api_server)),
            controllers: Mutex::new(Some(controllers)),
            etcd: Mutex::new(Some(etcd)),
            _directory: directory,
        })
    }

    pub fn admin(&self) -> Client {
        self.admin.clone()
    }

    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.credentials.kubeconfig(Identity::Admin)
    }

    pub async fn client(&self, identity: Identity) -> Result<Client, StartError> {
        match identity {
            // A client certificate of this identity would need an approval, and not every suite has an approver.
            Identity::Storage => self.storage_of(self.node()).await,
            other => Ok(self.credentials.client(other).await?),
        }
    }

    pub async fn storage_of(&self, node: &str) -> Result<Client, StartError> {
        self.impersonate(&format!("{STORAGE_USER_PREFIX}{node}"), &[STORAGE_GROUP]).await
    }

    /// Issues a client certificate of a node's storage, and returns the kubeconfig that names its files. The next call
    /// replaces the files.
    pub fn storage_kubeconfig(&self, node: &str) -> Result<PathBuf, StartError> {
        let config = programs::Config { node: node.to_owned(), ..self.config.clone() };
        let credentials = Credentials::ensure(&config, OffsetDateTime::now_utc())?;
        Ok(credentials.kubeconfig(Identity::Storage))
    }

    pub async fn impersonate(&self, user: &str, groups: &[&str]) -> Result<Client, StartError> {
        let kubeconfig = Kubeconfig::read_from(self.admin_kubeconfig())?;
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.auth_info.impersonate = Some(user.to_owned());
        config.auth_info.impersonate_groups = Some(groups.iter().map(|group| (*group).to_owned()).collect());
        Client::try_from(config).map_err(|source| StartError::Impersonation(Box::new(source)))
    }

    pub fn config(&self) -> &programs::Config {
        &self.config
    }

    pub fn credentials(&self) -> &Arc<Credentials> {
        &self.credentials
    }

    /// Name of the node of [`Identity::Kubelet`] and [`Identity::Storage`]. The node has no Node object.
    pub fn node(&self) -> &str {
        &self.config.node
    }

    /// Starts the scheduler, which ends when the value is stopped or dropped. Most suites act as the scheduler
    /// themselves.
    pub async fn start_scheduler(&self) -> Result<Supervisor, StartError> {
        start("kube-scheduler", scheduler::service(&self.config, &self.credentials)).await
    }

    /// Starts CoreDNS, which forwards names outside of the cluster to these servers. Returns the address of CoreDNS.
    /// Its port requires root, and its responses require the role that the reconciler creates.
    pub async fn start_dns(&self, servers: &[Ipv4Addr]) -> Result<(Supervisor, Ipv4Addr), StartError> {
        symlink(program(COREDNS)?, self.config.paths.programs.join("coredns"))?;
        let config = programs::Config { services: LOOPBACK, ..self.config.clone() };
        let running = start("coredns", dns::service(&config, &self.credentials, servers)).await?;
        Ok((running, config.dns_service()))
    }

    /// Creates the snapshot CRDs, their default class and the controller's role like the node does, and starts
    /// snapshot-controller. The controller ends when the value is stopped or dropped; the objects stay.
    pub async fn start_snapshots(&self) -> Result<Supervisor, StartError> {
        self.reconcile_snapshots().await?;
        start("snapshot-controller", snapshot_controller::service(&self.config, &self.credentials)).await
    }

    /// Creates or corrects the snapshot CRDs, their default class and the controller's role like the node does.
    pub async fn reconcile_snapshots(&self) -> Result<(), StartError> {
        let client = self.admin();
        start("snapshots", move |cx| reconciler::snapshots(cx, client.clone())).await?;
        Ok(())
    }

    /// Kills the API server. After a request to end, it would wait 5 s for connections without a request (Go's
    /// `http.Server.Shutdown`).
    pub async fn stop_api_server(&self) {
        if let Some(running) = self.api_server.lock().await.take() {
            end(running, &[API_PORT]).await;
        }
    }

    /// Kills etcd and starts it with this configuration, which has the paths of the cluster except for etcd's data.
    /// Returns when etcd is ready.
    pub async fn restart_etcd(&self, config: &programs::Config) -> Result<(), StartError> {
        let mut running = self.etcd.lock().await;
        if let Some(running) = running.take() {
            end(running, &etcd::PORTS).await;
        }
        *running = Some(start("etcd", etcd::service(config)).await?);
        Ok(())
    }

    /// Starts the API server again and returns when it is ready. Does nothing if it runs.
    pub async fn start_api_server(&self) -> Result<(), StartError> {
        let mut running = self.api_server.lock().await;
        if running.is_none() {
            *running = Some(start("kube-apiserver", apiserver::service(&self.config, &self.credentials)).await?);
        }
        Ok(())
    }

    pub async fn stop_controllers(&self) -> Result<(), Overdue> {
        match self.controllers.lock().await.take() {
            Some(running) => running.stop(STOP).await,
            None => Ok(()),
        }
    }

    pub async fn start_controllers(&self) -> Result<(), StartError> {
        let mut running = self.controllers.lock().await;
        if running.is_none() {
            let service = controller_manager::service(&self.config, &self.credentials);
            *running = Some(start("kube-controller-manager", service).await?);
        }
        Ok(())
    }
}

/// Kills a program that listens on these ports.
async fn end(running: Supervisor, ports: &[u16]) {
    // The deadline of zero kills the program, so `stop` reports that the program is overdue.
    _ = running.stop(Duration::ZERO).await;
    // The kernel releases a large process and its ports, one after the other, some time after its end, and the next
    // program needs them.
    let end = Instant::now() + STOP;
    for port in ports {
        while Instant::now() < end && TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).await.is_ok() {
            sleep(Duration::from_millis(10)).await;
        }
    }
}

fn program(variable: &'static str) -> Result<PathBuf, StartError> {
    let path = env::var_os(variable).ok_or(StartError::Missing(variable))?;
    Ok(std::path::absolute(path)?)
}

fn config(directory: &Path, programs: PathBuf) -> Result<programs::Config, StartError> {
    let paths = Paths {
        cni_programs: programs.clone(),
        programs,
        cgroups: None,
        // A sandbox on a build machine has only one user and may lack Landlock.
        confinement: Confinement::Disabled,
        pki: directory.join("pki"),
        etcd: directory.join("etcd"),
        audit: directory.join("audit"),
        ephemeral: directory.join("run"),
        ..Paths::default()
    };
    Ok(programs::Config {
        node: NODE.to_owned(),
        address: ADVERTISED,
        api_server: SocketAddrV4::new(ADVERTISED, API_PORT),
        durability: Durability::UnsafeNoFsync,
        disk: Disk {
            size: Bytes::new(64 << 30),
            etcd: Bytes::new(4 << 30),
            pods: Bytes::new(4 << 30),
            // Limit of the smallest disk.
            audit: Bytes::new(19 << 20),
        },
        paths,
        ..programs::Config::default()
    })
}

/// Starts a program and returns when it is ready. A program that fails is not restarted, so that the test fails.
async fn start<F, Fut, E>(program: &'static str, service: F) -> Result<Supervisor, StartError>
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<BoxError>,
{
    let never = Duration::from_secs(24 * 60 * 60);
    let settings = Settings { backoff: Backoff { first: never, most: never, settled: never }, ..Settings::default() };
    let tree = Supervisor::start(program, settings, service);
    let handle = tree.handle();
    let ended = tokio::select! {
        ready = handle.healthy() => match ready {
            Ok(()) => return Ok(tree),
            Err(ended) => ended,
        },
        () = failed(&tree) => Ended { service: program.to_owned() },
    };
    let reason = tree.status().last_error.unwrap_or_else(|| "it ended".to_owned());
    Err(StartError::Program { program, reason, source: ended })
}

async fn failed(tree: &Supervisor) {
    while tree.status().state != supervisor::State::Failed {
        sleep(Duration::from_millis(100)).await;
    }
}
