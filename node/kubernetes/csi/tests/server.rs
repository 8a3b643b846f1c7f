//! The plugin on its real sockets, with a client like the kubelet's. Only the disk is a fake.

mod fake;
#[allow(dead_code, reason = "block.rs and node.rs use the rest")]
mod kubelet;
mod wire;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use csi::{Plugin, Provisioner, Settings, Shape, Step};
use envtest::FakeVolumes;
use fake::FakeHost;
use kubelet::{Kubelet, MANY, connect};
use mount::Attributes;
use nix::unistd::Uid;
use prometheus::Registry;
use proto::csi::controller_client::ControllerClient;
use proto::csi::identity_client::IdentityClient;
use proto::csi::node_client::NodeClient;
use proto::csi::{
    DeleteSnapshotRequest, GetCapacityRequest, NodeGetInfoRequest, NodeUnpublishVolumeRequest, ProbeRequest,
};
use proto::registration::registration_client::RegistrationClient;
use proto::registration::{InfoRequest, RegistrationStatus};
use supervisor::Supervisor;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code, Status};
use units::Bytes;
use volume::VolumeId;

/// Attributes of the mount of a directory.
const DIRECTORY: Attributes = Attributes { no_exec: false, ..Attributes::INERT };

const LIMIT: Duration = Duration::from_secs(20);

/// A running plugin, and its kubelet directory.
struct Node {
    supervisor: Supervisor,
    plugin: Arc<Plugin<FakeHost>>,
    registry: Registry,
    kubelet: Kubelet,
    _directory: TempDir,
}

impl Node {
    async fn start(host: &FakeHost) -> Self {
        Self::start_with(host, |_| {}).await
    }

    async fn with_client(host: &FakeHost) -> (Self, NodeClient<Channel>) {
        let node = Self::start(host).await;
        let client = node.kubelet.client().await;
        (node, client)
    }

    async fn with_controller(host: &FakeHost, volumes: Arc<FakeVolumes>) -> Self {
        Self::start_as(host, |_| {}, |plugin| plugin.with_controller(volumes, Provisioner::Own)).await
    }

    async fn start_with(host: &FakeHost, change: impl FnOnce(&mut Settings)) -> Self {
        Self::start_as(host, change, |plugin| plugin).await
    }

    /// Starts a plugin that often checks the devices.
    async fn start_watching(host: &FakeHost) -> Self {
        Self::start_with(host, |settings| settings.watch = Duration::from_millis(5)).await
    }

    async fn start_as(
        host: &FakeHost,
        change: impl FnOnce(&mut Settings),
        complete: impl FnOnce(Plugin<FakeHost>) -> Plugin<FakeHost>,
    ) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut settings = Settings::new(directory.path(), "node-1", "1.2.3");
        settings.peer = Uid::current();
        change(&mut settings);
        let registry = Registry::new();
        let plugin = Arc::new(complete(Plugin::new(settings, host.clone(), &registry).expect("metrics")));
        let supervisor = supervise(&plugin).await;
        let kubelet = Kubelet { directory: directory.path().to_owned() };
        Self { supervisor, plugin, registry, kubelet, _directory: directory }
    }

    /// Waits for a revoked detach of the volume. Returns the numbers of all volumes.
    async fn revoked(&self, volume: &str) -> BTreeMap<VolumeId, u64> {
        let mut revoked = self.plugin.revoked();
        let counted = revoked.wait_for(|counts| counts.contains_key(&fake::id(volume)));
        tokio::time::timeout(LIMIT, counted).await.expect("in time").expect("the plugin runs").clone()
    }

    fn registration_socket(&self) -> PathBuf {
        self.kubelet.directory.join("plugins_registry/local.granary.dev-reg.sock")
    }
}

/// Starts the services of a plugin.
async fn supervise(plugin: &Arc<Plugin<FakeHost>>) -> Supervisor {
    let service = Arc::clone(plugin);
    let supervisor = Supervisor::start("csi", supervisor::Settings::default(), move |cx| Arc::clone(&service).run(cx));
    supervisor.handle().healthy().await.expect("it starts");
    supervisor
}

