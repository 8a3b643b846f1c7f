//! How a worker gets into its cluster, and keeps the certificates with which it is in it.

use std::net::IpAddr;
use std::sync::Arc;

use config::Worker;
use services::discovery::{self, AuthorityDigest, DiscoveryError};
use services::{Config, Credentials, IdentityError, Lasting, PkiError, Requested};
use supervisor::Context;
use tokio::sync::watch;
use tokio::task::{JoinError as TaskError, spawn_blocking};
use tracing::info;

/// The data disk belongs to a node that cannot be this one.
#[derive(Debug, thiserror::Error)]
pub enum OtherCluster {
    /// Its files.
    #[error(transparent)]
    Disk(#[from] PkiError),
    /// It has joined a cluster, and not this one.
    #[error(
        "the node on the data disk has joined the cluster of the authority {joined}, and the configuration says {asked}: \
         write {joined} into worker.authority, or use an empty data disk for another cluster"
    )]
    Joined {
        /// What the disk has.
        joined: AuthorityDigest,
        /// What the configuration says.
        asked: AuthorityDigest,
    },
}

/// Why the node is not in its cluster, or cannot stay there. Tried again after a while.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The disk.
    #[error(transparent)]
    Disk(#[from] PkiError),
    /// The thread that reads and writes it.
    #[error("work on the files of the cluster ended early")]
    Panicked(#[from] TaskError),
    /// The control plane.
    #[error("cannot find the cluster")]
    Discover(#[from] DiscoveryError),
    /// The certificates.
    #[error("cannot get the certificates of this node")]
    Identity(#[from] IdentityError),
}

/// Looks whether the node on the data disk, if there is one, is in the cluster of this authority. Waits for the disk.
///
/// # Errors
/// [`OtherCluster`]. Nothing was changed.
pub fn is_ours(services: &Config, asked: AuthorityDigest) -> Result<(), OtherCluster> {
    let joined = Credentials::joined(services)?.and_then(|pem| AuthorityDigest::of_pem(&pem));
    match joined {
        Some(joined) if joined != asked => Err(OtherCluster::Joined { joined, asked }),
        Some(_) | None => Ok(()),
    }
}

/// A node's way into its cluster.
pub(crate) struct Join {
    services: Config,
    worker: Worker,
    credentials: watch::Sender<Option<Arc<Credentials>>>,
}

impl Join {
    pub(crate) fn new(services: Config, worker: Worker) -> Self {
        Self { services, worker, credentials: watch::Sender::default() }
    }

    /// Those of a node that has joined; waited for until then.
    pub(crate) async fn credentials(&self) -> Arc<Credentials> {
        let mut all = self.credentials.subscribe();
        loop {
            if let Some(credentials) = &*all.borrow_and_update() {
                return Arc::clone(credentials);
            }
            // The sender lives as long as `self`.
            let _ = all.changed().await;
        }
    }

    /// Joins, and from then on renews kubelet's certificates. Healthy when kubelet can be started.
    ///
    /// # Errors
    /// [`JoinError`].
    pub(crate) async fn run(self: Arc<Self>, cx: Context) -> Result<(), JoinError> {
        let joined = async {
            let credentials = Arc::new(self.trust().await?);
            let token = self.worker.token.clone();
            let kubelet = Requested::kubelet(&self.services, &credentials, token);
            let server = Requested::kubelet_server(&self.services, &credentials);
            let lasting = Lasting::first(kubelet.ensure().await?, server.ensure().await?);
            Ok::<_, JoinError>((credentials, kubelet, server, lasting))
        };
        let (credentials, kubelet, server, mut lasting) = tokio::select! {
            () = cx.cancelled() => return Ok(()),
            joined = joined => joined?,
        };
        info!(server = %self.worker.server, "the node is in the cluster");
        self.credentials.send_replace(Some(credentials));
        cx.healthy();
        loop {
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = lasting.renewal() => {}
            }
            lasting = tokio::select! {
                () = cx.cancelled() => return Ok(()),
                renewed = async { Ok::<_, IdentityError>(Lasting::first(kubelet.ensure().await?, server.ensure().await?)) } => renewed?,
            };
        }
    }

    /// Asks the control plane for its authority's certificate; once the node has joined, the disk knows it.
    async fn trust(&self) -> Result<Credentials, JoinError> {
        let Self { services, worker, .. } = self;
        let wanted = services.clone();
        let authority = match spawn_blocking(move || Credentials::joined(&wanted)).await?? {
            Some(authority) => authority,
            None => {
                let config::Server { address, port } = worker.server;
                discovery::authority(IpAddr::V4(address), port, worker.authority).await?
            }
        };
        let (services, server) = (services.clone(), worker.server.to_string());
        Ok(spawn_blocking(move || Credentials::joining(&services, &server, &authority)).await??)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::Ipv4Addr;
    use std::path::Path;

    use services::{Disk, Durability, Paths};
    use time::OffsetDateTime;
    use units::Bytes;

    use super::*;

    fn config(pki: &Path) -> Config {
        Config {
            node: "granary-1".to_owned(),
            address: Ipv4Addr::new(10, 0, 2, 16),
            services: "10.96.0.0/16".parse().unwrap(),
            cluster_pods: "10.244.0.0/16".parse().unwrap(),
            mesh: crate::mesh::of_uplink(1500),
            durability: Durability::Durable,
            disk: Disk { size: Bytes::GIB, etcd: Bytes::MIB, pods: Bytes::MIB },
            paths: Paths { pki: pki.to_owned(), ..Paths::default() },
        }
    }

    #[test]
    fn the_disk_of_another_cluster_is_refused_with_the_remedy() {
        let scratch = tempfile::tempdir().unwrap();
        let [control_plane, worker] = ["control-plane", "worker"].map(|name| scratch.path().join(name));
        Credentials::ensure(&config(&control_plane), OffsetDateTime::now_utc()).unwrap();
        let authority = fs::read_to_string(control_plane.join("ca.crt")).unwrap();
        let (joined, asked) = (AuthorityDigest::of_pem(&authority).unwrap(), format!("sha256:{:064}", 0));
        let (worker, asked) = (config(&worker), asked.parse().unwrap());

        assert!(is_ours(&worker, asked).is_ok(), "an empty disk");
        Credentials::joining(&worker, "192.0.2.1:6443", &authority).unwrap();
        assert!(is_ours(&worker, asked).is_ok(), "it has no certificate yet");
        for file in ["kubelet.crt", "kubelet.key"] {
            fs::write(worker.paths.pki.join(file), "what it was given").unwrap();
        }
        assert!(is_ours(&worker, joined).is_ok());
        let refusal = is_ours(&worker, asked).unwrap_err().to_string();
        assert!(
            refusal.contains(&format!("write {joined} into worker.authority, or use an empty data disk")),
            "{refusal}"
        );

        let refusal = is_ours(&config(&control_plane), joined).unwrap_err().to_string();
        assert!(refusal.contains("the data disk is that of a control plane"), "{refusal}");
    }
}
