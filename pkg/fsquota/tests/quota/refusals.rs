//! Errors name the reason and leave everything unchanged.

use std::fs::{self, File, OpenOptions};
use std::io::Seek;
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::thread;

use fsquota::{
    AllocateError, Allocator, Ensured, FsError, GetError, LimitError, Limits, ProjectId, Quotas, RemoveError, SetError,
};
use ktest_support::{Tmpfs, XfsDisk, unmount};
use nix::errno::Errno;
use nix::libc::{O_NOFOLLOW, O_PATH};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;
use nix::unistd::{Uid, mkfifo, setfsuid};
use units::{Bytes, Inodes};

use crate::files::{mib, xfs_io_ok};
use crate::formatted::Formatted;
use crate::tools::xfs_quota;
use crate::volumes::{SIZE, Volumes, size};

fn id() -> ProjectId {
    ProjectId::new(1).unwrap()
}

#[test]
fn other_file_systems_are_rejected_with_not_xfs() {
    let tmpfs = Tmpfs::mount();
    let dir = File::open(tmpfs.path()).unwrap();
    assert!(matches!(fsquota::assign(&dir, id(), size(SIZE)), Err(SetError::Fs(FsError::NotXfs))));
    assert!(matches!(Allocator::open(&dir), Err(AllocateError::Fs(FsError::NotXfs))));
    assert_eq!(fsquota::get(&dir), Err(GetError::Fs(FsError::NotXfs)));
    assert_eq!(fsquota::remove(&dir), Err(RemoveError::Fs(FsError::NotXfs)));
    assert_eq!(Quotas::open(&dir).err(), Some(FsError::NotXfs));
    assert_eq!(fsquota::strays(&dir, id()).err(), Some(FsError::NotXfs));
    assert_eq!(fsquota::report(&dir).err(), Some(FsError::NotXfs));
}

#[test]
fn a_file_system_without_quota_is_rejected() {
    let disk = XfsDisk::without_quota();
    let root = File::open(disk.path()).unwrap();
    assert!(matches!(fsquota::assign(&root, id(), size(SIZE)), Err(SetError::Fs(FsError::AccountingOff))));
    assert_eq!(fsquota::require(&root), Err(FsError::AccountingOff));
    assert_eq!(fsquota::report(&root).err(), Some(FsError::AccountingOff));
    assert_eq!(fsquota::project(&root), Ok(None));
}

#[test]
fn a_file_system_with_user_quota_only_is_rejected() {
    let formatted = Formatted::new(&[], "usrquota,grpquota");
    assert_eq!(fsquota::require(formatted.open()), Err(FsError::AccountingOff));
}

#[test]
fn accounting_without_enforcement_is_rejected() {
    let formatted = Formatted::new(&[], "pqnoenforce");
    let root = formatted.open();
    assert_eq!(fsquota::require(&root), Err(FsError::EnforcementOff));
    assert!(matches!(fsquota::assign(&root, id(), size(SIZE)), Err(SetError::Fs(FsError::EnforcementOff))));
    assert_eq!(fsquota::get(&root), Err(GetError::Fs(FsError::EnforcementOff)));
}

#[test]
fn enforcement_turned_off_at_run_time_is_reported() {
    let (volumes, dir, id) = Volumes::with_volume(size(SIZE));
    xfs_quota(&volumes, "disable -p");
    assert_eq!(fsquota::get(&dir), Err(GetError::Fs(FsError::EnforcementOff)));
    xfs_quota(&volumes, "enable -p");
    assert_eq!(fsquota::get(&dir).unwrap().id, id);
}

