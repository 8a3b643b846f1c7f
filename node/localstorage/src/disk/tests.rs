use std::num::NonZeroU32;

use nix::sys::stat::makedev;
use tempfile::TempDir;

use super::*;
use crate::content::tests::our_superblock;
use crate::signature::{Signature, Usage};

struct FakeMachine {
    place: TempDir,
}

impl FakeMachine {
    fn new() -> Self {
        let machine = Self { place: tempfile::tempdir().unwrap() };
        fs::create_dir(machine.blocks()).unwrap();
        fs::create_dir(machine.devices()).unwrap();
        machine
    }

    fn blocks(&self) -> PathBuf {
        self.place.path().join("block")
    }

    fn devices(&self) -> PathBuf {
        self.place.path().join("dev")
    }

    fn add(&self, name: &str, serial: Option<&str>, content: &[u8]) {
        let block = self.blocks().join(name);
        fs::create_dir_all(block.join("device")).unwrap();
        // Content larger than 1 MiB is the whole disk.
        let size = if content.len() > 1 << 20 { content.len() as u64 } else { (4 << 20) + 512 };
        fs::write(block.join("size"), format!("{}\n", size / 512)).unwrap();
        fs::write(block.join("ro"), "0\n").unwrap();
        fs::write(block.join("hidden"), "0\n").unwrap();
        fs::write(block.join("dev"), "254:0\n").unwrap();
        fs::create_dir(block.join("queue")).unwrap();
        fs::write(block.join("queue/logical_block_size"), "512\n").unwrap();
        if let Some(serial) = serial {
            fs::write(block.join("serial"), serial).unwrap();
        }
        fs::write(self.devices().join(name), content).unwrap();
        File::options().write(true).open(self.devices().join(name)).unwrap().set_len(size).unwrap();
    }

    /// Adds a partition as the kernel shows it, with this content.
    fn add_partition(&self, disk: &str, number: u32, start: u64, size: u64, content: &[u8]) {
        let name = format!("{disk}{number}");
        let partition = self.blocks().join(disk).join(&name);
        fs::create_dir(&partition).unwrap();
        let numbers = [("partition", number.into()), ("start", start / 512), ("size", size / 512), ("ro", 0)];
        for (attribute, number) in numbers {
            fs::write(partition.join(attribute), format!("{number}\n")).unwrap();
        }
        fs::write(partition.join("dev"), format!("254:{number}\n")).unwrap();
        fs::write(self.devices().join(&name), content).unwrap();
        File::options().write(true).open(self.devices().join(name)).unwrap().set_len(size).unwrap();
    }

    fn look(&self) -> Result<Vec<FoundDisk>, FindError> {
        self.look_among(|_| true)
    }

    fn look_among(&self, is_selected: impl Fn(&Path) -> bool) -> Result<Vec<FoundDisk>, FindError> {
        let swap = Mark { format: "swap".into(), usage: Usage::Other, label: None };
        let ask = |device: &Path| {
            let bytes = fs::read(device).unwrap();
            Ok(if bytes.starts_with(b"swap") { vec![swap.clone()] } else { vec![] })
        };
        Machine { blocks: self.blocks(), devices: self.devices(), root: makedev(254, 17), ask: &ask }.disks(is_selected)
    }

    fn disks(&self) -> Vec<FoundDisk> {
        self.look().unwrap()
    }
}

#[test]
fn a_disk_is_seen_with_its_role_size_and_content() {
    let machine = FakeMachine::new();
    machine.add("vdb", Some("data"), b"swap");
    machine.add("vda", Some("system\n"), b"");
    let seen = machine.disks();
    let summary: Vec<_> = seen.iter().map(|disk| (disk.name.as_str(), disk.role)).collect();
    assert_eq!(summary, [("vda", Role::System), ("vdb", Role::Data)]);
    assert_eq!(seen[1].size, Bytes::new((4 << 20) + 512));
    assert!(matches!(&seen[1].content, Content::Foreign(Signature::Known(marks)) if marks[0].format == "swap"));
}

#[test]
fn only_disks_to_choose_from_are_examined() {
    let machine = FakeMachine::new();
    machine.add("vda", Some("system"), b"");
    machine.add("vdb", None, b"");
    assert_eq!(
        machine.disks().iter().map(|disk| &disk.content).collect::<Vec<_>>(),
        [&Content::Unexamined, &Content::Empty]
    );
    machine.add("vdc", Some("data"), b"");
    let seen = machine.disks();
    assert_eq!((&seen[1].content, &seen[2].content), (&Content::Unexamined, &Content::Empty));
}

