//! Authentication of etcd's clients.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use cluster::{API_PORT, AdministratorRequest};
use envtest::{Cluster, Failure, Suite};
use programs::Credentials;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use time::OffsetDateTime;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

const LIMIT: Duration = Duration::from_secs(60);
const CLIENTS: u16 = 2379;
const PEERS: u16 = 2380;
const HEALTH: u16 = 2381;

pub fn cases(suite: Suite) -> Suite {
    suite
        .case("etcd_accepts_two_certificates_of_the_node_and_no_other", accepts_two_certificates)
        .case("etcd_rejects_the_certificate_of_an_administrator", rejects_administrators)
        .case("etcd_serves_no_objects_without_encryption", serves_no_objects_without_encryption)
}

/// A client certificate and its key, PEM.
struct Pair {
    certificate: String,
    key: String,
}

impl Pair {
    fn of(pki: &Path, name: &str) -> io::Result<Self> {
        let read = |extension: &str| fs::read_to_string(pki.join(format!("{name}.{extension}")));
        Ok(Self { certificate: read("crt")?, key: read("key")? })
    }
}

fn client(pki: &Path, pair: Option<&Pair>, protocol: &str) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(pki.join("ca.crt")).unwrap()).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots);
    let mut config = match pair {
        None => config.with_no_client_auth(),
        Some(Pair { certificate, key }) => {
            let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<_, _>>().unwrap();
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap()).unwrap()
        }
    };
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    Arc::new(config).into()
}

/// Whether the server continues after the handshake: in TLS 1.3, a server rejects a client's certificate only then.
async fn lets_in(client: TlsConnector, port: u16) -> io::Result<()> {
    let stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
    let mut stream = client.connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await?;
    // RFC 9113, 3.4: the client's preface with empty settings, and the start of the server's preface.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await?;
    let mut head = [0; 9];
    timeout(LIMIT, stream.read_exact(&mut head)).await??;
    Ok(())
}

/// First line of the response to a client with this certificate. The URI may be too long for other HTTP clients.
pub async fn get(pki: &Path, certificate: &str, port: u16, path: &str) -> Result<String, Failure> {
    get_as(pki, &Pair::of(pki, certificate)?, port, path).await
}

async fn get_as(pki: &Path, pair: &Pair, port: u16, path: &str) -> Result<String, Failure> {
    let stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
    let connector = client(pki, Some(pair), "http/1.1");
    let mut stream = connector.connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut line = String::new();
    timeout(LIMIT, BufReader::new(stream).read_line(&mut line)).await??;
    Ok(line.trim_end().to_owned())
}

async fn plain(port: u16, path: &str) -> Result<String, Failure> {
    let mut stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned())
}

/// Certificates with a key. The front proxy's CA has none.
fn certificates(pki: &Path) -> Result<BTreeSet<String>, Failure> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(pki)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let is_clients = |name: &&str| *name != "ca" && pki.join(format!("{name}.key")).exists();
        names.extend(name.strip_suffix(".crt").filter(is_clients).map(str::to_owned));
    }
    Ok(names)
}

/// Regression: a pod in the host's network had access to every object of the cluster.
async fn accepts_two_certificates(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let pki = &cluster.config().paths.pki;
    let names = certificates(pki)?;
    // Certificates of servers and of identities.
    for name in ["apiserver", "kubelet-server", "kubelet", "storage"] {
        assert!(names.contains(name), "{name} is not among {names:?}");
    }
    let (mut clients, mut peers) = (Vec::new(), Vec::new());
    for name in &names {
        let pair = Pair::of(pki, name)?;
        for (port, accepted) in [(CLIENTS, &mut clients), (PEERS, &mut peers)] {
            if lets_in(client(pki, Some(&pair), "h2"), port).await.is_ok() {
                accepted.push(name.as_str());
            }
        }
    }
    assert_eq!(clients, ["admin", "apietcd"], "clients");
    assert_eq!(peers, [""; 0], "members");
    for port in [CLIENTS, PEERS] {
        assert!(lets_in(client(pki, None, "h2"), port).await.is_err(), "port {port} without a certificate");
    }
    Ok(())
}

/// A certificate that the node signs for a request in its configuration.
fn administrator(cluster: &Cluster) -> Result<Pair, Failure> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "alice");
    params.subject_alt_names = vec![SanType::DnsName("etcd-client.granary.invalid".try_into()?)];
    let key = KeyPair::generate()?;
    let request: AdministratorRequest = params.serialize_request(&key)?.pem()?.parse()?;
    let mut config = cluster.config().clone();
    config.settings.administrators = vec![request];
    let public = Credentials::ensure(&config, OffsetDateTime::now_utc())?.public();
    let [administrator] = &*public.administrators else { panic!("{public:?}") };
    Ok(Pair { certificate: administrator.certificate.clone(), key: key.serialize_pem() })
}

/// The same CA signs both certificates, and the request has the DNS name that etcd requires.
async fn rejects_administrators(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let pki = &cluster.config().paths.pki;
    let administrator = administrator(&cluster)?;
    assert_eq!(get_as(pki, &administrator, API_PORT, "/version").await?, "HTTP/1.1 200 OK");
    for port in [CLIENTS, PEERS] {
        assert!(lets_in(client(pki, Some(&administrator), "h2"), port).await.is_err(), "port {port}");
    }
    Ok(())
}

async fn serves_no_objects_without_encryption(_cluster: Arc<Cluster>) -> Result<(), Failure> {
    assert_eq!(plain(HEALTH, "/health").await?, "HTTP/1.0 200 OK");
    for path in ["/v3/kv/range", "/v3/maintenance/snapshot", "/v2/keys", "/members", "/debug/pprof/"] {
        assert_eq!(plain(HEALTH, path).await?, "HTTP/1.0 404 Not Found", "{path}");
    }
    for port in [CLIENTS, PEERS] {
        let answer = plain(port, "/health").await?;
        assert!(!answer.contains("200"), "port {port}: {answer}");
    }
    Ok(())
}