#[test]
fn quotas_of_a_read_only_mount_can_be_read_but_not_set() {
    let formatted = Formatted::new(&[], "prjquota");
    let path = formatted.path().join("a");
    fs::create_dir(&path).unwrap();
    fsquota::assign(File::open(&path).unwrap(), id(), size(SIZE)).unwrap();
    formatted.remount("prjquota,ro");
    let dir = File::open(&path).unwrap();
    assert_eq!(fsquota::get(&dir).unwrap().limits, size(SIZE));
    let refused = fsquota::set_limits(&dir, id(), size(mib(1)));
    assert!(matches!(refused, Err(SetError::Fs(FsError::System { source: Errno::EROFS, .. }))), "{refused:?}");
    assert_eq!(fsquota::get(&dir).unwrap().limits, size(SIZE));
}

#[test]
fn quotas_work_after_a_read_only_remount_is_reverted() {
    let formatted = Formatted::new(&[], "prjquota");
    let path = formatted.path().join("a");
    fs::create_dir(&path).unwrap();
    let dir = File::open(&path).unwrap();
    fsquota::assign(&dir, id(), size(SIZE)).unwrap();
    formatted.change(MsFlags::MS_RDONLY);
    assert!(fsquota::set_limits(&dir, id(), size(mib(1))).is_err());
    formatted.change(MsFlags::empty());
    fsquota::set_limits(&dir, id(), size(mib(1))).unwrap();
    File::create(path.join("file")).unwrap();
    let seen = fsquota::get(&dir).unwrap();
    assert_eq!((seen.limits, seen.used.inodes), (size(mib(1)), Inodes::new(2)));
}

#[test]
fn quotas_of_a_frozen_file_system_can_be_read() {
    let (volumes, dir, id) = Volumes::with_volume(size(SIZE));
    xfs_io_ok(&volumes.path("a"), &[], &["freeze"]);
    let (got, walked) = (fsquota::get(&dir), fsquota::strays(&dir, id).unwrap().count());
    xfs_io_ok(&volumes.path("a"), &[], &["thaw"]);
    assert_eq!((got.unwrap().limits, walked), (size(SIZE), 0));
}

#[test]
fn a_file_is_rejected() {
    let volumes = Volumes::new();
    let path = volumes.path("file");
    File::create(&path).unwrap();
    let named = OpenOptions::new().read(true).custom_flags(O_PATH).open(&path).unwrap();
    for file in [File::open(&path).unwrap(), named] {
        let refused = fsquota::set(&file, size(SIZE), &volumes.ids);
        assert!(matches!(refused, Err(SetError::Fs(FsError::NotADirectory))), "{refused:?}");
        assert_eq!(fsquota::get(&file), Err(GetError::Fs(FsError::NotADirectory)));
        assert_eq!(fsquota::remove(&file), Err(RemoveError::Fs(FsError::NotADirectory)));
        assert_eq!(fsquota::project(&file), Err(FsError::NotADirectory));
        assert_eq!(fsquota::strays(&file, id()).err(), Some(FsError::NotADirectory));
    }
}

#[test]
fn symbolic_links_and_pipes_are_rejected() {
    let (volumes, _a, _) = Volumes::with_volume(size(SIZE));
    symlink("a", volumes.path("link")).unwrap();
    mkfifo(&volumes.path("pipe"), Mode::S_IRWXU).unwrap();
    for name in ["link", "pipe"] {
        let options = OpenOptions::new().read(true).custom_flags(O_PATH | O_NOFOLLOW).open(volumes.path(name));
        let named = options.unwrap();
        let refused = fsquota::set(&named, size(SIZE), &volumes.ids);
        assert!(matches!(refused, Err(SetError::Fs(FsError::NotADirectory))), "{name}: {refused:?}");
        assert_eq!(fsquota::get(&named), Err(GetError::Fs(FsError::NotADirectory)), "{name}");
    }
}

#[test]
fn a_deleted_directory_is_rejected() {
    let volumes = Volumes::new();
    let dir = volumes.dir("a");
    fs::remove_dir(volumes.path("a")).unwrap();
    assert!(matches!(fsquota::set(&dir, size(SIZE), &volumes.ids), Err(SetError::Fs(FsError::Gone))));
    assert_eq!(fsquota::get(&dir), Err(GetError::Fs(FsError::Gone)));
    assert_eq!(fsquota::remove(&dir), Err(RemoveError::Fs(FsError::Gone)));
}

