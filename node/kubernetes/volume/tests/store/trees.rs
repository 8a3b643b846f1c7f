//! Snapshots of filesystem volumes, and volumes that are restored from them.

use std::error::Error as StdError;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use dir::Ensured;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::statvfs;
use nix::unistd::syncfs;
use reflink::for_each_shared;
use units::{Bytes, Inodes};
use volume::{
    ActError, Allocation, Copying, Drifted, Error, FrozenPods, Mode, PodFreezer, Record, Request, Settings,
    SourceError, State, Store, Taken, VolumeId, Volumes as _,
};

use crate::cgroup::Pod;
use crate::cloning::{FULL, LARGER};
use crate::node::{
    CAPABILITY, INODES, NoPods, Node, SIZE, copied, disk, files, id, only_byte, settings, short_passes, sized,
    without_pods,
};
use crate::snapshots::{snapshot_of, taken};
use crate::sys::{overwrite_mapped, unwritten_pages};

const SMALL: usize = 40;

/// Creates a volume that has no space left, with a large file, small ones, a hard link, attributes and a hole.
pub fn full(node: &Node, size: Bytes) -> (VolumeId, Record, PathBuf) {
    let (source, record) = node.made(&sized("pvc-source", Mode::Filesystem { inodes: INODES }, size));
    let top = node.path("live", &source);
    fs::create_dir(top.join("small")).unwrap();
    let hole = File::create(top.join("hole")).unwrap();
    hole.write_all_at(&[1; 4096], 1 << 20).unwrap();
    rustix::fs::fsetxattr(&hole, "security.capability", &CAPABILITY, rustix::fs::XattrFlags::empty()).unwrap();
    overwrite_small(&top, 1);
    fs::hard_link(top.join("small/0"), top.join("link")).unwrap();
    rustix::fs::setxattr(top.join("link"), "user.name", b"value", rustix::fs::XattrFlags::empty()).unwrap();
    let mut large = File::create(top.join("large")).unwrap();
    let filled = loop {
        if let Err(error) = large.write_all(&[1; 4096]) {
            break error;
        }
    };
    assert_eq!(filled.raw_os_error(), Some(Errno::ENOSPC as i32));
    syncfs(&large).unwrap();
    (source, record, top)
}

fn overwrite_small(top: &Path, byte: u8) {
    for number in 0..SMALL {
        let path = top.join("small").join(number.to_string());
        let file = File::options().write(true).create(true).truncate(false).open(path).unwrap();
        file.write_all_at(&[byte; 8192], 0).unwrap();
    }
}

/// Overwrites all files: no file is synced before the last one is written.
pub fn overwrite(top: &Path, byte: u8) {
    overwrite_small(top, byte);
    let large = File::options().write(true).open(top.join("large")).unwrap();
    let size = large.metadata().unwrap().len();
    large.write_all_at(&vec![byte; size as usize], 0).unwrap();
    large.sync_all().unwrap();
    syncfs(&large).unwrap();
}

pub fn has(top: &Path, byte: u8) {
    for name in ["large", "small/0", "small/39"] {
        let content = fs::read(top.join(name)).unwrap();
        assert_eq!(only_byte(&content), Some(byte), "{name} in {}", top.display());
    }
}

pub fn shared(top: &Path) -> Bytes {
    let mut sum = Bytes::ZERO;
    let visited = for_each_shared(File::open(top).unwrap(), |_, extent| {
        sum = sum.saturating_add(extent.length);
        std::ops::ControlFlow::<()>::Continue(())
    });
    assert!(visited.unwrap().is_continue());
    sum
}

fn tree_of(snapshot: &Record) -> SystemTime {
    let Mode::SnapshotTree { taken, inodes: INODES, .. } = snapshot.mode else { panic!("{snapshot:?}") };
    taken
}

