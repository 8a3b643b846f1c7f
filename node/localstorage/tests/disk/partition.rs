//! Data partitions that `sfdisk` creates and the kernel shows.

use localstorage::{DATA_PARTITION, Guid, PartitionTable, TableState};

use super::*;

/// Partitions the machine's disk with a script of `sfdisk` in which DATA stands for the type of the data partition.
pub(super) fn divide(machine: &Machine, more: &[&str], script: &str) {
    use std::io::Write;
    use std::process::Stdio;
    let script = script.replace("DATA", &DATA_PARTITION.to_string());
    let mut sfdisk = Command::new("sfdisk")
        .args(["--quiet", "--wipe=never", "--wipe-partitions=never"])
        .args(more)
        .arg(machine.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    sfdisk.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(sfdisk.wait().unwrap().success(), "{script}");
}

/// The partitions of a node's own image: a system, and the data in the rest.
const SYSTEM_AND_DATA: &str = "label: gpt\nsize=64M, type=linux\ntype=DATA\n";

fn device(machine: &Machine, number: u32) -> PathBuf {
    format!("{}{number}", machine.path()).into()
}

fn refusal() -> NoDataDisk {
    match DataDisk::find() {
        Err(FindError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

fn overwrite(device: &Path, bytes: &[u8]) {
    let device = File::options().write(true).open(device).unwrap();
    device.write_all_at(bytes, 0).unwrap();
    device.sync_all().unwrap();
}

#[test]
fn an_empty_partition_for_data_is_formatted_and_found_again() {
    let machine = Machine::new();
    divide(&machine, &[], SYSTEM_AND_DATA);
    let system = vec![5; 1 << 20];
    overwrite(&device(&machine, 1), &system);
    assert_eq!(DataDisk::find().unwrap().device(), device(&machine, 2));
    let data = machine.mount().unwrap();
    let file = data.pki.path().join("kept");
    fs::write(&file, "kept").unwrap();
    machine.unmount(data);

    let data = machine.mount().unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"kept");
    machine.unmount(data);
    let mut found = vec![0; system.len()];
    File::open(device(&machine, 1)).unwrap().read_exact_at(&mut found, 0).unwrap();
    assert!(found == system, "the other partition was written to");
}

#[test]
fn a_partition_is_for_data_by_its_type_alone() {
    let machine = Machine::new();
    divide(&machine, &[], "label: gpt\nsize=64M, type=linux\ntype=linux, name=granary-data\n");
    let what = machine.is_refused();
    assert_eq!(what.to_string(), "a partition table (gpt)");
}

#[test]
fn foreign_content_in_a_partition_for_data_is_refused() {
    let machine = Machine::new();
    divide(&machine, &[], SYSTEM_AND_DATA);
    let partition = device(&machine, 2);
    run(Command::new("mke2fs").args(["-q", "-F", "-t", "ext4", "-L", "home", partition.to_str().unwrap()]));
    assert_eq!(machine.is_refused().to_string(), "a file system (ext4, label \"home\")");
}

#[test]
fn two_partitions_for_data_are_refused_and_named() {
    let machine = Machine::new();
    divide(&machine, &[], "label: gpt\nsize=300M, type=DATA\ntype=DATA\n");
    let disks = vec![format!("{}1", machine.name()), format!("{}2", machine.name())];
    assert_eq!(refusal(), NoDataDisk::Several { disks });
}

#[test]
fn a_partition_that_the_kernel_does_not_show_is_rejected() {
    let machine = Machine::new();
    divide(&machine, &["--no-reread", "--no-tell-kernel"], SYSTEM_AND_DATA);
    assert_eq!(refusal(), NoDataDisk::NotShown { disk: machine.name().into(), number: 2 });
    // The kernel now shows the first partition, and the second at its former place.
    divide(&machine, &[], SYSTEM_AND_DATA);
    divide(&machine, &["--no-reread", "--no-tell-kernel"], "label: gpt\nsize=65M, type=linux\ntype=DATA\n");
    assert_eq!(refusal(), NoDataDisk::NotShown { disk: machine.name().into(), number: 2 });
}

#[test]
fn a_damaged_table_with_a_partition_for_data_is_refused() {
    let machine = Machine::new();
    divide(&machine, &[], SYSTEM_AND_DATA);
    machine.overwrite(512 + 24, &[2]);
    let written = machine.written();
    assert_eq!(refusal(), NoDataDisk::Table { disk: machine.name().into(), state: TableState::LastOnly });
    assert_eq!(machine.written(), written);
}

#[test]
fn a_table_whose_second_copy_is_lost_will_do() {
    let machine = Machine::new();
    divide(&machine, &[], SYSTEM_AND_DATA);
    machine.overwrite(machine.size() - 512, &[0; 512]);
    assert_eq!(DataDisk::find().unwrap().device(), device(&machine, 2));
}

#[test]
fn an_enlarged_partition_is_used_as_a_whole() {
    let machine = Machine::new();
    divide(&machine, &[], "label: gpt\nsize=600M, type=DATA\n");
    let data = machine.mount().unwrap();
    let file = data.pki.path().join("kept");
    fs::write(&file, "kept").unwrap();
    let before = statvfs(data.path()).unwrap().blocks();
    machine.unmount(data);

    divide(&machine, &["-N", "1"], ",900M\n");
    let data = machine.mount().unwrap();
    assert_eq!(statvfs(data.path()).unwrap().blocks() - before, (300 << 20) / 4096);
    assert_eq!(fs::read(&file).unwrap(), b"kept");
}

#[test]
fn a_disk_with_a_table_is_read_as_sfdisk_and_the_kernel_read_it() {
    let machine = Machine::new();
    divide(&machine, &[], "label: gpt\nsize=64M, type=uefi\nsize=1M, type=linux\nstart=500M, size=10M, type=DATA\n");
    let disk = File::open(machine.disk.path()).unwrap();
    let size = Bytes::new(machine.size());
    let table = PartitionTable::read(size, 512, |buffer, at| disk.read_exact_at(buffer, at)).unwrap().unwrap();
    assert_eq!(table.state, TableState::Whole);
    let uefi: Guid = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b".parse().unwrap();
    assert_eq!((table.partitions[0].kind, table.partitions[2].kind), (uefi, DATA_PARTITION));
    for partition in &table.partitions {
        let attribute = |attribute| {
            let name = machine.name();
            let path = format!("/sys/block/{name}/{name}{}/{attribute}", partition.number);
            Bytes::new(localstorage::sysfs::number(&fs::read_to_string(path).unwrap()).unwrap() * 512)
        };
        assert_eq!((partition.start, partition.size), (attribute("start"), attribute("size")));
    }
}

#[test]
fn sectors_of_4_kib_are_read_too() {
    let machine = Machine::new();
    run(Command::new("losetup").args(["--sector-size", "4096", "/dev/loop0", machine.path()]));
    let _detach = Detach;
    let script = format!("label: gpt\nsize=64M, type=linux\ntype={DATA_PARTITION}\n");
    let file = machine.place.path().join("script");
    fs::write(&file, script).unwrap();
    let mut sfdisk = Command::new("sfdisk");
    sfdisk.args(["--quiet", "--no-reread", "--no-tell-kernel", "/dev/loop0"]).stdin(File::open(file).unwrap());
    assert!(sfdisk.status().unwrap().success());
    let disk = File::open("/dev/loop0").unwrap();
    let read = |sector| {
        let size = Bytes::new(machine.size());
        PartitionTable::read(size, sector, |buffer, at| disk.read_exact_at(buffer, at)).unwrap()
    };
    let table = read(4096).unwrap();
    let data: Vec<_> = table.of_kind(DATA_PARTITION).map(|data| (data.number, data.start)).collect();
    assert_eq!((table.state, data), (TableState::Whole, vec![(2, Bytes::new(65 << 20))]));
    assert_eq!(read(512), None);
}

struct Detach;

impl Drop for Detach {
    fn drop(&mut self) {
        run(Command::new("losetup").args(["--detach", "/dev/loop0"]));
    }
}
