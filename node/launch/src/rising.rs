//! A guest that is on its way to become a node.

use crate::console::{Console, Early};
use crate::error::{BootError, ShutdownError};
use crate::event::{Event, Unfinished};
use crate::guest::{self, Guest, Host, Machine, Surroundings, Uplink};
use crate::node::{CREDENTIALS, Node};
use crate::options::{Options, Origin};
use crate::power;
use crate::site::Site;
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

/// How often the console is looked at, until the node announces what it does.
const LOOK: Duration = Duration::from_millis(100);
/// The stage from which on the node writes to its data disk.
const DATA_DISK: &str = "data-disk";

/// A guest that is on its way to become a node. Dropping it is a power cut.
pub(crate) struct Rising {
    name: String,
    vm: Arc<Vm>,
    uplink: Option<Uplink>,
    announcements: Announcements,
    early: Early,
    disk: Disk,
    role: Role,
    console: PathBuf,
    /// The node reports its state at this time or later.
    since: Timestamp,
    /// The directory of the saved node that the guest continues.
    saved: Option<PathBuf>,
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

/// What a node is to the cluster.
pub(crate) enum Role {
    /// It announces the way in, which leads through a port of this machine.
    ControlPlane { api: u16, kubeconfig: PathBuf },
    /// The way in is known.
    Worker(Access),
}

/// An administrator's way into the cluster.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) client: Client,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) api: u16,
    /// Whom machines that join are to trust, if the kubeconfig says so.
    pub(crate) authority: Option<CaDigest>,
}

/// A guest that was just started.
pub(crate) struct Started {
    pub(crate) host: Host,
    pub(crate) guest: Guest,
    /// From before the start.
    pub(crate) begun: Timestamp,
    pub(crate) role: Role,
}

impl Rising {
    /// Checks the machine and starts a node without others.
    pub(crate) async fn alone(options: &Options, on_event: impl FnMut(&Event)) -> Result<Self, BootError> {
        let site = Site::control_plane(options);
        let owned = site.clone();
        let start = move || -> Result<Started, BootError> {
            let begun = Timestamp::now();
            let host = Host::find(std::slice::from_ref(&owned), &owned.options.state)?;
            let machine = Machine::prepare(&host, &owned)?;
            let api = guest::api_port(&owned)?;
            let told = configuration::of_control_plane(&owned);
            let segment = match owned.options.origin {
                Origin::Boot => None,
                Origin::Savable(_) | Origin::Saved(_) => Some(guest::segment(&host, api)?),
            };
            let surroundings = segment.as_ref().map_or(Surroundings::Alone { api }, Surroundings::Segment);
            let guest = machine.start(&host, &owned, &told, &surroundings)?;
            Ok(Started { host, guest, begun, role: Role::of_control_plane(&owned, api) })
        };
        let started = spawn_blocking(start).await.map_err(BootError::Panicked)??;
        Self::of(&site, started, on_event)
    }

    pub(crate) fn of(site: &Site, started: Started, mut on_event: impl FnMut(&Event)) -> Result<Self, BootError> {
        let Started { host, guest, begun, role } = started;
        let console = site.console();
        let (saved, since) = match &site.options.origin {
            Origin::Boot | Origin::Savable(_) => (None, begun),
            // It was ready when it was saved, and reports that again after minutes only.
            Origin::Saved(dir) => (Some(dir.clone()), Timestamp::MIN),
        };
        let (early, first) = Early::begin(&site.options.boot, &console);
        let mut unfinished = Unfinished::default();
        let runs = Event::Started { version: host.program.version(), accelerator: host.accelerator };
        for event in [runs, first] {
            unfinished.note(&event);
            on_event(&event);
        }
        Ok(Self {
            name: site.name.clone(),
            vm: Arc::new(guest.vm),
            uplink: guest.uplink,
            announcements: announcements::of(guest.port)?,
            early,
            disk: if saved.is_some() { Disk::InUse } else { Disk::Untouched },
            role,
            console,
            since,
            saved,
            limit: site.options.limit,
            unfinished,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the guest has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.vm.exit().is_some()
    }

    /// Waits until the cluster calls the node ready.
    ///
    /// Cancel-safe: the guest goes on when the future is dropped.
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

    /// Follows a node that is ready while others are not. Returns only with the reason for its end. Cancel-safe.
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
        // The node's clock is this machine's.
        let since = self.since;
        let is_ready = |node: Option<&core::Node>| node.is_some_and(|node| kubelet::is_ready(node, since));
        let mut ready = std::pin::pin!(watch::seen(nodes, &name, is_ready, lost));
        loop {
            tokio::select! {
                _ = &mut ready => {
                    self.tell(vec![Event::NodeReady], &mut on_event);
                    return Ok(access);
                }
                // Credentials are announced again with a renewed certificate: the first is valid for long enough.
                announced = self.next(&mut on_event) => drop(announced?),
            }
        }
    }

    /// Waits until the API server answers.
    async fn enter(&mut self, api: u16, path: PathBuf, on_event: &mut impl FnMut(&Event)) -> Result<Access, BootError> {
        let announced = match &self.saved {
            Some(dir) => {
                let path = dir.join(CREDENTIALS);
                std::fs::read_to_string(&path).map_err(|source| BootError::RestoreCredentials { path, source })?
            }
            None => loop {
                if let Some(kubeconfig) = self.next(on_event).await? {
                    break kubeconfig;
                }
            },
        };
        self.tell(vec![Event::Answers], on_event);
        let kubeconfig = kubeconfig::from_outside(&announced, api)?;
        kubeconfig::write(&kubeconfig, &path)?;
        let authority = kubeconfig::authority(&kubeconfig);
        Ok(Access { client: kubeconfig::client(kubeconfig).await?, kubeconfig: path, api, authority })
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
    pub(crate) fn into_node(self, access: Access) -> Node {
        let mut rest = JoinSet::new();
        rest.spawn(announcements::drain(self.announcements));
        Node::new(self.name, self.vm, self.uplink, access, self.console, rest)
    }

    /// Ends the guest in the middle of its boot. One that has nothing of its data disk in use is cut off; another is
    /// shut down as [`Node::shut_down`] does it.
    pub(crate) async fn shut_down(self, limit: Duration) -> Result<(), ShutdownError> {
        match self.disk {
            Disk::Untouched => {
                power::cut(self.vm).await;
                Ok(())
            }
            Disk::InUse => {
                // The guest never waits for a reader.
                let mut rest = JoinSet::new();
                rest.spawn(announcements::drain(self.announcements));
                // It has its network until it is off.
                let _uplink = self.uplink;
                power::off(self.vm, limit, &self.console).await
            }
        }
    }
}

impl Role {
    pub(crate) fn of_control_plane(site: &Site, api: u16) -> Self {
        Self::ControlPlane { api, kubeconfig: site.file(&site.options.state, "kubeconfig") }
    }
}
