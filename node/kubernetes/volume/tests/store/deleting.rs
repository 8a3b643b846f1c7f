//! Volumes are retired, restored and removed.

use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, symlink};

use dir::{Dir, Ensured};
use fsquota::{Drift, Limits, ProjectId};
use ktest_support::unmount;
use loopdev::{Config, Control};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use units::{Bytes, Inodes};
use volume::{Access, ActError, Allocation, Error, OpenError, VolumeRefusal, Volumes as _, Where};

use crate::node::{Node, SIZE, disk, files, id};
use crate::sys;

#[test]
fn a_deleted_volume_leaves_nothing_behind() {
    let (node, id, record) = Node::with_volume(&files("pvc-1"));
    fs::create_dir_all(node.path("live", &id).join("a/b/c")).unwrap();
    fs::write(node.path("live", &id).join("a/b/secret"), b"x").unwrap();
    symlink("/", node.path("live", &id).join("a/link")).unwrap();

    assert!(matches!(node.store.discard(&id), Err(Error::Refused { source: VolumeRefusal::NotRetired, .. })));
    assert_eq!(node.store.retire(&id).unwrap(), Ensured::Created(()));
    assert!(matches!(node.store.open_volume(&id), Err(OpenError::Unknown { .. })));
    assert_eq!(node.traces(&id), ["records", "trash"]);
    assert_eq!(node.store.retired().unwrap(), std::slice::from_ref(&id));
    assert_eq!(node.limits(record.project).bytes, Some(SIZE)); // as long as there is data

    let node = node.restarted();
    assert_eq!(node.store.retire(&id).unwrap(), Ensured::Unchanged(()));
    assert_eq!(node.store.discard(&id).unwrap(), Ensured::Created(()));
    assert_eq!(node.traces(&id), [""; 0]);
    assert_eq!(node.limits(record.project), Limits::default());
    assert_eq!(node.store.retire(&id).unwrap(), Ensured::Unchanged(()));
    assert_eq!(node.store.discard(&id).unwrap(), Ensured::Unchanged(()));
}

#[test]
fn whatever_a_tenant_builds_can_be_removed() {
    let (node, id, _) = Node::with_volume(&files("pvc-1"));
    let mut dir = node.store.open_volume(&id).unwrap().into_dir();
    let name = dir::Name::try_from("d").unwrap();
    for _ in 0..100 {
        dir = dir.create_dir(&name, dir::Mode::S_IRWXU).unwrap();
    }
    let other = ProjectId::new(4_000_000).unwrap();
    dir.create_dir(&name, dir::Mode::S_IRWXU).unwrap();
    let stray = File::open(node.path("live", &id).join("d/d/d")).unwrap();
    drop(dir);
    chproj(&stray, other);
    drop(stray);
    node.remove(&id);
    assert_eq!(node.traces(&id), [""; 0]);
    assert!(fs::read_dir(node.path("trash", &id).parent().unwrap()).unwrap().next().is_none());
}

/// Gives another project to the directory and the 30 levels below it, as its owner could do with `xfs_quota`.
fn chproj(top: &File, project: ProjectId) {
    let mut level = Dir::from(top.as_fd().try_clone_to_owned().unwrap());
    for _ in 0..30 {
        sys::set_project(&level, project.get()).unwrap();
        level = level.open_dir(&dir::Name::try_from("d").unwrap()).unwrap();
    }
}

