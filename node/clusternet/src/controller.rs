//! Keeps the kernel's peers what the cluster's Nodes say.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, Stream, StreamExt as _, future};
use k8s_openapi::api::core::v1::{Node, NodeStatus};
use kube::api::{Patch, PatchParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use supervisor::Context;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tracing::{debug, info, warn};

use crate::device::{AddressError, ChangeError, Device, EnsureError, LookError, Place, Seen};
use crate::metrics::Metrics;
use crate::network::first_address;
use crate::peers::{Mesh, Own, Wanted, wanted};
use crate::refusal::Refusal;
use crate::{Member, Peers, PodNetwork, PublicKey, annotation, diff};

/// The owner of our field in the API.
const FIELD_MANAGER: &str = "granary-mesh";

/// Changes that are there at once are one pass.
const AT_ONCE: usize = 1024;

/// What a node's mesh is made of.
#[derive(Clone)]
pub struct Settings {
    /// Speaks to the API server as the node's storage identity: it lists and watches Nodes, and patches its own.
    pub client: Client,
    /// The name of the own Node, which may not be there yet.
    pub node: String,
    /// The addresses of all pods. They have none in common.
    pub networks: Vec<PodNetwork>,
    /// The interface.
    pub device: Arc<dyn Device>,
    /// What is counted.
    pub metrics: Metrics,
    /// Somebody may have changed what the kernel has: after this it is looked at again.
    pub interval: Duration,
}

impl Settings {
    /// A usual [`interval`](Settings::interval).
    pub const INTERVAL: Duration = Duration::from_mins(5);
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("node", &self.node).field("networks", &self.networks).finish_non_exhaustive()
    }
}

/// Why the mesh has to be started again. The kernel goes on with the peers that it has.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is no interface.
    #[error(transparent)]
    Ensure(#[from] EnsureError),
    /// It does not get its address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Its peers cannot be read.
    #[error(transparent)]
    Look(#[from] LookError),
    /// Its peers cannot be changed.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The API server does not take the public key.
    #[error("cannot tell the node's public key in its Node")]
    Announce(#[source] Box<kube::Error>),
    /// A task panicked.
    #[error("work on the mesh's interface panicked")]
    Panicked(#[from] JoinError),
    /// The watch ended, which it never does by itself.
    #[error("the watch of Nodes ended")]
    WatchEnded,
}

/// Keeps the mesh until it is cancelled. Healthy when the node has its place in it: the own Node has a range and tells
/// the key, and the kernel has all peers.
///
/// # Errors
/// [`RunError`]; an API server that is away is waited for and is none.
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
            _ = again.tick() => controller.doubt(),
        }
        // Before everything was listed, everybody who is not would lose their place.
        if nodes.wait_until_ready().now_or_never().is_none() {
            continue;
        }
        let members: Vec<Member> = nodes.state().iter().map(|node| Member::from(node.as_ref())).collect();
        let done = tokio::select! {
            () = cx.cancelled() => return Ok(()),
            done = controller.pass(&members) => done?,
        };
        if done {
            cx.healthy();
        }
    }
}

/// All Nodes, and something for each change of them. Failures are logged; it goes on, with a back-off, and begins with
/// a list if it has missed something.
fn watch(client: Client) -> (Store<Node>, impl Stream<Item = ()>) {
    let (store, writer) = reflector::store();
    let events = watcher(Api::<Node>::all(client), watcher::Config::default()).default_backoff().modify(strip);
    let changes = reflector::reflector(writer, events).filter_map(|event| {
        future::ready(match event {
            // Only whole lists count.
            Ok(Event::Init | Event::InitApply(_)) => None,
            Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_)) => Some(()),
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                warn!(error, "watch of Nodes failed, it goes on");
                None
            }
        })
    });
    (store, changes)
}

/// Of a Node, the largest part is of no use here: which images it has, and who wrote which field.
fn strip(node: &mut Node) {
    node.metadata.managed_fields = None;
    let addresses = node.status.take().and_then(|status| status.addresses);
    node.status = Some(NodeStatus { addresses, ..NodeStatus::default() });
}

struct Controller {
    settings: Settings,
    key: PublicKey,
    /// The peers as this has left them. Where one has moved to since, only the kernel knows.
    known: Option<Peers>,
    /// Nobody else has changed them, as far as is known.
    is_sure: bool,
    /// The places that the interface has.
    places: Option<BTreeSet<Place>>,
    /// What was told of the last pass.
    nodes: BTreeMap<PublicKey, String>,
    refused: BTreeSet<(String, Refusal)>,
    several: BTreeSet<(String, IpAddr)>,
}

