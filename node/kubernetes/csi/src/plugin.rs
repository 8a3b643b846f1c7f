//! The plugin as a service of the node.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::unistd::Uid;
use prometheus::Registry;
use proto::csi::identity_server::IdentityServer;
use proto::csi::node_server::NodeServer;
use proto::registration::registration_server::RegistrationServer;
use supervisor::Context;
use tokio::sync::{Notify, OnceCell, watch};
use tokio::task::{JoinError, JoinSet, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval};
use tonic::service::Routes;
use tracing::{error, info, warn};
use volume::{VolumeId, VolumeLocks};

use crate::host::{Host, Revoked, Watched};
use crate::identity::IdentityService;
use crate::leftovers::{LeftoversError, remove_empty_volume_data};
use crate::metrics::{LoopDevices, Metrics};
use crate::node::NodeService;
use crate::registration::{RegisterError, RegistrationService, Standing, outside_for};
use crate::server::{Address, MAX_MESSAGE, ServeError, Socket};

/// Below kubelet's directory.
const SOCKETS: &str = "plugins";
const REGISTRATION_SOCKETS: &str = "plugins_registry";

/// What the plugin has to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// kubelet's root directory, an absolute path without symbolic links.
    pub kubelet: PathBuf,
    /// Name of the node.
    pub node: String,
    /// Version of the build.
    pub version: String,
    /// The only user that may connect.
    pub peer: Uid,
    /// What kubelet does when the plugin starts.
    pub start: Start,
    /// How long kubelet may take to register the plugin before it is asked again.
    pub patience: Duration,
    /// How often it is looked whether the sockets are still in their places.
    pub look: Duration,
    /// How often the published loop devices are looked at.
    pub watch: Duration,
    /// How long a stop waits for clients to take their answers. Calls that run are finished in any case.
    pub grace: Duration,
}

impl Settings {
    /// For kubelet at `kubelet`, which runs as root.
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

/// Whether kubelet runs when the plugin starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It does not, as on a node of ours: what a power cut left in its directory is removed first.
    BeforeKubelet,
    /// It does: a file that it is writing may be as empty as one that a power cut left, and both are left alone.
    BesideKubelet,
}

/// Whether the devices of all targets are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Adoption {
    Complete,
    /// It is tried again.
    Incomplete,
}

/// Between two attempts to hold the devices of all targets, in intervals of [`Settings::watch`]: 5 minutes.
const LONGEST_PAUSE: u32 = 60;

