//! Partition tables that `gpt::Table` reads, changes and writes: the table of the boot disk.

use gpt::{Guid, Partition, Table, Write, protective_mbr};

use crate::gpt::sign;

/// Bits of an input's first byte: the sector size, the location of the array, and whether the test corrects checksums.
const LARGE_SECTORS: u8 = 1;
const SECOND_PLACE: u8 = 2;
const RIGHT_CHECKSUMS: u8 = 4;

/// Sizes in bytes of a header, and of an entry with its number before it.
const HEADER: usize = 92;
const ENTRY: usize = 1 + 128;

/// Partitions must not overlap. A table that fits on a disk must be written on the disk and not over the array in use,
/// and must be read again unchanged. A partition is added, or the error must be true. An input is a byte (see above),
/// eight bytes (the number of sectors), a header, and entries with their numbers.
pub fn check(input: &[u8]) {
    let Some((disk, sector, sectors)) = disk(input) else { return };
    let Ok(mut table) = Table::parse(&disk, sector) else { return };
    are_apart(&table);
    is_written(&table, &disk, sectors);
    let Some(number) = table.free_number() else { return };
    let free = Partition {
        number,
        kind: Guid::from_random_bytes([1; 16]),
        id: Guid::from_random_bytes([2; 16]),
        first: sectors / 2,
        last: sectors,
        name: "DATA".to_owned(),
    };
    let before = table.partitions().count();
    match table.add(&free) {
        Ok(()) => {
            assert_eq!(table.partitions().count(), before + 1);
            are_apart(&table);
            is_written(&table, &disk, sectors);
        }
        Err(_) => {
            let is_over = |other: Partition| other.first <= free.last && free.first <= other.last;
            assert!(free.first < table.first_usable() || table.partitions().any(is_over), "{free:?}");
        }
    }
}

fn are_apart(table: &Table) {
    let mut places: Vec<_> = table.partitions().map(|partition| (partition.first, partition.last)).collect();
    places.sort_unstable();
    assert!(places.iter().all(|(first, last)| *first >= table.first_usable() && first <= last), "{places:?}");
    assert!(places.windows(2).all(|pair| pair[0].1 < pair[1].0), "{places:?}");
}

fn is_written(table: &Table, disk: &[u8], sectors: u64) {
    let Ok(writes) = table.writes(sectors) else { return };
    let size = sectors.checked_mul(table.sector().into()).expect("a size below 16 EiB");
    let end = |write: &Write| write.at.checked_add(write.bytes.len() as u64).expect("an end below 16 EiB");
    assert!(writes.iter().all(|write| end(write) <= size), "beyond {size}");
    let in_use = u64::from_le_bytes(*disk[table.sector() as usize + 72..].first_chunk().expect("a header"));
    assert_ne!(writes[1].at, in_use * u64::from(table.sector()), "over the array in use");
    // Only the first copy of the table, because the disk with the second copy may have terabytes.
    let mut disk = disk.to_vec();
    for write in &writes[1..] {
        let at = usize::try_from(write.at).expect("a place in memory");
        disk[at..at + write.bytes.len()].copy_from_slice(&write.bytes);
    }
    let again = Table::parse(&disk, table.sector()).expect("the table that was written");
    assert!(again.partitions().eq(table.partitions()));
    assert_eq!(again.former_end(), sectors.checked_sub(1));
}

/// First bytes of a disk, sector size, and number of sectors.
fn disk(input: &[u8]) -> Option<(Vec<u8>, u32, u64)> {
    let (how, rest) = input.split_first()?;
    let (sectors, rest) = rest.split_first_chunk()?;
    let (header, entries) = rest.split_at_checked(HEADER)?;
    let sector = if how & LARGE_SECTORS == 0 { 512 } else { 4096 };
    let mut disk = vec![0; Table::length(sector)];
    let sector_bytes = sector as usize;
    disk[..512].copy_from_slice(&protective_mbr());
    disk[sector_bytes..][..HEADER].copy_from_slice(header);
    let arrays = (disk.len() - 2 * sector_bytes) / 2;
    let array = 2 * sector_bytes + if how & SECOND_PLACE == 0 { 0 } else { arrays };
    for entry in entries.chunks_exact(ENTRY) {
        let at = array + usize::from(entry[0] % 128) * (ENTRY - 1);
        disk[at..][..ENTRY - 1].copy_from_slice(&entry[1..]);
    }
    if how & RIGHT_CHECKSUMS != 0 {
        sign(&mut disk, sector_bytes, 1);
    }
    Some((disk, sector, u64::from_le_bytes(*sectors)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_tables_that_fit_their_disk() {
        for (name, seed) in crate::seeds("gpt_writer") {
            check(&seed);
            let (disk, sector, sectors) = disk(&seed).expect("a disk");
            let table = Table::parse(&disk, sector);
            match name.as_str() {
                "two" | "two-4096" | "second-place" => {
                    let table = table.expect("a table");
                    assert_eq!(table.partitions().count(), 2, "{name}");
                    assert!(table.writes(sectors).is_ok(), "{name}");
                }
                _ => {} // The fuzzer has found this seed.
            }
        }
    }
}
