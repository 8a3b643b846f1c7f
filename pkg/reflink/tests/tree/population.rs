//! A tree with all kinds of entries, and changes of all kinds.

use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, chown, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;
use rustix::fs::{XattrFlags, lremovexattr, lsetxattr};

const MIB: usize = 1 << 20;

fn set_attribute(path: &Path, name: &str, value: &[u8]) {
    lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

/// `struct posix_acl_xattr_header` with entries of (tag, permissions, ID), include/uapi/linux/posix_acl_xattr.h.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        acl.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        acl.extend(id.to_le_bytes());
    }
    acl
}

fn acl_for(user: u32) -> Vec<u8> {
    const NONE: u32 = u32::MAX;
    acl(&[(1, 6, NONE), (2, 4, user), (4, 4, NONE), (0x10, 6, NONE), (0x20, 0, NONE)])
}

pub fn populate(top: &Path) {
    let at = |path: &str| top.join(path);
    for dir in ["dir/below/deeper", "empty", "replaced", "moved/a", "removed/a/b", "sticky"] {
        fs::create_dir_all(at(dir)).unwrap();
    }
    fs::write(at("dir/large"), vec![7; 4 * MIB]).unwrap();
    for (file, content) in [
        ("zero", ""),
        ("small", "small"),
        ("grown", "grown"),
        ("cut", "cut to nothing"),
        ("rewritten", "before"),
        ("first", "first"),
        ("second", "second"),
        ("becomes-a-directory", "file"),
        ("renamed", "renamed"),
        ("dir/below/deeper/file", "deep"),
        ("moved/a/file", "moved"),
        ("removed/a/b/file", "removed"),
        ("replaced/file", "replaced"),
        ("mode", "mode"),
        ("times", "times"),
        ("owned", "owned"),
        ("set-id", "set-id"),
        ("set-id-owned", "set-id"),
        ("with-acl", "acl"),
        ("with-attributes", "attributes"),
        ("linked-1", "linked"),
        ("unlinked-1", "unlinked"),
        ("relinked-1", "relinked"),
        ("single", "single"),
        ("line\nfeed", "odd"),
        (".hidden", "hidden"),
    ] {
        fs::write(at(file), content).unwrap();
    }
    fs::write(top.join(OsStr::from_bytes(b"not-\xff-utf8")), "odd").unwrap();
    File::create(at("sparse")).unwrap().write_all_at(&[1; 4096], 0).unwrap();
    File::options().write(true).open(at("sparse")).unwrap().write_all_at(&[2; 4096], 8 * MIB as u64).unwrap();
    for (file, mode) in [
        ("mode", 0o4751),
        ("owned", 0o640),
        ("set-id", 0o6755),
        ("set-id-owned", 0o6755),
        ("sticky", 0o3777),
        ("empty", 0o500),
    ] {
        fs::set_permissions(at(file), Permissions::from_mode(mode)).unwrap();
    }
    chown(at("owned"), Some(1000), Some(2000)).unwrap();
    chown(at("dir/below"), Some(1000), Some(1000)).unwrap();
    let ahead = SystemTime::now() + Duration::from_secs(3600);
    let times = FileTimes::new().set_accessed(ahead).set_modified(SystemTime::UNIX_EPOCH + Duration::new(1, 5));
    File::options().write(true).open(at("times")).unwrap().set_times(times).unwrap();

    set_attribute(&at("with-attributes"), "user.small", b"value");
    set_attribute(&at("with-attributes"), "user.large", &[9; 60_000]);
    set_attribute(&at("with-attributes"), "user.empty", b"");
    set_attribute(&at("with-attributes"), "trusted.root", b"trusted");
    // CAP_NET_BIND_SERVICE, permitted and effective: struct vfs_cap_data, version 2.
    let capability = [0x0200_0001_u32, 1 << 10, 0, 0, 0].map(u32::to_le_bytes).concat();
    set_attribute(&at("mode"), "security.capability", &capability);
    set_attribute(&at("with-acl"), "system.posix_acl_access", &acl_for(1234));
    set_attribute(&at("dir"), "system.posix_acl_access", &acl_for(77));
    // New files in the clone must not inherit this ACL.
    set_attribute(&at("dir"), "system.posix_acl_default", &acl_for(55));
    set_attribute(top, "user.top", b"of the top");
    fs::write(at("dir/inherits"), "acl").unwrap();

    for (first, second) in [
        ("linked-1", "linked-2"),
        ("linked-1", "dir/linked-3"),
        ("unlinked-1", "dir/unlinked-2"),
        ("relinked-1", "relinked-2"),
    ] {
        fs::hard_link(at(first), at(second)).unwrap();
    }
    symlink("small", at("symlink")).unwrap();
    symlink("/outside/of/the/tree", at("dir/absolute")).unwrap();
    lchown(at("symlink"), Some(3), Some(4)).unwrap();
    set_attribute(&at("symlink"), "trusted.link", b"of the link");
    fs::hard_link(at("symlink"), at("dir/symlink-2")).unwrap();
    mkfifo(&at("pipe"), Mode::from_bits_truncate(0o622)).unwrap();
    fs::hard_link(at("pipe"), at("pipe-2")).unwrap();
    UnixListener::bind(at("socket")).unwrap();
    mknod(&at("null"), SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(1, 3)).unwrap();
    mknod(&at("loop"), SFlag::S_IFBLK, Mode::from_bits_truncate(0o660), makedev(7, 5)).unwrap();
    fs::set_permissions(at("null"), Permissions::from_mode(0o606)).unwrap();
}

