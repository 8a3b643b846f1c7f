//! Two nodes form one cluster: claims on both nodes, pods that reach each other through the mesh, and a node that is
//! removed.

use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;

use cluster::{API_PORT, MESH_PORT, STATUS_PORT};
use e2e::{API_SERVER, Capture, Case, Claim, Failure, PATIENCE, Pod, Seen, Server, Setting, Transport, Volume};
use e2e::{WEBHOOK_PORT, eventually, has_the_hosts_time};
use envtest::chain;
use ipnet::IpNet;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, Node as NodeObject, PersistentVolume, Pod as PodObject, Secret, Service};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use launch::{Cluster, ClusterOptions, Event, SHUTDOWN_LIMIT, StageState};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::json;
use workload::{Check, Record, serve, webhook};

const SIZE: u64 = 16 << 20;
const NAMESPACE: &str = "nodes";
/// Pods on the control plane and on the worker. Each has a claim of its name.
const HERE: &str = "here";
const THERE: &str = "there";
const CONTROL_PLANE: &str = "granary";
const WORKER: &str = "granary-1";
const PORT: u16 = 8080;
const KEY: &str = "node.granary.dev/wg-pubkey";
const KUBELET: u16 = 10250;
/// Part of the error of each write of a removed node.
const REJECTION: &str = "this node was removed from the cluster";
/// Note that a pod sends to another pod as plain text.
const SECRET: &str = "over-the-mesh-and-not-in-the-clear";

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_are_one_cluster() {
    let setting = Setting::from_target().expect("the test's files");
    let mut options = ClusterOptions::new(setting.common_options(), "2".parse().expect("a number"));
    options.capture = launch::Capture::On;
    if let Err(failure) = live(&setting, &options).await {
        for (node, console) in options.consoles() {
            let lines = qemu::console_tail(&console, 200).unwrap_or_default();
            println!("\nend of the console of {node}:\n{}", lines.join("\n"));
        }
        panic!("{}", chain(&failure));
    }
}

async fn live(setting: &Setting, options: &ClusterOptions) -> Result<(), Failure> {
    step("a claim lands where the scheduler wants the pod, while the worker boots");
    let ready = setting.ready_cluster(options, begin).await;
    let (mut cluster, (case, here, webhook)) = ready.unwrap_or_else(|error| panic!("{}", chain(&error)));

    step("claims land on both nodes");
    // The pod names no node: the scheduler selects one without the pod `here`, and the claims are provisioned there.
    let away = |pod: Pod| pod.away_from(HERE).webhook(Webhook::NAME);
    let there = lands(&case, [THERE, "there-device"], WORKER, away).await?;
    step("pods reach each other, Services and DNS; the API server reaches a webhook on the other node");
    tokio::try_join!(pods_reach_each_other(&case, &here, &there), webhook.is_asked(&case), resolves_names(&there))?;
    step("the status page of each node lists the other one");
    tokio::try_join!(lists_the_other(&case, CONTROL_PLANE, WORKER), lists_the_other(&case, WORKER, CONTROL_PLANE))?;
    step("what passes between the nodes is encrypted");
    nothing_is_in_the_clear(&case, &cluster).await?;

    step("a worker comes back with its key, sooner than its control plane");
    let before = key(&case).await?;
    let asked = there.read(farewell(there.name())).await;
    assert!(matches!(asked, Err(Failure::Pod { .. })), "the pod was asked to end too early: {asked:?}");
    comes_back(&mut cluster).await;
    assert_eq!(key(&case).await?, before);
    let there = case.find(there.name()).await?;
    assert_eq!(there.read("/there/note").await?, SECRET, "the volume is what it was");
    assert_eq!(there.read(farewell(there.name())).await?, serve::FAREWELL, "the pod was asked to end with its node");
    tokio::try_join!(reaches(&case, &here, &there), reaches(&case, &there, &here))?;
    step("nothing was in the clear from the worker's start on, before there was a mesh");
    nothing_is_in_the_clear(&case, &cluster).await?;

    step("a node that was removed has no access");
    a_removed_node_has_no_access(&case, &cluster, &here, &there).await?;
    step("end");
    Ok(())
}

