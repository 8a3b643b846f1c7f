//! Errors of checks.

use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
#[error("cannot {step} {}", path.display())]
pub struct CheckError {
    step: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl CheckError {
    pub(crate) fn of<E: Into<io::Error>>(step: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        move |error| Self { step, path: path.to_path_buf(), source: error.into() }
    }
}
