//! A cluster that is on its way.

use crate::cluster::{self, Cluster};
use crate::configuration;
use crate::error::{BootError, ClusterError, ClusterShutdownError};
use crate::event::Event;
use crate::guest::{self, Host, Machine, Surroundings};
use crate::join;
use crate::options::{ClusterOptions, Nodes};
use crate::rising::{Access, Rising, Role, Started};
use crate::site::Site;
use crate::worker::{Seat, Worker};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use k8s_openapi::jiff::Timestamp;
use qemu::Segment;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;

/// A cluster that is on its way: first its control plane, then, as soon as that is ready, all its workers. Dropping it
/// is a power cut.
pub struct Booting {
    control_plane: Rising,
    /// Those that are not started.
    waiting: Vec<Waiting>,
    workers: Vec<(Arc<Seat>, Rising)>,
    segment: Option<Arc<Segment>>,
    host: Option<Host>,
}

/// A worker that has a disk.
struct Waiting {
    site: Site,
    machine: Machine,
}

/// What [`Booting::until_ready`] found.
pub struct Ready(Access);

/// What all workers are started with.
struct Common<'a> {
    access: &'a Access,
    segment: &'a Arc<Segment>,
    host: &'a Host,
}

/// What a start of several nodes makes, before any worker runs.
struct First {
    started: Started,
    waiting: Vec<Waiting>,
    segment: Arc<Segment>,
}

impl Booting {
    /// Checks the machine, makes the disks of all nodes, and starts the control plane. An event comes with the name of
    /// its node.
    ///
    /// # Errors
    /// [`ClusterError`]. No guest runs then, and nothing is left but the logs and data files that were asked for.
    pub async fn start(options: &ClusterOptions, on_event: impl Fn(&str, &Event)) -> Result<Self, ClusterError> {
        let site = Site::control_plane(&options.control_plane);
        let failed = || ClusterError::of(&site.name);
        let tell = |event: &Event| on_event(&site.name, event);
        if options.nodes == Nodes::ONE {
            let control_plane = Rising::alone(&options.control_plane, tell).await.map_err(failed())?;
            return Ok(Self { control_plane, waiting: Vec::new(), workers: Vec::new(), segment: None, host: None });
        }
        let owned = options.clone();
        let first = spawn_blocking(move || first(&owned)).await.map_err(BootError::Panicked).map_err(failed())??;
        let host = Some(first.started.host.clone());
        let control_plane = Rising::of(&site, first.started, tell).map_err(failed())?;
        let segment = Some(first.segment);
        Ok(Self { control_plane, waiting: first.waiting, workers: Vec::new(), segment, host })
    }

    /// Waits until the cluster calls all nodes ready.
    ///
    /// Cancel-safe: the guests go on when the future is dropped, but for one that is just being started.
    ///
    /// # Errors
    /// [`ClusterError`]: one does not become ready.
    pub async fn until_ready(&mut self, on_event: impl Fn(&str, &Event)) -> Result<Ready, ClusterError> {
        let segment = self.segment.clone();
        tokio::select! {
            ready = self.raise_all(&on_event) => ready,
            exit = cluster::lost(segment.as_deref()) => Err(ClusterError::SegmentEnded(exit)),
        }
    }

    async fn raise_all(&mut self, on_event: &impl Fn(&str, &Event)) -> Result<Ready, ClusterError> {
        let Self { control_plane, waiting, workers, segment, host } = self;
        let name = control_plane.name().to_owned();
        let tell = |event: &Event| on_event(&name, event);
        let access = control_plane.until_ready(tell).await.map_err(ClusterError::of(&name))?;
        if let (Some(segment), Some(host)) = (segment, host) {
            let common = Common { access: &access, segment, host };
            tokio::select! {
                ended = stay(control_plane, on_event) => match ended? {},
                started = start_workers(waiting, workers, common, on_event) => started?,
            }
        }
        let workers = workers.iter_mut().map(|(_, worker)| raise(worker, on_event));
        tokio::select! {
            ended = stay(control_plane, on_event) => match ended? {},
            up = all_up(workers, |worker| stay(worker, on_event)) => up.map(|()| Ready(access)),
        }
    }

    /// The cluster that it has become.
    pub fn into_cluster(self, Ready(access): Ready) -> Cluster {
        let workers = self.workers.into_iter().map(|(seat, rising)| {
            let node = rising.into_node(access.clone());
            Worker::new(seat, access.clone(), node)
        });
        let workers = workers.collect();
        Cluster::new(self.control_plane.into_node(access), workers, self.segment)
    }

    /// Ends all guests in the middle of the boot, the workers first. One that has nothing of its data disk in use is cut
    /// off; others are shut down as [`Node::shut_down`](crate::Node::shut_down) does it. One that has ended by itself is
    /// passed over.
    ///
    /// # Errors
    /// [`ClusterShutdownError`]: one was killed. All have ended.
    pub async fn shut_down(self, limit: Duration) -> Result<(), ClusterShutdownError> {
        let off = |rising: Rising| {
            let name = rising.name().to_owned();
            async move {
                let ended = if rising.has_ended() { Ok(()) } else { rising.shut_down(limit).await };
                (name, ended)
            }
        };
        let (seats, workers): (Vec<_>, Vec<_>) = self.workers.into_iter().unzip();
        let ended = cluster::off(workers.into_iter().map(off), off(self.control_plane)).await;
        drop(seats);
        ended
    }
}

