//! The parts of the data disk and their limits in XFS. Needs root and one scratch disk, large enough (8 GiB) that each
//! part has more than its minimum.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use fsquota::{Allocator, Limits, ProjectId, SetError};
use ktest_support::{Disk, unmount};
use localstorage::{Budget, Data, DataDisk, LABEL, Mounted, Part, Root, Tree};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::{Statvfs, statvfs};
use tempfile::TempDir;
use units::{Bytes, Inodes};

mod former;

/// A machine whose data disk has an empty file system of the node.
struct Machine {
    data: Data,
    disk: Disk,
    _place: TempDir,
}

impl Machine {
    fn new() -> Self {
        Self::with(&[])
    }

    fn booted() -> (Self, Mounted<Data>) {
        let machine = Self::new();
        let data = machine.boot();
        (machine, data)
    }

    fn with(options: &[&str]) -> Self {
        let (place, disk) = (tempfile::tempdir().unwrap(), Disk::take());
        let data = Root::at(place.path()).data;
        fs::create_dir(data.path()).unwrap();
        let made =
            Command::new("mkfs.xfs").args(["-q", "-f", "-K", "-L", LABEL]).args(options).arg(disk.path()).status();
        assert!(made.unwrap().success());
        Self { data, disk, _place: place }
    }

    fn boot(&self) -> Mounted<Data> {
        DataDisk::find().unwrap().mount(self.data.clone()).unwrap()
    }

    fn boot_again(&self, data: Mounted<Data>) -> Mounted<Data> {
        drop(data);
        self.unmount();
        self.boot()
    }

    /// Mounts the file system without the node.
    fn mount(&self) {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some(self.disk.path()), self.data.path(), Some("xfs"), flags, Some("prjquota")).unwrap();
    }

    fn unmount(&self) {
        unmount(self.data.path()).unwrap();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = umount2(self.data.path(), MntFlags::MNT_DETACH);
    }
}

fn path(data: &Data, part: Part) -> &Path {
    let mut found = None;
    data.visit(&mut |entry| found = found.or((entry.part == Some(part)).then_some(entry.path)));
    found.unwrap_or_else(|| panic!("no directory is {part:?}"))
}

fn quota(path: &Path) -> fsquota::Quota {
    fsquota::get(File::open(path).unwrap()).unwrap()
}

fn size(seen: &Statvfs) -> Bytes {
    Bytes::new(seen.blocks() * seen.fragment_size())
}

/// Extends a file with allocated blocks.
fn extend(file: &File, from: Bytes, by: Bytes) -> nix::Result<()> {
    fallocate(file, FallocateFlags::empty(), from.get().cast_signed(), by.get().cast_signed())
}

/// Fills a directory up to its limit, in ever smaller steps. Returns the number of bytes.
fn fill(directory: &Path) -> Bytes {
    let file = File::create(directory.join("all")).unwrap();
    let (mut taken, mut step) = (Bytes::ZERO, Bytes::new(256 << 20));
    while step.get() >= 4096 {
        match extend(&file, taken, step) {
            Ok(()) => taken = taken.saturating_add(step),
            Err(errno) => {
                assert_eq!(errno, Errno::ENOSPC);
                // XFS allocates in pieces, and keeps those that it has allocated.
                file.set_len(taken.get()).unwrap();
                step = Bytes::new(step.get() / 2);
            }
        }
    }
    taken
}

#[test]
fn every_part_has_its_limits_before_anything_is_in_it() {
    let (_machine, data) = Machine::booted();
    let budget = data.budget().unwrap();
    for part in Part::ALL {
        assert_eq!(quota(path(&data, part)).limits, budget.limits(part), "{part:?}");
    }
    let opened: BTreeSet<_> = data.open_parts().unwrap().iter().map(|part| fsquota::get(part).unwrap().id).collect();
    assert_eq!(opened, Part::ALL.map(|part| quota(path(&data, part)).id).into());
    fs::create_dir(data.log.pods.path().join("pod")).unwrap();
    assert_eq!(quota(data.log.pods.path()).used.inodes, Inodes::new(2));
}