async fn controller(kubelet: &Kubelet) -> ControllerClient<Channel> {
    ControllerClient::new(connect(kubelet.socket()).await.expect("connect"))
}

async fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let wait = async {
        while !check() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, wait).await.unwrap_or_else(|_| panic!("waited {LIMIT:?} in vain until {what}"));
}

/// Regression: a device that no step `Attach` attached stayed until the next watch.
#[tokio::test]
async fn a_failed_publish_is_undone() {
    let host = FakeHost::with_images(&["pvc-1"]);
    let (node, mut client) = Node::with_client(&host).await;
    let bind = Step::Bind(Attributes { no_dev: false, ..Attributes::INERT });
    for (left, fails) in [(false, bind), (true, bind), (true, Step::Limit)] {
        if left {
            host.attach("pvc-1");
        }
        host.fail(fails);
        let failed = client.node_publish_volume(node.kubelet.publish_block("pvc-1", "a", MANY)).await;
        assert_eq!(failed.expect_err("it fails").code(), Code::Internal);
        assert_eq!((host.devices(), host.is_bare()), (0, true), "{fails:?}");
    }
    host.fail(Step::RemoveTarget);
    client.node_publish_volume(node.kubelet.publish_block("pvc-1", "a", MANY)).await.expect_err("it fails");
    assert_eq!(host.unpublished(), vec![(fake::id("pvc-1"), 0); 4], "a deletion is repeated, also if the target stays");
}

/// The provisioner retries the deletion of the volume then, and a loop device would fail it again.
#[tokio::test]
async fn an_unpublish_is_announced_once_and_after_the_detach() {
    let host = FakeHost::with_images(&["pvc-1"]);
    let (node, mut client) = Node::with_client(&host).await;
    for target in ["a", "b"] {
        client.node_publish_volume(node.kubelet.publish_block("pvc-1", target, MANY)).await.expect("publish");
    }
    assert!(host.unpublished().is_empty());
    for target in ["a", "b", "b"] {
        client.node_unpublish_volume(node.kubelet.unpublish("pvc-1", target)).await.expect("unpublish");
    }
    assert_eq!(host.unpublished(), [(fake::id("pvc-1"), 1), (fake::id("pvc-1"), 0)]);
}

/// Regression: if the plugin itself detached the device before the kubelet tried again, nothing was announced.
#[tokio::test]
async fn an_unpublish_whose_detach_failed_is_announced_when_the_device_is_detached() {
    let host = FakeHost::with_images(&["pvc-1"]);
    let node = Node::start_watching(&host).await;
    let mut client = node.kubelet.client().await;
    let mut expected = Vec::new();
    for is_detached_by_the_plugin in [false, true] {
        client.node_publish_volume(node.kubelet.publish_block("pvc-1", "a", MANY)).await.expect("publish");
        host.fail(Step::Detach);
        let failed = client.node_unpublish_volume(node.kubelet.unpublish("pvc-1", "a")).await;
        assert_eq!(failed.expect_err("it fails").code(), Code::Internal);
        assert_eq!((host.unpublished(), host.devices()), (expected.clone(), 1), "the device is attached");
        host.succeed();
        if is_detached_by_the_plugin {
            host.leave_idle("pvc-1");
            eventually("the device is detached", || host.devices() == 0).await;
        }
        client.node_unpublish_volume(node.kubelet.unpublish("pvc-1", "a")).await.expect("unpublish");
        expected.push((fake::id("pvc-1"), 0));
        eventually("the unpublish is announced", || host.unpublished() == expected).await;
    }
}

/// Regression: if a detach by the plugin itself failed, the device stayed attached until the next call for its volume,
/// or the next start.
#[tokio::test]
async fn a_failed_detach_by_the_plugin_is_repeated() {
    let host = FakeHost::with_images(&["pvc-1"]);
    host.fail_releases(true);
    host.leave_idle("pvc-1");
    let _node = Node::start_watching(&host).await;
    // One attempt is that of the start, and one that of the only report.
    eventually("it is tried again", || host.releases() >= 4).await;
    assert!(host.unpublished().is_empty());
    host.fail_releases(false);
    eventually("the device is detached", || host.devices() == 0).await;
    eventually("the unpublish is announced", || host.unpublished() == [(fake::id("pvc-1"), 0)]).await;
}