/// Regression: a pass that frees no inode ended the call, and the next one began after up to five minutes. The names of
/// one file kept a deleted snapshot for days.
#[test]
fn a_snapshot_of_one_file_with_many_names_is_removed_by_one_call() {
    let node = Node::with(short_passes());
    without_pods(&node.store);
    let (source, _) = node.made(&files("pvc-source"));
    let (top, snapshot) = (node.path("live", &source), id("snapshot-1"));
    fs::write(top.join("file"), [1; 4096]).unwrap();
    // More names than one pass removes.
    for number in 0..300 {
        fs::hard_link(top.join("file"), top.join(number.to_string())).unwrap();
    }
    taken(&node, &source, "snapshot-1");
    assert_eq!(node.store.remove_snapshot(&snapshot).unwrap(), Ensured::Created(()));
    assert_eq!(node.traces(&snapshot), [""; 0]);
}

/// Regression: a call removed a part of what an earlier one had undone, ended with an error, and was repeated after up
/// to five minutes.
#[test]
fn an_undone_clone_of_many_files_is_created_again_by_one_call() {
    let node = Node::with(short_passes());
    without_pods(&node.store);
    let (source, _) = node.made(&sized("pvc-source", Mode::Filesystem { inodes: Inodes::new(4096) }, SIZE));
    let (top, clone) = (node.path("live", &source), id("pvc-clone"));
    // More files than one pass removes.
    (0..300).for_each(|number| drop(File::create(top.join(number.to_string())).unwrap()));
    fs::write(top.join("large"), vec![1; 4 << 20]).unwrap();
    let want = sized("pvc-clone", Mode::Filesystem { inodes: Inodes::new(4096) }, SIZE);
    let want = Request { source: Some(source), ..want };
    let begin = || {
        let begun = node.store.provision(&clone, &want);
        assert!(matches!(begun, Err(Error::Copying { .. })), "{begun:?}");
    };
    begin();
    // The state after a kill within the removal.
    fs::rename(node.path("staging", &clone), node.path("trash", &clone)).unwrap();
    begin();
    assert!(node.path("staging", &clone).join("299").exists());
}

#[test]
fn a_full_volume_is_overwritten_whole_after_a_snapshot_of_its_files() {
    let node = Node::with(Settings { pass: Duration::ZERO, ..settings() });
    without_pods(&node.store);
    let (source, from, top) = full(&node, FULL);
    let (before, snapshot) = (SystemTime::now(), id("snapshot-1"));
    let link = fs::metadata(top.join("link")).unwrap();
    let begun = node.store.take_snapshot(&snapshot, &snapshot_of(&source, "snapshot-1")).unwrap().snapshots;
    assert_eq!(begun.state, State::Complete);
    assert!((before..=SystemTime::now()).contains(&tree_of(&begun)));
    assert!(shared(&node.path("staging", &snapshot)) > Bytes::new(10 << 20));
    let quota = |node: &Node| node.store.announced(&source).unwrap().quota().unwrap();
    let shows_its_size = |node: &Node| {
        let (seen, quota) = (statvfs(&top).unwrap(), quota(node));
        assert_eq!((seen.blocks() * seen.fragment_size(), seen.files()), (FULL.get(), INODES.get()));
        assert_eq!((quota.shown.bytes, quota.shown.inodes), (Some(FULL), Some(INODES)), "statistics show the size");
        assert_eq!(node.store.changed_limits(&source, Some(&quota)).unwrap(), None);
    };
    shows_its_size(&node);
    // An earlier release showed the raised limit.
    let raised = node.limits(from.project);
    fsquota::set_limits(File::open(node.disk.path()).unwrap(), from.project, raised).unwrap();
    assert_eq!(node.store.changed_limits(&source, Some(&quota(&node))).unwrap(), Some(raised));
    let node = node.restarted();
    without_pods(&node.store);
    assert_eq!(node.limits(from.project), raised);
    shows_its_size(&node);
    overwrite(&top, 2);
    shows_its_size(&node);
    let record = taken(&node, &source, "snapshot-1");
    assert_eq!(tree_of(&record), tree_of(&begun), "the instant stays");
    overwrite(&top, 3);
    let copy = node.path("live", &snapshot);
    has(&copy, 1);
    has(&top, 3);
    assert_eq!(shared(&copy), Bytes::ZERO);
    let copied = fs::metadata(copy.join("link")).unwrap();
    assert_eq!((copied.nlink(), copied.mtime_nsec(), copied.uid()), (2, link.mtime_nsec(), link.uid()));
    assert_eq!(copied.ino(), fs::metadata(copy.join("small/0")).unwrap().ino());
    let mut value = [0; 8];
    assert_eq!(rustix::fs::getxattr(copy.join("link"), "user.name", &mut value[..]).unwrap(), 5);
    let mut capability = [0; CAPABILITY.len()];
    rustix::fs::getxattr(copy.join("hole"), "security.capability", &mut capability[..]).unwrap();
    assert_eq!(capability, CAPABILITY);
    assert_eq!(fs::metadata(copy.join("hole")).unwrap().blocks() * 512, 4096);
    assert_eq!(node.limits(from.project).bytes, Some(FULL));
    assert_eq!(node.store.space().unwrap().reserved, from.reserved().saturating_add(record.reserved()));
    let again = node.store.take_snapshot(&snapshot, &snapshot_of(&source, "snapshot-1")).unwrap();
    assert_eq!(again, Taken { snapshots: record, copying: None });
}

