//! Whom a node exchanges pod traffic with: the kernel's peers, by the names of their Nodes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Device, LookError, Metrics, PublicKey, Seen};

/// The Nodes of the peers, as the last pass saw them.
pub(crate) type Names = Arc<Mutex<BTreeMap<PublicKey, String>>>;

/// Whoever wants to know the peers asks this. All clones are the same.
#[derive(Clone)]
pub struct Neighbours {
    names: Names,
    device: Arc<dyn Device>,
}

/// Another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its name. A peer of an earlier run has none until the Nodes were listed.
    pub node: Option<String>,
    /// By which the kernel knows it.
    pub key: PublicKey,
    /// What the kernel knows of it.
    pub seen: Seen,
}

impl Neighbours {
    /// The peers of this device, by the names that the controller with these metrics learns.
    pub fn new(metrics: &Metrics, device: Arc<dyn Device>) -> Self {
        Self { names: Arc::clone(metrics.names()), device }
    }

    /// All of them, as they are now, by key. Waits for the kernel.
    ///
    /// # Errors
    /// [`LookError`].
    pub fn look(&self) -> Result<Vec<Neighbour>, LookError> {
        let found = self.device.look()?;
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let neighbour = |(key, seen)| Neighbour { node: names.get(&key).cloned(), key, seen };
        Ok(found.into_iter().map(neighbour).collect())
    }
}

impl fmt::Debug for Neighbours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Neighbours").field("names", &self.names).finish_non_exhaustive()
    }
}
