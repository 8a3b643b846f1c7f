//! The environment of a test program in the guest.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use ktest_support::{Disk, Tmpfs, XfsDisk, boot};

fn mounts() -> String {
    fs::read_to_string("/proc/self/mounts").unwrap()
}

#[test]
fn the_kernel_is_the_nodes() {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert!(release.starts_with("6.12."), "{release}");
}

#[test]
fn the_first_process_is_the_guests_init() {
    assert_eq!(fs::read_link("/proc/1/exe").unwrap(), Path::new("/init"));
    assert_eq!(fs::read_to_string("/proc/self/stat").unwrap().split(' ').nth(3), Some("1"));
}

#[test]
fn the_system_is_mounted() {
    let mounts = mounts();
    let found: BTreeSet<&str> = mounts.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    for target in ["/proc", "/sys", "/dev", "/sys/kernel/debug", "/tmp", "/run"] {
        assert!(found.contains(target), "{target} is not among {found:?}");
    }
}

#[test]
fn the_loopback_device_is_up() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    TcpStream::connect(listener.local_addr().unwrap()).unwrap();
}

#[test]
fn a_test_without_a_power_cut_sees_one_boot() {
    assert_eq!(boot(), 1);
}

#[test]
fn only_the_tools_that_were_asked_for_are_there() {
    let tools: Vec<_> = fs::read_dir("/usr/bin").unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(tools, ["mkfs.xfs"]);
}

#[test]
fn a_scratch_disk_has_the_size_that_was_asked_for() {
    let disk = Disk::take();
    let name = disk.path().file_name().unwrap();
    let sectors = fs::read_to_string(Path::new("/sys/block").join(name).join("size")).unwrap();
    assert_eq!(sectors.trim(), "2097152");
}

#[test]
fn every_scratch_disk_is_listed_in_order() {
    let list = env::var("KTEST_DISKS").unwrap();
    let serials: Vec<String> = list
        .split(',')
        .map(|device| {
            let name = Path::new(device).file_name().unwrap();
            fs::read_to_string(Path::new("/sys/block").join(name).join("serial")).unwrap()
        })
        .collect();
    assert_eq!(serials, ["scratch-0", "scratch-1"]);
}

#[test]
fn an_xfs_disk_lasts_as_long_as_its_value() {
    let disk = XfsDisk::with_project_quota();
    let path = disk.path().to_owned();
    let line = format!("{} {} xfs ", disk.device().display(), path.display());
    let mounted = mounts();
    let options = mounted.lines().find(|mount| mount.starts_with(&line)).unwrap();
    assert!(options.contains("prjquota"), "{options}");
    fs::write(path.join("file"), "content").unwrap();
    drop(disk);
    assert!(!mounts().contains(&line));
    assert_eq!(fs::metadata(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn an_xfs_disk_may_have_no_quota() {
    let disk = XfsDisk::without_quota();
    let line = format!("{} {} xfs ", disk.device().display(), disk.path().display());
    let mounted = mounts();
    let options = mounted.lines().find(|mount| mount.starts_with(&line)).unwrap();
    assert!(options.contains("noquota"), "{options}");
}

#[test]
fn a_tmpfs_is_empty_and_its_own() {
    let (one, two) = (Tmpfs::mount(), Tmpfs::mount());
    fs::write(one.path().join("file"), "content").unwrap();
    assert_eq!(fs::read_dir(two.path()).unwrap().count(), 0);
}

#[test]
fn a_tool_finds_its_libraries() {
    let output = Command::new("mkfs.xfs").arg("-V").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("mkfs.xfs version "), "{output:?}");
}
