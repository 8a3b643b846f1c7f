//! Partition tables that other programs wrote.

use std::io;

use gpt::{Extent, PartitionTable, TableState};
use gpt_disk_types::Crc32;
use gpt_disk_types::crc::Crc;
use units::Bytes;

/// Maximum number of bytes read: up to 1 MiB of entries for each of two tables, and single sectors around them.
const MOST_READ: u64 = (2 << 20) + (4 << 16);

/// Bits of an input's first byte: the sector size, and whether the test corrects checksums for the fuzzer.
const LARGE_SECTORS: u8 = 1;
const RIGHT_CHECKSUMS: u8 = 2;

static CRC32: Crc<u32> = Crc::<u32>::new(&Crc32::ALGORITHM);

/// Reads must stay on the disk and be bounded. Partitions must be on the disk, must not overlap, and must have distinct
/// numbers in order.
pub fn check(input: &[u8]) {
    let Some((how, disk)) = input.split_first() else { return };
    let sector = if how & LARGE_SECTORS == 0 { 512 } else { 4096 };
    let mut disk = disk.to_vec();
    if how & RIGHT_CHECKSUMS != 0 {
        sign(&mut disk, sector, 1);
        if let Some(last) = (disk.len() / sector).checked_sub(1) {
            sign(&mut disk, sector, last);
        }
    }
    let Some(table) = read(&disk, sector) else { return };

    for partition in &table.partitions {
        assert!(partition.number > 0 && end(partition) > partition.start, "{partition:?}");
        assert!(end(partition) <= size(&disk), "{partition:?} of {} bytes", disk.len());
    }
    // Two different tables may contain the same partition twice.
    if table.state != TableState::Different {
        assert!(table.partitions.is_sorted_by_key(|partition| partition.number));
        let mut places: Vec<_> = table.partitions.iter().map(|found| (found.start, end(found))).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{places:?}");
    }
    assert!(table.partitions.iter().all(|partition| table.of_kind(partition.kind).any(|found| found == partition)));
}

fn end(partition: &Extent) -> Bytes {
    partition.start.checked_add(partition.size).expect("an end below 16 EiB")
}

fn size(disk: &[u8]) -> Bytes {
    Bytes::new(disk.len() as u64)
}

fn read(disk: &[u8], sector: usize) -> Option<PartitionTable> {
    let mut most = MOST_READ;
    let sector = u32::try_from(sector).expect("a small number");
    let read = PartitionTable::read(size(disk), sector, |buffer, at| {
        most = most.checked_sub(buffer.len() as u64).expect("no more than 2 MiB and some sectors");
        let at = usize::try_from(at).expect("a place in memory");
        let end = at.checked_add(buffer.len()).expect("an end in memory");
        buffer.copy_from_slice(disk.get(at..end).expect("nothing beyond the disk"));
        Ok::<(), io::Error>(())
    });
    read.expect("reading does not fail")
}

/// Corrects the checksums of the header in this sector and of its array.
pub(crate) fn sign(disk: &mut [u8], sector: usize, lba: usize) {
    let at = lba * sector;
    let Some(header) = disk.get(at..at + 92).and_then(|header| header.first_chunk::<92>()).copied() else { return };
    let u32_at = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let array = usize::try_from(u64::from_le_bytes(*header[72..].first_chunk().expect("92 bytes")))
        .ok()
        .and_then(|lba| lba.checked_mul(sector));
    let length = u64::from(u32_at(80)).checked_mul(u32_at(84).into()).and_then(|length| usize::try_from(length).ok());
    if let (Some(array), Some(length)) = (array, length)
        && let Some(entries) = array.checked_add(length).and_then(|end| disk.get(array..end))
    {
        let checksum = CRC32.checksum(entries);
        disk[at + 88..at + 92].copy_from_slice(&checksum.to_le_bytes());
    }
    disk[at + 16..at + 20].fill(0);
    let length = usize::try_from(u32_at(12)).unwrap_or(usize::MAX);
    if let Some(header) = at.checked_add(length).and_then(|end| disk.get(at..end)) {
        let checksum = CRC32.checksum(header);
        disk[at + 16..at + 20].copy_from_slice(&checksum.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_have_the_tables_that_their_names_say() {
        for (name, seed) in crate::seeds("gpt") {
            check(&seed);
            let sector = if seed[0] & LARGE_SECTORS == 0 { 512 } else { 4096 };
            let found = read(&seed[1..], sector).map(|table| (table.state, table.partitions.len()));
            let expected = match name.as_str() {
                "whole" | "whole-4096" => Some((TableState::Whole, 2)),
                "first-only" => Some((TableState::FirstOnly, 2)),
                "different" => Some((TableState::Different, 3)),
                _ => continue, // The fuzzer has found this seed.
            };
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn wrong_checksums_can_be_corrected() {
        let (_, mut seed) = crate::seeds("gpt").into_iter().find(|(name, _)| name == "whole").expect("a seed");
        seed[1 + 512 + 16] ^= 1;
        seed[1 + 1024 + 60] ^= 1;
        let mut disk = seed[1..].to_vec();
        assert_eq!(read(&disk, 512).map(|table| table.state), Some(TableState::LastOnly));
        sign(&mut disk, 512, 1);
        assert_eq!(read(&disk, 512).map(|table| table.state), Some(TableState::Whole));
    }
}