#[test]
fn what_the_node_alone_writes_to_has_no_project() {
    let (_machine, data) = Machine::booted();
    for directory in [
        data.path(),
        data.pki.path(),
        data.kubelet.path(),
        data.kubelet_pki.path(),
        data.volumes.path(),
        data.log.path(),
    ] {
        assert_eq!(fsquota::project(File::open(directory).unwrap()), Ok(None), "{}", directory.display());
    }
}

#[test]
fn the_projects_of_volumes_are_others_than_those_of_parts() {
    let (_machine, data) = Machine::booted();
    let ids = Allocator::open(data.open(|data| &data.volumes).unwrap()).unwrap();
    let volume = data.volumes.path().join("volume");
    fs::create_dir(&volume).unwrap();
    fsquota::set(File::open(&volume).unwrap(), Limits::for_size(Bytes::MIB), &ids).unwrap();
    for part in Part::ALL {
        assert_ne!(quota(path(&data, part)).id, quota(&volume).id);
    }
    let known = fsquota::report(&data).unwrap().count();
    assert_eq!(known, Part::ALL.len() + 1);
}

#[test]
fn only_root_reads_the_secret_projects_of_the_parts() {
    let (_machine, data) = Machine::booted();
    for part in Part::ALL {
        assert!(quota(path(&data, part)).id.get() >= former::FIRST, "{part:?}");
    }
    let record = fs::metadata(data.project_ids.path()).unwrap();
    assert_eq!((record.permissions().mode() & 0o7777, record.uid()), (0o600, 0));
}

#[test]
fn parts_of_the_former_release_move_to_secret_projects() {
    let machine = Machine::new();
    machine.mount();
    former::create(&machine.data);
    assert_eq!(former::faults(&machine.data).len(), 4, "{:?}", former::faults(&machine.data));
    machine.unmount();
    let data = machine.boot();
    assert_eq!(former::faults(&data), [""; 0]);
    let before = Part::ALL.map(|part| quota(path(&data, part)).id);
    let data = machine.boot_again(data);
    assert_eq!(Part::ALL.map(|part| quota(path(&data, part)).id), before);
}

/// A node must still use a disk with a damaged record.
#[test]
fn a_lost_record_of_projects_is_restored_from_directories() {
    let (machine, mut data) = Machine::booted();
    let before = Part::ALL.map(|part| quota(path(&data, part)).id);
    let record = fs::read(data.project_ids.path()).unwrap();
    // The second content cannot be read (EFBIG), as if its sectors were broken.
    for content in [b"damaged".to_vec(), vec![b' '; 2 << 20]] {
        fs::write(data.project_ids.path(), content).unwrap();
        data = machine.boot_again(data);
        assert_eq!(Part::ALL.map(|part| quota(path(&data, part)).id), before);
        assert_eq!(fs::read(data.project_ids.path()).unwrap(), record);
    }
}

#[test]
fn a_later_boot_keeps_the_projects_and_sets_the_limits_again() {
    let (machine, data) = Machine::booted();
    let before = Part::ALL.map(|part| quota(path(&data, part)));
    for quota in before {
        let other = Limits { bytes: Some(Bytes::GIB), inodes: Some(Inodes::new(7)) };
        fsquota::set_limits(&data, quota.id, other).unwrap();
    }
    let data = machine.boot_again(data);
    assert_eq!(Part::ALL.map(|part| quota(path(&data, part))), before);
}

#[test]
fn an_enlarged_disk_has_larger_parts() {
    let machine = Machine::with(&["-d", "size=512m"]);
    machine.mount();
    let small = Budget::of(size(&statvfs(machine.data.path()).unwrap()));
    machine.unmount();
    let large = machine.boot().budget().unwrap();
    for part in Part::ALL {
        assert!(small.bytes(part) < large.bytes(part), "{part:?}");
        assert_eq!(quota(path(&machine.data, part)).limits, large.limits(part), "{part:?}");
    }
}

