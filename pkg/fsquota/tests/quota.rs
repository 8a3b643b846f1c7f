//! What the kernel makes of our calls: project quotas on a real XFS. Needs root and a scratch disk.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;

use fsquota::{
    AllocateError, Allocator, Ensured, FsError, GetError, LimitError, Limits, ProjectId, RemoveError, SetError, Usage,
};
use ktest_support::{Tmpfs, XfsDisk};
use nix::libc::{ENOSPC, EXDEV, O_PATH};
use nix::sys::statvfs::statvfs;
use nix::unistd::{Uid, setfsuid};
use proptest::prelude::*;
use units::{Bytes, Inodes};

/// An XFS with project quotas and a counter of IDs, as on a node.
struct Volumes {
    root: File,
    ids: Allocator,
    // Last: it can only be unmounted when nothing on it is open.
    disk: XfsDisk,
}

impl Volumes {
    fn new() -> Self {
        let disk = XfsDisk::with_project_quota();
        let root = File::open(disk.path()).unwrap();
        let ids = Allocator::open(&root).unwrap();
        Self { root, ids, disk }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.disk.path().join(name)
    }

    fn dir(&self, name: &str) -> File {
        fs::create_dir(self.path(name)).unwrap();
        File::open(self.path(name)).unwrap()
    }

    fn volume(&self, name: &str, limits: Limits) -> (File, ProjectId) {
        let dir = self.dir(name);
        let id = fsquota::set(&dir, limits, &self.ids).unwrap().into_inner();
        (dir, id)
    }

    fn reported(&self) -> Vec<ProjectId> {
        fsquota::report(&self.root).unwrap().map(|quota| quota.unwrap().id).collect()
    }
}

const SIZE: Bytes = Bytes::new(16 << 20);

fn size(bytes: Bytes) -> Limits {
    Limits { bytes: Some(bytes), inodes: None }
}

fn both(bytes: Bytes, inodes: u64) -> Limits {
    Limits { bytes: Some(bytes), inodes: Some(Inodes::new(inodes)) }
}

fn mib(count: u64) -> Bytes {
    Bytes::MIB.checked_mul(count).unwrap()
}

/// Writes until it fails: how much was taken, and why no more was.
fn fill(file: &mut File) -> (Bytes, io::Error) {
    let block = [0x5a; 64 << 10];
    let mut written = 0;
    loop {
        match file.write(&block) {
            Ok(more) => written += more as u64,
            Err(error) => return (Bytes::new(written), error),
        }
    }
}

fn write(path: &Path, bytes: Bytes) {
    fs::write(path, vec![0x5a; usize::try_from(bytes.get()).unwrap()]).unwrap();
}

#[test]
fn limits_are_read_back_as_they_were_set() {
    let volumes = Volumes::new();
    let (dir, id) = volumes.volume("a", both(SIZE, 100));
    let quota = fsquota::get(&dir).unwrap();
    assert_eq!((quota.id, quota.limits), (id, both(SIZE, 100)));
    assert_eq!(quota.used, Usage { bytes: Bytes::ZERO, inodes: Inodes::new(1) });
    assert_eq!(fsquota::project(&dir), Ok(Some(id)));
    assert_eq!(fsquota::quota(&volumes.root, id), Ok(quota));
}

#[test]
fn a_size_is_rounded_up_to_the_file_systems_block() {
    let volumes = Volumes::new();
    let id = volumes.ids.next().unwrap();
    proptest!(ProptestConfig::with_cases(64), |(bytes in 1_u64..1 << 50, inodes in 1_u64..1 << 50)| {
        fsquota::set_limits(&volumes.root, id, both(Bytes::new(bytes), inodes)).unwrap();
        let limits = fsquota::quota(&volumes.root, id).unwrap().limits;
        prop_assert_eq!(limits.bytes, Bytes::new(bytes).round_up::<4096>());
        prop_assert_eq!(limits.inodes, Some(Inodes::new(inodes)));
    });
}

