//! The boot of a node.

use crate::console::{Console, EarlyStages};
use crate::error::{BootError, ShutdownError, StepError};
use crate::event::{Event, Unfinished};
use crate::guest::{self, Guest, GuestNetwork, Host, Machine, Uplink};
use crate::node::{CREDENTIALS, Node};
use crate::options::{Options, Origin};
use crate::power;
use crate::spec::NodeSpec;
use crate::{announcements, configuration, kubeconfig, watch};
use cluster::CaDigest;
use cluster::announcement::Announcement;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::watcher;
use kube::{Api, Client};
use programs::kubelet;
use qemu::Vm;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{interval, timeout};

use announcements::Announcements;

const INTERVAL: Duration = Duration::from_millis(100);
/// First stage in which the node writes to its data disk.
const DATA_DISK: &str = "data-disk";

/// The boot of a guest. Dropping the boot kills the guest.
pub(crate) struct NodeBoot {
    name: String,
    vm: Arc<Vm>,
    uplink: Option<Uplink>,
    announcements: Announcements,
    early: EarlyStages,
    disk: Disk,
    role: Role,
    console: PathBuf,
    /// The Node is Ready only if the kubelet reported its status at this time or later.
    since: Timestamp,
    /// The directory of the saved node that the guest continues.
    saved: Option<PathBuf>,
    limit: Duration,
    unfinished: Unfinished,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disk {
    /// The guest has not opened the data disk.
    Unused,
    /// The file system of the data disk may be mounted.
    InUse,
}

pub(crate) enum Role {
    /// The node announces credentials, and the port leads to its API server.
    ControlPlane {
        api: u16,
        kubeconfig: PathBuf,
    },
    Worker(Access),
}

#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) client: Client,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) api: u16,
    pub(crate) ca: Option<CaDigest>,
}

pub(crate) struct Started {
    pub(crate) host: Host,
    pub(crate) guest: Guest,
    pub(crate) since: Timestamp,
    pub(crate) role: Role,
}

impl NodeBoot {
    /// Checks the machine and starts a single node.
    pub(crate) async fn alone(options: &Options, on_event: impl FnMut(&Event)) -> Result<Self, BootError> {
        let spec = NodeSpec::control_plane(options);
        let owned = spec.clone();
        let start = move || -> Result<Started, BootError> {
            let since = Timestamp::now();
            let host = Host::find(std::slice::from_ref(&owned), &owned.options.state)?;
            let machine = Machine::prepare(&host, &owned)?;
            let api = guest::api_port(&owned)?;
            let configuration = configuration::of_control_plane(&owned);
            let segment = match owned.options.origin {
                Origin::Boot => None,
                Origin::Savable(_) | Origin::Saved(_) => Some(guest::segment(&host, &owned, api)?),
            };
            let network = segment.as_ref().map_or(GuestNetwork::Alone { api }, GuestNetwork::Segment);
            let guest = machine.start(&host, &owned, &configuration, &network)?;
            Ok(Started { host, guest, since, role: Role::of_control_plane(&owned, api) })
        };
        let started = spawn_blocking(start).await.map_err(StepError::of("start QEMU"))??;
        Self::of(&spec, started, on_event)
    }