#[test]
fn a_boot_that_ended_before_the_limit_was_set_is_finished() {
    let machine = Machine::new();
    machine.mount();
    let kubelet = &machine.data.kubelet;
    for directory in [machine.data.volumes.path(), kubelet.path(), kubelet.pods.path()] {
        fs::create_dir(directory).unwrap();
    }
    machine.unmount();
    let data = machine.boot();
    assert_eq!(quota(data.kubelet.pods.path()).limits, data.budget().unwrap().limits(Part::Pods));
}

#[test]
fn a_part_that_is_limited_by_the_directory_above_it_stays_so() {
    let machine = Machine::new();
    machine.mount();
    let data = &machine.data;
    for directory in [data.volumes.path(), data.kubelet.path()] {
        fs::create_dir(directory).unwrap();
    }
    let ids = Allocator::open(File::open(data.volumes.path()).unwrap()).unwrap();
    fsquota::set(File::open(data.kubelet.path()).unwrap(), Limits::for_size(Bytes::MIB), &ids).unwrap();
    drop(ids);
    machine.unmount();
    let data = machine.boot();
    assert_eq!(quota(data.kubelet.pods.path()).id, quota(data.kubelet.path()).id);
}

#[test]
fn a_part_filled_without_a_limit_keeps_its_data() {
    let machine = Machine::new();
    machine.mount();
    let file = machine.data.containerd.content.path().join("image");
    fs::create_dir_all(machine.data.containerd.content.path()).unwrap();
    fs::write(&file, "an image").unwrap();
    machine.unmount();
    let data = machine.boot();
    assert_eq!(fs::read(&file).unwrap(), b"an image");
    assert_eq!(fsquota::project(data.open(|data| &data.containerd.content).unwrap()), Ok(None));
    assert_eq!(quota(data.etcd.path()).limits, data.budget().unwrap().limits(Part::Etcd));
}

#[test]
fn the_size_that_programs_see_in_a_part_is_its_limit() {
    let (_machine, data) = Machine::booted();
    let budget = data.budget().unwrap();
    for part in Part::ALL {
        let seen = statvfs(path(&data, part)).unwrap();
        assert_eq!(size(&seen), budget.bytes(part), "{part:?}");
        assert_eq!(Some(Inodes::new(seen.files())), budget.limits(part).inodes, "{part:?}");
    }
    assert_eq!(size(&statvfs(data.path()).unwrap()), budget.size());
}

#[test]
fn full_parts_leave_volumes_all_that_was_not_reserved() {
    let (_machine, data) = Machine::booted();
    let budget = data.budget().unwrap();
    let free = budget.size().saturating_sub(budget.reserve());
    let ids = Allocator::open(data.open(|data| &data.volumes).unwrap()).unwrap();
    let volume = data.volumes.path().join("volume");
    fs::create_dir(&volume).unwrap();
    // The volume has few inodes, so that nearly all of its reservation is for data: the harder case.
    let reservation = free.saturating_sub(Bytes::MIB);
    let limits = Limits { bytes: Some(reservation), inodes: Some(Inodes::new(64)) };
    fsquota::set(File::open(&volume).unwrap(), limits, &ids).unwrap();
    for part in Part::ALL {
        let taken = fill(path(&data, part));
        let lost = budget.bytes(part).saturating_sub(taken);
        assert!(lost < Bytes::MIB, "{part:?} has {taken} of {}", budget.bytes(part));
    }
    let had = fill(&volume);
    assert!(reservation.saturating_sub(had) < Bytes::MIB, "{had} of {reservation}");
    let written = File::options().write(true).open(volume.join("all")).unwrap();
    written.write_all_at(&[1; 4096], had.get() - 4096).unwrap();
    written.sync_all().unwrap();
    // Below this limit, the kubelet would evict pods that stay within their limits.
    let seen = statvfs(data.path()).unwrap();
    assert!(seen.blocks_available() * 100 > seen.blocks(), "{} of {}", seen.blocks_available(), seen.blocks());
}

