//! The partition for data on the disk that the node was started from.
//!
//! A disk that an image was written to has its system partitions and, behind them, free space: the first
//! boot makes a partition of all of it, and a boot on a disk that was enlarged makes it longer. Partitions
//! begin and end at whole MiB, and the new one where the image ended: the same image, written to the same
//! disk once more, lies beside the data of before, and finds them.

use std::fs::{self, File};
use std::io;
use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use gpt::{Guid, ParseError, Partition, Table};
use nix::errno::Errno;
use tracing::{info, warn};
use units::Bytes;

use crate::disk::{Role, Seen};
use crate::gpt::DATA_PARTITION;
use crate::plan::MINIMUM;
use crate::sys;

/// The name of the partition, for people.
const NAME: &str = "DATA";
/// A new random UUID with each read, random(4).
const RANDOM: &str = "/proc/sys/kernel/random/uuid";

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A partition for data in the free space.
    New,
    /// The partition for data, as long as the disk allows.
    Longer,
}

/// The partition table of the boot disk could not be changed. It is the one from before, or the new one.
#[derive(Debug, thiserror::Error)]
pub enum BootDiskError {
    /// A file or the disk.
    #[error("cannot {step} {}", path.display())]
    Disk {
        /// What was tried.
        step: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The table on the disk is the new one, and the kernel does not take it: a restart does.
    #[error("the kernel does not show partition {number} of {} as the new table has it; restart the machine", path.display())]
    Shown {
        /// Which disk.
        path: PathBuf,
        /// Which partition.
        number: NonZeroU32,
        /// What it said.
        #[source]
        source: Errno,
    },
}

/// A change of a table: what it says after it, of which partition.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    table: Table,
    partition: Partition,
}

/// Makes the change on the disk that the node was started from, if there is one to make. `true`: the disks
/// are others now.
pub(crate) fn change(seen: &[Seen], wanted: Wanted) -> Result<bool, BootDiskError> {
    let Some(disk) = seen.iter().find(|disk| disk.role == Role::System && !disk.read_only) else { return Ok(false) };
    let path = &disk.device;
    let failed = |step| move |source| BootDiskError::Disk { step, path: path.clone(), source };
    let device = File::options().read(true).write(true).open(path).map_err(failed("open"))?;
    let sector = sector(&disk.name)?;
    let mut head = vec![0; Table::length(sector)];
    if disk.size.get() < head.len() as u64 {
        return Ok(false);
    }
    device.read_exact_at(&mut head, 0).map_err(failed("read the partition table of"))?;
    let table = match Table::parse(&head, sector) {
        Ok(table) => table,
        // The plain image of a system, as a kernel without firmware is given it.
        Err(ParseError::None) => return Ok(false),
        Err(error) => {
            warn!(device = %path.display(), %error, "no partition is made on the boot disk");
            return Ok(false);
        }
    };
    let sectors = disk.size.get() / u64::from(sector);
    let Some(change) = plan(table, sectors, wanted, random_id()?) else { return Ok(false) };
    let Ok(writes) = change.table.writes(sectors) else { return Ok(false) };
    for write in writes {
        device.write_all_at(&write.bytes, write.at).map_err(failed("write the partition table of"))?;
        device.sync_all().map_err(failed("write the partition table of"))?;
    }
    let Change { partition, .. } = change;
    let number = partition.number;
    let bytes = |sectors: u64| Bytes::new(sectors.saturating_mul(u64::from(sector)));
    let (start, size) = (bytes(partition.first), bytes(partition.last - partition.first + 1));
    let shown = match wanted {
        Wanted::New => sys::add_partition(device.as_fd(), number, start, size),
        Wanted::Longer => sys::resize_partition(device.as_fd(), number, start, size),
    };
    shown.map_err(|source| BootDiskError::Shown { path: path.clone(), number, source })?;
    info!(device = %path.display(), %number, %size, "partition for the data made on the boot disk");
    Ok(true)
}

fn sector(disk: &str) -> Result<u32, BootDiskError> {
    let path = Path::new("/sys/block").join(disk.replace('/', "!")).join("queue/logical_block_size");
    let failed = |source| BootDiskError::Disk { step: "read", path: path.clone(), source };
    let text = fs::read_to_string(&path).map_err(failed)?;
    text.trim_end().parse().map_err(|_| failed(io::ErrorKind::InvalidData.into()))
}

