//! The output directory of a run.

use launch::StepError;
use std::env;
use std::error::Error;
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Lock file. A run does not remove it, because a further run could have opened the removed file.
const LOCK: &str = "lock";

/// A directory with an empty or an earlier `logs`. It is locked (flock(2)): a further run with it ends with an error.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    _lock: File,
}

impl Output {
    /// Creates the directory, or opens an earlier one. The default is a new directory in the temporary directory.
    pub(crate) fn open(named: Option<PathBuf>) -> Result<Self, StepError> {
        let path = match named {
            Some(path) => path,
            None => {
                let step = format!("create a directory for the results in {}", env::temp_dir().display());
                TempDir::with_prefix("conformance-").map_err(StepError::of(step))?.keep()
            }
        };
        let step = format!("create {} for the results; name another directory with --output", path.display());
        fs::create_dir_all(path.join("logs")).map_err(StepError::of(step))?;
        let lock = lock(&path.join(LOCK));
        let step = format!("lock {} for the results; name another directory with --output", path.display());
        Ok(Self { _lock: lock.map_err(StepError::of(step))?, path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a log. Returns its path below the directory, which has the first unused number.
    pub(crate) fn create_log(&self) -> Result<(String, File), StepError> {
        let mut number = 1_u32;
        loop {
            let log = format!("logs/{number:03}.log");
            match File::create_new(self.path.join(&log)) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                created => {
                    let file = created.map_err(StepError::of(format!("create {log}")))?;
                    return Ok((log, file));
                }
            }
        }
    }
}

fn lock(path: &Path) -> Result<File, Box<dyn Error + Send + Sync>> {
    let file = File::create(path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err("another run uses the directory".into()),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_run_at_a_time() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("results");
        let first = Output::open(Some(path.clone())).unwrap();
        let error = causes::line(&Output::open(Some(path.clone())).unwrap_err());
        let expected = format!(
            "cannot lock {} for the results; name another directory with --output: another run uses the directory",
            path.display()
        );
        assert_eq!(error, expected);
        drop(first);
        // The file of an ended run does not exclude the next one.
        assert_eq!(Output::open(Some(path.clone())).unwrap().path(), path);
    }
}
