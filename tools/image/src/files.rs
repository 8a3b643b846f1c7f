//! Reads input files of the build. Errors contain their paths.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::lock::{self, Package};
use crate::program::Program;
use crate::sysroot::Sysroot;

/// Error for a file that is invalid, or cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step} {object}")]
pub struct FileError {
    step: &'static str,
    object: String,
    source: Box<dyn Error>,
}

impl FileError {
    /// Adds the failed step and the path of the file to an error, for `map_err`.
    pub fn of<E: Into<Box<dyn Error>>>(step: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        let object = path.display().to_string();
        move |source| Self { step, object, source: source.into() }
    }
}

#[derive(Debug)]
pub struct Examined {
    pub bytes: Vec<u8>,
    pub program: Program,
    pub libraries: BTreeSet<String>,
}

pub fn bytes(path: &Path) -> Result<Vec<u8>, FileError> {
    fs::read(path).map_err(FileError::of("read", path))
}

/// Reads a text file and replaces invalid UTF-8.
pub fn text(path: &Path) -> Result<String, FileError> {
    bytes(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

pub fn description<T: DeserializeOwned>(path: &Path) -> Result<T, FileError> {
    serde_json::from_slice(&bytes(path)?).map_err(FileError::of("parse", path))
}

pub fn lock(path: &Path) -> Result<Vec<Package>, FileError> {
    lock::parse(&text(path)?).map_err(FileError::of("parse the lock file", path))
}

pub fn sysroot(path: &Path) -> Result<Sysroot, FileError> {
    Sysroot::parse(&text(path)?).map_err(FileError::of("parse the list of libraries", path))
}

/// Reads the program `name` of the image. Fails if it contains a library that is not in the sysroot.
pub fn program(name: &str, path: &Path, sysroot: &Sysroot) -> Result<Examined, FileError> {
    let bytes = bytes(path)?;
    let program = Program::read(&bytes).map_err(FileError::of("examine program", Path::new(name)))?;
    let libraries = program.packages(sysroot).map_err(FileError::of("identify the libraries of", Path::new(name)))?;
    let libraries = libraries.into_iter().map(str::to_owned).collect();
    Ok(Examined { bytes, program, libraries })
}
