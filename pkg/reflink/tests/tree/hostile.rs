//! Trees that a tenant built to attack the node or the clone.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use fsquota::{ProjectId, Quotas};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};
use reflink::MAX_DEPTH;
use rustix::fs::{IFlags, XattrFlags, ioctl_getflags, ioctl_setflags, lsetxattr};
use units::Bytes;

use crate::{Stage, limits};

/// `NAME_MAX`, include/uapi/linux/limits.h.
const LONGEST: usize = 255;

fn directory(path: &Path) -> OwnedFd {
    File::open(path).unwrap().into()
}

fn below(dir: &OwnedFd, name: &str, flags: OFlag) -> OwnedFd {
    openat(dir, name, flags | OFlag::O_CLOEXEC, Mode::S_IRWXU).unwrap()
}

/// The path of the file has 32 KiB, which is longer than any that a system call takes (`PATH_MAX`).
#[test]
fn a_path_that_is_longer_than_any_call_takes_is_cloned() {
    let stage = Stage::new();
    let name = "n".repeat(LONGEST);
    let mut dir = directory(&stage.from);
    for _ in 0..MAX_DEPTH {
        mkdirat(&dir, name.as_str(), Mode::S_IRWXU).unwrap();
        dir = below(&dir, &name, OFlag::O_DIRECTORY);
    }
    drop(below(&dir, &name, OFlag::O_WRONLY | OFlag::O_CREAT));
    let clone = stage.approached();
    let written = below(&dir, &name, OFlag::O_WRONLY);
    nix::unistd::write(&written, b"deep").unwrap();
    stage.complete(clone);
    let mut copy = directory(&stage.to);
    for _ in 0..MAX_DEPTH {
        copy = below(&copy, &name, OFlag::O_DIRECTORY);
    }
    let mut content = String::new();
    File::from(below(&copy, &name, OFlag::O_RDONLY)).read_to_string(&mut content).unwrap();
    assert_eq!(content, "deep");
}

#[test]
fn attributes_of_the_largest_number_and_size_are_cloned() {
    let stage = Stage::new();
    for entry in ["file", "dir"] {
        let path = stage.from.join(entry);
        if entry == "dir" {
            fs::create_dir(&path).unwrap();
        } else {
            fs::write(&path, "").unwrap();
        }
        // The names take 55 KiB of the 64 KiB that a list can have.
        for number in 0..220 {
            lsetxattr(&path, format!("user.{number:0250}"), &[7; 300], XattrFlags::empty()).unwrap();
        }
        lsetxattr(&path, "user.largest", &[9; 1 << 16], XattrFlags::empty()).unwrap();
    }
    let clone = stage.approached();
    stage.complete(clone);
    stage.expect_equal();
}

/// Root in a container may protect files (`chattr +i`), and the owner of a file may change its project. A clone with
/// these flags could not be removed, and one with this project would not count to the limit of the clone.
#[test]
fn flags_and_projects_of_the_source_are_not_cloned() {
    const OTHER: ProjectId = ProjectId::new(78).unwrap();
    let stage = Stage::new();
    for dir in ["immutable", "append", "other"] {
        fs::create_dir(stage.from.join(dir)).unwrap();
    }
    fsquota::assign(File::open(stage.from.join("other")).unwrap(), OTHER, limits(Bytes::GIB)).unwrap();
    for dir in ["immutable", "append", "other"] {
        fs::write(stage.from.join(dir).join("file"), "content").unwrap();
    }
    let protected = [
        ("immutable/file", IFlags::IMMUTABLE),
        ("immutable", IFlags::IMMUTABLE),
        ("append/file", IFlags::APPEND),
        ("append", IFlags::APPEND),
    ];
    for (path, flag) in protected {
        let inode = File::open(stage.from.join(path)).unwrap();
        ioctl_setflags(&inode, ioctl_getflags(&inode).unwrap() | flag).unwrap();
    }
    let removed = fs::remove_file(stage.from.join("append/file")).unwrap_err();
    assert_eq!(removed.raw_os_error(), Some(Errno::EPERM as i32));
    let quotas = Quotas::open(File::open(stage.disk.path()).unwrap()).unwrap();
    let project = |path: &Path| quotas.project(File::open(path).unwrap()).unwrap();
    assert_eq!(project(&stage.from.join("other/file")), Some(OTHER));

    let clone = stage.approached();
    stage.complete(clone);
    stage.expect_equal();
    for (path, flag) in protected {
        let inode = File::open(stage.to.join(path)).unwrap();
        assert!(!ioctl_getflags(&inode).unwrap().contains(flag), "{path}");
    }
    for path in ["other", "other/file"] {
        assert_eq!(project(&stage.to.join(path)), Some(Stage::PROJECT), "{path}");
    }
    stage.clear();
}
