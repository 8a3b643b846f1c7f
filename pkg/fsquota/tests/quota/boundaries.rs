//! Moves and links between volumes, and inheritance within them.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, symlink};

use fsquota::{Drift, ProjectId};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, RenameFlags, renameat2};
use nix::libc::{EXDEV, O_TMPFILE};
use nix::sys::stat::Mode;
use nix::unistd::{linkat, mkfifo};
use units::{Bytes, Inodes};

use crate::files::{mib, write, xfs_io_ok};
use crate::volumes::{SIZE, Volumes, size};

/// The result of `strays` for each name.
fn drifts(volumes: &Volumes, name: &str, id: ProjectId) -> Vec<(String, Drift)> {
    let dir = File::open(volumes.path(name)).unwrap();
    let found = fsquota::strays(&dir, id).unwrap().map(Result::unwrap);
    let mut found: Vec<_> = found.map(|stray| (stray.path.to_str().unwrap().to_owned(), stray.drift)).collect();
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found
}

#[test]
fn new_files_inherit_the_project_at_any_depth() {
    let (volumes, dir, id) = Volumes::with_volume(size(SIZE));
    fs::create_dir_all(volumes.path("a/b/c")).unwrap();
    File::create(volumes.path("a/b/c/file")).unwrap();
    let deep = File::open(volumes.path("a/b/c")).unwrap();
    assert_eq!(fsquota::project(&deep), Ok(Some(id)));
    assert_eq!(fsquota::get(&deep).unwrap().used.inodes, Inodes::new(4));
    assert_eq!(drifts(&volumes, "a", id), []);
    drop(dir);
}

#[test]
fn files_older_than_the_project_are_not_counted() {
    let volumes = Volumes::new();
    let dir = volumes.dir("a");
    write(&volumes.path("a/before"), mib(1));
    // Set the project directly: `set` rejects this directory.
    let id = volumes.ids.next().unwrap();
    xfs_io_ok(&volumes.path("a"), &[], &[&format!("chproj {id}"), "chattr +P"]);
    write(&volumes.path("a/after"), mib(2));
    fsquota::sync(&dir).unwrap();
    assert_eq!(fsquota::get(&dir).unwrap().used.bytes, mib(2));
    assert_eq!(drifts(&volumes, "a", id), [("before".to_owned(), Drift::NoProject)]);
}

#[test]
fn without_the_inherit_flag_new_files_have_no_project() {
    let (volumes, _dir, id) = Volumes::with_volume(size(SIZE));
    fs::create_dir(volumes.path("a/old")).unwrap();
    xfs_io_ok(&volumes.path("a"), &[], &["chattr -P"]);
    fs::create_dir(volumes.path("a/new")).unwrap();
    write(&volumes.path("a/new/free"), mib(20));
    write(&volumes.path("a/old/counted"), mib(1));
    let expected = [("", Drift::NotInherited), ("new", Drift::NoProject), ("new/free", Drift::NoProject)];
    assert_eq!(drifts(&volumes, "a", id), expected.map(|(name, drift)| (name.to_owned(), drift)));
}

#[test]
fn nothing_can_be_renamed_into_another_volume() {
    let volumes = Volumes::new();
    let (_a, _) = volumes.volume("a", size(SIZE));
    let (_b, _) = volumes.volume("b", size(SIZE));
    write(&volumes.path("a/file"), mib(1));
    fs::create_dir(volumes.path("a/dir")).unwrap();
    symlink("file", volumes.path("a/link")).unwrap();
    mkfifo(&volumes.path("a/pipe"), Mode::S_IRWXU).unwrap();
    for name in ["file", "dir", "link", "pipe"] {
        let (from, to) = (volumes.path(&format!("a/{name}")), volumes.path(&format!("b/{name}")));
        assert_eq!(fs::rename(&from, &to).unwrap_err().raw_os_error(), Some(EXDEV), "{name}");
        fs::rename(&from, volumes.path("a/renamed")).unwrap();
        fs::rename(volumes.path("a/renamed"), &from).unwrap();
    }
}

