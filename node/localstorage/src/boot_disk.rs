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

use crate::content::Ends;
use crate::disk::{Role, Seen, root};
use crate::error::FindError;
use crate::gpt::{self as gpt_read, DATA_PARTITION, PartitionTable};
use crate::plan::MINIMUM;
use crate::{sys, sysfs};

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
    /// The table that the disk had before, of which the second copy is left, has something in the place.
    #[error(
        "the disk {} had another partition table, by which its partition {number} has {size} from {start} on, \
         behind the system: it is left alone; {}",
        path.display(), remedy(*kind)
    )]
    Former {
        /// Which disk.
        path: PathBuf,
        /// Which partition.
        number: u32,
        /// Where it begins.
        start: Bytes,
        /// Its size.
        size: Bytes,
        /// Its type.
        kind: Guid,
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

fn remedy(kind: Guid) -> &'static str {
    if kind == DATA_PARTITION {
        "these are a node's data: write an image to the disk that ends where the former one did, or, if nobody needs \
         them, zeros over the last MiB of the disk"
    } else {
        "if nobody needs it, write zeros over the last MiB of the disk"
    }
}

/// A change of a table: what it says after it, of which partition.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    table: Table,
    partition: Partition,
}

/// Makes the change on the disk that the node was started from, if there is one to make. `true`: the disks
/// are others now.
pub(crate) fn change(seen: &[Seen], wanted: Wanted) -> Result<bool, FindError> {
    let Some(disk) = BootDisk::open(seen)? else { return Ok(false) };
    let Some(table) = disk.table()? else { return Ok(false) };
    let id = random_id()?;
    let Some(mut change) = plan(table.clone(), disk.sectors(), wanted, id) else { return Ok(false) };
    if wanted == Wanted::New {
        disk.is_free(&change.partition)?;
    }
    if let Some(writes) = put_back(&table, disk.sectors()) {
        disk.write(&writes)?;
        let planned = disk.table()?.and_then(|table| plan(table, disk.sectors(), wanted, id));
        let Some(planned) = planned else { return Ok(false) };
        change = planned;
    }
    let Ok(writes) = change.table.writes(disk.sectors()) else { return Ok(false) };
    disk.write(&writes)?;
    let Change { partition, .. } = change;
    let number = partition.number;
    let bytes = |sectors: u64| Bytes::new(sectors.saturating_mul(u64::from(disk.sector)));
    let (start, size) = (bytes(partition.first), bytes(partition.last - partition.first + 1));
    let shown = match wanted {
        Wanted::New => sys::add_partition(disk.device.as_fd(), number, start, size),
        Wanted::Longer => sys::resize_partition(disk.device.as_fd(), number, start, size),
    };
    let path = disk.path;
    shown.map_err(|source| BootDiskError::Shown { path: path.clone(), number, source })?;
    info!(device = %path.display(), %number, %size, "partition for the data made on the boot disk");
    Ok(true)
}

/// The disk that the node was started from, if our file system lies in it where no partition is any more: an
/// image was written over its beginning. Writes nothing.
pub(crate) fn former_data(seen: &[Seen]) -> Result<Option<String>, FindError> {
    let Some(disk) = BootDisk::open(seen)? else { return Ok(None) };
    let found = holds_former_data(disk.size, disk.sector, |buffer, at| disk.device.read_exact_at(buffer, at));
    Ok(found.map_err(disk.failed("read the partition table of"))?.then_some(disk.name))
}

/// The disk that the root is on, opened.
struct BootDisk {
    name: String,
    path: PathBuf,
    device: File,
    size: Bytes,
    sector: u32,
}

impl BootDisk {
    fn open(seen: &[Seen]) -> Result<Option<Self>, FindError> {
        let root = root()?;
        let blocks = Path::new("/sys/block");
        let disk = started_from(seen, |disk| sysfs::holds(&blocks.join(disk.name.replace('/', "!")), root))?;
        let Some(Seen { name, device: path, size, .. }) = disk.cloned() else { return Ok(None) };
        let opened = File::options().read(true).write(true).open(&path);
        let device = opened.map_err(|source| BootDiskError::Disk { step: "open", path: path.clone(), source })?;
        let sector = sector(&name)?;
        Ok(Some(Self { name, path, device, size, sector }))
    }