/// Runs the steps that need only the control plane, which has little work while the worker boots.
async fn begin(client: Client) -> Result<(Case, Server, Webhook), Failure> {
    has_the_hosts_time(&client).await?;
    let case = Case::begin(client, NAMESPACE.to_owned()).await?;
    let here = lands(&case, [HERE, "here-device"], CONTROL_PLANE, |pod| pod.on(CONTROL_PLANE)).await?;
    let webhook = Webhook::create(&case).await?;
    Ok((case, here, webhook))
}

async fn lists_the_other(case: &Case, node: &str, other: &str) -> Result<(), Failure> {
    let page = case.get(&format!("/api/v1/nodes/{node}:7839/proxy/statusz")).await?;
    let mesh = page.split_once("id=\"mesh\"").and_then(|(_, rest)| rest.split_once("</section>"));
    let (mesh, _) = mesh.unwrap_or_else(|| panic!("{node} has no mesh: {page}"));
    assert!(mesh.contains(&format!(">{other}<")), "{node}: {mesh}");
    let metrics = case.get(&format!("/api/v1/nodes/{node}:7839/proxy/metrics")).await?;
    let values = |start: &str| -> Vec<f64> {
        let lines = metrics.lines().filter(|line| line.starts_with(start));
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse().ok()).collect()
    };
    // Directories that the node limits do not count as orphans.
    for none in ["granary_orphans{", "granary_mesh_refused{"] {
        let values = values(none);
        assert!(!values.is_empty() && values.iter().all(|value| *value == 0.0), "{node}: {none} {values:?}");
    }
    assert_eq!(values("granary_mesh_peers "), [1.0], "{node}");
    for some in ["handshake_timestamp_seconds", "received_bytes_total", "sent_bytes_total"] {
        let values = values(&format!("granary_mesh_{some}{{node=\"{other}\"}}"));
        assert!(matches!(values[..], [value] if value > 0.0), "{node}: {some} {values:?}");
    }
    Ok(())
}

fn print(node: &str, event: &Event) {
    println!("{node}: {event}");
}

/// Prints the step with the time since the first step. Writes to standard error directly, because the test harness
/// captures `println` and prints it only for failures.
fn step(what: &str) {
    static START: OnceLock<Instant> = OnceLock::new();
    let time = START.get_or_init(Instant::now).elapsed().as_secs_f64();
    _ = writeln!(io::stderr(), "--- {time:.1} s: {what}");
}

/// Starts a pod with a claim of each mode. `place` changes the pod so that the scheduler must select this node.
async fn lands(
    case: &Case,
    [name, device]: [&'static str; 2],
    node: &str,
    place: impl FnOnce(Pod) -> Pod,
) -> Result<Server, Failure> {
    case.claim(&Claim::new(name, SIZE)).await?;
    case.claim(&Claim::block(device, SIZE)).await?;
    let pod = Pod::server(name).with(Volume::claim(name)).with(Volume::device(device)).restarting();
    let server = case.open(&place(pod.farewell(farewell(name)))).await?;
    let started = case.api::<PodObject>().get(name).await.map_err(Failure::api("read a pod"))?;
    assert_eq!(started.spec.and_then(|spec| spec.node_name).as_deref(), Some(node), "{name}");
    for claim in [name, device] {
        assert_eq!(nodes_of(&case.volume_of(claim).await?), [node], "{claim}");
    }
    // Claims of the two nodes are separate.
    server.write(format!("/{name}/note"), SECRET).await?;
    server.write(format!("/dev/{device}"), node).await?;
    // A new claim has all of its size, even on a node that may have been restored.
    assert_eq!(server.inspect(format!("/{name}")).await?.space.size, SIZE);
    Ok(server)
}

fn farewell(pod: &str) -> String {
    format!("/{pod}/farewell")
}

fn nodes_of(volume: &PersistentVolume) -> Vec<String> {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref()?.required.as_ref());
    let terms = affinity.map(|required| required.node_selector_terms.as_slice()).unwrap_or_default();
    let only = terms.iter().flat_map(|term| term.match_expressions.iter().flatten());
    only.flat_map(|only| only.values.iter().flatten().cloned()).collect()
}

async fn pods_reach_each_other(case: &Case, here: &Server, there: &Server) -> Result<(), Failure> {
    tokio::try_join!(
        reaches(case, here, there),
        reaches(case, there, here),
        reaches_by_a_service(case, here, there),
        reaches_by_a_service(case, there, here),
    )?;
    Ok(())
}

