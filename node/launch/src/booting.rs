//! A guest that is on its way to become a node.

use crate::console::{Console, Early};
use crate::error::{BootError, ShutdownError};
use crate::event::{Event, Unfinished};
use crate::kubeconfig;
use crate::node::{NAME, Node};
use crate::options::Options;
use crate::power;
use crate::{announcements, guest};
use announce::Announcement;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use qemu::Vm;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{interval, timeout};

use announcements::Announcements;

/// How often the console is looked at, until the node announces what it does.
const LOOK: Duration = Duration::from_millis(100);
/// The stage from which on the node writes to its data disk.
const DATA_DISK: &str = "data-disk";

/// A guest that is on its way to become a node. Dropping it is a power cut.
pub struct Booting {
    vm: Arc<Vm>,
    announcements: Announcements,
    early: Early,
    disk: Disk,
    api: u16,
    console: PathBuf,
    kubeconfig: PathBuf,
    begun: Timestamp,
    limit: Duration,
    unfinished: Unfinished,
}

/// The data disk of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disk {
    /// The guest did not yet open it.
    Untouched,
    /// Its file system may be mounted.
    InUse,
}

/// What [`Booting::until_ready`] found.
pub struct Access {
    client: Client,
}

impl Booting {
    /// Checks the machine and starts the guest.
    ///
    /// # Errors
    /// [`BootError`]. No guest runs then, and nothing is left but the logs and a data file that was asked for.
    pub async fn start(options: &Options, mut on_event: impl FnMut(&Event)) -> Result<Self, BootError> {
        let begun = Timestamp::now();
        let console = options.logs.join("console.log");
        let (owned, log) = (options.clone(), console.clone());
        let guest = spawn_blocking(move || guest::start(&owned, &log)).await.map_err(BootError::Panicked)??;
        let (early, first) = Early::begin(&options.boot, &console);
        let mut unfinished = Unfinished::default();
        for event in [Event::Started { version: guest.version, accelerator: guest.accelerator }, first] {
            unfinished.note(&event);
            on_event(&event);
        }
        Ok(Self {
            vm: Arc::new(guest.vm),
            announcements: announcements::of(guest.port)?,
            early,
            disk: Disk::Untouched,
            api: guest.api,
            console,
            kubeconfig: options.state.join("kubeconfig"),
            begun,
            limit: options.limit,
            unfinished,
        })
    }

    /// Waits until the cluster calls the node ready.
    ///
    /// Cancel-safe: the guest goes on when the future is dropped.
    ///
    /// # Errors
    /// [`BootError`]: it does not become ready.
    pub async fn until_ready(&mut self, on_event: impl FnMut(&Event)) -> Result<Access, BootError> {
        let limit = self.limit;
        match timeout(limit, self.follow(on_event)).await {
            Ok(result) => result,
            Err(_) => {
                let console = Console::read(&self.console);
                Err(BootError::Late { limit, unfinished: self.unfinished.clone(), console })
            }
        }
    }

    async fn follow(&mut self, mut on_event: impl FnMut(&Event)) -> Result<Access, BootError> {
        let kubeconfig = loop {
            if let Some(kubeconfig) = self.next(&mut on_event).await? {
                break kubeconfig;
            }
        };
        self.tell(vec![Event::Answers], &mut on_event);
        let kubeconfig = kubeconfig::from_outside(&kubeconfig, self.api)?;
        kubeconfig::write(&kubeconfig, &self.kubeconfig)?;
        let client = kubeconfig::client(kubeconfig).await?;

        let nodes: Api<core::Node> = Api::all(client.clone());
        let begun = self.begun;
        let ready =
            await_condition(nodes, NAME, move |node: Option<&core::Node>| node.is_some_and(|it| is_ready(it, begun)));
        let mut ready = std::pin::pin!(ready);
        loop {
            tokio::select! {
                result = &mut ready => {
                    result.map_err(|error| BootError::Watch(Box::new(error)))?;
                    self.tell(vec![Event::NodeReady], &mut on_event);
                    return Ok(Access { client });
                }
                // Credentials are announced again with a renewed certificate: the first is valid for long enough.
                announced = self.next(&mut on_event) => drop(announced?),
            }
        }
    }