/// Lets them into the cluster and starts them, one after the other.
async fn start_workers(
    waiting: &mut Vec<Waiting>,
    workers: &mut Vec<(Arc<Seat>, Rising)>,
    Common { access, segment, host }: Common<'_>,
    on_event: &impl Fn(&str, &Event),
) -> Result<(), ClusterError> {
    for Waiting { site, machine } in waiting.drain(..) {
        let name = site.name.clone();
        let told = join::invite(access, &site).await;
        let configuration = told.map_err(|source| ClusterError::Join { node: name.clone(), source })?;
        let (host, segment) = (host.clone(), Arc::clone(segment));
        let seat = Arc::new(Seat { site, host, machine, segment, configuration });
        let tell = |event: &Event| on_event(&name, event);
        let rising = Arc::clone(&seat).start(access.clone(), tell).await.map_err(ClusterError::of(&name))?;
        workers.push((seat, rising));
    }
    Ok(())
}

async fn raise<'a>(rising: &'a mut Rising, on_event: &impl Fn(&str, &Event)) -> Result<&'a mut Rising, ClusterError> {
    let name = rising.name().to_owned();
    match rising.until_ready(|event| on_event(&name, event)).await {
        Ok(_) => Ok(rising),
        Err(error) => Err(ClusterError::of(&name)(error)),
    }
}

async fn stay(ready: &mut Rising, on_event: &impl Fn(&str, &Event)) -> Result<Infallible, ClusterError> {
    let name = ready.name().to_owned();
    ready.stay(|event| on_event(&name, event)).await.map_err(ClusterError::of(&name))
}

/// Returns when all are up, or with the first error: of one that rises, or of one that did not stay while others rose.
async fn all_up<Up, Error, Stay>(
    rising: impl Iterator<Item: Future<Output = Result<Up, Error>>>,
    stay: impl Fn(Up) -> Stay,
) -> Result<(), Error>
where
    Stay: Future<Output = Result<Infallible, Error>>,
{
    let mut rising: FuturesUnordered<_> = rising.collect();
    let mut staying = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some(ended) = staying.next() => match ended? {},
            up = rising.next() => match up {
                Some(up) => staying.push(stay(up?)),
                None => return Ok(()),
            },
        }
    }
}

fn first(options: &ClusterOptions) -> Result<First, ClusterError> {
    let begun = Timestamp::now();
    let mut sites = Site::all(options);
    let workers = sites.split_off(1);
    let site = Site::control_plane(&options.control_plane);
    let failed = || ClusterError::of(&site.name);
    let all: Vec<Site> = sites.into_iter().chain(workers.iter().cloned()).collect();
    let host = Host::find(&all, &site.options.state).map_err(failed())?;
    let machine = Machine::prepare(&host, &site).map_err(failed())?;
    let waiting = workers.into_iter().map(|site| {
        let machine = Machine::prepare(&host, &site).map_err(ClusterError::of(&site.name))?;
        Ok(Waiting { site, machine })
    });
    let waiting = waiting.collect::<Result<Vec<_>, _>>()?;
    let api = guest::api_port(&site).map_err(failed())?;
    let segment = guest::segment(&host, api).map_err(ClusterError::Segment)?;
    let told = configuration::of_control_plane(&site);
    let guest = machine.start(&host, &site, &told, &Surroundings::Segment(&segment)).map_err(failed())?;
    let role = Role::of_control_plane(&site, api);
    Ok(First { started: Started { host, guest, begun, role }, waiting, segment })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::{Either, pending, ready};

    type Told = &'static str;

    /// Each is up at once, or never.
    async fn up<Stay>(are_up: [bool; 2], stay: impl Fn(usize) -> Stay) -> Result<(), Told>
    where
        Stay: Future<Output = Result<Infallible, Told>>,
    {
        let rising = are_up.into_iter().enumerate();
        let rising =
            rising.map(|(index, up)| if up { Either::Left(ready(Ok(index))) } else { Either::Right(pending()) });
        all_up(rising, stay).await
    }

    #[tokio::test]
    async fn nobody_is_watched_any_more_when_all_are_up() {
        assert_eq!(up([true, true], |_| pending()).await, Ok(()));
    }

    #[tokio::test]
    async fn one_that_ends_while_another_rises_is_noticed() {
        let ended = up([true, false], async |index| {
            tokio::task::yield_now().await;
            Err(if index == 0 { "the first has ended" } else { "the second has ended" })
        });
        assert_eq!(ended.await, Err("the first has ended"));
    }

    #[tokio::test]
    async fn one_that_does_not_rise_ends_the_wait() {
        let rising = [Either::Left(ready(Err("it did not boot"))), Either::Right(pending::<Result<(), Told>>())];
        assert_eq!(all_up(rising.into_iter(), |()| pending()).await, Err("it did not boot"));
    }
}
