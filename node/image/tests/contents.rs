//! The content of the system image.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use serde_json::Value;

/// Programs of Debian. The other programs of the node are those of the BUILD file (`IMAGE_PATHS`). Any other program, such
/// as a shell, a package manager or ssh, fails the test.
const DEBIAN: [&str; 6] =
    ["usr/bin/blkid", "usr/bin/mkfs.xfs", "usr/bin/mount", "usr/bin/nft", "usr/bin/umount", "usr/bin/xfs_repair"];

/// Largest size of the system image in bytes. The system partition of the disk has 256 MiB.
const LARGEST: u64 = 150_000_000;

fn image() -> PathBuf {
    env::var_os("IMAGE_SYSTEM").expect("started by Bazel: bazel test //node/image:all").into()
}

/// The image, unpacked by fsck of erofs-utils.
struct System(tempfile::TempDir);

impl System {
    fn built() -> Self {
        let out = tempfile::tempdir().expect("a directory");
        let fsck = Command::new("fsck.erofs")
            .arg(format!("--extract={}", out.path().display()))
            .args(["--force", "--no-preserve"])
            .arg(image())
            .output()
            .expect("fsck.erofs runs");
        assert!(fsck.status.success(), "{}", String::from_utf8_lossy(&fsck.stderr));
        Self(out)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }
}

/// Paths below a directory, except directories; does not follow links.
fn entries(directory: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).expect("a directory").map(|entry| entry.expect("an entry")) {
            if entry.file_type().expect("a type").is_dir() {
                left.push(entry.path());
                continue;
            }
            found.insert(entry.path().strip_prefix(directory).expect("below it").display().to_string());
        }
    }
    found
}

fn files(directory: &Path) -> BTreeSet<(String, Vec<u8>)> {
    let read = |name: &String| fs::read(directory.join(name)).expect("a file");
    entries(directory).into_iter().map(|name| (name.clone(), read(&name))).collect()
}

/// Whether the kernel could execute the file: every file in a directory of programs, and elsewhere each ELF file or
/// script that is not a library, a module or a link.
fn is_program(path: &str, file: &Path) -> bool {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    if matches!(directory, "usr/bin" | "usr/libexec/cni") {
        return true;
    }
    let is_library = directory == "usr/lib" && name.contains(".so.");
    let is_module = directory.starts_with("usr/lib/modules/") && is_module(name);
    if is_library || is_module || file.is_symlink() {
        return false;
    }
    let mut head = Vec::new();
    fs::File::open(file).expect("a file").take(4).read_to_end(&mut head).expect("read");
    head.starts_with(b"\x7fELF") || head.starts_with(b"#!")
}

fn is_module(name: &str) -> bool {
    name.ends_with(".ko") || name.ends_with(".ko.xz")
}

fn programs(root: &Path) -> BTreeSet<String> {
    entries(root).into_iter().filter(|name| is_program(name, &root.join(name))).collect()
}

#[test]
fn programs_are_found_in_all_directories() {
    let root = tempfile::tempdir().expect("a directory");
    for (path, content) in [
        ("etc/profile", &b"umask 022\n"[..]),
        ("usr/bin/note", b""),
        ("usr/lib/libc.so.6", b"\x7fELF\x02"),
        ("usr/lib/modules/boot/xfs.ko", b"\x7fELF\x02"),
        ("usr/lib/sh", b"\x7fELF\x02"),
        ("usr/libexec/hook", b"#!/bin/sh\n"),
    ] {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("it is created");
        fs::write(path, content).expect("it is written");
    }
    std::os::unix::fs::symlink("busybox", root.path().join("usr/bin/sh")).expect("it is linked");
    let wanted = ["usr/bin/note", "usr/bin/sh", "usr/lib/sh", "usr/libexec/hook"].map(str::to_owned);
    assert_eq!(programs(root.path()), wanted.into());
}

/// The Go package `time/tzdata` embeds an archive of time zones, which is the only text with the name of this zone.
#[test]
fn kubernetes_has_the_time_zones_that_the_image_has_no_files_of() {
    let system = System::built();
    assert!(!system.path("usr/share/zoneinfo").exists());
    let program = fs::read(system.path("usr/bin/kube")).expect("kube");
    let zone = b"Pacific/Kiritimati";
    assert!(program.windows(zone.len()).any(|window| window == zone), "kube has no time zones");
}

