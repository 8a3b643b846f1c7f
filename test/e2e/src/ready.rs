//! Nodes for suites that do not test booting. If this machine keeps saved guests, the node is restored from a saved
//! one.

use crate::cost::cost;
use crate::{Failure, Setting, observer, restored};
use ktest_runner::guests::{Guest, Guests, Key};
use kube::Client;
use launch::{Cluster, ClusterBoot, ClusterOptions, Event, Node, Options, Origin, StepError};
use std::io;
use std::path::Path;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

impl Setting {
    /// Returns a Ready node with the observer's pod ([`Case::look_at_the_node`](crate::Case::look_at_the_node)). Suites
    /// get their nodes only from this function and [`Self::ready_cluster`], so that all suites share one saved state.
    /// After an error, no guest runs.
    pub async fn ready_node(&self, options: &Options) -> Result<Node, StepError> {
        let mut options = options.clone();
        // Keep the state in use until QEMU and the launcher have opened all of its files.
        let state = restore(&mut options).await?;
        let node = Node::boot(&options, |event| println!("{event}")).await.map_err(StepError::of("boot the node"))?;
        match state {
            None => {
                cost("boots");
                observer::start(&node.client()).await.map_err(StepError::of("start the observer"))?;
            }
            Some(state) if is_old(state.dir()).map_err(StepError::of("read the age of the saved node"))? => {
                let jumped = restored::clock_has_jumped(&node.client()).await;
                jumped.map_err(StepError::of("wait for the restored node to find that its clock is behind"))?;
            }
            Some(_) => {}
        }
        Ok(node)
    }

    /// Returns a cluster whose control plane is the node of [`Self::ready_node`], and whose workers have booted and
    /// joined. `meanwhile` uses the control plane while the workers boot. After an error, no guest runs.
    pub async fn ready_cluster<T, F>(
        &self,
        options: &ClusterOptions,
        meanwhile: impl FnOnce(Client) -> F,
    ) -> Result<(Cluster, T), StepError>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        const BOOT: &str = "boot the cluster";
        let print = |node: &str, event: &Event| println!("{node}: {event}");
        let mut options = options.clone();
        // Keep the state in use until QEMU and the launcher have opened all of its files.
        let state = restore(&mut options.control_plane).await?;
        let mut boot = ClusterBoot::start(&options, print).await.map_err(StepError::of(BOOT))?;
        let client = boot.control_plane_ready(print).await.map_err(StepError::of(BOOT))?;
        let workers = async { boot.until_ready(print).await.map_err(StepError::of(BOOT)) };
        let used = async {
            if state.is_none() {
                cost("boots");
                observer::start(&client).await.map_err(StepError::of("start the observer"))?;
            }
            meanwhile(client).await.map_err(StepError::of("use the control plane"))
        };
        let (ready, used) = tokio::try_join!(workers, used)?;
        let cluster = boot.into_cluster(ready);
        cluster.workers().iter().for_each(|_| cost("boots"));
        Ok((cluster, used))
    }
}

/// Whether the clock of a node restored from this state is wrong by more than the suites tolerate.
fn is_old(state: &Path) -> io::Result<bool> {
    Ok(state.metadata()?.modified()?.elapsed().is_ok_and(|age| age > restored::TOLERANCE))
}

/// Changes the options so that the node is restored from the returned state. Returns `None` if the machine keeps no
/// saved guests.
async fn restore(options: &mut Options) -> Result<Option<Guest>, StepError> {
    let Some(guests) = Guests::of_machine() else { return Ok(None) };
    let wanted = options.clone();
    let handle = Handle::current();
    let state = spawn_blocking(move || {
        let key = key(&wanted)?;
        let state = guests.get(&key, |dir| handle.block_on(save(&wanted, dir)));
        state.map_err(StepError::of("use the saved node"))
    });
    let state = state.await.map_err(StepError::of("use the saved node"))??;
    let Some(state) = state else { return Ok(None) };
    options.origin = Origin::Saved(state.dir().to_owned());
    cost("restores");
    Ok(Some(state))
}

async fn save(options: &Options, dir: &Path) -> Result<(), StepError> {
    let options = Options { origin: Origin::Savable(dir.to_owned()), ..options.clone() };
    cost("boots");
    let node = Node::boot(&options, |event| println!("{event}")).await.map_err(StepError::of("boot the node"))?;
    observer::start(&node.client()).await.map_err(StepError::of("start the observer"))?;
    // Wait for the services, because every restored guest would repeat the rest of their start, which takes CPU time
    // from pods.
    let ready = observer::case(&node.client()).all_services_are_ready().await;
    ready.map_err(StepError::of("wait for the services of the node"))?;
    node.save().await?;
    println!("the node is saved");
    Ok(())
}

/// Key of a node's saved state. It contains everything that the state depends on.
fn key(options: &Options) -> Result<Key, StepError> {
    const READ: &str = "read what the saved node depends on";
    let mut key = Key::new("node").map_err(StepError::of(READ))?;
    let qemu = qemu::Program::find().map_err(StepError::of(READ))?;
    let image = &options.image;
    for file in [qemu.path(), &image.kernel, &image.initramfs, &image.system, &image.command_line] {
        key.add_file(file).map_err(StepError::of(READ))?;
    }
    let Options { boot, memory, cpus, data_size, overcommit, kernel_arguments, configuration, .. } = options;
    key.add(&format!("{boot:?} {memory} {cpus} {data_size:?} {overcommit} {kernel_arguments} {configuration:?}"));
    let pod = observer::pod().object().and_then(|pod| serde_json::to_string(&pod));
    key.add(&pod.map_err(StepError::of(READ))?);
    Ok(key)
}
