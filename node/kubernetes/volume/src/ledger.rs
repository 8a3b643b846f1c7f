//! What is promised of the data disk. Pure.

use std::collections::BTreeMap;

use units::Bytes;

use crate::VolumeId;

/// The promises of all records: what the disk holds, in memory, so that a new claim costs no walk over the others.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    promises: BTreeMap<VolumeId, Bytes>,
    total: Bytes,
}

/// What the data disk has and may still promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// The size of its file system.
    pub size: Bytes,
    /// What is promised to volumes.
    pub promised: Bytes,
    /// What else lives on the disk may take this.
    pub reserve: Bytes,
}

impl Space {
    /// What may still be promised.
    pub fn free(&self) -> Bytes {
        self.size.saturating_sub(self.reserve).saturating_sub(self.promised)
    }
}

impl Ledger {
    /// Notes a promise that is made already: it stands, whether or not the disk has room.
    pub(crate) fn note(&mut self, id: VolumeId, promise: Bytes) {
        let former = self.promises.insert(id, promise).unwrap_or_default();
        self.total = self.total.saturating_sub(former).saturating_add(promise);
    }

    /// Makes a promise, once per volume, if it fits into `size` less `reserve`.
    ///
    /// # Errors
    /// The space there is.
    pub(crate) fn promise(&mut self, id: &VolumeId, promise: Bytes, disk: Disk) -> Result<(), Space> {
        if self.promises.contains_key(id) {
            return Ok(());
        }
        let space = self.space(disk);
        if promise > space.free() {
            return Err(space);
        }
        self.note(id.clone(), promise);
        Ok(())
    }

    /// Takes the promise back.
    pub(crate) fn release(&mut self, id: &VolumeId) {
        self.total = self.total.saturating_sub(self.promises.remove(id).unwrap_or_default());
    }

    pub(crate) fn space(&self, disk: Disk) -> Space {
        Space { size: disk.size, promised: self.total, reserve: disk.reserve }
    }
}

/// The data disk, as far as the ledger knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disk {
    pub(crate) size: Bytes,
    pub(crate) reserve: Bytes,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DISK: Disk = Disk { size: Bytes::new(100), reserve: Bytes::new(10) };

    fn id(number: u8) -> VolumeId {
        format!("pvc-{number}").parse().expect("it is an identifier")
    }

    #[test]
    fn the_last_byte_can_be_promised_and_no_more() {
        let mut ledger = Ledger::default();
        ledger.promise(&id(1), Bytes::new(50), DISK).unwrap();
        assert_eq!(ledger.promise(&id(2), Bytes::new(41), DISK).unwrap_err().free(), Bytes::new(40));
        ledger.promise(&id(2), Bytes::new(40), DISK).unwrap();
        assert_eq!(ledger.space(DISK).free(), Bytes::ZERO);
    }

    #[test]
    fn one_volume_is_counted_once() {
        let mut ledger = Ledger::default();
        ledger.promise(&id(1), Bytes::new(50), DISK).unwrap();
        ledger.promise(&id(1), Bytes::new(50), DISK).unwrap();
        assert_eq!(ledger.space(DISK).promised, Bytes::new(50));
        ledger.release(&id(1));
        ledger.release(&id(1));
        assert_eq!(ledger.space(DISK).promised, Bytes::ZERO);
    }

    #[test]
    fn promises_beyond_a_shrunken_disk_leave_nothing_free() {
        let mut ledger = Ledger::default();
        ledger.note(id(1), Bytes::new(u64::MAX));
        ledger.note(id(2), Bytes::new(u64::MAX));
        assert_eq!(ledger.space(DISK).free(), Bytes::ZERO);
        assert!(ledger.promise(&id(3), Bytes::new(1), DISK).is_err());
    }

    proptest! {
        #[test]
        fn whatever_is_asked_the_sum_fits(asked in prop::collection::vec((0u8..9, 0u64..60, any::<bool>()), 0..40)) {
            let mut ledger = Ledger::default();
            for (number, promise, keep) in asked {
                let _ = ledger.promise(&id(number), Bytes::new(promise), DISK);
                if !keep {
                    ledger.release(&id(number));
                }
                let sum: Bytes = ledger.promises.values().copied().sum();
                prop_assert_eq!(ledger.space(DISK).promised, sum);
                prop_assert!(sum <= Bytes::new(90));
            }
        }
    }
}
