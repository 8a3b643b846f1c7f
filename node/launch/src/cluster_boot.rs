//! The boot of a cluster.

use crate::cluster::{self, Cluster};
use crate::configuration;
use crate::error::{ClusterError, ClusterShutdownError, StepError};
use crate::event::Event;
use crate::guest::{self, GuestNetwork, Host, Machine};
use crate::join;
use crate::node_boot::{Access, NodeBoot, Role, Started};
use crate::options::{ClusterOptions, Nodes};
use crate::spec::NodeSpec;
use crate::worker::{Worker, WorkerStart};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use qemu::Segment;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;

/// The boot of a cluster. The workers start when the control plane is Ready. Dropping the boot kills the guests.
pub struct ClusterBoot {
    control_plane: NodeBoot,
    /// Access to the control plane, once it is Ready.
    access: Option<Access>,
    prepared: PreparedWorkers,
    workers: Vec<(Arc<WorkerStart>, NodeBoot)>,
    segment: Option<Arc<Segment>>,
    host: Option<Host>,
}

type PreparedWorkers = Vec<(NodeSpec, Machine)>;

/// Proof that [`ClusterBoot::until_ready`] succeeded.
pub struct Ready(Access);

impl ClusterBoot {
    /// Checks the machine, creates the disks of all nodes, and starts the control plane. `on_event` receives the name
    /// of the node.
    pub async fn start(options: &ClusterOptions, on_event: impl Fn(&str, &Event)) -> Result<Self, ClusterError> {
        let spec = NodeSpec::control_plane(&options.control_plane);
        let failed = || ClusterError::of(&spec.name);
        let emit = |event: &Event| on_event(&spec.name, event);
        if options.nodes == Nodes::ONE {
            let control_plane = NodeBoot::alone(&options.control_plane, emit).await.map_err(failed())?;
            let (access, prepared, workers, segment, host) = (None, Vec::new(), Vec::new(), None, None);
            return Ok(Self { control_plane, access, prepared, workers, segment, host });
        }
        let owned = options.clone();
        let prepared = spawn_blocking(move || prepare(&owned)).await;
        let (started, prepared, segment) = prepared.map_err(StepError::of("start QEMU"))??;
        let host = Some(started.host.clone());
        let control_plane = NodeBoot::of(&spec, started, emit).map_err(failed())?;
        Ok(Self { control_plane, access: None, prepared, workers: Vec::new(), segment: Some(segment), host })
    }

    /// Waits until the control plane is Ready, before [`Self::until_ready`] starts the workers. Cancel-safe: the guest
    /// continues.
    pub async fn control_plane_ready(&mut self, on_event: impl Fn(&str, &Event)) -> Result<Client, ClusterError> {
        let segment = self.segment.clone();
        tokio::select! {
            access = self.boot_control_plane(&on_event) => access.map(|access| access.client),
            exit = cluster::lost(segment.as_deref()) => Err(ClusterError::SegmentEnded(exit)),
        }
    }

    /// Waits until all Nodes are Ready. Cancel-safe: the guests continue, except a guest that is being started.
    pub async fn until_ready(&mut self, on_event: impl Fn(&str, &Event)) -> Result<Ready, ClusterError> {
        let segment = self.segment.clone();
        tokio::select! {
            ready = self.boot_all(&on_event) => ready,
            exit = cluster::lost(segment.as_deref()) => Err(ClusterError::SegmentEnded(exit)),
        }
    }

    async fn boot_control_plane(&mut self, on_event: &impl Fn(&str, &Event)) -> Result<Access, ClusterError> {
        if let Some(access) = &self.access {
            return Ok(access.clone());
        }
        let name = self.control_plane.name().to_owned();
        let emit = |event: &Event| on_event(&name, event);
        let access = self.control_plane.until_ready(emit).await.map_err(ClusterError::of(&name))?;
        self.access = Some(access.clone());
        Ok(access)
    }

    async fn boot_all(&mut self, on_event: &impl Fn(&str, &Event)) -> Result<Ready, ClusterError> {
        let access = self.boot_control_plane(on_event).await?;
        let Self { control_plane, prepared, workers, segment, host, .. } = self;
        if let (Some(segment), Some(host)) = (segment, host) {
            tokio::select! {
                ended = stay(control_plane, on_event) => match ended? {},
                started = start_workers(prepared, workers, &access, segment, host, on_event) => started?,
            }
        }
        let workers = workers.iter_mut().map(|(_, worker)| boot(worker, on_event));
        tokio::select! {
            ended = stay(control_plane, on_event) => match ended? {},
            up = all_up(workers, |worker| stay(worker, on_event)) => up.map(|()| Ready(access)),
        }
    }

    pub fn into_cluster(self, Ready(access): Ready) -> Cluster {
        let workers = self.workers.into_iter().map(|(start, boot)| {
            let node = boot.into_node(access.clone());
            Worker { start, access: access.clone(), node: Some(node) }
        });
        let workers = workers.collect();
        Cluster { control_plane: self.control_plane.into_node(access), workers, segment: self.segment }
    }

    /// Whether no guest runs.
    pub fn has_ended(&self) -> bool {
        let workers = self.workers.iter().map(|(_, boot)| boot);
        workers.chain([&self.control_plane]).all(NodeBoot::has_ended)
    }