#[test]
fn files_of_two_volumes_cannot_be_exchanged() {
    let volumes = Volumes::new();
    let (_a, _) = volumes.volume("a", size(SIZE));
    let (_b, _) = volumes.volume("b", size(SIZE));
    for name in ["a/one", "a/two", "b/file"] {
        write(&volumes.path(name), Bytes::KIB);
    }
    fs::create_dir(volumes.path("b/dir")).unwrap();
    let exchange = |one: &str, other: &str| {
        let flags = RenameFlags::RENAME_EXCHANGE;
        renameat2(AT_FDCWD, &volumes.path(one), AT_FDCWD, &volumes.path(other), flags)
    };
    assert_eq!(exchange("a/one", "b/file"), Err(Errno::EXDEV));
    assert_eq!(exchange("a/one", "b/dir"), Err(Errno::EXDEV));
    assert_eq!(exchange("a/one", "a/two"), Ok(()));
}

#[test]
fn nothing_can_be_linked_into_another_volume() {
    let volumes = Volumes::new();
    let (_a, _) = volumes.volume("a", size(SIZE));
    let (_b, _) = volumes.volume("b", size(SIZE));
    write(&volumes.path("a/file"), mib(1));
    symlink("file", volumes.path("a/link")).unwrap();
    mkfifo(&volumes.path("a/pipe"), Mode::S_IRWXU).unwrap();
    write(&volumes.path("outside"), mib(1));
    for from in ["a/file", "a/link", "a/pipe", "outside"] {
        let error = fs::hard_link(volumes.path(from), volumes.path("b/name")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(EXDEV), "{from}");
    }
    fs::hard_link(volumes.path("a/file"), volumes.path("a/name")).unwrap();
}

#[test]
fn an_unnamed_file_cannot_be_linked_into_another_volume() {
    let volumes = Volumes::new();
    let (_a, _) = volumes.volume("a", size(SIZE));
    let (_b, _) = volumes.volume("b", size(SIZE));
    let unnamed = OpenOptions::new().write(true).custom_flags(O_TMPFILE).open(volumes.path("a")).unwrap();
    let name = |to: &str| linkat(unnamed.as_fd(), "", AT_FDCWD, &volumes.path(to), AtFlags::AT_EMPTY_PATH);
    assert_eq!(name("b/file"), Err(Errno::EXDEV));
    assert_eq!(name("a/file"), Ok(()));
}

#[test]
fn special_files_without_a_project_can_be_linked_into_a_volume() {
    let (volumes, dir, id) = Volumes::with_volume(size(SIZE));
    mkfifo(&volumes.path("outside"), Mode::S_IRWXU).unwrap();
    fs::hard_link(volumes.path("outside"), volumes.path("a/pipe")).unwrap();
    assert_eq!(fsquota::get(&dir).unwrap().used.inodes, Inodes::new(1));
    assert_eq!(drifts(&volumes, "a", id), [("pipe".to_owned(), Drift::NoProject)]);
}

#[test]
fn a_file_moved_out_of_a_volume_stays_counted() {
    let (volumes, dir, id) = Volumes::with_volume(size(SIZE));
    write(&volumes.path("a/file"), mib(1));
    fsquota::sync(&dir).unwrap();
    fs::rename(volumes.path("a/file"), volumes.path("outside")).unwrap();
    assert_eq!(fsquota::get(&dir).unwrap().used.bytes, mib(1));
    // The project still has an inode, so it cannot be removed.
    assert!(matches!(fsquota::remove(&dir), Err(fsquota::RemoveError::InUse { id: used, .. }) if used == id));
}

#[test]
fn a_volume_can_be_moved_between_unassigned_directories() {
    let volumes = Volumes::new();
    volumes.dir("staged");
    volumes.dir("volumes");
    let (dir, id) = volumes.volume("staged/a", size(SIZE));
    fs::rename(volumes.path("staged/a"), volumes.path("volumes/a")).unwrap();
    assert_eq!(fsquota::get(&dir).unwrap().id, id);
}
