//! Files that the build hands over. Errors name them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::lock::{self, Package, ParseLockError};
use crate::program::{Program, ReadProgramError, UnpinnedError};
use crate::sysroot::{ParseSysrootError, Sysroot};

/// A file is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Where it is.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is not JSON with these fields.
    #[error("cannot understand {}", path.display())]
    Description {
        /// Where it is.
        path: PathBuf,
        /// Why not.
        source: serde_json::Error,
    },
    /// It is no such program.
    #[error("cannot tell what is in {program}")]
    Program {
        /// Its path in the image.
        program: String,
        /// Why not.
        source: ReadProgramError,
    },
    /// Nobody can tell where a part of it is from.
    #[error("{program} has a library in it that is not pinned")]
    Unpinned {
        /// Its path in the image.
        program: String,
        /// Which library.
        source: UnpinnedError,
    },
    /// It is no lock.
    #[error("cannot understand the lock {}", path.display())]
    Lock {
        /// Where it is.
        path: PathBuf,
        /// Why not.
        source: ParseLockError,
    },
    /// It is no list of libraries.
    #[error("cannot understand the list of libraries {}", path.display())]
    Libraries {
        /// Where it is.
        path: PathBuf,
        /// Why not.
        source: ParseSysrootError,
    },
}

/// A program of the image.
#[derive(Debug)]
pub struct Examined {
    /// All of it.
    pub bytes: Vec<u8>,
    /// What it tells of itself.
    pub program: Program,
    /// The packages whose libraries are in it.
    pub libraries: BTreeSet<String>,
}

/// All of a file.
///
/// # Errors
/// [`FileError::Read`].
pub fn bytes(path: &Path) -> Result<Vec<u8>, FileError> {
    fs::read(path).map_err(|source| FileError::Read { path: path.to_owned(), source })
}

/// All of a file, as far as it is UTF-8.
///
/// # Errors
/// [`FileError::Read`].
pub fn text(path: &Path) -> Result<String, FileError> {
    bytes(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// What the build tells, in JSON.
///
/// # Errors
/// [`FileError::Read`], [`FileError::Description`].
pub fn description<T: DeserializeOwned>(path: &Path) -> Result<T, FileError> {
    serde_json::from_slice(&bytes(path)?).map_err(|source| FileError::Description { path: path.to_owned(), source })
}

/// The packages of a lock.
///
/// # Errors
/// [`FileError::Read`], [`FileError::Lock`].
pub fn lock(path: &Path) -> Result<Vec<Package>, FileError> {
    lock::parse(&text(path)?).map_err(|source| FileError::Lock { path: path.to_owned(), source })
}

/// The sysroot's libraries.
///
/// # Errors
/// [`FileError::Read`], [`FileError::Libraries`].
pub fn sysroot(path: &Path) -> Result<Sysroot, FileError> {
    Sysroot::parse(&text(path)?).map_err(|source| FileError::Libraries { path: path.to_owned(), source })
}

/// The program that is `name` in the image.
///
/// # Errors
/// [`FileError::Read`], [`FileError::Program`]; [`FileError::Unpinned`]: it has a library that is not the sysroot's.
pub fn program(name: &str, path: &Path, sysroot: &Sysroot) -> Result<Examined, FileError> {
    let bytes = bytes(path)?;
    let program = Program::read(&bytes).map_err(|source| FileError::Program { program: name.to_owned(), source })?;
    let libraries =
        program.packages(sysroot).map_err(|source| FileError::Unpinned { program: name.to_owned(), source })?;
    let libraries = libraries.into_iter().map(str::to_owned).collect();
    Ok(Examined { bytes, program, libraries })
}
