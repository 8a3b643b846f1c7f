//! The pod network of a node: which addresses its pods get, and what may pass between them and everybody else.
//!
//! The cluster gives a Node its range of addresses after kubelet has registered it. Until then there is no network
//! configuration: kubelet says `NetworkPluginNotReady`, and no pod is started but those in the host's network.

use std::error::Error;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::pin::pin;

use dir::{Dir, Name};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use nix::sys::stat::Mode;
use supervisor::Context;
use tokio::task::{JoinError, spawn_blocking};
use tracing::{debug, info, warn};

use crate::program::{Program, ProgramError};
use crate::{Config, NODE_PREFIX, Network, Paths, cni, nftables};

/// Why pods have no network, or go on with the one that they have.
#[derive(Debug, thiserror::Error)]
pub enum PodsError {
    /// Another control plane's, or another configuration than the control plane has.
    #[error(
        "the cluster gives this node's pods the addresses {range}, which are no /{NODE_PREFIX} of the pod network {network} of \
         the configuration: worker.podNetwork has to be what the control plane has as controlPlane.podNetwork"
    )]
    Range {
        /// What the Node says.
        range: String,
        /// What the configuration says.
        network: Network,
    },
    /// The kernel's rules for packets.
    #[error("cannot load the rules for packets of pods")]
    Rules(#[source] ProgramError),
    /// The directory of the network configuration.
    #[error("cannot make {}", .path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The network configuration.
    #[error("cannot write the network configuration of pods to {}", .path.display())]
    Write {
        /// Its directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: dir::Error,
    },
    /// A task panicked.
    #[error("writing the network configuration of pods panicked")]
    Panicked(#[from] JoinError),
    /// The watch ended, which it never does by itself.
    #[error("the watch of the own Node ended")]
    WatchEnded,
}

/// Waits for the own Node's range, and gives pods their network. Healthy when they have it; then follows the range until
/// it is cancelled. Stopped or started again, it leaves what is there. `client` may watch the own Node.
///
/// # Errors
/// [`PodsError`]; an API server that is away, or a Node that is not there, is waited for and is none.
pub async fn run(cx: Context, client: Client, config: Config) -> Result<(), PodsError> {
    let own = watcher::Config::default().fields(&format!("metadata.name={}", config.node));
    let mut nodes = pin!(watcher(Api::<Node>::all(client), own).default_backoff().applied_objects());
    let mut now = None;
    loop {
        let node = tokio::select! {
            () = cx.cancelled() => return Ok(()),
            node = nodes.next() => match node.ok_or(PodsError::WatchEnded)? {
                Ok(node) => node,
                Err(error) => {
                    let error: &dyn Error = &error;
                    warn!(error, "watch of the own Node failed, it goes on");
                    continue;
                }
            },
        };
        let Some(pods) = range(&node, config.cluster_pods)? else {
            debug!("the own Node has no range of pod addresses yet");
            continue;
        };
        if now == Some(pods) {
            continue;
        }
        // Before the first pod: no packet of one shall ever pass without them.
        load(&config, pods).complete(&config.paths, &cx).await.map_err(PodsError::Rules)?;
        if cx.is_cancelled() {
            return Ok(());
        }
        let (paths, text) = (config.paths.clone(), cni::conflist(&config, pods));
        spawn_blocking(move || write(&paths, &text)).await??;
        match now.replace(pods) {
            None => info!(%pods, "pods have their network"),
            Some(before) => {
                warn!(%pods, %before, "the node has other pod addresses: pods with the old ones reach nobody")
            }
        }
        cx.healthy();
    }
}

/// The Node's range, if it has one.
fn range(node: &Node, network: Network) -> Result<Option<Network>, PodsError> {
    let Some(range) = node.spec.as_ref().and_then(|spec| spec.pod_cidr.as_deref()).filter(|range| !range.is_empty())
    else {
        return Ok(None);
    };
    match range.parse() {
        Ok(pods) if network.has_part(pods, NODE_PREFIX) => Ok(Some(pods)),
        Ok(_) | Err(_) => Err(PodsError::Range { range: range.to_owned(), network }),
    }
}

fn load(config: &Config, pods: Network) -> Program {
    let file = config.paths.generated("pods.nft");
    Program {
        name: "nft",
        arguments: vec![format!("--file={}", file.display())],
        files: vec![(file, nftables::rules(config, pods))],
        ..Program::default()
    }
}

/// As a whole: containerd reads a file as soon as it is there. One that is right is not touched.
fn write(paths: &Paths, text: &str) -> Result<(), PodsError> {
    let path = cni::directory(paths);
    let made = DirBuilder::new().recursive(true).mode(0o755).create(&path);
    made.map_err(|source| PodsError::Directory { path: path.clone(), source })?;
    let write = || {
        let (directory, name) = (Dir::open(&path)?, name());
        if directory.read(&name)?.as_deref() == Some(text.as_bytes()) {
            return Ok(());
        }
        let mode = Mode::S_IRUSR | Mode::S_IWUSR | Mode::S_IRGRP | Mode::S_IROTH;
        directory.write(&name, text.as_bytes(), mode)
    };
    write().map_err(|source| PodsError::Write { path: path.clone(), source })
}

#[expect(clippy::expect_used, reason = "the name is a literal")]
fn name() -> Name {
    Name::try_from(cni::CONFLIST).expect("a file name without a slash")
}
