//! Leases of open volumes. Pure.
//!
//! A caller that has opened a volume uses its directory without the volume's lock. Until the lease ends, no rollback
//! exchanges the directory: a publish would otherwise show the former content.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::VolumeId;

#[derive(Clone, Debug, Default)]
pub(crate) struct Leases(Arc<Mutex<BTreeMap<VolumeId, Use>>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Open(usize),
    /// A rollback is the only user of the volume.
    Exclusive,
}

/// Use of a volume, which ends on drop.
#[derive(Debug)]
pub(crate) struct Lease {
    leases: Leases,
    volume: VolumeId,
}

impl Leases {
    /// `None` while a rollback has the volume.
    pub(crate) fn open(&self, volume: &VolumeId) -> Option<Lease> {
        self.take(volume, |found| match found {
            None => Some(Use::Open(1)),
            Some(Use::Open(count)) => Some(Use::Open(count + 1)),
            Some(Use::Exclusive) => None,
        })
    }

    /// `None` while the volume is open.
    pub(crate) fn exclusive(&self, volume: &VolumeId) -> Option<Lease> {
        self.take(volume, |found| found.is_none().then_some(Use::Exclusive))
    }

    fn take(&self, volume: &VolumeId, next: impl FnOnce(Option<Use>) -> Option<Use>) -> Option<Lease> {
        let mut table = self.table();
        let next = next(table.get(volume).copied())?;
        table.insert(volume.clone(), next);
        Some(Lease { leases: self.clone(), volume: volume.clone() })
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<VolumeId, Use>> {
        // No code panics while it holds the table.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Entry::Occupied(mut found) = self.leases.table().entry(self.volume.clone()) {
            match *found.get() {
                Use::Open(count) if count > 1 => drop(found.insert(Use::Open(count - 1))),
                Use::Open(_) | Use::Exclusive => drop(found.remove()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollback_waits_for_all_that_have_the_volume_open() {
        let (leases, volume, other) = (Leases::default(), "pvc-1".parse().unwrap(), "pvc-2".parse().unwrap());
        let (first, second) = (leases.open(&volume).unwrap(), leases.open(&volume).unwrap());
        assert!(leases.exclusive(&volume).is_none());
        drop(first);
        assert!(leases.exclusive(&volume).is_none());
        drop(second);
        let alone = leases.exclusive(&volume).unwrap();
        assert!(leases.open(&volume).is_none() && leases.exclusive(&volume).is_none());
        drop(leases.open(&other).unwrap());
        drop(alone);
        drop(leases.open(&volume).unwrap());
        assert!(leases.table().is_empty());
    }
}
