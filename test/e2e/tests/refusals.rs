//! What the node refuses at its boot.

use e2e::Setting;
use launch::{BootError, Data, Event, Node};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Magic number of ext2, ext3 and ext4 in the superblock, which begins at 1024: ext4 documentation, "Super Block".
/// Without any of the later ones' features it is an ext2.
const EXT_MAGIC: ([u8; 2], u64) = ([0x53, 0xef], 1024 + 0x38);
const DISK_SIZE: u64 = 2 << 30;

#[tokio::test]
async fn a_data_disk_with_a_foreign_file_system_is_refused_and_not_touched() {
    let setting = Setting::from_target().unwrap();
    let path = setting.file("foreign.img");
    let disk = File::create_new(&path).unwrap();
    disk.set_len(DISK_SIZE).unwrap();
    disk.write_all_at(&EXT_MAGIC.0, EXT_MAGIC.1).unwrap();
    disk.sync_all().unwrap();
    let before = state(&path);

    let mut options = setting.options();
    options.data = Data::File(path.clone());
    let Err(error) = Node::boot(&options, |event| println!("{event}")).await else {
        panic!("the node took a disk that it did not make");
    };
    let BootError::Fatal { message } = error else { panic!("the node did not say why: {error}") };
    assert!(message.contains("a file system (ext2)"), "the message does not name what is there: {message}");
    assert_eq!(state(&path), before);
}

/// An empty disk is formatted by a node that starts.
#[tokio::test]
async fn a_configuration_with_mistakes_is_refused_as_a_whole_and_nothing_is_done() {
    let setting = Setting::from_target().unwrap();
    let path = setting.file("empty.img");
    File::create_new(&path).unwrap().set_len(DISK_SIZE).unwrap();
    let before = state(&path);

    let mut options = setting.options();
    options.data = Data::File(path.clone());
    options.configuration = Some(r#"{"nodename": "granary", "network": {"dhcp": {}, "mtu": 15}}"#.to_owned());
    let mut begun = Vec::new();
    let booted = Node::boot(&options, |event| {
        println!("{event}");
        if let Event::Stage { name, .. } = event {
            begun.push(name.clone());
        }
    });
    let Err(error) = booted.await else { panic!("the node started with a configuration that it does not understand") };
    let BootError::Fatal { message } = error else { panic!("the node did not say why: {error}") };
    let console = fs::read_to_string(setting.file("console.log")).unwrap();
    for problem in [
        "the configuration has 2 problems",
        "  nodename: there is no such field here; there are nodeName, ",
        "  network.mtu: 15 is out of range: 576 to 65535 is possible",
    ] {
        assert!(message.contains(problem), "{problem:?} is not in {message}");
        assert!(console.contains(problem), "{problem:?} is not on the console: {console}");
    }
    // The disk would be next.
    let has_begun = |stage: &str| begun.iter().any(|name| name == stage);
    assert!(has_begun("init") && !has_begun("data-disk"), "{begun:?}");
    assert_eq!(state(&path), before);
}

/// The first MiB, the allocated blocks and the time of the last write: any write changes one of them.
fn state(path: &Path) -> (Vec<u8>, u64, i64, i64) {
    let file = File::open(path).unwrap();
    let metadata = file.metadata().unwrap();
    let mut head = Vec::new();
    file.take(1 << 20).read_to_end(&mut head).unwrap();
    (head, metadata.blocks(), metadata.mtime(), metadata.mtime_nsec())
}
