//! Aggregated API servers, to which the API server sends requests on with the name of their user.

use std::collections::BTreeSet;
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};

use envtest::{Cluster, Failure, Identity, PATIENCE, Seen, Suite, eventually, remove};
use http::Request;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::PostParams;
use kube::{Api, Client};
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::clients::{client_as, with_certificate};

pub fn cases(suite: Suite) -> Suite {
    suite
        .case("an_aggregated_api_server_gets_the_name_of_the_user", an_aggregated_server_gets_the_user)
        .case("only_the_front_proxys_certificate_names_other_users", only_the_front_proxy_names_users)
}

const GROUP: &str = "added.granary.test";
const FRONT_PROXY: &str = "granary:front-proxy";

/// An API server that accepts the clients of these CAs, and remembers the names of their users.
struct Aggregated {
    port: u16,
    users: Arc<Mutex<BTreeSet<String>>>,
    task: JoinHandle<()>,
}

impl Aggregated {
    async fn start(cas: &str) -> Result<Self, Failure> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(cas.as_bytes()) {
            roots.add(certificate?)?;
        }
        let provider = Arc::new(ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build()?;
        let key = KeyPair::generate()?;
        let own = CertificateParams::new(vec!["localhost".to_owned()])?.self_signed(&key)?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![own.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))?;
        let listener = TcpListener::bind(("localhost", 0)).await?;
        let port = listener.local_addr()?.port();
        let (acceptor, users) = (TlsAcceptor::from(Arc::new(config)), Arc::default());
        let kept = Arc::clone(&users);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(acceptor.clone(), stream, Arc::clone(&kept)));
            }
        });
        Ok(Self { port, users, task })
    }

    fn users(&self) -> BTreeSet<String> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Aggregated {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers one request. A client without a certificate of the CAs fails in the handshake.
async fn answer(acceptor: TlsAcceptor, stream: TcpStream, users: Arc<Mutex<BTreeSet<String>>>) {
    let Ok(mut stream) = acceptor.accept(stream).await else { return };
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        head.push(byte);
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let named = head.lines().filter_map(|line| line.strip_prefix("x-remote-user: ")).map(str::to_owned);
    users.lock().unwrap_or_else(PoisonError::into_inner).extend(named);
    let status = if head.starts_with(&format!("get /apis/{GROUP}/v1")) { "200 OK" } else { "404 Not Found" };
    let resources = json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/v1"), "resources": [],
    });
    let body = resources.to_string();
    let length = body.len();
    let fields = format!("Content-Type: application/json\r\nContent-Length: {length}\r\nConnection: close");
    // The client may have gone.
    let _ = stream.write_all(format!("HTTP/1.1 {status}\r\n{fields}\r\n\r\n{body}").as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// The API server authenticates with the published CA, and does not send names on that the client chose.
async fn an_aggregated_server_gets_the_user(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let maps = Api::<ConfigMap>::namespaced(cluster.admin(), "kube-system");
    let published = eventually(PATIENCE, "the configuration of aggregated API servers", async || {
        let found = maps.get_opt("extension-apiserver-authentication").await?.and_then(|map| map.data);
        let has_cas = found.filter(|data| data.contains_key("requestheader-client-ca-file"));
        Ok::<_, kube::Error>(has_cas.map_or(Seen::NotYet("no CA".into()), Seen::Done))
    })
    .await?;
    assert_eq!(published["requestheader-allowed-names"], format!("[\"{FRONT_PROXY}\"]"));
    let server = Aggregated::start(&published["requestheader-client-ca-file"]).await?;

    let (services, added) =
        (Api::<Service>::default_namespaced(cluster.admin()), Api::<APIService>::all(cluster.admin()));
    let service = json!({"metadata": {"name": "added"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    services.create(&PostParams::default(), &serde_json::from_value(service)?).await?;
    let name = format!("v1.{GROUP}");
    let api = json!({
        "metadata": {"name": name},
        "spec": {
            "group": GROUP,
            "version": "v1",
            "groupPriorityMinimum": 100,
            "versionPriority": 10,
            "insecureSkipTLSVerify": true,
            "service": {"namespace": "default", "name": "added", "port": server.port},
        },
    });
    added.create(&PostParams::default(), &serde_json::from_value(api)?).await?;
    eventually(PATIENCE, "the answer of the aggregated API server", async || {
        let request = Request::get(format!("/apis/{GROUP}/v1/things")).header("X-Remote-User", "chosen");
        match cluster.admin().request_text(request.body(Vec::new()).map_err(kube::Error::HttpError)?).await {
            Ok(_) => Ok(Seen::Done(())),
            Err(kube::Error::Api(status)) if [404, 503].contains(&status.code) => Ok(Seen::NotYet(status.message)),
            Err(error) => Err(error),
        }
    })
    .await?;
    let users = server.users();
    assert!(users.contains("granary:admin") && !users.contains("chosen"), "{users:?}");
    remove(&added, &name).await?;
    remove(&services, "added").await
}

/// A certificate of the cluster's CA with the front proxy's name is that of a user without rights.
async fn only_the_front_proxy_names_users(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let kubeconfig = cluster.credentials().kubeconfig(Identity::Admin);
    let pki = kubeconfig.parent().ok_or("no directory of certificates")?;
    let read = |name: &str| fs::read_to_string(pki.join(name));
    let ca = Issuer::from_ca_cert_pem(&read("ca.crt")?, KeyPair::from_pem(&read("ca.key")?)?)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, FRONT_PROXY);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate()?;
    let forged = with_certificate(params.signed_by(&key, &ca)?.pem(), key.serialize_pem())?;
    let refused = as_administrator(&client_as(&cluster, forged).await?).await;
    let Err(kube::Error::Api(status)) = &refused else { panic!("{refused:?}") };
    assert!(status.code == 403 && status.message.contains(&format!("\"{FRONT_PROXY}\"")), "{status:?}");

    // Control: the same request with the front proxy's own certificate.
    let own = with_certificate(read("frontproxy.crt")?, read("frontproxy.key")?)?;
    as_administrator(&client_as(&cluster, own).await?).await?;
    Ok(())
}

async fn as_administrator(client: &Client) -> Result<String, kube::Error> {
    let request = Request::get("/api/v1/namespaces/default/configmaps")
        .header("X-Remote-User", "granary:admin")
        .header("X-Remote-Group", "system:masters");
    client.request_text(request.body(Vec::new()).map_err(kube::Error::HttpError)?).await
}
