//! What is promised of the data disk. Pure.

use std::collections::BTreeMap;

use units::Bytes;

use crate::record::{Allocation, Mode};
use crate::{Overcommit, VolumeId};

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
    /// How much more than the disk holds may be promised.
    pub overcommit: Overcommit,
}

impl Space {
    /// What may still be promised.
    pub fn free(&self) -> Bytes {
        self.overcommit.of(self.size).saturating_sub(self.reserve).saturating_sub(self.promised)
    }

    /// The largest filesystem volume that fits, with as many files as a class has that says nothing of them.
    pub fn largest_filesystem(&self) -> Bytes {
        self.largest(|size| Mode::Filesystem { inodes: fsquota::default_inodes(size) })
    }

    /// The largest block volume that fits.
    pub fn largest_block(&self) -> Bytes {
        self.largest(|_| Mode::Block { allocation: Allocation::Thick })
    }

    /// The largest volume that fits, in whole blocks, when one of a size has this mode. The promise of a larger one
    /// must not be less.
    pub fn largest(&self, mode: impl Fn(Bytes) -> Mode) -> Bytes {
        const BLOCK: u64 = 4096;
        let fits = |blocks: u64| {
            let size = Bytes::new(blocks * BLOCK);
            mode(size).promised(size) <= self.free()
        };
        let (mut fit, mut beyond) = (0, self.free().get() / BLOCK + 1);
        while beyond - fit > 1 {
            let middle = fit + (beyond - fit) / 2;
            if fits(middle) { fit = middle } else { beyond = middle }
        }
        Bytes::new(fit * BLOCK)
    }
}

impl Ledger {
    /// Notes a promise that is made already: it stands, whether or not the disk has room.
    pub(crate) fn note(&mut self, id: VolumeId, promise: Bytes) {
        let former = self.promises.insert(id, promise).unwrap_or_default();
        self.total = self.total.saturating_sub(former).saturating_add(promise);
    }

    /// Makes a promise, once per volume, if it fits into `size` less `reserve`.
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

    /// Makes the promise to a volume larger, if what is added fits. One that is as large already stays.
    pub(crate) fn raise(&mut self, id: &VolumeId, promise: Bytes, disk: Disk) -> Result<(), Space> {
        let former = self.promises.get(id).copied().unwrap_or_default();
        let space = self.space(disk);
        if promise.saturating_sub(former) > space.free() {
            return Err(space);
        }
        self.note(id.clone(), promise.max(former));
        Ok(())
    }

    /// Takes the promise back.
    pub(crate) fn release(&mut self, id: &VolumeId) {
        self.total = self.total.saturating_sub(self.promises.remove(id).unwrap_or_default());
    }

    pub(crate) fn space(&self, disk: Disk) -> Space {
        Space { size: disk.size, promised: self.total, reserve: disk.reserve, overcommit: disk.overcommit }
    }
}

/// The data disk, as far as the ledger knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disk {
    pub(crate) size: Bytes,
    pub(crate) reserve: Bytes,
    pub(crate) overcommit: Overcommit,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use units::Inodes;

    use super::*;

    const DISK: Disk = Disk { size: Bytes::new(100), reserve: Bytes::new(10), overcommit: Overcommit::NONE };

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
    fn a_promise_grows_by_what_is_added_and_never_shrinks() {
        let mut ledger = Ledger::default();
        ledger.promise(&id(1), Bytes::new(50), DISK).unwrap();
        ledger.promise(&id(2), Bytes::new(20), DISK).unwrap();
        assert_eq!(ledger.raise(&id(1), Bytes::new(71), DISK).unwrap_err().free(), Bytes::new(20));
        ledger.raise(&id(1), Bytes::new(70), DISK).unwrap();
        ledger.raise(&id(1), Bytes::new(60), DISK).unwrap();
        assert_eq!(ledger.space(DISK).promised, Bytes::new(90));
    }

    #[test]
    fn an_overcommitted_disk_promises_more_than_it_has_and_the_reserve_once() {
        let disk = Disk { overcommit: "1.5".parse().unwrap(), ..DISK };
        assert_eq!(Ledger::default().space(disk).free(), Bytes::new(140));
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
        fn the_largest_volume_fits_and_a_block_more_does_not(size in 0u64..1 << 50, promised in 0u64..1 << 50, ratio in 512u64..1 << 20) {
            let space = Space {
                size: Bytes::new(size),
                promised: Bytes::new(promised),
                reserve: Bytes::ZERO,
                overcommit: Overcommit::NONE,
            };
            let files = |size: Bytes| Mode::Filesystem { inodes: Inodes::new((size.get() / ratio).max(64)) };
            let disk = |_| Mode::Block { allocation: Allocation::Thin };
            for mode in [&files as &dyn Fn(Bytes) -> Mode, &disk] {
                let largest = space.largest(mode);
                let more = Bytes::new(largest.get() + 4096);
                prop_assert!(largest == Bytes::ZERO || mode(largest).promised(largest) <= space.free());
                prop_assert!(mode(more).promised(more) > space.free());
            }
            prop_assert_eq!(space.largest_block(), space.largest(disk));
        }

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
