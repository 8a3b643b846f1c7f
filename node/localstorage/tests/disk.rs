//! A data disk from empty to enlarged, as the kernel and `mkfs.xfs` have it. Needs root and one scratch disk.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use dir::{Mode, Name};
use fsquota::Limits;
use ktest_support::Disk;
use localstorage::{
    Content, Data, DataDisk, FindError, LABEL, MountError, Mounted, Refusal, Root, Signature, Tree, mount_ephemeral,
};
use nix::mount::{MntFlags, umount2};
use nix::sys::statvfs::{FsFlags, statvfs};
use tempfile::TempDir;
use units::Bytes;

/// A machine with one disk and a place for its tree.
struct Machine {
    place: TempDir,
    disk: Disk,
}

impl Machine {
    /// The disk is empty.
    fn new() -> Self {
        let machine = Self { place: tempfile::tempdir().unwrap(), disk: Disk::take() };
        fs::create_dir(machine.root().data.path()).unwrap();
        fs::create_dir(machine.root().ephemeral.path()).unwrap();
        let zeros = vec![0; 1 << 20];
        machine.overwrite(0, &zeros);
        machine.overwrite(machine.size() - zeros.len() as u64, &zeros);
        machine
    }

    fn root(&self) -> Root {
        Root::at(self.place.path())
    }

    fn size(&self) -> u64 {
        let name = self.disk.path().file_name().unwrap();
        let sectors = fs::read_to_string(Path::new("/sys/block").join(name).join("size")).unwrap();
        sectors.trim().parse::<u64>().unwrap() * 512
    }

    fn overwrite(&self, at: u64, bytes: &[u8]) {
        let disk = File::options().write(true).open(self.disk.path()).unwrap();
        disk.write_all_at(bytes, at).unwrap();
        disk.sync_all().unwrap();
    }

