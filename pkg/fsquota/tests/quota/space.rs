//! Results of `statfs` inside a volume.

use std::fs::{self, File};

use fsquota::Quotas;
use nix::libc::ENOSPC;
use nix::sys::statvfs::{Statvfs, statvfs};
use units::{Bytes, Inodes};

use crate::files::{fill, mib, write, xfs_io_ok};
use crate::volumes::{SIZE, Volumes, both, size};

/// Size, free and available space like df prints them.
fn bytes(seen: &Statvfs) -> [Bytes; 3] {
    [seen.blocks(), seen.blocks_free(), seen.blocks_available()].map(|blocks| Bytes::new(blocks * seen.fragment_size()))
}

#[test]
fn statfs_of_a_volume_shows_its_limits() {
    let (volumes, dir, _) = Volumes::with_volume(both(SIZE, 100));
    write(&volumes.path("a/data"), mib(4));
    fsquota::sync(&dir).unwrap();
    let seen = statvfs(&volumes.path("a")).unwrap();
    assert_eq!(bytes(&seen), [SIZE, mib(12), mib(12)]);
    assert_eq!([seen.files(), seen.files_free()], [100, 98]);
    let quota = fsquota::get(&dir).unwrap();
    assert_eq!((quota.used.bytes, quota.used.inodes), (mib(4), Inodes::new(2)));
}

#[test]
fn statfs_of_subdirectories_shows_the_limits() {
    let (volumes, _dir, _) = Volumes::with_volume(both(SIZE, 100));
    fs::create_dir_all(volumes.path("a/b/c")).unwrap();
    assert_eq!(bytes(&statvfs(&volumes.path("a/b/c")).unwrap())[0], SIZE);
    // Files have no inherit flag, and statfs uses it.
    write(&volumes.path("a/data"), mib(1));
    let whole = bytes(&statvfs(&volumes.path(".")).unwrap())[0];
    assert_eq!(bytes(&statvfs(&volumes.path("a/data")).unwrap())[0], whole);
}

#[test]
fn statfs_shows_no_free_space_above_the_limit() {
    let (volumes, dir, id) = Volumes::with_volume(both(SIZE, 100));
    write(&volumes.path("a/data"), mib(4));
    fsquota::sync(&dir).unwrap();
    fsquota::set_limits(&dir, id, both(mib(1), 1)).unwrap();
    let seen = statvfs(&volumes.path("a")).unwrap();
    assert_eq!(bytes(&seen), [mib(1), Bytes::ZERO, Bytes::ZERO]);
    assert_eq!([seen.files(), seen.files_free()], [1, 0]);
}

#[test]
fn statfs_can_show_less_than_the_limit() {
    let (volumes, dir, id) = Volumes::with_volume(both(mib(4), 100));
    let quotas = Quotas::open(&volumes.root).unwrap();
    quotas.set_limits_showing(id, size(SIZE), mib(4)).unwrap();
    let (written, error) = fill(&File::create(volumes.path("a/data")).unwrap());
    assert_eq!((written, error.raw_os_error()), (SIZE, Some(ENOSPC)));
    let seen = statvfs(&volumes.path("a")).unwrap();
    assert_eq!((bytes(&seen), seen.files()), ([mib(4), Bytes::ZERO, Bytes::ZERO], 100));
    let quota = fsquota::get(&dir).unwrap();
    assert_eq!((quota.limits, quota.shown, quota.used.bytes), (both(SIZE, 100), both(mib(4), 100), SIZE));
    quotas.set_limits(id, size(SIZE)).unwrap();
    assert_eq!(bytes(&statvfs(&volumes.path("a")).unwrap())[0], SIZE);
}

#[test]
fn statfs_shows_at_most_the_size_of_the_disk() {
    let (volumes, _dir, _) = Volumes::with_volume(size(Bytes::TIB));
    let inside = bytes(&statvfs(&volumes.path("a")).unwrap());
    assert_eq!(inside, bytes(&statvfs(&volumes.path(".")).unwrap()));
}

#[test]
fn statfs_shows_at_most_the_free_space_of_the_disk() {
    let (volumes, _dir, _) = Volumes::with_volume(size(mib(500)));
    xfs_io_ok(&volumes.path("outside"), &["-f"], &["falloc 0 700m"]);
    let inside = bytes(&statvfs(&volumes.path("a")).unwrap());
    let [_, free, available] = bytes(&statvfs(&volumes.path(".")).unwrap());
    assert_eq!(inside, [mib(500), free, available]);
    assert!(free < mib(400), "{free}");
}

#[test]
fn statfs_outside_shows_the_whole_file_system() {
    let volumes = Volumes::new();
    let before = bytes(&statvfs(&volumes.path(".")).unwrap())[0];
    let (_dir, _) = volumes.volume("a", both(SIZE, 100));
    assert_eq!(bytes(&statvfs(&volumes.path(".")).unwrap())[0], before);
}
