//! [`Quotas`].

use std::fs::{self, File};

use fsquota::{Limits, Quotas, RemoveError, SetError};
use nix::errno::Errno;

use crate::volumes::{SIZE, Volumes, both, size};

#[test]
fn assign_new_sets_limits_and_project() {
    let volumes = Volumes::new();
    let quotas = Quotas::open(&volumes.root).unwrap();
    let (dir, id) = (volumes.dir("a"), volumes.ids.next().unwrap());
    quotas.assign_new(&dir, id, both(SIZE, 100)).unwrap();
    assert_eq!(fsquota::get(&dir).unwrap(), quotas.quota(id).unwrap());
    assert_eq!(quotas.quota(id).unwrap().limits, both(SIZE, 100));
    fs::write(volumes.path("a/file"), b"x").unwrap();
    fs::create_dir(volumes.path("a/sub")).unwrap();
    assert_eq!(fsquota::project(File::open(volumes.path("a/sub")).unwrap()), Ok(Some(id)));
    assert_eq!(quotas.report().map(Result::unwrap).collect::<Vec<_>>(), [quotas.quota(id).unwrap()]);
}

#[test]
fn assign_new_rejects_assigned_directories_and_used_ids() {
    let volumes = Volumes::new();
    let quotas = Quotas::open(&volumes.root).unwrap();
    let (taken, used) = volumes.volume("a", size(SIZE));
    let (new, other) = (volumes.dir("b"), volumes.ids.next().unwrap());
    assert!(matches!(quotas.assign_new(&new, used, size(SIZE)), Err(SetError::InUse { id, .. }) if id == used));
    assert_eq!(fsquota::project(&new), Ok(None));
    fs::create_dir(volumes.path("a/sub")).unwrap();
    let inherited = File::open(volumes.path("a/sub")).unwrap();
    for dir in [&taken, &inherited] {
        let refused = quotas.assign_new(dir, other, size(SIZE));
        assert!(matches!(refused, Err(SetError::OtherProject { found, .. }) if found == used), "{refused:?}");
    }
    assert!(matches!(quotas.assign_new(&new, other, Limits::default()), Err(SetError::NoLimit)));
    assert_eq!(quotas.quota(other).unwrap().limits, Limits::default());
}

#[test]
fn an_open_deleted_file_keeps_the_limits() {
    let volumes = Volumes::new();
    let quotas = Quotas::open(&volumes.root).unwrap();
    // More inodes than one call returns, so that the file's inode is not in the first result.
    (0..200).for_each(|n| drop(File::create(volumes.path(&n.to_string())).unwrap()));
    let (dir, id) = volumes.volume("a", size(SIZE));
    assert_eq!(quotas.is_carried(id), Ok(true));
    let open = File::create(volumes.path("a/file")).unwrap();
    fs::remove_dir_all(volumes.path("a")).unwrap();
    drop(dir);
    assert!(matches!(quotas.clear(id), Err(RemoveError::InUse { .. })));
    assert_eq!(quotas.is_carried(id), Ok(false));
    drop(open);
    quotas.clear(id).unwrap();
}

#[test]
fn projects_can_be_moved_through_a_disowned_directory() {
    let volumes = Volumes::new();
    let (between, id) = volumes.volume("between", size(SIZE));
    volumes.volume("a", size(SIZE));
    let refused = fs::rename(volumes.path("a"), volumes.path("between/a")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::EXDEV as i32));
    assert_eq!(fsquota::disown(&between), Ok(true));
    assert_eq!(fsquota::disown(&between), Ok(false));
    fs::rename(volumes.path("a"), volumes.path("between/a")).unwrap();
    assert_eq!(fsquota::quota(&volumes.root, id).unwrap().limits, size(SIZE));
}
