//! The plugin as a service of the node.

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
use tokio::task::{JoinError, spawn_blocking};
use tonic::service::Routes;
use tracing::{info, warn};

use crate::host::Host;
use crate::identity::IdentityService;
use crate::leftovers::{LeftoversError, remove_empty_volume_data};
use crate::metrics::Metrics;
use crate::node::NodeService;
use crate::registration::{RegisterError, RegistrationService, Standing, outside_for};
use crate::server::{ServeError, Socket};
use crate::turns::Turns;

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
    /// How long kubelet may take to register the plugin before it is asked again.
    pub patience: Duration,
}

impl Settings {
    /// For kubelet at `kubelet`, which runs as root.
    pub fn new(kubelet: impl Into<PathBuf>, node: impl Into<String>, version: impl Into<String>) -> Self {
        Self {
            kubelet: kubelet.into(),
            node: node.into(),
            version: version.into(),
            peer: Uid::from_raw(0),
            patience: Duration::from_secs(30),
        }
    }
}

/// The plugin ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// kubelet's leftovers of a power cut could not be removed.
    #[error(transparent)]
    Leftovers(#[from] LeftoversError),
    /// The thread that does it panicked.
    #[error("removing kubelet's leftovers ended early")]
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
    turns: Turns,
    metrics: Metrics,
    again: Notify,
    swept: OnceCell<()>,
}

impl<H: Host> Plugin<H> {
    /// Registers its metrics.
    ///
    /// # Errors
    /// A metric of these names exists already.
    pub fn new(settings: Settings, host: H, registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Metrics::register(registry)?;
        Ok(Self {
            settings,
            host: Arc::new(host),
            turns: Turns::default(),
            metrics,
            again: Notify::new(),
            swept: OnceCell::new(),
        })
    }

    /// The whole plugin as a supervised service, to be started before kubelet: removes what a power cut left, then
    /// serves both sockets. Healthy when kubelet can find it.
    ///
    /// # Errors
    /// [`RunError`].
    pub async fn run(self: Arc<Self>, cx: Context) -> Result<(), RunError> {
        // Before kubelet runs, and not again when this service restarts: what kubelet is writing is empty for a moment.
        self.swept.get_or_try_init(|| self.sweep()).await?;
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

    /// Serves CSI on `plugins/DRIVER.sock`. Stopped, it finishes the calls that run, also those that kubelet gave up.
    ///
    /// # Errors
    /// [`ServeError`].
    pub async fn serve(self: Arc<Self>, cx: Context) -> Result<(), ServeError> {
        let Settings { kubelet, node, version, peer, .. } = &self.settings;
        let identity =
            IdentityService { version: version.clone(), host: Arc::clone(&self.host), metrics: self.metrics.clone() };
        let node = NodeService {
            node: node.clone(),
            kubelet: kubelet.clone(),
            host: Arc::clone(&self.host),
            turns: self.turns.clone(),
            metrics: self.metrics.clone(),
        };
        let routes = Routes::new(IdentityServer::new(identity)).add_service(NodeServer::new(node));
        let socket = Socket::bind(kubelet, SOCKETS, &socket_name())?;
        cx.healthy();
        socket.serve(*peer, routes, cx.cancelled()).await?;
        self.turns.finish().await;
        Ok(())
    }

    /// Serves registration on `plugins_registry/DRIVER-reg.sock`. The socket is made anew after
    /// [`Settings::patience`] without success, and when [`Plugin::register_again`] says so.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub async fn register(self: Arc<Self>, cx: Context) -> Result<(), RegisterError> {
        let Settings { kubelet, peer, patience, .. } = &self.settings;
        let endpoint = kubelet.join(SOCKETS).join(socket_name()).display().to_string();
        while !cx.is_cancelled() {
            let (standing, seen) = watch::channel(Standing::Outside);
            let service = RegistrationService { endpoint: endpoint.clone(), standing };
            let socket = Socket::bind(kubelet, REGISTRATION_SOCKETS, &registration_name())?;
            cx.healthy();
            let end = async {
                tokio::select! {
                    () = cx.cancelled() => {}
                    () = outside_for(seen, *patience) => warn!("no registration yet, its socket is made anew"),
                    () = self.again.notified() => info!("registration is asked for, its socket is made anew"),
                }
            };
            socket.serve(*peer, Routes::new(RegistrationServer::new(service)), end).await?;
        }
        Ok(())
    }

    /// Makes the registration socket anew: for whoever sees that the node's CSINode object has lost the driver.
    pub fn register_again(&self) {
        self.again.notify_one();
    }
}

fn socket_name() -> String {
    format!("{}.sock", volume::DRIVER_NAME)
}

fn registration_name() -> String {
    format!("{}-reg.sock", volume::DRIVER_NAME)
}
