//! Reads input files of the build. Errors contain their paths.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::lock::{self, Package, ParseLockError};
use crate::program::{Program, ReadProgramError, UnpinnedError};
use crate::sysroot::{ParseSysrootError, Sysroot};

/// An input file cannot be read or is invalid.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// Not the expected JSON.
    #[error("cannot parse {}", path.display())]
    Description { path: PathBuf, source: serde_json::Error },
    /// Not a supported program.
    #[error("cannot examine program {program}")]
    Program {
        /// Path in the image.
        program: String,
        source: ReadProgramError,
    },
    /// The program contains a library of unknown origin.
    #[error("program {program} contains a library that is not pinned")]
    Unpinned {
        /// Path in the image.
        program: String,
        source: UnpinnedError,
    },
    #[error("cannot parse the lock file {}", path.display())]
    Lock { path: PathBuf, source: ParseLockError },
    #[error("cannot parse the list of libraries {}", path.display())]
    Libraries { path: PathBuf, source: ParseSysrootError },
}

/// A program of the image.
#[derive(Debug)]
pub struct Examined {
    /// Content of the file.
    pub bytes: Vec<u8>,
    /// Build information in the file.
    pub program: Program,
    /// Packages of the linked libraries.
    pub libraries: BTreeSet<String>,
}

pub fn bytes(path: &Path) -> Result<Vec<u8>, FileError> {
    fs::read(path).map_err(|source| FileError::Read { path: path.to_owned(), source })
}

/// Reads a text file; invalid UTF-8 is replaced.
pub fn text(path: &Path) -> Result<String, FileError> {
    bytes(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads a JSON file.
pub fn description<T: DeserializeOwned>(path: &Path) -> Result<T, FileError> {
    serde_json::from_slice(&bytes(path)?).map_err(|source| FileError::Description { path: path.to_owned(), source })
}

/// Reads the packages of a lock file.
pub fn lock(path: &Path) -> Result<Vec<Package>, FileError> {
    lock::parse(&text(path)?).map_err(|source| FileError::Lock { path: path.to_owned(), source })
}

/// Reads the list of libraries of the sysroot.
pub fn sysroot(path: &Path) -> Result<Sysroot, FileError> {
    Sysroot::parse(&text(path)?).map_err(|source| FileError::Libraries { path: path.to_owned(), source })
}

/// Reads the program `name` of the image. [`FileError::Unpinned`] if it contains a library that is not in the sysroot.
pub fn program(name: &str, path: &Path, sysroot: &Sysroot) -> Result<Examined, FileError> {
    let bytes = bytes(path)?;
    let program = Program::read(&bytes).map_err(|source| FileError::Program { program: name.to_owned(), source })?;
    let libraries =
        program.packages(sysroot).map_err(|source| FileError::Unpinned { program: name.to_owned(), source })?;
    let libraries = libraries.into_iter().map(str::to_owned).collect();
    Ok(Examined { bytes, program, libraries })
}
