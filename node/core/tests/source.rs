//! The EFI system partition in the kernel: a node that was started from the disk finds its configuration, or reports
//! its errors, and finds archives of images. Needs root and one scratch disk.

use std::fs::{self, File};
use std::num::NonZeroU32;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpt::{Guid, Partition, Table, guid, protective_mbr};
use ktest_support::process::Child;
use ktest_support::{Disk, run, unmount};
use nix::mount::{MsFlags, mount};
use nix::unistd::chroot;
use node_core::images::GivenArchives;
use node_core::source;
use node_core::status::chain;
use tempfile::TempDir;

const SECTOR: u32 = 512;
const SECTORS_OF_MIB: u64 = (1 << 20) / SECTOR as u64;

const EFI_SYSTEM: Guid = guid!("c12a7328-f81f-11d2-ba4b-00a0c93ec93b");
const LINUX: Guid = guid!("0fc63daf-8483-4772-8e79-3d69d8477de4");
const ID: Guid = guid!("00112233-4455-6677-8899-aabbccddeeff");

const FILE: &str = "granary.json";

const BOUND: [&str; 4] = ["dev", "proc", "sys", "tmp"];

/// A machine with one disk, which has an EFI system partition and the node's system.
struct Machine {
    disk: Disk,
    root: TempDir,
}

impl Machine {
    fn with_esp(fill: impl FnOnce(&Path)) -> Self {
        let machine = Self { disk: Disk::take(), root: tempfile::tempdir().unwrap() };
        let mut table = Table::new(ID, SECTOR).unwrap();
        for (number, kind, name, [start, end]) in [(1, EFI_SYSTEM, "ESP", [1, 65]), (2, LINUX, "SYSTEM-A", [65, 97])] {
            let number = NonZeroU32::new(number).unwrap();
            let (first, last) = (start * SECTORS_OF_MIB, end * SECTORS_OF_MIB - 1);
            table.add(&Partition { number, kind, id: ID, first, last, name: name.to_owned() }).unwrap();
        }
        let disk = File::options().write(true).open(machine.disk.path()).unwrap();
        disk.write_all_at(&protective_mbr(), 0).unwrap();
        for write in table.writes(98 * SECTORS_OF_MIB).unwrap() {
            disk.write_all_at(&write.bytes, write.at).unwrap();
        }
        disk.sync_all().unwrap();
        drop(disk);
        run(Command::new("blockdev").args(["--rereadpt", machine.disk.path().to_str().unwrap()]));
        run(Command::new("mke2fs").args(["-q", "-F", "-t", "ext4", "-O", "^has_journal"]).arg(machine.partition(2)));
        run(Command::new("mkfs.fat").arg(machine.partition(1)));
        let place = machine.root.path();
        let options = Some("codepage=437,iocharset=ascii");
        mount(Some(&*machine.partition(1)), place, Some("vfat"), MsFlags::empty(), options).unwrap();
        fill(place);
        unmount(place).unwrap();
        machine
    }

    fn with_file(bytes: &[u8]) -> Self {
        Self::with_esp(|place| fs::write(place.join(FILE), bytes).unwrap())
    }

    fn partition(&self, number: u32) -> String {
        format!("{}{number}", self.disk.path().display())
    }

    /// Result of a start from the disk: the source of the configuration and the node's name, or the error.
    fn result(&self) -> String {
        self.in_the_system(|| match source::read() {
            Ok((found, config)) => format!("{found}, {}", config.node),
            Err(error) => chain(&error, ": "),
        })
    }

    /// Archives of images that a start from the disk finds, with their contents.
    fn archives(&self) -> String {
        self.in_the_system(|| {
            let given = GivenArchives::find(Path::new("/ephemeral")).unwrap();
            let read = given.archives().iter().map(|archive| {
                let text = fs::read_to_string(&archive.path).unwrap();
                format!("{} on {}: {text}\n", archive.name, archive.path.display())
            });
            let text = read.collect();
            given.unmount();
            text
        })
    }

