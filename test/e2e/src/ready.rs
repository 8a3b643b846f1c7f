//! Where suites that do not test booting get their nodes: from a saved one, if this machine keeps saved guests.

use crate::cost::cost;
use crate::{Failure, Setting, observer, restored};
use ktest_runner::guests::{Guest, Guests, Key, StoreError};
use launch::{BootError, Cluster, ClusterError, ClusterOptions, Node, Options, Origin};
use std::io;
use std::path::Path;
use tokio::runtime::Handle;
use tokio::task::{JoinError, spawn_blocking};

/// There is no node to work with.
#[derive(Debug, thiserror::Error)]
pub enum ReadyError {
    /// The node does not boot.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// A node of a cluster does not boot.
    #[error(transparent)]
    Cluster(#[from] Box<ClusterError>),
    /// The pod that looks at the node does not start on it.
    #[error("cannot start the observer")]
    Observer(#[from] Failure),
    /// The node goes on as if it had not been restored.
    #[error("the restored node does not find that its clock is behind")]
    Clock(#[source] Failure),
    /// The node is not saved.
    #[error("cannot save the node")]
    Save(#[from] launch::StepError),
    /// It is not known what the saved node depends on.
    #[error("cannot read what the saved node depends on")]
    Key(#[from] io::Error),
    /// There is no QEMU.
    #[error("cannot find the QEMU that the saved node depends on")]
    Qemu(#[from] qemu::FindError),
    /// The saved node is not there.
    #[error(transparent)]
    Store(#[from] Box<StoreError<ReadyError>>),
    /// A panic on the way.
    #[error("a part of the test panicked")]
    Panicked(#[from] JoinError),
}

impl Setting {
    /// A node that is Ready, with the observer's pod ([`Case::look_at_the_node`](crate::Case::look_at_the_node)). This and
    /// [`Self::ready_cluster`] are the only functions that suites get it from, so that all of them share one saved state.
    ///
    /// # Errors
    /// [`ReadyError`]. No guest runs then.
    pub async fn ready_node(&self, options: &Options) -> Result<Node, ReadyError> {
        let mut options = options.clone();
        // In use until QEMU and the launcher have opened all of its files.
        let state = restore(&mut options).await?;
        let node = Node::boot(&options, |event| println!("{event}")).await?;
        match state {
            None => {
                cost("boots");
                observer::start(&node.client()).await?;
            }
            Some(state) if is_old(state.dir())? => {
                restored::clock_has_jumped(&node.client()).await.map_err(ReadyError::Clock)?;
            }
            Some(_) => {}
        }
        Ok(node)
    }

    /// A cluster whose control plane is the node of [`Self::ready_node`], and whose workers have booted and joined.
    ///
    /// # Errors
    /// [`ReadyError`]. No guest runs then.
    pub async fn ready_cluster(&self, options: &ClusterOptions) -> Result<Cluster, ReadyError> {
        let mut options = options.clone();
        // In use until QEMU and the launcher have opened all of its files.
        let state = restore(&mut options.control_plane).await?;
        let cluster = Cluster::boot(&options, |node, event| println!("{node}: {event}")).await.map_err(Box::new)?;
        cluster.workers().iter().for_each(|_| cost("boots"));
        if state.is_none() {
            cost("boots");
            observer::start(&cluster.client()).await?;
        }
        Ok(cluster)
    }
}

/// Whether a node that is restored from the state has a clock that is wrong by more than the suites tolerate.
fn is_old(state: &Path) -> io::Result<bool> {
    Ok(state.metadata()?.modified()?.elapsed().is_ok_and(|age| age > restored::TOLERANCE))
}

/// Changes options so that the node is restored from the state that is returned. `None` if the machine keeps no saved
/// guests.
async fn restore(options: &mut Options) -> Result<Option<Guest>, ReadyError> {
    let Some(guests) = Guests::of_machine() else { return Ok(None) };
    let wanted = options.clone();
    let handle = Handle::current();
    let state = spawn_blocking(move || {
        let key = key(&wanted)?;
        let state = guests.get(&key, |dir| handle.block_on(save(&wanted, dir)));
        Ok::<_, ReadyError>(state.map_err(Box::new)?)
    });
    let Some(state) = state.await?? else { return Ok(None) };
    options.origin = Origin::Saved(state.dir().to_owned());
    cost("restores");
    Ok(Some(state))
}

async fn save(options: &Options, dir: &Path) -> Result<(), ReadyError> {
    let options = Options { origin: Origin::Savable(dir.to_owned()), ..options.clone() };
    cost("boots");
    let node = Node::boot(&options, |event| println!("{event}")).await?;
    observer::start(&node.client()).await?;
    node.save().await?;
    println!("the node is saved");
    Ok(())
}

/// The key of a node's state: everything that the state depends on.
fn key(options: &Options) -> Result<Key, ReadyError> {
    let mut key = Key::new("node")?;
    key.add_file(qemu::Program::find()?.path())?;
    let image = &options.image;
    for file in [&image.kernel, &image.initramfs, &image.system, &image.command_line] {
        key.add_file(file)?;
    }
    let Options { boot, memory, cpus, data_size, overcommit, kernel_arguments, configuration, .. } = options;
    key.add(&format!("{boot:?} {memory} {cpus} {data_size} {overcommit} {kernel_arguments} {configuration:?}"));
    let pod = observer::pod().object().and_then(|pod| serde_json::to_string(&pod)).map_err(Failure::from)?;
    key.add(&pod);
    Ok(key)
}
