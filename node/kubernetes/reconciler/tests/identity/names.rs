//! Names that the node's CoreDNS resolves from objects of the API server, and names that it forwards.

use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;
use std::sync::Arc;

use envtest::{Cluster, Failure, PATIENCE, Seen, create, eventually};
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use serde_json::{Value, json};
use supervisor::Supervisor;
use tokio::net::UdpSocket;
use tokio::sync::{Mutex, OnceCell};
use tokio::task::{JoinSet, spawn_blocking};
use workload::{Record, Resolved, resolve};

use crate::Nodes;

const NAMESPACE: &str = "names";
const SUFFIX: &str = "names.svc.cluster.local";

const PORT: u16 = 53;
/// Address of a name server that receives queries and answers none.
const SILENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 54);
const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 53);
/// Address in all answers of the name server.
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);

/// Number of addresses of 16 bytes each, more than fit in a datagram of 512 bytes.
const MANY: u8 = 60;

/// CoreDNS with two name servers, and objects with names.
struct Names {
    server: Ipv4Addr,
    web: String,
    /// Tasks that act as name servers.
    upstream: Mutex<JoinSet<()>>,
    _program: Supervisor,
}

impl Names {
    /// Starts CoreDNS once for all cases.
    async fn of(cluster: &Cluster) -> Result<&'static Self, Failure> {
        static NAMES: OnceCell<Names> = OnceCell::const_new();
        NAMES.get_or_try_init(|| Self::start(cluster)).await
    }

    async fn start(cluster: &Cluster) -> Result<Self, Failure> {
        // Wait for the role of CoreDNS.
        Nodes::of(cluster).await?;
        let mut upstream = JoinSet::new();
        let silent = UdpSocket::bind((SILENT, PORT)).await?;
        upstream.spawn(async move {
            let _silent = silent;
            std::future::pending().await
        });
        let socket = UdpSocket::bind((NAME_SERVER, PORT)).await?;
        upstream.spawn(answer_all(socket));
        let web = create_objects(cluster).await?;
        let (program, server) = cluster.start_dns(&[SILENT, NAME_SERVER]).await?;
        let names = Self { server, web, upstream: Mutex::new(upstream), _program: program };
        // CoreDNS reports ready shortly before it listens.
        eventually(PATIENCE, "an answer", async || match names.ask(&format!("web.{SUFFIX}"), Record::A).await {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(Seen::NotYet(error.to_string())),
            answered => answered.map(|_| Seen::Done(())),
        })
        .await?;
        Ok(names)
    }

    async fn ask(&self, name: &str, record: Record) -> Result<Resolved, io::Error> {
        let (server, name) = (self.server, name.to_owned());
        spawn_blocking(move || resolve::ask(server, &name, record)).await.map_err(io::Error::other)?
    }

    /// Asserts that CoreDNS returns these answers for a name of the namespace.
    async fn has(&self, name: &str, record: Record, answers: &[&str]) -> Result<(), Failure> {
        let found = self.ask(&format!("{name}.{SUFFIX}"), record).await?;
        assert_eq!((found.code.as_str(), found.truncated), ("NOERROR", false), "{found:?}");
        assert_eq!(found.answers, answers, "{found:?}");
        Ok(())
    }
}

/// Answers each query with the same address.
async fn answer_all(socket: UdpSocket) {
    let mut bytes = [0; 512];
    loop {
        let Ok((length, client)) = socket.recv_from(&mut bytes).await else { return };
        if let Ok(answer) = answer(&bytes[..length]) {
            // Ignore errors, because the client repeats the query.
            _ = socket.send_to(&answer, client).await;
        }
    }
}

/// A response with the question of the query and an address: RFC 1035, 4.1.
fn answer(query: &[u8]) -> Result<Vec<u8>, io::Error> {
    const HEADER: usize = 12;
    let invalid = || io::Error::from(ErrorKind::InvalidData);
    let name = query.get(HEADER..).ok_or_else(invalid)?;
    // An empty label ends the name. Type and class follow.
    let end = HEADER + name.iter().position(|byte| *byte == 0).ok_or_else(invalid)? + 5;
    let question = query.get(HEADER..end).ok_or_else(invalid)?;
    // Header of a response with recursion, one question and one answer.
    let head = [&query[..2], &[0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]].concat();
    // Record with a pointer to the name, type A, class IN, 30 s, 4 bytes.
    let record = [&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4][..], &OUTSIDE.octets()].concat();
    Ok([&head[..], question, &record].concat())
}