#[test]
fn our_file_system_is_seen_on_disks_that_are_not_to_choose_from() {
    let machine = FakeMachine::new();
    machine.add("vda", Some("system"), &disk_with_data());
    machine.add_partition("vda", 1, 128 * 512, 128 * 512, &our_superblock());
    machine.add("vdb", None, &our_superblock());
    machine.add("vdc", None, b"swap");
    let seen = machine.disks();
    assert!(matches!(seen[2].content, Content::Data(_)));
    assert_eq!(seen[3].content, Content::Unexamined);
    let refusal = NoDataDisk::Several { disks: vec!["vda1".into(), "vdb".into()] };
    assert!(matches!(DataDisk::choose(&seen), Err(FindError::Refused(found)) if found == refusal));
}

/// Regression: the node created a new cluster on another disk, and rejected both disks when the first was writable
/// again.
#[test]
fn a_read_only_disk_with_data_is_not_replaced() {
    let machine = FakeMachine::new();
    machine.add("vda", Some("system"), b"");
    machine.add("vdb", None, &our_superblock());
    fs::write(machine.blocks().join("vdb/ro"), "1\n").unwrap();
    let is_refused = || {
        let seen = machine.disks();
        let (chosen, refusal) = (DataDisk::choose(&seen), NoDataDisk::ReadOnly { disk: "vdb".into() });
        assert_eq!(wanted(&seen, &chosen), None);
        assert!(matches!(chosen, Err(FindError::Refused(found)) if found == refusal));
    };
    is_refused();
    machine.add("vdc", None, b"");
    is_refused();
    // A writable copy is used in its place.
    machine.add("vdd", None, &our_superblock());
    assert!(matches!(DataDisk::choose(&machine.disks()), Ok(disk) if disk.device().ends_with("dev/vdd")));
}

#[test]
fn the_boot_disk_is_used_if_no_other_disk_holds_anything() {
    let wanted = |disks: &[(&str, Option<&str>, &[u8])]| {
        let machine = FakeMachine::new();
        machine.add("vda", Some("system"), b"");
        for (name, serial, content) in disks {
            machine.add(name, *serial, content);
        }
        let seen = machine.disks();
        super::wanted(&seen, &DataDisk::choose(&seen))
    };
    assert_eq!(wanted(&[]), Some(Wanted::New));
    // The disk is empty and too small.
    assert_eq!(wanted(&[("vdb", None, b"")]), Some(Wanted::New));
    // An archive of images on a disk that the kernel does not report as read-only.
    assert_eq!(wanted(&[("vdb", Some("image-1"), b"swap")]), Some(Wanted::New));
    assert_eq!(wanted(&[("vdb", Some("data"), b"")]), None);
    assert_eq!(wanted(&[("vdb", None, b"swap")]), None);
    assert_eq!(wanted(&[("vdb", None, b"swap"), ("vdc", None, b"swap")]), None);
}

#[test]
fn a_name_that_two_disks_have_names_none() {
    let machine = FakeMachine::new();
    machine.add("vda", None, &our_superblock());
    machine.add("vdb", None, &our_superblock());
    machine.add("vdc", None, b"");
    let seen = machine.disks();
    let programs = Programs::default();
    let named = |names: &[&str]| DataDisk::choose_named(&seen, |disk| names.contains(&disk.name.as_str()), &programs);
    for names in [["vda", "vdb"], ["vda", "vdc"]] {
        let refusal = NoDataDisk::Several { disks: names.map(str::to_owned).into() };
        assert!(matches!(named(&names), Err(FindError::Refused(found)) if found == refusal));
    }
    assert!(matches!(named(&["vdb"]), Ok(Some(disk)) if disk.device().ends_with("dev/vdb")));
    assert!(matches!(named(&["vdz"]), Ok(None)));
}

/// Regression: a broken disk stopped the boot of a node whose configuration names another one.
#[test]
fn nothing_is_read_of_disks_that_are_not_meant() {
    let machine = FakeMachine::new();
    machine.add("vda", None, &our_superblock());
    machine.add("vdb", None, b"");
    fs::remove_file(machine.devices().join("vdb")).unwrap();
    assert!(matches!(machine.look(), Err(FindError::Look { step: "open", path, .. }) if path.ends_with("dev/vdb")));
    let seen = machine.look_among(|disk| disk.ends_with("vda")).unwrap();
    assert_eq!(seen.iter().map(|disk| disk.name.as_str()).collect::<Vec<_>>(), ["vda"]);
}

/// Regression: a block that could not be read, in the first or last MiB of the data disk, stopped the boot.
#[test]
fn only_the_superblock_of_a_disk_with_data_is_read() {
    let unreadable_from = |length, content: &[u8]| {
        let machine = FakeMachine::new();
        machine.add("vda", Some("data"), content);
        File::options().write(true).open(machine.devices().join("vda")).unwrap().set_len(length).unwrap();
        machine.look().map(|disks| disks[0].content.clone())
    };
    for length in [512, 2 << 20] {
        assert!(matches!(unreadable_from(length, &our_superblock()), Ok(Content::Data(_))), "{length}");
        // A disk is empty only if both ends are known.
        assert!(matches!(unreadable_from(length, b""), Err(FindError::Look { .. })), "{length}");
    }
}

