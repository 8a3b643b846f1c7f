//! The plugin as a service of the node.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::unistd::Uid;
use prometheus::Registry;
use proto::csi::controller_server::{self, ControllerServer};
use proto::csi::group_controller_server::{self, GroupControllerServer};
use proto::csi::identity_server::IdentityServer;
use proto::csi::node_server::NodeServer;
use proto::csi::plugin_capability::service;
use proto::registration::registration_server::RegistrationServer;
use supervisor::Context;
use tokio::sync::{Notify, OnceCell, Semaphore, watch};
use tokio::task::{JoinError, JoinSet, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval};
use tonic::service::Routes;
use tracing::{error, info, warn};
use volume::{VolumeId, VolumeLocks, Volumes};

use crate::controller::cluster_object::Provisioner;
use crate::controller::{CHANGES, ControllerService};
use crate::host::{Host, RevokedDetach, WatchReport};
use crate::identity::IdentityService;
use crate::leftovers::remove_empty_volume_data;
use crate::metrics::{LoopDevices, Metrics};
use crate::node::{LOOKS, NodeService, OPERATIONS};
use crate::observed::Observed;
use crate::registration::{RegistrationService, RegistrationState, unregistered_for};
use crate::server::{Address, MAX_MESSAGE, ServeError, Socket};
use crate::threads::Threads;

/// Directories of the sockets, below the kubelet's directory.
const SOCKETS: &str = "plugins";
const REGISTRATION_SOCKETS: &str = "plugins_registry";

#[derive(Clone, Debug)]
pub struct Settings {
    /// The kubelet's root directory, an absolute path without symbolic links.
    pub kubelet: PathBuf,
    pub node: String,
    pub version: String,
    /// The only user that may connect.
    pub peer: Uid,
    pub start: Start,
    /// Time without a registration after which the registration socket is created again.
    pub patience: Duration,
    /// Interval of the check that the sockets exist.
    pub look: Duration,
    /// Interval of the check of published loop devices.
    pub watch: Duration,
    /// Time for clients to read their responses at shutdown. Running calls are completed in any case.
    pub grace: Duration,
}

impl Settings {
    /// Settings for a kubelet that runs as root.
    pub fn new(kubelet: impl Into<PathBuf>, node: impl Into<String>, version: impl Into<String>) -> Self {
        Self {
            kubelet: kubelet.into(),
            node: node.into(),
            version: version.into(),
            peer: Uid::from_raw(0),
            start: Start::BeforeKubelet,
            patience: Duration::from_secs(30),
            look: Duration::from_secs(5),
            watch: Duration::from_secs(5),
            grace: Duration::from_secs(5),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The kubelet starts later, as on a Granary node: the plugin first removes the files that a power cut left in the
    /// kubelet's directory.
    BeforeKubelet,
    /// The kubelet runs already and may be writing an empty file, so the plugin removes none.
    BesideKubelet,
}

/// Whether the plugin has the devices of all targets open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Adoption {
    Complete,
    Incomplete,
}

/// Interval of reads of the disk's faults.
const FAULTS: Duration = Duration::from_mins(1);

/// Back-off of attempts, in intervals of [`Settings::watch`]. The longest pause is 5 minutes.
#[derive(Clone, Copy, Debug)]
struct Backoff {
    pause: u32,
    left: u32,
}

impl Backoff {
    const LONGEST: u32 = 60;