fn random_id() -> Result<Guid, BootDiskError> {
    let failed = |source| BootDiskError::Disk { step: "read", path: RANDOM.into(), source };
    let text = fs::read_to_string(RANDOM).map_err(failed)?;
    text.trim_end().parse().map_err(|_| failed(io::ErrorKind::InvalidData.into()))
}

/// The change to make on a disk of so many sectors, if any. Only space behind all partitions counts.
fn plan(mut table: Table, sectors: u64, wanted: Wanted, id: Guid) -> Option<Change> {
    let mib = (1 << 20) / u64::from(table.sector());
    let end = (table.last_usable(sectors)? + 1) / mib * mib;
    let behind = table.partitions().map(|partition| partition.last + 1).max().unwrap_or(table.first_usable());
    let mut data = table.partitions().filter(|partition| partition.kind == DATA_PARTITION);
    let partition = match (wanted, data.next(), data.next()) {
        (Wanted::New, None, None) => {
            // The second copy of the image's table is behind its partitions.
            let former = table.former_end().filter(|former| *former < sectors - 1).map_or(0, |former| former + 1);
            let first = behind.max(former).checked_next_multiple_of(mib)?;
            let number = table.free_number()?;
            let size = end.checked_sub(first)?.checked_mul(table.sector().into())?;
            (size >= MINIMUM.get()).then_some(())?;
            Partition { number, kind: DATA_PARTITION, id, first, last: end - 1, name: NAME.to_owned() }
        }
        (Wanted::Longer, Some(found), None) => {
            (found.last + 1 == behind && end >= behind + mib).then_some(Partition { last: end - 1, ..found })?
        }
        _ => return None,
    };
    drop(data);
    match wanted {
        Wanted::New => table.add(&partition).ok()?,
        Wanted::Longer => table.extend(partition.number, partition.last).ok()?,
    }
    Some(Change { table, partition })
}

#[cfg(test)]
mod tests {
    use gpt::guid;
    use proptest::prelude::*;

    use super::*;
    use crate::gpt::{PartitionTable, TableState};

    const MIB: u64 = 1 << 20;
    const SYSTEM: Guid = guid!("c12a7328-f81f-11d2-ba4b-00a0c93ec93b");
    const ID: Guid = guid!("00112233-4455-6677-8899-aabbccddeeff");

    /// A disk of GiB of zeros, of which only what was written is kept.
    struct Disk {
        sector: u32,
        size: u64,
        written: Vec<(u64, Vec<u8>)>,
    }

    impl Disk {
        /// An image of `length` MiB with one partition, written to a disk of `size` MiB.
        fn new(sector: u32, length: u64, size: u64) -> Self {
            let in_sectors = |mib: u64| mib * MIB / u64::from(sector);
            let mut table = Table::new(ID, sector).unwrap();
            let number = NonZeroU32::MIN;
            let last = in_sectors(length - 1) - 1;
            let system = Partition { number, kind: SYSTEM, id: ID, first: in_sectors(1), last, name: "SYSTEM".into() };
            table.add(&system).unwrap();
            let mut disk = Self { sector, size: size * MIB, written: vec![(0, gpt::protective_mbr().to_vec())] };
            disk.apply(table.writes(in_sectors(length)).unwrap());
            disk
        }

        fn apply(&mut self, writes: impl IntoIterator<Item = gpt::Write>) {
            self.written.extend(writes.into_iter().map(|write| (write.at, write.bytes)));
        }

        fn read(&self, buffer: &mut [u8], at: u64) {
            for (place, bytes) in &self.written {
                let end = (place + bytes.len() as u64).min(at + buffer.len() as u64);
                for byte in (*place).max(at)..end {
                    buffer[(byte - at) as usize] = bytes[(byte - place) as usize];
                }
            }
        }

        fn table(&self) -> Table {
            let mut head = vec![0; Table::length(self.sector)];
            self.read(&mut head, 0);
            Table::parse(&head, self.sector).unwrap()
        }

        fn sectors(&self) -> u64 {
            self.size / u64::from(self.sector)
        }

        fn plan(&self, wanted: Wanted) -> Option<Change> {
            plan(self.table(), self.sectors(), wanted, ID)
        }

        /// The change, all of it or its first writes.
        fn change(&mut self, change: &Change, writes: usize) {
            let all = change.table.writes(self.sectors()).unwrap();
            self.apply(all.into_iter().take(writes));
        }

        /// As the search for the data disk reads it.
        fn seen(&self) -> PartitionTable {
            let read = |buffer: &mut [u8], at: u64| {
                self.read(buffer, at);
                Ok(())
            };
            PartitionTable::read(Bytes::new(self.size), self.sector, read).unwrap().unwrap()
        }