/// The plugin ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// kubelet's leftovers of a power cut could not be removed.
    #[error(transparent)]
    Leftovers(#[from] LeftoversError),
    /// The thread that does it panicked.
    #[error("removing what was left over ended early")]
    Panicked(#[from] JoinError),
    /// A part of it was stopped.
    #[error(transparent)]
    Ended(#[from] supervisor::Ended),
}

/// The CSI plugin: everything that outlives a restart of its sockets.
#[derive(Debug)]
pub struct Plugin<H> {
    settings: Settings,
    host: Arc<H>,
    locks: VolumeLocks,
    metrics: Metrics,
    again: Notify,
    swept: OnceCell<()>,
    revoked: watch::Sender<BTreeMap<VolumeId, u64>>,
}

impl<H: Host> Plugin<H> {
    /// Registers its metrics.
    ///
    /// # Errors
    /// A metric of these names exists already.
    pub fn new(settings: Settings, host: H, registry: &Registry) -> Result<Self, prometheus::Error> {
        let (metrics, host) = (Metrics::register(registry)?, Arc::new(host));
        let counting = Arc::clone(&host);
        registry.register(Box::new(LoopDevices::new(move || counting.attached().ok())?))?;
        let (locks, again, swept, revoked) =
            (VolumeLocks::default(), Notify::new(), OnceCell::new(), watch::Sender::default());
        Ok(Self { settings, host, locks, metrics, again, swept, revoked })
    }

    /// The whole plugin as a supervised service: removes what a power cut left if kubelet does not run yet, opens the loop
    /// devices of all targets, detaches those that no target has, then serves both sockets. Healthy when kubelet can find
    /// it.
    ///
    /// # Errors
    /// [`RunError`].
    pub async fn run(self: Arc<Self>, cx: Context) -> Result<(), RunError> {
        // Before kubelet runs, and not again when this service restarts: what kubelet is writing is empty for a moment.
        match self.settings.start {
            Start::BeforeKubelet => drop(self.swept.get_or_try_init(|| self.sweep()).await?),
            Start::BesideKubelet => {}
        }
        let adoption = self.adopt().await?;
        self.release_idle().await?;
        let plugin = Arc::clone(&self);
        cx.start("devices", move |cx| Arc::clone(&plugin).watch(cx, adoption));
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

    /// Detaches the loop devices that an unclean end left attached. Those are not lost: the next call for their volumes
    /// uses them. So what fails here stops nothing.
    async fn release_idle(self: &Arc<Self>) -> Result<(), RunError> {
        let host = Arc::clone(&self.host);
        let idle = match spawn_blocking(move || host.idle()).await? {
            Ok(idle) => idle,
            Err(reason) => {
                warn!(error = &reason as &dyn std::error::Error, "cannot see which loop devices are left over");
                return Ok(());
            }
        };
        for volume in idle {
            Arc::clone(self).release(volume).await?;
        }
        Ok(())
    }

    /// Detaches the loop devices of a volume that no target has by then.
    async fn release(self: Arc<Self>, volume: VolumeId) -> Result<VolumeId, JoinError> {
        let (host, guard) = (Arc::clone(&self.host), self.locks.lock(&volume).await);
        spawn_blocking(move || {
            let _guard = guard;
            if let Err(reason) = host.release(&volume) {
                warn!(%volume, error = &reason as &dyn std::error::Error, "loop device stays attached");
            }
            volume
        })
        .await
    }

    /// Opens the loop devices of all targets, as the plugin before this one had them open. Without it a pod can detach the
    /// device that it has, but no volume is lost: so what fails here stops nothing, and [`Plugin::watch`] tries again.
    async fn adopt(&self) -> Result<Adoption, JoinError> {
        let host = Arc::clone(&self.host);
        match spawn_blocking(move || host.adopt()).await? {
            Ok(0) => Ok(Adoption::Complete),
            Ok(_) => Ok(Adoption::Incomplete),
            Err(reason) => {
                error!(error = &reason as &dyn std::error::Error, "cannot see which loop devices are published");
                Ok(Adoption::Incomplete)
            }
        }
    }

    /// Looks after the loop devices until it is cancelled: revokes detaches by pods, and detaches devices that a call
    /// which failed left without a target. A slow detach delays nothing else.
    async fn watch(self: Arc<Self>, cx: Context, mut adoption: Adoption) -> Result<(), JoinError> {
        let mut looks = interval(self.settings.watch);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut releases, mut releasing) = (JoinSet::new(), BTreeSet::new());
        let (mut pause, mut left) = (1, 2);
        cx.healthy();
        loop {
            tokio::select! {
                () = cx.cancelled() => break,
                Some(released) = releases.join_next() => {
                    releasing.remove(&released??);
                    continue;
                }
                _ = looks.tick() => {}
            }
            if adoption == Adoption::Incomplete {
                left -= 1;
                if left == 0 {
                    adoption = self.adopt().await?;
                    pause = LONGEST_PAUSE.min(pause * 2);
                    left = pause;
                }
            }
            let host = Arc::clone(&self.host);
            let Watched { revoked, idle, held } = match spawn_blocking(move || host.watch()).await? {
                Ok(watched) => watched,
                Err(reason) => {
                    warn!(error = &reason as &dyn std::error::Error, "cannot look after the loop devices");
                    continue;
                }
            };
            self.count(&revoked, &held);
            for volume in idle {
                if releasing.insert(volume.clone()) {
                    releases.spawn(Arc::clone(&self).release(volume));
                }
            }
        }
        // A device that is being detached is open.
        while let Some(released) = releases.join_next().await {
            released??;
        }
        Ok(())
    }

    /// Counts revoked detaches, and forgets the counts of volumes without a device.
    fn count(&self, revoked: &[Revoked], held: &BTreeSet<VolumeId>) {
        self.revoked.send_if_modified(|counts| {
            counts.retain(|volume, _| held.contains(volume));
            for Revoked { volume, device } in revoked {
                warn!(%volume, %device, "a process tried to detach a published loop device; revoked");
                self.metrics.revoked();
                *counts.entry(volume.clone()).or_default() += 1;
            }
            !revoked.is_empty()
        });
    }

    /// How many detaches by other processes were revoked, by volume that has a device now.
    pub fn revoked(&self) -> watch::Receiver<BTreeMap<VolumeId, u64>> {
        self.revoked.subscribe()
    }

    /// Closes the descriptors of all loop devices: after the services have stopped, before what is mounted on the
    /// node's disks is unmounted.
    pub fn close(&self) {
        self.host.close();
    }

    /// Serves CSI on `plugins/DRIVER.sock`. Stopped, it finishes the calls that run, also those that kubelet gave up.
    ///
    /// # Errors
    /// [`ServeError`].
    pub async fn serve(self: Arc<Self>, cx: Context) -> Result<(), ServeError> {
        let Settings { kubelet, node, version, .. } = &self.settings;
        let identity =
            IdentityService { version: version.clone(), host: Arc::clone(&self.host), metrics: self.metrics.clone() };
        let node = NodeService {
            node: node.clone(),
            kubelet: kubelet.clone(),
            host: Arc::clone(&self.host),
            locks: self.locks.clone(),
            metrics: self.metrics.clone(),
        };
        let routes = Routes::new(IdentityServer::new(identity).max_decoding_message_size(MAX_MESSAGE))
            .add_service(NodeServer::new(node).max_decoding_message_size(MAX_MESSAGE));
        let socket = Socket::bind(self.address(SOCKETS, socket_name())).await?;
        cx.healthy();
        socket.serve(routes, Arc::default(), || {}, cx.cancelled()).await?;
        self.locks.finish().await;
        Ok(())
    }

    /// Serves registration on `plugins_registry/DRIVER-reg.sock`. The socket is made anew after
    /// [`Settings::patience`] without success, and when [`Plugin::register_again`] says so.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub async fn register(self: Arc<Self>, cx: Context) -> Result<(), RegisterError> {
        let endpoint = self.address(SOCKETS, socket_name()).path().display().to_string();
        let (standing, seen) = watch::channel(Standing::Outside);
        let standing = Arc::new(standing);
        let service = RegistrationServer::new(RegistrationService { endpoint, standing: Arc::clone(&standing) });
        let routes = Routes::new(service.max_decoding_message_size(MAX_MESSAGE));
        let socket = Socket::bind(self.address(REGISTRATION_SOCKETS, registration_name())).await?;
        cx.healthy();
        let anew = Arc::new(Notify::new());
        let ask = async {
            loop {
                tokio::select! {
                    () = outside_for(seen.clone(), self.settings.patience) => {
                        warn!("no registration yet, its socket is made anew");
                    }
                    () = self.again.notified() => info!("registration is asked for, its socket is made anew"),
                }
                anew.notify_one();
            }
        };
        // kubelet forgets a plugin whose socket goes.
        let made = || {
            standing.send_replace(Standing::Outside);
        };
        tokio::select! {
            served = socket.serve(routes, Arc::clone(&anew), made, cx.cancelled()) => Ok(served?),
            () = ask => Ok(()),
        }
    }

    /// Makes the registration socket anew: for whoever sees that the node's CSINode object has lost the driver.
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