async fn reaches_by_a_service(case: &Case, client: &Server, server: &Server) -> Result<(), Failure> {
    let service: Service = case
        .create(json!({
            "metadata": {"name": server.name()},
            "spec": {"selector": {"pod": server.name()}, "ports": [{"port": 80, "targetPort": PORT}]},
        }))
        .await?;
    let address = address(service.spec.and_then(|spec| spec.cluster_ip));
    let answer = answers(client, SocketAddr::new(address, 80), server).await?;
    assert!(answer.contains(SECRET), "{answer}");
    Ok(())
}

/// A pod of the worker uses the worker's CoreDNS, which reads Services from the API server on the other node.
async fn resolves_names(there: &Server) -> Result<(), Failure> {
    eventually(PATIENCE, "an answer of the worker's DNS", async || {
        let resolved = there.resolve("kubernetes.default", Record::A).await;
        let text = format!("{resolved:?}");
        let is_right = resolved.is_ok_and(|found| found.answers == [API_SERVER]);
        Ok(if is_right { Seen::Done(()) } else { Seen::NotYet(text) })
    })
    .await
}

/// A pod requests the other pod's note from the other pod's address.
async fn reaches(case: &Case, client: &Server, server: &Server) -> Result<(), Failure> {
    let answer = answers(client, pod_address(case, server.name()).await?, server).await?;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(SECRET), "{answer}");
    Ok(())
}

/// Waits until the pod responds at the address. Peers, endpoints and rules exist after a delay.
async fn answers(client: &Server, address: SocketAddr, server: &Server) -> Result<String, Failure> {
    let question = question(server);
    eventually(PATIENCE, &format!("an answer at {address}"), async || {
        Ok(match client.fetch(address, &question).await {
            Ok(answer) => Seen::Done(answer),
            Err(error) => Seen::NotYet(chain(&error)),
        })
    })
    .await
}

fn question(server: &Server) -> String {
    serve::target(&Check::Read { path: format!("/{}/note", server.name()).into() })
}

async fn pod_address(case: &Case, pod: &str) -> Result<SocketAddr, Failure> {
    let pod = case.api::<PodObject>().get(pod).await.map_err(Failure::api("read a pod"))?;
    Ok(SocketAddr::new(address(pod.status.and_then(|status| status.pod_ip)), PORT))
}

#[track_caller]
fn address(text: Option<String>) -> IpAddr {
    text.as_deref().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{text:?} is not an address"))
}

/// A webhook in the pod [`THERE`] on the worker; the API server is on the control plane.
struct Webhook {
    /// Certificate in PEM, encoded as base64.
    certificate: ByteString,
}

impl Webhook {
    /// Name of the Secret and of the Service.
    const NAME: &str = "webhook";

    /// Creates the objects of the webhook, except its pod.
    async fn create(case: &Case) -> Result<Self, Failure> {
        let host = format!("{}.{NAMESPACE}.svc", Self::NAME);
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed([host]).expect("a certificate");
        let secret: Secret = case
            .create(json!({
                "metadata": {"name": Self::NAME},
                "type": "kubernetes.io/tls",
                "stringData": {"tls.crt": cert.pem(), "tls.key": signing_key.serialize_pem()},
            }))
            .await?;
        let certificate = secret.data.and_then(|mut data| data.remove("tls.crt")).expect("the stored certificate");
        let _: Service = case
            .create(json!({
                "metadata": {"name": Self::NAME},
                "spec": {"selector": {"pod": THERE}, "ports": [{"port": 443, "targetPort": WEBHOOK_PORT}]},
            }))
            .await?;
        Ok(Self { certificate })
    }

