//! A fake kernel that records changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use clusternet::{Change, Device, DeviceError, PeerState, Peers, Place, PublicKey, Traffic};

pub struct FakeDevice {
    key: PublicKey,
    state: Mutex<KernelState>,
}

#[derive(Clone, Default)]
pub struct KernelState {
    pub peers: Peers,
    pub batches: Vec<Vec<Change>>,
    /// Peers of each call of `begin_sessions`.
    pub sessions: Vec<Vec<PublicKey>>,
    pub places: Vec<BTreeSet<Place>>,
    pub looks: usize,
    /// Whether key and port are correct.
    pub is_right: bool,
}

impl FakeDevice {
    /// A device with the interface of an earlier run.
    pub fn with(key: PublicKey, peers: Peers) -> Self {
        Self { key, state: Mutex::new(KernelState { peers, ..KernelState::default() }) }
    }

    pub fn state(&self) -> KernelState {
        self.lock().clone()
    }

    /// Simulates another program that resets the interface.
    pub fn forget(&self) {
        let mut state = self.lock();
        state.is_right = false;
        state.peers.clear();
        state.places.clear();
    }

    fn lock(&self) -> MutexGuard<'_, KernelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device for FakeDevice {
    fn ensure(&self) -> Result<PublicKey, DeviceError> {
        self.lock().is_right = true;
        Ok(self.key)
    }

    fn place(&self, places: &BTreeSet<Place>) -> Result<(), DeviceError> {
        self.lock().places.push(places.clone());
        Ok(())
    }

    fn look(&self) -> Result<BTreeMap<PublicKey, PeerState>, DeviceError> {
        let mut state = self.lock();
        state.looks += 1;
        let seen = |(key, peer)| (key, PeerState { peer, traffic: Traffic::default() });
        Ok(state.peers.clone().into_iter().map(seen).collect())
    }

    fn change(&self, changes: &[Change]) -> Result<(), DeviceError> {
        let mut state = self.lock();
        changes.iter().for_each(|change| change.apply(&mut state.peers));
        state.batches.push(changes.to_vec());
        Ok(())
    }

    fn begin_sessions(&self, peers: &[PublicKey]) -> Result<(), DeviceError> {
        self.lock().sessions.push(peers.to_vec());
        Ok(())
    }
}
