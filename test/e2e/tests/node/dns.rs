//! Pods resolve names with the node's DNS.

use e2e::{API_SERVER, Case, DOMAIN, Failure, NAME_SERVER, PATIENCE, Part, Pod as ServerPod, Seen, Server, eventually};
use k8s_openapi::api::core::v1::{Pod, Service};
use serde_json::{Value, json};
use units::Bytes;
use workload::Record;

const STATUS: &str = "/api/v1/nodes/granary:7839/proxy/statusz.json";
/// Memory limit of CoreDNS in a cluster with few objects.
const MOST: Bytes = Bytes::new(40_000_000);

/// Address of the cluster DNS: the tenth one of the Service network in `e2e::NETWORKS`.
pub const CLUSTER_DNS: &str = "172.21.4.10";
/// Name server of a pod with the policy `None`, an unused address (RFC 5737).
const OWN: &str = "192.0.2.54";

/// Gives a pod the node's name servers.
pub fn as_the_node(pod: ServerPod) -> ServerPod {
    pod.dns("Default", Value::Null)
}

/// Gives a pod its own name servers.
pub fn of_its_own(pod: ServerPod) -> ServerPod {
    let options = json!([{"name": "ndots", "value": "2"}]);
    pod.dns("None", json!({"nameservers": [OWN], "searches": ["example.test"], "options": options}))
}

/// Cases of name resolution. `others` are pods of [`as_the_node`] and [`of_its_own`].
pub async fn cases(part: &Part, client: &Server, server: &Server, others: [&Server; 2]) {
    let case = &part.case;
    tokio::join!(
        part.shows("a_pod_has_the_name_servers_of_its_policy", policies(case, client, others)),
        part.shows("a_pod_in_the_nodes_network_resolves_names_of_the_cluster", of_the_node(case)),
        part.shows("pods_resolve_names_of_services", services(case, client, server)),
        part.shows("unknown_names_do_not_exist", unknown(case, client)),
        part.shows("a_name_outside_the_cluster_fails_without_its_name_server", outside(case, client)),
        part.shows("coredns_needs_little_memory", memory(case)),
    );
}

async fn services(case: &Case, client: &Server, server: &Server) -> Result<(), Failure> {
    let pod = case.api::<Pod>().get(server.name()).await.map_err(Failure::api("read a pod"))?;
    let address = pod.status.and_then(|status| status.pod_ip).unwrap_or_default();
    let ports = json!([{"name": "http", "port": 80, "targetPort": 8080}]);
    let selector = json!({"pod": server.name()});
    let with_address: Service =
        case.create(json!({"metadata": {"name": "named"}, "spec": {"selector": selector, "ports": ports}})).await?;
    let cluster_ip = with_address.spec.and_then(|spec| spec.cluster_ip).unwrap_or_default();
    let _: Service = case
        .create(json!({
            "metadata": {"name": "headless"},
            "spec": {"selector": selector, "clusterIP": "None", "ports": [{"name": "http", "port": 8080}]},
        }))
        .await?;
    let _: Service = case
        .create(json!({
            "metadata": {"name": "alias"},
            "spec": {"type": "ExternalName", "externalName": format!("named.{}.svc.{DOMAIN}", case.namespace())},
        }))
        .await?;
    let suffix = format!("{}.svc.{DOMAIN}", case.namespace());
    for (name, record, wanted) in [
        // Resolved with the search path.
        ("named", Record::A, cluster_ip.clone()),
        (format!("named.{}", case.namespace()).as_str(), Record::A, cluster_ip.clone()),
        ("headless", Record::A, address),
        ("alias", Record::A, cluster_ip),
        ("_http._tcp.named", Record::Srv, format!("80 named.{suffix}")),
    ] {
        // CoreDNS gets new objects from a watch, after a delay.
        let found = eventually(PATIENCE, name, async || {
            Ok(match client.resolve(name, record).await {
                Ok(found) if found.answers == [wanted.clone()] => Seen::Done(found),
                other => Seen::NotYet(format!("{other:?}")),
            })
        })
        .await?;
        assert!(found.name.ends_with(&suffix), "{found:?}");
    }
    Ok(())
}

