//! A node that has joined a cluster.

use crate::error::{BootError, ClusterError, ShutdownError, StepError};
use crate::event::Event;
use crate::guest::{GuestNetwork, Host, Machine};
use crate::node::Node;
use crate::node_boot::{Access, NodeBoot, Role, Started};
use crate::spec::NodeSpec;
use k8s_openapi::jiff::Timestamp;
use qemu::Segment;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;

/// A worker of a [`Cluster`](crate::Cluster). An ended worker can boot again with its disk.
pub struct Worker {
    pub(crate) start: Arc<WorkerStart>,
    pub(crate) access: Access,
    /// `None` if the worker is off.
    pub(crate) node: Option<Node>,
}

pub(crate) struct WorkerStart {
    pub(crate) spec: NodeSpec,
    pub(crate) host: Host,
    pub(crate) machine: Machine,
    pub(crate) segment: Arc<Segment>,
    pub(crate) configuration: String,
}

impl WorkerStart {
    pub(crate) async fn start(
        self: Arc<Self>,
        access: Access,
        on_event: impl FnMut(&Event),
    ) -> Result<NodeBoot, BootError> {
        let worker_start = Arc::clone(&self);
        let start = move || -> Result<Started, BootError> {
            let since = Timestamp::now();
            let network = GuestNetwork::Segment(&worker_start.segment);
            let guest = worker_start.machine.start(
                &worker_start.host,
                &worker_start.spec,
                &worker_start.configuration,
                &network,
            )?;
            Ok(Started { host: worker_start.host.clone(), guest, since, role: Role::Worker(access) })
        };
        let started = spawn_blocking(start).await.map_err(StepError::of("start QEMU"))??;
        NodeBoot::of(&self.spec, started, on_event)
    }
}

impl Worker {
    pub fn name(&self) -> &str {
        &self.start.spec.name
    }

    /// Log of the console of the last boot.
    pub fn console(&self) -> PathBuf {
        self.start.spec.console()
    }

    /// File with all Ethernet frames since the last start, in pcap format, if [`Capture`](crate::Capture) is on.
    pub fn capture(&self) -> Option<&Path> {
        self.start.spec.capture.as_deref()
    }

    /// Boots a worker that is off, with its disk and the configuration of its first boot, and waits until the Node is
    /// Ready.
    pub async fn boot(&mut self, mut on_event: impl FnMut(&Event)) -> Result<(), ClusterError> {
        if self.node.as_ref().is_some_and(|node| !node.has_ended()) {
            return Ok(());
        }
        self.node = None;
        let failed = || ClusterError::of(self.name());
        let start = Arc::clone(&self.start).start(self.access.clone(), &mut on_event);
        let mut rising = start.await.map_err(failed())?;
        let access = rising.until_ready(&mut on_event).await.map_err(failed())?;
        self.node = Some(rising.into_node(access));
        Ok(())
    }

    pub async fn shut_down(&mut self, limit: Duration) -> Result<(), ShutdownError> {
        match self.node.take() {
            Some(node) => node.shut_down(limit).await,
            None => Ok(()),
        }
    }
}
