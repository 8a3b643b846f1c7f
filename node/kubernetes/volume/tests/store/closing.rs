//! A faulty volume is closed, and no other one is affected.

use std::fs::{self, File};
use std::io::Write as _;

use dir::Ensured;
use fsquota::ProjectId;
use units::Bytes;
use volume::{Allocation, Error, OpenError, RecordError, Volumes as _};

use crate::node::{Node, SIZE, disk, files, id};

const FORMER: &[u8] = br#"{"version":1,"claim":{"uid":"u","namespace":"n","name":"c"},"class":"local","mode":"filesystem","size_bytes":4096,"inodes":64,"project":7,"state":"announced"}"#;
const NEWER: &[u8] = br#"{"version":1000,"secret":"of the next release"}"#;

#[test]
fn a_volume_with_an_unreadable_record_is_closed_and_kept() {
    for content in [&b"{"[..], FORMER, NEWER, b"", b"\0\0", br#"{"version":2}"#] {
        let (node, damaged, record) = Node::with_volume(&disk("pvc-1", Allocation::Thick));
        fs::write(node.path("records", &damaged), content).unwrap();
        let node = node.restarted();
        let closed = |result: Result<(), Error>| assert!(matches!(result, Err(Error::Closed { .. })), "{result:?}");
        closed(node.store.provision(&damaged, &disk("pvc-1", Allocation::Thick)).map(drop));
        closed(node.store.announce(&damaged).map(drop));
        closed(node.store.expand(&damaged, Bytes::GIB).map(drop));
        closed(node.store.retire(&damaged).map(drop));
        closed(node.store.restore(&damaged).map(drop));
        closed(node.store.discard(&damaged).map(drop));
        closed(node.store.undo(&damaged).map(drop));
        assert!(matches!(node.store.open_volume(&damaged), Err(OpenError::Record { .. })));
        assert_eq!(node.traces(&damaged), ["records", "live"]);
        assert_eq!(fs::read(node.path("records", &damaged)).unwrap(), content);
        assert_eq!(node.store.space().unwrap().reserved, record.reserved());
        assert_eq!(node.store.strays().unwrap(), volume::Strays::default());
        assert_eq!(node.store.retired().unwrap(), []);

        let (well, _) = node.made(&files("pvc-2"));
        assert!(node.store.open_volume(&well).is_ok());
        let records = node.store.records().unwrap();
        assert_eq!(records.readable.into_keys().collect::<Vec<_>>(), [well]);
        assert_eq!(records.unreadable.into_keys().collect::<Vec<_>>(), [damaged]);
    }
}

#[test]
fn a_record_that_is_a_directory_is_unreadable() {
    let (node, damaged, _) = Node::with_volume(&files("pvc-1"));
    fs::remove_file(node.path("records", &damaged)).unwrap();
    fs::create_dir(node.path("records", &damaged)).unwrap();
    let node = node.restarted();
    let Err(OpenError::Record { source, .. }) = node.store.open_volume(&damaged) else { panic!("opened") };
    assert!(matches!(source, RecordError::Read(_)), "{source:?}");
}

#[test]
fn a_volume_whose_limits_cannot_be_set_is_closed_alone() {
    let (node, bad, _) = Node::with_volume(&files("pvc-1"));
    let (well, _) = node.made(&files("pvc-2"));
    let text = fs::read_to_string(node.path("records", &bad)).unwrap();
    let text = text.replace(&format!("\"size_bytes\":{}", SIZE.get()), "\"size_bytes\":0");
    fs::write(node.path("records", &bad), text).unwrap();
    let node = node.restarted();
    let Err(OpenError::Record { source, .. }) = node.store.open_volume(&bad) else { panic!("opened") };
    assert!(matches!(source, RecordError::Limits(_)), "{source:?}");
    assert!(node.store.open_volume(&well).is_ok());
}

/// The process died while it wrote the first record: the file is empty, or has a part of the record.
#[test]
fn a_record_whose_write_was_interrupted_is_removed() {
    for content in [&b""[..], b"{\"version\":2,\"cla"] {
        let node = Node::new();
        let (first, second) = (id("pvc-1"), id("pvc-2"));
        for id in [&first, &second] {
            fs::write(node.path("pending", id), content).unwrap();
        }
        let node = node.restarted();
        assert!(node.store.records().unwrap().unreadable.is_empty());
        assert!(node.traces(&first).is_empty());
        assert!(matches!(node.store.provision(&first, &files("pvc-1")).unwrap(), Ensured::Created(_)));
        assert_eq!(node.store.undo(&second).unwrap(), Ensured::Unchanged(()));
        assert_eq!((node.traces(&first), node.traces(&second)), (vec!["pending", "live"], vec![]));
    }
}

#[test]
fn a_damaged_pending_record_is_undone_unless_the_volume_is_live() {
    let node = Node::new();
    let (staged, live) = (id("pvc-1"), id("pvc-2"));
    for (id, name) in [(&staged, "pvc-1"), (&live, "pvc-2")] {
        node.store.provision(id, &disk(name, Allocation::Thick)).unwrap();
        File::options().write(true).open(node.path("pending", id)).unwrap().write_all(b"\0").unwrap();
    }
    fs::rename(node.path("live", &staged), node.path("staging", &staged)).unwrap();
    let node = node.restarted();
    assert!(matches!(node.store.provision(&staged, &files("pvc-1")), Err(Error::Closed { .. })));
    assert!(matches!(node.store.undo(&live), Err(Error::Refused { .. })));
    assert_eq!(node.traces(&live), ["pending", "live"]);
    let before = node.projects().len();
    node.store.undo(&staged).unwrap();
    assert_eq!(node.traces(&staged), [""; 0]);
    assert_eq!(node.projects().len(), before - 1);
}

#[test]
fn a_pending_record_of_a_newer_release_is_not_undone() {
    let node = Node::new();
    let id = id("pvc-1");
    fs::write(node.path("pending", &id), NEWER).unwrap();
    let node = node.restarted();
    assert!(matches!(node.store.undo(&id), Err(Error::Closed { .. })));
    assert!(matches!(node.store.provision(&id, &files("pvc-1")), Err(Error::Closed { .. })));
}

#[test]
fn a_store_in_a_project_does_not_start() {
    let node = Node::new();
    let Node { store, disk } = node;
    drop(store);
    let inner = disk.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let limits = fsquota::Limits { bytes: Some(Bytes::GIB), inodes: None };
    fsquota::assign(File::open(&inner).unwrap(), ProjectId::new(9000).unwrap(), limits).unwrap();
    let refused = volume::Store::open(&dir::Dir::open(&inner).unwrap(), crate::node::settings()).unwrap_err();
    assert!(matches!(refused, volume::StartError::Project { project } if project.get() == 9000), "{refused:?}");
}

/// The process died while it replaced a record.
#[test]
fn a_partial_new_record_is_removed_at_the_start_and_the_former_one_counts() {
    let (node, id, record) = Node::with_volume(&files("pvc-1"));
    let half = node.path("records", &id).with_file_name(".pvc-1.new");
    fs::write(&half, b"{").unwrap();
    let node = node.restarted();
    assert!(!half.exists());
    assert_eq!(node.store.records().unwrap().readable[&id], record);
}