    /// Counts an interval. Returns whether the next attempt is due.
    fn is_due(&mut self) -> bool {
        self.left -= 1;
        let is_due = self.left == 0;
        if is_due {
            self.pause = Self::LONGEST.min(self.pause * 2);
            self.left = self.pause;
        }
        is_due
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self { pause: 1, left: 2 }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot remove the empty files that a power cut left in the kubelet's directory")]
    Leftovers(#[from] dir::Error),
    #[error("a thread of the plugin panicked")]
    Panicked(#[from] JoinError),
    #[error(transparent)]
    Ended(#[from] supervisor::Ended),
}

/// The CSI plugin. It outlives a restart of its sockets.
#[derive(Debug)]
pub struct Plugin<H> {
    settings: Settings,
    host: Arc<H>,
    locks: VolumeLocks,
    looks: Threads,
    operations: Threads,
    changes: Arc<Semaphore>,
    /// Threads of `Probe` and `GetCapacity`. The reads of `looks` may hang while a measurement does not.
    measurements: Threads,
    metrics: Metrics,
    again: Notify,
    swept: OnceCell<()>,
    revoked: watch::Sender<BTreeMap<VolumeId, u64>>,
    controller: Option<ControlledVolumes>,
}

/// The volumes of the Controller service.
struct ControlledVolumes {
    volumes: Arc<dyn Volumes>,
    provisioner: Provisioner,
}

impl fmt::Debug for ControlledVolumes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ControlledVolumes")
    }
}

impl<H: Host> Plugin<H> {
    /// Fails if the registry has a metric of the same name.
    pub fn new(settings: Settings, host: H, registry: &Registry) -> Result<Self, prometheus::Error> {
        let (metrics, host) = (Metrics::register(registry)?, Arc::new(host));
        let counting = Arc::clone(&host);
        registry.register(Box::new(LoopDevices::new(move || counting.attached().ok())?))?;
        Ok(Self {
            settings,
            host,
            locks: VolumeLocks::default(),
            looks: Threads::at_most(LOOKS),
            operations: Threads::at_most(OPERATIONS),
            changes: Arc::new(Semaphore::new(CHANGES)),
            measurements: Threads::at_most(LOOKS),
            metrics,
            again: Notify::new(),
            swept: OnceCell::new(),
            revoked: watch::Sender::default(),
            controller: None,
        })
    }

    /// Also serves the Controller service, which creates, expands and deletes these volumes and their snapshots, and
    /// the GroupController service if the volumes [take groups](Volumes::takes_groups). `provisioner` serves the
    /// objects of the cluster. The node's own provisioner may use the volumes at the same time: they serialize the
    /// operations on each volume.
    #[must_use]
    pub fn with_controller(mut self, volumes: Arc<dyn Volumes>, provisioner: Provisioner) -> Self {
        self.metrics.begin(controller_server::SERVICE_NAME);
        self.metrics.begin(group_controller_server::SERVICE_NAME);
        self.controller = Some(ControlledVolumes { volumes, provisioner });
        self
    }

    /// The supervised service: removes the leftovers of a power cut, opens the loop devices of all targets, detaches
    /// those without targets, then serves both sockets.
    pub async fn run(self: Arc<Self>, cx: Context) -> Result<(), RunError> {
        // Only once, not at a restart of this service: a file that the kubelet is writing is empty for a moment.
        match self.settings.start {
            Start::BeforeKubelet => drop(self.swept.get_or_try_init(|| self.sweep()).await?),
            Start::BesideKubelet => {}
        }
        let adoption = self.adopt().await?;
        let attached = self.release_idle().await?;
        let plugin = Arc::clone(&self);
        cx.start("devices", move |cx| Arc::clone(&plugin).watch(cx, adoption, attached.clone()));
        let plugin = Arc::clone(&self);
        cx.start("faults", move |cx| Arc::clone(&plugin).read_faults(cx));
        let plugin = Arc::clone(&self);
        cx.start("server", move |cx| Arc::clone(&plugin).serve(cx)).healthy().await?;
        let plugin = Arc::clone(&self);
        cx.start("registration", move |cx| Arc::clone(&plugin).register(cx)).healthy().await?;
        cx.healthy();
        cx.cancelled().await;
        Ok(())
    }

    async fn sweep(&self) -> Result<(), RunError> {
        let kubelet = self.settings.kubelet.clone();
        spawn_blocking(move || remove_empty_volume_data(&kubelet)).await??;
        Ok(())
    }

    /// Detaches the loop devices that a killed plugin left attached. An error does not stop the plugin: the next call
    /// for the volume uses the device. Returns the volumes for which [`Plugin::watch`] tries again.
    async fn release_idle(self: &Arc<Self>) -> Result<Vec<VolumeId>, RunError> {
        let host = Arc::clone(&self.host);
        let idle = match spawn_blocking(move || host.idle()).await? {
            Ok(idle) => idle,
            Err(reason) => {
                warn!(error = &reason as &dyn std::error::Error, "cannot list unused loop devices");
                return Ok(Vec::new());
            }
        };
        let mut attached = Vec::new();
        for volume in idle {
            attached.extend(Arc::clone(self).release(volume).await.err());
        }
        Ok(attached)
    }

    /// Detaches the devices of a volume that have no target. `Err`: a device may still be attached.
    async fn release(self: Arc<Self>, volume: VolumeId) -> Result<VolumeId, VolumeId> {
        // The lock precedes the permit, as in calls.
        let (host, guard) = (Arc::clone(&self.host), self.locks.lock(&volume).await);
        let work = move || {
            let _guard = guard;
            match host.release(&volume) {
                // An unpublish whose detach failed has announced nothing, and its next try may find no device.
                Ok(true) => host.unpublished(&volume),
                // A publish was in progress, or another call has detached the device.
                Ok(false) => {}
                Err(reason) => {
                    let error: &dyn std::error::Error = &reason;
                    warn!(%volume, error, "loop device stays attached, will retry");
                    return Err(volume);
                }
            }
            Ok(volume)
        };
        self.operations.run(work).await
    }

    /// Opens the loop devices of all targets, so that pods cannot detach them. An error does not stop the plugin:
    /// [`Plugin::watch`] tries again.
    async fn adopt(&self) -> Result<Adoption, JoinError> {
        let host = Arc::clone(&self.host);
        match spawn_blocking(move || host.adopt()).await? {
            Ok(0) => Ok(Adoption::Complete),
            Ok(_) => Ok(Adoption::Incomplete),
            Err(reason) => {
                error!(error = &reason as &dyn std::error::Error, "cannot list published loop devices");
                Ok(Adoption::Incomplete)
            }
        }
    }

    /// Revokes detaches by pods, and detaches devices that a failed call left without a target. A slow detach does not
    /// delay this loop. A failed one is repeated: the host has closed the device, and does not report it again.
    async fn watch(
        self: Arc<Self>,
        cx: Context,
        mut adoption: Adoption,
        attached: Vec<VolumeId>,
    ) -> Result<(), JoinError> {
        let mut looks = interval(self.settings.watch);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut releases, mut releasing) = (JoinSet::new(), BTreeSet::new());
        let mut adoptions = Backoff::default();
        let mut attached: BTreeMap<_, _> = attached.into_iter().map(|volume| (volume, Backoff::default())).collect();
        cx.healthy();
        loop {
            tokio::select! {
                () = cx.cancelled() => break,
                Some(released) = releases.join_next() => {
                    match released? {
                        Ok(volume) => {
                            releasing.remove(&volume);
                            attached.remove(&volume);
                        }
                        Err(volume) => {
                            releasing.remove(&volume);
                            attached.entry(volume).or_default();
                        }
                    }
                    continue;
                }
                _ = looks.tick() => {}
            }
            if adoption == Adoption::Incomplete && adoptions.is_due() {
                adoption = self.adopt().await?;
            }
            let host = Arc::clone(&self.host);
            let WatchReport { revoked, idle, held } = match spawn_blocking(move || host.watch()).await? {
                Ok(watched) => watched,
                Err(reason) => {
                    warn!(error = &reason as &dyn std::error::Error, "cannot check the loop devices");
                    continue;
                }
            };
            self.count(&revoked, &held);
            let due = attached.iter_mut().filter_map(|(volume, pauses)| pauses.is_due().then(|| volume.clone()));
            for volume in idle.into_iter().chain(due) {
                if releasing.insert(volume.clone()) {
                    releases.spawn(Arc::clone(&self).release(volume));
                }
            }
        }
        // Running detaches end first: the plugin has a device open until it is detached.
        while let Some(released) = releases.join_next().await {
            drop(released?);
        }
        Ok(())
    }

    /// Reads the faults of the disk, which conditions report. The provisioner reads them too, but needs the API server,
    /// and does not run beside external-provisioner.
    async fn read_faults(self: Arc<Self>, cx: Context) -> Result<(), JoinError> {
        let mut looks = interval(FAULTS);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        cx.healthy();
        loop {
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                _ = looks.tick() => {}
            }
            let host = Arc::clone(&self.host);
            if let Err(reason) = spawn_blocking(move || host.read_faults()).await? {
                warn!(error = &reason as &dyn std::error::Error, "cannot read the faults of the disk");
            }
        }
    }

