//! A kernel that remembers what was done to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use clusternet::{
    AddressError, Change, ChangeError, Device, EnsureError, LookError, Peers, Place, PublicKey, Seen, Traffic,
};

/// The interface.
pub struct FakeDevice {
    key: PublicKey,
    state: Mutex<State>,
}

#[derive(Clone, Default)]
pub struct State {
    pub peers: Peers,
    /// Every call that changed peers.
    pub batches: Vec<Vec<Change>>,
    /// Every call that gave it addresses.
    pub places: Vec<BTreeSet<Place>>,
    pub looks: usize,
    /// Its key and port are what they shall be.
    pub is_right: bool,
}

impl FakeDevice {
    /// An interface that an earlier run has left.
    pub fn with(key: PublicKey, peers: Peers) -> Self {
        Self { key, state: Mutex::new(State { peers, ..State::default() }) }
    }

    pub fn state(&self) -> State {
        self.lock().clone()
    }

    /// Somebody else has taken everything from the interface, and given it another port.
    pub fn forget(&self) {
        let mut state = self.lock();
        state.is_right = false;
        state.peers.clear();
        state.places.clear();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device for FakeDevice {
    fn ensure(&self) -> Result<PublicKey, EnsureError> {
        self.lock().is_right = true;
        Ok(self.key)
    }

    fn place(&self, places: &BTreeSet<Place>) -> Result<(), AddressError> {
        self.lock().places.push(places.clone());
        Ok(())
    }

    fn look(&self) -> Result<BTreeMap<PublicKey, Seen>, LookError> {
        let mut state = self.lock();
        state.looks += 1;
        let seen = |(key, peer)| (key, Seen { peer, traffic: Traffic::default() });
        Ok(state.peers.clone().into_iter().map(seen).collect())
    }

    fn change(&self, changes: &[Change]) -> Result<(), ChangeError> {
        let mut state = self.lock();
        changes.iter().for_each(|change| change.apply(&mut state.peers));
        state.batches.push(changes.to_vec());
        Ok(())
    }
}