#[test]
fn writing_past_the_limit_ends_with_enospc_at_the_promised_size() {
    let volumes = Volumes::new();
    let (dir, _) = volumes.volume("a", size(SIZE));
    let (written, error) = fill(&mut File::create(volumes.path("a/data")).unwrap());
    assert_eq!(error.raw_os_error(), Some(ENOSPC));
    assert_eq!(written, SIZE);
    let quota = fsquota::get(&dir).unwrap();
    assert_eq!((quota.used.bytes, quota.available_bytes()), (SIZE, Some(Bytes::ZERO)));
}

#[test]
fn making_files_past_the_inode_limit_ends_with_enospc() {
    let volumes = Volumes::new();
    let (dir, _) = volumes.volume("a", both(SIZE, 8));
    let made = (0..100).map(|n| File::create(volumes.path(&format!("a/{n}")))).take_while(Result::is_ok).count();
    let error = File::create(volumes.path("a/more")).unwrap_err();
    // The directory itself is the eighth.
    assert_eq!((made, error.raw_os_error()), (7, Some(ENOSPC)));
    assert_eq!(fsquota::get(&dir).unwrap().available_inodes(), Some(Inodes::ZERO));
}

#[test]
fn a_limit_that_is_not_named_stays() {
    let volumes = Volumes::new();
    let (dir, id) = volumes.volume("a", both(SIZE, 100));
    let again = fsquota::set(&dir, size(mib(32)), &volumes.ids).unwrap();
    assert_eq!(again, Ensured::Unchanged(id));
    assert_eq!(fsquota::get(&dir).unwrap().limits, both(mib(32), 100));
}

#[test]
fn a_limit_can_be_raised_while_a_program_writes() {
    let volumes = Volumes::new();
    let (dir, _) = volumes.volume("a", size(SIZE));
    let mut file = File::create(volumes.path("a/data")).unwrap();
    let (before, _) = fill(&mut file);
    fsquota::set(&dir, size(mib(24)), &volumes.ids).unwrap();
    let (more, error) = fill(&mut file);
    assert_eq!((before, more, error.raw_os_error()), (SIZE, mib(8), Some(ENOSPC)));
}

#[test]
fn a_limit_below_what_is_in_use_stops_writes_and_leaves_nothing_available() {
    let volumes = Volumes::new();
    let (dir, id) = volumes.volume("a", size(SIZE));
    let mut file = File::create(volumes.path("a/data")).unwrap();
    file.write_all(&vec![0x5a; 4 << 20]).unwrap();
    fsquota::sync(&dir).unwrap();
    fsquota::set_limits(&volumes.root, id, size(mib(1))).unwrap();
    let (written, error) = fill(&mut file);
    assert_eq!((written, error.raw_os_error()), (Bytes::ZERO, Some(ENOSPC)));
    let quota = fsquota::get(&dir).unwrap();
    assert_eq!((quota.limits.bytes, quota.available_bytes()), (Some(mib(1)), Some(Bytes::ZERO)));
}

#[test]
fn statfs_inside_shows_the_limits() {
    let volumes = Volumes::new();
    let (_dir, _) = volumes.volume("a", both(SIZE, 100));
    write(&volumes.path("a/data"), mib(4));
    let seen = statvfs(&volumes.path("a")).unwrap();
    assert_eq!(seen.blocks() * seen.fragment_size(), SIZE.get());
    assert_eq!(seen.blocks_available() * seen.fragment_size(), mib(12).get());
    assert_eq!(seen.files(), 100);
}

#[test]
fn what_is_made_inside_belongs_to_the_project() {
    let volumes = Volumes::new();
    let (_dir, id) = volumes.volume("a", size(SIZE));
    fs::create_dir_all(volumes.path("a/b/c")).unwrap();
    let deep = File::open(volumes.path("a/b/c")).unwrap();
    assert_eq!(fsquota::project(&deep), Ok(Some(id)));
}

