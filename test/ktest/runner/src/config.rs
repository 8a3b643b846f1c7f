//! The VM's description, which the rules `ktest` and `guest_program` write.

use std::env;
use std::fs;
use std::num::NonZeroU8;
use std::path::{Path, PathBuf};

use ktest_init::StepError;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use units::Bytes;

use crate::scratch::Scratch;

const VARIABLE: &str = "KTEST_CONFIG";

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) name: String,
    pub(crate) runs: Runs,
    /// Path among the run files of the workspace, like the paths of the archives.
    pub(crate) kernel: PathBuf,
    pub(crate) initramfs: PathBuf,
    pub(crate) payload: PathBuf,
    #[serde(deserialize_with = "size")]
    pub(crate) memory: Bytes,
    pub(crate) cpus: NonZeroU8,
    pub(crate) disks: Vec<Scratch>,
    pub(crate) tools: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Runs {
    Test,
    /// Any program: its output and its status are passed on.
    Program,
}

impl Config {
    /// Reads the file that `KTEST_CONFIG` names, or else the file beside the program: the rules give each target a link
    /// to the runner.
    pub(crate) fn read(program: Option<PathBuf>) -> Result<Self, StepError> {
        let named = env::var_os(VARIABLE).map(PathBuf::from);
        let beside = program.as_deref().map(|program| with_suffix(program, ".json"));
        let path = named.or(beside).ok_or_else(|| {
            let cause = format!(
                "{VARIABLE} is not set and this program has no name: the rules ktest and guest_program start it"
            );
            StepError::of("find the description of the VM")(cause)
        })?;
        let text = fs::read(&path).map_err(StepError::of(format!("read {}", path.display())))?;
        let config = serde_json::from_slice(&text);
        let mut config: Self = config.map_err(StepError::of(format!("use {}", path.display())))?;
        let program = program.unwrap_or_default();
        for file in [&mut config.kernel, &mut config.initramfs, &mut config.payload] {
            *file = locate(&program, file)?;
        }
        Ok(config)
    }
}

/// Finds a run file: in the program's own runfiles, in those of a program that has this one as data, or in the working
/// directory.
fn locate(program: &Path, file: &Path) -> Result<PathBuf, StepError> {
    let own = with_suffix(program, ".runfiles").join("_main");
    let mut places = std::iter::once(own.as_path()).chain(program.ancestors()).chain([Path::new("")]);
    let found = places.find_map(|place| Some(place.join(file)).filter(|path| path.exists()));
    let missing = || format!("it is neither in the working directory nor where {} is", program.display());
    found.ok_or_else(missing).map_err(StepError::of(format!("find the run file {}", file.display())))
}

/// Parses a size such as `512M`.
fn size<'a, D: Deserializer<'a>>(text: D) -> Result<Bytes, D::Error> {
    String::deserialize(text)?.parse().map_err(D::Error::custom)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"name": "//a:b", "runs": "test", "kernel": "k", "initramfs": "i", "payload": "p", "memory": "512M", "cpus": 2,
        "disks": ["1G"], "tools": ["mkfs.xfs"]}"#;

    #[test]
    fn what_the_rule_writes_is_read() {
        let config: Config = serde_json::from_str(TEXT).unwrap();
        assert_eq!(config.memory, Bytes::new(512 << 20));
        assert_eq!(config.disks, ["1G".parse().unwrap()]);
    }

    #[test]
    fn a_wrong_size_is_refused_with_the_reason() {
        let error = serde_json::from_str::<Config>(&TEXT.replace("512M", "much")).unwrap_err();
        assert!(error.to_string().contains("\"much\" does not begin with a number"), "{error}");
    }

    #[test]
    fn run_files_are_found_from_the_program() {
        let dir = tempfile::tempdir().unwrap();
        let make = |path: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            path
        };
        let file = Path::new("third_party/vmlinuz");
        // The program as data of another program, then with run files of its own.
        let shared = make("bench.runfiles/_main/third_party/vmlinuz");
        let program = make("bench.runfiles/_main/test/guest");
        assert_eq!(locate(&program, file).unwrap(), shared);
        let own = make("bench.runfiles/_main/test/guest.runfiles/_main/third_party/vmlinuz");
        assert_eq!(locate(&program, file).unwrap(), own);
        let error = locate(&program, Path::new("test/absent")).unwrap_err();
        assert!(error.to_string().contains("test/absent"), "{error}");
    }
}