/// A page of a mapping gets its blocks when it is written.
#[test]
fn a_full_volume_is_overwritten_through_a_mapping_after_a_snapshot() {
    let node = Node::with(Settings { pass: Duration::ZERO, ..settings() });
    without_pods(&node.store);
    let (source, _, top) = full(&node, SIZE);
    let snapshot = id("snapshot-1");
    let begun = node.store.take_snapshot(&snapshot, &snapshot_of(&source, "snapshot-1")).unwrap().snapshots;
    assert_eq!(begun.state, State::Complete);
    let copy = node.path("staging", &snapshot);
    assert!(shared(&copy) > Bytes::new(10 << 20));
    let large = File::options().read(true).write(true).open(top.join("large")).unwrap();
    overwrite_mapped(&large, 2);
    large.sync_all().unwrap();
    let byte = |top: &Path| only_byte(&fs::read(top.join("large")).unwrap());
    assert_eq!((byte(&top), byte(&copy)), (Some(2), Some(1)));
}

/// The headroom of the source is for blocks that the tenant overwrites, but new files can take it.
#[test]
fn a_snapshot_waits_until_its_tenant_has_left_the_headroom() {
    let node = Node::with(Settings { pass: Duration::ZERO, ..settings() });
    without_pods(&node.store);
    let (source, from, top) = full(&node, SIZE);
    let (snapshot, more) = (id("snapshot-1"), top.join("more"));
    let take = || node.store.take_snapshot(&snapshot, &snapshot_of(&source, "snapshot-1")).unwrap();
    assert_eq!(take().snapshots.state, State::Complete);
    let mut file = File::create(&more).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
    syncfs(&file).unwrap();
    drop(file);
    let waiting = loop {
        let taken = take();
        if taken.copying != Some(Copying::InPart) {
            break taken;
        }
    };
    assert_eq!((waiting.copying, waiting.snapshots.state), (Some(Copying::Waits), State::Complete));
    assert_eq!(shared(&node.path("staging", &snapshot)), Bytes::ZERO);
    let raised = Some(SIZE.saturating_add(SIZE));
    assert_eq!(node.limits(from.project).bytes, raised, "not below what the tenant uses");
    // These writes are in place: no block is shared any more.
    overwrite(&top, 2);

    fs::remove_file(&more).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    let record = loop {
        let taken = take();
        if taken.copying.is_none() {
            break taken.snapshots;
        }
        assert!(Instant::now() < end, "{taken:?}");
        thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(record.state, State::Announced);
    has(&node.path("live", &snapshot), 1);
    has(&top, 2);
    assert_eq!(node.limits(from.project).bytes, Some(SIZE));
    assert_eq!(node.store.space().unwrap().reserved, from.reserved().saturating_add(record.reserved()));
}

/// Regression: each check counted the headroom of the other snapshot, both ended, and the limit was below the usage.
#[test]
fn two_snapshots_that_end_at_once_do_not_count_the_same_headroom() {
    let node = Node::with(Settings { pass: Duration::ZERO, ..settings() });
    without_pods(&node.store);
    let (source, from) = node.made(&files("pvc-source"));
    let (top, names, store) = (node.path("live", &source), ["snapshot-1", "snapshot-2"], &node.store);
    fs::write(top.join("data"), vec![1; 1 << 20]).unwrap();
    for name in names {
        let begun = store.take_snapshot(&id(name), &snapshot_of(&source, name)).unwrap().snapshots;
        assert_eq!(begun.state, State::Complete);
    }
    let allocate = |name: &str, size: i64| {
        fallocate(File::create(top.join(name)).unwrap(), FallocateFlags::empty(), 0, size).unwrap();
    };
    // Both files need the headroom of both snapshots, and one file that of one snapshot.
    allocate("less", 12 << 20);
    allocate("more", 24 << 20);
    for name in names {
        let waiting = loop {
            let copying = store.copy_snapshot(&id(name)).unwrap();
            if copying != Some(Copying::InPart) {
                break copying;
            }
        };
        assert_eq!(waiting, Some(Copying::Waits), "{name}");
    }
    fs::remove_file(top.join("less")).unwrap();
    let both = &Barrier::new(names.len());
    let ended = thread::scope(|scope| {
        let passes = names.map(|name| {
            scope.spawn(move || {
                both.wait();
                store.copy_snapshot(&id(name)).unwrap()
            })
        });
        passes.map(|pass| pass.join().unwrap())
    });
    assert!(ended.contains(&None) && ended.contains(&Some(Copying::Waits)), "{ended:?}");
    assert_eq!(node.limits(from.project).bytes, Some(SIZE.saturating_add(SIZE)));

    fs::remove_file(top.join("more")).unwrap();
    for name in names {
        assert_eq!(store.copy_snapshot(&id(name)).unwrap(), None, "{name}");
    }
    assert_eq!(node.limits(from.project).bytes, Some(SIZE));
}

/// Freezer that returns after [`Slow::thaw`]. The source is locked meanwhile.
#[derive(Debug, Default)]
pub struct Slow(Mutex<Pods>, Condvar);

#[derive(Debug, Default, PartialEq)]
enum Pods {
    #[default]
    Running,
    Frozen,
    Thawed,
}

impl Slow {
    /// Registers the freezer with the store, for as long as the result exists.
    pub fn of(store: &Store) -> Arc<Self> {
        let slow = Arc::new(Self::default());
        let freezer: Arc<dyn PodFreezer> = slow.clone();
        store.freeze_by(Arc::downgrade(&freezer));
        slow
    }

    /// Waits until an operation freezes the pods. An operation that fails earlier does not.
    pub fn until_frozen(&self) {
        let pods = self.0.lock().unwrap();
        let limit = Duration::from_secs(60);
        let (_pods, waited) = self.1.wait_timeout_while(pods, limit, |pods| *pods == Pods::Running).unwrap();
        assert!(!waited.timed_out(), "no operation freezes the pods");
    }

    pub fn thaw(&self) {
        *self.0.lock().unwrap() = Pods::Thawed;
        self.1.notify_all();
    }
}

impl PodFreezer for Slow {
    fn freeze(&self, _: &[VolumeId], _: Duration) -> Result<Box<dyn FrozenPods>, Box<dyn StdError + Send + Sync>> {
        let mut pods = self.0.lock().unwrap();
        if *pods == Pods::Running {
            *pods = Pods::Frozen;
        }
        self.1.notify_all();
        drop(self.1.wait_while(pods, |pods| *pods != Pods::Thawed).unwrap());
        Ok(Box::new(NoPods))
    }
}

/// Regression: the last pass over a snapshot waited for the lock of its source, and the copies of other snapshots for
/// this pass. Then it did not wait at all, and found no gap between clones that followed each other.
#[test]
fn the_copy_of_a_snapshot_waits_for_a_clone_of_its_source_for_a_second() {
    let node = Node::with(Settings { pass: Duration::ZERO, ..settings() });
    without_pods(&node.store);
    let (source, _) = node.made(&files("pvc-source"));
    let (snapshot, store) = (id("snapshot-1"), &node.store);
    fs::write(node.path("live", &source).join("data"), vec![1; 1 << 20]).unwrap();
    let begun = store.take_snapshot(&snapshot, &snapshot_of(&source, "snapshot-1")).unwrap().snapshots;
    assert_eq!(begun.state, State::Complete);
    let last_pass = || loop {
        let copying = store.copy_snapshot(&snapshot).unwrap();
        if copying != Some(Copying::InPart) {
            break copying;
        }
    };
    // The pass begins during the clone, which ends with the pass, or after this time.
    let pass_during_clone = |name: &str, limit: Duration| {
        let slow = Slow::of(store);
        let (sender, ended) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| store.take_snapshot(&id(name), &snapshot_of(&source, name)).unwrap());
            slow.until_frozen();
            scope.spawn(|| sender.send(last_pass()).unwrap());
            let during = ended.recv_timeout(limit);
            slow.thaw();
            during.or_else(|_| ended.recv_timeout(Duration::from_secs(60)))
        })
    };
    assert_eq!(pass_during_clone("snapshot-2", Duration::from_secs(60)), Ok(Some(Copying::Waits)));
    // On a slow machine, a clone may end later than a second after the pass has reached the lock.
    let last = ["3", "4", "5", "6", "7"].map(|number| format!("snapshot-{number}"));
    assert!(last.iter().any(|name| pass_during_clone(name, Duration::from_millis(500)) == Ok(None)));
    assert_eq!(node.store.record(&snapshot).unwrap().unwrap().cloning, None);
}

