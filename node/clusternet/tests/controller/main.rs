//! The controller with a real API server and a fake kernel.

mod device;
mod gate;
mod log;
mod mesh;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use cluster::PUBLIC_KEY_ANNOTATION;
use clusternet::{Change, Peer, Peers, Settings};
use envtest::{Cluster, Failure, PATIENCE, Seen, Suite, eventually};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::device::{FakeDevice, KernelState};
use crate::mesh::{Mesh, OWN, create, key, node, own};

fn main() -> ExitCode {
    Suite::new()
        .case("all_listed_nodes_are_one_batch", all_listed_nodes_are_one_batch)
        .case("peers_have_node_names_once_nodes_are_listed", peers_have_node_names_once_nodes_are_listed)
        .case("only_the_key_annotation_is_changed", only_the_key_annotation_is_changed)
        .case("an_overwritten_key_is_published_again", an_overwritten_key_is_published_again)
        .case("a_missing_own_node_is_awaited", a_missing_own_node_is_awaited)
        .case("peers_of_an_earlier_run_are_reconciled", peers_of_an_earlier_run_are_reconciled)
        .case("a_node_that_boots_again_begins_sessions_once", a_node_that_boots_again_begins_sessions_once)
        .case("sessions_begin_after_failures", sessions_begin_after_failures)
        .case("a_change_of_one_node_changes_one_peer", a_change_of_one_node_changes_one_peer)
        .case("a_reset_interface_is_configured_again", a_reset_interface_is_configured_again)
        .case("a_deleted_node_loses_its_peer", a_deleted_node_loses_its_peer)
        .case("events_missed_by_a_lost_watch_are_recovered", events_missed_by_a_lost_watch_are_recovered)
        .case(
            "conflicting_nodes_are_reported_and_the_older_is_a_peer",
            conflicting_nodes_are_reported_and_the_older_is_a_peer,
        )
        .case("a_rejected_node_is_logged_once", a_rejected_node_is_logged_once)
        .case("an_invalid_key_does_not_affect_other_nodes", an_invalid_key_does_not_affect_other_nodes)
        .run()
}

fn peer(number: u8) -> Peer {
    let endpoint = Some(([192, 0, 2, number], cluster::MESH_PORT).into());
    Peer { endpoint, allowed: [format!("10.244.{number}.0/24").parse().expect("a network")].into() }
}

fn peers<const N: usize>(numbers: [u8; N]) -> Peers {
    numbers.map(|number| (key(number), peer(number))).into()
}

fn with_own(others: impl IntoIterator<Item = Value>) -> Vec<Value> {
    [own()].into_iter().chain(others).collect()
}

async fn all_listed_nodes_are_one_batch(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let others = (2..=40).map(|number| node(&format!("node-{number}"), number));
    let mesh = Mesh::start(&cluster, with_own(others), Peers::new()).await?;
    mesh.healthy().await?;
    let state = mesh.device.state();
    assert_eq!(state.batches.len(), 1);
    assert_eq!(state.batches[0].len(), 39);
    assert!(state.sessions.is_empty(), "no other node has its key yet: {:?}", state.sessions);
    assert_eq!(state.peers[&key(17)], peer(17));
    assert_eq!(state.looks, 1);
    assert_eq!(state.places.len(), 1);
    let place = state.places[0].first().expect("a place");
    assert_eq!((place.address.to_string(), place.network.to_string()), ("10.244.1.1".into(), "10.244.0.0/16".into()));
    mesh.stop().await
}

async fn peers_have_node_names_once_nodes_are_listed(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mesh = Mesh::start(&cluster, with_own([node("two", 2), node("three", 3)]), peers([3])).await?;
    mesh.healthy().await?;
    let found = mesh.metrics.neighbours(&*mesh.device)?;
    let found: Vec<_> = found.iter().map(|peer| (peer.node.as_deref(), peer.key, &peer.state.peer)).collect();
    assert_eq!(found, [(Some("two"), key(2), &peer(2)), (Some("three"), key(3), &peer(3))]);
    mesh.stop().await
}

async fn only_the_key_annotation_is_changed(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mesh = Mesh::start(&cluster, with_own([]), Peers::new()).await?;
    // Another client writes the same object at the same time.
    for number in 0..20 {
        let change = json!({"metadata": {"annotations": {"other": number.to_string()}, "labels": {"other": number.to_string()}}});
        mesh.patch(OWN, change).await?;
    }
    mesh.healthy().await?;
    let found = mesh.published().await?;
    let annotations = found.annotations();
    assert_eq!((annotations["kept"].as_str(), annotations["other"].as_str()), ("yes", "19"));
    assert_eq!(found.labels()["other"], "19");
    // The API server records the field managers.
    let own: Vec<_> =
        found.managed_fields().iter().filter(|all| all.manager.as_deref() == Some("granary-mesh")).collect();
    assert_eq!(own.len(), 1);
    let fields = json!({"f:metadata": {"f:annotations": {format!("f:{PUBLIC_KEY_ANNOTATION}"): {}}}});
    assert_eq!(serde_json::to_value(&own[0].fields_v1)?, fields);
    mesh.stop().await
}