    fn count(&self, revoked: &[RevokedDetach], held: &BTreeSet<VolumeId>) {
        self.revoked.send_if_modified(|counts| {
            counts.retain(|volume, _| held.contains(volume));
            for RevokedDetach { volume, device } in revoked {
                warn!(%volume, %device, "a process tried to detach a published loop device; revoked");
                self.metrics.revoked();
                *counts.entry(volume.clone()).or_default() += 1;
            }
            !revoked.is_empty()
        });
    }

    /// Number of revoked detaches of each volume that has a device now.
    pub fn revoked(&self) -> watch::Receiver<BTreeMap<VolumeId, u64>> {
        self.revoked.subscribe()
    }

    /// Closes the descriptors of all loop devices. Call it after the services have stopped, before the node's disks are
    /// unmounted.
    pub fn close(&self) {
        self.host.close();
    }

    /// Serves CSI on `plugins/DRIVER.sock`. At the end, completes running calls, including those that the kubelet
    /// canceled.
    pub async fn serve(self: Arc<Self>, cx: Context) -> Result<(), ServeError> {
        let Settings { kubelet, node, version, .. } = &self.settings;
        let controller = self.controller.as_ref().map(|ControlledVolumes { volumes, provisioner }| {
            Arc::new(ControllerService {
                host: Arc::clone(&self.host),
                node: node.clone(),
                volumes: Arc::clone(volumes),
                provisioner: *provisioner,
                locks: self.locks.clone(),
                changes: Arc::clone(&self.changes),
                measurements: self.measurements.clone(),
            })
        });
        let services: &[_] = match &self.controller {
            Some(ControlledVolumes { volumes, .. }) if volumes.takes_groups() => {
                &[service::Type::ControllerService, service::Type::GroupControllerService]
            }
            Some(_) => &[service::Type::ControllerService],
            None => &[],
        };
        let (services, takes_groups) = (services.to_vec(), services.contains(&service::Type::GroupControllerService));
        let identity = IdentityService {
            version: version.clone(),
            services,
            host: Arc::clone(&self.host),
            measurements: self.measurements.clone(),
        };
        let node = NodeService {
            node: node.clone(),
            kubelet: kubelet.clone(),
            host: Arc::clone(&self.host),
            locks: self.locks.clone(),
            looks: self.looks.clone(),
            operations: self.operations.clone(),
        };
        let identity = IdentityServer::new(identity).max_decoding_message_size(MAX_MESSAGE);
        let node = NodeServer::new(node).max_decoding_message_size(MAX_MESSAGE);
        let mut routes = Routes::new(Observed::new(identity, self.metrics.clone()))
            .add_service(Observed::new(node, self.metrics.clone()));
        if let Some(controller) = controller {
            if takes_groups {
                let groups =
                    GroupControllerServer::from_arc(Arc::clone(&controller)).max_decoding_message_size(MAX_MESSAGE);
                routes = routes.add_service(Observed::new(groups, self.metrics.clone()));
            }
            let controller = ControllerServer::from_arc(controller).max_decoding_message_size(MAX_MESSAGE);
            routes = routes.add_service(Observed::new(controller, self.metrics.clone()));
        }
        let socket = Socket::bind(self.address(SOCKETS, socket_name())).await?;
        cx.healthy();
        socket.serve(routes, Arc::default(), || {}, cx.cancelled()).await?;
        self.locks.finish().await;
        Ok(())
    }