    /// Ends all guests during the boot, the workers first. Kills guests that do not use their data disks, and shuts the
    /// others down in order.
    pub async fn shut_down(self, limit: Duration) -> Result<(), ClusterShutdownError> {
        let off = |boot: NodeBoot| {
            let name = boot.name().to_owned();
            async move {
                let ended = if boot.has_ended() { Ok(()) } else { boot.shut_down(limit).await };
                (name, ended)
            }
        };
        let (worker_starts, workers): (Vec<_>, Vec<_>) = self.workers.into_iter().unzip();
        let ended = cluster::off(workers.into_iter().map(off), off(self.control_plane)).await;
        drop(worker_starts);
        ended
    }
}

/// Creates a token for each worker and starts the worker, one after the other.
async fn start_workers(
    prepared: &mut PreparedWorkers,
    workers: &mut Vec<(Arc<WorkerStart>, NodeBoot)>,
    access: &Access,
    segment: &Arc<Segment>,
    host: &Host,
    on_event: &impl Fn(&str, &Event),
) -> Result<(), ClusterError> {
    for (spec, machine) in prepared.drain(..) {
        let name = spec.name.clone();
        let configuration = join::invite(access, &spec).await.map_err(ClusterError::of(&name))?;
        let (host, segment) = (host.clone(), Arc::clone(segment));
        let worker_start = Arc::new(WorkerStart { spec, host, machine, segment, configuration });
        let emit = |event: &Event| on_event(&name, event);
        let boot = Arc::clone(&worker_start).start(access.clone(), emit).await.map_err(ClusterError::of(&name))?;
        workers.push((worker_start, boot));
    }
    Ok(())
}

async fn boot<'a>(node: &'a mut NodeBoot, on_event: &impl Fn(&str, &Event)) -> Result<&'a mut NodeBoot, ClusterError> {
    let name = node.name().to_owned();
    match node.until_ready(|event| on_event(&name, event)).await {
        Ok(_) => Ok(node),
        Err(error) => Err(ClusterError::of(&name)(error)),
    }
}

async fn stay(ready: &mut NodeBoot, on_event: &impl Fn(&str, &Event)) -> Result<Infallible, ClusterError> {
    let name = ready.name().to_owned();
    ready.stay(|event| on_event(&name, event)).await.map_err(ClusterError::of(&name))
}

/// Waits until all nodes are up. Returns the first error of a booting node, or of a node that is up while others boot.
async fn all_up<Up, Error, Stay>(
    booting: impl Iterator<Item: Future<Output = Result<Up, Error>>>,
    stay: impl Fn(Up) -> Stay,
) -> Result<(), Error>
where
    Stay: Future<Output = Result<Infallible, Error>>,
{
    let mut booting: FuturesUnordered<_> = booting.collect();
    let mut staying = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some(ended) = staying.next() => match ended? {},
            up = booting.next() => match up {
                Some(up) => staying.push(stay(up?)),
                None => return Ok(()),
            },
        }
    }
}

/// Starts the control plane, with the network and the disks of all nodes.
fn prepare(options: &ClusterOptions) -> Result<(Started, PreparedWorkers, Arc<Segment>), ClusterError> {
    let since = Timestamp::now();
    let spec = NodeSpec::control_plane(&options.control_plane);
    let failed = || ClusterError::of(&spec.name);
    let host = Host::find(&NodeSpec::all(options), &spec.options.state).map_err(failed())?;
    let machine = Machine::prepare(&host, &spec).map_err(failed())?;
    let workers = NodeSpec::workers(options).map(|spec| {
        let machine = Machine::prepare(&host, &spec).map_err(ClusterError::of(&spec.name))?;
        Ok((spec, machine))
    });
    let workers = workers.collect::<Result<Vec<_>, ClusterError>>()?;
    let api = guest::api_port(&spec).map_err(ClusterError::of(&spec.name))?;
    let segment = guest::segment(&host, &spec, api)?;
    let configuration = configuration::of_control_plane(&spec);
    let guest = machine.start(&host, &spec, &configuration, &GuestNetwork::Segment(&segment)).map_err(failed())?;
    let role = Role::of_control_plane(&spec, api);
    Ok((Started { host, guest, since, role }, workers, segment))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::{Either, pending, ready};

    type Cause = &'static str;

    /// Calls `all_up` with nodes that are up at once, or never.
    async fn up<Stay>(are_up: [bool; 2], stay: impl Fn(usize) -> Stay) -> Result<(), Cause>
    where
        Stay: Future<Output = Result<Infallible, Cause>>,
    {
        let booting = are_up.into_iter().enumerate();
        let booting =
            booting.map(|(index, up)| if up { Either::Left(ready(Ok(index))) } else { Either::Right(pending()) });
        all_up(booting, stay).await
    }

    #[tokio::test]
    async fn the_wait_ends_when_all_nodes_are_up() {
        assert_eq!(up([true, true], |_| pending()).await, Ok(()));
    }

    #[tokio::test]
    async fn the_end_of_a_node_ends_the_boot_of_others() {
        let ended = up([true, false], async |index| {
            tokio::task::yield_now().await;
            Err(if index == 0 { "the first has ended" } else { "the second has ended" })
        });
        assert_eq!(ended.await, Err("the first has ended"));
    }

    #[tokio::test]
    async fn a_failed_boot_ends_the_wait() {
        let booting = [Either::Left(ready(Err("it did not boot"))), Either::Right(pending::<Result<(), Cause>>())];
        assert_eq!(all_up(booting.into_iter(), |()| pending()).await, Err("it did not boot"));
    }
}