#[test]
fn an_o_path_descriptor_is_sufficient() {
    let volumes = Volumes::new();
    volumes.dir("a");
    let named = OpenOptions::new().read(true).custom_flags(O_PATH).open(volumes.path("a")).unwrap();
    let id = fsquota::set(named.as_fd(), size(SIZE), &volumes.ids).unwrap().into_inner();
    assert_eq!(fsquota::get(named.as_fd()).unwrap().id, id);
    assert_eq!(fsquota::quota(named.as_fd(), id).unwrap().limits, size(SIZE));
    assert_eq!(fsquota::report(&named).unwrap().count(), 1);
    assert_eq!(fsquota::strays(&named, id).unwrap().count(), 0);
    fsquota::set_limits(&named, id, size(mib(1))).unwrap();
    fsquota::sync(&named).unwrap();
    assert_eq!(fsquota::remove(&named), Ok(Some(id)));
}

#[test]
fn the_root_of_the_file_system_is_rejected() {
    let formatted = Formatted::new(&[], "prjquota");
    let root = formatted.open();
    assert!(matches!(fsquota::assign(&root, id(), size(SIZE)), Err(SetError::Root)));
    assert_eq!(fsquota::project(&root), Ok(None));
    assert_eq!(fsquota::remove(&root), Ok(None));
    // A project that was set on the root directly is returned; directories below it are then nested.
    xfs_io_ok(formatted.path(), &[], &["chproj 7", "chattr +P"]);
    fs::create_dir(formatted.path().join("a")).unwrap();
    let inner = File::open(formatted.path().join("a")).unwrap();
    assert_eq!(fsquota::get(&root).unwrap().id.get(), 7);
    let refused = fsquota::assign(&inner, id(), size(SIZE));
    assert!(matches!(refused, Err(SetError::OtherProject { found, .. }) if found.get() == 7), "{refused:?}");
}

