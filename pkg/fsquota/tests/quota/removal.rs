//! Removal of projects.

use std::fs::{self, File};

use fsquota::{Ensured, GetError, Limits, Quotas, RemoveError};
use nix::libc::ENOSPC;

use crate::files::{fill, mib, write};
use crate::volumes::{SIZE, Volumes, both, size};

#[test]
fn remove_clears_id_and_limits() {
    let (volumes, dir, id) = Volumes::with_volume(both(SIZE, 100));
    assert_eq!(fsquota::remove(&dir), Ok(Some(id)));
    assert_eq!(fsquota::project(&dir), Ok(None));
    assert_eq!(fsquota::get(&dir), Err(GetError::NotFound));
    assert_eq!(fsquota::quota(&volumes.root, id).unwrap().limits, Limits::default());
    assert!(!volumes.reported().contains(&id));
    assert_eq!(fsquota::remove(&dir), Ok(None));
    write(&volumes.path("a/data"), mib(20));
}

#[test]
fn remove_rejects_a_directory_with_content() {
    let (volumes, dir, _) = Volumes::with_volume(both(SIZE, 100));
    write(&volumes.path("a/data"), mib(1));
    assert_eq!(fsquota::remove(&dir), Err(RemoveError::NotEmpty));
    assert_eq!(fsquota::get(&dir).unwrap().limits, both(SIZE, 100));
}

#[test]
fn remove_rejects_a_project_with_open_deleted_files() {
    let (volumes, dir, id) = Volumes::with_volume(size(SIZE));
    let open = File::create(volumes.path("a/data")).unwrap();
    fs::remove_file(volumes.path("a/data")).unwrap();
    assert!(matches!(fsquota::remove(&dir), Err(RemoveError::InUse { .. })));
    let (written, error) = fill(&open);
    assert_eq!((written, error.raw_os_error()), (SIZE, Some(ENOSPC)));
    drop(open);
    assert_eq!(fsquota::remove(&dir), Ok(Some(id)));
}

#[test]
fn remove_does_not_count_deleted_files() {
    let (volumes, dir, id) = Volumes::with_volume(size(SIZE));
    // XFS frees deleted files in the background; `remove` waits for it.
    (0..200).for_each(|n| drop(File::create(volumes.path(&format!("a/{n}"))).unwrap()));
    (0..200).for_each(|n| fs::remove_file(volumes.path(&format!("a/{n}"))).unwrap());
    assert_eq!(fsquota::remove(&dir), Ok(Some(id)));
}

#[test]
fn clear_removes_limits_of_a_deleted_directory() {
    let (volumes, dir, id) = Volumes::with_volume(both(SIZE, 100));
    assert!(matches!(Quotas::open(&volumes.root).unwrap().clear(id), Err(RemoveError::InUse { .. })));
    fs::remove_dir(volumes.path("a")).unwrap();
    drop(dir);
    Quotas::open(&volumes.root).unwrap().clear(id).unwrap();
    assert_eq!(fsquota::quota(&volumes.root, id).unwrap().limits, Limits::default());
    Quotas::open(&volumes.root).unwrap().clear(id).unwrap();
}

#[test]
fn the_id_of_a_deleted_directory_can_be_assigned() {
    let (volumes, dir, id) = Volumes::with_volume(size(SIZE));
    (0..200).for_each(|n| drop(File::create(volumes.path(&format!("a/{n}"))).unwrap()));
    drop(dir);
    fs::remove_dir_all(volumes.path("a")).unwrap();
    // XFS frees deleted files in the background; `assign` waits for it.
    assert_eq!(fsquota::assign(volumes.dir("a"), id, size(SIZE)).unwrap(), Ensured::Created(id));
}