/// Regression: each publish that the watch saw in progress was announced as an unpublish.
#[tokio::test]
async fn a_device_whose_publish_was_in_progress_is_not_announced() {
    let host = FakeHost::with_images(&["pvc-1"]);
    let node = Node::start_watching(&host).await;
    let mut client = node.kubelet.client().await;
    client.node_publish_volume(node.kubelet.publish_block("pvc-1", "a", MANY)).await.expect("publish");
    host.hold("pvc-1");
    host.report_idle("pvc-1");
    eventually("the plugin looks at the device", || host.works_on("pvc-1")).await;
    host.release("pvc-1");
    // The call has the lock of the volume after the plugin.
    client.node_unpublish_volume(node.kubelet.unpublish("pvc-1", "a")).await.expect("unpublish");
    assert_eq!(host.unpublished(), [(fake::id("pvc-1"), 0)]);
}

#[tokio::test]
async fn a_revoked_detach_is_counted_by_volume_and_forgotten_with_it() {
    let host = FakeHost::with_images(&["pvc-1", "pvc-2"]);
    let node = Node::start_watching(&host).await;
    host.revoke("pvc-1");
    assert_eq!(node.revoked("pvc-1").await, BTreeMap::from([(fake::id("pvc-1"), 1)]));
    let metrics = prometheus::TextEncoder::new().encode_to_string(&node.registry.gather()).expect("text");
    assert!(metrics.contains("granary_loop_detaches_revoked_total 1\n"), "{metrics}");

    // Regression: each volume whose device a pod ever tried to detach stayed in the map.
    host.delete("pvc-1");
    host.revoke("pvc-2");
    assert_eq!(node.revoked("pvc-2").await, BTreeMap::from([(fake::id("pvc-2"), 1)]));
}

/// Regression: the watch waited for each detach, and for the calls that ran before the detach.
#[tokio::test]
async fn a_slow_detach_delays_no_revocation() {
    let host = FakeHost::with_images(&["pvc-1", "pvc-2"]);
    let node = Node::start_watching(&host).await;
    host.hold("pvc-1");
    host.leave_idle("pvc-1");
    eventually("the detach has begun", || host.works_on("pvc-1")).await;
    host.revoke("pvc-2");
    node.revoked("pvc-2").await;
    assert_eq!(host.devices(), 1, "the detach is not finished");
    host.release("pvc-1");
    eventually("the device is detached", || host.devices() == 0).await;
}

/// Regression: the plugin tried to hold the devices only once, at the start.
#[tokio::test]
async fn devices_that_cannot_be_held_at_the_start_are_held_later() {
    let host = FakeHost::default();
    host.fail_adoptions(true);
    let _node = Node::start_watching(&host).await;
    eventually("it is tried again", || host.adoptions() >= 3).await;
    host.fail_adoptions(false);
    let failed = host.adoptions();
    eventually("it succeeds", || host.adoptions() > failed).await;
}

/// Regression: each look blocked a thread, even after the kubelet had canceled the call, until the process had no
/// thread left for the disk.
#[tokio::test]
async fn canceled_looks_at_a_disk_that_hangs_are_limited() {
    let host = FakeHost::with_volumes(&["pvc-1"]);
    let (node, mut client) = Node::with_client(&host).await;
    client.node_publish_volume(node.kubelet.publish("pvc-1", "a", MANY)).await.expect("publish");
    host.hang_looks(true);
    let mut calls = JoinSet::new();
    for _ in 0..40 {
        let (mut client, request) = (client.clone(), node.kubelet.stats("pvc-1", "a"));
        let call = async move { client.node_get_volume_stats(request).await.map(drop) };
        calls.spawn(tokio::time::timeout(Duration::from_secs(2), call));
    }
    while let Some(call) = calls.join_next().await {
        call.expect("no panic").expect_err("canceled");
    }
    eventually("the other calls have not begun", || host.looks() == 16).await;
    host.hang_looks(false);
    client.node_get_volume_stats(node.kubelet.stats("pvc-1", "a")).await.expect("stats");
    eventually("all looks end", || host.looks() == 0).await;
}

