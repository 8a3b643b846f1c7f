//! Reconciles the kernel's peers with the Nodes of the cluster.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cluster::PUBLIC_KEY_ANNOTATION;
use futures::{FutureExt as _, Stream, StreamExt as _, future};
use k8s_openapi::api::core::v1::{Node, NodeStatus};
use kube::api::{Patch, PatchParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use serde_json::json;
use supervisor::Context;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tracing::{debug, info, warn};

use crate::device::{Device, DeviceError, PeerState, Place};
use crate::metrics::Metrics;
use crate::network::first_address;
use crate::peers::{Mesh, MeshPlan, OwnNode, plan};
use crate::{LostSessions, Member, Peers, PodNetwork, PublicKey, diff};

const FIELD_MANAGER: &str = "granary-mesh";

/// Maximum number of pending events that one reconciliation handles.
const AT_ONCE: usize = 1024;

#[derive(Clone)]
pub struct Settings {
    /// Client with the node's storage identity. The client lists and watches Nodes, and patches the node's own Node.
    pub client: Client,
    /// Name of the own Node, which may not exist yet.
    pub node: String,
    pub networks: Vec<PodNetwork>,
    pub device: Arc<dyn Device>,
    pub lost_sessions: LostSessions,
    pub metrics: Metrics,
    /// Interval of reconciliations with the kernel's state, which other programs may change.
    pub interval: Duration,
}

impl Settings {
    pub const INTERVAL: Duration = Duration::from_mins(5);
}

/// The controller failed and must be restarted. The kernel keeps its peers.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("cannot publish the public key in the node's Node object")]
    Announce(#[source] Box<kube::Error>),
    #[error("a task for the mesh interface panicked")]
    Panicked(#[from] JoinError),
    #[error("the watch of Nodes ended")]
    WatchEnded,
}

/// Reconciles until cancelled. Reports healthy once the node is part of the mesh: the own Node has a pod range and the
/// public key, and the kernel has all peers. Retries while the API server is unavailable.
pub async fn run(cx: Context, settings: Settings) -> Result<(), RunError> {
    let device = Arc::clone(&settings.device);
    let key = spawn_blocking(move || device.ensure()).await??;
    info!(key = %key, "mesh interface ready");
    let (nodes, changes) = watch(settings.client.clone());
    let mut changes = pin!(changes.ready_chunks(AT_ONCE));
    let mut again = interval_at(Instant::now() + settings.interval, settings.interval);
    again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut controller = Controller::new(settings, key);
    loop {
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            changed = changes.next() => drop(changed.ok_or(RunError::WatchEnded)?),
            _ = again.tick() => controller.invalidate(),
        }
        // Without a complete list, peers of Nodes that are not listed yet would be removed.
        if nodes.wait_until_ready().now_or_never().is_none() {
            continue;
        }
        let members: Vec<Member> = nodes.state().iter().map(|node| Member::from(node.as_ref())).collect();
        let done = tokio::select! {
            () = cx.cancelled() => return Ok(()),
            done = cx.round(controller.pass(&members), Result::is_ok) => done?,
        };
        if done {
            cx.healthy();
        }
    }
}

/// A store of all Nodes, and a stream with an item per change. The watch logs failures, retries with back-off, and
/// lists again if it may have missed events.
fn watch(client: Client) -> (Store<Node>, impl Stream<Item = ()>) {
    let (store, writer) = reflector::store();
    let events = watcher(Api::<Node>::all(client), watcher::Config::default()).default_backoff().modify(strip);
    let changes = reflector::reflector(writer, events).filter_map(|event| {
        future::ready(match event {
            // Wait for the end of a list: the store is complete then.
            Ok(Event::Init | Event::InitApply(_)) => None,
            Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_)) => Some(()),
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                warn!(error, "watch of Nodes failed, will retry");
                None
            }
        })
    });
    (store, changes)
}

/// Removes the largest parts of a Node, which the mesh does not use: images and managed fields.
fn strip(node: &mut Node) {
    node.metadata.managed_fields = None;
    let addresses = node.status.take().and_then(|status| status.addresses);
    node.status = Some(NodeStatus { addresses, ..NodeStatus::default() });
}

struct Controller {
    settings: Settings,
    key: PublicKey,
    /// Peers after the last pass. The kernel may have updated their endpoints.
    known: Option<Peers>,
    /// Whether the kernel's state is assumed to be that of the last pass.
    is_current: bool,
    places: Option<BTreeSet<Place>>,
    /// Plan of the last pass, to log only new warnings.
    last: MeshPlan,
}

impl Controller {
    fn new(settings: Settings, key: PublicKey) -> Self {
        Self { settings, key, known: None, is_current: true, places: None, last: MeshPlan::default() }
    }

    /// Marks the kernel's state as unknown: link, key, port, peers, addresses and routes.
    fn invalidate(&mut self) {
        self.is_current = false;
        self.places = None;
    }