    fn failed(&self, step: &'static str) -> impl Fn(io::Error) -> BootDiskError {
        move |source| BootDiskError::Disk { step, path: self.path.clone(), source }
    }

    fn sectors(&self) -> u64 {
        self.size.get() / u64::from(self.sector)
    }

    /// The table, if it is one that can be changed.
    fn table(&self) -> Result<Option<Table>, BootDiskError> {
        let mut head = vec![0; Table::length(self.sector)];
        if self.size.get() < head.len() as u64 {
            return Ok(None);
        }
        self.device.read_exact_at(&mut head, 0).map_err(self.failed("read the partition table of"))?;
        match Table::parse(&head, self.sector) {
            Ok(table) => Ok(Some(table)),
            // The plain image of a system, as a kernel without firmware is given it.
            Err(ParseError::None) => Ok(None),
            Err(error) => {
                warn!(device = %self.path.display(), %error, "no partition is made on the boot disk");
                Ok(None)
            }
        }
    }

    /// Refuses the place of a new partition if the table that the disk had before says that something is there.
    fn is_free(&self, new: &Partition) -> Result<(), BootDiskError> {
        let read = |buffer: &mut [u8], at: u64| self.device.read_exact_at(buffer, at);
        let last = PartitionTable::last(self.size, self.sector, read);
        let last = last.map_err(self.failed("read the end of"))?;
        let Some(found) = last.and_then(|last| former(&last, new, self.sector)) else { return Ok(()) };
        let number = found.number;
        let (start, size, kind) = (found.start, found.size, found.kind);
        Err(BootDiskError::Former { path: self.path.clone(), number, start, size, kind })
    }

    /// Each is durable before the next.
    fn write(&self, writes: &[gpt::Write]) -> Result<(), BootDiskError> {
        for write in writes {
            let written = self.device.write_all_at(&write.bytes, write.at);
            written.and_then(|()| self.device.sync_all()).map_err(self.failed("write the partition table of"))?;
        }
        Ok(())
    }
}

/// The one disk whose table may be written. A serial number says who may not take a disk, not that it is ours.
fn started_from(
    seen: &[Seen],
    holds_root: impl Fn(&Seen) -> Result<bool, FindError>,
) -> Result<Option<&Seen>, FindError> {
    for disk in seen.iter().filter(|disk| disk.role == Role::System && !disk.read_only) {
        if holds_root(disk)? {
            return Ok(Some(disk));
        }
    }
    Ok(None)
}

/// What the table of before has in the place of a new partition, or behind it. The same partition of ours is
/// the exception: it is of a node whose image was written once more, or of a change that the power ended.
fn former(last: &PartitionTable, new: &Partition, sector: u32) -> Option<gpt_read::Partition> {
    let start = Bytes::new(new.first.saturating_mul(u64::from(sector)));
    let is_in_the_way = |found: &&gpt_read::Partition| {
        let is_the_same = found.kind == DATA_PARTITION && found.start == start;
        found.start.saturating_add(found.size) > start && !is_the_same
    };
    // A node's data are what the message should be about.
    last.partitions.iter().filter(is_in_the_way).max_by_key(|found| found.kind == DATA_PARTITION).copied()
}