/// Regression: a client that polled a disk that hangs took a thread with each call.
#[tokio::test]
async fn canceled_measurements_of_a_disk_that_hangs_are_limited() {
    let host = FakeHost::default();
    let node = Node::with_controller(&host, Arc::new(FakeVolumes::with_size(Bytes::GIB))).await;
    let channel = connect(node.kubelet.socket()).await.expect("connect");
    host.hang_looks(true);
    let patience = Duration::from_secs(2);
    let mut probes = JoinSet::new();
    for _ in 0..40 {
        let mut client = IdentityClient::new(channel.clone());
        let probe = async move { client.probe(ProbeRequest {}).await.map(drop) };
        probes.spawn(tokio::time::timeout(patience, probe));
    }
    eventually("the other calls have not begun", || host.looks() == 16).await;
    let mut controller = ControllerClient::new(channel);
    let capacity = controller.get_capacity(GetCapacityRequest::default());
    tokio::time::timeout(patience, capacity).await.expect_err("it waits for a permit");
    while let Some(probe) = probes.join_next().await {
        probe.expect("no panic").expect_err("canceled");
    }
    assert_eq!(host.looks(), 16);
    host.hang_looks(false);
    controller.get_capacity(GetCapacityRequest::default()).await.expect("a capacity");
    eventually("all measurements end", || host.looks() == 0).await;
}

/// Publishes each volume. A connection has fewer calls than the plugin serves on one at a time.
async fn publish_all(kubelet: &Kubelet, volumes: &[&str]) -> JoinSet<Result<(), Status>> {
    let mut calls = JoinSet::new();
    for volumes in volumes.chunks(60) {
        let client = kubelet.client().await;
        for volume in volumes {
            let (mut client, request) = (client.clone(), kubelet.publish(volume, volume, MANY));
            calls.spawn(async move { client.node_publish_volume(request).await.map(drop) });
        }
    }
    calls
}

async fn complete(mut calls: JoinSet<Result<(), Status>>) {
    while let Some(call) = calls.join_next().await {
        call.expect("no panic").expect("publish");
    }
}

/// Regression: a client with many IDs took a thread for each, until the process had no thread left for the disk.
#[tokio::test]
async fn operations_on_a_disk_that_hangs_are_limited() {
    let names: Vec<_> = (0..300).map(|number| format!("pvc-{number}")).collect();
    let volumes: Vec<_> = names.iter().map(String::as_str).collect();
    let host = FakeHost::with_volumes(&volumes);
    let node = Node::start_watching(&host).await;
    // A detach by the plugin itself has one of the 256 permits.
    host.hold("pvc-idle");
    host.leave_idle("pvc-idle");
    eventually("the detach has begun", || host.works_on("pvc-idle")).await;
    host.hang_looks(true);
    let calls = publish_all(&node.kubelet, &volumes).await;
    eventually("the other calls have not begun", || host.looks() >= 255).await;
    host.hang_looks(false);
    complete(calls).await;
    host.release("pvc-idle");
    assert_eq!(host.most_looks(), 255);
}

#[tokio::test]
async fn many_calls_for_a_volume_that_hangs_do_not_delay_others() {
    let host = FakeHost::with_volumes(&["pvc-slow", "pvc-fast"]);
    let node = Node::start(&host).await;
    host.hold("pvc-slow");
    let calls = publish_all(&node.kubelet, &["pvc-slow"; 300]).await;
    eventually("the slow volume is being worked on", || host.works_on("pvc-slow")).await;
    let fast = async { complete(publish_all(&node.kubelet, &["pvc-fast"]).await).await };
    tokio::time::timeout(LIMIT, fast).await.expect("it does not wait for the slow volume");
    host.release("pvc-slow");
    complete(calls).await;
    assert!(!host.overlapped());
}

