//! Layout of the disk image.

use std::fs::File;
use std::io::{self, Read};
use std::num::NonZeroU32;
use std::os::unix::fs::FileExt;

use gpt::{Guid, Partition, Table, Write, guid, protective_mbr};

use crate::esp;

const MIB: u64 = 1 << 20;
/// Sector size in bytes, which almost all disks have.
const SECTOR: u32 = 512;
/// Size of a system slot. An image has about 140 MiB with its hash tree; slots cannot grow later.
const SLOT: u64 = 256 * MIB;
/// Offset of the first partition, and space after the last one for the second copy of the table.
const MARGIN: u64 = MIB;

const DISK: Guid = guid!("5ad00000-0000-4000-8000-000000000000");
const ESP: Guid = guid!("5ad00000-0000-4000-8000-000000000001");
const SYSTEM_A: Guid = guid!("5ad00000-0000-4000-8000-00000000000a");
const SYSTEM_B: Guid = guid!("5ad00000-0000-4000-8000-00000000000b");

/// Partition type of an ESP, UEFI specification 2.10, table 5.7.
const ESP_TYPE: Guid = guid!("c12a7328-f81f-11d2-ba4b-00a0c93ec93b");
/// Partition type of the slots, a random UUID.
const SYSTEM_TYPE: Guid = guid!("06f61c7e-4cc3-46ee-bc08-af7d1df69340");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    A,
    B,
}

