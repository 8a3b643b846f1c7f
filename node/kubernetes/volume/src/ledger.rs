//! Reserved space of the data disk. Pure.

use std::collections::BTreeMap;

use units::Bytes;

use crate::record::{Allocation, Mode};
use crate::{BLOCK, Overcommit, VolumeId};

/// Reservations of all records on the disk, kept in memory, so that a new claim does not read the other records.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    reservations: BTreeMap<VolumeId, Bytes>,
    total: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub size: Bytes,
    pub reserved: Bytes,
    pub reserve: Bytes,
    /// Factor by which reservations may exceed the size of the disk.
    pub overcommit: Overcommit,
}

impl Space {
    pub fn free(&self) -> Bytes {
        self.overcommit.of(self.size).saturating_sub(self.reserve).saturating_sub(self.reserved)
    }

    /// Largest filesystem volume that fits, with the number of inodes of a class without that parameter.
    pub fn largest_filesystem(&self) -> Bytes {
        self.largest(|size| Mode::Filesystem { inodes: fsquota::default_inodes(size) })
    }

    pub fn largest_block(&self) -> Bytes {
        self.largest(|_| Mode::Block { allocation: Allocation::Thick })
    }

    /// Largest volume that fits, in whole blocks. `mode` returns the mode for a size, and the reservation of a larger
    /// volume must not be less.
    pub fn largest(&self, mode: impl Fn(Bytes) -> Mode) -> Bytes {
        let fits = |blocks: u64| {
            let size = Bytes::new(blocks * BLOCK);
            mode(size).reserved(size) <= self.free()
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
    /// Adds an existing reservation, also if the disk has too little space.
    pub(crate) fn note(&mut self, id: VolumeId, reservation: Bytes) {
        let former = self.reservations.insert(id, reservation).unwrap_or_default();
        self.total = self.total.saturating_sub(former).saturating_add(reservation);
    }

    /// Reserves space, once per volume, if it fits into `size` less `reserve`.
    pub(crate) fn reserve(&mut self, id: &VolumeId, reservation: Bytes, disk: Disk) -> Result<(), Space> {
        if self.reservations.contains_key(id) {
            return Ok(());
        }
        let space = self.space(disk);
        if reservation > space.free() {
            return Err(space);
        }
        self.note(id.clone(), reservation);
        Ok(())
    }

    /// Reserves space for new volumes, all or none of them.
    pub(crate) fn reserve_all(&mut self, all: &[(&VolumeId, Bytes)], disk: Disk) -> Result<(), Space> {
        let space = self.space(disk);
        if all.iter().map(|(_, reservation)| *reservation).sum::<Bytes>() > space.free() {
            return Err(space);
        }
        all.iter().for_each(|(id, reservation)| self.note((*id).clone(), *reservation));
        Ok(())
    }

    /// Raises the reservation of a volume, if the difference fits.
    pub(crate) fn raise(&mut self, id: &VolumeId, reservation: Bytes, disk: Disk) -> Result<(), Space> {
        let former = self.reservations.get(id).copied().unwrap_or_default();
        let space = self.space(disk);
        if reservation.saturating_sub(former) > space.free() {
            return Err(space);
        }
        self.note(id.clone(), reservation.max(former));
        Ok(())
    }

    pub(crate) fn release(&mut self, id: &VolumeId) {
        self.total = self.total.saturating_sub(self.reservations.remove(id).unwrap_or_default());
    }

    pub(crate) fn space(&self, disk: Disk) -> Space {
        Space { size: disk.size, reserved: self.total, reserve: disk.reserve, overcommit: disk.overcommit }
    }
}

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
    fn the_last_byte_can_be_reserved_and_no_more() {
        let mut ledger = Ledger::default();
        ledger.reserve(&id(1), Bytes::new(50), DISK).unwrap();
        assert_eq!(ledger.reserve(&id(2), Bytes::new(41), DISK).unwrap_err().free(), Bytes::new(40));
        ledger.reserve(&id(2), Bytes::new(40), DISK).unwrap();
        assert_eq!(ledger.space(DISK).free(), Bytes::ZERO);
    }

    #[test]
    fn one_volume_is_counted_once() {
        let mut ledger = Ledger::default();
        ledger.reserve(&id(1), Bytes::new(50), DISK).unwrap();
        ledger.reserve(&id(1), Bytes::new(50), DISK).unwrap();
        assert_eq!(ledger.space(DISK).reserved, Bytes::new(50));
        ledger.release(&id(1));
        ledger.release(&id(1));
        assert_eq!(ledger.space(DISK).reserved, Bytes::ZERO);
    }

    #[test]
    fn a_reservation_grows_and_never_shrinks() {
        let mut ledger = Ledger::default();
        ledger.reserve(&id(1), Bytes::new(50), DISK).unwrap();
        ledger.reserve(&id(2), Bytes::new(20), DISK).unwrap();
        assert_eq!(ledger.raise(&id(1), Bytes::new(71), DISK).unwrap_err().free(), Bytes::new(20));
        ledger.raise(&id(1), Bytes::new(70), DISK).unwrap();
        ledger.raise(&id(1), Bytes::new(60), DISK).unwrap();
        assert_eq!(ledger.space(DISK).reserved, Bytes::new(90));
    }

    #[test]
    fn overcommit_multiplies_the_disk_but_not_the_reserve() {
        let disk = Disk { overcommit: "1.5".parse().unwrap(), ..DISK };
        assert_eq!(Ledger::default().space(disk).free(), Bytes::new(140));
    }

    #[test]
    fn reservations_beyond_a_smaller_disk_leave_nothing_free() {
        let mut ledger = Ledger::default();
        ledger.note(id(1), Bytes::new(u64::MAX));
        ledger.note(id(2), Bytes::new(u64::MAX));
        assert_eq!(ledger.space(DISK).free(), Bytes::ZERO);
        assert!(ledger.reserve(&id(3), Bytes::new(1), DISK).is_err());
    }

    proptest! {
        #[test]
        fn the_largest_volume_fits_and_a_block_more_does_not(size in 0u64..1 << 50, reserved in 0u64..1 << 50, ratio in 512u64..1 << 20) {
            let space = Space {
                size: Bytes::new(size),
                reserved: Bytes::new(reserved),
                reserve: Bytes::ZERO,
                overcommit: Overcommit::NONE,
            };
            let files = |size: Bytes| Mode::Filesystem { inodes: Inodes::new((size.get() / ratio).max(64)) };
            let disk = |_| Mode::Block { allocation: Allocation::Thin };
            for mode in [&files as &dyn Fn(Bytes) -> Mode, &disk] {
                let largest = space.largest(mode);
                let more = Bytes::new(largest.get() + 4096);
                prop_assert!(largest == Bytes::ZERO || mode(largest).reserved(largest) <= space.free());
                prop_assert!(mode(more).reserved(more) > space.free());
            }
            prop_assert_eq!(space.largest_block(), space.largest(disk));
        }

        #[test]
        fn the_sum_fits_after_any_requests(requests in prop::collection::vec((0u8..9, 0u64..60, any::<bool>()), 0..40)) {
            let mut ledger = Ledger::default();
            for (number, reservation, keep) in requests {
                let _ = ledger.reserve(&id(number), Bytes::new(reservation), DISK);
                if !keep {
                    ledger.release(&id(number));
                }
                let sum: Bytes = ledger.reservations.values().copied().sum();
                prop_assert_eq!(ledger.space(DISK).reserved, sum);
                prop_assert!(sum <= Bytes::new(90));
            }
        }
    }
}