async fn remove_snapshot(mut client: ControllerClient<Channel>, number: usize) -> Result<(), Status> {
    let request = DeleteSnapshotRequest { snapshot_id: format!("snapshot-{number}"), ..Default::default() };
    client.delete_snapshot(request).await.map(drop)
}

/// Regression: each run of the server counted from zero. The threads of calls outlive a run that fails or is aborted.
#[tokio::test]
async fn changes_leave_connections_to_the_kubelet() {
    let volumes = Arc::new(FakeVolumes::with_size(Bytes::GIB));
    let node = Node::with_controller(&FakeHost::default(), Arc::clone(&volumes)).await;
    volumes.hold(true);
    let client = controller(&node.kubelet).await;
    let mut calls = JoinSet::new();
    for number in 0..40 {
        calls.spawn(remove_snapshot(client.clone(), number));
    }
    for _ in 0..8 {
        let answer = tokio::time::timeout(LIMIT, calls.join_next()).await.expect("an answer").expect("a call");
        let status = answer.expect("no panic").expect_err("too many");
        let expected = (Code::Aborted, "32 calls change volumes; repeat the call later");
        assert_eq!((status.code(), status.message()), expected);
    }
    node.supervisor.stop(Duration::ZERO).await.expect_err("the calls have not ended");
    let _supervisor = supervise(&node.plugin).await;
    let client = controller(&node.kubelet).await;
    let answer = tokio::time::timeout(LIMIT, remove_snapshot(client.clone(), 40)).await;
    volumes.hold(false);
    assert_eq!(answer.expect("an answer").expect_err("the threads still run").code(), Code::Aborted);
    let ended = async {
        while remove_snapshot(client.clone(), 40).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, ended).await.expect("the threads have ended");
}

/// Regression: conditions had no fault of the disk if external-provisioner replaced the provisioner, which read the
/// faults.
#[tokio::test]
async fn the_plugin_reads_the_faults_of_the_disk_itself() {
    let host = FakeHost::default();
    let _node = Node::start(&host).await;
    eventually("the faults are read", || host.fault_reads() > 0).await;
}

#[tokio::test]
async fn a_canceled_call_keeps_its_lock() {
    let host = FakeHost::with_volumes(&["pvc-1"]);
    let (node, mut client) = Node::with_client(&host).await;
    host.hold("pvc-1");
    {
        let mut impatient = client.clone();
        let call = impatient.node_publish_volume(node.kubelet.publish("pvc-1", "a", MANY));
        tokio::select! {
            _ = call => panic!("the volume is held"),
            () = eventually("the volume is being worked on", || host.works_on("pvc-1")) => {}
        }
    }
    let again = client.node_publish_volume(node.kubelet.publish("pvc-1", "a", MANY));
    let release = async { host.release("pvc-1") };
    tokio::join!(again, release).0.expect("publish");
    assert!(!host.overlapped());
    assert_eq!(host.steps(), [Step::CreateTarget(Shape::Directory), Step::Bind(DIRECTORY)]);
}

#[tokio::test]
async fn a_bug_is_an_internal_error_and_not_the_end() {
    let host = FakeHost::with_volumes(&["pvc-1"]);
    let (node, mut client) = Node::with_client(&host).await;
    host.panic_once();
    let refused = client.node_publish_volume(node.kubelet.publish("pvc-1", "a", MANY)).await.expect_err("a bug");
    assert_eq!(refused.code(), Code::Internal);
    host.panic_once();
    let mut identity = IdentityClient::new(connect(node.kubelet.socket()).await.expect("connect"));
    assert_eq!(identity.probe(ProbeRequest {}).await.expect_err("a bug").code(), Code::Internal);
    client.node_publish_volume(node.kubelet.publish("pvc-1", "a", MANY)).await.expect("it goes on");
}

