//! [`PartitionTable`].
//!
//! Reads partition tables by the rules of the kernel (block/partitions/efi.c): the disk has a protective MBR, and a
//! header counts if it and its array of entries have correct checksums. The kernel uses the first table; this module
//! compares it with the second one.

use std::io;
use std::ops::RangeInclusive;

use bytemuck::pod_read_unaligned;
use gpt_disk_types::{BlockSize, GptHeader, GptPartitionEntry, GptPartitionEntryArray, Guid, Lba, MasterBootRecord};
use units::Bytes;

use crate::table::{FIRST_HEADER, PROTECTIVE, block_size, header};

/// Maximum size of an array of entries in bytes. A table of 128 entries has 16 KiB.
const LARGEST_ARRAY: u64 = 1 << 20;

/// Both copies of the partition table of a disk, with any number and size of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionTable {
    /// Partitions by number. If the copies differ, the partitions of both.
    pub partitions: Vec<Extent>,
    /// State of the two copies.
    pub state: TableState,
}

/// A partition in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Number, from 1.
    pub number: u32,
    /// Partition type.
    pub kind: Guid,
    /// Offset.
    pub start: Bytes,
    /// Length.
    pub size: Bytes,
}

/// Which copies of a table are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableState {
    /// Both copies are valid and the same.
    Whole,
    /// Only the copy at the beginning is valid and readable, which is enough for the kernel.
    FirstOnly,
    /// Only the copy at the end is valid: the kernel shows no partitions.
    LastOnly,
    /// The partitions of the copies differ.
    Different,
}

impl PartitionTable {
    /// Reads the table of a disk of this size, with logical sectors of `sector` bytes. `read` is a function with the
    /// meaning of `read_exact_at`. `None` if the disk has no table with correct checksums.
    ///
    /// Reads at most 2 MiB and some sectors, independent of the content of the disk.
    ///
    /// # Errors
    /// Errors of `read`, except for the copy at the end if the first one is valid: for the kernel, a copy that cannot
    /// be read is invalid.
    pub fn read<R>(size: Bytes, sector: u32, mut read: R) -> io::Result<Option<Self>>
    where
        R: FnMut(&mut [u8], u64) -> io::Result<()>,
    {
        let Some(disk) = Sectors::new(size, sector) else { return Ok(None) };
        if !disk.is_protected(&mut read)? {
            return Ok(None);
        }
        let first = disk.copy(FIRST_HEADER, &mut read)?;
        // The first header has the sector of the other one, which is not at the end of an enlarged disk.
        let other = first.as_ref().map_or(disk.last, |first| first.other);
        let last = match disk.copy(other, &mut read) {
            Err(_) if first.is_some() => None,
            last => last?,
        };
        Ok(Self::of(first, last))
    }

    /// The table whose header is in the disk's last sector, whether another table refers to it or not: an image that
    /// was written over the beginning of a disk leaves the old table there. `None` if there is none with correct
    /// checksums.
    ///
    /// # Errors
    /// Errors of `read`.
    pub fn last<R>(size: Bytes, sector: u32, mut read: R) -> io::Result<Option<Self>>
    where
        R: FnMut(&mut [u8], u64) -> io::Result<()>,
    {
        let Some(disk) = Sectors::new(size, sector) else { return Ok(None) };
        Ok(Self::of(None, disk.copy(disk.last, &mut read)?))
    }

    fn of(first: Option<TableCopy>, last: Option<TableCopy>) -> Option<Self> {
        let (mut partitions, state) = match (first, last) {
            (None, None) => return None,
            (Some(first), None) => (first.partitions, TableState::FirstOnly),
            (None, Some(last)) => (last.partitions, TableState::LastOnly),
            (Some(first), Some(last)) if first.partitions == last.partitions => (first.partitions, TableState::Whole),
            (Some(first), Some(last)) => ([first.partitions, last.partitions].concat(), TableState::Different),
        };
        partitions.sort_unstable();
        partitions.dedup();
        Some(Self { partitions, state })
    }

    /// The partitions of this type.
    pub fn of_kind(&self, kind: Guid) -> impl Iterator<Item = &Extent> {
        self.partitions.iter().filter(move |partition| partition.kind == kind)
    }
}

/// A copy of the table with correct checksums.
struct TableCopy {
    /// Sector of the other copy's header.
    other: u64,
    partitions: Vec<Extent>,
}

type ReadAt<'a> = dyn FnMut(&mut [u8], u64) -> io::Result<()> + 'a;

/// A disk in its logical sectors.
#[derive(Clone, Copy)]
struct Sectors {
    size: BlockSize,
    last: u64,
}