#[test]
fn a_snapshot_of_files_is_restored_with_a_project_of_its_own() {
    let node = Node::new();
    without_pods(&node.store);
    let (source, _, top) = full(&node, SIZE);
    taken(&node, &source, "snapshot-1");
    let snapshot = id("snapshot-1");
    node.remove(&source);
    let node = node.restarted();
    assert!(!top.exists());
    // Another mode and a smaller size are rejected.
    let refused = |request: Request| {
        let want = Request { source: Some(snapshot.clone()), ..request };
        let Error::Source { source, .. } = node.store.provision(&id("pvc-other"), &want).unwrap_err() else {
            panic!("another error")
        };
        assert_eq!(node.traces(&id("pvc-other")), [""; 0]);
        source
    };
    assert!(matches!(refused(disk("pvc-other", Allocation::Thin)), SourceError::Filesystem { .. }));
    let small = sized("pvc-other", Mode::Filesystem { inodes: INODES }, Bytes::new(1 << 20));
    assert!(matches!(refused(small), SourceError::Larger { .. }));
    // No pod can have the source, which is a snapshot, so no freezer is needed.
    let want = sized("pvc-restored", Mode::Filesystem { inodes: INODES }, LARGER);
    let want = Request { source: Some(snapshot.clone()), ..want };
    let restored = id("pvc-restored");
    let record = copied(&node.store, &want);
    assert_eq!(record.cloning, None);
    let top = node.path("live", &restored);
    has(&top, 1);
    assert_eq!(fs::metadata(&top).unwrap().mode() & 0o7777, 0o777);
    assert_eq!(node.store.drifted(&restored).unwrap(), Drifted::default());
    assert_eq!((node.limits(record.project).bytes, node.limits(record.project).inodes), (Some(LARGER), Some(INODES)));
    overwrite(&top, 2);
    assert_eq!(node.store.remove_snapshot(&snapshot).unwrap(), Ensured::Created(()));
    assert_eq!(node.store.remove_snapshot(&snapshot).unwrap(), Ensured::Unchanged(()));
    assert_eq!(node.traces(&snapshot), [""; 0]);
    assert_eq!(node.store.space().unwrap().reserved, want.reserved());
}