#[test]
fn a_file_cannot_be_renamed_or_linked_into_another_volume() {
    let volumes = Volumes::new();
    let (_a, _) = volumes.volume("a", size(SIZE));
    let (_b, _) = volumes.volume("b", size(SIZE));
    let (from, to) = (volumes.path("a/data"), volumes.path("b/data"));
    write(&from, mib(1));
    assert_eq!(fs::rename(&from, &to).unwrap_err().raw_os_error(), Some(EXDEV));
    assert_eq!(fs::hard_link(&from, &to).unwrap_err().raw_os_error(), Some(EXDEV));
}

#[test]
fn a_volume_can_be_renamed_between_directories_without_a_project() {
    let volumes = Volumes::new();
    volumes.dir("staged");
    volumes.dir("volumes");
    let (dir, id) = volumes.volume("staged/a", size(SIZE));
    fs::rename(volumes.path("staged/a"), volumes.path("volumes/a")).unwrap();
    assert_eq!(fsquota::get(&dir).unwrap().id, id);
}

#[test]
fn a_reflinked_file_is_charged_in_full() {
    let volumes = Volumes::new();
    let (dir, _) = volumes.volume("a", size(mib(6)));
    write(&volumes.path("a/data"), mib(4));
    fsquota::sync(&dir).unwrap();
    // Copies by reference where it can.
    let error = fs::copy(volumes.path("a/data"), volumes.path("a/copy")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(ENOSPC));
}

#[test]
fn a_removed_project_leaves_neither_id_nor_limits() {
    let volumes = Volumes::new();
    let (dir, id) = volumes.volume("a", both(SIZE, 100));
    assert_eq!(fsquota::remove(&dir), Ok(Some(id)));
    assert_eq!(fsquota::project(&dir), Ok(None));
    assert_eq!(fsquota::get(&dir), Err(GetError::NotFound));
    assert_eq!(fsquota::quota(&volumes.root, id).unwrap().limits, Limits::default());
    assert!(!volumes.reported().contains(&id));
    assert_eq!(fsquota::remove(&dir), Ok(None));
    write(&volumes.path("a/data"), mib(20));
}

#[test]
fn a_project_stays_while_there_is_data_in_its_directory() {
    let volumes = Volumes::new();
    let (dir, _) = volumes.volume("a", both(SIZE, 100));
    write(&volumes.path("a/data"), mib(1));
    assert_eq!(fsquota::remove(&dir), Err(RemoveError::NotEmpty));
    assert_eq!(fsquota::get(&dir).unwrap().limits, both(SIZE, 100));
}

#[test]
fn limits_stand_while_a_deleted_file_is_open() {
    let volumes = Volumes::new();
    let (dir, id) = volumes.volume("a", size(SIZE));
    let mut open = File::create(volumes.path("a/data")).unwrap();
    fs::remove_file(volumes.path("a/data")).unwrap();
    assert!(matches!(fsquota::remove(&dir), Err(RemoveError::InUse { .. })));
    let (written, error) = fill(&mut open);
    assert_eq!((written, error.raw_os_error()), (SIZE, Some(ENOSPC)));
    drop(open);
    assert_eq!(fsquota::remove(&dir), Ok(Some(id)));
}

#[test]
fn limits_go_when_the_directory_was_deleted_first() {
    let volumes = Volumes::new();
    let (dir, id) = volumes.volume("a", both(SIZE, 100));
    assert!(matches!(fsquota::clear(&volumes.root, id), Err(RemoveError::InUse { .. })));
    fs::remove_dir(volumes.path("a")).unwrap();
    drop(dir);
    fsquota::clear(&volumes.root, id).unwrap();
    assert_eq!(fsquota::quota(&volumes.root, id).unwrap().limits, Limits::default());
    fsquota::clear(&volumes.root, id).unwrap();
}