/// A disk of 2 MiB with a data partition in the sectors 128 to 255.
fn disk_with_data() -> Vec<u8> {
    let mut table = gpt::Table::new(gpt::Guid::ZERO, 512).unwrap();
    let (number, id, name) = (NonZeroU32::MIN, gpt::Guid::ZERO, String::new());
    table.add(&gpt::Partition { number, kind: DATA_PARTITION, id, first: 128, last: 255, name }).unwrap();
    let mut disk = vec![0; 4096 * 512];
    disk[..512].copy_from_slice(&gpt::protective_mbr());
    for write in table.writes(4096).unwrap() {
        disk[write.at as usize..][..write.bytes.len()].copy_from_slice(&write.bytes);
    }
    disk
}

#[test]
fn a_partition_for_data_counts_even_on_the_system_disk() {
    let machine = FakeMachine::new();
    machine.add("vda", Some("system"), &disk_with_data());
    machine.add_partition("vda", 1, 128 * 512, 128 * 512, b"");
    machine.add("vdb", Some("data"), b"");
    let seen = machine.disks();
    let found = seen.iter().map(|disk| (disk.name.as_str(), disk.role, &disk.content));
    assert_eq!(
        found.collect::<Vec<_>>(),
        [
            ("vda", Role::System, &Content::Unexamined),
            ("vda1", Role::Partition, &Content::Empty),
            ("vdb", Role::Data, &Content::Unexamined)
        ]
    );
    assert!(seen[1].device.ends_with("dev/vda1"));
}

#[test]
fn a_partition_that_the_kernel_shows_elsewhere_is_not_the_one() {
    for (number, start, size) in [(2, 128, 128), (1, 129, 128), (1, 128, 127)] {
        let machine = FakeMachine::new();
        machine.add("vda", None, &disk_with_data());
        machine.add_partition("vda", number, start * 512, size * 512, b"");
        let refusal = NoDataDisk::NotShown { disk: "vda".into(), number: 1 };
        assert!(matches!(machine.look(), Err(FindError::Refused(found)) if found == refusal));
    }
}

#[test]
fn the_disk_that_holds_the_root_in_a_partition_is_the_systems() {
    let machine = FakeMachine::new();
    machine.add("vdb", Some("data"), b"");
    machine.add_partition("vdb", 17, 0, 512, b"");
    assert_eq!(machine.disks()[0].role, Role::System);
}

#[test]
fn the_disk_below_the_device_that_holds_the_root_is_the_systems() {
    let machine = FakeMachine::new();
    machine.add("vdb", Some("data"), b"");
    machine.add_partition("vdb", 2, 0, 512, b"");
    let verity = machine.blocks().join("vdb/vdb2/holders/dm-0");
    fs::create_dir_all(&verity).unwrap();
    fs::write(verity.join("dev"), "254:17\n").unwrap();
    assert_eq!(machine.disks()[0].role, Role::System);
}

#[test]
fn devices_without_hardware_are_skipped() {
    let machine = FakeMachine::new();
    fs::create_dir(machine.blocks().join("loop0")).unwrap();
    machine.add("sr0", None, b"");
    fs::write(machine.blocks().join("sr0/size"), "0\n").unwrap();
    assert_eq!(machine.disks(), []);
}

#[test]
fn a_path_to_an_nvme_disk_that_has_several_is_passed_over() {
    let machine = FakeMachine::new();
    machine.add("nvme0c0n1", None, b"");
    fs::write(machine.blocks().join("nvme0c0n1/hidden"), "1\n").unwrap();
    fs::remove_file(machine.devices().join("nvme0c0n1")).unwrap();
    assert_eq!(machine.disks(), []);
}

#[test]
fn only_an_unreadable_drive_without_a_medium_is_skipped() {
    let opened = |errno: Errno| medium(Path::new("/dev/sr0"), Err(errno.into()));
    assert!(matches!(opened(Errno::ENOMEDIUM), Ok(None)));
    for errno in [Errno::EIO, Errno::ENXIO, Errno::EACCES, Errno::ENOENT] {
        assert!(matches!(opened(errno), Err(FindError::Look { step: "open", .. })), "{errno}");
    }
}

#[test]
fn the_last_byte_of_a_disk_is_looked_at() {
    let machine = FakeMachine::new();
    machine.add("vda", None, b"");
    let last = (4 << 20) + 511;
    File::options().write(true).open(machine.devices().join("vda")).unwrap().write_all_at(b"x", last).unwrap();
    assert_eq!(machine.disks()[0].content, Content::Foreign(Signature::Unknown { at: last }));
}
