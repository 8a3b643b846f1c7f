use std::num::NonZeroU32;

use gpt::{TableState, guid};
use proptest::prelude::*;

use super::*;
use crate::content::Content;
use crate::content::tests::our_superblock;

const MIB: u64 = 1 << 20;
const SYSTEM: Guid = guid!("c12a7328-f81f-11d2-ba4b-00a0c93ec93b");
const ID: Guid = guid!("00112233-4455-6677-8899-aabbccddeeff");

/// A disk of zeros, of which only the written parts are in memory.
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

    fn read(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        for (place, bytes) in &self.written {
            let start = (*place).max(at);
            let end = (place + bytes.len() as u64).min(at + buffer.len() as u64);
            let range = |base: u64| (start - base) as usize..(end - base) as usize;
            if start < end {
                buffer[range(at)].copy_from_slice(&bytes[range(*place)]);
            }
        }
        Ok(())
    }

    fn table(&self) -> Table {
        let mut head = vec![0; Table::length(self.sector)];
        self.read(&mut head, 0).unwrap();
        Table::parse(&head, self.sector).unwrap()
    }

    fn sectors(&self) -> u64 {
        self.size / u64::from(self.sector)
    }

    fn plan(&self, wanted: Wanted) -> Option<Change> {
        plan(self.table(), self.sectors(), wanted, ID)
    }

    fn change(&mut self, change: &Change, writes: usize) {
        let all = change.table.writes(self.sectors()).unwrap();
        self.apply(all.into_iter().take(writes));
    }

    /// Performs the writes of a boot, or the first ones, and checks the table after each of them. Returns their number.
    fn boot(&mut self, wanted: Wanted, writes: usize) -> usize {
        let Some(mut change) = self.plan(wanted) else { return 0 };
        let before = move_backup(&self.table(), self.sectors());
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

    /// State of a disk after `sgdisk --move-second-header`.
    fn move_second_copy(&mut self) {
        self.apply(self.table().writes(self.sectors()).unwrap());
    }

    fn last(&self) -> Option<PartitionTable> {
        PartitionTable::last(Bytes::new(self.size), self.sector, |buffer, at| self.read(buffer, at)).unwrap()
    }

    fn former(&self) -> Option<Extent> {
        former(&self.last()?, &self.plan(Wanted::New)?.partition, self.sector)
    }

    fn holds_former_data(&self) -> bool {
        holds_former_data(Bytes::new(self.size), self.sector, |buffer, at| self.read(buffer, at)).unwrap()
    }

    /// Writes an image of `length` MiB over the beginning of the disk.
    fn write_image(&mut self, length: u64) {
        let zeros = vec![0; 2 * MIB as usize];
        self.written.push((0, zeros));
        self.written.push(((length - 1) * MIB, vec![0; MIB as usize]));
        self.written.extend(Self::new(self.sector, length, length).written);
    }

    /// The table as the search for the data disk reads it.
    fn seen(&self) -> PartitionTable {
        let table = PartitionTable::read(Bytes::new(self.size), self.sector, |buffer, at| self.read(buffer, at));
        table.unwrap().unwrap()
    }

    /// Start and size of the only data partition, in MiB.
    fn data(&self) -> Option<(u64, u64)> {
        let seen = self.seen();
        let mut data = seen.of_kind(DATA_PARTITION).map(|found| (found.start.get() / MIB, found.size.get() / MIB));
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
fn data_behind_the_same_image_are_found_and_kept() {
    let mut disk = Disk::new(512, 100, 2000);
    disk.boot(Wanted::New, 9);
    disk.write_image(100);
    assert_eq!(disk.former(), None);
    assert!(!disk.holds_former_data());
    disk.written.push((100 * MIB, our_superblock()));
    assert!(disk.holds_former_data());
    // The place alone is sufficient, too.
    disk.written.push((disk.size - MIB, vec![0; MIB as usize]));
    assert!(disk.last().is_none() && disk.holds_former_data());
}

#[test]
fn partitions_of_the_former_table_are_detected() {
    let mut disk = Disk::new(512, 100, 2000);
    disk.boot(Wanted::New, 9);
    disk.write_image(90);
    assert!(!disk.holds_former_data());
    disk.written.push((100 * MIB, our_superblock()));
    assert!(disk.holds_former_data());
}

#[test]
fn only_the_disk_that_the_root_is_on_is_written() {
    let disk = |name: &str, role, read_only| FoundDisk {
        name: name.into(),
        device: format!("/dev/{name}").into(),
        role,
        read_only,
        size: Bytes::GIB,
        content: Content::Unexamined,
    };
    let seen = [disk("vda", Role::System, false), disk("vdb", Role::System, false)];
    let holds = |wanted: &'static str| move |disk: &FoundDisk| Ok(disk.name == wanted);
    assert_eq!(find_boot_disk(&seen, holds("vdb")).unwrap(), Some(&seen[1]));
    assert_eq!(find_boot_disk(&seen, holds("vdc")).unwrap(), None);
    assert_eq!(find_boot_disk(&[disk("vda", Role::System, true)], holds("vda")).unwrap(), None);
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
            let all = disk.plan(wanted).map(|_| move_backup(&disk.table(), disk.sectors()).map_or(3, |_| 6));
            let done = disk.boot(wanted, cut);
            prop_assert!(Some(done) == all || disk.data() == before);
            prop_assert_eq!(disk.former(), None);
            disk.boot(wanted, 9);
            prop_assert_eq!(disk.plan(wanted), None);
            prop_assert_eq!(disk.seen().state, TableState::Whole);
            // Existing data stay in their place, and begin at the end of the image.
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
            // The partition does not overlap the backup table of the image either.
            prop_assert_eq!(start, length);
            prop_assert!((start + size) * MIB + 33 * 512 <= disk.size);
            prop_assert!((start + size + 2) * MIB > disk.size);
        }
    }
}