pub fn change(top: &Path) {
    let at = |path: &str| top.join(path);
    let rewrite = |path: &str, content: &str| {
        let times = fs::metadata(at(path)).unwrap();
        let file = File::options().write(true).open(at(path)).unwrap();
        file.write_all_at(content.as_bytes(), 0).unwrap();
        // The time of modification and the size do not change.
        file.set_times(FileTimes::new().set_modified(times.modified().unwrap())).unwrap();
    };
    rewrite("rewritten", "AFTER!");
    rewrite("linked-1", "LINKED");
    fs::write(at("grown"), vec![3; 2 * MIB]).unwrap();
    fs::write(at("cut"), "").unwrap();
    fs::write(at("new"), "new").unwrap();
    fs::create_dir_all(at("new-dir/a/b")).unwrap();
    fs::write(at("new-dir/a/b/file"), "new").unwrap();

    // The exchanges do not change the inodes, not even their times of change.
    renameat2(AT_FDCWD, &at("first"), AT_FDCWD, &at("second"), RenameFlags::RENAME_EXCHANGE).unwrap();
    renameat2(AT_FDCWD, &at("small"), AT_FDCWD, &at("dir/below/deeper/file"), RenameFlags::RENAME_EXCHANGE).unwrap();
    fs::rename(at("renamed"), at("dir/renamed")).unwrap();
    fs::rename(at("moved/a"), at("dir/a")).unwrap();
    fs::remove_dir_all(at("removed")).unwrap();
    fs::remove_file(at("zero")).unwrap();

    fs::remove_file(at("becomes-a-directory")).unwrap();
    fs::create_dir(at("becomes-a-directory")).unwrap();
    fs::write(at("becomes-a-directory/file"), "inside").unwrap();
    fs::remove_dir_all(at("replaced")).unwrap();
    fs::write(at("replaced"), "a file now").unwrap();

    fs::remove_file(at("dir/unlinked-2")).unwrap();
    fs::hard_link(at("single"), at("single-2")).unwrap();
    fs::remove_file(at("relinked-2")).unwrap();
    fs::hard_link(at("linked-1"), at("relinked-2")).unwrap();
    fs::remove_file(at("dir/symlink-2")).unwrap();
    fs::remove_file(at("symlink")).unwrap();
    symlink("elsewhere", at("symlink")).unwrap();
    fs::remove_file(at("pipe-2")).unwrap();
    fs::write(at("pipe-2"), "a file now").unwrap();
    fs::set_permissions(at("pipe"), Permissions::from_mode(0o600)).unwrap();

    fs::set_permissions(at("mode"), Permissions::from_mode(0o2711)).unwrap();
    fs::set_permissions(at("empty"), Permissions::from_mode(0o711)).unwrap();
    chown(at("owned"), Some(5), Some(6)).unwrap();
    // The modes do not change: only the content, or the owner, differs. A change of the owner clears the bits.
    rewrite("set-id", "SET-ID");
    chown(at("set-id-owned"), Some(5), Some(6)).unwrap();
    fs::set_permissions(at("set-id-owned"), Permissions::from_mode(0o6755)).unwrap();
    lremovexattr(at("with-attributes"), "user.large").unwrap();
    set_attribute(&at("with-attributes"), "user.small", b"other");
    set_attribute(&at("with-attributes"), "user.new", b"new");
    set_attribute(&at("with-acl"), "system.posix_acl_access", &acl_for(4321));
    lremovexattr(at("dir"), "system.posix_acl_default").unwrap();
    lremovexattr(top, "user.top").unwrap();
}