impl Sectors {
    fn new(size: Bytes, sector: u32) -> Option<Self> {
        let size_of_sector = block_size(sector)?;
        let last = (size.get() / size_of_sector.to_u64()).checked_sub(1)?;
        Some(Self { size: size_of_sector, last })
    }

    /// A sector of the disk, `None` if it is beyond its end.
    fn sector(self, lba: u64, read: &mut ReadAt<'_>) -> io::Result<Option<Vec<u8>>> {
        if lba > self.last {
            return Ok(None);
        }
        let mut sector = vec![0; self.size.to_u32() as usize];
        // No overflow: the sector is on the disk, whose size is counted in bytes.
        read(&mut sector, lba * self.size.to_u64())?;
        Ok(Some(sector))
    }

    fn is_protected(self, read: &mut ReadAt<'_>) -> io::Result<bool> {
        let Some(sector) = self.sector(0, read)? else { return Ok(false) };
        let Some(mbr) = sector.get(..size_of::<MasterBootRecord>()) else { return Ok(false) };
        let mbr: MasterBootRecord = pod_read_unaligned(mbr);
        let mut protective = mbr.partitions.iter().filter(|record| record.os_indicator == PROTECTIVE);
        Ok(mbr.signature == [0x55, 0xaa]
            && protective.any(|record| u64::from(record.starting_lba.to_u32()) == FIRST_HEADER))
    }

    /// Reads the copy whose header is in this sector; `None` if a part of the copy is invalid.
    fn copy(self, lba: u64, read: &mut ReadAt<'_>) -> io::Result<Option<TableCopy>> {
        let Some(Ok(header)) = self.sector(lba, read)?.map(|sector| header(&sector, lba)) else { return Ok(None) };
        let Some((at, length)) = self.array(&header) else { return Ok(None) };
        let mut entries = vec![0; length];
        read(&mut entries, at)?;
        Ok(self.partitions(&header, &mut entries).map(|partitions| {
            let other = header.alternate_lba.to_u64();
            TableCopy { other, partitions }
        }))
    }

    /// Offset and length of the array of entries in bytes. The length is that of whole sectors.
    fn array(self, header: &GptHeader) -> Option<(u64, usize)> {
        let layout = header.get_partition_entry_array_layout().ok()?;
        let length =
            layout.num_bytes_rounded_to_block(self.size).filter(|length| (1..=LARGEST_ARRAY).contains(length))?;
        let first = layout.start_lba.to_u64();
        let end = first.checked_add(length / self.size.to_u64())?;
        let is_inside = first > 0 && end <= self.last + 1;
        if !is_inside {
            return None;
        }
        Some((first.checked_mul(self.size.to_u64())?, usize::try_from(length).ok()?))
    }

    /// The entries in use, by number. `None` if one of them is invalid: no part of an inconsistent table is used.
    fn partitions(self, header: &GptHeader, entries: &mut [u8]) -> Option<Vec<Extent>> {
        let layout = header.get_partition_entry_array_layout().ok()?;
        let array = GptPartitionEntryArray::new(layout, self.size, entries).ok()?;
        if array.calculate_crc32() != header.partition_entry_array_crc32 {
            return None;
        }
        let usable = header.first_usable_lba.to_u64()..=header.last_usable_lba.to_u64().min(self.last);
        // Independent of the usable range in the header: a write to a partition over the table would destroy the table.
        let rows = layout.num_bytes_rounded_to_block(self.size)? / self.size.to_u64();
        let (rows_at, header_at) = (layout.start_lba.to_u64(), header.my_lba.to_u64());
        let table = [0..=FIRST_HEADER, header_at..=header_at, rows_at..=rows_at.saturating_add(rows.saturating_sub(1))];
        let entries =
            (1..=layout.num_entries).filter_map(|number| Some((number, array.get_partition_entry(number - 1)?)));
        let partitions: Option<Vec<_>> = entries
            .filter(|(_, entry)| entry.is_used())
            .map(|(number, entry)| self.partition(number, entry, &usable, &table))
            .collect();
        partitions.filter(|partitions| !overlap(partitions))
    }

    fn partition(
        self,
        number: u32,
        entry: &GptPartitionEntry,
        usable: &RangeInclusive<u64>,
        table: &[RangeInclusive<u64>],
    ) -> Option<Extent> {
        let range = entry.lba_range()?;
        let (Lba(first), Lba(last)) = (range.start(), range.end());
        let kind = { entry.partition_type_guid }.0;
        let is_beside = |part: &RangeInclusive<u64>| last < *part.start() || first > *part.end();
        let is_possible = usable.contains(&first) && usable.contains(&last) && table.iter().all(is_beside);
        is_possible.then(|| Extent {
            number,
            kind,
            start: Bytes::new(first * self.size.to_u64()),
            size: Bytes::new((last - first + 1) * self.size.to_u64()),
        })
    }
}