    /// Reconciles with the Nodes. Returns whether the node is part of the mesh.
    async fn pass(&mut self, members: &[Member]) -> Result<bool, RunError> {
        let mesh = Mesh { node: &self.settings.node, key: self.key, networks: &self.settings.networks };
        let plan = plan(mesh, members);
        if !self.is_current {
            let device = Arc::clone(&self.settings.device);
            spawn_blocking(move || device.ensure()).await??;
        }
        if let Some(own) = &plan.own {
            self.place(own).await?;
        }
        self.peers(&plan).await?;
        self.log_warnings(&plan);
        match plan.own {
            Some(OwnNode { ranges, .. }) if ranges.is_empty() => {
                debug!("own Node has no pod range yet");
                Ok(false)
            }
            Some(OwnNode { is_announced: true, .. }) => Ok(true),
            // Publish the key last: other nodes may send packets to this node as soon as they read the key.
            Some(OwnNode { is_announced: false, .. }) => self.announce().await,
            None => {
                debug!("own Node does not exist yet");
                Ok(false)
            }
        }
    }

    async fn place(&mut self, own: &OwnNode) -> Result<(), RunError> {
        let networks = &self.settings.networks;
        let place = |range| {
            let network = networks.iter().find(|network| network.has_part(range))?.network;
            Some(Place { address: first_address(range), network })
        };
        let places: BTreeSet<Place> = own.ranges.iter().copied().filter_map(place).collect();
        if places.is_empty() || self.places.as_ref() == Some(&places) {
            return Ok(());
        }
        let (device, wanted) = (Arc::clone(&self.settings.device), places.clone());
        spawn_blocking(move || device.place(&wanted)).await??;
        self.places = Some(places);
        Ok(())
    }

    async fn peers(&mut self, plan: &MeshPlan) -> Result<(), RunError> {
        let is_read = self.known.is_none() || !self.is_current;
        let known = self.known.take().unwrap_or_default();
        let have = if is_read { self.look(known).await? } else { known };
        let changes = Arc::new(diff(&have, &plan.peers));
        // After a boot, the kernel has no peers. Nodes that have this node's key may have sessions from before the
        // boot, which would lose their packets for 15 s (`KEEPALIVE_TIMEOUT` and `REKEY_TIMEOUT`, messages.h in
        // drivers/net/wireguard). In other cases, the first packet begins a session: if both nodes began one within one
        // round trip, both would drop the answer.
        if is_read && have.is_empty() && plan.own.as_ref().is_some_and(|own| own.is_announced) {
            self.settings.lost_sessions.add(&plan.peers);
        }
        if !changes.is_empty() {
            let (device, planned) = (Arc::clone(&self.settings.device), Arc::clone(&changes));
            spawn_blocking(move || device.change(&planned)).await??;
        }
        for change in changes.iter() {
            self.settings.metrics.changed(change);
            let key = change.key();
            let node = plan.nodes.get(&key).or_else(|| self.last.nodes.get(&key)).map_or("?", String::as_str);
            info!(node, %key, change = change.name(), "mesh peer changed");
        }
        self.begin_sessions(&plan.peers).await?;
        self.known = Some(plan.peers.clone());
        self.is_current = true;
        Ok(())
    }

    /// Begins the lost sessions with these peers. After a failure, the next controller tries again.
    async fn begin_sessions(&self, peers: &Peers) -> Result<(), RunError> {
        let lost = self.settings.lost_sessions.of(peers);
        if !lost.is_empty() {
            let (device, keys) = (Arc::clone(&self.settings.device), lost.clone());
            spawn_blocking(move || device.begin_sessions(&keys)).await??;
            self.settings.lost_sessions.begun(&lost);
        }
        Ok(())
    }

    /// Reads the kernel's peers. Returns the known endpoint instead of one that the kernel has updated because a peer
    /// moved, so that the controller does not set it back.
    async fn look(&self, known: Peers) -> Result<Peers, RunError> {
        let device = Arc::clone(&self.settings.device);
        let seen = spawn_blocking(move || device.look()).await??;
        let peer = |(key, mut seen): (PublicKey, PeerState)| {
            if let (Some(_), Some(known)) = (seen.peer.endpoint, known.get(&key)) {
                seen.peer.endpoint = known.endpoint;
            }
            (key, seen.peer)
        };
        Ok(seen.into_iter().map(peer).collect())
    }

    fn log_warnings(&mut self, plan: &MeshPlan) {
        for (node, refusal) in plan.rejected.difference(&self.last.rejected) {
            let reason: &dyn std::error::Error = refusal;
            warn!(node, reason, "Node rejected from the mesh, completely or in part");
        }
        for (node, address) in plan.several.difference(&self.last.several) {
            warn!(node, %address, "Node has several InternalIPs, using the first");
        }
        self.settings.metrics.rejected(&plan.rejected);
        self.settings.metrics.named(&plan.nodes);
        self.last.clone_from(plan);
    }

    /// Writes the key to the own Node. Returns `false` if the Node was deleted.
    async fn announce(&self) -> Result<bool, RunError> {
        let nodes = Api::<Node>::all(self.settings.client.clone());
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = json!({"metadata": {"annotations": {PUBLIC_KEY_ANNOTATION: self.key.to_string()}}});
        match nodes.patch_metadata(&self.settings.node, &params, &Patch::Merge(patch)).await {
            Ok(_) => {
                info!(key = %self.key, "public key published");
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(false),
            Err(error) => Err(RunError::Announce(Box::new(error))),
        }
    }
}
