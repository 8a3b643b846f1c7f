//! Sessions that a boot of this node has ended.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Peers, PublicKey};

/// Peers that may have sessions from before the boot of this node, until this node has begun others. Clones share the
/// peers, which outlive a restart of the controller: after an error in the changes or in the sessions, the kernel has
/// peers, and does not show any more that the node has booted.
#[derive(Clone, Debug, Default)]
pub struct LostSessions(Arc<Mutex<BTreeSet<PublicKey>>>);

impl LostSessions {
    pub(crate) fn add(&self, peers: &Peers) {
        self.lock().extend(peers.keys());
    }

    /// Peers in `wanted` whose sessions are lost. Forgets all other peers.
    pub(crate) fn of(&self, wanted: &Peers) -> Vec<PublicKey> {
        let mut lost = self.lock();
        lost.retain(|key| wanted.contains_key(key));
        lost.iter().copied().collect()
    }

    pub(crate) fn begun(&self, peers: &[PublicKey]) {
        let mut lost = self.lock();
        for key in peers {
            lost.remove(key);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<PublicKey>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::tests::{key, peer};

    fn peers<const N: usize>(numbers: [u8; N]) -> Peers {
        numbers.map(|number| (key(number), peer(number, [number]))).into()
    }

    #[test]
    fn a_session_is_lost_until_it_begins_or_its_peer_is_removed() {
        let lost = LostSessions::default();
        lost.clone().add(&peers([1, 2, 3]));
        assert_eq!(lost.of(&peers([1, 2, 4])), [key(1), key(2)]);
        lost.begun(&[key(1)]);
        assert_eq!(lost.of(&peers([1, 2, 3])), [key(2)]);
    }
}
