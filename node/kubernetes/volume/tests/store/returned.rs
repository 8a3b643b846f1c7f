//! The files of a volume return to those of a snapshot.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use dir::{Dir, Ensured, Name};
use fsquota::ProjectId;
use ktest_support::unmount;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode as Permissions;
use rustix::fs::XattrFlags;
use units::{Bytes, Inodes};
use volume::{Drifted, Error, Mode, Owner, Record, RollbackError, Strays, VolumeId, VolumeRefusal, Volumes as _};

use crate::cloning::LARGER;
use crate::node::{INODES, Node, SIZE, files, id, short_passes, sized, without_pods};
use crate::rollback::{back_to, roll_back, rolled_back};
use crate::snapshots::taken;
use crate::sys;

const ATTRIBUTE: &str = "user.name";
const ACL: &str = "system.posix_acl_access";
/// Entries of an ACL of version 2: the owner rwx, user 7 r-x, the group and others nothing, the mask r-x.
const ENTRIES: [(u16, u16, u32); 5] =
    [(1, 7, u32::MAX), (2, 5, 7), (4, 0, u32::MAX), (16, 5, u32::MAX), (32, 0, u32::MAX)];
/// `FS_XFLAG_IMMUTABLE`, include/uapi/linux/fs.h.
const IMMUTABLE: u32 = 0x8;

