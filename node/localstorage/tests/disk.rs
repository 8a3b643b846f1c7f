//! A data disk from empty to enlarged, with the real kernel and `mkfs.xfs`. Needs root and one scratch disk.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use dir::{Mode, Name};
use ktest_support::{Disk, run, unmount};
use localstorage::{
    Content, Data, DataDisk, FindError, LABEL, MountError, Mounted, NoDataDisk, Programs, Root, Signature, Tree,
    mount_ephemeral,
};
use nix::fcntl::{FallocateFlags, fallocate};
use nix::mount::{MntFlags, MsFlags, umount2};
use nix::sys::statvfs::{FsFlags, statvfs};
use tempfile::TempDir;
use units::Bytes;

#[path = "disk/foreign.rs"]
mod foreign;
#[path = "disk/growth.rs"]
mod growth;
#[path = "disk/partition.rs"]
mod partition;

/// The label of an incomplete file system of the node.
const UNFINISHED: &str = "new-793a9f54";

struct Machine {
    place: TempDir,
    disk: Disk,
}

impl Machine {
    fn new() -> Self {
        let machine = Self { place: tempfile::tempdir().unwrap(), disk: Disk::take() };
        fs::create_dir(machine.root().data.path()).unwrap();
        fs::create_dir(machine.root().ephemeral.path()).unwrap();
        machine.wipe();
        machine
    }

    /// Zeros the whole disk, because a partition may end where an earlier test has written. The kernel removes its
    /// partitions.
    fn wipe(&self) {
        let disk = File::options().write(true).open(self.disk.path()).unwrap();
        // Supported for block devices since Linux 4.9.
        fallocate(&disk, FallocateFlags::FALLOC_FL_ZERO_RANGE, 0, self.size().cast_signed()).unwrap();
        disk.sync_all().unwrap();
        run(Command::new("blockdev").args(["--rereadpt", self.path()]));
    }

    fn path(&self) -> &str {
        self.disk.path().to_str().unwrap()
    }

    fn name(&self) -> &str {
        self.disk.path().file_name().unwrap().to_str().unwrap()
    }

    /// Number of sectors written to the disk since the machine was started.
    fn written(&self) -> u64 {
        nix::unistd::sync();
        let counts = fs::read_to_string(format!("/sys/block/{}/stat", self.name())).unwrap();
        counts.split_ascii_whitespace().nth(6).unwrap().parse().unwrap()
    }