#[test]
fn another_kind_of_file_system_is_told_apart() {
    let tmpfs = Tmpfs::mount();
    let dir = File::open(tmpfs.path()).unwrap();
    let id = ProjectId::new(1).unwrap();
    assert!(matches!(fsquota::assign(&dir, id, size(SIZE)), Err(SetError::Fs(FsError::NotXfs))));
    assert!(matches!(Allocator::open(&dir), Err(AllocateError::Fs(FsError::NotXfs))));
    assert_eq!(fsquota::get(&dir), Err(GetError::Fs(FsError::NotXfs)));
    assert_eq!(fsquota::remove(&dir), Err(RemoveError::Fs(FsError::NotXfs)));
}

#[test]
fn a_file_system_without_quota_is_told_apart() {
    let disk = XfsDisk::without_quota();
    let root = File::open(disk.path()).unwrap();
    let id = ProjectId::new(1).unwrap();
    assert!(matches!(fsquota::assign(&root, id, size(SIZE)), Err(SetError::Fs(FsError::AccountingOff))));
    assert_eq!(fsquota::require(&root), Err(FsError::AccountingOff));
    assert_eq!(fsquota::report(&root).err(), Some(FsError::AccountingOff));
    assert_eq!(fsquota::project(&root), Ok(None));
}

#[test]
fn a_file_is_not_a_directory() {
    let volumes = Volumes::new();
    let file = File::create(volumes.path("file")).unwrap();
    let error = fsquota::set(&file, size(SIZE), &volumes.ids).unwrap_err();
    assert!(matches!(error, SetError::Fs(FsError::NotADirectory)));
}

#[test]
fn a_deleted_directory_is_gone() {
    let volumes = Volumes::new();
    let dir = volumes.dir("a");
    fs::remove_dir(volumes.path("a")).unwrap();
    let error = fsquota::set(&dir, size(SIZE), &volumes.ids).unwrap_err();
    assert!(matches!(error, SetError::Fs(FsError::Gone)));
}

#[test]
fn a_descriptor_that_only_names_the_directory_is_enough() {
    let volumes = Volumes::new();
    volumes.dir("a");
    let named = OpenOptions::new().read(true).custom_flags(O_PATH).open(volumes.path("a")).unwrap();
    let id = fsquota::set(named.as_fd(), size(SIZE), &volumes.ids).unwrap().into_inner();
    assert_eq!(fsquota::get(named.as_fd()).unwrap().id, id);
}

#[test]
fn projects_do_not_nest() {
    let volumes = Volumes::new();
    let (_a, outer) = volumes.volume("a", size(SIZE));
    let inner = volumes.dir("a/inner");
    for refused in [fsquota::set(&inner, size(mib(1)), &volumes.ids), fsquota::assign(&inner, outer, size(mib(1)))] {
        assert!(matches!(refused, Err(SetError::Nested { outer: found }) if found == outer), "{refused:?}");
    }
    assert_eq!(fsquota::remove(&inner), Err(RemoveError::Nested { outer }));
    assert_eq!(fsquota::quota(&volumes.root, outer).unwrap().limits, size(SIZE));
}

#[test]
fn a_directory_with_content_gets_no_project() {
    let volumes = Volumes::new();
    let dir = volumes.dir("a");
    write(&volumes.path("a/data"), Bytes::KIB);
    let before = volumes.reported();
    assert!(matches!(fsquota::set(&dir, size(SIZE), &volumes.ids), Err(SetError::NotEmpty)));
    assert_eq!(fsquota::project(&dir), Ok(None));
    assert_eq!(volumes.reported(), before);
}

