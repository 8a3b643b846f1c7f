//! [`Table`].

use std::num::NonZeroU32;

use bytemuck::{Zeroable, cast_slice, pod_read_unaligned};
use gpt_disk_types::crc::Crc;
use gpt_disk_types::{
    BlockSize, Crc32, GptHeader, GptHeaderRevision, GptPartitionEntry, GptPartitionName, GptPartitionType, Guid, LbaLe,
    MasterBootRecord,
};

/// Number of entries.
pub(crate) const ENTRIES: u32 = 128;
/// Size of an entry in bytes.
pub(crate) const ENTRY: u32 = 128;
const _: () = assert!(size_of::<GptPartitionEntry>() == ENTRY as usize);

/// Sector of the first header. Sector 0 is the protective MBR.
pub(crate) const FIRST_HEADER: u64 = 1;
/// First sector of the first entry array.
const FIRST_ARRAY: u64 = 2;

/// MBR partition type of a protective MBR.
pub(crate) const PROTECTIVE: u8 = 0xee;

/// A partition table, independent of the size of its disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub(crate) disk: Guid,
    pub(crate) sector: BlockSize,
    pub(crate) entries: Vec<GptPartitionEntry>,
    /// The unused one of the two places for the first entry array.
    pub(crate) next: Place,
    /// Sector of the second header, if the table was parsed.
    second: Option<u64>,
}

/// Place of the entry array of the first copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    First,
    Second,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Number, from 1, as in the kernel's device names.
    pub number: NonZeroU32,
    /// Partition type.
    pub kind: Guid,
    /// ID of the partition; the kernel calls it PARTUUID.
    pub id: Guid,
    /// First sector.
    pub first: u64,
    /// Last sector.
    pub last: u64,
    /// Name, at most 36 characters.
    pub name: String,
}

/// The disk has no partition table that this crate supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Unsupported sector size.
    #[error("sector size {0} is not supported; it must be a power of two from 512 to 65536 bytes")]
    Sector(u32),
    /// The disk is too small for a table.
    #[error("the disk is too small for a GUID partition table")]
    Short,
    /// The protective MBR or the header is missing.
    #[error("the disk has no GUID partition table")]
    None,
    /// A checksum or an entry is invalid.
    #[error("the first copy of the partition table is damaged")]
    Damaged,
    /// The table has another number or size of entries, or a partition before sector 66.
    #[error("the layout of the partition table is not supported")]
    Unusual,
}

/// A partition cannot be added or extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// The number is used or above 128, or there is no such partition.
    #[error("partition number {0} is not available")]
    Number(NonZeroU32),
    /// The sectors overlap with another partition or the table, or `last` is before `first`.
    #[error("sectors {first} to {last} are not free")]
    Range {
        /// First sector.
        first: u64,
        /// Last sector.
        last: u64,
    },
    /// The name has more than 36 characters or a character outside of UCS-2.
    #[error("the partition name must have at most 36 UCS-2 characters")]
    Name,
}

impl Table {
    /// An empty table for the disk with ID `disk`.
    ///
    /// # Errors
    /// [`ParseError::Sector`]: the sector size is not a power of two from 512 to 65536 bytes.
    pub fn new(disk: Guid, sector: u32) -> Result<Self, ParseError> {
        let size = block_size(sector).ok_or(ParseError::Sector(sector))?;
        let entries = vec![GptPartitionEntry::zeroed(); ENTRIES as usize];
        Ok(Self { disk, sector: size, entries, next: Place::First, second: None })
    }

    /// Number of bytes at the start of a disk that [`Table::parse`] needs.
    pub fn length(sector: u32) -> usize {
        let array = (ENTRIES * ENTRY).div_ceil(sector.max(1)) as usize;
        (FIRST_ARRAY as usize + 2 * array) * sector as usize
    }

