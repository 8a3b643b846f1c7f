//! A node that has joined a cluster.

use crate::error::{BootError, ClusterError, ShutdownError};
use crate::event::Event;
use crate::guest::{Host, Machine, Surroundings};
use crate::node::Node;
use crate::rising::{Access, Rising, Role, Started};
use crate::site::Site;
use k8s_openapi::jiff::Timestamp;
use qemu::Segment;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;

/// A worker of a [`Cluster`](crate::Cluster), which can be off, and be booted again on its disk.
pub struct Worker {
    seat: Arc<Seat>,
    access: Access,
    node: Option<Node>,
}

/// What a worker is started with, again and again.
pub(crate) struct Seat {
    pub(crate) site: Site,
    pub(crate) host: Host,
    pub(crate) machine: Machine,
    pub(crate) segment: Arc<Segment>,
    pub(crate) configuration: String,
}

impl Seat {
    pub(crate) async fn start(
        self: Arc<Self>,
        access: Access,
        on_event: impl FnMut(&Event),
    ) -> Result<Rising, BootError> {
        let seat = Arc::clone(&self);
        let start = move || -> Result<Started, BootError> {
            let begun = Timestamp::now();
            let surroundings = Surroundings::Segment(&seat.segment);
            let guest = seat.machine.start(&seat.host, &seat.site, &seat.configuration, &surroundings)?;
            Ok(Started { host: seat.host.clone(), guest, begun, role: Role::Worker(access) })
        };
        let started = spawn_blocking(start).await.map_err(BootError::Panicked)??;
        Rising::of(&self.site, started, on_event)
    }
}

impl Worker {
    pub(crate) fn new(seat: Arc<Seat>, access: Access, node: Node) -> Self {
        Self { seat, access, node: Some(node) }
    }

    /// Its name in the cluster.
    pub fn name(&self) -> &str {
        &self.seat.site.name
    }

    /// The node, unless it is off.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    pub(crate) fn node_mut(&mut self) -> Option<&mut Node> {
        self.node.as_mut()
    }

    pub(crate) fn into_node(self) -> Option<Node> {
        self.node
    }

    /// The console's log, of its last boot.
    pub fn console(&self) -> PathBuf {
        self.seat.site.console()
    }

    /// Every Ethernet frame that it has sent or got since its last start, as pcap has it; if that was asked for.
    pub fn capture(&self) -> Option<&Path> {
        self.seat.site.capture.as_deref()
    }

    /// Boots it again on its disk, with the configuration of its first boot, and returns when the cluster calls it
    /// ready. Nothing, if it runs.
    ///
    /// # Errors
    /// [`ClusterError::Boot`]: it is off.
    pub async fn boot(&mut self, mut on_event: impl FnMut(&Event)) -> Result<(), ClusterError> {
        if self.node.as_ref().is_some_and(|node| !node.has_ended()) {
            return Ok(());
        }
        self.node = None;
        let failed = || ClusterError::of(self.name());
        let start = Arc::clone(&self.seat).start(self.access.clone(), &mut on_event);
        let mut rising = start.await.map_err(failed())?;
        let access = rising.until_ready(&mut on_event).await.map_err(failed())?;
        self.node = Some(rising.into_node(access));
        Ok(())
    }

    /// As [`Node::shut_down`]; it can be booted again. Nothing, if it is off.
    ///
    /// # Errors
    /// [`ShutdownError::Killed`]: it is off, and its disk is as after a power cut.
    pub async fn shut_down(&mut self, limit: Duration) -> Result<(), ShutdownError> {
        match self.node.take() {
            Some(node) => node.shut_down(limit).await,
            None => Ok(()),
        }
    }

    /// As [`Node::power_cut`]; it can be booted again. Nothing, if it is off.
    pub async fn power_cut(&mut self) {
        if let Some(node) = self.node.take() {
            node.power_cut().await;
        }
    }
}
