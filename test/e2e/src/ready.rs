//! Where suites that do not test booting get their nodes.

use crate::{Failure, Setting, observer};
use launch::{BootError, Cluster, ClusterError, ClusterOptions, Node, Options};

/// There is no node to work with.
#[derive(Debug, thiserror::Error)]
pub enum ReadyError {
    /// The node does not boot.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// The pod that looks at the node does not start on it.
    #[error("cannot start the observer")]
    Observer(#[from] Failure),
}

impl Setting {
    /// A node that is Ready, with the observer's pod ([`Case::look_at_the_node`](crate::Case::look_at_the_node)). It is
    /// the only function that suites with one node get it from, so that all of them can share one saved state.
    ///
    /// # Errors
    /// [`ReadyError`]. No guest runs then.
    pub async fn ready_node(&self, options: &Options) -> Result<Node, ReadyError> {
        let node = Node::boot(options, |event| println!("{event}")).await?;
        observer::start(&node.client()).await?;
        Ok(node)
    }

    /// A cluster whose nodes are all Ready. It is the only function that suites with several nodes get their control
    /// plane from.
    ///
    /// # Errors
    /// [`ClusterError`]. No guest runs then.
    pub async fn ready_cluster(&self, options: &ClusterOptions) -> Result<Cluster, ClusterError> {
        Cluster::boot(options, |node, event| println!("{node}: {event}")).await
    }
}
