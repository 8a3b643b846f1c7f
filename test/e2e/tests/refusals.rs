//! Boots that the node rejects, and the resulting end of the machine.

use e2e::{PATIENCE, Seen, Setting, cost, eventually};
use envtest::chain;
use launch::{BootError, ClusterBoot, ClusterError, ClusterOptions, Data, Event, Nodes, Options};
use std::cell::RefCell;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Magic number of ext2, ext3 and ext4 in the superblock, which begins at 1024: ext4 documentation, "Super Block".
/// Without the features of ext3 and ext4, the file system is an ext2.
const EXT_MAGIC: ([u8; 2], u64) = ([0x53, 0xef], 1024 + 0x38);
const DISK_SIZE: u64 = 2 << 30;
const NO_UUID: &str = "5ad00000-0000-4000-8000-0000000000ff";
const RESTART: &str = "reboot: Restarting system";

/// Boots a node that rejects its data disk or configuration, and verifies that the disk is unchanged. Also returns the
/// message.
async fn rejected(prepare: impl FnOnce(&File), arguments: &str, configuration: &str) -> (String, Refusal) {
    let setting = Setting::from_target().unwrap();
    let path = setting.file("data.img");
    let disk = File::create_new(&path).unwrap();
    disk.set_len(DISK_SIZE).unwrap();
    prepare(&disk);
    disk.sync_all().unwrap();
    let before = state(&path);
    let mut options = setting.options();
    options.data = Data::File(path.clone());
    options.kernel_arguments = arguments.to_owned();
    options.configuration = Some(configuration.to_owned());
    let refusal = Refusal::of(options).await;
    assert_eq!(state(&path), before);
    let BootError::Fatal { message } = &refusal.error else { panic!("no reason is reported: {}", refusal.error) };
    (message.clone(), refusal)
}

#[tokio::test]
async fn a_foreign_data_disk_is_rejected_and_unchanged() {
    let prepare = |disk: &File| disk.write_all_at(&EXT_MAGIC.0, EXT_MAGIC.1).unwrap();
    let (message, _) = rejected(prepare, "", r#"{"onFailure": "REBOOT"}"#).await;
    assert!(message.contains("a file system (ext2)"), "the message does not name what is there: {message}");
}

/// The node would format this empty disk if the configuration did not name another disk.
#[tokio::test]
async fn a_disk_that_the_configuration_does_not_name_is_not_touched() {
    let configuration = r#"{"onFailure": "REBOOT", "storage": {"serial": "other"}}"#;
    let (message, _) = rejected(|_| {}, "", configuration).await;
    let wanted = r#"no disk has the serial number "other", which the configuration names; there are "#;
    assert!(message.contains(wanted), "{wanted:?} is not in {message}");
}

/// A node with a valid configuration would format this empty disk.
#[tokio::test]
async fn an_invalid_configuration_is_rejected_and_changes_nothing() {
    let configuration = r#"{"nodename": "granary", "network": {"dhcp": {}, "mtu": 15}}"#;
    let (message, Refusal { begun, console, .. }) = rejected(|_| {}, "granary.failure=reboot", configuration).await;
    for problem in [
        "the configuration has 2 problems",
        "  nodename: unknown field; known fields: nodeName, ",
        "  network.mtu: 15 is out of range; choose a value from 576 to 65535",
    ] {
        assert!(message.contains(problem), "{problem:?} is not in {message}");
        assert!(console.contains(problem), "{problem:?} is not on the console: {console}");
    }
    // The disk would be the next stage.
    let has_begun = |stage: &str| begun.iter().any(|name| name == stage);
    assert!(has_begun("init") && !has_begun("data-disk"), "{begun:?}");
}

/// The first program reports the error and can only use the console. It searches the disks for 20 seconds. Tests start
/// in the order of their names, so this test has a name that starts first.
#[tokio::test]
async fn a_boot_without_its_system_names_those_that_are_there() {
    let setting = Setting::from_target().unwrap();
    let mut options = setting.options();
    let line = fs::read_to_string(&options.image.command_line).unwrap();
    let there = line.split_whitespace().find_map(|word| word.strip_prefix("granary.system=")).unwrap();
    options.image.command_line = setting.file("cmdline.txt");
    fs::write(&options.image.command_line, line.replace(there, NO_UUID)).unwrap();
    options.kernel_arguments = "granary.failure=reboot".to_owned();
    let Refusal { error, console, .. } = Refusal::of(options).await;
    assert!(matches!(&error, BootError::Ended { exit, .. } if exit.status.success()), "{error}");
    let error = console.lines().find(|line| line.contains("initramfs: error: ")).unwrap_or_default();
    assert!(error.contains(&format!("no disk holds the system image {NO_UUID}; there are /dev/")), "{console}");
    for other in [format!(": system image {there}"), ": no system image".to_owned()] {
        assert!(error.contains(&other), "{other:?} is not in {error}");
    }
}

/// A boot that ends with a rejection and a restart. QEMU exits on a restart.
struct Refusal {
    error: BootError,
    begun: Vec<String>,
    console: String,
}

impl Refusal {
    async fn of(options: Options) -> Self {
        cost("boots");
        let log = options.logs.join("console.log");
        let begun = RefCell::new(Vec::new());
        let print = |_: &str, event: &Event| {
            println!("{event}");
            if let Event::Stage { name, .. } = event {
                begun.borrow_mut().push(name.clone());
            }
        };
        let started = ClusterBoot::start(&ClusterOptions::new(options, Nodes::ONE), print).await;
        let mut booting = started.unwrap_or_else(|error| panic!("{}", chain(&error)));
        let error = match booting.until_ready(print).await {
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

/// The first MiB, the allocated blocks and the time of the last write. Any write changes one of them.
fn state(path: &Path) -> (Vec<u8>, u64, i64, i64) {
    let file = File::open(path).unwrap();
    let metadata = file.metadata().unwrap();
    let mut head = Vec::new();
    file.take(1 << 20).read_to_end(&mut head).unwrap();
    (head, metadata.blocks(), metadata.mtime(), metadata.mtime_nsec())
}