fn overlap(partitions: &[Extent]) -> bool {
    let mut by_place = partitions.to_vec();
    by_place.sort_unstable_by_key(|partition| partition.start);
    by_place.windows(2).any(|pair| pair[0].start.saturating_add(pair[0].size) > pair[1].start)
}

#[cfg(test)]
mod tests {
    use bytemuck::bytes_of;
    use gpt_disk_types::{LbaLe, U32Le, guid};
    use proptest::prelude::*;

    use super::*;
    use crate::table::Table;
    use crate::write::protective_mbr;

    const SECTORS: u64 = 4096;
    const DATA_PARTITION: Guid = guid!("793a9f54-88f2-464f-99d7-63533fe78374");

    fn sectors_of_array(sector: u32) -> u64 {
        u64::from(128 * 128 / sector)
    }

    /// A disk with a table at the places of the specification. Tests set any field to a wrong value.
    struct Image {
        sector: u32,
        usable: RangeInclusive<u64>,
        bytes: Vec<u8>,
    }

    impl Image {
        fn new(sector: u32, partitions: &[(Guid, u64, u64)]) -> Self {
            let array = sectors_of_array(sector);
            Self::with_usable(sector, 2 + array..=SECTORS - 2 - array, partitions)
        }

        fn with_usable(sector: u32, usable: RangeInclusive<u64>, partitions: &[(Guid, u64, u64)]) -> Self {
            let bytes = vec![0; (SECTORS * u64::from(sector)) as usize];
            let mut image = Self { sector, usable, bytes };
            image.put(0, &protective_mbr());
            image.write(1, SECTORS - 1, 2, partitions);
            image.write(SECTORS - 1, 1, SECTORS - 1 - sectors_of_array(sector), partitions);
            image
        }

        /// Writes one copy of a table, with correct checksums.
        fn write(&mut self, lba: u64, other: u64, array: u64, partitions: &[(Guid, u64, u64)]) {
            let mut table = Table::new(Guid::ZERO, self.sector).unwrap();
            for (entry, (kind, first, last)) in table.entries.iter_mut().zip(partitions) {
                entry.partition_type_guid.0 = *kind;
                entry.starting_lba = LbaLe::from_u64(*first);
                entry.ending_lba = LbaLe::from_u64(*last);
            }
            let (entries, checksum) = table.array_bytes();
            self.put(array, &entries);
            self.put(lba, &table.header(lba, other, array, &self.usable, checksum));
        }

        fn put(&mut self, lba: u64, bytes: &[u8]) {
            let at = (lba * u64::from(self.sector)) as usize;
            self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn break_at(&mut self, lba: u64) {
            let at = (lba * u64::from(self.sector)) as usize;
            self.bytes[at + 24] ^= 1;
        }

        fn read(&self) -> Option<PartitionTable> {
            read(&self.bytes, self.sector)
        }
    }

    fn read(bytes: &[u8], sector: u32) -> Option<PartitionTable> {
        let size = Bytes::new(bytes.len() as u64);
        PartitionTable::read(size, sector, |buffer, at| {
            let at = usize::try_from(at).unwrap();
            let found = bytes.get(at..at + buffer.len()).expect("nothing beyond the disk is read");
            buffer.copy_from_slice(found);
            Ok(())
        })
        .unwrap()
    }

    const OTHER: Guid = guid!("c12a7328-f81f-11d2-ba4b-00a0c93ec93b");

    fn image() -> Image {
        Image::new(512, &[(OTHER, 64, 127), (Guid::ZERO, 0, 0), (DATA_PARTITION, 128, 255)])
    }

    #[test]
    fn partitions_are_read_from_sectors_of_any_size() {
        for sector in [512, 4096] {
            let table = Image::new(sector, &[(OTHER, 64, 127), (DATA_PARTITION, 128, 255)]).read().unwrap();
            let size = Bytes::new(128 * u64::from(sector));
            let data = Extent { number: 2, kind: DATA_PARTITION, start: size, size };
            assert_eq!(table.of_kind(DATA_PARTITION).collect::<Vec<_>>(), [&data]);
            assert_eq!((table.partitions.len(), table.state), (2, TableState::Whole));
        }
    }

    #[test]
    fn a_table_for_other_sectors_is_none() {
        assert_eq!(read(&image().bytes, 4096), None);
    }

    #[test]
    fn numbers_count_unused_entries_too() {
        assert_eq!(image().read().unwrap().of_kind(DATA_PARTITION).next().unwrap().number, 3);
    }