    /// Parses the first copy of the table from the start of a disk.
    ///
    /// # Errors
    /// [`ParseError`].
    pub fn parse(head: &[u8], sector: u32) -> Result<Self, ParseError> {
        let mut table = Self::new(Guid::ZERO, sector)?;
        let at = |lba: u64, length: usize| {
            let start = usize::try_from(lba).ok()?.checked_mul(sector as usize)?;
            head.get(start..start.checked_add(length)?)
        };
        let mbr = at(0, size_of::<MasterBootRecord>()).ok_or(ParseError::Short)?;
        let mbr: MasterBootRecord = pod_read_unaligned(mbr);
        if mbr.signature != [0x55, 0xaa] || mbr.partitions.iter().all(|record| record.os_indicator != PROTECTIVE) {
            return Err(ParseError::None);
        }
        let header = header(at(FIRST_HEADER, sector as usize).ok_or(ParseError::Short)?, FIRST_HEADER)?;
        if (header.number_of_partition_entries.to_u32(), header.size_of_partition_entry.to_u32()) != (ENTRIES, ENTRY) {
            return Err(ParseError::Unusual);
        }
        let array = header.partition_entry_lba.to_u64();
        table.disk = header.disk_guid;
        table.second = Some(header.alternate_lba.to_u64());
        table.next = match array {
            array if array == table.array(Place::First) => Place::Second,
            array if array == table.array(Place::Second) => Place::First,
            _ => return Err(ParseError::Unusual),
        };
        let bytes = at(array, (ENTRIES * ENTRY) as usize).ok_or(ParseError::Short)?;
        if checksum(bytes) != header.partition_entry_array_crc32.0.to_u32() {
            return Err(ParseError::Damaged);
        }
        table.entries =
            bytes.as_chunks::<{ ENTRY as usize }>().0.iter().map(|entry| pod_read_unaligned(entry)).collect();
        table.check()?;
        Ok(table)
    }

    fn check(&self) -> Result<(), ParseError> {
        let mut ranges = Vec::new();
        for entry in self.entries.iter().filter(|entry| entry.is_used()) {
            let range = entry.lba_range().ok_or(ParseError::Damaged)?;
            ranges.push((range.start().to_u64(), range.end().to_u64()));
        }
        ranges.sort_unstable();
        if ranges.windows(2).any(|pair| pair[0].1 >= pair[1].0) {
            return Err(ParseError::Damaged);
        }
        if ranges.first().is_some_and(|(first, _)| *first < self.first_usable()) {
            return Err(ParseError::Unusual);
        }
        Ok(())
    }

    /// The partitions in order of their numbers.
    pub fn partitions(&self) -> impl Iterator<Item = Partition> {
        let numbered = (1..=ENTRIES).filter_map(NonZeroU32::new).zip(&self.entries);
        numbered.filter(|(_, entry)| entry.is_used()).map(|(number, entry)| Partition {
            number,
            kind: { entry.partition_type_guid }.0,
            id: entry.unique_partition_guid,
            first: entry.starting_lba.to_u64(),
            last: entry.ending_lba.to_u64(),
            name: { entry.name }.chars().collect(),
        })
    }

    /// Adds a partition.
    ///
    /// # Errors
    /// [`AddError`]. [`Table::writes`] checks that the partition fits on the disk.
    pub fn add(&mut self, new: &Partition) -> Result<(), AddError> {
        let (first, last) = (new.first, new.last);
        let is_free = |other: &Partition| last < other.first || first > other.last;
        if first > last || first < self.first_usable() || !self.partitions().all(|other| is_free(&other)) {
            return Err(AddError::Range { first, last });
        }
        let name = name(&new.name)?;
        let entry = self.entries.get_mut(new.number.get() as usize - 1).filter(|entry| !entry.is_used());
        *entry.ok_or(AddError::Number(new.number))? = GptPartitionEntry {
            partition_type_guid: GptPartitionType(new.kind),
            unique_partition_guid: new.id,
            starting_lba: LbaLe::from_u64(first),
            ending_lba: LbaLe::from_u64(last),
            name,
            ..GptPartitionEntry::zeroed()
        };
        Ok(())
    }