#[test]
fn a_directory_gets_no_project_without_a_limit() {
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
fn an_assignment_that_stopped_after_the_limits_is_finished_by_the_next() {
    let volumes = Volumes::new();
    let (dir, id) = (volumes.dir("a"), volumes.ids.next().unwrap());
    fsquota::set_limits(&volumes.root, id, size(mib(1))).unwrap();
    assert_eq!(fsquota::assign(&dir, id, size(SIZE)).unwrap(), Ensured::Created(id));
    assert_eq!(fsquota::assign(&dir, id, size(SIZE)).unwrap(), Ensured::Unchanged(id));
    assert_eq!(fsquota::get(&dir).unwrap().limits, size(SIZE));
}

#[test]
fn an_assignment_that_fails_leaves_no_limits_behind() {
    let volumes = Volumes::new();
    let (dir, id) = (volumes.dir("a"), volumes.ids.next().unwrap());
    // Without the file system's capabilities the limits can be set, and the directory of another
    // user cannot be changed. They are the thread's.
    let refused = thread::scope(|scope| {
        let stranger = scope.spawn(|| {
            setfsuid(Uid::from_raw(1000));
            fsquota::assign(&dir, id, size(SIZE))
        });
        stranger.join().unwrap()
    });
    let Err(SetError::Fs(FsError::System { operation, .. })) = refused else { panic!("{refused:?}") };
    assert_eq!(operation, "FS_IOC_FSSETXATTR");
    assert_eq!(fsquota::quota(&volumes.root, id).unwrap().limits, Limits::default());
    assert_eq!(fsquota::assign(&dir, id, size(SIZE)).unwrap(), Ensured::Created(id));
}

#[test]
fn a_directory_keeps_its_project_and_a_project_its_directory() {
    let volumes = Volumes::new();
    let (a, id) = volumes.volume("a", size(SIZE));
    let other = volumes.ids.next().unwrap();
    let refused = fsquota::assign(&a, other, size(SIZE)).unwrap_err();
    assert!(matches!(refused, SetError::OtherProject { found, wanted } if (found, wanted) == (id, other)));
    let refused = fsquota::assign(volumes.dir("b"), id, size(mib(1))).unwrap_err();
    assert!(matches!(refused, SetError::InUse { id: used, .. } if used == id));
    assert_eq!(fsquota::get(&a).unwrap().limits, size(SIZE));
}

#[test]
fn a_report_has_every_project_once() {
    let volumes = Volumes::new();
    let made: Vec<ProjectId> = (0..50).map(|n| volumes.volume(&format!("v{n}"), size(SIZE)).1).collect();
    assert_eq!(volumes.reported(), made);
}

#[test]
fn threads_and_processes_never_get_the_same_id() {
    let volumes = Volumes::new();
    // A second counter over the same file is what another process has.
    let other = Allocator::open(&volumes.root).unwrap();
    let take = |ids: &Allocator| (0..100).map(|_| ids.next().unwrap()).collect::<Vec<_>>();
    let taken: Vec<ProjectId> = thread::scope(|scope| {
        let threads: Vec<_> = [&volumes.ids, &volumes.ids, &other].map(|ids| scope.spawn(move || take(ids))).into();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), 300);
}

#[test]
fn an_id_in_use_is_passed_over_when_the_counter_was_lost() {
    let volumes = Volumes::new();
    let used: BTreeSet<_> = (0..5).map(|n| volumes.volume(&format!("v{n}"), size(SIZE)).1).collect();
    fs::remove_file(volumes.path("next-project-id")).unwrap();
    let ids = Allocator::open(&volumes.root).unwrap();
    assert!((0..100).all(|_| !used.contains(&ids.next().unwrap())));
}

#[test]
fn an_id_is_not_given_again_after_its_project_was_removed() {
    let volumes = Volumes::new();
    let (dir, id) = volumes.volume("a", size(SIZE));
    fsquota::remove(&dir).unwrap();
    let later = Allocator::open(&volumes.root).unwrap();
    assert!(later.next().unwrap() > id);
}

#[test]
fn a_damaged_counter_stops_the_allocation() {
    let volumes = Volumes::new();
    fs::write(volumes.path("next-project-id"), "many\n").unwrap();
    assert!(matches!(volumes.ids.next(), Err(AllocateError::Damaged { .. })));
}
