//! Creation of volumes.

use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use dir::Ensured;
use fsquota::{Limits, ProjectId};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::fstatvfs;
use units::{Bytes, Inodes};
use volume::{
    Access, Allocation, Error, Mode, OpenError, Record, Settings, State, VolumeId, VolumeRefusal, Volumes as _,
};

use crate::node::{INODES, Node, SIZE, disk, files, id, only_byte, settings, sized};

const BOTH: [Allocation; 2] = [Allocation::Thick, Allocation::Thin];

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_new_volume_is_live_with_the_requested_limits() {
    let node = Node::new();
    let id = id("pvc-1");
    let Ensured::Created(record) = node.store.provision(&id, &files("pvc-1")).unwrap() else { panic!("it was there") };
    assert_eq!(record.state, State::Staged);
    assert_eq!(node.traces(&id), ["pending", "live"]);
    assert_eq!(node.store.announce(&id).unwrap(), Ensured::Created(()));
    assert_eq!(node.store.announce(&id).unwrap(), Ensured::Unchanged(()));
    let volume = node.store.open_volume(&id).unwrap();
    assert_eq!((volume.mode(), volume.size()), (Mode::Filesystem { inodes: INODES }, SIZE));
    let quota = fsquota::get(volume.dir()).unwrap();
    assert_eq!(quota.limits, Limits { bytes: Some(SIZE), inodes: Some(INODES) });
    assert_eq!((quota.id, volume.quota().unwrap()), (record.project, quota));
    let stat = fstatvfs(volume.dir().as_fd()).unwrap();
    assert_eq!(stat.blocks() * stat.fragment_size(), SIZE.get());
    assert_eq!(mode_of(&node.path("live", &id)), 0o777);
    assert_eq!(mode_of(node.path("live", &id).parent().unwrap()), 0o700);
    assert_eq!(mode_of(&node.path("records", &id)), 0o600);
    assert_eq!(node.traces(&id), ["records", "live"]);
}

#[test]
fn a_block_volume_is_an_image_of_exactly_its_size() {
    let node = Node::new();
    for (name, allocation) in [("pvc-1", Allocation::Thick), ("pvc-2", Allocation::Thin)] {
        let (id, record) = node.made(&disk(name, allocation));
        assert_eq!(record.mode, Mode::Block { allocation });
        let image = fs::metadata(node.image(&id)).unwrap();
        assert_eq!((image.len(), image.permissions().mode() & 0o7777), (SIZE.get(), 0o600));
        let taken = if allocation == Allocation::Thick { SIZE.get() } else { 0 };
        assert_eq!(image.blocks() * 512, taken, "{allocation}");
        assert_eq!(mode_of(&node.path("live", &id)), 0o700);
        let volume = node.store.open_volume(&id).unwrap();
        assert_eq!(volume.quota().unwrap().used.bytes.get(), taken);
        let image = File::from(volume.image(Access::ReadWrite).unwrap());
        image.write_all_at(b"x", SIZE.get() - 1).unwrap();
        let image = File::from(volume.image(Access::ReadOnly).unwrap());
        let mut byte = [0];
        image.read_exact_at(&mut byte, SIZE.get() - 1).unwrap();
        assert_eq!(&byte, b"x");
        assert_eq!(image.write_at(b"x", 0).unwrap_err().raw_os_error(), Some(Errno::EBADF as i32));
    }
}

#[test]
fn a_filesystem_volume_has_no_image() {
    let (node, id, _) = Node::with_volume(&files("pvc-1"));
    let volume = node.store.open_volume(&id).unwrap();
    assert!(matches!(volume.image(Access::ReadOnly), Err(OpenError::Image { source, .. }) if source.is_not_found()));
}

#[test]
fn a_link_in_the_place_of_an_image_is_not_followed() {
    let (node, id, record) = Node::with_volume(&disk("pvc-1", Allocation::Thin));
    let root = File::open(node.disk.path()).unwrap();
    fsquota::set_limits(&root, record.project, Limits { bytes: None, inodes: Some(Inodes::new(9)) }).unwrap();
    fs::remove_file(node.image(&id)).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", node.image(&id)).unwrap();
    let volume = node.store.open_volume(&id).unwrap();
    let Err(OpenError::Image { source, .. }) = volume.image(Access::ReadOnly) else { panic!("opened") };
    assert_eq!(source.errno(), Errno::ELOOP);
    assert!(matches!(node.store.expand(&id, Bytes::GIB), Err(Error::Refused { source: VolumeRefusal::Lost, .. })));
}