#[test]
fn a_part_full_of_empty_files_leaves_the_others_their_files() {
    let (_machine, data) = Machine::booted();
    let limit = data.budget().unwrap().limits(Part::Etcd).inodes.unwrap().get();
    let mut made = 1; // the directory itself
    let refused = loop {
        match File::create(data.etcd.path().join(made.to_string())) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
        assert!(made <= limit, "no limit of files");
    };
    assert_eq!((refused.kind(), made), (io::ErrorKind::StorageFull, limit));
    for other in [data.kubelet.path(), data.kubelet.pods.path(), data.log.pods.path(), data.pki.path()] {
        fs::write(other.join("file"), "x").unwrap();
    }
}

#[test]
fn nothing_moves_from_one_part_to_another() {
    let (_machine, data) = Machine::booted();
    let from = data.kubelet.pods.path().join("file");
    fs::write(&from, "x").unwrap();
    for to in [data.containerd.content.path(), data.log.pods.path()] {
        let to = to.join("file");
        assert_eq!(fs::rename(&from, &to).unwrap_err().kind(), io::ErrorKind::CrossesDevices);
        assert_eq!(fs::hard_link(&from, &to).unwrap_err().kind(), io::ErrorKind::CrossesDevices);
    }
    assert_eq!(fs::read(from).unwrap(), b"x");
}

#[test]
fn a_part_does_not_hold_another_project() {
    let (_machine, data) = Machine::booted();
    let ids = Allocator::open(data.open(|data| &data.volumes).unwrap()).unwrap();
    let inner = data.containerd.content.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let refused = fsquota::set(File::open(&inner).unwrap(), Limits::for_size(Bytes::MIB), &ids);
    let outer = quota(data.containerd.content.path()).id;
    assert!(matches!(refused, Err(SetError::Nested { outer: found }) if found == outer), "{refused:?}");
}

/// An overlay like that of containerd's snapshotter, completely below one part.
struct Overlay {
    root: PathBuf,
    merged: TempDir,
}