#[test]
fn data_of_a_mount_in_the_volume_is_not_removed() {
    let (node, id, _) = Node::with_volume(&files("pvc-1"));
    let point = node.path("live", &id).join("point");
    fs::create_dir(&point).unwrap();
    mount(Some("tmpfs"), &point, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    fs::write(point.join("kept"), b"x").unwrap();
    node.store.retire(&id).unwrap();
    let refused = node.store.discard(&id).unwrap_err();
    let Error::Act { source: ActError::Dir(error), .. } = refused else { panic!("{refused:?}") };
    assert!(matches!(error.errno(), Errno::EXDEV | Errno::EBUSY), "{error:?}");
    let moved = node.path("trash", &id).join("point");
    assert!(moved.join("kept").exists());
    unmount(&moved).unwrap();
    node.store.discard(&id).unwrap();
    assert_eq!(node.traces(&id), [""; 0]);
}

/// The node stopped while limits could not be cleared: no entry in the trash had the name of the volume any more.
#[test]
fn a_removal_that_stopped_after_the_data_is_found_again_and_finished() {
    let (node, id, record) = Node::with_volume(&files("pvc-1"));
    let (other, _) = node.made(&files("pvc-2"));
    let held = File::create(node.path("live", &id).join("held")).unwrap();
    held.set_len(1 << 20).unwrap();
    node.store.retire(&id).unwrap();
    let refused = node.store.discard(&id).unwrap_err();
    assert!(matches!(refused, Error::Act { source: ActError::Clear(_), .. }), "{refused:?}");
    // The limit is one block: the file cannot grow.
    assert_eq!(node.limits(record.project).bytes, Some(Bytes::new(4096)));
    assert_eq!(node.traces(&id), ["records"]);
    drop(held);

    let node = node.restarted();
    assert_eq!(node.store.retired().unwrap(), std::slice::from_ref(&id));
    node.store.discard(&id).unwrap();
    assert!(node.traces(&id).is_empty());
    assert_eq!(node.limits(record.project), Limits { bytes: None, inodes: None });
    assert!(node.store.retired().unwrap().is_empty());
    assert_eq!(node.traces(&other), ["records", "live"]);
}

fn foreign(result: Result<Ensured<()>, Error>) {
    assert!(matches!(result, Err(Error::Refused { source: VolumeRefusal::Foreign, .. })), "{result:?}");
}

#[test]
fn a_directory_without_a_record_is_neither_adopted_nor_emptied() {
    let node = Node::new();
    let id = id("pvc-1");
    fs::create_dir(node.path("live", &id)).unwrap();
    fs::write(node.path("live", &id).join("kept"), b"x").unwrap();
    // The entry is unmanaged, whether it existed at the start or came later.
    foreign(node.store.provision(&id, &files("pvc-1")).map(|made| made.map(drop)));
    assert_eq!(node.traces(&id), ["live"]);
    let node = node.restarted();
    foreign(node.store.provision(&id, &files("pvc-1")).map(|made| made.map(drop)));
    foreign(node.store.retire(&id));
    foreign(node.store.undo(&id));
    assert!(node.path("live", &id).join("kept").exists());
    assert_eq!(node.store.space().unwrap().reserved, Bytes::ZERO);
}

#[test]
fn only_what_was_never_announced_is_undone() {
    let node = Node::new();
    let staged = id("pvc-1");
    node.store.provision(&staged, &files("pvc-1")).unwrap();
    let (announced, _) = node.made(&files("pvc-2"));
    assert_eq!(node.store.undo(&staged).unwrap(), Ensured::Created(()));
    assert_eq!(node.traces(&staged), [""; 0]);
    assert!(matches!(node.store.undo(&announced), Err(Error::Announced { .. })));
    assert_eq!(node.traces(&announced), ["records", "live"]);
}

#[test]
fn an_unmanaged_entry_is_kept_and_the_failed_call_is_undone() {
    for place in ["pending", "staging", "live"] {
        let node = Node::new();
        let id = id("pvc-1");
        fs::create_dir(node.path(place, &id)).unwrap();
        fs::write(node.path(place, &id).join("kept"), b"x").unwrap();
        let before = node.projects();
        foreign(node.store.provision(&id, &disk("pvc-1", Allocation::Thick)).map(|made| made.map(drop)));
        assert_eq!(node.traces(&id), [place]);
        assert!(node.path(place, &id).join("kept").exists());
        assert_eq!(node.store.space().unwrap().reserved, Bytes::ZERO);
        assert_eq!(node.projects(), before);
        fs::remove_dir_all(node.path(place, &id)).unwrap();
        node.made(&files("pvc-1"));
    }
}

#[test]
fn a_retired_volume_can_be_taken_back_with_its_data() {
    let (node, id, record) = Node::with_volume(&files("pvc-1"));
    fs::write(node.path("live", &id).join("kept"), b"x").unwrap();
    assert_eq!(node.store.restore(&id).unwrap(), Ensured::Unchanged(()));
    node.store.retire(&id).unwrap();
    let node = node.restarted();
    assert_eq!(node.store.restore(&id).unwrap(), Ensured::Created(()));
    assert_eq!(node.store.restore(&id).unwrap(), Ensured::Unchanged(()));
    assert_eq!(node.traces(&id), ["records", "live"]);
    assert_eq!(fs::read(node.path("live", &id).join("kept")).unwrap(), b"x");
    assert_eq!(fsquota::get(node.store.open_volume(&id).unwrap().dir()).unwrap().id, record.project);
    node.remove(&id);
    assert_eq!(node.store.restore(&id).unwrap(), Ensured::Unchanged(()));
}

#[test]
fn loop_devices_of_an_image_go_before_it_does() {
    let (node, id, _) = Node::with_volume(&disk("pvc-1", Allocation::Thick));
    let (other, _) = node.made(&disk("pvc-2", Allocation::Thick));
    let attach = |id| {
        let image = node.store.open_volume(id).unwrap().image(Access::ReadWrite).unwrap();
        let device = Control::open().unwrap().attach(&image, &Config::default()).unwrap();
        device.path()
    };
    let attached = || loopdev::list().unwrap().len();
    let kept = attach(&other);
    attach(&id);
    attach(&id);
    assert_eq!(attached(), 3);
    node.store.retire(&id).unwrap();
    assert_eq!(attached(), 1);
    // Another process has attached a device to the image in the trash.
    let image = File::options().read(true).write(true).open(node.path("trash", &id).join("image")).unwrap();
    drop(Control::open().unwrap().attach(&image, &Config::default()).unwrap());
    drop(image);
    node.store.discard(&id).unwrap();
    assert_eq!(node.traces(&id), [""; 0]);
    let left: Vec<_> = loopdev::list().unwrap().into_iter().map(|device| device.number.path()).collect();
    assert_eq!(left, [kept]);
    let device = File::options().write(true).open(&left[0]).unwrap();
    device.write_all_at(b"x", 0).unwrap();
    drop(device);
    node.store.retire(&other).unwrap();
    assert_eq!(attached(), 0);
}

#[test]
fn a_volume_whose_device_a_process_has_open_stays() {
    let (node, id, _) = Node::with_volume(&disk("pvc-1", Allocation::Thick));
    let image = node.store.open_volume(&id).unwrap().image(Access::ReadWrite).unwrap();
    let device = Control::open().unwrap().attach(&image, &Config::default()).unwrap();
    let number = device.number();
    drop(image);
    let refused = node.store.retire(&id).unwrap_err();
    assert!(refused.is_in_use(), "{refused}");
    let Error::Act { source: ActError::InUse { device: found }, .. } = refused else { panic!("{refused}") };
    assert_eq!(found, number);
    node.store.open_volume(&id).unwrap();
    // The detach was deferred until this close.
    drop(device);
    assert_eq!(node.store.retire(&id).unwrap(), Ensured::Created(()));
    assert!(!loopdev::list().unwrap().iter().any(|attached| attached.number == number));
}

#[test]
fn a_volume_is_neither_retired_nor_removed_while_a_mount_shows_it() {
    let (node, id, _) = Node::with_volume(&files("pvc-1"));
    let target = node.path("live", &id).parent().unwrap().parent().unwrap().parent().unwrap().join("target");
    fs::create_dir(&target).unwrap();
    let bind = |place| {
        let from = node.path(place, &id);
        mount(Some(&from), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    };
    let is_published = |refused: Error| matches!(refused, Error::Published { target: found, .. } if found == target);
    bind("live");
    assert!(is_published(node.store.retire(&id).unwrap_err()));
    assert_eq!(node.traces(&id), ["records", "live"]);
    unmount(&target).unwrap();
    node.store.retire(&id).unwrap();
    bind("trash");
    assert!(is_published(node.store.discard(&id).unwrap_err()));
    assert_eq!(node.traces(&id), ["records", "trash"]);
    unmount(&target).unwrap();
    node.store.discard(&id).unwrap();
    assert_eq!(node.traces(&id), [""; 0]);
}

/// An administrator set the flag, or moved the store below a project for a while.
#[test]
fn a_trash_that_inherits_is_put_right() {
    let (node, id, _) = Node::with_volume(&files("pvc-1"));
    let trash = File::open(node.path("trash", &id).parent().unwrap()).unwrap();
    fsquota::assign(&trash, ProjectId::new(9000).unwrap(), Limits { bytes: None, inodes: Some(Inodes::new(9)) })
        .unwrap();
    drop(trash);
    let refused = node.store.retire(&id).unwrap_err();
    let Error::Act { source: ActError::Dir(refused), .. } = refused else { panic!("{refused:?}") };
    assert_eq!(refused.errno(), Errno::EXDEV);
    let node = node.restarted();
    assert_eq!(node.store.retire(&id).unwrap(), Ensured::Created(()));
    assert_eq!(node.store.discard(&id).unwrap(), Ensured::Created(()));
}

#[test]
fn strays_are_reported_and_stay() {
    let (node, id, _) = Node::with_volume(&files("pvc-1"));
    let (retired, _) = node.made(&disk("pvc-2", Allocation::Thick));
    node.store.retire(&retired).unwrap();
    node.store.provision(&crate::node::id("pvc-3"), &files("pvc-3")).unwrap();
    assert_eq!(node.store.strays().unwrap(), volume::Strays::default());
    let lost = crate::node::id("pvc-4");
    fs::create_dir(node.path("live", &lost)).unwrap();
    let taken = File::open(node.path("live", &lost)).unwrap();
    let project = ProjectId::new(5000).unwrap();
    fsquota::assign(&taken, project, Limits { bytes: Some(SIZE), inodes: None }).unwrap();
    drop(taken);
    fs::create_dir(node.path("trash", &id).with_file_name(".pvc-2.0")).unwrap(); // a part of a volume with a record
    fs::create_dir(node.path("trash", &id).with_file_name(".pvc-9.0")).unwrap();
    let strays = node.store.strays().unwrap();
    let name = |text| dir::Name::try_from(text).unwrap();
    assert_eq!(strays.directories, [(Where::Live, name("pvc-4")), (Where::Trash, name(".pvc-9.0"))]);
    assert_eq!(strays.projects, [project]);
    let node = node.restarted();
    assert_eq!(node.store.strays().unwrap(), strays);
    assert!(node.path("live", &lost).exists());
}

/// An administrator gave the volume's project to another directory.
#[test]
fn a_project_that_something_else_carries_does_not_keep_the_record() {
    let (node, id, record) = Node::with_volume(&files("pvc-1"));
    let borrowed = node.disk.path().join("borrowed");
    fs::create_dir(&borrowed).unwrap();
    sys::set_project(File::open(&borrowed).unwrap(), record.project.get()).unwrap();
    node.remove(&id);
    assert_eq!(node.traces(&id), [""; 0]);
    assert_eq!(node.limits(record.project).bytes, Some(SIZE));
    assert_eq!(node.store.strays().unwrap().projects, [record.project]);
    let (_, next) = node.made(&files("pvc-1"));
    assert_ne!(next.project, record.project);
}

/// A privileged pod can set these flags: `chattr +i`, `chattr +a`.
#[test]
fn files_that_a_tenant_made_immutable_can_be_removed() {
    const PROTECTED: [u32; 2] = [0x8, 0x10]; // FS_XFLAG_IMMUTABLE, FS_XFLAG_APPEND
    for flag in PROTECTED {
        let (node, id, _) = Node::with_volume(&files("pvc-1"));
        let root = node.path("live", &id);
        fs::create_dir_all(root.join("dir/sub")).unwrap();
        for file in ["file", "dir/file", "dir/sub/file"] {
            fs::write(root.join(file), b"x").unwrap();
        }
        symlink("file", root.join("dir/link")).unwrap();
        for path in ["dir/sub/file", "dir/sub", "dir/file", "dir", "file", ""] {
            let inode = File::open(root.join(path)).unwrap();
            sys::add_flag(&inode, flag).unwrap();
        }
        assert_eq!(fs::remove_file(root.join("file")).unwrap_err().raw_os_error(), Some(Errno::EPERM as i32));
        node.remove(&id);
        assert_eq!(node.traces(&id), [""; 0]);
    }
}

#[test]
fn inodes_that_do_not_count_to_the_volumes_project_are_found_in_use_and_in_the_trash() {
    let (node, id, _) = Node::with_volume(&files("pvc-1"));
    let root = node.path("live", &id);
    fs::create_dir(root.join("dir")).unwrap();
    fs::write(root.join("dir/file"), b"x").unwrap();
    assert_eq!(node.store.drifted(&id).unwrap(), volume::Drifted::default());
    sys::set_project(File::open(root.join("dir/file")).unwrap(), 0).unwrap();
    let found = volume::Drifted { inodes: Inodes::new(1), first: Some(("dir/file".into(), Drift::NoProject)) };
    assert_eq!(node.store.drifted(&id).unwrap(), found);
    node.store.retire(&id).unwrap();
    assert_eq!(node.store.drifted(&id).unwrap(), found);
    node.store.discard(&id).unwrap();
    assert_eq!(node.store.drifted(&id).unwrap(), volume::Drifted::default());
}
