//! Nodes that run in QEMU together.

use crate::booting::Booting;
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

/// How often the network between the nodes is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// A control plane and its workers, which reach each other. Dropping it is a power cut.
///
/// All are in one Ethernet segment, see [`Segment`]. Of a cluster without workers the control plane is as
/// [`Node::boot`] makes it.
pub struct Cluster {
    control_plane: Node,
    workers: Vec<Worker>,
    segment: Option<Arc<Segment>>,
}

/// What ended by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// A node by its name, or the network between the nodes.
    pub what: String,
    /// The reason.
    pub reason: String,
}

impl Cluster {
    /// Boots all nodes and returns when the cluster calls them ready: [`Booting`] without a way to end in between. An
    /// event comes with the name of its node.
    ///
    /// Cancel-safe: the guests end when the future is dropped.
    ///
    /// # Errors
    /// [`ClusterError`]. No guest runs then, and nothing is left but the logs and data files that were asked for.
    pub async fn boot(options: &ClusterOptions, on_event: impl Fn(&str, &Event)) -> Result<Self, ClusterError> {
        let mut booting = Booting::start(options, &on_event).await?;
        let ready = booting.until_ready(&on_event).await?;
        Ok(booting.into_cluster(ready))
    }

    pub(crate) fn new(control_plane: Node, workers: Vec<Worker>, segment: Option<Arc<Segment>>) -> Self {
        Self { control_plane, workers, segment }
    }

    /// The node with the API server.
    pub fn control_plane(&self) -> &Node {
        &self.control_plane
    }

    /// All others, by their numbers.
    pub fn workers(&self) -> &[Worker] {
        &self.workers
    }

    /// To end one, or to boot it again.
    pub fn workers_mut(&mut self) -> &mut [Worker] {
        &mut self.workers
    }

    /// A client with an administrator's rights.
    pub fn client(&self) -> Client {
        self.control_plane.client()
    }

    /// Names of the nodes that run, the control plane first.
    pub fn names(&self) -> Vec<String> {
        let nodes = std::iter::once(&self.control_plane).chain(self.workers.iter().filter_map(Worker::node));
        nodes.filter(|node| !node.has_ended()).map(|node| node.name().to_owned()).collect()
    }

    /// Returns when something ended by itself: a guest, or their network. A worker that was ended by [`Worker`]'s calls
    /// is not watched. Cancel-safe.
    pub async fn ended(&mut self) -> Ended {
        let workers = self.workers.iter_mut().filter_map(Worker::node_mut);
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

    /// Shuts all nodes down in order, as [`Node::shut_down`] does it: first the workers, then the control plane. One
    /// that has ended by itself is passed over. If the future is dropped, those that still run are cut off.
    ///
    /// # Errors
    /// [`ClusterShutdownError`]: one was killed. All have ended.
    pub async fn shut_down(self, limit: Duration) -> Result<(), ClusterShutdownError> {
        let down = |node: Node| {
            let name = node.name().to_owned();
            async move {
                let ended = if node.has_ended() { Ok(()) } else { node.shut_down(limit).await };
                (name, ended)
            }
        };
        let workers = self.workers.into_iter().filter_map(Worker::into_node).map(down);
        off(workers, down(self.control_plane)).await
    }
}

/// Ends the workers together, then the control plane, which hears of what they ended.
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

/// Returns when there is no network any more; never, if the only node has its own.
pub(crate) async fn lost(segment: Option<&Segment>) -> Exit {
    let Some(segment) = segment else { return std::future::pending().await };
    let mut looks = interval(LOOK);
    loop {
        looks.tick().await;
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
    async fn the_control_plane_ends_last_and_whoever_was_killed_is_named() {
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