    /// Returns the text of a process whose root is the node's system.
    fn in_the_system(&self, work: impl FnOnce() -> String) -> String {
        let root = self.root.path();
        mount(Some(&*self.partition(2)), root, Some("ext4"), MsFlags::empty(), None::<&str>).unwrap();
        for name in BOUND {
            let target = root.join(name);
            fs::create_dir_all(&target).unwrap();
            mount(Some(&Path::new("/").join(name)), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        }
        fs::create_dir_all(root.join("ephemeral")).unwrap();
        let answer = self.answer();
        Child::start(|| {
            chroot(root).unwrap();
            std::env::set_current_dir("/").unwrap();
            fs::write(&answer, work()).unwrap();
        })
        .wait();
        BOUND.iter().for_each(|name| unmount(&root.join(name)).unwrap());
        // The unmount succeeds only if nothing is mounted below.
        unmount(root).unwrap();
        fs::read_to_string(self.answer()).unwrap()
    }

    /// A file in a directory that the node shares.
    fn answer(&self) -> PathBuf {
        self.root.path().with_extension("answer")
    }
}

#[test]
fn the_file_beside_the_system_configures_the_node() {
    let machine = Machine::with_file(br#"{"nodeName": "from-the-disk"}"#);
    assert_eq!(machine.result(), format!("granary.json on {}, from-the-disk", machine.partition(1)));
}

#[test]
fn without_a_file_the_defaults_count() {
    let machine = Machine::with_esp(|_| {});
    assert_eq!(machine.result(), "nowhere: the defaults, granary");
}

#[test]
fn errors_name_the_place_of_the_file() {
    let machine = Machine::with_file(br#"{"nodename": "from-the-disk"}"#);
    let result = machine.result();
    let place = format!("cannot use the node's configuration from granary.json on {}", machine.partition(1));
    assert!(result.starts_with(&place) && result.contains("nodename: unknown field"), "{result}");
}

#[test]
fn a_file_that_is_too_large_is_refused() {
    let machine = Machine::with_file(&vec![b' '; (64 << 10) + 1]);
    let expected =
        format!("granary.json on {} has more than 64 KiB, the maximum size of a configuration", machine.partition(1));
    assert_eq!(machine.result(), expected);
}

#[test]
fn a_binary_file_is_rejected() {
    let machine = Machine::with_file(b"\xff");
    let expected = format!("cannot read granary.json on {}: ", machine.partition(1));
    assert!(machine.result().starts_with(&expected), "{}", machine.result());
}

#[test]
fn a_directory_of_the_name_is_refused() {
    let machine = Machine::with_esp(|place| fs::create_dir(place.join(FILE)).unwrap());
    let expected = format!("cannot read granary.json on {}: Is a directory", machine.partition(1));
    assert!(machine.result().starts_with(&expected), "{}", machine.result());
}

#[test]
fn a_partition_without_a_file_system_is_refused() {
    let machine = Machine::with_file(b"{}");
    let esp = File::options().write(true).open(machine.partition(1)).unwrap();
    esp.write_all_at(&[0; 512], 0).unwrap();
    esp.sync_all().unwrap();
    drop(esp);
    let partition = machine.partition(1);
    let expected = format!("cannot mount the EFI system partition {partition}; format it with FAT");
    assert!(machine.result().starts_with(&expected), "{}", machine.result());
}

#[test]
fn archives_of_images_beside_the_system_are_found() {
    let machine = Machine::with_esp(|place| {
        let images = place.join("images");
        fs::create_dir_all(images.join("directory.tar")).unwrap();
        for (name, text) in [("second.tar", "2"), ("First.tar", "1"), ("README", "")] {
            fs::write(images.join(name), text).unwrap();
        }
    });
    let place = format!("/ephemeral/esp/{}/images", machine.partition(1).trim_start_matches("/dev/"));
    let expected = [("First.tar", 1), ("second.tar", 2)];
    let expected = expected.map(|(name, text)| format!("images/{name} on {place}/{name}: {text}\n"));
    assert_eq!(machine.archives(), expected.concat());
}

#[test]
fn without_archives_the_partition_is_not_kept() {
    let machine = Machine::with_esp(|place| fs::create_dir(place.join("images")).unwrap());
    assert_eq!(machine.archives(), "");
}
