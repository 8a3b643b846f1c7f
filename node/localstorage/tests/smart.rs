//! The SMART log of an NVMe disk. The kernel's own controller (nvmet with the loopback transport) responds.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use ktest_support::Disk;
use localstorage::SmartWarnings;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};

const LIMIT: Duration = Duration::from_secs(60);
const NAME: &str = "nqn.2026-01.dev.granary:ktest";

/// Creates a controller for the disk, and returns the path of the NVMe disk.
fn nvme(disk: &Path) -> PathBuf {
    let config = Path::new("/sys/kernel/config");
    mount(Some("configfs"), config, Some("configfs"), MsFlags::empty(), None::<&str>).unwrap();
    let (subsystem, port) = (config.join("nvmet/subsystems").join(NAME), config.join("nvmet/ports/1"));
    let namespace = subsystem.join("namespaces/1");
    fs::create_dir(&subsystem).unwrap();
    fs::write(subsystem.join("attr_allow_any_host"), "1").unwrap();
    fs::create_dir(&namespace).unwrap();
    fs::write(namespace.join("device_path"), disk.to_str().unwrap()).unwrap();
    fs::write(namespace.join("enable"), "1").unwrap();
    fs::create_dir(&port).unwrap();
    fs::write(port.join("addr_trtype"), "loop").unwrap();
    symlink(&subsystem, port.join("subsystems").join(NAME)).unwrap();
    let mut fabrics = File::options().read(true).write(true).open("/dev/nvme-fabrics").unwrap();
    fabrics.write_all(format!("transport=loop,nqn={NAME}").as_bytes()).unwrap();
    // The kernel scans for namespaces in the background.
    let (device, end) = (PathBuf::from("/dev/nvme0n1"), Instant::now() + LIMIT);
    while !device.exists() {
        assert!(Instant::now() < end, "waited for {}", device.display());
        thread::sleep(Duration::from_millis(20));
    }
    device
}

#[test]
fn warnings_of_an_nvme_disk_are_read() {
    let disk = Disk::take();
    assert_eq!(SmartWarnings::read(File::open(disk.path()).unwrap()), Err(Errno::ENOTTY));
    let nvme = nvme(disk.path());
    let warnings = SmartWarnings::read(File::open(&nvme).unwrap()).unwrap();
    assert_eq!(warnings.count(), 0, "{warnings}");
    fs::write("/sys/class/nvme/nvme0/delete_controller", "1").unwrap();
}