#[tokio::test]
async fn a_stop_completes_running_calls_and_removes_the_sockets() {
    let host = FakeHost::with_volumes(&["pvc-1"]);
    let (node, mut client) = Node::with_client(&host).await;
    host.hold("pvc-1");
    let (socket, registration) = (node.kubelet.socket(), node.registration_socket());
    let call = client.node_publish_volume(node.kubelet.publish("pvc-1", "a", MANY));
    let stop = async {
        eventually("the volume is being worked on", || host.works_on("pvc-1")).await;
        let release = async {
            // Registration stops first. When its socket is missing, the stop of the server has begun.
            eventually("the registration socket is gone", || !registration.exists()).await;
            host.release("pvc-1");
        };
        tokio::join!(node.supervisor.stop(LIMIT), release).0.expect("nothing is aborted");
    };
    tokio::join!(call, stop).0.expect("the call is finished");
    assert!(!socket.exists());
}

#[tokio::test]
async fn other_users_are_rejected() {
    let stranger = Uid::from_raw(Uid::current().as_raw() + 1);
    let node = Node::start_with(&FakeHost::default(), |settings| settings.peer = stranger).await;
    let refused = match connect(node.kubelet.socket()).await {
        Ok(channel) => NodeClient::new(channel).node_get_info(NodeGetInfoRequest {}).await.is_err(),
        Err(_) => true,
    };
    assert!(refused);
}

#[tokio::test]
async fn a_socket_of_an_unclean_end_is_replaced() {
    let host = FakeHost::default();
    let node = Node::start_with(&host, |settings| {
        let directory = settings.kubelet.join("plugins");
        fs::create_dir(&directory).expect("a directory");
        drop(UnixListener::bind(directory.join("local.granary.dev.sock")).expect("a socket of a killed plugin"));
    })
    .await;
    node.kubelet.client().await.node_get_info(NodeGetInfoRequest {}).await.expect("it is served");
    assert!(fs::symlink_metadata(node.kubelet.socket()).expect("it exists").file_type().is_socket());
}

async fn registration(node: &Node) -> RegistrationClient<Channel> {
    RegistrationClient::new(connect(node.registration_socket()).await.expect("connect"))
}

/// Regression: the kubelet's registration client sets no host, and grpc-go sends the path that it dials. `h2` reset
/// these streams, and the plugin was never registered.
#[tokio::test]
async fn a_client_may_send_the_sockets_path_as_host() {
    let node = Node::start(&FakeHost::default()).await;
    let calls = [
        (node.registration_socket(), "/pluginregistration.Registration/GetInfo"),
        (node.kubelet.socket(), "/csi.v1.Identity/Probe"),
    ];
    for (socket, method) in calls {
        let answers = tokio::time::timeout(LIMIT, wire::call(&socket, &[method, method])).await.expect("answers");
        assert_eq!(answers.len(), 2);
        for fields in answers {
            assert!(fields.contains(&(b"grpc-status".to_vec(), b"0".to_vec())), "{method}: {fields:?}");
        }
    }
}

/// Identity of a socket file. It changes when the socket is created again, even if the inode number is used again.
fn birth(socket: &Path) -> io::Result<(u64, i64, i64)> {
    fs::symlink_metadata(socket).map(|found| (found.ino(), found.ctime(), found.ctime_nsec()))
}

#[tokio::test]
async fn the_registration_socket_is_created_again_without_success() {
    let patience = Duration::from_millis(50);
    let node = Node::start_with(&FakeHost::default(), |settings| settings.patience = patience).await;
    let refused = RegistrationStatus { plugin_registered: false, error: "not today".to_owned() };
    let mut client = registration(&node).await;
    // The call fails if the socket is created again at the same time.
    let _ = client.notify_registration_status(refused).await;
    let first = birth(&node.registration_socket()).ok();
    let changed = || birth(&node.registration_socket()).is_ok_and(|now| Some(now) != first);
    eventually("the socket is another one", changed).await;
}

