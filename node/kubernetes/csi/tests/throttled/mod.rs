//! Limits of the I/O of pods on published devices.

use std::env;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{major, minor};
use tonic::Code;
use units::Bytes;
use volume::{IoLimits, Volumes as _};

use crate::PUBLISH;
use crate::machine::{Node, SIZE, TestDisk};

const LIMIT: Bytes = Bytes::new(2 << 20);
const LIMITED: IoLimits = IoLimits { write_bytes: Some(LIMIT), ..IoLimits::NONE };
const FASTER: IoLimits = IoLimits { write_bytes: Some(Bytes::new(512 << 20)), ..LIMITED };
/// The last component of the target.
const POD: &str = "kubepods/burstable/podpod-1";
const WINDOW: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(30);

const TEST: &str = "throttled::a_pod_writes_as_fast_as_the_class_allows";
const CGROUP: &str = "WRITER_CGROUP";
const DEVICE: &str = "WRITER_DEVICE";

/// One request, where direct I/O wants it in memory.
#[repr(C, align(4096))]
struct Piece([u8; Piece::SIZE]);

impl Piece {
    const SIZE: usize = 64 << 10;
}

/// In a copy of this program: as a process of the pod, writes to the device for a while, and prints the rate.
fn write_if_started_so() -> bool {
    let (Some(cgroup), Some(device)) = (env::var_os(CGROUP), env::var_os(DEVICE)) else { return false };
    fs::write(Path::new(&cgroup).join("cgroup.procs"), "0").expect("a process of the pod");
    let device = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(device).expect("open");
    let piece = Piece([7; Piece::SIZE]);
    let places = SIZE.get() / Piece::SIZE as u64;
    let write = |number: u64| device.write_all_at(&piece.0, number % places * Piece::SIZE as u64).expect("write");
    // The first request begins the kernel's accounting.
    write(0);
    let (begin, mut number) = (Instant::now(), 0);
    while begin.elapsed() < WINDOW {
        number += 1;
        write(number);
    }
    let written = u128::from(number) * Piece::SIZE as u128;
    println!("\nrate {}", written * 1000 / begin.elapsed().as_millis());
    true
}

/// Bytes per second of a process of the pod.
fn rate(cgroup: &Path, device: &Path) -> u64 {
    let mut writer = Command::new(env::current_exe().expect("this program"));
    writer.args(["--exact", TEST, "--nocapture"]).env(CGROUP, cgroup).env(DEVICE, device);
    let output = writer.output().expect("a process");
    let text = String::from_utf8_lossy(&output.stdout);
    let rate = text.lines().find_map(|line| line.strip_prefix("rate ")?.parse().ok());
    rate.unwrap_or_else(|| panic!("{text} {}", String::from_utf8_lossy(&output.stderr)))
}

/// A hierarchy with the controller in the cgroups of pods, as the kubelet makes it.
struct Hierarchy(PathBuf);

impl Hierarchy {
    fn mount() -> Self {
        let root = PathBuf::from("/tmp/cgroup");
        fs::create_dir_all(&root).expect("a directory");
        mount(Some("cgroup2"), &root, Some("cgroup2"), MsFlags::empty(), None::<&str>).expect("mount");
        Self(root)
    }

    fn make_pod(&self) -> PathBuf {
        let mut path = self.0.clone();
        for part in Path::new(POD) {
            fs::write(path.join("cgroup.subtree_control"), "+io").expect("the controller");
            path.push(part);
            fs::create_dir(&path).expect("a cgroup");
        }
        path
    }
}

fn numbers(device: &Path) -> String {
    let device = fs::metadata(device).expect("the device").rdev();
    format!("{}:{}", major(device), minor(device))
}

fn limits(pod: &Path) -> String {
    fs::read_to_string(pod.join("io.max")).expect("limits")
}

#[tokio::test]
async fn a_pod_writes_as_fast_as_the_class_allows() {
    if write_if_started_so() {
        return;
    }
    let cgroups = Hierarchy::mount();
    let mut node = Node::on_cgroups(TestDisk::new(), &cgroups.0).await;
    let volume = node.provision_block("pvc-1");
    assert_eq!(node.store.limit_io(&volume, LIMITED).expect("limits").into_inner().io, LIMITED);
    let target = node.target(PUBLISH);
    fs::create_dir_all(target.parent().expect("a directory")).expect("directories");

    // A pod without a cgroup, or a target without a pod, would not be limited.
    assert_eq!(node.publish_block("pvc-1", PUBLISH).await, Err(Code::Unavailable));
    assert_eq!(node.publish_block("pvc-1", "device").await, Err(Code::FailedPrecondition));
    assert!(!target.exists() && node.devices().is_empty(), "nothing stays");

    let pod = cgroups.make_pod();
    node.publish_block("pvc-1", PUBLISH).await.expect("publish");
    let line = |bytes: u64| format!("{} rbps=max wbps={bytes} riops=max wiops=max\n", numbers(&target));
    assert_eq!(limits(&pod), line(LIMIT.get()));
    let found = rate(&pod, &target);
    assert!(found <= LIMIT.get() * 105 / 100 && found >= LIMIT.get() * 3 / 4, "{found} of {LIMIT}");

    // They hold in the next process, which sets them again if another program changed them.
    let mut node = Node::on_cgroups(node.end().await, &cgroups.0).await;
    assert_eq!(limits(&pod), line(LIMIT.get()));
    fs::write(pod.join("io.max"), format!("{} wbps=max", numbers(&target))).expect("another program");
    let begin = Instant::now();
    while limits(&pod) != line(LIMIT.get()) {
        assert!(begin.elapsed() < PATIENCE, "{:?}", limits(&pod));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    // A change applies to the pod at once.
    node.store.limit_io(&volume, FASTER).expect("limits");
    assert_eq!(limits(&pod), line(512 << 20));
    let found = rate(&pod, &target);
    assert!(found > LIMIT.get() * 2, "{found}");

    // A pod that is given the volume again is limited again, and no limit stays without it.
    node.unpublish("pvc-1", PUBLISH).await.expect("unpublish");
    assert_eq!(limits(&pod), "");
    assert!(node.devices().is_empty());
    node.publish_block("pvc-1", PUBLISH).await.expect("publish");
    assert_eq!(limits(&pod), line(512 << 20));
    node.store.limit_io(&volume, IoLimits::NONE).expect("no limits");
    assert_eq!(limits(&pod), "");
    node.store.limit_io(&volume, LIMITED).expect("limits");
    assert_eq!(limits(&pod), line(LIMIT.get()));

    // A volume without limits has none on the device that follows.
    node.unpublish("pvc-1", PUBLISH).await.expect("unpublish");
    node.store.limit_io(&volume, IoLimits::NONE).expect("no limits");
    node.publish_block("pvc-1", PUBLISH).await.expect("publish");
    assert_eq!(limits(&pod), "");
    node.unpublish("pvc-1", PUBLISH).await.expect("unpublish");
    node.stop().await;
}