/// Creates Services and EndpointSlices. Returns the address of the Service `web`.
async fn create_objects(cluster: &Cluster) -> Result<String, Failure> {
    let namespaces = Api::<Namespace>::all(cluster.admin());
    create(&namespaces, json!({"metadata": {"name": NAMESPACE}})).await?;
    let services = Api::<Service>::namespaced(cluster.admin(), NAMESPACE);
    let ports = json!([{"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}]);
    let web = create(&services, json!({"metadata": {"name": "web"}, "spec": {"ports": ports}})).await?;
    for name in ["set", "many"] {
        let spec = json!({"clusterIP": "None", "ports": [{"name": "http", "port": 8080}]});
        create(&services, json!({"metadata": {"name": name}, "spec": spec})).await?;
    }
    for (name, target) in [("alias", format!("web.{SUFFIX}")), ("outside", "outside.example".to_owned())] {
        let spec = json!({"type": "ExternalName", "externalName": target});
        create(&services, json!({"metadata": {"name": name}, "spec": spec})).await?;
    }
    let slices = Api::<EndpointSlice>::namespaced(cluster.admin(), NAMESPACE);
    let pod = |number: u8, is_ready: bool| {
        json!({
            "addresses": [Ipv4Addr::new(10, 244, 0, number)],
            "hostname": format!("set-{number}"),
            "conditions": {"ready": is_ready},
        })
    };
    create(&slices, slice("set", vec![pod(1, true), pod(2, true), pod(3, false)])).await?;
    let many = (1..=MANY).map(|number| json!({"addresses": [Ipv4Addr::new(10, 244, 1, number)]}));
    create(&slices, slice("many", many.collect())).await?;
    Ok(web.spec.and_then(|spec| spec.cluster_ip).unwrap_or_default())
}

fn slice(service: &str, endpoints: Vec<Value>) -> Value {
    json!({
        "metadata": {
            "name": service,
            "labels": {
                "kubernetes.io/service-name": service,
                "endpointslice.kubernetes.io/managed-by": "test.example.invalid",
            },
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}

pub(crate) async fn services_and_their_pods_have_addresses(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let names = Names::of(&cluster).await?;
    names.has("web", Record::A, &[&names.web]).await?;
    // The answer excludes the pod that is not ready.
    names.has("set", Record::A, &["10.244.0.1", "10.244.0.2"]).await?;
    names.has("set-2.set", Record::A, &["10.244.0.2"]).await
}

pub(crate) async fn services_have_ports(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let names = Names::of(&cluster).await?;
    names.has("_http._tcp.web", Record::Srv, &[&format!("80 web.{SUFFIX}")]).await?;
    names.has("_dns._udp.web", Record::Srv, &[&format!("53 web.{SUFFIX}")]).await?;
    let pods = [1, 2].map(|number| format!("8080 set-{number}.set.{SUFFIX}"));
    names.has("_http._tcp.set", Record::Srv, &pods.each_ref().map(String::as_str)).await
}

pub(crate) async fn aliases_lead_to_other_names(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let names = Names::of(&cluster).await?;
    names.has("alias", Record::A, &[&names.web]).await?;
    names.has("outside", Record::A, &[&OUTSIDE.to_string()]).await
}

pub(crate) async fn unknown_names_and_types_are_denied(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let names = Names::of(&cluster).await?;
    for (name, record, code) in [
        (format!("missing.{SUFFIX}"), Record::A, "NXDOMAIN"),
        (format!("set-3.set.{SUFFIX}"), Record::A, "NXDOMAIN"),
        (format!("_ftp._tcp.web.{SUFFIX}"), Record::Srv, "NXDOMAIN"),
        ("web.missing.svc.cluster.local".to_owned(), Record::A, "NXDOMAIN"),
        // These names exist, but have no record of the type.
        (SUFFIX.to_owned(), Record::A, "NOERROR"),
        (format!("alias.{SUFFIX}"), Record::Srv, "NOERROR"),
    ] {
        let found = names.ask(&name, record).await?;
        assert_eq!((found.code.as_str(), &found.answers[..]), (code, &[][..]), "{found:?}");
    }
    Ok(())
}

pub(crate) async fn a_long_answer_comes_by_tcp(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let found = Names::of(&cluster).await?.ask(&format!("many.{SUFFIX}"), Record::A).await?;
    assert_eq!((found.code.as_str(), found.truncated), ("NOERROR", true), "{found:?}");
    assert_eq!(found.answers.len(), usize::from(MANY), "{found:?}");
    Ok(())
}

pub(crate) async fn a_silent_name_server_is_passed_over(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let names = Names::of(&cluster).await?;
    // The first query may wait for both servers, longer than its client waits.
    let found = eventually(PATIENCE, "an answer of the second name server", async || {
        let found = names.ask("outside.example", Record::A).await?;
        Ok::<_, io::Error>(if found.code == "NOERROR" { Seen::Done(found) } else { Seen::NotYet(format!("{found:?}")) })
    });
    assert_eq!(found.await?.answers, [OUTSIDE.to_string()]);
    Ok(())
}

pub(crate) async fn the_cluster_has_names_without_a_name_server(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let names = Names::of(&cluster).await?;
    names.upstream.lock().await.shutdown().await;
    let found = names.ask("another.example", Record::A).await?;
    assert_eq!((found.code.as_str(), found.answers.len()), ("SERVFAIL", 0), "{found:?}");
    names.has("web", Record::A, &[&names.web]).await
}

pub(crate) async fn the_cluster_has_names_without_an_api_server(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let names = Names::of(&cluster).await?;
    cluster.stop_api_server().await;
    names.has("web", Record::A, &[&names.web]).await?;
    names.has("set", Record::A, &["10.244.0.1", "10.244.0.2"]).await?;
    cluster.start_api_server().await?;
    Ok(())
}
