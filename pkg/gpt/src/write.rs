//! Conversion of a table to the bytes of a disk.

use std::ops::RangeInclusive;

use bytemuck::bytes_of;
use gpt_disk_types::{Crc32, GptHeader, LbaLe, MasterBootRecord, U32Le};

use crate::table::{ENTRIES, ENTRY, FIRST_HEADER, Table};

/// Bytes to write to the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Offset in bytes.
    pub at: u64,
    /// Content, whole sectors.
    pub bytes: Vec<u8>,
}

/// The disk is too small for the table or a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the partition table does not fit on a disk of {sectors} sectors")]
pub struct SizeError {
    /// Size of the disk in sectors.
    pub sectors: u64,
}

impl Table {
    /// The writes that store this table on a disk of `sectors` sectors. The disk must have a protective MBR, and either
    /// no table or the one that this table was parsed from. Make each write durable before the next. On a disk that was
    /// enlarged, the second copy is written at the new end.
    ///
    /// # Errors
    /// [`SizeError`].
    pub fn writes(&self, sectors: u64) -> Result<[Write; 3], SizeError> {
        let last_usable = self.last_usable(sectors).ok_or(SizeError { sectors })?;
        let bytes_of_disk = sectors.checked_mul(self.sector.to_u64()).ok_or(SizeError { sectors })?;
        if self.partitions().any(|partition| partition.last > last_usable) {
            return Err(SizeError { sectors });
        }
        let last = sectors - 1;
        let (array, checksum) = self.array_bytes();
        let usable = self.first_usable()..=last_usable;
        let header = |at, other, array| self.header(at, other, array, &usable, checksum);
        let place = self.array(self.next);
        // The table fits on the disk, so the following arithmetic cannot overflow.
        let at = |lba: u64| lba * self.sector.to_u64();
        let second = [array.clone(), header(last, FIRST_HEADER, last_usable + 1)].concat();
        debug_assert_eq!(at(last_usable + 1) + second.len() as u64, bytes_of_disk);
        Ok([
            Write { at: at(last_usable + 1), bytes: second },
            Write { at: at(place), bytes: array },
            Write { at: at(FIRST_HEADER), bytes: header(FIRST_HEADER, last, place) },
        ])
    }

    /// The sector `at` with a header; the header of the other copy is in the sector `other`.
    pub(crate) fn header(
        &self,
        at: u64,
        other: u64,
        array: u64,
        usable: &RangeInclusive<u64>,
        checksum: u32,
    ) -> Vec<u8> {
        let mut header = GptHeader {
            my_lba: LbaLe::from_u64(at),
            alternate_lba: LbaLe::from_u64(other),
            first_usable_lba: LbaLe::from_u64(*usable.start()),
            last_usable_lba: LbaLe::from_u64(*usable.end()),
            disk_guid: self.disk,
            partition_entry_lba: LbaLe::from_u64(array),
            number_of_partition_entries: U32Le::from_u32(ENTRIES),
            size_of_partition_entry: U32Le::from_u32(ENTRY),
            partition_entry_array_crc32: Crc32(U32Le::from_u32(checksum)),
            ..GptHeader::default()
        };
        header.update_header_crc32();
        let mut sector = bytes_of(&header).to_vec();
        sector.resize(self.sector.to_u32() as usize, 0);
        sector
    }
}

