//! A node that runs in QEMU.

use crate::console::Console;
use crate::error::{BootError, SaveError, ShutdownError};
use crate::event::Event;
use crate::guest::Uplink;
use crate::options::Options;
use crate::power;
use crate::rising::{Access, Rising};
use kube::Client;
use qemu::{Cable, Vm};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinSet, spawn_blocking};

/// How long a guest gets to stop its pods and services and to unmount its disk.
pub const SHUTDOWN_LIMIT: Duration = Duration::from_secs(120);

/// The administrator's kubeconfig in the directory of a saved node.
pub(crate) const CREDENTIALS: &str = "kubeconfig";

/// A node that runs. Dropping it is a power cut.
pub struct Node {
    name: String,
    vm: Arc<Vm>,
    uplink: Option<Uplink>,
    access: Access,
    console: PathBuf,
    /// One task that reads announcements until the guest's end.
    rest: JoinSet<Option<String>>,
}

impl Node {
    /// Boots one node without others and returns when the cluster calls it ready: [`Booting`](crate::Booting) without
    /// a way to end in between.
    ///
    /// Cancel-safe: the guest ends when the future is dropped.
    ///
    /// # Errors
    /// [`BootError`]. No guest runs then, and nothing is left but the logs and a data file that was asked for.
    pub async fn boot(options: &Options, mut on_event: impl FnMut(&Event)) -> Result<Self, BootError> {
        let mut rising = Rising::alone(options, &mut on_event).await?;
        let access = rising.until_ready(&mut on_event).await?;
        Ok(rising.into_node(access))
    }

    pub(crate) fn new(
        name: String,
        vm: Arc<Vm>,
        uplink: Option<Uplink>,
        access: Access,
        console: PathBuf,
        rest: JoinSet<Option<String>>,
    ) -> Self {
        Self { name, vm, uplink, access, console, rest }
    }

    /// Its name in the cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A client with an administrator's rights.
    pub fn client(&self) -> Client {
        self.access.client.clone()
    }

    /// The kubeconfig of [`Node::client`]. It is the caller's to remove.
    pub fn kubeconfig(&self) -> &Path {
        &self.access.kubeconfig
    }

    /// Port of 127.0.0.1 that leads to the cluster's API server.
    pub fn api_port(&self) -> u16 {
        self.access.api
    }

    /// The console's log.
    pub fn console(&self) -> &Path {
        &self.console
    }

    /// What connects it to the other nodes, if the cluster was started with several. A node that is saved or restored has
    /// one, too.
    pub fn cable(&self) -> Option<Cable> {
        self.uplink.as_ref().map(|uplink| uplink.plug.cable())
    }

    /// Returns when the guest ended by itself, with the reason. Cancel-safe.
    pub async fn ended(&mut self) -> String {
        let fatal = match self.rest.join_next().await {
            Some(Ok(fatal)) => fatal,
            Some(Err(_)) | None => None,
        };
        let vm = Arc::clone(&self.vm);
        let exit = spawn_blocking(move || vm.wait(power::LAST_WORDS)).await;
        match (fatal, exit) {
            (Some(message), _) => message,
            (None, Ok(Some(exit))) => format!("QEMU ended with {exit}; {}", Console::read(&self.console)),
            (None, _) => format!("the guest closed its port; {}", Console::read(&self.console)),
        }
    }

    /// Whether the guest has ended.
    pub fn has_ended(&self) -> bool {
        self.vm.exit().is_some()
    }

    /// Presses the power button and waits until the guest has powered off. A guest that takes longer
    /// than `limit` is killed. If the future is dropped, the guest is cut off.
    ///
    /// # Errors
    /// [`ShutdownError::Killed`]: the disk is as after a power cut.
    pub async fn shut_down(self, limit: Duration) -> Result<(), ShutdownError> {
        // It has its network until it is off.
        let _uplink = self.uplink;
        power::off(self.vm, limit, &self.console).await
    }

    /// Saves the node, which was booted with [`Origin::Savable`](crate::Origin::Savable), in that directory, and ends
    /// it. Nodes with the origin [`Origin::Saved`](crate::Origin::Saved) continue from here.
    ///
    /// # Errors
    /// [`SaveError`]: the directory holds no saved node.
    pub async fn save(self) -> Result<(), SaveError> {
        let vm = Arc::into_inner(self.vm).ok_or(SaveError::InUse)?;
        let credentials = self.access.kubeconfig;
        let save = move || {
            let saved = vm.save()?;
            let path = saved.dir().join(CREDENTIALS);
            // With the mode of the original: it holds a key.
            std::fs::copy(credentials, &path).map_err(|source| SaveError::Credentials { path, source })
        };
        spawn_blocking(save).await.map_err(SaveError::Panicked)?.map(drop)
    }

    /// Ends the guest at once: what it had not flushed may be lost, as after a power cut.
    pub async fn power_cut(self) {
        power::cut(self.vm).await;
    }
}