    /// Asserts that the disk is rejected by name because of its content, and that nothing is written to it.
    fn is_refused(&self) -> Signature {
        let before = self.written();
        let found = DataDisk::find();
        let Err(FindError::Refused(NoDataDisk::Foreign { disk, what })) = found else { panic!("{found:?}") };
        assert!(disk.starts_with(self.name()), "{disk}");
        assert_eq!(self.written(), before, "the disk was written to");
        what
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

    fn mkfs(&self, more: &[&str]) {
        run(Command::new("mkfs.xfs").args(["-q", "-f", "-K"]).args(more).arg(self.path()));
    }

    /// Mounts an empty file system of the node with other options than a node would.
    fn mount_by_hand(&self, flags: MsFlags, options: &str) {
        self.mkfs(&["-L", LABEL]);
        let place = self.root().data;
        nix::mount::mount(Some(self.disk.path()), place.path(), Some("xfs"), flags, Some(options)).unwrap();
    }

    fn mount(&self) -> Result<Mounted<Data>, MountError> {
        DataDisk::find().unwrap().mount(self.root().data)
    }

    /// Unmounts the file system: a power cut without the loss of unwritten data.
    fn unmount(&self, data: Mounted<Data>) {
        drop(data);
        unmount(self.root().data.path()).unwrap();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for path in [self.root().data.path(), self.root().ephemeral.path()] {
            let _ = umount2(path, MntFlags::MNT_DETACH);
        }
    }
}

/// Asserts that every directory of a mounted tree exists with its mode, with which only root can list and change it.
fn are_private<T: Tree>(mounted: &Mounted<T>) {
    let mut directories = vec![(mounted.path(), T::MODE)];
    mounted.visit(&mut |entry| directories.extend(entry.directory.then_some((entry.path, entry.mode))));
    assert!(directories.len() > 4, "only {directories:?}");
    for (directory, mode) in directories {
        let found = fs::symlink_metadata(directory).unwrap();
        assert!(found.is_dir(), "{}", directory.display());
        assert_eq!(mode.bits() & 0o066, 0, "{}", directory.display());
        assert_eq!(found.permissions().mode() & 0o7777, mode.bits(), "{}", directory.display());
    }
}

#[test]
fn an_empty_disk_becomes_a_tree_of_private_directories() {
    let machine = Machine::new();
    let data = machine.mount().unwrap();
    are_private(&data);
    let inert = FsFlags::ST_NOSUID | FsFlags::ST_NODEV | FsFlags::ST_NOEXEC;
    assert!(statvfs(data.volumes.path()).unwrap().flags().contains(inert));
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
fn a_format_that_the_power_ended_is_begun_again() {
    let machine = Machine::new();
    machine.mkfs(&["-L", UNFINISHED]);
    machine.overwrite(126, &[1]);
    let data = machine.mount().unwrap();
    fsquota::require(&data).unwrap();
}

#[test]
fn a_disk_that_was_filled_since_it_was_chosen_is_left_alone() {
    let machine = Machine::new();
    let empty = DataDisk::find().unwrap();
    machine.mkfs(&["-L", UNFINISHED]);
    let unfinished = DataDisk::find().unwrap();
    machine.mkfs(&["-L", LABEL]);
    let disk = DataDisk::find().unwrap();
    let is_left_alone = |old: DataDisk| {
        let written = machine.written();
        let failed = old.mount(machine.root().data);
        assert!(matches!(&failed, Err(MountError::Changed { device }) if device == machine.disk.path()), "{failed:?}");
        assert_eq!(machine.written(), written);
    };
    is_left_alone(empty);
    is_left_alone(unfinished);
    machine.mkfs(&["-L", "home"]);
    is_left_alone(disk);
}

#[test]
fn a_place_that_is_taken_is_left_alone() {
    let machine = Machine::new();
    let place = machine.root().data;
    nix::mount::mount(Some("tmpfs"), place.path(), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    assert!(matches!(machine.mount(), Err(MountError::Occupied { path }) if path == place.path()));
}

/// Flags with which a node mounts file systems.
const INERT: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);

#[test]
fn a_data_disk_that_is_mounted_with_other_flags_is_left_alone() {
    let machine = Machine::new();
    let place = machine.root().data;
    let wrong = [MsFlags::MS_NOSUID, MsFlags::MS_NODEV, MsFlags::MS_NOEXEC].map(|missing| INERT.difference(missing));
    for flags in wrong.into_iter().chain([INERT | MsFlags::MS_RDONLY]) {
        machine.mount_by_hand(flags, "prjquota");
        let failed = machine.mount();
        assert!(matches!(&failed, Err(MountError::Flags { path }) if path == place.path()), "{flags:?}: {failed:?}");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        unmount(place.path()).unwrap();
    }
}

#[test]
fn a_data_disk_that_is_mounted_without_quotas_is_left_alone() {
    let machine = Machine::new();
    let place = machine.root().data;
    machine.mount_by_hand(INERT, "noquota");
    let failed = machine.mount();
    assert!(matches!(&failed, Err(MountError::Quota { path, .. }) if path == place.path()), "{failed:?}");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn a_missing_program_is_named() {
    let machine = Machine::new();
    let absent = Programs { mkfs: "/absent/mkfs.xfs".into(), ..Programs::default() };
    let failed = DataDisk::find().unwrap().mount_with(&absent, machine.root().data);
    assert!(matches!(failed, Err(MountError::Program { program, .. }) if program == absent.mkfs));
    assert!(matches!(DataDisk::find(), Ok(disk) if disk.device() == machine.disk.path()));
}

#[test]
fn the_ephemeral_tree_is_private_and_can_be_mounted_again() {
    let machine = Machine::new();
    let ephemeral = mount_ephemeral(machine.root().ephemeral).unwrap();
    are_private(&ephemeral);
    let file = ephemeral.tmp.path().join("kept");
    fs::write(&file, "").unwrap();
    mount_ephemeral(machine.root().ephemeral).unwrap();
    assert!(file.exists(), "another tmpfs was mounted over it");
    assert!(!ephemeral.containerd.socket.path().exists(), "a file of the tree is for its program to make");
}

#[test]
fn a_data_disk_is_also_checked_by_its_size() {
    let machine = Machine::new();
    machine.mkfs(&["-L", LABEL]);
    let seen = localstorage::disks(&Programs::default()).unwrap();
    let disk = seen.iter().find(|disk| disk.device == machine.disk.path()).unwrap();
    let Content::Data(geometry) = &disk.content else { panic!("{:?}", disk.content) };
    assert_eq!(geometry.block.checked_mul(geometry.blocks), Some(disk.size));
}