    /// Serves registration on `plugins_registry/DRIVER-reg.sock`. Creates the socket again after [`Settings::patience`]
    /// without success, and on [`Plugin::register_again`].
    pub async fn register(self: Arc<Self>, cx: Context) -> Result<(), ServeError> {
        let endpoint = self.address(SOCKETS, socket_name()).path().display().to_string();
        let (state, seen) = watch::channel(RegistrationState::Unregistered);
        let state = Arc::new(state);
        let service = RegistrationServer::new(RegistrationService { endpoint, state: Arc::clone(&state) });
        let routes = Routes::new(service.max_decoding_message_size(MAX_MESSAGE));
        let socket = Socket::bind(self.address(REGISTRATION_SOCKETS, registration_name())).await?;
        cx.healthy();
        let recreate = Arc::new(Notify::new());
        let ask = async {
            loop {
                tokio::select! {
                    () = unregistered_for(seen.clone(), self.settings.patience) => {
                        warn!("plugin is not registered, creating the registration socket again");
                    }
                    () = self.again.notified() => {
                        info!("registration requested, creating the registration socket again");
                    }
                }
                recreate.notify_one();
            }
        };
        // The kubelet deregisters a plugin whose socket is removed.
        let created = || {
            state.send_replace(RegistrationState::Unregistered);
        };
        tokio::select! {
            served = socket.serve(routes, Arc::clone(&recreate), created, cx.cancelled()) => Ok(served?),
            () = ask => Ok(()),
        }
    }

    /// Creates the registration socket again. Call it when the node's CSINode object has lost the driver.
    pub fn register_again(&self) {
        self.again.notify_one();
    }

    fn address(&self, directory: &'static str, name: String) -> Address {
        let Settings { kubelet, peer, look, grace, .. } = &self.settings;
        Address { parent: kubelet.clone(), directory, name, peer: *peer, look: *look, grace: *grace }
    }
}

fn socket_name() -> String {
    format!("{}.sock", volume::DRIVER_NAME)
}

fn registration_name() -> String {
    format!("{}-reg.sock", volume::DRIVER_NAME)
}