/// Whether our file system begins where the table of before has a partition for data, or where a new one
/// would begin.
fn holds_former_data<R>(size: Bytes, sector: u32, mut read: R) -> io::Result<bool>
where
    R: FnMut(&mut [u8], u64) -> io::Result<()>,
{
    let last = PartitionTable::last(size, sector, &mut read)?;
    let mut starts: Vec<u64> =
        last.iter().flat_map(|last| last.data_partitions()).map(|found| found.start.get()).collect();
    let mut head = vec![0; Table::length(sector)];
    if size.get() >= head.len() as u64 {
        read(&mut head, 0)?;
        let change = Table::parse(&head, sector)
            .ok()
            .and_then(|table| plan(table, size.get() / u64::from(sector), Wanted::New, Guid::ZERO));
        starts.extend(change.map(|change| change.partition.first.saturating_mul(u64::from(sector))));
    }
    for at in starts {
        let mut head = [0; 512];
        read(&mut head, at)?;
        let rest = Bytes::new(size.get().saturating_sub(at));
        if (Ends { head: &head, tail: &[], size: rest }).ours().is_some() {
            return Ok(true);
        }
    }
    Ok(false)
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
            let image = match table.former_end() {
                Some(former) if former < sectors - 1 => former + 1,
                Some(_) => image_end(&table)?,
                None => 0,
            };
            let first = behind.max(image).checked_next_multiple_of(mib)?;
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

/// The writes that must come before a change if the table's second copy is at the end of the disk already, as
/// sgdisk and parted move it: it would be overwritten while the first one still counts, and they would differ
/// until the last write. They put it back to where it is in an image.
fn put_back(table: &Table, sectors: u64) -> Option<[gpt::Write; 3]> {
    table.former_end().filter(|former| *former == sectors - 1)?;
    table.writes(image_end(table)?).ok()
}

/// Where an image with these partitions ends: it has a MiB for the table's second copy (`tools/disk`).
fn image_end(table: &Table) -> Option<u64> {
    let mib = (1 << 20) / u64::from(table.sector());
    let behind = table.partitions().map(|partition| partition.last + 1).max().unwrap_or(table.first_usable());
    behind.checked_next_multiple_of(mib)?.checked_add(mib)
}

#[cfg(test)]
mod tests {
    use gpt::guid;
    use proptest::prelude::*;

    use super::*;
    use crate::content::{Content, LABEL};
    use crate::gpt::TableState;

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

        /// All that a boot does, or its first writes, after each of which the table is whole. Returns how many
        /// there were.
        fn boot(&mut self, wanted: Wanted, writes: usize) -> usize {
            let Some(mut change) = self.plan(wanted) else { return 0 };
            let before = put_back(&self.table(), self.sectors());
            let mut done = 0;
            for write in before.into_iter().flatten().take(writes) {
                self.apply([write]);
                assert_eq!(self.seen().state, TableState::Whole);
                done += 1;
            }
            if done == writes {
                return done;
            }
            let planned = self.plan(wanted).unwrap();
            assert_eq!(planned.partition, change.partition);
            change = planned;
            for write in change.table.writes(self.sectors()).unwrap().into_iter().take(writes - done) {
                self.apply([write]);
                assert_eq!(self.seen().state, TableState::Whole);
                done += 1;
            }
            done
        }

        /// As `sgdisk --move-second-header` leaves it.
        fn move_second_copy(&mut self) {
            self.apply(self.table().writes(self.sectors()).unwrap());
        }

        fn last(&self) -> Option<PartitionTable> {
            let read = |buffer: &mut [u8], at: u64| {
                self.read(buffer, at);
                Ok(())
            };
            PartitionTable::last(Bytes::new(self.size), self.sector, read).unwrap()
        }

        /// What is in the way of a new partition.
        fn former(&self) -> Option<gpt_read::Partition> {
            former(&self.last()?, &self.plan(Wanted::New)?.partition, self.sector)
        }

        fn holds_former_data(&self) -> bool {
            holds_former_data(Bytes::new(self.size), self.sector, |buffer, at| {
                self.read(buffer, at);
                Ok(())
            })
            .unwrap()
        }

        /// An image of this many MiB over the beginning.
        fn write_image(&mut self, length: u64) {
            let zeros = vec![0; 2 * MIB as usize];
            self.written.push((0, zeros));
            self.written.push(((length - 1) * MIB, vec![0; MIB as usize]));
            self.written.extend(Self::new(self.sector, length, length).written);
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
    fn what_the_table_of_before_has_behind_the_image_is_in_the_way() {
        for sector in [512, 4096] {
            let in_sectors = |mib: u64| mib * MIB / u64::from(sector);
            let mut disk = Disk { sector, size: 2000 * MIB, written: vec![] };
            let mut foreign = Table::new(ID, sector).unwrap();
            let (first, last) = (in_sectors(1), in_sectors(1999) - 1);
            let kind = SYSTEM;
            let name = "HOME".into();
            foreign.add(&Partition { number: NonZeroU32::MIN, kind, id: ID, first, last, name }).unwrap();
            disk.apply(foreign.writes(disk.sectors()).unwrap());
            disk.write_image(100);
            let found = disk.former().unwrap();
            assert_eq!((found.number, found.start, found.kind), (1, Bytes::MIB, SYSTEM));
        }
    }

    #[test]
    fn a_new_disk_has_nothing_in_the_way() {
        assert_eq!(Disk::new(512, 100, 2000).former(), None);
        let mut moved = Disk::new(512, 100, 2000);
        moved.move_second_copy();
        assert_eq!(moved.former(), None);
    }

    #[test]
    fn data_behind_an_image_of_another_length_are_in_the_way() {
        for length in [90, 110] {
            let mut disk = Disk::new(512, 100, 2000);
            disk.boot(Wanted::New, 9);
            disk.write_image(length);
            let found = disk.former().unwrap();
            assert_eq!((found.kind, found.start), (DATA_PARTITION, Bytes::new(100 * MIB)));
        }
    }

    #[test]
    fn data_behind_the_same_image_are_not_in_the_way_and_known_for_what_they_are() {
        let mut disk = Disk::new(512, 100, 2000);
        disk.boot(Wanted::New, 9);
        disk.write_image(100);
        assert_eq!(disk.former(), None);
        assert!(!disk.holds_former_data());
        disk.written.push((100 * MIB, our_superblock()));
        assert!(disk.holds_former_data());
        // By the place alone, too.
        disk.written.push((disk.size - MIB, vec![0; MIB as usize]));
        assert!(disk.last().is_none() && disk.holds_former_data());
    }

    #[test]
    fn data_that_only_the_table_of_before_tells_of_are_known_for_what_they_are() {
        let mut disk = Disk::new(512, 100, 2000);
        disk.boot(Wanted::New, 9);
        disk.write_image(90);
        assert!(!disk.holds_former_data());
        disk.written.push((100 * MIB, our_superblock()));
        assert!(disk.holds_former_data());
    }

    fn our_superblock() -> Vec<u8> {
        let mut superblock = vec![0; 512];
        superblock[..16].copy_from_slice(b"XFSB\0\0\x10\0\0\0\0\0\0\x04\0\0");
        superblock[108..120].copy_from_slice(LABEL.as_bytes());
        superblock
    }

    #[test]
    fn only_the_disk_that_the_root_is_on_is_written() {
        let disk = |name: &str, role, read_only| Seen {
            name: name.into(),
            device: format!("/dev/{name}").into(),
            role,
            read_only,
            size: Bytes::GIB,
            content: Content::Unexamined,
        };
        let seen = [disk("vda", Role::System, false), disk("vdb", Role::System, false)];
        let holds = |wanted: &'static str| move |disk: &Seen| Ok(disk.name == wanted);
        assert_eq!(started_from(&seen, holds("vdb")).unwrap(), Some(&seen[1]));
        assert_eq!(started_from(&seen, holds("vdc")).unwrap(), None);
        assert_eq!(started_from(&[disk("vda", Role::System, true)], holds("vda")).unwrap(), None);
    }

    #[test]
    fn a_second_copy_that_was_moved_to_the_end_changes_nothing() {
        for sector in [512, 4096] {
            let mut disk = Disk::new(sector, 100, 2000);
            disk.move_second_copy();
            assert_eq!(disk.boot(Wanted::New, 9), 6);
            assert_eq!(disk.data(), Some((100, 1899)));
        }
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
            cuts in prop::array::uniform2(0..7_usize),
            moved in prop::array::uniform2(any::<bool>()),
        ) {
            let mut disk = Disk::new(512, length, length + size);
            for (wanted, cut, moved) in [(Wanted::New, cuts[0], moved[0]), (Wanted::Longer, cuts[1], moved[1])] {
                if moved {
                    disk.move_second_copy();
                }
                let before = disk.data();
                let all = disk.plan(wanted).map(|_| put_back(&disk.table(), disk.sectors()).map_or(3, |_| 6));
                let done = disk.boot(wanted, cut);
                prop_assert!(Some(done) == all || disk.data() == before);
                prop_assert_eq!(disk.former(), None);
                disk.boot(wanted, 9);
                prop_assert_eq!(disk.plan(wanted), None);
                prop_assert_eq!(disk.seen().state, TableState::Whole);
                // Data that are there stay where they are, and begin where the image ended.
                if let (Some(before), Some(after)) = (before, disk.data()) {
                    prop_assert_eq!(before.0, after.0);
                    prop_assert!(after.1 >= before.1);
                }
                prop_assert!(disk.data().is_none_or(|(start, _)| start == length));
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
