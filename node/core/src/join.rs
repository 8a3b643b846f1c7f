//! Joins a worker to its cluster, and renews its certificates.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use cluster::CaDigest;
use config::Worker;
use programs::discovery::{self, DiscoveryError, ca_digest};
use programs::{Config, Credentials, IdentityError, Lasting, PkiError, Requested, Stale};
use supervisor::Context;
use tokio::sync::{OnceCell, watch};
use tokio::task::{JoinError as TaskError, spawn_blocking};
use tracing::{info, warn};

use crate::certificates::renewal;

/// The data disk belongs to another node.
#[derive(Debug, thiserror::Error)]
pub enum OtherCluster {
    #[error(transparent)]
    Disk(#[from] PkiError),
    #[error(
        "the node on the data disk has joined the cluster of the CA {joined}, and the configuration says {asked}: \
         write {joined} into worker.authority, or use an empty data disk for another cluster"
    )]
    Joined { joined: CaDigest, asked: CaDigest },
}

/// The node cannot join its cluster, or cannot stay in it. The service retries later.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error(transparent)]
    Disk(#[from] PkiError),
    #[error("the task for the files of the cluster panicked")]
    Panicked(#[from] TaskError),
    #[error("cannot find the cluster")]
    Discover(#[from] DiscoveryError),
    #[error("cannot get the certificates of this node")]
    Identity(#[from] IdentityError),
}

/// Checks that the node on the data disk, if there is one, is in the cluster of this CA. Waits for the disk.
pub fn check_disk(services: &Config, asked: CaDigest) -> Result<(), OtherCluster> {
    let joined = Credentials::joined(services)?.and_then(|pem| ca_digest(&pem));
    match joined {
        Some(joined) if joined != asked => Err(OtherCluster::Joined { joined, asked }),
        Some(_) | None => Ok(()),
    }
}

pub(crate) struct Join {
    services: Config,
    worker: Worker,
    /// Kept over failures: other services use these credentials, and a retry continues to wait for the same request.
    known: OnceCell<Certificates>,
    joined: watch::Sender<bool>,
    clock: watch::Receiver<clock::ClockState>,
}

/// Credentials and certificates of a node that has its cluster's CA.
struct Certificates {
    credentials: Arc<Credentials>,
    kubelet: Requested,
    server: Requested,
}

impl Join {
    pub(crate) fn new(services: Config, worker: Worker, clock: watch::Receiver<clock::ClockState>) -> Self {
        Self { services, worker, known: OnceCell::new(), joined: watch::Sender::default(), clock }
    }

    pub(crate) fn server(&self) -> Ipv4Addr {
        *self.worker.server.ip()
    }

    /// Credentials of the joined node. Waits until the node has joined.
    pub(crate) async fn credentials(&self) -> Arc<Credentials> {
        let mut joined = self.joined.subscribe();
        loop {
            if *joined.borrow_and_update()
                && let Some(known) = self.known.get()
            {
                return Arc::clone(&known.credentials);
            }
            // The sender lives as long as `self`.
            let _ = joined.changed().await;
        }
    }

    /// Joins the cluster, and then renews the kubelet's certificates. Healthy when the kubelet can start.
    pub(crate) async fn run(self: Arc<Self>, cx: Context) -> Result<(), JoinError> {
        tokio::select! {
            () = cx.cancelled() => Ok(()),
            ended = self.renew_certificates(&cx) => ended,
        }
    }

    async fn renew_certificates(&self, cx: &Context) -> Result<(), JoinError> {
        let known = self.known.get_or_try_init(|| self.prepare()).await?;
        // The control plane may be unreachable, or may have recorded the node's address for another node, which only
        // the kubelet can correct.
        if known.is_usable().await? {
            self.set_joined(cx);
        }
        loop {
            let lasting = Lasting::first(known.kubelet.ensure().await?, known.server.ensure().await?);
            self.set_joined(cx);
            renewal(lasting, self.clock.clone()).await;
        }
    }

    fn set_joined(&self, cx: &Context) {
        if !self.joined.send_replace(true) {
            info!(server = %self.worker.server, "node has joined the cluster");
        }
        cx.healthy();
    }

    async fn prepare(&self) -> Result<Certificates, JoinError> {
        let credentials = Arc::new(self.discover().await?);
        let kubelet = Requested::kubelet(&self.services, &credentials, self.worker.token.clone());
        let server = Requested::kubelet_server(&self.services, &credentials);
        Ok(Certificates { credentials, kubelet, server })
    }

    /// Requests the CA's certificate from the control plane. While the control plane is unreachable, a node that has
    /// joined uses the certificate on its disk.
    async fn discover(&self) -> Result<Credentials, JoinError> {
        let Self { services, worker, .. } = self;
        let wanted = services.clone();
        let known = spawn_blocking(move || Credentials::joined(&wanted)).await??;
        let (address, port) = (IpAddr::V4(*worker.server.ip()), worker.server.port());
        let ca = match (discovery::ca(address, port, worker.ca).await, known) {
            (Ok(shown), _) => shown,
            (Err(error), Some(known)) => {
                warn!(error = causes::of(&error), "control plane does not answer, starting with the CA on the disk");
                known
            }
            (Err(error), None) => return Err(error.into()),
        };
        let (services, server) = (services.clone(), worker.server.to_string());
        Ok(spawn_blocking(move || Credentials::joining(&services, &server, &ca)).await??)
    }
}

impl Certificates {
    /// Whether the kubelet can start with the certificates on the disk, even if they are due for renewal. A serving
    /// certificate for an earlier address is better than none.
    async fn is_usable(&self) -> Result<bool, IdentityError> {
        let client = matches!(self.kubelet.on_disk().await?, Ok(_) | Err(Stale::Expiring));
        let server = matches!(self.server.on_disk().await?, Ok(_) | Err(Stale::Expiring | Stale::OtherSubject));
        Ok(client && server)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV4;
    use std::path::Path;
    use std::time::Duration;
    use std::{fs, io};

    use ::config::{Networks, Role};
    use cluster::Token;
    use envtest::{Seen, eventually};
    use futures::FutureExt as _;
    use rustls::ServerConfig;
    use rustls::crypto::ring;
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use supervisor::{Settings, Supervisor};
    use time::OffsetDateTime;
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tokio::task::JoinSet;
    use tokio::time::timeout;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::example::services as config;

    const LONG: Duration = Duration::from_secs(60);

    /// The API server of the control plane with these keys, reduced to its handshake with a joining machine. The
    /// receiver gets the result of each handshake.
    async fn serve(pki: &Path, tasks: &mut JoinSet<()>) -> (SocketAddrV4, mpsc::Receiver<io::Result<()>>) {
        let chain = CertificateDer::pem_file_iter(pki.join("apiserver.crt")).unwrap().collect::<Result<_, _>>();
        let key = PrivateKeyDer::from_pem_file(pki.join("apiserver.key")).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain.unwrap(), key)
            .unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (sender, ended) = mpsc::channel(16);
        tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if sender.send(acceptor.accept(stream).await.map(drop)).await.is_err() {
                    break;
                }
            }
        });
        (SocketAddrV4::new(Ipv4Addr::LOCALHOST, port), ended)
    }

    #[tokio::test]
    async fn a_machine_that_finds_another_cluster_does_not_join() {
        let scratch = tempfile::tempdir().unwrap();
        let [control_plane, pki] = ["control-plane", "worker"].map(|name| scratch.path().join(name));
        Credentials::ensure(&config(&control_plane), OffsetDateTime::now_utc()).unwrap();
        let shown = ca_digest(&fs::read_to_string(control_plane.join("ca.crt")).unwrap()).unwrap();
        let mut tasks = JoinSet::new();
        let (server, mut handshakes) = serve(&control_plane, &mut tasks).await;
        let worker = Worker {
            server,
            ca: format!("sha256:{:064}", 0).parse().unwrap(),
            token: Some(Token::generate().unwrap()),
            networks: Networks::default(),
        };
        let join = Arc::new(Join::new(config(&pki), worker, watch::Sender::default().subscribe()));
        let service = Arc::clone(&join);
        let tree = Supervisor::start("join", Settings::default(), move |cx| Arc::clone(&service).run(cx));
        eventually(LONG, "two attempts", async || {
            let status = tree.status();
            let error = status.last_error.unwrap_or_default();
            let is_clear = error.contains("does not belong to the CA sha256:0000")
                && error.contains(&format!("it presented {shown}"));
            Ok::<_, JoinError>(if is_clear && status.attempts > 1 { Seen::Done(()) } else { Seen::NotYet(error) })
        })
        .await
        .unwrap();
        for _ in 0..2 {
            let ended = timeout(LONG, handshakes.recv()).await.unwrap().unwrap();
            assert!(ended.is_err(), "it sent something to an unverified server");
        }
        assert!(join.credentials().now_or_never().is_none());
        let left: Vec<_> = fs::read_dir(&pki).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty(), "{left:?}");
        tree.stop(LONG).await.unwrap();
    }

    #[test]
    fn the_disk_of_another_cluster_is_refused_with_the_remedy() {
        let scratch = tempfile::tempdir().unwrap();
        let [control_plane, worker] = ["control-plane", "worker"].map(|name| scratch.path().join(name));
        Credentials::ensure(&config(&control_plane), OffsetDateTime::now_utc()).unwrap();
        let ca = fs::read_to_string(control_plane.join("ca.crt")).unwrap();
        let (joined, asked) = (ca_digest(&ca).unwrap(), format!("sha256:{:064}", 0));
        let (worker, asked) = (config(&worker), asked.parse().unwrap());

        assert!(check_disk(&worker, asked).is_ok(), "an empty disk");
        Credentials::joining(&worker, "192.0.2.1:6443", &ca).unwrap();
        assert!(check_disk(&worker, asked).is_ok(), "it has no certificate yet");
        for file in ["kubelet.crt", "kubelet.key"] {
            fs::write(worker.paths.pki.join(file), "what it was given").unwrap();
        }
        assert!(check_disk(&worker, joined).is_ok());
        let refusal = check_disk(&worker, asked).unwrap_err().to_string();
        let remedy = format!("write {joined} into worker.authority, or use an empty data disk");
        assert!(refusal.contains(&remedy), "{refusal}");
        let followed = format!(r#"{{"worker": {{"server": "192.0.2.1", "authority": "{joined}"}}}}"#);
        assert!(
            matches!(::config::Config::parse(&followed).unwrap().role, Role::Worker(worker) if worker.ca == joined)
        );

        let refusal = check_disk(&config(&control_plane), joined).unwrap_err().to_string();
        assert!(refusal.contains("the data disk is that of a control plane"), "{refusal}");
    }
}