#[test]
fn files_are_cloned_only_if_pods_can_be_stopped_in_time() {
    /// Freezer whose pods run again before all files are cloned.
    #[derive(Debug)]
    struct Late;

    impl PodFreezer for Late {
        fn freeze(&self, _: &[VolumeId], _: Duration) -> Result<Box<dyn FrozenPods>, Box<dyn StdError + Send + Sync>> {
            Ok(Box::new(Self))
        }
    }

    impl FrozenPods for Late {
        fn deadline(&self) -> Option<Instant> {
            Some(Instant::now())
        }

        fn thaw(self: Box<Self>) -> Result<(), Box<dyn StdError + Send + Sync>> {
            Err("late".into())
        }
    }

    let node = Node::new();
    let (source, from, _) = full(&node, SIZE);
    let (snapshot, space, alone) = (id("snapshot-1"), node.store.space().unwrap(), node.limits(from.project));
    let refused = || {
        let error = node.store.take_snapshot(&snapshot, &snapshot_of(&source, "snapshot-1")).unwrap_err();
        assert_eq!(node.traces(&snapshot), [""; 0]);
        assert_eq!((node.store.space().unwrap(), node.limits(from.project)), (space, alone));
        error
    };
    assert!(matches!(refused(), Error::Source { source: SourceError::NoFreezer { .. }, .. }));
    let late: Arc<dyn PodFreezer> = Arc::new(Late);
    node.store.freeze_by(Arc::downgrade(&late));
    let error = refused();
    assert!(matches!(error, Error::Act { source: ActError::Late { .. }, .. }), "{error:?}");
    without_pods(&node.store);
    taken(&node, &source, "snapshot-1");
}

