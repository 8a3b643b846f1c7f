//! A booted node.

use crate::console::Console;
use crate::error::{BootError, ShutdownError, StepError};
use crate::event::Event;
use crate::guest::Uplink;
use crate::node_boot::{Access, NodeBoot};
use crate::options::Options;
use crate::power;
use kube::Client;
use qemu::{Cable, Vm};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinSet, spawn_blocking};

/// Time limit for a guest to stop its pods and services and to unmount its disk.
pub const SHUTDOWN_LIMIT: Duration = Duration::from_secs(120);

/// The administrator's kubeconfig in the directory of a saved node.
pub(crate) const CREDENTIALS: &str = "kubeconfig";

/// A running node. Dropping the node kills the guest.
pub struct Node {
    pub(crate) name: String,
    pub(crate) vm: Arc<Vm>,
    pub(crate) uplink: Option<Uplink>,
    pub(crate) access: Access,
    pub(crate) console: PathBuf,
    /// One task that reads announcements until the guest ends.
    pub(crate) announcements: JoinSet<Option<String>>,
}

impl Node {
    /// Boots one node and waits until it is Ready. Dropping the future kills the guest.
    pub async fn boot(options: &Options, mut on_event: impl FnMut(&Event)) -> Result<Self, BootError> {
        let mut boot = NodeBoot::alone(options, &mut on_event).await?;
        let access = boot.until_ready(&mut on_event).await?;
        Ok(boot.into_node(access))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn client(&self) -> Client {
        self.access.client.clone()
    }

    /// Path of the kubeconfig of [`Node::client`]. The caller removes the file.
    pub fn kubeconfig(&self) -> &Path {
        &self.access.kubeconfig
    }

    pub fn api_port(&self) -> u16 {
        self.access.api
    }

    pub fn console(&self) -> &Path {
        &self.console
    }

    /// Connection to the other nodes. `None` for a single node that is neither savable nor restored.
    pub fn cable(&self) -> Option<Cable> {
        self.uplink.as_ref().map(|uplink| uplink.plug.cable())
    }

    /// Waits until the guest ends by itself, and returns the reason. Cancel-safe.
    pub async fn ended(&mut self) -> String {
        let fatal = match self.announcements.join_next().await {
            Some(Ok(fatal)) => fatal,
            Some(Err(_)) | None => None,
        };
        let vm = Arc::clone(&self.vm);
        let exit = spawn_blocking(move || vm.wait(power::QEMU_EXIT)).await;
        match (fatal, exit) {
            (Some(message), _) => message,
            (None, Ok(Some(exit))) => format!("QEMU ended with {exit}; {}", Console::read(&self.console)),
            (None, _) => format!("the guest closed the announcement port; {}", Console::read(&self.console)),
        }
    }

    /// Writes a screenshot of the machine's graphics device to a new file, in the PPM format.
    pub async fn screenshot(&self, path: &Path) -> Result<(), StepError> {
        let (vm, arguments) = (Arc::clone(&self.vm), json!({"filename": path}));
        let taken = spawn_blocking(move || vm.execute("screendump", arguments)).await;
        let taken = taken.map_err(StepError::of("take a screenshot"))?;
        taken.map(drop).map_err(StepError::of("take a screenshot"))
    }

    pub fn has_ended(&self) -> bool {
        self.vm.exit().is_some()
    }

    /// Presses the power button and waits until the guest has powered off. After `limit`, or if the future is dropped,
    /// the guest is killed.
    pub async fn shut_down(self, limit: Duration) -> Result<(), ShutdownError> {
        // Keep the network until the guest has powered off.
        let _uplink = self.uplink;
        power::off(self.vm, limit, &self.console).await
    }

    /// Saves a node that was booted with [`Origin::Savable`](crate::Origin::Savable) to that directory, and ends the
    /// guest. Nodes with the origin [`Origin::Saved`](crate::Origin::Saved) continue from this state.
    pub async fn save(self) -> Result<(), StepError> {
        let vm =
            Arc::into_inner(self.vm).ok_or("another task uses the guest").map_err(StepError::of("save the node"))?;
        let credentials = self.access.kubeconfig;
        let save = move || {
            let saved = vm.save().map_err(StepError::of("save the guest"))?;
            let path = saved.dir().join(CREDENTIALS);
            // `copy` keeps the mode of the original, which contains a key.
            std::fs::copy(credentials, &path).map_err(StepError::of(format!("write {}", path.display())))
        };
        spawn_blocking(save).await.map_err(StepError::of("save the guest"))?.map(drop)
    }

    /// Kills the guest. Data that the guest did not flush may be lost.
    pub async fn power_cut(self) {
        power::cut(self.vm).await;
    }
}
