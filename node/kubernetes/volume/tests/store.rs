//! The store on a real XFS with project quotas. Needs root and a scratch disk.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::thread;

use dir::{Dir, Ensured};
use fsquota::{Limits, ProjectId};
use ktest_support::XfsDisk;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount, umount};
use nix::sys::statvfs::fstatvfs;
use units::{Bytes, Inodes};
use volume::{ActError, Claim, Error, Mode, OpenError, Record, Refusal, Request, Settings, State, Store, VolumeId};

/// A node's volumes directory.
struct Node {
    store: Store,
    // Last: it can only be unmounted when nothing on it is open.
    disk: XfsDisk,
}

impl Node {
    fn new() -> Self {
        let disk = XfsDisk::with_project_quota();
        let store = Self::open(&disk);
        Self { store, disk }
    }

    fn open(disk: &XfsDisk) -> Store {
        let volumes = Dir::open(disk.path()).expect("the mount can be opened");
        Store::open(&volumes, Settings { reserve: Bytes::new(32 << 20) }).expect("an empty disk can be used")
    }

    /// As after the death of the process.
    fn restarted(self) -> Self {
        let Self { store, disk } = self;
        drop(store);
        Self { store: Self::open(&disk), disk }
    }

    fn path(&self, place: &str, id: &VolumeId) -> PathBuf {
        self.disk.path().join(place).join(id.as_str())
    }

    /// Where something of the volume is left.
    fn traces(&self, id: &VolumeId) -> Vec<&'static str> {
        let places = ["records", "staging", "live", "trash"];
        places.into_iter().filter(|place| self.path(place, id).exists()).collect()
    }

    fn made(&self, id: &VolumeId, size: Bytes) -> Record {
        let record = self.store.provision(id, &request(id, size)).expect("it can be made").into_inner();
        self.store.announce(id).expect("it can be announced");
        record
    }

    fn limits(&self, project: ProjectId) -> Limits {
        fsquota::quota(File::open(self.disk.path()).unwrap(), project).unwrap().limits
    }
}

fn id(text: &str) -> VolumeId {
    text.parse().expect("it is an identifier")
}

fn request(id: &VolumeId, size: Bytes) -> Request {
    Request {
        claim: Claim { uid: format!("uid of {id}"), namespace: "default".into(), name: "data".into() },
        class: "local".into(),
        mode: Mode::Filesystem,
        size,
        inodes: Inodes::new(128),
    }
}

const SIZE: Bytes = Bytes::new(16 << 20);

#[test]
fn a_new_volume_is_live_with_the_limits_that_were_asked_for() {
    let node = Node::new();
    let id = id("pvc-1");
    let Ensured::Created(record) = node.store.provision(&id, &request(&id, SIZE)).unwrap() else {
        panic!("it was there")
    };
    assert_eq!(record.state, State::Staged);
    let dir = node.store.open_volume(&id).unwrap();
    assert_eq!(fsquota::project(&dir).unwrap(), Some(record.project));
    let quota = fsquota::get(&dir).unwrap();
    assert_eq!(quota.limits, Limits { bytes: Some(SIZE), inodes: Some(Inodes::new(128)) });
    let stat = fstatvfs(dir.as_fd()).unwrap();
    assert_eq!(stat.blocks() * stat.fragment_size(), SIZE.get());
    assert_eq!(fs::metadata(node.path("live", &id)).unwrap().permissions().mode() & 0o7777, 0o777);
    assert_eq!(fs::metadata(node.disk.path().join("live")).unwrap().permissions().mode() & 0o7777, 0o700);
    assert_eq!(node.traces(&id), ["records", "live"]);
}

