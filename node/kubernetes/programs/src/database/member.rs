//! The part of etcd's API that a recovery calls, on loopback.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use proto::etcd::alarm_request::AlarmAction;
use proto::etcd::kv_client::KvClient;
use proto::etcd::maintenance_client::MaintenanceClient;
use proto::etcd::{AlarmMember, AlarmRequest, AlarmType, CompactionRequest, DefragmentRequest, StatusRequest};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use supervisor::BoxError;
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};
use tower::service_fn;
use units::Bytes;

use super::DatabaseError;
use crate::etcd::CLIENTS;
use crate::pki::identity::Identity;
use crate::pki::store;

/// Deadline of a connection, with its TLS handshake.
const CONNECTION: Duration = Duration::from_secs(10);
/// Deadline of a call. A compaction and a defragmentation read the whole database, up to gigabytes, from a disk that
/// may be slow.
const LIMIT: Duration = Duration::from_mins(10);

pub(super) struct Member {
    kv: KvClient<Channel>,
    maintenance: MaintenanceClient<Channel>,
}

pub(super) struct Status {
    pub(super) size: Bytes,
    pub(super) in_use: Bytes,
    pub(super) quota: Bytes,
}

impl Member {
    /// Connects with the certificate of [`Identity::Admin`], which only root can read. etcd accepts no other
    /// certificate of the node's own program, and each further certificate would be another access to all objects.
    /// Reads the files at each call, because the node renews them.
    pub(super) async fn connect(pki: &Path) -> Result<Self, DatabaseError> {
        let directory = pki.to_owned();
        let read = spawn_blocking(move || tls(&directory)).await.unwrap_or_else(|error| Err(error.into()));
        let config = read.map_err(|source| DatabaseError::Certificate { pki: pki.to_owned(), source })?;
        let tls = TlsConnector::from(Arc::new(config));
        let connector = service_fn(move |uri: Uri| {
            let tls = tls.clone();
            async move {
                let address = (uri.host().unwrap_or_default(), uri.port_u16().unwrap_or_default());
                let stream = TcpStream::connect(address).await?;
                let server = ServerName::from(IpAddr::from(Ipv4Addr::LOCALHOST));
                tls.connect(server, stream).await.map(TokioIo::new)
            }
        });
        let endpoint = Endpoint::from_static(CLIENTS).connect_timeout(CONNECTION);
        let channel = endpoint.connect_with_connector(connector).await.map_err(DatabaseError::Connection)?;
        Ok(Self { kv: KvClient::new(channel.clone()), maintenance: MaintenanceClient::new(channel) })
    }

    /// The current revision, and the alarms for a full database: one for each member of etcd that has raised it.
    pub(super) async fn alarms(&mut self) -> Result<(i64, Vec<AlarmMember>), DatabaseError> {
        let action = AlarmAction::Get.into();
        let request = AlarmRequest { action, member_id: 0, alarm: AlarmType::Nospace.into() };
        let answer = self.maintenance.alarm(limited(request)).await.map_err(failed("Alarm"))?.into_inner();
        Ok((answer.header.map_or(0, |header| header.revision), answer.alarms))
    }

    pub(super) async fn disarm(&mut self, alarms: Vec<AlarmMember>) -> Result<(), DatabaseError> {
        for AlarmMember { member_id, alarm } in alarms {
            let request = AlarmRequest { action: AlarmAction::Deactivate.into(), member_id, alarm };
            self.maintenance.alarm(limited(request)).await.map_err(failed("Alarm"))?;
        }
        Ok(())
    }

    pub(super) async fn status(&mut self) -> Result<Status, DatabaseError> {
        let answer = self.maintenance.status(limited(StatusRequest {})).await.map_err(failed("Status"))?.into_inner();
        let bytes = |number: i64| Bytes::new(number.try_into().unwrap_or_default());
        Ok(Status {
            size: bytes(answer.db_size),
            in_use: bytes(answer.db_size_in_use),
            quota: bytes(answer.db_size_quota),
        })
    }

    /// Deletes older revisions of all objects. Also succeeds if an earlier compaction reached this revision.
    pub(super) async fn compact(&mut self, revision: i64) -> Result<(), DatabaseError> {
        match self.kv.compact(limited(CompactionRequest { revision, physical: true })).await {
            Ok(_) => Ok(()),
            // `ErrGRPCCompacted` of etcd's api/v3rpc/rpctypes/error.go.
            Err(status) if status.code() == Code::OutOfRange => Ok(()),
            Err(status) => Err(failed("Compact")(status)),
        }
    }

    /// Writes the database to another file, which replaces the former one. If it fails, the database is unchanged.
    pub(super) async fn defragment(&mut self) -> Result<(), DatabaseError> {
        self.maintenance.defragment(limited(DefragmentRequest {})).await.map(drop).map_err(failed("Defragment"))
    }
}

fn limited<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(LIMIT);
    request
}

fn failed(call: &'static str) -> impl FnOnce(tonic::Status) -> DatabaseError {
    move |status| DatabaseError::Call { call, status: Box::new(status) }
}

fn tls(pki: &Path) -> Result<ClientConfig, BoxError> {
    let client = Identity::Admin.name();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(store::file(pki, "ca", "crt"))?)?;
    let chain = CertificateDer::pem_file_iter(store::file(pki, client, "crt"))?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(store::file(pki, client, "key"))?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    // gRPC for Go closes connections without ALPN.
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}
