//! Moves of directories with their content to another project.

use std::fs::{self, File};
use std::os::unix::fs::symlink;

use fsquota::{Limits, ProjectId, Quota, SetError, TransferError, Transferred};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use units::Inodes;

use crate::volumes::{SIZE, Volumes, both, size};

const TO: ProjectId = ProjectId::new(1 << 31).unwrap();

#[test]
fn all_that_is_in_a_directory_is_counted_to_its_new_project() {
    let (volumes, dir, from) = Volumes::with_volume(both(SIZE, 100));
    fs::create_dir_all(volumes.path("a/one/two")).unwrap();
    fs::write(volumes.path("a/one/two/file"), vec![1; 1 << 20]).unwrap();
    fs::hard_link(volumes.path("a/one/two/file"), volumes.path("a/again")).unwrap();
    fsquota::sync(&dir).unwrap();
    let used = fsquota::get(&dir).unwrap().used;
    assert_eq!(used.inodes, Inodes::new(4));

    let limits = both(SIZE.checked_mul(2).unwrap(), 50);
    assert_eq!(fsquota::transfer(&dir, TO, limits).unwrap(), Transferred { from, left: None });
    assert_eq!(fsquota::get(&dir).unwrap(), Quota { id: TO, limits, shown: limits, used });
    assert_eq!(volumes.reported(), [TO]);
    assert_eq!(fsquota::strays(&dir, TO).unwrap().count(), 0);
    // New files inherit the new project, and can be renamed within the directory.
    File::create(volumes.path("a/one/new")).unwrap();
    fs::rename(volumes.path("a/one/new"), volumes.path("a/one/two/new")).unwrap();
    assert_eq!(fsquota::get(&dir).unwrap().used.inodes, Inodes::new(5));
}

#[test]
fn entries_that_the_kernel_cannot_move_keep_their_project() {
    let volumes = Volumes::new();
    let limits = both(SIZE, 100);
    let (dir, from) = volumes.volume("a", limits);
    symlink("nowhere", volumes.path("a/link")).unwrap();
    // Opening the pipe would wait for a writer.
    mkfifo(&volumes.path("a/pipe"), Mode::S_IRWXU).unwrap();
    fs::write(volumes.path("a/file"), "x").unwrap();
    let left = fsquota::transfer(&dir, TO, limits).unwrap().left;
    assert_eq!(left.map(|used| used.inodes), Some(Inodes::new(2)));
    assert_eq!(fsquota::get(&dir).unwrap().used.inodes, Inodes::new(2));
    let former = fsquota::quota(&dir, from).unwrap();
    assert_eq!((former.limits, former.used.inodes), (limits, Inodes::new(2)));
}

#[test]
fn a_directory_that_has_no_project_of_its_own_is_left_alone() {
    let (volumes, _dir, from) = Volumes::with_volume(size(SIZE));
    fs::create_dir(volumes.path("a/below")).unwrap();
    let below = File::open(volumes.path("a/below")).unwrap();
    let refused = fsquota::transfer(&below, TO, size(SIZE));
    assert!(matches!(refused, Err(TransferError::Set(SetError::Nested { outer })) if outer == from), "{refused:?}");
    let plain = volumes.dir("b");
    assert!(matches!(fsquota::transfer(&plain, TO, size(SIZE)), Err(TransferError::NotFound)));
    let refused = fsquota::transfer(&below, TO, Limits::default());
    assert!(matches!(refused, Err(TransferError::Set(SetError::NoLimit))), "{refused:?}");
    assert_eq!(volumes.reported(), [from]);
}
