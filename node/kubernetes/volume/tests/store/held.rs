//! A tenant that always has the lock of a file.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ktest_support::{eventually, eventually_is};
use nix::fcntl::{FallocateFlags, fallocate};
use nix::poll::{PollFd, PollFlags, poll};
use units::Bytes;
use volume::{ActError, Allocation, Copying, Error, Settings, State, Volumes as _};

use crate::node::{Node, SIZE, disk, files, id, settings, without_pods};
use crate::snapshots::snapshot_of;
use crate::sys::set_project;

#[expect(unsafe_code, reason = "userfaultfd(2) has no wrapper")]
mod sys;

/// Regression: XFS retried a file that its tenant always read or wrote, in order to free the blocks behind its end, and
/// the service that copies snapshots waited. The snapshots of all other volumes shared blocks for as long.
#[test]
fn a_tenant_that_holds_a_file_delays_only_the_copy_of_its_own_snapshot() {
    let node = Node::with(Settings { pass: Duration::ZERO, ..settings() });
    without_pods(&node.store);
    let store = &node.store;
    let (volumes, snapshots) = (["pvc-hostile", "pvc-other"].map(|name| node.made(&files(name))), ["held", "free"]);
    for ((source, _), name) in volumes.iter().zip(snapshots) {
        fs::write(node.path("live", source).join("data"), vec![1; 1 << 20]).unwrap();
        let begun = store.take_snapshot(&id(name), &snapshot_of(source, name)).unwrap().snapshots;
        assert_eq!(begun.state, State::Complete);
    }
    let copied = |name: &str| loop {
        let copying = store.copy_snapshot(&id(name)).unwrap();
        if copying != Some(Copying::InPart) {
            break copying;
        }
    };
    let [(hostile, from), _] = &volumes;
    let top = node.path("live", hostile);
    // While it is open, XFS keeps the blocks that it has allocated in advance for the second write.
    let mut held = File::create(top.join("held")).unwrap();
    (0..2).for_each(|_| held.write_all(&[1; 1 << 20]).unwrap());
    // The volume exceeds its size.
    let more = File::create(top.join("more")).unwrap();
    fallocate(&more, FallocateFlags::empty(), 0, 20 << 20).unwrap();
    drop(more);

    let (faults, page) = sys::missing_page();
    let (sender, ended) = mpsc::channel();
    let passes = thread::scope(|scope| {
        scope.spawn(|| held.write_all_at(page, 0).unwrap());
        let mut read = [PollFd::new(faults.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut read, 60_000_u16), Ok(1), "the write has the lock of the file");
        scope.spawn(|| sender.send(snapshots.map(copied)).unwrap());
        let passes = ended.recv_timeout(Duration::from_secs(60));
        drop(faults);
        passes
    });
    assert_eq!(passes, Ok([Some(Copying::Waits), None]));
    assert_eq!(node.limits(from.project).bytes, Some(SIZE.saturating_add(SIZE)), "the copy has not ended");

    fs::remove_file(top.join("more")).unwrap();
    eventually_is(&None, || copied("held"));
    assert_eq!(node.limits(from.project).bytes, Some(SIZE));
}