    /// Follows to the next announcement, which may be a kubeconfig. Cancel-safe.
    async fn next(&mut self, on_event: &mut impl FnMut(&Event)) -> Result<Option<String>, BootError> {
        let mut looks = interval(LOOK);
        let announcement = loop {
            tokio::select! {
                announcement = announcements::next(&mut self.announcements, &self.vm, &self.console) => break announcement?,
                _ = looks.tick(), if !self.early.is_over() => {
                    // What the console does not show is told by the node.
                    let events = self.early.look().unwrap_or_default();
                    self.tell(events, on_event);
                }
            }
        };
        let passed = self.early.rest();
        self.tell(passed, on_event);
        match announcement {
            Announcement::Stage { name, state, .. } => {
                if name == DATA_DISK {
                    self.disk = Disk::InUse;
                }
                self.tell(vec![Event::Stage { name, state }], on_event);
                Ok(None)
            }
            Announcement::Credentials { kubeconfig } => Ok(Some(kubeconfig)),
            Announcement::Fatal { message } => Err(BootError::Fatal { message }),
        }
    }

    fn tell(&mut self, events: Vec<Event>, on_event: &mut impl FnMut(&Event)) {
        for event in events {
            self.unfinished.note(&event);
            on_event(&event);
        }
    }

    /// The node that the guest has become.
    pub fn into_node(self, access: Access) -> Node {
        let mut rest = JoinSet::new();
        rest.spawn(announcements::drain(self.announcements));
        Node::new(self.vm, access.client, self.kubeconfig, self.console, self.api, rest)
    }

    /// Ends the guest in the middle of its boot. One that has nothing of its data disk in use is cut off; another is
    /// shut down as [`Node::shut_down`] does it.
    ///
    /// # Errors
    /// [`ShutdownError`].
    pub async fn shut_down(self, limit: Duration) -> Result<(), ShutdownError> {
        match self.disk {
            Disk::Untouched => {
                power::cut(self.vm).await;
                Ok(())
            }
            Disk::InUse => {
                // The guest never waits for a reader.
                let mut rest = JoinSet::new();
                rest.spawn(announcements::drain(self.announcements));
                power::off(self.vm, limit, &self.console).await
            }
        }
    }
}

/// A disk that was kept has the node's state of its last boot: only what kubelet said `since` counts. The
/// guest's clock is this machine's.
fn is_ready(node: &core::Node, since: Timestamp) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready" && condition.status == "True");
    ready.any(|condition| condition.last_heartbeat_time.as_ref().is_some_and(|heartbeat| heartbeat.0 >= since))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(status: &str, heartbeat: &str) -> core::Node {
        serde_json::from_value(json!({
            "metadata": {"name": NAME},
            "status": {"conditions": [
                {"type": "MemoryPressure", "status": "False", "lastHeartbeatTime": heartbeat},
                {"type": "Ready", "status": status, "lastHeartbeatTime": heartbeat},
            ]},
        }))
        .unwrap()
    }

    #[test]
    fn only_the_condition_ready_makes_a_node_ready() {
        let start = "2026-11-21T21:00:00Z";
        let since: Timestamp = start.parse().unwrap();
        assert!(is_ready(&node("True", start), since));
        assert!(!is_ready(&node("Unknown", start), since));
        assert!(!is_ready(&core::Node::default(), since));
    }

    #[test]
    fn a_node_that_was_ready_before_this_boot_is_not_ready() {
        let since: Timestamp = "2026-11-21T21:00:00Z".parse().unwrap();
        assert!(!is_ready(&node("True", "2026-11-21T20:59:59Z"), since));
    }
}
