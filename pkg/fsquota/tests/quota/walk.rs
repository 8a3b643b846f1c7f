//! [`fsquota::strays`].

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use fsquota::{Drift, ProjectId, WalkError};
use ktest_support::unmount;
use nix::fcntl::{OFlag, openat};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::mkfifo;
use units::Inodes;

use crate::files::xfs_io_ok;
use crate::volumes::{SIZE, Volumes, size};

fn walked(dir: &File, id: ProjectId) -> BTreeMap<PathBuf, Drift> {
    fsquota::strays(dir, id).unwrap().map(|found| found.map(|stray| (stray.path, stray.drift)).unwrap()).collect()
}

#[test]
fn inodes_with_another_project_are_found() {
    let volumes = Volumes::new();
    let (dir, id) = volumes.volume("a", size(SIZE));
    let (_other, other) = volumes.volume("b", size(SIZE));
    fs::create_dir_all(volumes.path("a/one/two")).unwrap();
    for name in ["a/kept", "a/freed", "a/one/moved", "a/one/two/kept"] {
        File::create(volumes.path(name)).unwrap();
    }
    assert_eq!(walked(&dir, id), BTreeMap::new());
    xfs_io_ok(&volumes.path("a/freed"), &[], &["chproj 0"]);
    xfs_io_ok(&volumes.path("a/one/moved"), &[], &[&format!("chproj {other}")]);
    xfs_io_ok(&volumes.path("a/one/two"), &[], &["chattr -P"]);
    let expected =
        [("freed", Drift::NoProject), ("one/moved", Drift::OtherProject(other)), ("one/two", Drift::NotInherited)];
    assert_eq!(walked(&dir, id), expected.map(|(path, drift)| (PathBuf::from(path), drift)).into());
}

#[test]
fn a_directory_without_its_project_is_found() {
    let (volumes, dir, id) = Volumes::with_volume(size(SIZE));
    xfs_io_ok(&volumes.path("a"), &[], &["chproj 0", "chattr -P"]);
    assert_eq!(walked(&dir, id), [(PathBuf::new(), Drift::NoProject)].into());
}

#[test]
fn a_walk_skips_links_mounts_and_pipes() {
    let (volumes, dir, id) = Volumes::with_volume(size(SIZE));
    volumes.dir("outside");
    File::create(volumes.path("outside/file")).unwrap();
    symlink(volumes.path("outside"), volumes.path("a/link")).unwrap();
    // Opening the pipe would wait for a writer.
    mkfifo(&volumes.path("a/pipe"), Mode::S_IRWXU).unwrap();
    volumes.dir("a/mounted");
    let target = volumes.path("a/mounted");
    mount(Some(&volumes.path("outside")), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let found = walked(&dir, id);
    unmount(&target).unwrap();
    assert_eq!(found, BTreeMap::new());
}

#[test]
fn a_directory_that_is_too_deep_is_reported_and_skipped() {
    let (volumes, dir, id) = Volumes::with_volume(size(SIZE));
    let deepest = (0..200).fold(File::open(volumes.path("a")).unwrap(), |above, _| {
        mkdirat(&above, "d", Mode::S_IRWXU).unwrap();
        openat(&above, "d", OFlag::O_RDONLY, Mode::empty()).unwrap().into()
    });
    drop(deepest);
    File::create(volumes.path("a/stray")).unwrap();
    xfs_io_ok(&volumes.path("a/stray"), &[], &["chproj 0"]);
    let found: Vec<_> = fsquota::strays(&dir, id).unwrap().collect();
    let too_deep = |found: &Result<_, _>| matches!(found, Err(WalkError::TooDeep { path, limit }) if path.components().count() == limit + 1);
    assert_eq!(found.iter().filter(|found| too_deep(found)).count(), 1, "{found:?}");
    let strays: Vec<_> = found.iter().flatten().map(|stray| stray.path.as_path()).collect();
    assert_eq!(strays, [Path::new("stray")]);
}

#[test]
fn a_large_directory_is_walked_completely() {
    let (volumes, dir, id) = Volumes::with_volume(size(SIZE));
    (0..2000).for_each(|n| drop(File::create(volumes.path(&format!("a/{n}"))).unwrap()));
    xfs_io_ok(&volumes.path("a/1999"), &[], &["chproj 0"]);
    assert_eq!(walked(&dir, id), [(PathBuf::from("1999"), Drift::NoProject)].into());
}

#[test]
fn a_walk_ends_after_the_given_number_of_inodes() {
    let (volumes, dir, id) = Volumes::with_volume(size(SIZE));
    for n in 0..20 {
        let name = format!("a/{n}");
        File::create(volumes.path(&name)).unwrap();
        xfs_io_ok(&volumes.path(&name), &[], &["chproj 0"]);
    }
    for most in [0, 1, 7, 20] {
        assert_eq!(fsquota::strays(&dir, id).unwrap().at_most(Inodes::new(most)).count() as u64, most);
    }
    assert_eq!(fsquota::strays(&dir, id).unwrap().at_most(Inodes::new(21)).count(), 20);
}