/// Resolver configuration, resolv.conf(5).
const FILE: &str = "/etc/resolv.conf";

async fn policies(case: &Case, client: &Server, [as_the_node, of_its_own]: [&Server; 2]) -> Result<(), Failure> {
    let first = client.read(FILE).await?;
    let search = format!("search {}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}", case.namespace());
    assert!(first.starts_with(&search), "{first}");
    assert!(first.ends_with(&format!("\nnameserver {CLUSTER_DNS}\noptions ndots:5\n")), "{first}");
    let node = as_the_node.read(FILE).await?;
    let servers: Vec<&str> = node.lines().filter(|line| line.starts_with("nameserver ")).collect();
    assert_eq!(servers, [format!("nameserver {NAME_SERVER}")], "{node}");
    assert!(!node.contains(DOMAIN), "{node}");
    assert_eq!(of_its_own.read(FILE).await?, format!("search example.test\nnameserver {OWN}\noptions ndots:2\n"));
    Ok(())
}

/// The observer has the policy `ClusterFirstWithHostNet`. Its queries to CoreDNS use only the loopback interface.
async fn of_the_node(case: &Case) -> Result<(), Failure> {
    let observer = case.observer();
    let interfaces = observer.read("/proc/net/dev").await?;
    assert!(interfaces.contains("veth"), "no ends of pods' links: {interfaces}");
    let settings = observer.read(FILE).await?;
    assert!(settings.contains(&format!("\nnameserver {CLUSTER_DNS}\noptions ndots:5\n")), "{settings}");
    let found = observer.resolve("kubernetes.default", Record::A).await?;
    let wanted = (format!("kubernetes.default.svc.{DOMAIN}"), vec![API_SERVER.to_owned()]);
    assert_eq!((found.name, found.answers), wanted);
    Ok(())
}

async fn unknown(case: &Case, client: &Server) -> Result<(), Failure> {
    let absolute = format!("missing.{}.svc.{DOMAIN}.", case.namespace());
    let found = client.resolve(&absolute, Record::A).await?;
    assert_eq!((found.code.as_str(), found.answers.len()), ("NXDOMAIN", 0), "{found:?}");
    Ok(())
}

/// The cluster's names need no name server, and queries for other names fail before the client gives up. The status
/// page contains CoreDNS' error, which names the server.
async fn outside(case: &Case, client: &Server) -> Result<(), Failure> {
    let found = client.resolve("outside.example.", Record::A).await?;
    assert_eq!((found.code.as_str(), found.answers.len()), ("SERVFAIL", 0), "{found:?}");
    eventually(PATIENCE, "an error that names the name server", async || {
        let page: Value = serde_json::from_str(&case.get(STATUS).await?)?;
        let warnings = page["warnings"].as_array().into_iter().flatten();
        let is_named = |warning: &Value| {
            warning["source"] == "coredns" && warning["text"].as_str().is_some_and(|text| text.contains(NAME_SERVER))
        };
        let named = warnings.clone().any(is_named);
        Ok(if named { Seen::Done(()) } else { Seen::NotYet(format!("{:?}", warnings.collect::<Vec<_>>())) })
    })
    .await
}

/// Verifies the resident memory of CoreDNS, which includes pages of its program file.
async fn memory(case: &Case) -> Result<(), Failure> {
    let processes = case.signal("coredns", 0).await?;
    let [process] = &*processes else { panic!("processes of CoreDNS: {processes:?}") };
    let status = case.observer().read(format!("/proc/{process}/status")).await?;
    let size = kernel::text::size(&status, "VmRSS:");
    assert!(size.is_some_and(|size| size <= MOST), "{size:?}: {status}");
    Ok(())
}
