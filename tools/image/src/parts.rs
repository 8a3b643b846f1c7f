//! Parts of the built image, which Bazel passes to the tests of //node/image.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{env, fs};

use serde_json::Value;

use crate::lock::{self, Package};
use crate::program::Program;
use crate::sysroot::Sysroot;

/// Prefix of the directories of crates that crate_universe fetches.
pub const CRATE: &str = "crates__";

#[derive(Debug)]
pub struct Parts(());

impl Parts {
    /// Parts that belong to this test. Panics if Bazel did not start the test.
    pub fn built() -> Self {
        assert!(
            env::var_os("IMAGE_PROGRAMS").is_some(),
            "tests of the image are run by Bazel: bazel test //node/image:all"
        );
        Self(())
    }

    /// Programs by their paths in the image. The iterator reads one program at a time, because all of them have 300 MB.
    pub fn programs(&self) -> impl Iterator<Item = (String, Vec<u8>)> {
        let list = variable("IMAGE_PROGRAMS");
        let pairs: Vec<(String, PathBuf)> = list
            .split(' ')
            .map(|pair| pair.split_once('=').unwrap_or_else(|| panic!("{pair} is not PATH=FILE")))
            .map(|(path, file)| (path.to_owned(), file.into()))
            .collect();
        pairs.into_iter().map(|(path, file)| (path, read(&file)))
    }

    /// Build information of the programs by path in the image.
    pub fn described(&self) -> impl Iterator<Item = (String, Program)> {
        self.programs().map(|(path, bytes)| {
            let program = Program::read(&bytes).unwrap_or_else(|error| panic!("{path}: {error}"));
            (path, program)
        })
    }

    /// Version of the Rust compiler that rust-toolchain.toml pins.
    pub fn rust(&self) -> String {
        let text = String::from_utf8(read(Path::new(&variable("IMAGE_RUST")))).unwrap();
        let channel = text.lines().find_map(|line| line.strip_prefix("channel = \"")?.strip_suffix('"'));
        channel.unwrap_or_else(|| panic!("no channel in {text}")).to_owned()
    }

    pub fn sysroot(&self) -> Sysroot {
        let text = String::from_utf8(read(Path::new(&variable("IMAGE_LIBRARIES")))).unwrap();
        Sysroot::parse(&text).unwrap()
    }

    /// The Debian packages whose files are in the image.
    pub fn installed(&self) -> Vec<Package> {
        let locks = variable("IMAGE_LOCKS");
        let texts = locks.split(' ').map(|path| String::from_utf8(read(Path::new(path))).unwrap());
        texts.flat_map(|text| lock::parse(&text).unwrap()).collect()
    }

    /// The crates of Cargo.lock as `NAME VERSION`, by directory without [`CRATE`].
    pub fn locked_crates(&self) -> BTreeMap<String, String> {
        let text = String::from_utf8(read(Path::new(&variable("IMAGE_CARGO_LOCK")))).unwrap();
        let packages = text.split("[[package]]").skip(1).map(|package| {
            let value = |key: &str| package.lines().find_map(|line| line.strip_prefix(key)?.strip_suffix('"'));
            let name = value("name = \"").expect("a package has a name");
            let version = value("version = \"").expect("a package has a version");
            (format!("{name}-{}", version.replace('+', "-")), format!("{name} {version}"))
        });
        packages.collect()
    }

    /// Registry crates that the build links into each program, by path in the image.
    pub fn linked_crates(&self, locked: &BTreeMap<String, String>) -> BTreeMap<String, BTreeSet<String>> {
        let linked: Value = serde_json::from_slice(&read(Path::new(&variable("IMAGE_LINKED")))).unwrap();
        let named = |directory: &Value| {
            let directory = directory.as_str().expect("a directory");
            let name = directory.split_once(CRATE).and_then(|(_, name)| locked.get(name));
            name.unwrap_or_else(|| panic!("{directory} is not in Cargo.lock")).clone()
        };
        let programs = linked["programs"].as_object().expect("programs by their paths").iter();
        let crates = |program: &Value| program["crates"].as_array().expect("crates").iter().map(named).collect();
        programs.map(|(path, program)| (path.clone(), crates(program))).collect()
    }

    pub fn json(&self, path: &str) -> Value {
        serde_json::from_slice(&read(&Path::new(&variable("IMAGE_SHARE")).join(path))).unwrap()
    }

    /// The licence texts in /usr/share/licenses by name.
    pub fn texts(&self) -> BTreeMap<String, Vec<u8>> {
        let directory = Path::new(&variable("IMAGE_SHARE")).join("licenses");
        let files = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
        let named =
            files.filter_map(|path| Some((path.file_name()?.to_str()?.strip_suffix(".txt")?.to_owned(), path.clone())));
        named.map(|(name, path)| (name, read(&path))).collect()
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
