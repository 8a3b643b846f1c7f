//! What is in the system image, asked of the image itself.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use serde_json::Value;

/// What erofs-utils' fsck takes out of the image.
struct System(tempfile::TempDir);

impl System {
    fn built() -> Self {
        let image = env::var_os("IMAGE_SYSTEM").expect("started by Bazel: bazel test //node/image:all");
        let out = tempfile::tempdir().expect("a directory");
        let fsck = Command::new("fsck.erofs")
            .arg(format!("--extract={}", out.path().display()))
            .args(["--force", "--no-preserve"])
            .arg(image)
            .output()
            .expect("fsck.erofs runs");
        assert!(fsck.status.success(), "{}", String::from_utf8_lossy(&fsck.stderr));
        Self(out)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }
}

/// Paths below a directory, and what is in each file.
fn files(directory: &Path) -> BTreeSet<(String, Vec<u8>)> {
    let mut found = BTreeSet::new();
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                left.push(path);
                continue;
            }
            let name = path.strip_prefix(directory).expect("below it").display().to_string();
            found.insert((name, fs::read(&path).expect("a file")));
        }
    }
    found
}

#[test]
fn the_image_says_what_it_was_built_with_and_what_is_in_it() {
    let system = System::built();
    let text = fs::read_to_string(system.path("etc/build.json")).expect("/etc/build.json");
    let build: Value = serde_json::from_str(&text).expect("JSON");
    for tool in ["cpio", "gcc", "ld", "mkfs.erofs", "qemu-system-x86_64"] {
        let version = build["tools"][tool].as_str().unwrap_or_else(|| panic!("no {tool} in {}", build["tools"]));
        assert!(version.contains(|c: char| c.is_ascii_digit()), "{tool}: {version}");
    }
    for program in build["programs"].as_object().expect("programs").keys() {
        // Those of container images and of the initramfs are in other files.
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