async fn an_overwritten_key_is_published_again(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mesh = Mesh::start(&cluster, with_own([]), Peers::new()).await?;
    mesh.published().await?;
    for other in [json!(key(9).to_string()), Value::Null] {
        mesh.patch(OWN, json!({"metadata": {"annotations": {PUBLIC_KEY_ANNOTATION: other}}})).await?;
        mesh.published().await?;
    }
    mesh.stop().await
}

async fn a_missing_own_node_is_awaited(cluster: Arc<Cluster>) -> Result<(), Failure> {
    // Stop the controllers, which would assign a range at once.
    cluster.stop_controllers().await?;
    let mesh = Mesh::start(&cluster, vec![node("two", 2)], Peers::new()).await?;
    mesh.peers(peers([2])).await?;
    assert!(!mesh.is_healthy());
    let mut without = own();
    without["spec"] = json!({});
    create(&mesh.admin, without).await?;
    // Once this Node is a peer, the controller has processed the own Node.
    create(&mesh.admin, node("three", 3)).await?;
    let state = mesh.peers(peers([2, 3])).await?;
    assert!(!mesh.is_healthy());
    assert!(state.places.is_empty());
    assert!(!mesh.admin.get(OWN).await?.annotations().contains_key(PUBLIC_KEY_ANNOTATION), "it could not answer yet");
    mesh.patch(OWN, json!({"spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]}})).await?;
    mesh.healthy().await?;
    mesh.published().await?;
    cluster.start_controllers().await?;
    mesh.stop().await
}

async fn peers_of_an_earlier_run_are_reconciled(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = vec![node(OWN, 1), node("two", 2), node("three", 3), node("four", 4)];
    let mesh = Mesh::start(&cluster, nodes, peers([2, 3, 8])).await?;
    mesh.healthy().await?;
    let state = mesh.device.state();
    assert_eq!(state.batches, [[Change::Remove(key(8)), Change::Add(key(4), peer(4))]]);
    assert!(state.sessions.is_empty(), "the kernel has its sessions: {:?}", state.sessions);
    mesh.stop().await
}

/// The Node has the key already, so the other nodes may have sessions from before the boot.
async fn a_node_that_boots_again_begins_sessions_once(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = vec![node(OWN, 1), node("two", 2), node("three", 3)];
    let mesh = Mesh::start(&cluster, nodes, Peers::new()).await?;
    mesh.healthy().await?;
    create(&mesh.admin, node("four", 4)).await?;
    mesh.peers(peers([2, 3, 4])).await?;
    // Once this peer is removed, the pass that added it has ended.
    mesh.delete("four").await?;
    let state = mesh.peers(peers([2, 3])).await?;
    assert_eq!(state.sessions, [[key(2), key(3)]]);
    mesh.stop().await
}

/// Regression: the controller that started after the failed change found peers in the kernel, and began no session. The
/// sessions that failed waited for the next look at the kernel, up to five minutes.
async fn sessions_begin_after_failures(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = vec![node(OWN, 1), node("two", 2), node("three", 3)];
    // As after a boot, the kernel has no peers.
    let device = FakeDevice::with(key(1), Peers::new());
    device.fail_once();
    let mesh = Mesh::with_device(Settings::INTERVAL, &cluster, nodes, device).await?;
    mesh.healthy().await?;
    let state = mesh.device.state();
    assert_eq!(state.batches, [[Change::Add(key(2), peer(2))], [Change::Add(key(3), peer(3))]]);
    assert_eq!(state.sessions, [[key(2), key(3)]]);
    mesh.stop().await
}

async fn a_change_of_one_node_changes_one_peer(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mesh = Mesh::start(&cluster, with_own([node("two", 2), node("three", 3)]), Peers::new()).await?;
    mesh.healthy().await?;
    // Unrelated fields cause no change.
    mesh.patch("two", json!({"metadata": {"labels": {"some": "label"}}})).await?;
    mesh.patch("two", json!({"metadata": {"annotations": {PUBLIC_KEY_ANNOTATION: key(5).to_string()}}})).await?;
    let state = mesh.peers([(key(3), peer(3)), (key(5), peer(2))]).await?;
    assert_eq!(state.batches[1..], [[Change::Remove(key(2)), Change::Add(key(5), peer(2))]]);
    assert_eq!(state.looks, 1);
    mesh.stop().await
}

/// A privileged pod in the host network can delete the route or a peer, or change the port of the interface.
async fn a_reset_interface_is_configured_again(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let interval = Duration::from_millis(100);
    let nodes = vec![node(OWN, 1), node("two", 2)];
    let mesh = Mesh::with_interval(interval, &cluster, nodes, Peers::new()).await?;
    mesh.healthy().await?;
    mesh.device.forget();
    let state = mesh.peers(peers([2])).await?;
    assert!(state.looks > 1);
    eventually(PATIENCE, "the places, the port and the sessions", async || {
        let KernelState { places, is_right, sessions, .. } = mesh.device.state();
        let is_done = !places.is_empty() && is_right && sessions == [[key(2)], [key(2)]];
        let seen = format!("{} places, its port is right: {is_right}, sessions: {sessions:?}", places.len());
        Ok::<_, kube::Error>(if is_done { Seen::Done(()) } else { Seen::NotYet(seen) })
    })
    .await?;
    mesh.stop().await
}

async fn a_deleted_node_loses_its_peer(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mesh = Mesh::start(&cluster, with_own([node("two", 2), node("three", 3)]), Peers::new()).await?;
    mesh.healthy().await?;
    mesh.delete("two").await?;
    let state = mesh.peers(peers([3])).await?;
    assert_eq!(state.batches[1..], [[Change::Remove(key(2))]]);
    mesh.stop().await
}

async fn events_missed_by_a_lost_watch_are_recovered(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mesh = Mesh::start(&cluster, with_own([node("two", 2), node("three", 3)]), Peers::new()).await?;
    mesh.healthy().await?;
    mesh.gate.close();
    cluster.stop_api_server().await;
    cluster.start_api_server().await?;
    mesh.delete("two").await?;
    create(&mesh.admin, node("four", 4)).await?;
    // No peer was removed while the API server was unavailable.
    assert_eq!(mesh.device.state().peers, peers([2, 3]));
    mesh.gate.open();
    let state = mesh.peers(peers([3, 4])).await?;
    assert!(!state.batches[1..].iter().flatten().any(|change| change.key() == key(3)), "{:?}", state.batches);
    mesh.stop().await
}

async fn conflicting_nodes_are_reported_and_the_older_is_a_peer(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let mut twin = node("twin", 3);
    twin["metadata"]["annotations"][PUBLIC_KEY_ANNOTATION] = json!(key(2).to_string());
    let mesh = Mesh::start(&cluster, with_own([node("older", 2), twin]), Peers::new()).await?;
    mesh.healthy().await?;
    assert_eq!(mesh.device.state().peers, peers([2]));
    mesh.counts([r#"granary_mesh_refused{reason="key_taken"} 1"#]).await?;
    mesh.delete("older").await?;
    // The other Node with the same key becomes the peer.
    mesh.peers([(key(2), peer(3))]).await?;
    mesh.counts([
        r#"granary_mesh_refused{reason="key_taken"} 0"#,
        r#"granary_mesh_changes_total{change="added"} 1"#,
        r#"granary_mesh_changes_total{change="updated"} 1"#,
        r#"granary_mesh_changes_total{change="removed"} 0"#,
    ])
    .await?;
    mesh.stop().await
}

async fn a_rejected_node_is_logged_once(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (mut shadow, mut twin) = (node("shadow", 3), node("twin", 4));
    shadow["spec"] = node("older", 2)["spec"].clone();
    twin["metadata"]["annotations"][PUBLIC_KEY_ANNOTATION] = json!(key(2).to_string());
    let (interval, others) = (Duration::from_millis(100), [node("older", 2), shadow, twin]);
    let mesh = Mesh::with_interval(interval, &cluster, with_own(others), Peers::new()).await?;
    mesh.healthy().await?;
    eventually(PATIENCE, "it to look again", async || {
        let looks = mesh.device.state().looks;
        Ok::<_, kube::Error>(if looks > 3 { Seen::Done(()) } else { Seen::NotYet(looks.to_string()) })
    })
    .await?;
    let warnings = mesh.log.warnings("Node rejected from the mesh, completely or in part");
    let [shadow, twin] = &warnings[..] else { panic!("{warnings:#?}") };
    for (warning, published) in [
        (shadow, r#"node="shadow" reason=pod range 10.244.2.0/24 belongs to the older node older"#),
        (twin, r#"node="twin" reason=the older node older has the same public key; one of them has a copied disk"#),
    ] {
        assert!(warning.ends_with(published), "{warning}");
    }
    mesh.stop().await
}

async fn an_invalid_key_does_not_affect_other_nodes(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let bad = |name: &str, number, text: &str| {
        let mut bad = node(name, number);
        bad["metadata"]["annotations"][PUBLIC_KEY_ANNOTATION] = json!(text);
        bad
    };
    let others = [bad("bad", 2, "rubbish"), bad("copy", 3, &key(1).to_string()), node("good", 4)];
    let mesh = Mesh::start(&cluster, with_own(others), Peers::new()).await?;
    mesh.healthy().await?;
    assert_eq!(mesh.device.state().peers, peers([4]));
    mesh.counts([r#"granary_mesh_refused{reason="key"} 1"#, r#"granary_mesh_refused{reason="key_taken"} 1"#]).await?;
    // The Node becomes a peer once the conflict is resolved.
    mesh.patch("bad", json!({"metadata": {"annotations": {PUBLIC_KEY_ANNOTATION: key(2).to_string()}}})).await?;
    mesh.peers(peers([2, 4])).await?;
    mesh.stop().await
}