#[test]
fn the_image_has_only_the_programs_of_the_node() {
    let system = System::built();
    let found = programs(&system.path(""));
    let own = env::var("IMAGE_PATHS").expect("started by Bazel");
    let wanted = own.split(' ').map(|path| path.trim_start_matches('/')).chain(DEBIAN);
    let wanted: BTreeSet<String> = wanted.map(str::to_owned).collect();
    let more: Vec<_> = found.difference(&wanted).collect();
    let fewer: Vec<_> = wanted.difference(&found).collect();
    assert!(more.is_empty() && fewer.is_empty(), "not expected: {more:?}; missing: {fewer:?}");
    for (link, place) in [("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib"), ("sbin", "usr/bin")] {
        assert_eq!(fs::read_link(system.path(link)).expect("a link"), Path::new(place), "/{link}");
    }
}

#[test]
fn the_image_is_not_larger_than_150_megabytes() {
    let size = fs::metadata(image()).expect("the image").len();
    assert!(size <= LARGEST, "the system image has {size} bytes, more than {LARGEST}");
}

/// Without public CAs, containerd cannot verify the certificate of any public registry.
#[test]
fn the_image_has_the_public_cas() {
    let file = fs::read_to_string(System::built().path("etc/ssl/certs/ca-certificates.crt")).expect("a file of CAs");
    let number = file.lines().filter(|line| *line == "-----BEGIN CERTIFICATE-----").count();
    assert!(number >= 100, "{number} CAs");
}

#[test]
fn the_image_has_build_information_and_bill_of_materials() {
    let system = System::built();
    let text = fs::read_to_string(system.path("etc/build.json")).expect("/etc/build.json");
    let build: Value = serde_json::from_str(&text).expect("JSON");
    for tool in ["cpio", "gcc", "ld", "mkfs.erofs", "qemu-system-x86_64"] {
        let version = build["tools"][tool].as_str().unwrap_or_else(|| panic!("no {tool} in {}", build["tools"]));
        assert!(version.contains(|c: char| c.is_ascii_digit()), "{tool}: {version}");
    }
    let kernel = build["kernel"][0]["package"].as_str().expect("the kernel's package");
    assert!(kernel.starts_with("linux-image-") && build["kernel"].as_array().map(Vec::len) == Some(1), "{build}");
    for program in build["programs"].as_object().expect("programs").keys() {
        // Programs of container images and of the initramfs are in other files.
        let own = !program.contains(".tar/") && !program.starts_with("initramfs/");
        assert!(!own || system.path(program.trim_start_matches('/')).is_file(), "{program}");
    }

    let wanted = files(Path::new(&env::var_os("IMAGE_SHARE").expect("started by Bazel")));
    let found = files(&system.path("usr/share"));
    let missing: Vec<&str> = wanted.difference(&found).map(|(name, _)| name.as_str()).collect();
    assert!(missing.is_empty(), "{missing:?}");
    for some in ["sbom/", "licenses/"] {
        assert!(wanted.iter().any(|(name, _)| name.starts_with(some)), "{some}");
    }
}

/// The kernel rejects unsigned modules (`module.sig_enforce=1`), and verifies the signatures.
#[test]
fn each_kernel_module_has_its_signature() {
    let system = System::built();
    let modules = system.path("usr/lib/modules");
    let names: Vec<String> = entries(&modules).into_iter().filter(|name| is_module(name)).collect();
    assert!(names.len() > 100 && names.iter().any(|name| name.ends_with(".xz")), "{names:?}");
    for name in names {
        let path = modules.join(&name);
        let module = if name.ends_with(".xz") {
            let xz = Command::new("xz").arg("-dc").arg(path).output().expect("xz runs");
            assert!(xz.status.success(), "{name}: {}", String::from_utf8_lossy(&xz.stderr));
            xz.stdout
        } else {
            fs::read(path).expect("a module")
        };
        // MODULE_SIG_STRING, include/linux/module_signature.h.
        assert!(module.ends_with(b"~Module signature appended~\n"), "{name}");
    }
}

#[test]
fn the_installation_page_lists_the_drivers() {
    let system = System::built();
    let catalog = fs::read_to_string(system.path("usr/lib/modules/drivers/catalog")).expect("the catalog");
    let drivers: BTreeSet<&str> = catalog.lines().filter_map(|line| line.split(' ').next()).collect();
    let page = env::var_os("IMAGE_INSTALL").expect("started by Bazel");
    let page = fs::read_to_string(page).expect("the page");
    let (_, section) = page.split_once("| devices | drivers |\n").expect("the table");
    let rows = section.lines().take_while(|line| line.starts_with('|'));
    // Names between backticks.
    let listed: BTreeSet<&str> = rows.flat_map(|row| row.split('`').skip(1).step_by(2)).collect();
    assert_eq!(listed, drivers);
}
