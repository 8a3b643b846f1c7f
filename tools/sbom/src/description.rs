//! What the build tells of an image.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

/// The image and all that it was made of. Paths are those of files to read.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Description {
    pub(crate) name: String,
    pub(crate) version: String,
    /// Path in the image -> program.
    pub(crate) programs: BTreeMap<String, Program>,
    /// Directory of a crate -> its files.
    pub(crate) crates: BTreeMap<String, Crate>,
    pub(crate) go: Go,
    pub(crate) debian: Debian,
    /// The text of Apache-2.0: our own licence, the standard library's, and that of crates that give the choice of it and
    /// come without a text.
    pub(crate) apache: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Program {
    pub(crate) file: PathBuf,
    /// Directories of the crates in it.
    pub(crate) crates: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Crate {
    pub(crate) manifest: PathBuf,
    /// Files beside it whose names promise terms.
    pub(crate) texts: Vec<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Go {
    /// Archive of a module with all others below `vendor`.
    pub(crate) vendor: PathBuf,
    /// Archive of the toolchain, with the standard library.
    pub(crate) toolchain: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Debian {
    /// See [`crate::debian::Documents`].
    pub(crate) documents: PathBuf,
    /// Locks of the packages whose files are in the image.
    pub(crate) installed: Vec<PathBuf>,
    /// The sysroot's list of its libraries, and the lock of their packages.
    pub(crate) libraries: PathBuf,
    pub(crate) lock: PathBuf,
}