/// Regression: the copy of a snapshot used a release that had ended before the volume had blocks in advance again, which
/// it has after the next clone of its image.
#[test]
fn a_release_that_began_before_a_clone_of_the_image_counts_for_no_copy() {
    const WRITE: u64 = 1 << 20;
    let node = Node::with(Settings { pass: Duration::ZERO, ..settings() });
    let (store, (source, record)) = (&node.store, node.made(&disk("pvc-source", Allocation::Thin)));
    let image = File::options().write(true).open(node.image(&source)).unwrap();
    image.write_all_at(&[1; WRITE as usize], 0).unwrap();
    let begin = |name: &str| store.take_snapshot(&id(name), &snapshot_of(&source, name)).unwrap();
    let last_pass = || loop {
        let copying = store.copy_snapshot(&id("snapshot-1")).unwrap();
        if copying != Some(Copying::InPart) {
            break copying;
        }
    };
    begin("snapshot-1");
    // A file of the project that is not the image: the next snapshot clones the image while this file is held.
    let mut held = File::create(node.disk.path().join("held")).unwrap();
    set_project(&held, record.project.get()).unwrap();
    let has_in_advance = |file: &File, writes: u64| file.metadata().unwrap().blocks() * 512 > writes * WRITE;
    (0..2).for_each(|_| held.write_all(&[1; WRITE as usize]).unwrap());
    assert!(has_in_advance(&held, 2));

    let (faults, page) = sys::missing_page();
    let waiting = thread::scope(|scope| {
        scope.spawn(|| held.write_all_at(page, 0).unwrap());
        let mut read = [PollFd::new(faults.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut read, 60_000_u16), Ok(1), "the write has the lock of the file");
        let waiting = last_pass();
        begin("snapshot-2");
        drop(faults);
        waiting
    });
    assert_eq!(waiting, Some(Copying::Waits), "the release has begun");
    eventually("the release ends", || !has_in_advance(&held, 2));
    held.write_all(&[1; WRITE as usize]).unwrap();
    assert!(has_in_advance(&held, 3));
    eventually_is(&None, last_pass);
    assert!(!has_in_advance(&held, 3), "the copy has released them");
}

/// Regression: the removal of a volume retried the file, and four such removals delayed all others on the node.
#[test]
fn the_removal_of_a_volume_does_not_wait_for_a_process_that_holds_a_deleted_file() {
    let (node, id, _) = Node::with_volume(&files("pvc-1"));
    let path = node.path("live", &id).join("held");
    let mut held = File::create(&path).unwrap();
    (0..2).for_each(|_| held.write_all(&[1; 1 << 20]).unwrap());
    // `unlink` waits for the lock of the file, too.
    fs::remove_file(path).unwrap();

    let (faults, page) = sys::missing_page();
    let (sender, ended) = mpsc::channel();
    let removal = thread::scope(|scope| {
        let writer = scope.spawn(|| held.write_all_at(page, 0).unwrap());
        let mut read = [PollFd::new(faults.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut read, 60_000_u16), Ok(1), "the write has the lock of the file");
        scope.spawn(|| sender.send(node.store.retire(&id).and_then(|_| node.store.discard(&id))).unwrap());
        let removal = ended.recv_timeout(Duration::from_secs(60));
        drop(faults);
        writer.join().unwrap();
        removal
    });
    assert!(matches!(removal, Ok(Err(Error::Act { source: ActError::Clear(_), .. }))), "{removal:?}");
    drop(held);
    node.store.discard(&id).unwrap();
    assert_eq!(node.traces(&id), [""; 0]);
}

/// `unlink` waits for the lock of the file. The thread has the locks of this volume and of the directory of the file.
#[test]
fn a_removal_that_waits_for_a_file_delays_no_other_volume_and_continues() {
    let (node, id, record) = Node::with_volume(&files("pvc-1"));
    let (other, _) = node.made(&files("pvc-2"));
    let mut held = File::create(node.path("live", &id).join("held")).unwrap();
    held.write_all(&[1; 4096]).unwrap();
    let (store, (faults, page)) = (&node.store, sys::missing_page());
    let (sender, ended) = mpsc::channel();
    let (retired, removal) = thread::scope(|scope| {
        let writer = scope.spawn(|| held.write_all_at(page, 0).unwrap());
        let mut read = [PollFd::new(faults.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut read, 60_000_u16), Ok(1), "the write has the lock of the file");
        let removal = scope.spawn(|| store.retire(&id).and_then(|_| store.discard(&id)));
        eventually_is(&Some(Bytes::new(4096)), || node.limits(record.project).bytes);
        scope.spawn(|| {
            node.remove(&other);
            node.made(&files("pvc-3"));
            sender.send(store.retired().unwrap()).unwrap();
        });
        let retired = ended.recv_timeout(Duration::from_secs(60));
        assert!(!removal.is_finished(), "the file has no name any more");
        drop(faults);
        writer.join().unwrap();
        (retired, removal.join().unwrap())
    });
    assert_eq!(retired, Ok(vec![id.clone()]));
    assert!(matches!(removal, Err(Error::Act { source: ActError::Clear(_), .. })), "{removal:?}");
    drop(held);
    store.discard(&id).unwrap();
    assert_eq!(node.traces(&id), [""; 0]);
}