impl Controller {
    const fn new(settings: Settings, key: PublicKey) -> Self {
        Self {
            settings,
            key,
            known: None,
            is_sure: true,
            places: None,
            nodes: BTreeMap::new(),
            refused: BTreeSet::new(),
            several: BTreeSet::new(),
        }
    }

    /// Link, key, port, peers, addresses and routes may be others by now.
    fn doubt(&mut self) {
        self.is_sure = false;
        self.places = None;
    }

    /// Makes the mesh what the Nodes say. Whether the own node has its place in it.
    async fn pass(&mut self, members: &[Member]) -> Result<bool, RunError> {
        let mesh = Mesh { node: &self.settings.node, key: self.key, networks: &self.settings.networks };
        let wanted = wanted(mesh, members);
        if !self.is_sure {
            let device = Arc::clone(&self.settings.device);
            spawn_blocking(move || device.ensure()).await??;
        }
        if let Some(own) = &wanted.own {
            self.place(own).await?;
        }
        self.peers(&wanted).await?;
        self.tell(&wanted);
        match wanted.own {
            Some(Own { ranges, .. }) if ranges.is_empty() => {
                debug!("the own Node has no range of pod addresses yet");
                Ok(false)
            }
            Some(Own { is_announced: true, .. }) => Ok(true),
            // Last: whoever learns of the key may speak to us from then on.
            Some(Own { is_announced: false, .. }) => self.announce().await,
            None => {
                debug!("there is no own Node yet");
                Ok(false)
            }
        }
    }

    /// Gives the interface the own addresses.
    async fn place(&mut self, own: &Own) -> Result<(), RunError> {
        let networks = &self.settings.networks;
        let place = |range| {
            let network = networks.iter().find(|network| network.has_part(range))?.network();
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

    /// Gives the kernel its peers.
    async fn peers(&mut self, wanted: &Wanted) -> Result<(), RunError> {
        let known = self.known.take();
        let have = match known {
            Some(known) if self.is_sure => known,
            known => self.look(known.unwrap_or_default()).await?,
        };
        let changes = Arc::new(diff(&have, &wanted.peers));
        if !changes.is_empty() {
            let (device, planned) = (Arc::clone(&self.settings.device), Arc::clone(&changes));
            spawn_blocking(move || device.change(&planned)).await??;
        }
        for change in changes.iter() {
            self.settings.metrics.changed(change);
            let key = change.key();
            let node = wanted.nodes.get(&key).or_else(|| self.nodes.get(&key)).map_or("?", String::as_str);
            info!(node, %key, change = change.name(), "mesh peer changed");
        }
        self.known = Some(wanted.peers.clone());
        self.is_sure = true;
        Ok(())
    }

    /// What the kernel has. A peer that has moved since it was told of stays where the kernel has followed it to.
    async fn look(&self, known: Peers) -> Result<Peers, RunError> {
        let device = Arc::clone(&self.settings.device);
        let seen = spawn_blocking(move || device.look()).await??;
        let peer = |(key, mut seen): (PublicKey, Seen)| {
            if let (Some(_), Some(known)) = (seen.peer.endpoint, known.get(&key)) {
                seen.peer.endpoint = known.endpoint;
            }
            (key, seen.peer)
        };
        Ok(seen.into_iter().map(peer).collect())
    }

    /// Says what is new.
    fn tell(&mut self, wanted: &Wanted) {
        for (node, refusal) in wanted.refused.difference(&self.refused) {
            let reason: &dyn std::error::Error = refusal;
            warn!(node, reason, "node refused in the mesh, or a part of what it says");
        }
        for (node, address) in wanted.several.difference(&self.several) {
            warn!(node, %address, "node has several InternalIPs, the first is used");
        }
        self.settings.metrics.refused(&wanted.refused);
        self.settings.metrics.named(&wanted.nodes);
        self.nodes.clone_from(&wanted.nodes);
        self.refused.clone_from(&wanted.refused);
        self.several.clone_from(&wanted.several);
    }

    /// Tells the key in the own Node. `false`: it is gone meanwhile.
    async fn announce(&self) -> Result<bool, RunError> {
        let nodes = Api::<Node>::all(self.settings.client.clone());
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(annotation::patch(self.key));
        match nodes.patch_metadata(&self.settings.node, &params, &patch).await {
            Ok(_) => {
                info!(key = %self.key, "public key told in the own Node");
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(false),
            Err(error) => Err(RunError::Announce(Box::new(error))),
        }
    }
}
