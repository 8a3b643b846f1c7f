//! Kernel behaviour of mounts by descriptor. Requires root in a VM.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use ktest_support::Tmpfs;
use mount::{AttachError, Attributes, Detached, Filesystem, FilesystemError, Kind, UnmountError};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::MsFlags;
use nix::sys::stat::Mode;

/// A directory with a file, and an empty directory as the mount point.
struct Scratch {
    source: PathBuf,
    target: PathBuf,
    disk: Tmpfs,
}

impl Scratch {
    fn new() -> Self {
        let disk = Tmpfs::mount();
        let (source, target) = (disk.path().join("source"), disk.path().join("target"));
        fs::create_dir(&source).expect("a source");
        fs::create_dir(&target).expect("a target");
        fs::write(source.join("file"), "here").expect("a file");
        Self { source, target, disk }
    }

    fn bind(&self, attributes: Attributes) {
        let clone = Detached::clone_of(handle(&self.source)).expect("clone");
        clone.set(attributes).expect("set");
        clone.attach(handle(&self.target)).expect("attach");
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A mount below would keep the disk busy.
        while mount::unmount(&self.target).is_ok() {}
    }
}

/// Opens the topmost file at `path`.
fn handle(path: &Path) -> OwnedFd {
    open(path, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty()).expect("open")
}

fn mounted(path: &Path) -> Option<Attributes> {
    mount::at(handle(path)).expect("look").mounted
}

#[test]
fn a_bind_mount_has_its_own_attributes() {
    let scratch = Scratch::new();
    let before = mount::at(handle(&scratch.target)).expect("look");
    assert_eq!((before.kind, before.mounted), (Kind::Directory, None));

    scratch.bind(Attributes::INERT);

    let after = mount::at(handle(&scratch.target)).expect("look");
    assert_eq!(after.mounted, Some(Attributes::INERT));
    assert_eq!(after.identity, mount::identity(handle(&scratch.source)).expect("look"));
    assert_ne!(after.mount, before.mount);
    assert_eq!(fs::read(scratch.target.join("file")).expect("read"), b"here");
    assert_eq!(mounted(&scratch.source), None, "the source is not a mount");
}

#[test]
fn a_read_only_mount_has_a_writable_source() {
    let scratch = Scratch::new();
    scratch.bind(Attributes { read_only: true, ..Attributes::INERT });
    let through = OpenOptions::new().write(true).open(scratch.target.join("file"));
    assert_eq!(through.expect_err("it is read-only").kind(), io::ErrorKind::ReadOnlyFilesystem);
    fs::write(scratch.source.join("file"), "changed").expect("the source is writable");
    assert_eq!(fs::read(scratch.target.join("file")).expect("read"), b"changed");
}