fn acl() -> Vec<u8> {
    let entry = |(tag, permissions, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    [2_u32.to_le_bytes().to_vec(), ENTRIES.map(entry).concat()].concat()
}

/// The root of a volume, as a pod sees it.
#[derive(Debug, PartialEq, Eq)]
struct Root {
    mode: u32,
    owner: (u32, u32),
    attribute: Option<Vec<u8>>,
    acl: Option<Vec<u8>>,
    names: Vec<PathBuf>,
}

fn root(top: &Path) -> Root {
    let stat = fs::metadata(top).unwrap();
    let attribute = |name: &str| {
        let mut value = [0; 256];
        rustix::fs::getxattr(top, name, &mut value[..]).ok().map(|length| value[..length].to_vec())
    };
    let mut names: Vec<_> = fs::read_dir(top).unwrap().map(|entry| entry.unwrap().file_name().into()).collect();
    names.sort();
    let owner = (stat.uid(), stat.gid());
    Root { mode: stat.mode() & 0o7777, owner, attribute: attribute(ATTRIBUTE), acl: attribute(ACL), names }
}

fn write(top: &Path, name: &str, byte: u8) {
    let mut file = File::create(top.join(name)).unwrap();
    file.write_all(&[byte; 64 << 10]).unwrap();
    file.sync_all().unwrap();
}

/// Creates the files and the attributes of a volume before its snapshot. Returns the root.
fn fill(top: &Path) -> Root {
    write(top, "changed", 1);
    write(top, "removed", 1);
    fs::hard_link(top.join("removed"), top.join("link")).unwrap();
    symlink("/outside", top.join("image")).unwrap();
    chown(top, Some(7), Some(8)).unwrap();
    fs::set_permissions(top, fs::Permissions::from_mode(0o2770)).unwrap();
    rustix::fs::setxattr(top, ATTRIBUTE, b"before", XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(top, ACL, &acl(), XattrFlags::empty()).unwrap();
    root(top)
}

/// Changes the files and the root in every way that their owner can. Returns the root.
fn change(top: &Path) -> Root {
    write(top, "changed", 2);
    write(top, "added", 2);
    fs::remove_file(top.join("removed")).unwrap();
    chown(top, Some(9), Some(9)).unwrap();
    rustix::fs::removexattr(top, ACL).unwrap();
    fs::set_permissions(top, fs::Permissions::from_mode(0o700)).unwrap();
    rustix::fs::setxattr(top, ATTRIBUTE, b"after", XattrFlags::empty()).unwrap();
    root(top)
}

fn record(node: &Node, id: &VolumeId) -> Record {
    node.store.records().unwrap().readable.remove(id).unwrap()
}

#[test]
fn files_and_their_root_return_to_a_snapshot_and_the_former_ones_are_kept() {
    let node = Node::new();
    without_pods(&node.store);
    let (volume, from) = node.made(&files("pvc-1"));
    let (top, kept) = (node.path("live", &volume), id("snapshot-kept"));
    let before = fill(&top);
    taken(&node, &volume, "snapshot-1");
    let after = change(&top);
    // The owner has protected the directory against a rename.
    sys::add_flag(File::open(&top).unwrap(), IMMUTABLE).unwrap();
    rolled_back(&node.store, &volume, "snapshot-1", "snapshot-kept");
    let old = node.path("live", &kept);
    assert_eq!([root(&top), root(&old)], [before, after]);
    let content = |top: &Path| fs::read(top.join("changed")).unwrap()[0];
    assert_eq!([content(&top), content(&old)], [1, 2]);
    assert_eq!(fs::metadata(top.join("link")).unwrap().nlink(), 2);

    // Each directory counts to the project of its record, and has the limits of its kind.
    let (record_of, kept_record) = (record(&node, &volume), record(&node, &kept));
    assert_eq!(kept_record.project, from.project);
    assert_eq!(record_of, Record { project: record_of.project, ..from.clone() });
    for of in [&volume, &kept] {
        assert_eq!(node.store.drifted(of).unwrap(), Drifted::default(), "{of}");
    }
    let is_limited = |node: &Node| {
        let limits = node.limits(record(node, &volume).project);
        assert_eq!((limits.bytes, limits.inodes), (Some(SIZE), Some(INODES)));
        let limits = node.limits(record(node, &kept).project);
        assert!(limits.bytes > Some(SIZE) && limits.inodes == Some(INODES), "{limits:?}");
    };
    is_limited(&node);
    let snapshot = record(&node, &id("snapshot-1"));
    let reserved = [&record_of, &kept_record, &snapshot].map(Record::reserved).into_iter().sum();
    assert_eq!(node.store.space().unwrap().reserved, reserved);
    let node = node.restarted();
    without_pods(&node.store);
    is_limited(&node);
    assert_eq!(node.store.space().unwrap().reserved, reserved);
    assert!(matches!(node.store.remove_snapshot(&kept), Err(Error::Refused { .. })));
    node.store.end_rollback(&kept).unwrap();

    // A second rollback undoes the first one, and is then confirmed.
    let (before, after) = (root(&top), root(&old));
    rolled_back(&node.store, &volume, "snapshot-kept", "snapshot-undone");
    assert_eq!([root(&top), root(&node.path("live", &id("snapshot-undone")))], [after, before]);
    node.store.end_rollback(&id("snapshot-undone")).unwrap();
    assert_eq!(record(&node, &volume).owner, Owner::Provisioner);
    for other in ["snapshot-kept", "snapshot-undone", "snapshot-1"] {
        node.store.remove_snapshot(&id(other)).unwrap();
        assert_eq!(node.traces(&id(other)), [""; 0]);
    }
    // The volume can be filled to its limit, and not beyond.
    let mut file = File::create(top.join("all")).unwrap();
    let full = loop {
        if let Err(error) = file.write_all(&[3; 64 << 10]) {
            break error;
        }
    };
    assert_eq!(full.raw_os_error(), Some(Errno::ENOSPC as i32));
    drop(file);
    let used = node.store.announced(&volume).unwrap().quota().unwrap().used.bytes;
    assert!(used <= SIZE && used > SIZE.saturating_sub(Bytes::MIB), "{used}");
    node.remove(&volume);
    assert_eq!(node.store.space().unwrap().reserved, Bytes::ZERO);
}

/// The volume may grow while its files are copied, and one pass may not remove all of the copied files.
#[test]
fn files_of_a_volume_that_grew_after_the_snapshot_have_its_limits() {
    const MANY: u32 = 300;
    let node = Node::with(short_passes());
    without_pods(&node.store);
    let many = Mode::Filesystem { inodes: Inodes::new(4096) };
    let (volume, _) = node.made(&sized("pvc-1", many, SIZE));
    let top = node.path("live", &volume);
    write(&top, "one", 1);
    write(&top, "two", 1);
    taken(&node, &volume, "snapshot-1");
    for number in 0..MANY {
        File::create(top.join(number.to_string())).unwrap();
    }
    taken(&node, &volume, "snapshot-2");
    let (want, kept) = (back_to(&volume, "snapshot-2", "snapshot-kept"), id("snapshot-kept"));
    let begun = node.store.roll_back(&kept, &want);
    assert!(matches!(begun, Err(Error::Copying { .. })), "{begun:?}");
    // Repeats the call until the rollback waits for the end of a pod. All files are copied then.
    let target = node.disk.path().join("target");
    fs::create_dir(&target).unwrap();
    mount(Some(&top), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let error = roll_back(&node.store, &kept, &want).unwrap_err();
    assert!(matches!(&error, Error::Published { target: found, .. } if *found == target), "{error:?}");
    unmount(&target).unwrap();
    node.store.expand(&volume, LARGER).unwrap();
    let error = node.store.roll_back(&kept, &want).unwrap_err();
    assert!(matches!(error, Error::Rollback { source: RollbackError::Grown, .. }), "{error:?}");
    assert!(node.store.record(&kept).unwrap().is_some(), "the caller removes the copy");
    node.store.remove_snapshot(&kept).unwrap();
    assert_eq!(node.traces(&kept), [""; 0]);
    write(&top, "one", 2);
    rolled_back(&node.store, &volume, "snapshot-1", "snapshot-kept");
    assert_eq!(fs::read(top.join("one")).unwrap()[0], 1);
    assert_eq!(fs::read_dir(&top).unwrap().count(), 2);
    let (grown, old) = (record(&node, &volume), record(&node, &kept));
    let limits = node.limits(grown.project);
    assert_eq!((grown.size, old.size, limits.bytes), (LARGER, LARGER, Some(LARGER)));
    assert!(matches!(grown.mode, Mode::Filesystem { inodes } if inodes > Inodes::new(4096)
        && limits.inodes == Some(inodes)));
}

/// The process has the former directory; the new files are in another one.
#[test]
fn a_process_that_outlives_its_pod_reaches_the_former_files_only() {
    let node = Node::new();
    without_pods(&node.store);
    let (volume, from) = node.made(&files("pvc-1"));
    let (top, kept) = (node.path("live", &volume), id("snapshot-kept"));
    write(&top, "file", 1);
    taken(&node, &volume, "snapshot-1");
    let opened = node.store.open_volume(&volume).unwrap();
    let error = roll_back(&node.store, &kept, &back_to(&volume, "snapshot-1", "snapshot-kept")).unwrap_err();
    assert!(matches!(error, Error::Rollback { source: RollbackError::Opened, .. }), "{error:?}");
    drop(opened);
    let dir = File::open(&top).unwrap();
    rolled_back(&node.store, &volume, "snapshot-1", "snapshot-kept");
    let create = OFlag::O_CREAT | OFlag::O_WRONLY;
    let mut late = File::from(nix::fcntl::openat(&dir, "late", create, Permissions::S_IRUSR).unwrap());
    assert!(!top.join("late").exists() && node.path("live", &kept).join("late").exists());
    let full = loop {
        if let Err(error) = late.write_all(&[2; 64 << 10]) {
            break error;
        }
    };
    assert_eq!(full.raw_os_error(), Some(Errno::ENOSPC as i32), "the limit of the former files stays");
    assert_eq!(fsquota::project(&dir).unwrap(), Some(from.project));
}

/// Exchanges the content in a rollback whose records cannot be written. Returns the volume and the snapshot.
fn exchanged_without_records(node: &Node) -> (VolumeId, VolumeId) {
    without_pods(&node.store);
    let ((volume, _), kept) = (node.made(&files("pvc-1")), id("snapshot-kept"));
    write(&node.path("live", &volume), "file", 1);
    taken(node, &volume, "snapshot-1");
    sys::add_flag(File::open(node.path("records", &volume)).unwrap(), IMMUTABLE).unwrap();
    is_unwritten(node, &volume, &kept);
    (volume, kept)
}

fn is_unwritten(node: &Node, volume: &VolumeId, kept: &VolumeId) {
    let error = roll_back(&node.store, kept, &back_to(volume, "snapshot-1", kept.as_str())).unwrap_err();
    assert!(matches!(&error, Error::Act { id, .. } if id == volume), "{error:?}");
}

/// Allows that the record is written from now on.
fn unprotect(node: &Node, volume: &VolumeId) {
    let records = Dir::open(node.path("records", volume).parent().unwrap()).unwrap();
    assert!(records.unprotect(&Name::try_from(volume.as_str()).unwrap()).unwrap());
}

fn project(node: &Node, place: &str, id: &VolumeId) -> ProjectId {
    fsquota::project(File::open(node.path(place, id)).unwrap()).unwrap().unwrap()
}

fn has_limits_of_its_size(node: &Node, volume: &VolumeId) {
    let limits = node.limits(project(node, "live", volume));
    assert_eq!((limits.bytes, limits.inodes), (Some(SIZE), Some(INODES)));
}

/// Regression: the removal limited the project of the kept directory instead. After a restart, the restored root had
/// the mode of the removal.
#[test]
fn a_volume_is_removed_by_its_new_project_before_that_is_recorded() {
    let node = Node::new();
    let (volume, kept) = exchanged_without_records(&node);
    // The mount stops the removal.
    let [point, moved] = ["live", "trash"].map(|place| node.path(place, &volume).join("point"));
    fs::create_dir(&point).unwrap();
    mount(Some("tmpfs"), &point, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    node.store.retire(&volume).unwrap();
    let error = node.store.discard(&volume).unwrap_err();
    assert!(matches!(error, Error::Act { .. }), "{error:?}");
    unmount(&moved).unwrap();
    assert_eq!(root(&node.path("trash", &volume)).mode, 0o700);
    let inodes = |node: &Node, place, id| node.limits(project(node, place, id)).inodes;
    assert_eq!(inodes(&node, "trash", &volume), Some(Inodes::new(1)));
    assert_eq!(inodes(&node, "staging", &kept), Some(INODES));
    // Another attempt to write the records leaves the limits of the removal.
    is_unwritten(&node, &volume, &kept);
    assert_eq!(inodes(&node, "trash", &volume), Some(Inodes::new(1)));

    unprotect(&node, &volume);
    let node = node.restarted();
    assert_eq!(node.store.restore(&volume).unwrap(), Ensured::Created(()));
    assert_eq!(root(&node.path("live", &volume)).mode, 0o777);
    has_limits_of_its_size(&node, &volume);
    rolled_back(&node.store, &volume, "snapshot-1", kept.as_str());
}

/// Regression: the snapshot had the project and the limits of the volume, and the project of its directory had no
/// record.
#[test]
fn an_exchange_that_a_start_cannot_record_has_the_limits_of_its_directories() {
    let node = Node::new();
    let (volume, kept) = exchanged_without_records(&node);
    let reserved = node.store.space().unwrap().reserved;
    let node = node.restarted();
    let projects = [project(&node, "live", &volume), project(&node, "staging", &kept)];
    assert_eq!([&volume, &kept].map(|id| record(&node, id).project), projects);
    has_limits_of_its_size(&node, &volume);
    assert_eq!(node.store.strays().unwrap(), Strays::default());
    assert_eq!(node.store.space().unwrap().reserved, reserved);
    assert!(node.store.open_volume(&volume).is_ok());

    is_unwritten(&node, &volume, &kept);
    // The next start would complete the first exchange with a project that the volume does not have any more.
    let want = back_to(&volume, "snapshot-1", "snapshot-other");
    let refused = roll_back(&node.store, &id("snapshot-other"), &want).unwrap_err();
    assert!(matches!(refused, Error::Refused { source: VolumeRefusal::RollingBack(_), .. }), "{refused:?}");
    unprotect(&node, &volume);
    rolled_back(&node.store, &volume, "snapshot-1", kept.as_str());
    rolled_back(&node.store, &volume, "snapshot-1", "snapshot-other");
    let before: Vec<_> = node.store.records().unwrap().readable.into_iter().collect();
    let node = node.restarted();
    assert_eq!(node.store.records().unwrap().readable.into_iter().collect::<Vec<_>>(), before);
}

#[test]
fn a_volume_and_its_kept_snapshot_are_removed_without_a_record_of_the_exchange() {
    let node = Node::new();
    let (volume, kept) = exchanged_without_records(&node);
    unprotect(&node, &volume);
    node.remove(&volume);
    assert_eq!(node.store.remove_snapshot(&kept).unwrap(), Ensured::Created(()));
    node.store.remove_snapshot(&id("snapshot-1")).unwrap();
    for id in [&volume, &kept] {
        assert_eq!(node.traces(id), [""; 0]);
    }
    assert_eq!(node.store.strays().unwrap(), Strays::default());
    assert_eq!(node.store.space().unwrap().reserved, Bytes::ZERO);
}