#[test]
fn projects_cannot_be_nested_even_behind_a_bind_mount() {
    let (volumes, _a, outer) = Volumes::with_volume(size(SIZE));
    let inner = volumes.dir("a/inner");
    volumes.dir("b");
    let (from, to) = (volumes.path("a/inner"), volumes.path("b"));
    mount(Some(&from), &to, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    for inner in [inner, File::open(&to).unwrap()] {
        for refused in [fsquota::set(&inner, size(mib(1)), &volumes.ids), fsquota::assign(&inner, outer, size(mib(1)))]
        {
            assert!(matches!(refused, Err(SetError::Nested { outer: found }) if found == outer), "{refused:?}");
        }
        assert_eq!(fsquota::remove(&inner), Err(RemoveError::Nested { outer }));
        assert_eq!(fsquota::get(&inner).unwrap().id, outer);
    }
    unmount(&to).unwrap();
    assert_eq!(fsquota::quota(&volumes.root, outer).unwrap().limits, size(SIZE));
}

#[test]
fn a_bind_mounted_directory_can_get_a_project() {
    let volumes = Volumes::new();
    volumes.dir("a");
    volumes.dir("b");
    let (from, to) = (volumes.path("a"), volumes.path("b"));
    mount(Some(&from), &to, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    {
        // In the file system, the parent has no project, and the directory is not the root.
        let mounted = File::open(&to).unwrap();
        let id = fsquota::set(&mounted, size(SIZE), &volumes.ids).unwrap().into_inner();
        assert_eq!(fsquota::project(File::open(&from).unwrap()), Ok(Some(id)));
        assert_eq!(fsquota::set(&mounted, size(mib(1)), &volumes.ids).unwrap(), Ensured::Unchanged(id));
        assert_eq!(fsquota::remove(&mounted), Ok(Some(id)));
    }
    unmount(&to).unwrap();
}

#[test]
fn a_directory_that_was_emptied_is_accepted() {
    let volumes = Volumes::new();
    let dir = volumes.dir("a");
    // Enough names that XFS stores them outside of the inode.
    (0..2000).for_each(|n| drop(File::create(volumes.path(&format!("a/{n:0200}"))).unwrap()));
    assert!(matches!(fsquota::set(&dir, size(SIZE), &volumes.ids), Err(SetError::NotEmpty)));
    assert_eq!((fsquota::project(&dir), volumes.reported()), (Ok(None), Vec::new()));
    (0..2000).for_each(|n| fs::remove_file(volumes.path(&format!("a/{n:0200}"))).unwrap());
    assert!(fsquota::set(&dir, size(SIZE), &volumes.ids).is_ok());
}

#[test]
fn the_offset_of_the_callers_descriptor_is_unchanged() {
    let volumes = Volumes::new();
    let mut dir = volumes.dir("a");
    fsquota::set(&dir, size(SIZE), &volumes.ids).unwrap();
    fsquota::get(&dir).unwrap();
    assert_eq!(dir.stream_position().unwrap(), 0);
    assert!(fsquota::remove(&dir).unwrap().is_some());
    assert_eq!(dir.stream_position().unwrap(), 0);
}

#[test]
fn a_project_without_a_limit_is_rejected() {
    let volumes = Volumes::new();
    let dir = volumes.dir("a");
    assert!(matches!(fsquota::set(&dir, Limits::default(), &volumes.ids), Err(SetError::NoLimit)));
    let zero = fsquota::set(&dir, size(Bytes::ZERO), &volumes.ids);
    assert!(matches!(zero, Err(SetError::Limit(LimitError::NoBytes))));
    let huge = fsquota::set(&dir, size(Bytes::new(u64::MAX)), &volumes.ids);
    assert!(matches!(huge, Err(SetError::Limit(LimitError::TooManyBytes { .. }))));
    assert_eq!(fsquota::project(&dir), Ok(None));
}

#[test]
fn a_failed_assign_leaves_no_limits() {
    let volumes = Volumes::new();
    let (dir, id) = (volumes.dir("a"), volumes.ids.next().unwrap());
    // Without the capabilities of the file system (which belong to the thread), the limits can be set, but the
    // directory of another user cannot be changed.
    let refused = thread::scope(|scope| {
        let stranger = scope.spawn(|| {
            setfsuid(Uid::from_raw(1000));
            fsquota::assign(&dir, id, size(SIZE))
        });
        stranger.join().unwrap()
    });
    let Err(SetError::Fs(FsError::System { operation, source })) = refused else { panic!("{refused:?}") };
    assert_eq!((operation, source), ("FS_IOC_FSSETXATTR", Errno::EPERM));
    assert_eq!(fsquota::quota(&volumes.root, id).unwrap().limits, Limits::default());
    assert_eq!(fsquota::assign(&dir, id, size(SIZE)).unwrap(), Ensured::Created(id));
}

#[test]
fn a_second_project_or_directory_is_rejected() {
    let (volumes, a, id) = Volumes::with_volume(size(SIZE));
    let other = volumes.ids.next().unwrap();
    let refused = fsquota::assign(&a, other, size(SIZE)).unwrap_err();
    assert!(matches!(refused, SetError::OtherProject { found, wanted } if (found, wanted) == (id, other)));
    let refused = fsquota::assign(volumes.dir("b"), id, size(mib(1))).unwrap_err();
    assert!(matches!(refused, SetError::InUse { id: used, .. } if used == id));
    assert_eq!(fsquota::get(&a).unwrap().limits, size(SIZE));
}

#[test]
fn an_allocator_of_another_file_system_is_rejected() {
    let volumes = Volumes::new();
    let other = Formatted::in_memory("prjquota");
    fs::create_dir(other.path().join("a")).unwrap();
    let dir = File::open(other.path().join("a")).unwrap();
    assert!(matches!(fsquota::set(&dir, size(SIZE), &volumes.ids), Err(SetError::OtherFileSystem)));
    assert_eq!(fsquota::project(&dir), Ok(None));
}
