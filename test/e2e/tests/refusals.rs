//! What the node refuses at its boot, and how its machine ends then.

use ::eventually::chain;
use e2e::{PATIENCE, Seen, Setting, eventually};
use launch::{BootError, ClusterBoot, ClusterError, ClusterOptions, Data, Event, Nodes, Options};
use std::cell::RefCell;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Magic number of ext2, ext3 and ext4 in the superblock, which begins at 1024: ext4 documentation, "Super Block".
/// Without any of the later ones' features it is an ext2.
const EXT_MAGIC: ([u8; 2], u64) = ([0x53, 0xef], 1024 + 0x38);
const DISK_SIZE: u64 = 2 << 30;
/// Of no file system that there is.
const NO_UUID: &str = "5ad00000-0000-4000-8000-0000000000ff";
/// The kernel's last words.
const RESTART: &str = "reboot: Restarting system";

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
    options.configuration = Some(r#"{"onFailure": "REBOOT"}"#.to_owned());
    let Refusal { error, .. } = Refusal::of(options).await;
    let BootError::Fatal { message } = error else { panic!("the node did not say why: {error}") };
    assert!(message.contains("a file system (ext2)"), "the message does not name what is there: {message}");
    assert_eq!(state(&path), before);
}

/// An empty disk is formatted by a node whose configuration does not name another one.
#[tokio::test]
async fn a_disk_that_the_configuration_does_not_name_is_not_touched() {
    let setting = Setting::from_target().unwrap();
    let path = setting.file("empty.img");
    File::create_new(&path).unwrap().set_len(DISK_SIZE).unwrap();
    let before = state(&path);

    let mut options = setting.options();
    options.data = Data::File(path.clone());
    options.configuration = Some(r#"{"onFailure": "REBOOT", "storage": {"serial": "other"}}"#.to_owned());
    let Refusal { error, .. } = Refusal::of(options).await;
    let BootError::Fatal { message } = error else { panic!("the node did not say why: {error}") };
    let wanted = r#"no disk has the serial number "other", which the configuration names; there are "#;
    assert!(message.contains(wanted), "{wanted:?} is not in {message}");
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
    options.kernel_arguments = "granary.failure=reboot".to_owned();
    options.configuration = Some(r#"{"nodename": "granary", "network": {"dhcp": {}, "mtu": 15}}"#.to_owned());
    let Refusal { error, begun, console } = Refusal::of(options).await;
    let BootError::Fatal { message } = error else { panic!("the node did not say why: {error}") };
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

/// By the first program, which has nothing but the console to say it by.
#[tokio::test]
async fn a_system_that_no_disk_has_is_named_with_those_that_are_there() {
    let setting = Setting::from_target().unwrap();
    let mut options = setting.options();
    let line = fs::read_to_string(&options.image.command_line).unwrap();
    let there = line.split_whitespace().find_map(|word| word.strip_prefix("granary.system=")).unwrap();
    options.image.command_line = setting.file("cmdline.txt");
    fs::write(&options.image.command_line, line.replace(there, NO_UUID)).unwrap();
    options.kernel_arguments = "granary.failure=reboot".to_owned();
    let Refusal { error, console, .. } = Refusal::of(options).await;
    assert!(matches!(&error, BootError::Ended { exit, .. } if exit.status.success()), "{error}");
    let told = console.lines().find(|line| line.contains("initramfs: error: ")).unwrap_or_default();
    assert!(told.contains(&format!("no disk holds the system image {NO_UUID}; there are /dev/")), "{console}");
    for other in [format!(": system image {there}"), ": no system image".to_owned()] {
        assert!(told.contains(&other), "{other:?} is not in {told}");
    }
}

/// A boot that ends in a refusal and a restart, which QEMU takes for the end.
struct Refusal {
    error: BootError,
    /// The stages that the node told of.
    begun: Vec<String>,
    /// To the last line.
    console: String,
}

impl Refusal {
    async fn of(options: Options) -> Self {
        let log = options.logs.join("console.log");
        let begun = RefCell::new(Vec::new());
        let tell = |_: &str, event: &Event| {
            println!("{event}");
            if let Event::Stage { name, .. } = event {
                begun.borrow_mut().push(name.clone());
            }
        };
        let started = ClusterBoot::start(&ClusterOptions::new(options, Nodes::ONE), tell).await;
        let mut booting = started.unwrap_or_else(|error| panic!("{}", chain(&error)));
        let error = match booting.until_ready(tell).await {
            Err(ClusterError::Boot { source, .. }) => *source,
            Err(error) => panic!("{}", chain(&error)),
            Ok(_) => panic!("the node has started"),
        };
        let console = eventually(PATIENCE, RESTART, async || {
            let text = fs::read(&log).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default();
            Ok(if text.contains(RESTART) { Seen::Done(text) } else { Seen::NotYet(text) })
        });
        let console = console.await.unwrap_or_else(|error| panic!("{}", chain(&error)));
        Self { error, begun: begun.take(), console }
    }
}

/// The first MiB, the allocated blocks and the time of the last write: any write changes one of them.
fn state(path: &Path) -> (Vec<u8>, u64, i64, i64) {
    let file = File::open(path).unwrap();
    let metadata = file.metadata().unwrap();
    let mut head = Vec::new();
    file.take(1 << 20).read_to_end(&mut head).unwrap();
    (head, metadata.blocks(), metadata.mtime(), metadata.mtime_nsec())
}
