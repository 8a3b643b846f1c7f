//! A fake kernel that records changes.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use clusternet::{Change, Device, DeviceError, PeerState, Peers, Place, PublicKey, RequestError, Traffic};

pub struct FakeDevice {
    key: PublicKey,
    state: Mutex<KernelState>,
}

#[derive(Clone, Default)]
pub struct KernelState {
    pub peers: Peers,
    /// Changes that each call of `change` has applied.
    pub batches: Vec<Vec<Change>>,
    /// Peers of each call of `begin_sessions` that did not fail.
    pub sessions: Vec<Vec<PublicKey>>,
    pub places: Vec<BTreeSet<Place>>,
    pub looks: usize,
    /// Whether key and port are correct.
    pub is_right: bool,
    fails_in_change: bool,
    fails_in_sessions: bool,
}

fn failed(step: &'static str) -> DeviceError {
    DeviceError::Request { step, interface: "fake".to_owned(), source: RequestError::TooLong }
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

    /// Lets the next call of `change` fail after its first change, and the next call of `begin_sessions`.
    pub fn fail_once(&self) {
        let mut state = self.lock();
        (state.fails_in_change, state.fails_in_sessions) = (true, true);
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
        let applied = if mem::take(&mut state.fails_in_change) { &changes[..1] } else { changes };
        applied.iter().for_each(|change| change.apply(&mut state.peers));
        state.batches.push(applied.to_vec());
        if applied.len() < changes.len() { Err(failed("change the peers")) } else { Ok(()) }
    }

    fn begin_sessions(&self, peers: &[PublicKey]) -> Result<(), DeviceError> {
        let mut state = self.lock();
        if mem::take(&mut state.fails_in_sessions) {
            return Err(failed("begin sessions"));
        }
        state.sessions.push(peers.to_vec());
        Ok(())
    }
}