impl Overlay {
    /// `prepare` fills the lower directory.
    fn mount(root: &Path, prepare: impl FnOnce(&Path)) -> Self {
        let overlay = Self { root: root.to_owned(), merged: tempfile::tempdir().unwrap() };
        for name in ["lower", "upper", "work"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        prepare(&root.join("lower"));
        let option = |name: &str| format!("{name}dir={}", root.join(name.trim_end_matches("dir")).display());
        let options = ["lower", "upper", "work"].map(option).join(",");
        let merged = overlay.merged.path();
        mount(Some("overlay"), merged, Some("overlay"), MsFlags::empty(), Some(options.as_str())).unwrap();
        overlay
    }

    fn merged(&self) -> &Path {
        self.merged.path()
    }

    fn upper(&self) -> PathBuf {
        self.root.join("upper")
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = umount2(self.merged(), MntFlags::MNT_DETACH);
    }
}

#[test]
fn containers_write_to_an_overlay_in_a_part_as_to_any_other() {
    let (_machine, data) = Machine::booted();
    let overlay = Overlay::mount(data.containerd.overlayfs.snapshots.path(), |lower| {
        for file in ["changed", "deleted", "renamed", "linked"] {
            fs::write(lower.join(file), "lower").unwrap();
        }
        fs::create_dir(lower.join("directory")).unwrap();
        symlink("changed", lower.join("link")).unwrap();
    });
    let merged = overlay.merged();
    fs::write(merged.join("link"), "upper").unwrap();
    fs::remove_file(merged.join("deleted")).unwrap();
    fs::rename(merged.join("renamed"), merged.join("directory/renamed")).unwrap();
    fs::hard_link(merged.join("linked"), merged.join("directory/linked")).unwrap();
    fs::write(merged.join("new"), "upper").unwrap();
    fs::rename(merged.join("new"), merged.join("changed")).unwrap();
    fs::set_permissions(merged.join("directory"), fs::Permissions::from_mode(0o711)).unwrap();

    assert_eq!(fs::read(merged.join("changed")).unwrap(), b"upper");
    assert_eq!(fs::read(merged.join("directory/renamed")).unwrap(), b"lower");
    assert_eq!(fs::metadata(merged.join("linked")).unwrap().nlink(), 2);
    assert!(!merged.join("deleted").exists());
    let whiteout = fs::symlink_metadata(overlay.upper().join("deleted")).unwrap();
    assert!(whiteout.file_type().is_char_device() && whiteout.rdev() == 0);
}

#[test]
fn what_containers_write_is_limited_with_their_images() {
    let (_machine, data) = Machine::booted();
    let overlay = Overlay::mount(data.containerd.overlayfs.snapshots.path(), |_| {});
    let limit = data.budget().unwrap().bytes(Part::Containerd);
    let before = quota(data.containerd.content.path()).used.bytes;
    assert_eq!(size(&statvfs(overlay.merged()).unwrap()), limit);
    let taken = fill(overlay.merged());
    assert!(taken <= limit.saturating_sub(before));
    assert!(limit.saturating_sub(taken) < Bytes::MIB, "{taken} of {limit}");
}

#[test]
fn images_and_writable_layers_share_one_limit() {
    let (machine, data) = Machine::booted();
    let (content, snapshots) = (data.containerd.content.path(), data.containerd.overlayfs.snapshots.path());
    fill(snapshots);
    let refused = fs::write(content.join("image"), [1; 4096]).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    for records in [data.containerd.path(), data.containerd.overlayfs.path()] {
        fs::write(records.join("metadata.db"), [1; 1 << 20]).unwrap();
        assert_eq!(fsquota::project(File::open(records).unwrap()), Ok(None));
    }
    let data = machine.boot_again(data);
    let (content, snapshots) = (data.containerd.content.path(), data.containerd.overlayfs.snapshots.path());
    assert_eq!(quota(content), quota(snapshots));
}

/// A former release assigned the project to containerd's root, whatever the record contains.
#[test]
fn the_part_of_a_former_release_grows_with_the_disk() {
    let id = ProjectId::new(1 << 31).unwrap();
    for recorded in [id.get(), id.get() + 1] {
        let machine = Machine::new();
        machine.mount();
        let data = &machine.data;
        fs::create_dir(data.containerd.path()).unwrap();
        fsquota::assign(File::open(data.containerd.path()).unwrap(), id, Limits::for_size(Bytes::MIB)).unwrap();
        fs::create_dir_all(data.containerd.content.path()).unwrap();
        fs::create_dir_all(data.containerd.overlayfs.snapshots.path()).unwrap();
        fs::write(data.project_ids.path(), format!("{{\"containerd\":{recorded}}}")).unwrap();
        machine.unmount();
        let data = machine.boot();
        let limits = data.budget().unwrap().limits(Part::Containerd);
        let root = quota(data.containerd.path());
        assert_eq!((root.id, root.limits), (id, limits), "{recorded}");
        assert_eq!(quota(data.containerd.overlayfs.snapshots.path()), root);
        // Directories that are new in this release count towards the same limit.
        for new in [data.cni.path(), data.registries.path()] {
            assert_eq!(quota(new), quota(data.containerd.path()), "{}", new.display());
        }
    }
}

#[test]
fn programs_move_files_within_their_part() {
    let (_machine, data) = Machine::booted();
    for part in [Part::Containerd, Part::Pods, Part::Etcd] {
        let (ingest, blobs) = (path(&data, part).join("ingest"), path(&data, part).join("blobs/sha256"));
        fs::create_dir_all(&ingest).unwrap();
        fs::create_dir_all(&blobs).unwrap();
        fs::write(ingest.join("data"), "x").unwrap();
        fs::rename(ingest.join("data"), blobs.join("digest")).unwrap();
        fs::hard_link(blobs.join("digest"), ingest.join("again")).unwrap();
        fs::rename(&ingest, blobs.join("moved")).unwrap();
        assert_eq!(fs::read(blobs.join("moved/again")).unwrap(), b"x");
    }
}
