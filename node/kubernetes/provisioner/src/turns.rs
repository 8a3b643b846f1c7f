//! One pass at a time per volume, whichever object began it.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use volume::VolumeId;

/// The volumes that passes are at.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<BTreeSet<VolumeId>>);

/// Ends the turn when dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    id: VolumeId,
}

impl Turns {
    /// `None` while another pass is at the volume: nobody waits for it, everybody comes again.
    pub(crate) fn take(&self, id: &VolumeId) -> Option<Turn<'_>> {
        // A set of names stays right if a thread panics beside it.
        let mut busy = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        busy.insert(id.clone()).then(|| Turn { turns: self, id: id.clone() })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_one_pass_at_a_time() {
        let turns = Turns::default();
        let (one, two) = ("pvc-1".parse().unwrap(), "pvc-2".parse().unwrap());
        let turn = turns.take(&one).expect("nobody is there");
        assert!(turns.take(&one).is_none());
        assert!(turns.take(&two).is_some());
        drop(turn);
        assert!(turns.take(&one).is_some());
    }
}