#[test]
fn a_staged_volume_cannot_be_opened() {
    let node = Node::new();
    let id = id("pvc-1");
    node.store.provision(&id, &files("pvc-1")).unwrap();
    assert!(matches!(node.store.open_volume(&id), Err(OpenError::NotAnnounced { .. })));
    assert!(matches!(
        node.store.expand(&id, Bytes::GIB),
        Err(Error::Refused { source: VolumeRefusal::NotAnnounced, .. })
    ));
    assert!(matches!(node.store.open_volume(&crate::node::id("pvc-2")), Err(OpenError::Unknown { .. })));
}

#[test]
fn half_made_volumes_are_finished_after_a_restart() {
    let stages = ["record", "directory", "limited", "image", "live"];
    let modes = [None, Some(Allocation::Thick), Some(Allocation::Thin)];
    let node = Node::new();
    let mut halves = Vec::new();
    for (stage, allocation) in stages.into_iter().flat_map(|stage| modes.map(|mode| (stage, mode))) {
        let name = format!("pvc-{}", halves.len());
        let request = allocation.map_or_else(|| files(&name), |allocation| disk(&name, allocation));
        let id = id(&name);
        let record = node.store.provision(&id, &request).unwrap().into_inner();
        take_back(&node, &id, stage, allocation.is_some());
        halves.push((format!("{stage} {allocation:?}"), id, request, record));
    }
    let node = node.restarted();
    for (stage, id, request, record) in halves {
        let again = node.store.provision(&id, &request).unwrap();
        assert_eq!(again.into_inner(), record, "{stage}");
        assert_eq!(node.traces(&id), ["pending", "live"], "{stage}");
        node.store.announce(&id).unwrap();
        let volume = node.store.open_volume(&id).unwrap();
        let quota = fsquota::get(volume.dir()).unwrap();
        assert_eq!(quota.id, record.project, "{stage}");
        assert!(quota.limits.bytes >= Some(SIZE), "{stage}");
        let block = request.mode.is_block();
        assert_eq!(mode_of(&node.path("live", &id)), if block { 0o700 } else { 0o777 }, "{stage}");
        if block {
            assert_eq!(fs::metadata(node.image(&id)).unwrap().len(), SIZE.get(), "{stage}");
        }
    }
}

fn take_back(node: &Node, id: &VolumeId, stage: &str, block: bool) {
    if stage != "live" {
        fs::rename(node.path("live", id), node.path("staging", id)).unwrap();
    }
    let image = node.path("staging", id).join("image");
    match (stage, block) {
        // The image is created, but not extended yet.
        ("image", true) => drop(File::create(&image).unwrap()),
        ("record" | "directory" | "limited", true) => fs::remove_file(&image).unwrap(),
        _ => {}
    }
    if matches!(stage, "record" | "directory") {
        fsquota::remove(File::open(node.path("staging", id)).unwrap()).unwrap();
        fs::set_permissions(node.path("staging", id), fs::Permissions::from_mode(0o750)).unwrap();
    }
    if stage == "record" {
        fs::remove_dir(node.path("staging", id)).unwrap();
    }
}

/// The power failed within an allocation: XFS had logged the blocks, but not yet the size.
#[test]
fn an_image_that_has_its_blocks_and_not_its_size_is_finished_within_its_limits() {
    let node = Node::new();
    let (id, request) = (id("pvc-1"), disk("pvc-1", Allocation::Thick));
    let record = node.store.provision(&id, &request).unwrap().into_inner();
    take_back(&node, &id, "image", true);
    let image = File::options().write(true).open(node.path("staging", &id).join("image")).unwrap();
    fallocate(&image, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, SIZE.get().cast_signed()).unwrap();
    let stat = image.metadata().unwrap();
    assert_eq!((stat.len(), stat.blocks() * 512), (0, SIZE.get()));
    drop(image);
    let node = node.restarted();
    assert_eq!(node.store.provision(&id, &request).unwrap(), Ensured::Created(record));
    let stat = fs::metadata(node.image(&id)).unwrap();
    assert_eq!((stat.len(), stat.blocks() * 512), (SIZE.get(), SIZE.get()));
}

#[test]
fn a_restart_sets_the_recorded_limits_again() {
    let (node, _, record) = Node::with_volume(&files("pvc-1"));
    let root = File::open(node.disk.path()).unwrap();
    fsquota::set_limits(&root, record.project, Limits { bytes: Some(Bytes::GIB), inodes: None }).unwrap();
    drop(root);
    let node = node.restarted();
    assert_eq!(node.limits(record.project).bytes, Some(SIZE));
}

