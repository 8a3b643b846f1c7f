//! The kernel's peers with the names of their Nodes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Device, DeviceError, Metrics, PeerState, PublicKey};

/// Node names of the peers at the last pass.
pub(crate) type Names = Arc<Mutex<BTreeMap<PublicKey, String>>>;

/// Reads the peers. Clones share the names.
#[derive(Clone)]
pub struct Neighbours {
    names: Names,
    device: Arc<dyn Device>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Node name. `None` for a peer of an earlier run until the Nodes are listed.
    pub node: Option<String>,
    pub key: PublicKey,
    pub state: PeerState,
}

impl Neighbours {
    /// The peers of this device, with the names from the controller that uses these metrics.
    pub fn new(metrics: &Metrics, device: Arc<dyn Device>) -> Self {
        Self { names: Arc::clone(metrics.names()), device }
    }

    /// Reads all peers, in order of their keys. Blocks on the kernel.
    pub fn look(&self) -> Result<Vec<Neighbour>, DeviceError> {
        let found = self.device.look()?;
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let neighbour = |(key, state)| Neighbour { node: names.get(&key).cloned(), key, state };
        Ok(found.into_iter().map(neighbour).collect())
    }
}