#[test]
fn an_inert_mount_rejects_programs_and_device_nodes() {
    let scratch = Scratch::new();
    let null = nix::sys::stat::makedev(1, 3);
    let (kind, mode) = (nix::sys::stat::SFlag::S_IFCHR, Mode::from_bits_truncate(0o666));
    nix::sys::stat::mknod(&scratch.source.join("null"), kind, mode, null).expect("mknod");
    let program = scratch.source.join("program");
    fs::write(&program, "#!/proc/self/exe\n").expect("a program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("chmod");

    scratch.bind(Attributes::INERT);

    let node = File::open(scratch.target.join("null")).expect_err("nodev");
    assert_eq!(node.raw_os_error(), Some(Errno::EACCES as i32));
    let run = std::process::Command::new(scratch.target.join("program")).status().expect_err("noexec");
    assert_eq!(run.raw_os_error(), Some(Errno::EACCES as i32));
}

#[test]
fn every_combination_of_attributes_is_read_back() {
    for chosen in 0_u8..16 {
        let [read_only, no_suid, no_dev, no_exec] = [1, 2, 4, 8].map(|bit| chosen & bit != 0);
        let wanted = Attributes { read_only, no_suid, no_dev, no_exec };
        let scratch = Scratch::new();
        scratch.bind(wanted);
        assert_eq!(mounted(&scratch.target), Some(wanted));
    }
}

#[test]
fn dropping_a_detached_mount_removes_it() {
    let scratch = Scratch::new();
    let clone = Detached::clone_of(handle(&scratch.source)).expect("clone");
    clone.set(Attributes::INERT).expect("set");
    let below = |entry: &mount::Entry| entry.point.starts_with(scratch.disk.path());
    let count = || mount::table().expect("table").into_iter().filter(below).count();
    assert_eq!(count(), 1, "the mount is invisible before it is attached");
    drop(clone);
    assert_eq!(count(), 1);
    assert_eq!(mounted(&scratch.target), None);
}

#[test]
fn only_a_file_can_be_mounted_on_a_file() {
    let scratch = Scratch::new();
    let (file, other) = (scratch.source.join("file"), scratch.target.join("other"));
    fs::write(&other, "").expect("a file");

    let directory = Detached::clone_of(handle(&scratch.source)).expect("clone");
    assert_eq!(directory.attach(handle(&other)), Err(AttachError::Rejected));

    Detached::clone_of(handle(&file)).expect("clone").attach(handle(&other)).expect("attach");
    assert_eq!(fs::read(&other).expect("read"), b"here");
    mount::unmount(&other).expect("unmount");
    assert_eq!(fs::read(&other).expect("read"), b"");
}

#[test]
fn attach_at_does_not_follow_links() {
    let scratch = Scratch::new();
    let root = handle(scratch.disk.path());
    let clone = || Detached::clone_of(handle(&scratch.source)).expect("clone");
    let name = scratch.target.file_name().expect("a name");
    clone().attach_at(&root, name).expect("attach");
    assert_eq!(fs::read(scratch.target.join("file")).expect("read"), b"here");
    mount::unmount(&scratch.target).expect("unmount");

    symlink(&scratch.target, scratch.disk.path().join("link")).expect("a link");
    let refused = [
        ("link", AttachError::Rejected),
        ("absent", AttachError::Gone),
        ("", AttachError::Name),
        (".", AttachError::Name),
        ("..", AttachError::Name),
        ("a/b", AttachError::Name),
        ("nul\0", AttachError::Name),
    ];
    for (name, reason) in refused {
        assert_eq!(clone().attach_at(&root, OsStr::new(name)), Err(reason), "{name:?}");
    }
    assert_eq!(mounted(&scratch.target), None);
}

#[test]
fn a_removed_target_is_reported_as_gone() {
    let scratch = Scratch::new();
    let held = handle(&scratch.target);
    fs::remove_dir(&scratch.target).expect("remove");
    let clone = Detached::clone_of(handle(&scratch.source)).expect("clone");
    assert_eq!(clone.attach(held), Err(AttachError::Gone));
}

#[test]
fn a_removed_directory_that_is_mounted_is_reported() {
    let scratch = Scratch::new();
    scratch.bind(Attributes::INERT);
    assert!(!mount::at(handle(&scratch.target)).expect("look").removed);
    fs::remove_dir_all(&scratch.source).expect("remove");
    assert!(mount::at(handle(&scratch.target)).expect("look").removed);
}

#[test]
fn later_mounts_below_the_source_do_not_propagate() {
    let scratch = Scratch::new();
    let shared = MsFlags::MS_SHARED;
    nix::mount::mount(None::<&str>, scratch.disk.path(), None::<&str>, shared, None::<&str>).expect("make shared");
    let below = scratch.source.join("below");
    fs::create_dir(&below).expect("a directory");
    scratch.bind(Attributes::INERT);
    let tmpfs = Filesystem {
        kind: "tmpfs",
        source: Path::new("tmpfs"),
        target: &below,
        flags: MsFlags::empty(),
        data: "size=64k",
    };
    mount::filesystem(tmpfs).expect("mount");
    assert_eq!(mounted(&scratch.target.join("below")), None);
    mount::unmount(&below).expect("unmount");
}

#[test]
fn unmount_removes_the_topmost_mount_first() {
    let scratch = Scratch::new();
    scratch.bind(Attributes::INERT);
    let parent = handle(scratch.disk.path());
    assert_eq!(mount::unmount_beneath(&parent, OsStr::new("target")), Ok(()));
    assert_eq!(mounted(&scratch.target), None);
    assert_eq!(mount::unmount_beneath(&parent, OsStr::new("target")), Err(UnmountError::NotMounted));
    assert_eq!(mount::unmount_beneath(&parent, OsStr::new("absent")), Err(UnmountError::Absent));
}

#[test]
fn a_mount_with_an_open_file_is_busy() {
    let scratch = Scratch::new();
    scratch.bind(Attributes::INERT);
    let held = File::open(scratch.target.join("file")).expect("open");
    assert_eq!(mount::unmount(&scratch.target), Err(UnmountError::Busy));
    drop(held);
    assert_eq!(mount::unmount(&scratch.target), Ok(()));
}

#[test]
fn unmount_does_not_follow_a_link() {
    let scratch = Scratch::new();
    scratch.bind(Attributes::INERT);
    std::os::unix::fs::symlink("target", scratch.disk.path().join("link")).expect("a link");
    let parent = handle(scratch.disk.path());
    assert_eq!(mount::unmount_beneath(&parent, OsStr::new("link")), Err(UnmountError::NotMounted));
    assert_eq!(mounted(&scratch.target), Some(Attributes::INERT));
}

#[test]
fn the_table_contains_root_and_mount_point() {
    let scratch = Scratch::new();
    scratch.bind(Attributes::INERT);
    let place = mount::at(handle(&scratch.target)).expect("look");
    let table = mount::table().expect("table");
    let entry = table.iter().find(|entry| entry.mount == place.mount).expect("our mount");
    assert_eq!((entry.root.as_path(), entry.point.as_path()), (Path::new("/source"), scratch.target.as_path()));
    assert_eq!(entry.device, place.identity.device);
}

#[test]
fn filesystem_mounts_with_options_and_names_errors() {
    let scratch = Scratch::new();
    let good = Filesystem {
        kind: "tmpfs",
        source: Path::new("scratch"),
        target: &scratch.target,
        flags: MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
        data: "size=64k",
    };
    mount::filesystem(good).expect("mount");
    assert_eq!(mounted(&scratch.target), Some(Attributes::INERT));
    assert_eq!(nix::sys::statvfs::statvfs(&scratch.target).expect("statvfs").blocks(), 16);

    let unknown = mount::filesystem(Filesystem { kind: "nothing", ..good });
    assert_eq!(unknown, Err(FilesystemError::UnknownKind { kind: "nothing".into() }));
    let absent = mount::filesystem(Filesystem { target: Path::new("/absent"), ..good });
    assert!(matches!(absent, Err(FilesystemError::Absent { .. })), "{absent:?}");
    let refused = mount::filesystem(Filesystem { data: "size=nonsense", ..good });
    assert!(matches!(refused, Err(FilesystemError::Rejected { .. })), "{refused:?}");
}