/// An administrator may clear or restore the kubelet's directory while the node runs.
#[tokio::test]
async fn sockets_come_back_with_their_directories() {
    let look = Duration::from_millis(10);
    let node = Node::start_with(&FakeHost::default(), |settings| settings.look = look).await;
    let mut before = node.kubelet.client().await;
    for socket in [node.kubelet.socket(), node.registration_socket()] {
        let directory = socket.parent().expect("a directory");
        fs::remove_dir_all(directory).expect("remove");
        fs::create_dir(directory).expect("make");
        eventually("the socket is back", || birth(&socket).is_ok()).await;
        fs::remove_file(&socket).expect("remove");
        eventually("the socket is back", || birth(&socket).is_ok()).await;
    }
    before.node_get_info(NodeGetInfoRequest {}).await.expect("connections go on");
    registration(&node).await.get_info(InfoRequest {}).await.expect("info");
    node.kubelet.client().await.node_get_info(NodeGetInfoRequest {}).await.expect("it is served");
    node.supervisor.stop(LIMIT).await.expect("nothing is aborted");
}

#[tokio::test]
async fn a_silent_client_does_not_delay_the_end() {
    let node = Node::start_with(&FakeHost::default(), |settings| settings.grace = 100 * LIMIT).await;
    let silent = [node.kubelet.socket(), node.registration_socket()]
        .map(|socket| std::os::unix::net::UnixStream::connect(socket).expect("connect"));
    // These calls show that the server has accepted the two silent connections.
    node.kubelet.client().await.node_get_info(NodeGetInfoRequest {}).await.expect("it is served");
    registration(&node).await.get_info(InfoRequest {}).await.expect("info");
    node.supervisor.stop(LIMIT).await.expect("nothing is aborted");
    drop(silent);
}

#[tokio::test]
async fn a_stalled_client_delays_the_end_by_the_grace_period() {
    let grace = Duration::from_millis(50);
    let node = Node::start_with(&FakeHost::default(), |settings| settings.grace = grace).await;
    let mut half = tokio::net::UnixStream::connect(node.kubelet.socket()).await.expect("connect");
    tokio::io::AsyncWriteExt::write_all(&mut half, b"PRI * HTTP/2.0\r\n").await.expect("write");
    node.kubelet.client().await.node_get_info(NodeGetInfoRequest {}).await.expect("it is served");
    node.supervisor.stop(LIMIT).await.expect("nothing is aborted");
    drop(half);
}

#[tokio::test]
async fn a_message_of_more_than_a_mebibyte_is_rejected() {
    const LARGEST: usize = 1 << 20;
    let (node, mut client) = Node::with_client(&FakeHost::with_volumes(&["pvc-1"])).await;
    for (size, code) in [(LARGEST, Code::InvalidArgument), (LARGEST + 1, Code::OutOfRange)] {
        // The encoding of the ID begins with the number of the field and three bytes of length.
        let message = NodeUnpublishVolumeRequest { volume_id: "x".repeat(size - 4), target_path: String::new() };
        let rejected = client.node_unpublish_volume(message).await.expect_err("no volume has this ID");
        assert_eq!(rejected.code(), code, "{size} bytes: {rejected:?}");
    }
    client.node_publish_volume(node.kubelet.publish("pvc-1", "a", MANY)).await.expect("the connection goes on");
}

#[tokio::test]
async fn calls_are_counted_by_method_and_code() {
    let (node, mut client) = Node::with_client(&FakeHost::with_volumes(&["pvc-1"])).await;
    client.node_publish_volume(node.kubelet.publish("pvc-1", "a", MANY)).await.expect("publish");
    client.node_publish_volume(node.kubelet.publish("pvc-2", "b", MANY)).await.expect_err("unknown");
    let families = node.registry.gather();
    let calls = families.iter().find(|family| family.name() == "granary_csi_calls_total").expect("counted");
    let mut codes: Vec<_> = calls
        .get_metric()
        .iter()
        .filter(|metric| metric.get_counter().get_value() > 0.0)
        .map(|metric| {
            let labels: Vec<_> = metric.get_label().iter().map(|label| label.value()).collect();
            (labels.join(" "), metric.get_counter().get_value())
        })
        .collect();
    codes.sort_by(|one, other| one.0.cmp(&other.0));
    let expected = [("NOT_FOUND NodePublishVolume".to_owned(), 1.0), ("OK NodePublishVolume".to_owned(), 1.0)];
    assert_eq!(codes, expected);
}