/// A clone writes the data of its own source. Only the flush of the file system writes the other file.
#[test]
fn the_disk_is_flushed_before_pods_are_stopped() {
    /// Freezer that counts the pages of files that are not on the disk.
    #[derive(Debug)]
    struct Counts {
        files: [File; 2],
        found: Mutex<Vec<[u64; 2]>>,
    }

    impl Counts {
        fn unwritten(&self) -> [u64; 2] {
            self.files.each_ref().map(unwritten_pages)
        }
    }

    impl PodFreezer for Counts {
        fn freeze(&self, _: &[VolumeId], _: Duration) -> Result<Box<dyn FrozenPods>, Box<dyn StdError + Send + Sync>> {
            self.found.lock().unwrap().push(self.unwritten());
            Ok(Box::new(NoPods))
        }
    }

    let node = Node::with(Settings { pass: Duration::ZERO, ..settings() });
    let (source, _) = node.made(&sized("pvc-source", Mode::Filesystem { inodes: INODES }, FULL));
    let files = [(node.path("live", &source).join("data"), 32 << 20), (node.disk.path().join("other"), 1 << 20)];
    let files = files.map(|(path, size)| {
        fs::write(&path, vec![1; size]).unwrap();
        File::open(path).unwrap()
    });
    let counts = Arc::new(Counts { files, found: Mutex::default() });
    let freezer: Arc<dyn PodFreezer> = counts.clone();
    node.store.freeze_by(Arc::downgrade(&freezer));
    let before = counts.unwritten();
    assert!(before.iter().all(|pages| *pages > 0), "{before:?}: no data waits for a flush");
    let begun = node.store.take_snapshot(&id("snapshot-1"), &snapshot_of(&source, "snapshot-1")).unwrap();
    assert_eq!(begun.snapshots.state, State::Complete);
    assert_eq!(*counts.found.lock().unwrap(), [[0, 0]]);
}

#[test]
fn a_snapshot_of_a_pod_that_writes_has_one_instant_in_all_files() {
    let node = Node::new();
    let (source, _) = node.made(&files("pvc-source"));
    let pod = Pod::start(&node.path("live", &source));
    pod.register(&node.store);
    let mut last = 0;
    for number in 0..3 {
        let snapshot = format!("snapshot-{number}");
        let want = volume::SnapshotRequest { max_pause: Duration::from_secs(60), ..snapshot_of(&source, &snapshot) };
        while node.store.take_snapshot(&id(&snapshot), &want).unwrap().snapshots.state != State::Announced {}
        let found = Pod::number_in(&node.path("live", &id(&snapshot)));
        assert!(found > last, "{found} after {last}");
        last = found;
    }
    pod.writes_after(last);
}