#[test]
fn a_volume_takes_what_it_was_promised_and_no_more() {
    let node = Node::new();
    let id = id("pvc-1");
    node.made(&id, SIZE);
    let mut file = File::create(node.path("live", &id).join("data")).unwrap();
    let block = vec![1; 1 << 20];
    let mut written = 0;
    let refused = loop {
        match file.write_all(&block).and_then(|()| file.sync_data()) {
            Ok(()) => written += block.len() as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.raw_os_error(), Some(Errno::ENOSPC as i32));
    assert!(written + (1 << 20) >= SIZE.get() && written <= SIZE.get(), "{written} of {SIZE}");
}

#[test]
fn the_same_request_again_changes_nothing() {
    let node = Node::new();
    let id = id("pvc-1");
    let record = node.made(&id, SIZE);
    fs::write(node.path("live", &id).join("kept"), b"x").unwrap();
    let again = node.store.provision(&id, &request(&id, SIZE)).unwrap();
    assert_eq!(again, Ensured::Unchanged(Record { state: State::Announced, ..record }));
    assert_eq!(node.store.announce(&id).unwrap(), Ensured::Unchanged(()));
    assert!(node.path("live", &id).join("kept").exists());
}

#[test]
fn half_made_volumes_are_finished_after_a_restart() {
    for stage in ["record", "directory", "limited", "live"] {
        let node = Node::new();
        let id = id("pvc-1");
        let record = node.store.provision(&id, &request(&id, SIZE)).unwrap().into_inner();
        if stage != "live" {
            fs::rename(node.path("live", &id), node.path("staging", &id)).unwrap();
        }
        if matches!(stage, "record" | "directory") {
            fsquota::remove(File::open(node.path("staging", &id)).unwrap()).unwrap();
        }
        if stage == "record" {
            fs::remove_dir(node.path("staging", &id)).unwrap();
        }
        let node = node.restarted();
        let again = node.store.provision(&id, &request(&id, SIZE)).unwrap();
        assert_eq!(again.into_inner(), record, "{stage}");
        let quota = fsquota::get(node.store.open_volume(&id).unwrap()).unwrap();
        assert_eq!((quota.id, quota.limits.bytes), (record.project, Some(SIZE)), "{stage}");
        assert_eq!(node.traces(&id), ["records", "live"], "{stage}");
    }
}

#[test]
fn a_restart_sets_the_recorded_limits_again() {
    let node = Node::new();
    let id = id("pvc-1");
    let record = node.made(&id, SIZE);
    let root = File::open(node.disk.path()).unwrap();
    fsquota::set_limits(&root, record.project, Limits { bytes: Some(Bytes::GIB), inodes: None }).unwrap();
    drop(root);
    let node = node.restarted();
    assert_eq!(node.limits(record.project).bytes, Some(SIZE));
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_no_trace() {
    let node = Node::new();
    let (first, second) = (id("pvc-1"), id("pvc-2"));
    let free = node.store.space().unwrap().free();
    let inodes = Bytes::new(128 * 512);
    let all = Bytes::new((free.get() - inodes.get()) / 4096 * 4096);
    node.made(&first, all);
    let refused = node.store.provision(&second, &request(&second, SIZE)).unwrap_err();
    assert!(matches!(refused, Error::Full { wanted, free, .. } if wanted > SIZE && free < Bytes::new(4096)));
    assert_eq!(node.traces(&second), [""; 0]);

    let node = node.restarted(); // promises are on the disk, not in memory
    assert!(matches!(node.store.provision(&second, &request(&second, SIZE)), Err(Error::Full { .. })));
    node.store.retire(&first).unwrap();
    assert!(matches!(node.store.provision(&second, &request(&second, SIZE)), Err(Error::Full { .. })));
    node.store.discard(&first).unwrap();
    node.made(&second, SIZE);
}

#[test]
fn a_deleted_volume_leaves_nothing_behind() {
    let node = Node::new();
    let id = id("pvc-1");
    let record = node.made(&id, SIZE);
    fs::create_dir_all(node.path("live", &id).join("a/b/c")).unwrap();
    fs::write(node.path("live", &id).join("a/b/secret"), b"x").unwrap();
    symlink("/", node.path("live", &id).join("a/link")).unwrap();

    assert!(matches!(node.store.discard(&id), Err(Error::Refused { source: Refusal::NotRetired, .. })));
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
fn the_next_volume_of_the_same_name_is_empty_and_has_another_project() {
    let node = Node::new();
    let id = id("pvc-1");
    let former = node.made(&id, SIZE);
    fs::write(node.path("live", &id).join("secret"), b"x").unwrap();
    node.store.retire(&id).unwrap();
    node.store.discard(&id).unwrap();
    let record = node.made(&id, SIZE);
    assert_ne!(record.project, former.project);
    assert!(node.store.open_volume(&id).unwrap().is_empty().unwrap());
}

#[test]
fn whatever_a_tenant_builds_can_be_removed() {
    let node = Node::new();
    let id = id("pvc-1");
    node.made(&id, SIZE);
    let mut dir = node.store.open_volume(&id).unwrap();
    let name = dir::Name::try_from("d").unwrap();
    for _ in 0..100 {
        dir = dir.create_dir(&name, dir::Mode::S_IRWXU).unwrap();
    }
    // Who owns a directory may give it another project: it cannot be moved within the volume then.
    let other = ProjectId::new(4_000_000).unwrap();
    dir.create_dir(&name, dir::Mode::S_IRWXU).unwrap();
    let stray = File::open(node.path("live", &id).join("d/d/d")).unwrap();
    drop(dir);
    chproj(&stray, other);
    drop(stray);
    node.store.retire(&id).unwrap();
    node.store.discard(&id).unwrap();
    assert_eq!(node.traces(&id), [""; 0]);
    assert!(fs::read_dir(node.disk.path().join("trash")).unwrap().next().is_none());
}

/// `struct fsxattr`, include/uapi/linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct FsXattr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}
const _: () = assert!(size_of::<FsXattr>() == 28);
nix::ioctl_read!(fs_ioc_fsgetxattr, b'X', 31, FsXattr);
nix::ioctl_write_ptr!(fs_ioc_fssetxattr, b'X', 32, FsXattr);

/// Another project for the directory and the 30 levels below, as its owner could do with `xfs_quota`.
fn chproj(top: &File, project: ProjectId) {
    let mut level = Dir::from(top.as_fd().try_clone_to_owned().unwrap());
    for _ in 0..30 {
        let mut attributes = FsXattr::default();
        // SAFETY: `level` is open during the calls. The first writes one `struct fsxattr` through the pointer, the
        // second reads one; neither keeps it. Every bit pattern of it is valid.
        unsafe {
            fs_ioc_fsgetxattr(level.as_fd().as_raw_fd(), &raw mut attributes).unwrap();
            attributes.projid = project.get();
            fs_ioc_fssetxattr(level.as_fd().as_raw_fd(), &raw const attributes).unwrap();
        }
        level = level.open_dir(&dir::Name::try_from("d").unwrap()).unwrap();
    }
}

#[test]
fn data_of_a_mount_in_the_volume_is_not_removed() {
    let node = Node::new();
    let id = id("pvc-1");
    node.made(&id, SIZE);
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
    umount(&moved).unwrap();
    node.store.discard(&id).unwrap();
    assert_eq!(node.traces(&id), [""; 0]);
}

#[test]
fn limits_stay_as_long_as_a_deleted_file_is_open() {
    let node = Node::new();
    let id = id("pvc-1");
    let record = node.made(&id, SIZE);
    let open = File::create(node.path("live", &id).join("open")).unwrap();
    node.store.retire(&id).unwrap();
    let refused = node.store.discard(&id).unwrap_err();
    assert!(matches!(refused, Error::Act { source: ActError::Clear(_), .. }), "{refused:?}");
    assert_eq!(node.limits(record.project).bytes, Some(SIZE));
    drop(open);
    node.store.discard(&id).unwrap();
    assert_eq!(node.traces(&id), [""; 0]);
}

/// The node went down while limits could not be cleared: nothing in the trash named the volume any more.
#[test]
fn a_removal_that_stopped_after_the_data_is_found_again_and_finished() {
    let node = Node::new();
    let (id, other) = (id("pvc-1"), id("pvc-2"));
    let record = node.made(&id, SIZE);
    node.made(&other, SIZE);
    let held = File::create(node.path("live", &id).join("held")).unwrap();
    held.set_len(1 << 20).unwrap();
    node.store.retire(&id).unwrap();
    assert!(node.store.discard(&id).is_err());
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

#[test]
fn a_directory_without_a_record_is_neither_adopted_nor_emptied() {
    let node = Node::new();
    let id = id("pvc-1");
    fs::create_dir(node.path("live", &id)).unwrap();
    fs::write(node.path("live", &id).join("kept"), b"x").unwrap();
    let foreign = |result: Result<Ensured<()>, Error>| {
        assert!(matches!(result, Err(Error::Refused { source: Refusal::Foreign, .. })), "{result:?}");
    };
    foreign(node.store.provision(&id, &request(&id, SIZE)).map(|made| made.map(drop)));
    foreign(node.store.retire(&id));
    foreign(node.store.undo(&id));
    assert!(node.path("live", &id).join("kept").exists());
    assert_eq!(node.store.space().unwrap().promised, Bytes::ZERO);
}

#[test]
fn a_damaged_record_keeps_its_volume_and_the_others_work() {
    let node = Node::new();
    let (damaged, well) = (id("pvc-1"), id("pvc-2"));
    node.made(&damaged, SIZE);
    fs::write(node.path("records", &damaged), b"{").unwrap();
    let node = node.restarted();
    assert!(matches!(node.store.retire(&damaged), Err(Error::Look { .. })));
    assert!(node.store.open_volume(&damaged).is_ok());
    node.made(&well, SIZE);
    assert_eq!(node.store.records().unwrap().into_keys().collect::<Vec<_>>(), [well]);
}

#[test]
fn only_what_was_never_announced_is_undone() {
    let node = Node::new();
    let (staged, announced) = (id("pvc-1"), id("pvc-2"));
    node.store.provision(&staged, &request(&staged, SIZE)).unwrap();
    node.made(&announced, SIZE);
    assert_eq!(node.store.undo(&staged).unwrap(), Ensured::Created(()));
    assert_eq!(node.traces(&staged), [""; 0]);
    assert!(matches!(node.store.undo(&announced), Err(Error::Announced { .. })));
    assert_eq!(node.traces(&announced), ["records", "live"]);
}

#[test]
fn announcing_a_volume_that_is_gone_does_not_bring_its_record_back() {
    let node = Node::new();
    let id = id("pvc-1");
    assert_eq!(node.store.announce(&id).unwrap(), Ensured::Unchanged(()));
    assert_eq!(node.traces(&id), [""; 0]);
}

#[test]
fn volumes_are_made_in_parallel_each_with_its_own_project() {
    let node = Node::new();
    let made: Vec<Record> = thread::scope(|scope| {
        let store = &node.store;
        // Two threads for each volume: one makes it, the other finds it made.
        let threads: Vec<_> = (0..16)
            .map(|number| {
                scope.spawn(move || {
                    let id = id(&format!("pvc-{}", number / 2));
                    store.provision(&id, &request(&id, Bytes::new(1 << 20)))
                })
            })
            .collect();
        threads
            .into_iter()
            .filter_map(|thread| match thread.join().unwrap().unwrap() {
                Ensured::Created(record) => Some(record),
                Ensured::Unchanged(_) => None,
            })
            .collect()
    });
    assert_eq!(made.len(), 8);
    let projects: std::collections::BTreeSet<_> = made.iter().map(|record| record.project).collect();
    assert_eq!(projects.len(), 8);
    let promised: Bytes = made.iter().map(Record::promised).sum();
    assert_eq!(node.store.space().unwrap().promised, promised);
}

#[test]
fn a_file_cannot_be_renamed_into_another_volume() {
    let node = Node::new();
    let (from, to) = (id("pvc-1"), id("pvc-2"));
    node.made(&from, SIZE);
    node.made(&to, SIZE);
    fs::write(node.path("live", &from).join("file"), b"x").unwrap();
    let refused = fs::rename(node.path("live", &from).join("file"), node.path("live", &to).join("file"));
    assert_eq!(refused.map_err(|error: io::Error| error.raw_os_error()), Err(Some(Errno::EXDEV as i32)));
}