/// Sector 0 of a disk with a GPT. It keeps programs without GPT support from treating the disk as empty. It contains
/// the maximum size, because an image may be written to a disk of any size.
pub fn protective_mbr() -> [u8; 512] {
    let mut mbr = MasterBootRecord::protective_mbr(1 << 32);
    mbr.partitions[0].size_in_lba = U32Le::from_u32(u32::MAX);
    let mut bytes = [0; 512];
    bytes.copy_from_slice(bytes_of(&mbr));
    bytes
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use gpt_disk_types::{Guid, guid};
    use proptest::prelude::*;

    use super::*;
    use crate::{AddError, ParseError, Partition};

    const SECTORS: u64 = 4096;
    const DISK: Guid = guid!("5ad00000-0000-4000-8000-000000000000");
    const KIND: Guid = guid!("793a9f54-88f2-464f-99d7-63533fe78374");

    fn partition(number: u32, first: u64, last: u64) -> Partition {
        let id = Guid::from_random_bytes([number as u8; 16]);
        let number = NonZeroU32::new(number).unwrap();
        Partition { number, kind: KIND, id, first, last, name: format!("PART-{number}") }
    }

    fn table(sector: u32, partitions: &[Partition]) -> Table {
        let mut table = Table::new(DISK, sector).unwrap();
        for partition in partitions {
            table.add(partition).unwrap();
        }
        table
    }

    /// Disk in memory.
    struct Disk {
        sector: u32,
        bytes: Vec<u8>,
    }

    impl Disk {
        fn new(table: &Table, sectors: u64) -> Self {
            let mut disk =
                Self { sector: table.sector(), bytes: vec![0; (sectors * u64::from(table.sector())) as usize] };
            disk.bytes[..512].copy_from_slice(&protective_mbr());
            disk.apply(&table.writes(sectors).unwrap());
            disk
        }

        fn apply(&mut self, writes: &[Write]) {
            for write in writes {
                self.bytes[write.at as usize..][..write.bytes.len()].copy_from_slice(&write.bytes);
            }
        }

        fn parse(&self) -> Result<Table, ParseError> {
            Table::parse(&self.bytes[..Table::length(self.sector)], self.sector)
        }

        fn partitions(&self) -> Vec<Partition> {
            self.parse().unwrap().partitions().collect()
        }

        fn sectors(&self) -> u64 {
            self.bytes.len() as u64 / u64::from(self.sector)
        }
    }

    #[test]
    fn a_written_table_is_parsed() {
        for sector in [512, 4096] {
            let partitions = [partition(1, 2048, 2303), partition(3, 2560, 3000)];
            let disk = Disk::new(&table(sector, &partitions), SECTORS);
            assert_eq!(disk.partitions(), partitions);
            assert_eq!(disk.parse().unwrap().former_end(), Some(SECTORS - 1));
        }
    }

    #[test]
    fn a_new_table_is_at_the_standard_place() {
        let writes = table(512, &[]).writes(SECTORS).unwrap();
        let places: Vec<_> = writes.iter().map(|write| (write.at / 512, write.bytes.len() / 512)).collect();
        assert_eq!(places, [(SECTORS - 33, 33), (2, 32), (1, 1)]);
    }

    #[test]
    fn partitions_that_do_not_fit_are_rejected() {
        let mut table = table(512, &[partition(1, 2048, 2303)]);
        let range = |first, last| Err(AddError::Range { first, last });
        assert_eq!(table.add(&partition(2, 2303, 2400)), range(2303, 2400));
        assert_eq!(table.add(&partition(2, 65, 100)), range(65, 100));
        assert_eq!(table.add(&partition(2, 2500, 2499)), range(2500, 2499));
        assert_eq!(table.add(&partition(1, 2500, 2600)), Err(AddError::Number(NonZeroU32::MIN)));
        let long = Partition { name: "x".repeat(37), ..partition(2, 2500, 2600) };
        assert_eq!(table.add(&long), Err(AddError::Name));
        table.add(&partition(128, 2500, SECTORS - 34)).unwrap();
        assert!(table.writes(SECTORS).is_ok());
        assert_eq!(table.writes(SECTORS - 1), Err(SizeError { sectors: SECTORS - 1 }));
        assert_eq!(table.extend(NonZeroU32::MIN, 2500), range(2048, 2500));
        assert_eq!(table.extend(NonZeroU32::MIN, 2499), Ok(()));
        assert_eq!(table.extend(NonZeroU32::MIN, 2400), range(2048, 2400));
    }

    #[test]
    fn tables_of_other_tools_are_rejected_or_preserved() {
        let mut disk = Disk::new(&table(512, &[partition(1, 2048, 2303)]), SECTORS);
        disk.bytes[512] ^= 1;
        assert_eq!(disk.parse(), Err(ParseError::None));
        disk.bytes[512] ^= 1;
        disk.bytes[512 + 50] ^= 1;
        assert_eq!(disk.parse(), Err(ParseError::Damaged));
        disk.bytes[512 + 50] ^= 1;
        disk.bytes[1024 + 5] ^= 1;
        assert_eq!(disk.parse(), Err(ParseError::Damaged));
        disk.bytes[1024 + 5] ^= 1;
        disk.bytes[510] = 0;
        assert_eq!(disk.parse(), Err(ParseError::None));
        assert_eq!(Table::parse(&[], 512), Err(ParseError::Short));
        assert_eq!(Table::parse(&[], 1000), Err(ParseError::Sector(1000)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_power_failure_leaves_the_old_or_the_new_table(
            sector in prop_oneof![Just(512_u32), Just(4096)],
            growth in 0..4096_u64,
            length in 1..1500_u64,
            cut in 0..4_usize,
            missing: prop::sample::Index,
        ) {
            let old = [partition(1, 2048, 2303)];
            let mut disk = Disk::new(&table(sector, &old), SECTORS);
            let new = disk.bytes.len() + (growth * u64::from(sector)) as usize;
            disk.bytes.resize(new, 0);
            let added = partition(2, 2304, 2304 + length);
            let mut next = disk.parse().unwrap();
            next.add(&added).unwrap();
            let writes = next.writes(disk.sectors()).unwrap();
            disk.apply(&writes[..cut.min(writes.len())]);
            // The interrupted write stores some of its sectors only.
            if let Some(torn) = writes.get(cut).filter(|write| write.bytes.len() > sector as usize) {
                let written = missing.index(torn.bytes.len() / sector as usize) * sector as usize;
                disk.apply(&[Write { at: torn.at, bytes: torn.bytes[..written].to_vec() }]);
            }
            let is_new = cut >= writes.len();
            let wanted: Vec<_> = old.into_iter().chain(is_new.then_some(added)).collect();
            prop_assert_eq!(disk.partitions(), wanted);
            // The next update is atomic too.
            let next = disk.parse().unwrap().writes(disk.sectors()).unwrap();
            prop_assert_ne!(next[1].at == writes[1].at, is_new);
        }

        #[test]
        fn parsing_never_panics(bytes: Vec<u8>, sector: u32) {
            let _ = Table::parse(&bytes, sector);
        }
    }
}
