//! Input of the Bazel rule.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

/// The image and its materials. Paths name files to read.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Description {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) programs: BTreeMap<String, Program>,
    pub(crate) crates: BTreeMap<String, Crate>,
    pub(crate) go: Go,
    pub(crate) debian: Debian,
    /// Text of Apache-2.0, the licence of this project and of the standard library. Crates without a text that offer
    /// this licence as a choice also use the text.
    pub(crate) apache: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Program {
    pub(crate) file: PathBuf,
    pub(crate) crates: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Crate {
    pub(crate) manifest: PathBuf,
    /// Files of the crate whose names indicate licence texts.
    pub(crate) texts: Vec<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Go {
    /// Archive of a module with its dependencies below `vendor`.
    pub(crate) vendor: PathBuf,
    /// Archive of the toolchain with the standard library.
    pub(crate) toolchain: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Debian {
    /// See [`crate::debian::Documents`].
    pub(crate) documents: PathBuf,
    /// Lock files of the packages whose files are in the image.
    pub(crate) installed: Vec<PathBuf>,
    /// List of the libraries of the sysroot, and lock file of their packages.
    pub(crate) libraries: PathBuf,
    pub(crate) lock: PathBuf,
}