#[test]
fn a_volume_that_does_not_fit_is_rejected_and_leaves_no_trace() {
    let node = Node::new();
    for mode in [Mode::Filesystem { inodes: INODES }, Mode::Block { allocation: Allocation::Thin }] {
        let space = node.store.space().unwrap();
        let all = space.largest(|_| mode);
        let (first, _) = node.made(&sized("pvc-1", mode, all));
        let second = id("pvc-2");
        let refused = node.store.provision(&second, &files("pvc-2")).unwrap_err();
        assert!(matches!(refused, Error::Full { wanted, free, .. } if wanted > SIZE && free < Bytes::new(8192)));
        assert!(refused.is_infeasible());
        assert_eq!(node.traces(&second), [""; 0]);
        node.store.retire(&first).unwrap();
        assert!(matches!(node.store.provision(&second, &files("pvc-2")), Err(Error::Full { .. })));
        node.store.discard(&first).unwrap();
        node.made(&files("pvc-2"));
        node.remove(&second);
    }
    // The reservations are on the disk, and stay after a restart.
    let all = node.store.space().unwrap().largest_filesystem();
    node.made(&sized("pvc-1", Mode::Filesystem { inodes: fsquota::default_inodes(all) }, all));
    let node = node.restarted();
    assert!(matches!(node.store.provision(&id("pvc-2"), &files("pvc-2")), Err(Error::Full { .. })));
}

/// The ledger had free space, but the disk did not. The failed call must leave nothing, and change nothing else.
#[test]
fn a_disk_that_is_fuller_than_reserved_is_found_by_allocating() {
    let (node, other, _) = Node::with_volume(&files("pvc-0"));
    node.hog(Bytes::new(40 << 20));
    let id = id("pvc-1");
    let request = sized("pvc-1", Mode::Block { allocation: Allocation::Thick }, Bytes::new(100 << 20));
    let reserved = node.store.space().unwrap().reserved;
    let before = node.projects();
    let refused = node.store.provision(&id, &request).unwrap_err();
    assert!(matches!(refused, Error::Full { .. }), "{refused:?}");
    assert_eq!(node.traces(&id), [""; 0]);
    assert_eq!(node.store.space().unwrap().reserved, reserved);
    assert_eq!(node.projects(), before);
    assert_eq!(node.traces(&other), ["records", "live"]);
}

#[test]
fn the_operator_may_overcommit_the_disk() {
    let node = Node::with(Settings { overcommit: "3.0".parse().unwrap(), ..settings() });
    let size = node.store.space().unwrap().size;
    let thin = |name| sized(name, Mode::Block { allocation: Allocation::Thin }, size);
    node.made(&thin("pvc-1"));
    node.made(&thin("pvc-2"));
    assert!(matches!(node.store.provision(&id("pvc-3"), &thin("pvc-3")), Err(Error::Full { .. })));
}

#[test]
fn a_project_that_was_assigned_elsewhere_is_skipped() {
    let (node, _, first) = Node::with_volume(&files("pvc-1"));
    let next = ProjectId::new(first.project.get() + 1).unwrap();
    let taken = node.disk.path().join("taken");
    fs::create_dir(&taken).unwrap();
    let taken = File::open(taken).unwrap();
    fsquota::assign(&taken, next, Limits { bytes: None, inodes: Some(Inodes::new(7)) }).unwrap();
    for (name, request) in [("pvc-2", files("pvc-2")), ("pvc-3", disk("pvc-3", Allocation::Thick))] {
        let (id, record) = node.made(&request);
        assert!(record.project > next, "{name}");
        let found = Record::parse(&fs::read(node.path("records", &id)).unwrap(), State::Announced).unwrap();
        assert_eq!(found, record);
    }
    assert_eq!(fsquota::get(&taken).unwrap().limits.inodes, Some(Inodes::new(7)));
}

#[test]
fn the_next_volume_of_the_same_name_is_empty_and_has_another_project() {
    let node = Node::new();
    for allocation in BOTH {
        let (id, former) = node.made(&disk("pvc-1", allocation));
        fs::write(node.image(&id), b"secret").unwrap();
        node.remove(&id);
        let (id, record) = node.made(&disk("pvc-1", allocation));
        assert_ne!(record.project, former.project);
        assert_eq!(only_byte(&fs::read(node.image(&id)).unwrap()), Some(0));
        node.remove(&id);
    }
}