        /// Start and size of the one partition for data, in MiB.
        fn data(&self) -> Option<(u64, u64)> {
            let seen = self.seen();
            let mut data = seen.data_partitions().map(|found| (found.start.get() / MIB, found.size.get() / MIB));
            let found = data.next();
            assert_eq!(data.next(), None);
            found
        }
    }

    #[test]
    fn the_space_behind_the_image_becomes_the_partition_for_data() {
        for sector in [512, 4096] {
            let mut disk = Disk::new(sector, 100, 2000);
            let change = disk.plan(Wanted::New).unwrap();
            disk.change(&change, 3);
            assert_eq!(disk.data(), Some((100, 1899)));
            assert_eq!(disk.seen().state, TableState::Whole);
            assert_eq!(disk.plan(Wanted::New), None);
            assert_eq!(disk.plan(Wanted::Longer), None);
        }
    }

    #[test]
    fn a_disk_with_little_space_is_left_alone() {
        assert_eq!(Disk::new(512, 100, 100).plan(Wanted::New), None);
        assert_eq!(Disk::new(512, 100, 100 + 512).plan(Wanted::New), None);
        assert!(Disk::new(512, 100, 100 + 513).plan(Wanted::New).is_some());
    }

    #[test]
    fn the_image_written_once_more_finds_the_same_place() {
        let mut disk = Disk::new(512, 100, 2000);
        let change = disk.plan(Wanted::New).unwrap();
        disk.change(&change, 3);
        let before = disk.data();
        let image = Disk::new(512, 100, 100);
        disk.written.extend(image.written);
        assert_eq!(disk.data(), None);
        let change = disk.plan(Wanted::New).unwrap();
        disk.change(&change, 3);
        assert_eq!(disk.data(), before);
    }

    #[test]
    fn a_disk_without_a_partition_for_data_gets_none_longer() {
        assert_eq!(Disk::new(512, 100, 2000).plan(Wanted::Longer), None);
    }

    #[test]
    fn space_between_partitions_is_not_taken() {
        let mut disk = Disk::new(512, 100, 2000);
        let change = disk.plan(Wanted::New).unwrap();
        disk.change(&change, 3);
        let mut table = disk.table();
        disk.size = 4000 * MIB;
        let last = Partition {
            number: 3.try_into().unwrap(),
            kind: SYSTEM,
            id: ID,
            first: 3000 * MIB / 512,
            last: 3001 * MIB / 512 - 1,
            name: "OTHER".into(),
        };
        table.add(&last).unwrap();
        assert_eq!(plan(table, disk.sectors(), Wanted::Longer, ID), None);
    }

    proptest! {
        #[test]
        fn wherever_the_power_fails_the_next_boot_finishes(
            length in 3..2000_u64,
            size in 0..4000_u64,
            growth in 0..4000_u64,
            cuts in prop::array::uniform2(0..4_usize),
        ) {
            let mut disk = Disk::new(512, length, length + size);
            for (wanted, cut) in [(Wanted::New, cuts[0]), (Wanted::Longer, cuts[1])] {
                let before = disk.data();
                if let Some(change) = disk.plan(wanted) {
                    disk.change(&change, cut);
                    prop_assert!(cut >= 3 || disk.data() == before);
                }
                if let Some(change) = disk.plan(wanted) {
                    disk.change(&change, 3);
                }
                prop_assert_eq!(disk.plan(wanted), None);
                prop_assert_eq!(disk.seen().state, TableState::Whole);
                // Data that are there stay where they are.
                if let (Some(before), Some(after)) = (before, disk.data()) {
                    prop_assert_eq!(before.0, after.0);
                    prop_assert!(after.1 >= before.1);
                }
                disk.size += growth * MIB;
            }
        }

        #[test]
        fn the_partition_ends_before_the_tables_second_copy(length in 3..2000_u64, size in 512..4000_u64) {
            let mut disk = Disk::new(512, length, length + size);
            if let Some(change) = disk.plan(Wanted::New) {
                disk.change(&change, 3);
                let (start, size) = disk.data().unwrap();
                // Not over the second copy of the image's table either.
                prop_assert_eq!(start, length);
                prop_assert!((start + size) * MIB + 33 * 512 <= disk.size);
                prop_assert!((start + size + 2) * MIB > disk.size);
            }
        }
    }
}
