//! A process is killed before each system call of an operation that may change a file. Whatever state remains, the
//! next process starts, finishes the work, and finds nothing more to do.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use dir::{Ensured, Name, OFlag};
use fsquota::Limits;
use ktest_support::XfsDisk;
use ktest_support::process::{Call, killed_before};
use nix::libc;
use nix::sys::stat::fstat;
use units::{Bytes, Inodes};
use volume::{Access, Allocation, Error, Mode, Record, Request, State, Store, Strays, Volumes as _};

use crate::node::{Node, id, settings, sized};

const SIZE: Bytes = Bytes::new(1 << 20);
const LARGER: Bytes = Bytes::new(3 << 20);

const FILES: Mode = Mode::Filesystem { inodes: Inodes::new(64) };
pub const THICK: Mode = Mode::Block { allocation: Allocation::Thick };
pub const THIN: Mode = Mode::Block { allocation: Allocation::Thin };

/// Calls that change no file, in addition to those that [`Call::may_change_files`] excludes. A sync is one of them: the
/// page cache outlives the process, so a kill before a sync leaves the same files as a kill after it. A call that
/// starts a thread is not: the threads of a clone of files change files.
const UNCHANGED: [i64; 19] = [
    libc::SYS_clock_gettime,
    libc::SYS_fadvise64,
    libc::SYS_fdatasync,
    libc::SYS_fgetxattr,
    libc::SYS_flistxattr,
    libc::SYS_fsync,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_lgetxattr,
    libc::SYS_llistxattr,
    libc::SYS_mremap,
    libc::SYS_readlinkat,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_syncfs,
];

/// [`Call::may_change_files`] without further calls that change no file. There are many volumes, each killed a step
/// later than the one before.
pub fn may_change_files(call: &Call<'_>) -> bool {
    const GET_FLAGS: u64 = 0x801c_581f; // FS_IOC_FSGETXATTR
    const MAP: u64 = 0xc020_660b; // FS_IOC_FIEMAP
    const GET_HANDLE: u64 = 0xc038_586a; // XFS_IOC_FD_TO_HANDLE
    const OPEN_HANDLE: u64 = 0xc038_586b; // XFS_IOC_OPEN_BY_HANDLE
    const SET_LIMITS: u64 = 0x5804; // Q_XSETQLIM
    let [_, command, flags, ..] = call.arguments();
    match call.number() {
        libc::SYS_ioctl => ![GET_FLAGS, MAP, GET_HANDLE, OPEN_HANDLE].contains(&command),
        // QCMD: the lowest byte is the kind of quota.
        libc::SYS_quotactl_fd => command >> 8 == SET_LIMITS,
        // The standard library reads the number of CPUs from files.
        libc::SYS_openat => flags & u64::from((libc::O_CREAT | libc::O_TRUNC).cast_unsigned()) != 0,
        number => !UNCHANGED.contains(&number) && call.may_change_files(),
    }
}

pub fn open(disk: &Path) -> Store {
    Store::open(&Node::volumes(disk), settings()).expect("the store starts, whatever was left")
}

/// Runs one volume at a time, in each of the modes. `before` prepares the volume. `work` is killed a step later each
/// time, until it ends before that step. `after` checks and removes the volume in a new process.
pub fn killed_everywhere(
    modes: &[Mode],
    before: impl Fn(&Store, &Request),
    work: impl Fn(&Store, &Request),
    after: impl Fn(&Store, &Request),
) {
    killed_at(Steps { first: 0, stride: 1 }, modes, before, work, after);
}

/// Steps at which a long operation is killed: every `stride` steps from `first` on. In each following mode, the first
/// step is one later.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    pub first: usize,
    pub stride: usize,
}

/// [`killed_everywhere`] at a part of the steps.
pub fn killed_at(
    steps: Steps,
    modes: &[Mode],
    before: impl Fn(&Store, &Request),
    work: impl Fn(&Store, &Request),
    after: impl Fn(&Store, &Request),
) {
    killed_at_calls(may_change_files, steps, modes, (|_, _| {}, |_, _| {}), before, work, after);
}

/// Creates and deletes what all runs of a mode have, before the first run and after the last one.
pub type Shared = (fn(&Store, &Request), fn(&Store, &Request));

/// One volume, [`source_of`] all requests of a mode.
pub const SOURCE: Shared =
    (|store, request| drop(made(store, &source_of(request))), |store, request| deleted(store, &source_of(request)));

pub fn source_of(request: &Request) -> Request {
    sized("pvc-source", request.mode, request.size)
}

