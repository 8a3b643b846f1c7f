//! Requests of a test to the host: statistics, disks that fail, power cuts.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use ktest_support::{BlockStats, Disk, XfsDisk, block_stats, boot, cut, power_cut, unmount};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};

/// Opens a device with O_DIRECT: the page cache would answer requests by itself.
fn direct(device: &Path) -> File {
    File::options().read(true).write(true).custom_flags(nix::libc::O_DIRECT).open(device).unwrap()
}

#[repr(align(4096))]
struct Block([u8; 4096]);

#[test]
fn an_fsync_is_a_flush_and_doing_nothing_is_none() {
    let disk = XfsDisk::with_project_quota();
    let mut file = File::create(disk.path().join("file")).unwrap();
    file.write_all(b"content").unwrap();
    file.sync_all().unwrap();

    let start = block_stats(disk.device());
    let idle = block_stats(disk.device()).since(start);
    assert_eq!(idle, BlockStats::default());

    file.write_all(b"more").unwrap();
    file.sync_all().unwrap();
    let synced = block_stats(disk.device()).since(start);
    assert!(synced.flushes >= 1 && synced.writes >= 1, "{synced:?}");
    assert!(synced.written_bytes >= 4096, "{synced:?}");
}

#[test]
fn a_disk_is_counted_by_itself() {
    let [one, two] = Disk::take_several();
    let before = [&one, &two].map(|disk| block_stats(disk.path()));
    direct(one.path()).write_all_at(&Block([1; 4096]).0, 0).unwrap();
    let [one, two] =
        [(&one, before[0]), (&two, before[1])].map(|(disk, before)| block_stats(disk.path()).since(before));
    assert_eq!((one.writes, one.written_bytes), (1, 4096));
    assert!(one.write_ns > 0, "{one:?}");
    assert_eq!((two.writes, two.written_bytes, two.write_ns), (0, 0, 0));
}

#[test]
fn a_disk_that_is_cut_off_fails_and_the_other_goes_on() {
    let [dead, alive] = Disk::take_several();
    let (on_dead, on_alive) = (direct(dead.path()), direct(alive.path()));
    let mut block = Block([7; 4096]);
    on_dead.write_all_at(&block.0, 0).unwrap();
    let off = cut(dead.path());
    for error in
        [on_dead.write_all_at(&block.0, 4096).unwrap_err(), on_dead.read_exact_at(&mut block.0, 0).unwrap_err()]
    {
        assert_eq!(error.raw_os_error(), Some(Errno::EIO as i32), "{error}");
    }
    on_alive.write_all_at(&block.0, 0).unwrap();
    on_alive.sync_all().unwrap();

    drop(off);
    block.0.fill(0);
    on_dead.read_exact_at(&mut block.0, 0).unwrap();
    assert_eq!(block.0, [7; 4096]);
    on_dead.write_all_at(&block.0, 4096).unwrap();
}

#[test]
fn a_flush_of_a_disk_that_is_cut_off_fails() {
    let disk = Disk::take();
    let mut device = File::options().write(true).open(disk.path()).unwrap();
    let _off = cut(disk.path());
    device.write_all(&[1; 4096]).unwrap();
    assert_eq!(device.sync_all().unwrap_err().raw_os_error(), Some(Errno::EIO as i32));
}

#[test]
fn a_file_system_on_a_cut_disk_fails_and_can_be_unmounted() {
    let disk = XfsDisk::without_quota();
    let mut file = File::create(disk.path().join("file")).unwrap();
    file.sync_all().unwrap();
    let _off = cut(disk.device());
    file.write_all(b"content").unwrap();
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(Errno::EIO as i32));
}

#[test]
fn synced_data_survives_a_power_cut_and_the_rest_does_not() {
    if boot() == 1 {
        let disk = XfsDisk::without_quota();
        let mut synced = File::create(disk.path().join("synced")).unwrap();
        synced.write_all(b"content").unwrap();
        synced.sync_all().unwrap();
        File::open(disk.path()).unwrap().sync_all().unwrap();
        let mut unsynced = File::create(disk.path().join("unsynced")).unwrap();
        unsynced.write_all(&[1; 1 << 20]).unwrap();
        power_cut();
    }
    assert_eq!(boot(), 2);
    let disk = Disk::take();
    let target = Path::new("/tmp/power-cut");
    fs::create_dir(target).unwrap();
    mount(Some(disk.path()), target, Some("xfs"), MsFlags::empty(), None::<&str>).unwrap();
    assert_eq!(fs::read(target.join("synced")).unwrap(), b"content");
    assert!(!target.join("unsynced").exists());
    unmount(target).unwrap();
}

#[test]
fn a_test_gets_the_same_disks_after_a_power_cut() {
    let [first, second] = Disk::take_several();
    for (disk, number) in [(&first, 1), (&second, 2)] {
        let on_disk = direct(disk.path());
        let mut block = Block([0; 4096]);
        if boot() == 1 {
            block.0.fill(number);
            on_disk.write_all_at(&block.0, 8192).unwrap();
            on_disk.sync_all().unwrap();
        } else {
            on_disk.read_exact_at(&mut block.0, 8192).unwrap();
            assert_eq!(block.0, [number; 4096]);
        }
    }
    match boot() {
        1 | 2 => power_cut(),
        number => assert_eq!(number, 3),
    }
}