    /// Extends a partition to a later last sector.
    ///
    /// # Errors
    /// [`AddError::Number`]: the partition does not exist. [`AddError::Range`]: the partition would shrink or overlap
    /// another one.
    pub fn extend(&mut self, number: NonZeroU32, last: u64) -> Result<(), AddError> {
        let found = self.partitions().find(|partition| partition.number == number).ok_or(AddError::Number(number))?;
        let is_over = |other: Partition| other.first > found.last && other.first <= last;
        if last < found.last || self.partitions().any(is_over) {
            return Err(AddError::Range { first: found.first, last });
        }
        if let Some(entry) = self.entries.get_mut(number.get() as usize - 1) {
            entry.ending_lba = LbaLe::from_u64(last);
        }
        Ok(())
    }

    /// The lowest unused partition number.
    pub fn free_number(&self) -> Option<NonZeroU32> {
        (1..=ENTRIES).filter_map(NonZeroU32::new).zip(&self.entries).find(|(_, e)| !e.is_used()).map(|(n, _)| n)
    }

    /// Sector size in bytes.
    pub fn sector(&self) -> u32 {
        self.sector.to_u32()
    }

    /// Last sector of the disk for which the table was written; `None` for a new table. The disk may be larger if it
    /// was enlarged or an image was written to it.
    pub fn former_end(&self) -> Option<u64> {
        self.second
    }

    /// First sector that a partition can use.
    pub fn first_usable(&self) -> u64 {
        FIRST_ARRAY + 2 * self.array_length()
    }

    /// Last sector that a partition can use on a disk of `sectors` sectors; `None` if the disk has no space for a
    /// partition.
    pub fn last_usable(&self, sectors: u64) -> Option<u64> {
        // The second header is in the last sector, the second entry array before it.
        let last = sectors.checked_sub(self.array_length() + 2)?;
        (last >= self.first_usable()).then_some(last)
    }

    /// First sector of an entry array of the first copy.
    pub(crate) fn array(&self, place: Place) -> u64 {
        match place {
            Place::First => FIRST_ARRAY,
            Place::Second => FIRST_ARRAY + self.array_length(),
        }
    }

    /// Length of an entry array in sectors.
    pub(crate) fn array_length(&self) -> u64 {
        u64::from((ENTRIES * ENTRY).div_ceil(self.sector.to_u32()))
    }

    /// The entry array padded to whole sectors, and the checksum of the entries alone.
    pub(crate) fn array_bytes(&self) -> (Vec<u8>, u32) {
        let mut bytes = cast_slice::<_, u8>(&self.entries).to_vec();
        let checksum = checksum(&bytes);
        bytes.resize((self.array_length() * self.sector.to_u64()) as usize, 0);
        (bytes, checksum)
    }
}

fn name(text: &str) -> Result<GptPartitionName, AddError> {
    let mut name = GptPartitionName::zeroed();
    let places = name.0.len() / 2;
    for (index, character) in text.chars().enumerate() {
        if index >= places || character == '\0' {
            return Err(AddError::Name);
        }
        name.set_char(index, character).map_err(|_| AddError::Name)?;
    }
    Ok(name)
}

/// The sector size if it is supported: a power of two from 512 bytes to 64 KiB.
pub(crate) fn block_size(sector: u32) -> Option<BlockSize> {
    BlockSize::new(sector).filter(|_| sector.is_power_of_two() && sector <= 1 << 16)
}

/// Parses the header in sector `lba`.
pub(crate) fn header(sector: &[u8], lba: u64) -> Result<GptHeader, ParseError> {
    let found: GptHeader = pod_read_unaligned(sector.get(..size_of::<GptHeader>()).ok_or(ParseError::Short)?);
    if !found.is_signature_valid() {
        return Err(ParseError::None);
    }
    let length = found.header_size.to_u32() as usize;
    let mut bytes = sector.get(..length).ok_or(ParseError::Damaged)?.to_vec();
    // The checksum is computed with 0 in its own field.
    bytes.get_mut(16..20).ok_or(ParseError::Damaged)?.fill(0);
    let is_right = length >= size_of::<GptHeader>()
        && { found.revision } == GptHeaderRevision::VERSION_1_0
        && checksum(&bytes) == found.header_crc32.0.to_u32()
        && found.my_lba.to_u64() == lba;
    if is_right { Ok(found) } else { Err(ParseError::Damaged) }
}

fn checksum(bytes: &[u8]) -> u32 {
    Crc::<u32>::new(&Crc32::ALGORITHM).checksum(bytes)
}