/// [`killed_at`], where only these calls are steps.
pub fn killed_at_calls(
    counted: fn(&Call<'_>) -> bool,
    Steps { first, stride }: Steps,
    modes: &[Mode],
    (create, delete): Shared,
    before: impl Fn(&Store, &Request),
    work: impl Fn(&Store, &Request),
    after: impl Fn(&Store, &Request),
) {
    let disk = XfsDisk::with_project_quota();
    let (mut store, mut runs) = (open(disk.path()), 0);
    for (number, &mode) in modes.iter().enumerate() {
        let (mut step, mut killed) = ((first + number) % stride, 0);
        let all = sized("pvc", mode, SIZE);
        create(&store, &all);
        let shared = store.records().unwrap().readable;
        let reserved: Bytes = shared.values().map(Record::reserved).sum();
        loop {
            let request = sized(&format!("pvc-{runs}"), mode, SIZE);
            before(&store, &request);
            // The store's files are open in both processes. This process does not use them meanwhile.
            let reached = killed_before(step, counted, || work(&store, &request));
            drop(store);
            // This store also prepares the next volume.
            store = open(disk.path());
            assert_eq!(store.strays().unwrap(), Strays::default(), "{mode} killed before call {step}");
            assert_eq!(fs::read_dir(disk.path().join("volumes/anchors")).unwrap().count(), 0, "{mode}, call {step}");
            after(&store, &request);
            assert_eq!(store.strays().unwrap(), Strays::default(), "{mode} killed before call {step}");
            assert_eq!(store.space().unwrap().reserved, reserved, "{mode} killed before call {step}");
            assert!(store.records().unwrap().readable.keys().eq(shared.keys()), "{mode} killed before call {step}");
            runs += 1;
            if !reached {
                break;
            }
            (step, killed) = (step + stride, killed + 1);
        }
        delete(&store, &all);
        // A series without kills would show nothing. If all calls are steps, each operation has at least three.
        assert!(killed > 1 && step > 2, "{mode} killed {killed} times, only {step} system calls");
    }
    println!("{runs} runs");
}

pub fn made(store: &Store, request: &Request) -> Record {
    let id = id(&request.claim.name);
    store.provision(&id, request).unwrap();
    store.announce(&id).unwrap();
    let record = store.records().unwrap().readable.remove(&id).unwrap();
    // One more call changes nothing.
    assert_eq!(store.provision(&id, request).unwrap(), Ensured::Unchanged(record.clone()));
    assert_eq!(record.size, request.size);
    is_whole(store, &record);
    record
}

/// Checks that the kernel and the image match the record, as after a complete run.
fn is_whole(store: &Store, record: &Record) {
    let opened = store.open_volume(&id(&record.claim.name)).unwrap();
    let limits = match record.mode {
        // One inode for each 16 KiB, as `FILES` has for `SIZE`.
        Mode::Filesystem { .. } => {
            Limits { bytes: Some(record.size), inodes: Some(Inodes::new(record.size.div_ceil::<{ 16 << 10 }>())) }
        }
        // See "Reserved space" in the README. The bytes include the map of the extents and 2.5 MiB; the inodes are the
        // directory and the image.
        Mode::Block { .. } | Mode::Snapshot { .. } | Mode::SnapshotTree { .. } => {
            let map = Bytes::new(record.size.div_ceil::<4096>().div_ceil(124) << 12);
            let bytes = record.size.saturating_add(map).saturating_add(Bytes::new(5 << 19));
            Limits { bytes: Some(bytes), inodes: Some(Inodes::new(2)) }
        }
    };
    assert_eq!(opened.quota().unwrap().limits, limits, "{record:?}");
    if let Mode::Block { allocation } = record.mode {
        let image = File::from(opened.image(Access::ReadOnly).unwrap()).metadata().unwrap();
        let allocated = match allocation {
            Allocation::Thick => record.size,
            Allocation::Thin => Bytes::ZERO,
        };
        assert_eq!((image.len(), image.blocks() * 512), (record.size.get(), allocated.get()), "{record:?}");
    }
}

pub fn deleted(store: &Store, request: &Request) {
    let id = id(&request.claim.name);
    store.retire(&id).unwrap();
    store.discard(&id).unwrap();
    assert_eq!(store.retire(&id).unwrap(), Ensured::Unchanged(()));
    assert_eq!(store.discard(&id).unwrap(), Ensured::Unchanged(()));
}

#[test]
fn a_killed_provision_is_finished_by_the_next() {
    killed_everywhere(
        &[FILES, THICK, THIN],
        |_, _| {},
        |store, request| drop(made(store, request)),
        |store, request| {
            made(store, request);
            deleted(store, request);
        },
    );
}

/// Regression: an administrator assigned the project elsewhere after the record was written. The store removed the
/// record before it wrote the one with another project.
#[test]
fn a_record_is_there_wherever_its_replacement_is_killed() {
    let disk = XfsDisk::with_project_quota();
    let mut step = 0;
    loop {
        let request = sized(&format!("pvc-{step}"), FILES, SIZE);
        let id = id(&request.claim.name);
        let store = open(disk.path());
        let is_assigned = Cell::new(false);
        let counted = |call: &Call<'_>| {
            if call.number() == libc::SYS_mkdirat && !is_assigned.replace(true) {
                let record = fs::read(disk.path().join("volumes/pending").join(id.as_str())).unwrap();
                let project = Record::parse(&record, State::Staged).unwrap().project;
                let elsewhere = disk.path().join(project.to_string());
                fs::create_dir(&elsewhere).unwrap();
                fsquota::assign(File::open(&elsewhere).unwrap(), project, Limits::for_size(SIZE)).unwrap();
            }
            is_assigned.get() && may_change_files(call)
        };
        let reached = killed_before(step, counted, || drop(made(&store, &request)));
        drop(store);
        let store = open(disk.path());
        assert_eq!(store.strays().unwrap().directories, [], "killed before call {step}");
        made(&store, &request);
        deleted(&store, &request);
        step += 1;
        if !reached {
            break;
        }
    }
    assert!(step > 8, "only {step} system calls");
}

