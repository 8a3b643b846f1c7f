//! The pod network of a node: the addresses of its pods, and the packet filter rules.
//!
//! kube-controller-manager assigns a range of addresses to a Node after the kubelet has registered it. Until then the
//! node has no CNI configuration: the kubelet reports `NetworkPluginNotReady`, and starts only pods in the host's
//! network.

use std::error::Error;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use cluster::NODE_PREFIX;
use futures::StreamExt as _;
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use supervisor::Context;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at};
use tracing::{debug, info, warn};

use crate::program::{Program, ProgramError};

use crate::{Config, Paths, cni, nftables};

/// Interval at which the rules are loaded again, because a pod in the host's network may have changed them. Each load
/// resets the counters.
const INTERVAL: Duration = Duration::from_mins(5);

#[derive(Debug, thiserror::Error)]
pub enum PodsError {
    /// The range is from another control plane, or the worker's configuration differs from the control plane's.
    #[error(
        "the cluster gives this node's pods the addresses {range}, which are not a /{NODE_PREFIX} of the pod network \
         {network} of the configuration: set worker.podNetwork to controlPlane.podNetwork of the control plane"
    )]
    Range { range: String, network: Ipv4Net },
    #[error("cannot load the rules for packets of pods")]
    Rules(#[source] ProgramError),
    #[error("cannot write the network configuration of pods into {}", .directory.display())]
    Write { directory: PathBuf, source: io::Error },
    #[error("writing the network configuration of pods panicked")]
    Panicked(#[from] JoinError),
    #[error("the watch of this node's Node ended")]
    WatchEnded,
}

/// Waits for the range of the node's own Node, and configures the pod network. Healthy when the network is configured.
/// Then follows changes of the range, and restores the rules every five minutes, until cancelled. The configuration
/// remains after a stop or restart. `client` must be able to watch the Node.
pub async fn run(cx: Context, client: Client, config: Config) -> Result<(), PodsError> {
    let own = watcher::Config::default().fields(&format!("metadata.name={}", config.node));
    let mut nodes = pin!(watcher(Api::<Node>::all(client), own).default_backoff().applied_objects());
    let mut again = interval_at(Instant::now() + INTERVAL, INTERVAL);
    again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut now = None;
    loop {
        let found = tokio::select! {
            () = cx.cancelled() => return Ok(()),
            _ = again.tick() => now,
            node = nodes.next() => match node.ok_or(PodsError::WatchEnded)? {
                Ok(node) => range(&node, config.cluster_pods)?.filter(|pods| now != Some(*pods)),
                Err(error) => {
                    let error: &dyn Error = &error;
                    warn!(error, "watch of this node's Node failed, will continue");
                    continue;
                }
            },
        };
        let Some(pods) = found else { continue };
        // The rules must precede the first pod, so that they apply to each packet of a pod.
        load(&config, nftables::rules(&config, pods)).complete(&config.paths, &cx).await.map_err(PodsError::Rules)?;
        if cx.is_cancelled() {
            return Ok(());
        }
        let (paths, text) = (config.paths.clone(), cni::conflist(&config, pods));
        let written = spawn_blocking(move || write(&paths, &text)).await?;
        written.map_err(|source| PodsError::Write { directory: cni::directory(&config.paths), source })?;
        match now.replace(pods) {
            None => info!(%pods, "pod network configured"),
            Some(before) if before == pods => debug!(%pods, "pod network configured again"),
            Some(before) => {
                warn!(%pods, %before, "pod addresses of the node changed, pods with the old ones are unreachable")
            }
        }
        cx.healthy();
    }
}

fn range(node: &Node, network: Ipv4Net) -> Result<Option<Ipv4Net>, PodsError> {
    let Some(range) = node.spec.as_ref().and_then(|spec| spec.pod_cidr.as_deref()).filter(|range| !range.is_empty())
    else {
        debug!("Node has no range of pod addresses yet");
        return Ok(None);
    };
    match range.parse::<Ipv4Net>() {
        Ok(pods) if pods.prefix_len() == NODE_PREFIX && pods == pods.trunc() && network.contains(&pods) => {
            Ok(Some(pods))
        }
        Ok(_) | Err(_) => Err(PodsError::Range { range: range.to_owned(), network }),
    }
}

/// Runs on a node whose pod network belongs to a CNI plugin. Loads the rules that protect the node itself, and again
/// every five minutes, until cancelled. Healthy when the rules are loaded. The rules remain after a stop or restart.
pub async fn protect(cx: Context, config: Config) -> Result<(), PodsError> {
    let mut again = interval(INTERVAL);
    again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = cx.cancelled() => return Ok(()),
            _ = again.tick() => {}
        }
        load(&config, nftables::node_rules(&config)).complete(&config.paths, &cx).await.map_err(PodsError::Rules)?;
        cx.healthy();
    }
}

fn load(config: &Config, rules: String) -> Program {
    let file = config.paths.generated("pods.nft");
    Program {
        name: "nft",
        arguments: vec![format!("--file={}", file.display())],
        files: vec![(file, rules)],
        ..Program::default()
    }
}

/// containerd reads its directory again when a file there is written or renamed, but not when a file is created (2.3,
/// `cni_conf_syncer.go`). Therefore the complete file is moved there under another name, and then renamed. A file that
/// is already correct is not changed.
fn write(paths: &Paths, text: &str) -> io::Result<()> {
    let directory = cni::directory(paths);
    DirBuilder::new().recursive(true).mode(0o755).create(&directory)?;
    let path = directory.join(cni::CONFLIST);
    if fs::read(&path).is_ok_and(|found| found == text.as_bytes()) {
        return Ok(());
    }
    let (apart, beside) = (paths.generated(cni::CONFLIST), path.with_extension("new"));
    fs::write(&apart, text)?;
    fs::rename(&apart, &beside)?;
    fs::rename(&beside, &path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use serde_json::json;

    use super::*;

    fn given(range: &str) -> Result<Option<String>, String> {
        let node = serde_json::from_value(json!({"spec": {"podCIDR": range}})).unwrap();
        let found = super::range(&node, "10.244.0.0/16".parse().unwrap());
        found.map(|found| found.map(|found| found.to_string())).map_err(|error| error.to_string())
    }

    #[test]
    fn a_range_is_a_part_of_the_pod_network() {
        assert_eq!(given(""), Ok(None));
        assert_eq!(given("10.244.3.0/24"), Ok(Some("10.244.3.0/24".to_owned())));
        for other in ["10.245.3.0/24", "10.244.0.0/16", "10.244.3.1/24", "fd00::/64", "rubbish"] {
            let error = given(other).unwrap_err();
            assert!(error.contains(other) && error.contains("worker.podNetwork"), "{error}");
        }
    }

    #[test]
    fn a_configuration_that_is_right_is_not_touched() {
        let scratch = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.paths.ephemeral = scratch.path().to_owned();
        fs::create_dir(scratch.path().join("config")).unwrap();
        let path = scratch.path().join("cni/net.d/10-pods.conflist");
        let write = |text| {
            write(&config.paths, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            fs::metadata(&path).unwrap().ino()
        };
        let first = write("first");
        assert_eq!(write("first"), first);
        assert_ne!(write("second"), first);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}
