//! A real etcd, and who it talks to. Its ports are fixed: it needs a loopback device of its own, and its program in `ETCD`.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs, io};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use services::{Config, Credentials, Disk, Durability, Mesh, Paths, etcd};
use supervisor::{Settings, Supervisor};
use time::OffsetDateTime;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use units::Bytes;

const LIMIT: Duration = Duration::from_secs(60);
const CLIENTS: u16 = 2379;
const PEERS: u16 = 2380;
const HEALTH: u16 = 2381;

fn config(directory: &Path) -> Config {
    let paths = Paths {
        programs: directory.join("bin"),
        cgroups: None,
        pki: directory.join("pki"),
        etcd: directory.join("etcd"),
        ephemeral: directory.join("run"),
        ..Paths::default()
    };
    fs::create_dir(&paths.programs).unwrap();
    let program = std::path::absolute(env::var_os("ETCD").expect("ETCD: run this by its Bazel target")).unwrap();
    symlink(program, paths.programs.join("etcd")).unwrap();
    Config {
        node: "granary".to_owned(),
        address: Ipv4Addr::new(192, 0, 2, 1),
        services: "10.96.0.0/16".parse().unwrap(),
        cluster_pods: "10.244.0.0/16".parse().unwrap(),
        mesh: Mesh { interface: "clusternet", mtu: 1420 },
        private_port: 7839,
        durability: Durability::UnsafeNoFsync,
        disk: Disk { size: Bytes::GIB, etcd: Bytes::GIB, pods: Bytes::GIB },
        paths,
    }
}

/// A client that shows this certificate.
fn client(pki: &Path, certificate: Option<&str>) -> TlsConnector {
    let file = |name: &str, extension| pki.join(format!("{name}.{extension}"));
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("ca", "crt")).unwrap()).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots);
    let mut config = match certificate {
        None => config.with_no_client_auth(),
        Some(name) => {
            let chain = CertificateDer::pem_file_iter(file(name, "crt")).unwrap().collect::<Result<_, _>>().unwrap();
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(file(name, "key")).unwrap()).unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config).into()
}

/// Whether the server goes on after the handshake: only then it tells that it does not like the certificate.
async fn lets_in(client: TlsConnector, port: u16) -> io::Result<()> {
    let stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
    let mut stream = client.connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await?;
    // RFC 9113, 3.4: the client's preface with empty settings, and the beginning of the server's.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await?;
    let mut head = [0; 9];
    timeout(LIMIT, stream.read_exact(&mut head)).await??;
    Ok(())
}

/// The first line of an answer without encryption.
async fn plain(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
}

/// A pod in the host's network reached every object of the cluster.
#[tokio::test]
async fn only_who_has_a_certificate_for_it_talks_to_etcd() {
    let scratch = tempfile::tempdir().unwrap();
    let config = config(scratch.path());
    let pki = config.paths.pki.clone();
    Credentials::ensure(&config, OffsetDateTime::now_utc()).unwrap();
    let etcd = Supervisor::start("etcd", Settings::default(), etcd::service(&config));
    timeout(LIMIT, etcd.handle().healthy()).await.unwrap().unwrap();

    for name in ["apietcd", "admin"] {
        lets_in(client(&pki, Some(name)), CLIENTS).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    // The authority signed these as well.
    for name in ["kubelet", "proxy", "scheduler", "controller-manager", "apikubelet", "etcd"] {
        assert!(lets_in(client(&pki, Some(name)), CLIENTS).await.is_err(), "{name}");
    }
    assert!(lets_in(client(&pki, None), CLIENTS).await.is_err());
    for name in [None, Some("apietcd"), Some("admin"), Some("etcd")] {
        assert!(lets_in(client(&pki, name), PEERS).await.is_err(), "{name:?} as a member");
    }

    assert_eq!(plain(HEALTH, "/health").await, "HTTP/1.0 200 OK");
    for path in ["/v3/kv/range", "/v3/maintenance/snapshot", "/v2/keys", "/members", "/debug/pprof/"] {
        assert_eq!(plain(HEALTH, path).await, "HTTP/1.0 404 Not Found", "{path}");
    }
    for port in [CLIENTS, PEERS] {
        let answer = plain(port, "/health").await;
        assert!(!answer.contains("200"), "without encryption: {answer}");
    }
    etcd.stop(Duration::from_secs(20)).await.unwrap();
}
