//! A booted cluster.

use crate::cluster_boot::ClusterBoot;
use crate::error::{ClusterError, ClusterShutdownError, ShutdownError};
use crate::event::Event;
use crate::node::Node;
use crate::options::ClusterOptions;
use crate::worker::Worker;
use futures::future::select_all;
use futures::stream::{FuturesUnordered, StreamExt as _};
use kube::Client;
use qemu::{Exit, Segment};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::interval;

const INTERVAL: Duration = Duration::from_millis(500);

/// A control plane and its workers in one Ethernet segment, see [`Segment`]. Dropping the cluster kills the guests.
pub struct Cluster {
    pub(crate) control_plane: Node,
    pub(crate) workers: Vec<Worker>,
    pub(crate) segment: Option<Arc<Segment>>,
}

/// A guest or a network that ended by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// `node NAME`, or the network between the nodes.
    pub what: String,
    pub reason: String,
}

impl Cluster {
    /// Boots all nodes and waits until they are Ready; see [`ClusterBoot`]. If the future is dropped, the guests are
    /// killed.
    pub async fn boot(options: &ClusterOptions, on_event: impl Fn(&str, &Event)) -> Result<Self, ClusterError> {
        let mut boot = ClusterBoot::start(options, &on_event).await?;
        let ready = boot.until_ready(&on_event).await?;
        Ok(boot.into_cluster(ready))
    }

    pub fn control_plane(&self) -> &Node {
        &self.control_plane
    }

    pub fn workers(&self) -> &[Worker] {
        &self.workers
    }

    pub fn workers_mut(&mut self) -> &mut [Worker] {
        &mut self.workers
    }

    pub fn client(&self) -> Client {
        self.control_plane.client()
    }

    /// Names of the running nodes, the control plane first.
    pub fn names(&self) -> Vec<String> {
        let workers = self.workers.iter().filter_map(|worker| worker.node.as_ref());
        let nodes = std::iter::once(&self.control_plane).chain(workers);
        nodes.filter(|node| !node.has_ended()).map(|node| node.name().to_owned()).collect()
    }

    /// Waits until a guest or the network ends by itself. Ignores workers that a method of [`Worker`] ended.
    /// Cancel-safe.
    pub async fn ended(&mut self) -> Ended {
        let workers = self.workers.iter_mut().filter_map(|worker| worker.node.as_mut());
        let nodes = std::iter::once(&mut self.control_plane).chain(workers);
        let ends = nodes.map(|node| {
            Box::pin(async move {
                let reason = node.ended().await;
                Ended { what: format!("node {}", node.name()), reason }
            })
        });
        tokio::select! {
            (ended, ..) = select_all(ends) => ended,
            exit = lost(self.segment.as_deref()) => {
                Ended { what: "the network between the nodes".to_owned(), reason: format!("QEMU ended with {exit}") }
            }
        }
    }

    /// Shuts all running nodes down, the workers before the control plane; see [`Node::shut_down`].
    pub async fn shut_down(self, limit: Duration) -> Result<(), ClusterShutdownError> {
        let down = |node: Node| {
            let name = node.name().to_owned();
            async move {
                let ended = if node.has_ended() { Ok(()) } else { node.shut_down(limit).await };
                (name, ended)
            }
        };
        let workers = self.workers.into_iter().filter_map(|worker| worker.node).map(down);
        off(workers, down(self.control_plane)).await
    }
}

/// Ends the workers together, then the control plane, which receives the last status updates of the workers.
pub(crate) async fn off<Worker, Last>(
    workers: impl Iterator<Item = Worker>,
    control_plane: Last,
) -> Result<(), ClusterShutdownError>
where
    Worker: Future<Output = (String, Result<(), ShutdownError>)>,
    Last: Future<Output = (String, Result<(), ShutdownError>)>,
{
    let mut ended = Vec::new();
    let mut workers: FuturesUnordered<_> = workers.collect();
    while let Some(worker) = workers.next().await {
        ended.push(worker);
    }
    ended.push(control_plane.await);
    let mut failed = ended.into_iter().filter_map(|(node, ended)| Some((node, ended.err()?)));
    match failed.next() {
        Some((node, source)) => Err(ClusterShutdownError { node, source }),
        None => Ok(()),
    }
}

/// Waits until the network between the nodes ends. Without a network, waits forever.
pub(crate) async fn lost(segment: Option<&Segment>) -> Exit {
    let Some(segment) = segment else { return std::future::pending().await };
    let mut ticks = interval(INTERVAL);
    loop {
        ticks.tick().await;
        if let Some(exit) = segment.exit() {
            return exit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::Console;
    use std::cell::RefCell;
    use std::os::unix::process::ExitStatusExt as _;
    use std::path::Path;
    use std::process::ExitStatus;

    #[tokio::test]
    async fn the_control_plane_ends_last_and_errors_name_the_node() {
        let ended = RefCell::new(Vec::new());
        let down = |name: &'static str, signal: i32| {
            let ended = &ended;
            async move {
                tokio::task::yield_now().await;
                ended.borrow_mut().push(name);
                let exit = Exit { status: ExitStatus::from_raw(signal), stderr: String::new() };
                let killed = ShutdownError::Killed { exit, console: Console::read(Path::new("/nowhere")) };
                (name.to_owned(), if signal == 0 { Ok(()) } else { Err(killed) })
            }
        };
        let result = off([down("first", 0), down("second", 9)].into_iter(), down("control plane", 0)).await;
        assert_eq!(result.unwrap_err().node, "second");
        assert_eq!(ended.borrow().len(), 3);
        assert_eq!(ended.borrow().last(), Some(&"control plane"));
    }
}
