//! A table in memory.

use std::num::NonZeroU32;

use bytemuck::{Zeroable, cast_slice, pod_read_unaligned};
use gpt_disk_types::crc::Crc;
use gpt_disk_types::{
    BlockSize, Crc32, GptHeader, GptHeaderRevision, GptPartitionEntry, GptPartitionName, GptPartitionType, Guid, LbaLe,
    MasterBootRecord,
};

/// Entries of a table, in use or not.
pub(crate) const ENTRIES: u32 = 128;
/// Bytes of an entry.
pub(crate) const ENTRY: u32 = 128;
const _: () = assert!(size_of::<GptPartitionEntry>() == ENTRY as usize);

/// Where the first copy's header is. Sector 0 is the protective MBR.
pub(crate) const FIRST_HEADER: u64 = 1;
/// Where an array can begin first.
const FIRST_ARRAY: u64 = 2;

/// Type of the MBR partition that says that there is a GPT.
const PROTECTIVE: u8 = 0xee;

/// A partition table, without the size of its disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub(crate) disk: Guid,
    pub(crate) sector: BlockSize,
    pub(crate) entries: Vec<GptPartitionEntry>,
    /// Which of the two places of the first copy's array is not in use.
    pub(crate) next: Place,
    /// Where the second copy's header is, if the table was read.
    second: Option<u64>,
}

/// One of the two places for the first copy's array of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    First,
    Second,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// From 1; the kernel's number.
    pub number: NonZeroU32,
    /// Its type.
    pub kind: Guid,
    /// Its own ID, which the kernel calls PARTUUID.
    pub id: Guid,
    /// Its first sector.
    pub first: u64,
    /// Its last sector.
    pub last: u64,
    /// Its name, at most 36 characters.
    pub name: String,
}

/// There is no table that this crate can work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Sectors of a size that no disk has.
    #[error("there is no partition table for sectors of {0} bytes")]
    Sector(u32),
    /// The disk is smaller than a table.
    #[error("the disk is smaller than a partition table")]
    Short,
    /// No protective MBR, or no header.
    #[error("there is no GUID partition table")]
    None,
    /// A checksum is wrong, or an entry is not possible.
    #[error("the first copy of the partition table is damaged")]
    Damaged,
    /// A table of another shape than every tool makes, or with a partition before sector 66.
    #[error("the partition table has an unusual form, and is left alone")]
    Unusual,
}

/// A partition does not fit the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// A table has the numbers 1 to 128, and each once.
    #[error("the partition table has no free place {0}")]
    Number(NonZeroU32),
    /// It would lie over another, over the table, or end before it begins.
    #[error("sectors {first} to {last} are not free")]
    Range {
        /// Its first sector.
        first: u64,
        /// Its last sector.
        last: u64,
    },
    /// More than 36 characters, or one that UCS-2 does not have.
    #[error("the name of a partition has at most 36 characters of UCS-2")]
    Name,
}

impl Table {
    /// A table without partitions for a disk with this ID.
    ///
    /// # Errors
    /// [`ParseError::Sector`]: the size of sectors is no power of two between 512 and 64 KiB.
    pub fn new(disk: Guid, sector: u32) -> Result<Self, ParseError> {
        let size = BlockSize::new(sector)
            .filter(|_| sector.is_power_of_two() && (512..=1 << 16).contains(&sector))
            .ok_or(ParseError::Sector(sector))?;
        let entries = vec![GptPartitionEntry::zeroed(); ENTRIES as usize];
        Ok(Self { disk, sector: size, entries, next: Place::First, second: None })
    }

    /// How many bytes of a disk [`Table::parse`] needs.
    pub fn length(sector: u32) -> usize {
        let array = (ENTRIES * ENTRY).div_ceil(sector.max(1)) as usize;
        (FIRST_ARRAY as usize + 2 * array) * sector as usize
    }

    /// The first copy of the table on a disk that begins with these bytes.
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
        let header = header(at(FIRST_HEADER, sector as usize).ok_or(ParseError::Short)?)?;
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

    /// The partitions, by number.
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
    /// [`AddError`]: it does not fit the others. Whether it fits the disk is known by [`Table::writes`].
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

    /// Lets a partition end at a later sector.
    ///
    /// # Errors
    /// [`AddError::Number`]: there is no such partition. [`AddError::Range`]: it would be smaller, or lie
    /// over another.
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

    /// The lowest number that no partition has.
    pub fn free_number(&self) -> Option<NonZeroU32> {
        (1..=ENTRIES).filter_map(NonZeroU32::new).zip(&self.entries).find(|(_, e)| !e.is_used()).map(|(n, _)| n)
    }

    /// Bytes of a sector.
    pub fn sector(&self) -> u32 {
        self.sector.to_u32()
    }

    /// The last sector of the disk that the table was made for, `None` for a new table. On a disk that was
    /// enlarged, or that an image was written to, it is not the last one: the second copy ends there.
    pub fn former_end(&self) -> Option<u64> {
        self.second
    }

    /// The first sector that a partition can have.
    pub fn first_usable(&self) -> u64 {
        FIRST_ARRAY + 2 * self.array_length()
    }

    /// The last sector that a partition can have on a disk of so many sectors; `None` if the disk has no
    /// room for a partition.
    pub fn last_usable(&self, sectors: u64) -> Option<u64> {
        // The header is in the last sector, the array before it.
        let last = sectors.checked_sub(self.array_length() + 2)?;
        (last >= self.first_usable()).then_some(last)
    }

    /// Where an array of the first copy begins.
    pub(crate) fn array(&self, place: Place) -> u64 {
        match place {
            Place::First => FIRST_ARRAY,
            Place::Second => FIRST_ARRAY + self.array_length(),
        }
    }

    /// Sectors of an array.
    pub(crate) fn array_length(&self) -> u64 {
        u64::from((ENTRIES * ENTRY).div_ceil(self.sector.to_u32()))
    }

    /// The array in whole sectors, and its checksum, which is that of the entries alone.
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

/// The first copy's header in its sector.
fn header(sector: &[u8]) -> Result<GptHeader, ParseError> {
    let found: GptHeader = pod_read_unaligned(sector.get(..size_of::<GptHeader>()).ok_or(ParseError::Short)?);
    if !found.is_signature_valid() {
        return Err(ParseError::None);
    }
    let length = found.header_size.to_u32() as usize;
    let mut bytes = sector.get(..length).ok_or(ParseError::Damaged)?.to_vec();
    // The checksum is made with zeros in its own place.
    bytes.get_mut(16..20).ok_or(ParseError::Damaged)?.fill(0);
    let is_right = length >= size_of::<GptHeader>()
        && { found.revision } == GptHeaderRevision::VERSION_1_0
        && checksum(&bytes) == found.header_crc32.0.to_u32()
        && found.my_lba.to_u64() == FIRST_HEADER;
    if is_right { Ok(found) } else { Err(ParseError::Damaged) }
}

fn checksum(bytes: &[u8]) -> u32 {
    Crc::<u32>::new(&Crc32::ALGORITHM).checksum(bytes)
}