    /// The API server returns the webhook's denial to the client that creates an object.
    async fn is_asked(&self, case: &Case) -> Result<(), Failure> {
        let service = json!({"namespace": NAMESPACE, "name": Self::NAME});
        let configuration: ValidatingWebhookConfiguration = serde_json::from_value(json!({
            "metadata": {"name": "refuse.example.invalid"},
            "webhooks": [{
                "name": "refuse.example.invalid",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "timeoutSeconds": 10,
                "clientConfig": {"service": service, "caBundle": self.certificate},
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
                "rules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]},
                ],
            }],
        }))?;
        let configurations = case.cluster::<ValidatingWebhookConfiguration>();
        let made = configurations.create(&PostParams::default(), &configuration).await;
        made.map_err(Failure::api("configure the webhook"))?;
        let maps = case.api::<ConfigMap>();
        let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "refused"}}))?;
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let refusal = webhook::refusal(THERE);
        eventually(PATIENCE, "the refusal of the webhook", async || {
            Ok(match maps.create(&dry, &map).await {
                Err(kube::Error::Api(status)) if status.message.contains(&refusal) => Seen::Done(()),
                other => Seen::NotYet(format!("{other:?}")),
            })
        })
        .await?;
        let deleted = configurations.delete("refuse.example.invalid", &DeleteParams::default()).await;
        deleted.map(drop).map_err(Failure::api("remove the webhook"))
    }
}

/// Verifies all packets of the worker's network card since its start.
async fn nothing_is_in_the_clear(case: &Case, cluster: &Cluster) -> Result<(), Failure> {
    let capture = captured(cluster);
    let [here, there] = [internal(case, CONTROL_PLANE).await?, internal(case, WORKER).await?];
    let networks = e2e::NETWORKS.map(|network| network.parse::<IpNet>().expect("a network"));
    let of_the_cluster = |ip: IpAddr| networks.iter().any(|network| network.contains(&ip));
    let mut encrypted = [0, 0];
    for packet in &capture.packets {
        let ends = [packet.source, packet.destination];
        assert!(!ends.into_iter().any(of_the_cluster), "{packet:?} is outside of the mesh");
        // The uplink has IPv6, which the kernels use for neighbor discovery. No program uses it.
        assert!(packet.source.is_ipv4() || packet.transport == Transport::Icmpv6, "{packet:?}");
        if !ends.contains(&here) || !ends.contains(&there) {
            continue;
        }
        match packet.transport {
            Transport::Udp(MESH_PORT, MESH_PORT) => encrypted[usize::from(packet.source == here)] += 1,
            // Connections outside of the mesh. The status port is not encrypted; the others use TLS.
            Transport::Tcp(one, other)
                if [one, other].iter().any(|port| [API_PORT, KUBELET, STATUS_PORT].contains(port)) => {}
            Transport::Tcp(..) | Transport::Udp(..) | Transport::Icmpv6 | Transport::Other => panic!("{packet:?}"),
        }
    }
    assert!(encrypted.iter().all(|packets| *packets > 5), "packets of the mesh: {encrypted:?}");
    assert!(!capture.shows(SECRET), "what pods say to each other is on the wire as it is");
    println!("{} packets, {encrypted:?} of the mesh", capture.packets.len());
    Ok(())
}

fn captured(cluster: &Cluster) -> Capture {
    let path = cluster.workers()[0].capture().expect("a capture");
    Capture::read(path).unwrap_or_else(|error| panic!("{}", chain(&error)))
}

async fn internal(case: &Case, node: &str) -> Result<IpAddr, Failure> {
    let node = case.cluster::<NodeObject>().get(node).await.map_err(Failure::api("read a node"))?;
    let mut addresses = node.status.and_then(|status| status.addresses).into_iter().flatten();
    let found = addresses.find(|address| address.type_ == "InternalIP").map(|address| address.address);
    Ok(address(found))
}

/// Simulates a power outage: the worker starts its pods while the control plane is unreachable, and rejoins the cluster
/// when the control plane is reachable again.
async fn comes_back(cluster: &mut Cluster) {
    let cable = cluster.control_plane().cable().expect("one node of two");
    let worker = &mut cluster.workers_mut()[0];
    worker.shut_down(SHUTDOWN_LIMIT).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    let read = |path: &Path| std::fs::read_to_string(path).expect("the console");
    let console = worker.console();
    assert!(!read(&console).contains("cannot unmount during shutdown"), "the worker's disk was not left in order");
    cable.pull();
    let booted = worker.boot(|event| {
        print(WORKER, event);
        if matches!(event, Event::Stage { name, state: StageState::Ready } if name == "kubelet") {
            cable.put_in();
        }
    });
    booted.await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert!(read(&console).contains("starting with the CA on the disk"), "the control plane was not away");
}

async fn key(case: &Case) -> Result<String, Failure> {
    let node = case.cluster::<NodeObject>().get(WORKER).await.map_err(Failure::api("read a node"))?;
    Ok(node.annotations().get(KEY).cloned().expect("the node has published its key"))
}