    #[test]
    fn one_copy_with_wrong_checksums_is_reported() {
        let (first, last) = (TableState::FirstOnly, TableState::LastOnly);
        for (lba, state) in [(SECTORS - 1, first), (SECTORS - 1 - 32, first), (1, last), (2, last)] {
            let mut image = image();
            image.break_at(lba);
            let table = image.read().unwrap();
            assert_eq!((table.of_kind(DATA_PARTITION).count(), table.state), (1, state));
        }
    }

    /// Regression: a block at the end of the disk that could not be read was an error.
    #[test]
    fn a_copy_at_the_end_that_cannot_be_read_is_invalid() {
        let unreadable = |first: bool, broken: u64| {
            let mut image = image();
            if !first {
                image.break_at(1);
            }
            PartitionTable::read(Bytes::new(image.bytes.len() as u64), 512, |buffer, at| {
                let (at, broken) = (at as usize, broken as usize * 512);
                if (at..at + buffer.len()).contains(&broken) {
                    return Err(io::ErrorKind::Other.into());
                }
                buffer.copy_from_slice(&image.bytes[at..at + buffer.len()]);
                Ok(())
            })
        };
        for broken in [SECTORS - 1, SECTORS - 1 - 32] {
            let table = unreadable(true, broken).unwrap().unwrap();
            assert_eq!((table.of_kind(DATA_PARTITION).count(), table.state), (1, TableState::FirstOnly));
            // The copy may be the only valid one.
            assert!(unreadable(false, broken).is_err());
        }
        assert!([0, 1, 2].into_iter().all(|broken| unreadable(true, broken).is_err()));
    }

    #[test]
    fn different_copies_are_both_reported() {
        let mut image = image();
        image.write(1, SECTORS - 1, 2, &[(OTHER, 64, 127)]);
        let table = image.read().unwrap();
        assert_eq!((table.of_kind(DATA_PARTITION).count(), table.state), (1, TableState::Different));
    }

    #[test]
    fn the_second_copy_of_an_enlarged_disk_is_where_the_first_one_says() {
        let mut image = image();
        image.bytes.resize(image.bytes.len() * 2, 0);
        assert_eq!(image.read().unwrap().state, TableState::Whole);
    }

    #[test]
    fn a_disk_without_a_protective_mbr_has_no_table() {
        let mut image = image();
        // The protective partition begins at another sector, so that the kernel shows no partitions.
        image.bytes[446 + 8] = 2;
        assert_eq!(image.read(), None);
        image.bytes[..512].fill(0);
        assert_eq!(image.read(), None);
    }

    #[test]
    fn a_partition_over_its_own_table_is_invalid() {
        // The protective MBR, the header, the first and the last sector of the entries; then the same of the second
        // copy.
        for first in [0, 1, 2, 33, SECTORS - 33, SECTORS - 1] {
            let over = [(DATA_PARTITION, first, first)];
            let mut image = Image::with_usable(512, 0..=SECTORS - 1, &over);
            // Only the copy below the partition is left.
            image.break_at(if first <= 33 { SECTORS - 1 } else { 1 });
            assert_eq!(image.read().map(|table| table.partitions), None, "{first}");
        }
        let beside = Image::with_usable(512, 0..=SECTORS - 1, &[(DATA_PARTITION, 34, SECTORS - 34)]);
        assert_eq!(beside.read().map(|table| table.partitions.len()), Some(1));
    }

    #[test]
    fn a_table_that_contradicts_itself_is_invalid() {
        let impossible: [&[_]; 4] = [
            &[(DATA_PARTITION, 255, 128)],
            &[(DATA_PARTITION, 1, 2)],
            &[(DATA_PARTITION, 128, u64::MAX)],
            &[(DATA_PARTITION, 128, 255), (OTHER, 255, 300)],
        ];
        for partitions in impossible {
            assert_eq!(Image::new(512, partitions).read(), None, "{partitions:?}");
        }
    }

    #[test]
    fn an_array_of_absurd_size_is_not_read() {
        for (count, size) in [(u32::MAX, 128), (1, 1 << 31), (0, 128), (128, 1), (128, 0)] {
            let mut image = image();
            image.break_at(SECTORS - 1);
            let mut header: GptHeader = pod_read_unaligned(&image.bytes[512..512 + 92]);
            header.number_of_partition_entries = U32Le::from_u32(count);
            header.size_of_partition_entry = U32Le::from_u32(size);
            header.update_header_crc32();
            image.put(1, bytes_of(&header));
            assert_eq!(image.read(), None, "{count} entries of {size}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_reading_panic(bytes: Vec<u8>, sector: u32, size: u64) {
            let _ = PartitionTable::read(Bytes::new(size), sector, |buffer, at| {
                let at = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                let found = &bytes[at..];
                let length = found.len().min(buffer.len());
                buffer[..length].copy_from_slice(&found[..length]);
                Ok(())
            });
        }
    }
}