    pub(crate) fn of(spec: &NodeSpec, started: Started, mut on_event: impl FnMut(&Event)) -> Result<Self, BootError> {
        let Started { host, guest, since, role } = started;
        let console = spec.console();
        let (saved, since) = match &spec.options.origin {
            Origin::Boot | Origin::Savable(_) => (None, since),
            // The node was Ready when it was saved, and the kubelet reports its status only every few minutes.
            Origin::Saved(dir) => (Some(dir.clone()), Timestamp::MIN),
        };
        let (early, first) = EarlyStages::begin(&spec.options.boot, &console);
        let mut unfinished = Unfinished::default();
        let started = Event::Started { version: host.program.version(), accelerator: host.accelerator };
        for event in [started, first] {
            unfinished.note(&event);
            on_event(&event);
        }
        Ok(Self {
            name: spec.name.clone(),
            vm: Arc::new(guest.vm),
            uplink: guest.uplink,
            announcements: announcements::of(guest.port)?,
            early,
            disk: if saved.is_some() { Disk::InUse } else { Disk::Unused },
            role,
            console,
            since,
            saved,
            limit: spec.options.limit,
            unfinished,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.vm.exit().is_some()
    }

    /// Waits until the Node is Ready. Cancel-safe: the guest continues.
    pub(crate) async fn until_ready(&mut self, on_event: impl FnMut(&Event)) -> Result<Access, BootError> {
        let limit = self.limit;
        let mut lost = None;
        match timeout(limit, self.follow(on_event, &mut lost)).await {
            Ok(result) => result,
            Err(_) => Err(BootError::Late {
                limit,
                unfinished: self.unfinished.clone(),
                console: Console::read(&self.console),
                source: lost.map(Box::new),
            }),
        }
    }

    /// Reads the announcements of a Ready node until the guest ends. Cancel-safe.
    pub(crate) async fn stay(&mut self, mut on_event: impl FnMut(&Event)) -> Result<Infallible, BootError> {
        loop {
            self.next(&mut on_event).await?;
        }
    }

    async fn follow(
        &mut self,
        mut on_event: impl FnMut(&Event),
        lost: &mut Option<watcher::Error>,
    ) -> Result<Access, BootError> {
        let access = match &self.role {
            Role::Worker(access) => access.clone(),
            Role::ControlPlane { api, kubeconfig } => {
                let (api, path) = (*api, kubeconfig.clone());
                self.enter(api, path, &mut on_event).await?
            }
        };
        let nodes: Api<core::Node> = Api::all(access.client.clone());
        let name = self.name.clone();
        // The node uses the clock of this machine, so timestamps are comparable.
        let since = self.since;
        let is_ready = |node: Option<&core::Node>| node.is_some_and(|node| kubelet::is_ready(node, since));
        let mut ready = std::pin::pin!(watch::wait_for(nodes, &name, is_ready, lost));
        loop {
            tokio::select! {
                _ = &mut ready => {
                    self.emit(vec![Event::NodeReady], &mut on_event);
                    return Ok(access);
                }
                // The node announces the kubeconfig again with a renewed certificate. The first certificate is valid
                // long enough.
                announced = self.next(&mut on_event) => drop(announced?),
            }
        }
    }

    async fn enter(&mut self, api: u16, path: PathBuf, on_event: &mut impl FnMut(&Event)) -> Result<Access, BootError> {
        let announced = match &self.saved {
            Some(dir) => {
                let path = dir.join(CREDENTIALS);
                std::fs::read_to_string(&path).map_err(StepError::of(format!("read {}", path.display())))?
            }
            None => loop {
                if let Some(kubeconfig) = self.next(on_event).await? {
                    break kubeconfig;
                }
            },
        };
        self.emit(vec![Event::Answers], on_event);
        let kubeconfig = kubeconfig::from_outside(&announced, api)?;
        kubeconfig::write(&kubeconfig, &path)?;
        let ca = kubeconfig::announced_ca(&kubeconfig);
        Ok(Access { client: kubeconfig::client(kubeconfig).await?, kubeconfig: path, api, ca })
    }

    /// Waits for the next announcement, and returns its kubeconfig if it has one. Cancel-safe.
    async fn next(&mut self, on_event: &mut impl FnMut(&Event)) -> Result<Option<String>, BootError> {
        let mut ticks = interval(INTERVAL);
        let announcement = loop {
            tokio::select! {
                announcement = announcements::next(&mut self.announcements, &self.vm, &self.console) => break announcement?,
                _ = ticks.tick(), if !self.early.is_over() => {
                    // Events that the console does not show yet follow with the first announcement.
                    let events = self.early.read().unwrap_or_default();
                    self.emit(events, on_event);
                }
            }
        };
        let passed = self.early.finish();
        self.emit(passed, on_event);
        match announcement {
            Announcement::Stage { name, state, .. } => {
                if name == DATA_DISK {
                    self.disk = Disk::InUse;
                }
                self.emit(vec![Event::Stage { name, state }], on_event);
                Ok(None)
            }
            Announcement::Credentials { kubeconfig } => Ok(Some(kubeconfig)),
            Announcement::Fatal { message } => Err(BootError::Fatal { message }),
        }
    }

    fn emit(&mut self, events: Vec<Event>, on_event: &mut impl FnMut(&Event)) {
        for event in events {
            self.unfinished.note(&event);
            on_event(&event);
        }
    }

    pub(crate) fn into_node(self, access: Access) -> Node {
        let mut announcements = JoinSet::new();
        announcements.spawn(announcements::drain(self.announcements));
        Node { name: self.name, vm: self.vm, uplink: self.uplink, access, console: self.console, announcements }
    }

    /// Ends the guest during its boot. Kills a guest that does not use its data disk, and shuts other guests down in
    /// order.
    pub(crate) async fn shut_down(self, limit: Duration) -> Result<(), ShutdownError> {
        match self.disk {
            Disk::Unused => {
                power::cut(self.vm).await;
                Ok(())
            }
            Disk::InUse => {
                // Continue reading, so that the guest never blocks on a full port.
                let mut reader = JoinSet::new();
                reader.spawn(announcements::drain(self.announcements));
                // Keep the network until the guest has powered off.
                let _uplink = self.uplink;
                power::off(self.vm, limit, &self.console).await
            }
        }
    }
}

impl Role {
    pub(crate) fn of_control_plane(spec: &NodeSpec, api: u16) -> Self {
        Self::ControlPlane { api, kubeconfig: spec.file(&spec.options.state, "kubeconfig") }
    }
}
