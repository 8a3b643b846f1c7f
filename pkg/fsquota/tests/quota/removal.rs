//! How a project ends.

use std::fs::{self, File};

use fsquota::{Ensured, GetError, Limits, RemoveError};
use nix::libc::ENOSPC;

use crate::files::{fill, mib, write};
use crate::volumes::{SIZE, Volumes, both, size};

#[test]
fn a_removed_project_leaves_neither_id_nor_limits() {
    let volumes = Volumes::new();
    let (dir, id) = volumes.volume("a", both(SIZE, 100));
    assert_eq!(fsquota::remove(&dir), Ok(Some(id)));
    assert_eq!(fsquota::project(&dir), Ok(None));
    assert_eq!(fsquota::get(&dir), Err(GetError::NotFound));
    assert_eq!(fsquota::quota(&volumes.root, id).unwrap().limits, Limits::default());
    assert!(!volumes.reported().contains(&id));
    assert_eq!(fsquota::remove(&dir), Ok(None));
    write(&volumes.path("a/data"), mib(20));
}

#[test]
fn a_project_stays_while_there_is_data_in_its_directory() {
    let volumes = Volumes::new();
    let (dir, _) = volumes.volume("a", both(SIZE, 100));
    write(&volumes.path("a/data"), mib(1));
    assert_eq!(fsquota::remove(&dir), Err(RemoveError::NotEmpty));
    assert_eq!(fsquota::get(&dir).unwrap().limits, both(SIZE, 100));
}

#[test]
fn limits_stand_while_a_deleted_file_is_open() {
    let volumes = Volumes::new();
    let (dir, id) = volumes.volume("a", size(SIZE));
    let open = File::create(volumes.path("a/data")).unwrap();
    fs::remove_file(volumes.path("a/data")).unwrap();
    assert!(matches!(fsquota::remove(&dir), Err(RemoveError::InUse { .. })));
    let (written, error) = fill(&open);
    assert_eq!((written, error.raw_os_error()), (SIZE, Some(ENOSPC)));
    drop(open);
    assert_eq!(fsquota::remove(&dir), Ok(Some(id)));
}

#[test]
fn a_project_goes_at_once_when_its_files_were_deleted() {
    let volumes = Volumes::new();
    let (dir, id) = volumes.volume("a", size(SIZE));
    // XFS frees them in the background; `remove` does not ask the caller to wait for that.
    (0..200).for_each(|n| drop(File::create(volumes.path(&format!("a/{n}"))).unwrap()));
    (0..200).for_each(|n| fs::remove_file(volumes.path(&format!("a/{n}"))).unwrap());
    assert_eq!(fsquota::remove(&dir), Ok(Some(id)));
}

#[test]
fn limits_go_when_the_directory_was_deleted_first() {
    let volumes = Volumes::new();
    let (dir, id) = volumes.volume("a", both(SIZE, 100));
    assert!(matches!(fsquota::clear(&volumes.root, id), Err(RemoveError::InUse { .. })));
    fs::remove_dir(volumes.path("a")).unwrap();
    drop(dir);
    fsquota::clear(&volumes.root, id).unwrap();
    assert_eq!(fsquota::quota(&volumes.root, id).unwrap().limits, Limits::default());
    fsquota::clear(&volumes.root, id).unwrap();
}

#[test]
fn an_id_whose_directory_was_just_deleted_can_be_assigned_again() {
    let volumes = Volumes::new();
    let (dir, id) = volumes.volume("a", size(SIZE));
    (0..200).for_each(|n| drop(File::create(volumes.path(&format!("a/{n}"))).unwrap()));
    drop(dir);
    fs::remove_dir_all(volumes.path("a")).unwrap();
    // XFS frees them in the background; `assign` does not take that for a use.
    assert_eq!(fsquota::assign(volumes.dir("a"), id, size(SIZE)).unwrap(), Ensured::Created(id));
}