#[test]
fn a_killed_provision_is_undone_if_the_claim_is_gone() {
    killed_everywhere(
        &[FILES, THICK],
        |_, _| {},
        |store, request| drop(store.provision(&id(&request.claim.name), request).unwrap()),
        |store, request| {
            let id = id(&request.claim.name);
            store.undo(&id).unwrap();
            assert_eq!(store.undo(&id).unwrap(), Ensured::Unchanged(()));
        },
    );
}

#[test]
fn a_killed_expansion_is_finished_by_the_next() {
    killed_everywhere(
        &[FILES, THICK, THIN],
        |store, request| drop(made(store, request)),
        |store, request| drop(store.expand(&id(&request.claim.name), LARGER).unwrap()),
        |store, request| {
            let id = id(&request.claim.name);
            let record = store.expand(&id, LARGER).unwrap().into_inner();
            assert_eq!(record.size, LARGER);
            is_whole(store, &record);
            assert_eq!(store.expand(&id, LARGER).unwrap(), Ensured::Unchanged(record.clone()));
            assert_eq!(store.space().unwrap().reserved, record.reserved());
            deleted(store, request);
        },
    );
}

#[test]
fn a_killed_deletion_is_finished_by_the_next() {
    killed_everywhere(
        &[FILES, THICK],
        |store, request| drop(made(store, request)),
        deleted,
        |store, request| {
            let known: BTreeSet<_> = store.records().unwrap().readable.into_keys().collect();
            assert!(store.retired().unwrap().iter().all(|id| known.contains(id)));
            deleted(store, request);
        },
    );
}

/// The removal lowers the limits and changes the mode before it removes anything.
#[test]
fn a_volume_whose_removal_was_killed_is_restored_whole_if_it_is_still_there() {
    let restored = Cell::new(0);
    killed_everywhere(
        &[FILES],
        |store, request| {
            made(store, request);
            let id = id(&request.claim.name);
            let (file, create) = (Name::try_from("file").unwrap(), OFlag::O_CREAT | OFlag::O_WRONLY);
            drop(store.open_volume(&id).unwrap().dir().open_file(&file, create, dir::Mode::S_IRWXU).unwrap());
            store.retire(&id).unwrap();
        },
        |store, request| assert_eq!(store.discard(&id(&request.claim.name)).unwrap(), Ensured::Created(())),
        |store, request| {
            let id = id(&request.claim.name);
            if store.restore(&id).unwrap() == Ensured::Created(()) {
                restored.set(restored.get() + 1);
                made(store, request);
                let opened = store.open_volume(&id).unwrap();
                assert_eq!(fstat(opened.dir()).unwrap().st_mode & 0o7777, 0o777);
            }
            deleted(store, request);
        },
    );
    // At least the kills before the changes of the limits, the owner, the mode, the file and the directory.
    assert!(restored.get() >= 5, "restored {} times", restored.get());
}

#[test]
fn a_killed_restoration_leaves_the_volume_in_the_trash_or_in_use() {
    killed_everywhere(
        &[FILES],
        |store, request| {
            made(store, request);
            store.retire(&id(&request.claim.name)).unwrap();
        },
        |store, request| {
            let id = id(&request.claim.name);
            store.restore(&id).unwrap();
            store.retire(&id).unwrap();
            store.restore(&id).unwrap();
        },
        |store, request| {
            let id = id(&request.claim.name);
            store.restore(&id).unwrap();
            made(store, request);
            assert!(matches!(store.discard(&id), Err(Error::Refused { .. })));
            deleted(store, request);
        },
    );
}