#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error(
        "system and hash tree of {wanted} bytes exceed the size of a slot, {SLOT} bytes; remove files from the system, \
         such as image archives, or enlarge the slots"
    )]
    Full { wanted: u64 },
    #[error("partition {name} does not fit into the layout")]
    Partition { name: &'static str, source: gpt::AddError },
    #[error("cannot create the partition table")]
    Table(#[from] gpt::ParseError),
    #[error("the partitions do not fit on the disk image")]
    Size(#[from] gpt::SizeError),
    #[error("cannot write the disk image")]
    Io(#[from] io::Error),
}

pub fn id(slot: Slot) -> Guid {
    match slot {
        Slot::A => SYSTEM_A,
        Slot::B => SYSTEM_B,
    }
}

/// Writes the disk: the ESP, system and hash tree in slot A, and an empty slot B. The data partition will use the
/// additional space of the larger disk to which a user writes the image.
pub fn write(output: &File, esp: &[u8], system: &File, tree: &[u8]) -> Result<(), WriteError> {
    let parts = [
        ("ESP", ESP_TYPE, ESP, esp::SIZE),
        ("SYSTEM-A", SYSTEM_TYPE, id(Slot::A), SLOT),
        ("SYSTEM-B", SYSTEM_TYPE, id(Slot::B), SLOT),
    ];
    let mut table = Table::new(DISK, SECTOR)?;
    let mut next = MARGIN;
    for (number, (name, kind, id, size)) in (1..).filter_map(NonZeroU32::new).zip(parts) {
        let (first, last) = (next / u64::from(SECTOR), (next + size) / u64::from(SECTOR) - 1);
        let partition = Partition { number, kind, id, first, last, name: name.to_owned() };
        table.add(&partition).map_err(|source| WriteError::Partition { name, source })?;
        next += size;
    }
    let size = next + MARGIN;

    let data = system.metadata()?.len();
    let wanted = data + tree.len() as u64;
    if wanted > SLOT {
        return Err(WriteError::Full { wanted });
    }
    output.set_len(size)?;
    output.write_all_at(&protective_mbr(), 0)?;
    for Write { at, bytes } in table.writes(size / u64::from(SECTOR))? {
        output.write_all_at(&bytes, at)?;
    }
    copy(output, MARGIN, esp)?;
    let at = MARGIN + esp::SIZE;
    // Read the system a second time, from offset 0.
    copy(output, at, At { file: system, at: 0 })?;
    copy(output, at + data, tree)
}

/// Copies all blocks except zeros, which remain holes of the output.
fn copy(output: &File, mut at: u64, mut input: impl Read) -> Result<(), WriteError> {
    let mut buffer = vec![0; MIB as usize];
    loop {
        let length = match input.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        for chunk in buffer[..length].chunks(4096) {
            if chunk.iter().any(|byte| *byte != 0) {
                output.write_all_at(chunk, at)?;
            }
            at += chunk.len() as u64;
        }
    }
}

/// Reads a file from an offset, independent of the file's own offset.
struct At<'a> {
    file: &'a File,
    at: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.file.read_at(buffer, self.at)?;
        self.at += length as u64;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const ESP_BYTES: [u8; 5000] = [0xe5; 5000];
    const SYSTEM_BYTES: [u8; 3 * 4096] = [0xa5; 3 * 4096];
    const TREE_BYTES: [u8; 4096] = [0x7e; 4096];

    fn disk() -> File {
        let (disk, system) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        system.write_all_at(&SYSTEM_BYTES, 0).unwrap();
        write(&disk, &ESP_BYTES, &system, &TREE_BYTES).unwrap();
        disk
    }

    fn table(disk: &File) -> Table {
        let mut head = vec![0; Table::length(SECTOR)];
        disk.read_exact_at(&mut head, 0).unwrap();
        Table::parse(&head, SECTOR).unwrap()
    }

    fn read(disk: &File, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        disk.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    /// Whether the range contains only zeros.
    fn is_empty(disk: &File, from: u64, to: u64) -> bool {
        let zeros = vec![0; MIB as usize];
        let mut pieces = (from..to).step_by(zeros.len());
        pieces.all(|at| {
            let length = (to - at).min(MIB) as usize;
            read(disk, at, length) == zeros[..length]
        })
    }

    #[test]
    fn the_table_has_the_esp_and_two_equal_slots() {
        let disk = disk();
        let table = table(&disk);
        let bytes = |sectors: u64| sectors * u64::from(SECTOR);
        let found: Vec<_> = table
            .partitions()
            .map(|it| (it.number.get(), it.name, it.kind, it.id, bytes(it.first), bytes(it.last + 1)))
            .collect();
        let wanted = [
            (1, "ESP".to_owned(), ESP_TYPE, ESP, MIB, 129 * MIB),
            (2, "SYSTEM-A".to_owned(), SYSTEM_TYPE, SYSTEM_A, 129 * MIB, 385 * MIB),
            (3, "SYSTEM-B".to_owned(), SYSTEM_TYPE, SYSTEM_B, 385 * MIB, 641 * MIB),
        ];
        assert_eq!(found, wanted);
        // The second copy of the table is at the end of the disk.
        let size = disk.metadata().unwrap().len();
        assert_eq!((size, table.former_end().map(|last| bytes(last + 1))), (642 * MIB, Some(642 * MIB)));
        assert_eq!(read(&disk, size - bytes(1), 8), b"EFI PART");
    }

    #[test]
    fn slot_a_has_system_and_tree_and_slot_b_is_empty() {
        let disk = disk();
        assert_eq!(read(&disk, MIB, ESP_BYTES.len()), ESP_BYTES);
        assert!(is_empty(&disk, MIB + ESP_BYTES.len() as u64, 129 * MIB));
        let tree = 129 * MIB + SYSTEM_BYTES.len() as u64;
        assert_eq!(read(&disk, 129 * MIB, SYSTEM_BYTES.len()), SYSTEM_BYTES);
        assert_eq!(read(&disk, tree, TREE_BYTES.len()), TREE_BYTES);
        assert!(is_empty(&disk, tree + TREE_BYTES.len() as u64, 641 * MIB));
        assert!(disk.metadata().unwrap().blocks() * 512 < 4 * MIB, "the image is not sparse");
    }

    #[test]
    fn a_system_that_is_too_large_is_rejected_before_writing() {
        let (disk, system) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        system.set_len(SLOT).unwrap();
        let error = write(&disk, &ESP_BYTES, &system, &TREE_BYTES).unwrap_err();
        assert_eq!(
            error.to_string(),
            "system and hash tree of 268439552 bytes exceed the size of a slot, 268435456 bytes; remove files from the \
             system, such as image archives, or enlarge the slots"
        );
        assert_eq!(disk.metadata().unwrap().len(), 0);
    }
}