    fn beginning(&self) -> Vec<u8> {
        let mut bytes = vec![0; 4 << 20];
        File::open(self.disk.path()).unwrap().read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    fn mkfs(&self, more: &[&str]) {
        let made = Command::new("mkfs.xfs").args(["-q", "-f", "-K"]).args(more).arg(self.disk.path()).status();
        assert!(made.unwrap().success());
    }

    fn mount(&self) -> Result<Mounted<Data>, MountError> {
        DataDisk::find().unwrap().mount_with(Path::new("mkfs.xfs"), self.root().data)
    }

    /// As when the power goes, but for what was not written yet.
    fn unmount(&self, data: Mounted<Data>) {
        drop(data);
        umount2(self.root().data.path(), MntFlags::empty()).unwrap();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for path in [self.root().data.path(), self.root().ephemeral.path()] {
            let _ = umount2(path, MntFlags::MNT_DETACH);
        }
    }
}

fn mode(path: PathBuf) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn an_empty_disk_becomes_a_tree_of_private_directories() {
    let machine = Machine::new();
    let data = machine.mount().unwrap();
    for directory in [data.path(), data.kubelet.plugins.path(), data.volumes.path(), data.log.pods.path()] {
        assert_eq!(mode(directory.to_owned()), 0o700, "{}", directory.display());
    }
    let inert = FsFlags::ST_NOSUID | FsFlags::ST_NODEV | FsFlags::ST_NOEXEC;
    assert!(statvfs(data.volumes.path()).unwrap().flags().contains(inert));
}

#[test]
fn a_directory_of_the_tree_can_be_limited() {
    let machine = Machine::new();
    let data = machine.mount().unwrap();
    let ids = fsquota::Allocator::open(data.open(|data| &data.volumes).unwrap()).unwrap();
    let etcd = data.open(|data| &data.etcd).unwrap();
    fsquota::set(&etcd, Limits::for_size(Bytes::MIB), &ids).unwrap();
    assert_eq!(fsquota::get(&etcd).unwrap().limits, Limits::for_size(Bytes::MIB));
}

#[test]
fn a_later_boot_finds_what_was_written() {
    let machine = Machine::new();
    let data = machine.mount().unwrap();
    let name = Name::try_from("ca.key").unwrap();
    data.open(|data| &data.pki).unwrap().write(&name, b"secret", Mode::S_IRUSR).unwrap();
    machine.unmount(data);
    let data = machine.mount().unwrap();
    assert_eq!(data.open(|data| &data.pki).unwrap().read(&name).unwrap().as_deref(), Some(&b"secret"[..]));
}

#[test]
fn mounting_twice_is_mounting_once() {
    let machine = Machine::new();
    let first = machine.mount().unwrap();
    let second = machine.mount().unwrap();
    let device = |data: &Mounted<Data>| fs::metadata(data.path()).unwrap().dev();
    assert_eq!(device(&first), device(&second));
    drop(first);
    machine.unmount(second);
    assert!(umount2(machine.root().data.path(), MntFlags::empty()).is_err(), "it was mounted twice");
}

#[test]
fn a_disk_with_another_file_system_is_refused_and_not_touched() {
    let machine = Machine::new();
    machine.mkfs(&["-L", "home"]);
    let before = machine.beginning();
    let found = DataDisk::find();
    let Err(FindError::Refused(Refusal::Foreign { what, .. })) = found else { panic!("{found:?}") };
    assert_eq!(what, Signature::Xfs { label: "home".into() });
    assert!(machine.beginning() == before, "the disk was written to");
}

#[test]
fn a_disk_with_unknown_data_at_its_end_is_refused() {
    let machine = Machine::new();
    let at = machine.size() - 1;
    machine.overwrite(at, b"x");
    let found = DataDisk::find();
    let Err(FindError::Refused(Refusal::Foreign { what, .. })) = found else { panic!("{found:?}") };
    assert_eq!(what, Signature::Unknown { at });
}

#[test]
fn a_format_that_the_power_ended_is_begun_again() {
    let machine = Machine::new();
    machine.mkfs(&["-L", LABEL]);
    // What mkfs.xfs itself takes off as the last thing it does.
    machine.overwrite(126, &[1]);
    let data = machine.mount().unwrap();
    fsquota::require(&data).unwrap();
}

#[test]
fn an_enlarged_disk_is_used_as_a_whole() {
    let machine = Machine::new();
    machine.mkfs(&["-L", LABEL, "-d", "size=512m"]);
    let data = machine.mount().unwrap();
    let seen = statvfs(data.path()).unwrap();
    let size = seen.blocks() * seen.fragment_size();
    // Less the log, 64 MiB and more.
    assert!(size > machine.size() * 8 / 10, "{} of {}", Bytes::new(size), Bytes::new(machine.size()));
    machine.unmount(data);
    machine.mount().unwrap();
}

#[test]
fn a_place_that_is_taken_is_left_alone() {
    let machine = Machine::new();
    let place = machine.root().data;
    nix::mount::mount(Some("tmpfs"), place.path(), Some("tmpfs"), nix::mount::MsFlags::empty(), None::<&str>).unwrap();
    assert!(matches!(machine.mount(), Err(MountError::Occupied { path }) if path == place.path()));
}

#[test]
fn a_missing_program_is_named() {
    let machine = Machine::new();
    let absent = Path::new("/absent/mkfs.xfs");
    let failed = DataDisk::find().unwrap().mount_with(absent, machine.root().data);
    assert!(matches!(failed, Err(MountError::Program { program, .. }) if program == absent));
    assert!(matches!(DataDisk::find(), Ok(disk) if disk.device() == machine.disk.path()));
}

#[test]
fn the_ephemeral_tree_is_private_and_can_be_mounted_again() {
    let machine = Machine::new();
    let ephemeral = mount_ephemeral(machine.root().ephemeral).unwrap();
    assert_eq!(mode(ephemeral.containerd.path().to_owned()), 0o700);
    let file = ephemeral.tmp.path().join("kept");
    fs::write(&file, "").unwrap();
    mount_ephemeral(machine.root().ephemeral).unwrap();
    assert!(file.exists(), "another tmpfs was mounted over it");
    assert!(!ephemeral.containerd.socket.path().exists(), "a file of the tree is for its program to make");
}

#[test]
fn a_disk_of_ours_is_known_by_its_size_too() {
    let machine = Machine::new();
    machine.mkfs(&["-L", LABEL]);
    let seen = localstorage::disks().unwrap();
    let ours = seen.iter().find(|disk| disk.device == machine.disk.path()).unwrap();
    let Content::Ours(geometry) = &ours.content else { panic!("{:?}", ours.content) };
    assert_eq!(geometry.block.checked_mul(geometry.blocks), Some(ours.size));
}
