//! What the rule `ktest` says about the VM.

use std::env;
use std::fs;
use std::io;
use std::num::NonZeroU8;
use std::path::PathBuf;

use serde::Deserialize;
use units::{Bytes, ParseError};

use crate::scratch::Scratch;

const VARIABLE: &str = "KTEST_CONFIG";

/// The VM of a test. Paths are those of the run files.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) name: String,
    pub(crate) kernel: PathBuf,
    pub(crate) initramfs: PathBuf,
    pub(crate) memory: Memory,
    pub(crate) cpus: NonZeroU8,
    pub(crate) disks: Vec<Scratch>,
    pub(crate) tools: Vec<String>,
}

/// A size as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Memory(pub(crate) Bytes);

impl TryFrom<String> for Memory {
    type Error = ParseError;

    fn try_from(text: String) -> Result<Self, ParseError> {
        text.parse().map(Self)
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("{VARIABLE} is not set: this program is started by the rule ktest")]
    Unset,
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} is wrong")]
    Parse {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

impl Config {
    pub(crate) fn read() -> Result<Self, ConfigError> {
        let path = PathBuf::from(env::var_os(VARIABLE).ok_or(ConfigError::Unset)?);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(source) => return Err(ConfigError::Read { path, source }),
        };
        serde_json::from_slice(&text).map_err(|source| ConfigError::Parse { path, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"name": "//a:b", "kernel": "k", "initramfs": "i", "memory": "512M", "cpus": 2,
        "disks": ["1G"], "tools": ["mkfs.xfs"]}"#;

    #[test]
    fn what_the_rule_writes_is_read() {
        let config: Config = serde_json::from_str(TEXT).unwrap();
        assert_eq!(config.memory, Memory(Bytes::new(512 << 20)));
        assert_eq!(config.disks, ["1G".parse().unwrap()]);
    }

    #[test]
    fn a_wrong_size_is_refused_with_the_reason() {
        let error = serde_json::from_str::<Config>(&TEXT.replace("512M", "much")).unwrap_err();
        assert!(error.to_string().contains("\"much\" does not begin with a number"), "{error}");
    }
}