/// Removes a node as the documentation of nodes describes.
async fn a_removed_node_has_no_access(
    case: &Case,
    cluster: &Cluster,
    here: &Server,
    there: &Server,
) -> Result<(), Failure> {
    let address = pod_address(case, there.name()).await?;
    let console = || std::fs::read(cluster.workers()[0].console()).expect("the console");
    let before_removal = console().len();
    let removed: ConfigMap =
        serde_json::from_value(json!({"metadata": {"name": "granary-removed-nodes"}, "data": {WORKER: ""}}))?;
    let maps: Api<ConfigMap> = case.api_of("kube-system");
    maps.create(&PostParams::default(), &removed).await.map_err(Failure::api("refuse a node"))?;
    writes_are_denied(&cluster.client()).await?;
    step("the API server denies writes of the node");
    let nodes = case.cluster::<NodeObject>();
    nodes.delete(WORKER, &DeleteParams::default()).await.map_err(Failure::api("delete a node"))?;
    eventually(PATIENCE, "the node to be out of the mesh", async || {
        let metrics = case.get("/api/v1/nodes/granary:7839/proxy/metrics").await?;
        let peers = metrics.lines().find(|line| line.starts_with("granary_mesh_peers ")).unwrap_or_default();
        Ok(if peers.ends_with(" 0") { Seen::Done(()) } else { Seen::NotYet(peers.to_owned()) })
    })
    .await?;
    step("the removed node is out of the mesh");
    // The pod runs but is unreachable, because the control plane sends no more packets to the node.
    let own = internal(case, CONTROL_PLANE).await?;
    let sent = || {
        let of_the_mesh = |transport| matches!(transport, Transport::Udp(MESH_PORT, _) | Transport::Udp(_, MESH_PORT));
        let packets = captured(cluster).packets;
        packets.iter().filter(|packet| packet.source == own && of_the_mesh(packet.transport)).count()
    };
    let before = sent();
    assert!(before > 0, "the capture has no packet of the mesh");
    let asked = here.fetch(address, &question(there)).await;
    // The kubelet writes an event when it stops a container. Otherwise, it would write only after the garbage
    // collection of pods, which deletes those of a removed node after 40 to 60 s.
    let deleted = case.api::<PodObject>().delete(there.name(), &DeleteParams::default()).await;
    deleted.map_err(Failure::api("delete a pod"))?;
    // The test //node/kubernetes/reconciler:identity_envtest shows that the kubelet does not create the Node again at
    // its next start.
    let rejection = eventually(PATIENCE, "the API server to reject what the node writes", async || {
        let console = console();
        let later = String::from_utf8_lossy(&console[before_removal..]);
        let line = later.lines().find(|line| line.contains(REJECTION));
        let seen = || Seen::NotYet(format!("{} bytes more on the console", later.len()));
        Ok(line.map_or_else(seen, |line| Seen::Done(line.to_owned())))
    })
    .await?;
    step("the API server rejects what the removed node writes");
    println!("{rejection}");
    let Err(Failure::Pod { message, .. }) = &asked else { panic!("{asked:?}") };
    // A refused connection would be a response.
    let is_silent = message.starts_with(&format!("cannot send a request to {address}")) && !message.contains("refused");
    assert!(is_silent, "{message}");
    assert_eq!(sent(), before);
    Ok(())
}

/// Waits until the policy of removed nodes denies the writes of the worker's kubelet. The control plane writes the name
/// into the policy after the name is in the ConfigMap.
async fn writes_are_denied(administrator: &Client) -> Result<(), Failure> {
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": WORKER}});
    let lease = serde_json::to_vec(&lease)?;
    eventually(PATIENCE, "the API server to deny writes of the node", async || {
        let request = http::Request::post("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases?dryRun=All")
            .header("Content-Type", "application/json")
            .header("Impersonate-User", format!("system:node:{WORKER}"))
            .header("Impersonate-Group", "system:nodes");
        let request = request.body(lease.clone()).map_err(Failure::Request)?;
        Ok(match administrator.request_text(request).await {
            Err(kube::Error::Api(status)) if status.message.contains(REJECTION) => Seen::Done(()),
            other => Seen::NotYet(format!("{other:?}")),
        })
    })
    .await
}
