//! `directory PATH BYTES` creates the directory of a volume, so that all compared provisioners do the same work. A
//! build machine has no XFS with project quotas. A file with the limit, as durable as the directory, replaces the
//! quota.
#![forbid(unsafe_code)]

use std::env;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1).map(PathBuf::from);
    let (Some(path), Some(limit)) = (arguments.next(), arguments.next()) else {
        eprintln!("error: wrong usage; give a path and a number of bytes");
        return ExitCode::from(2);
    };
    match create(&path, &limit) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: cannot create {}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}

fn create(path: &Path, limit: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    let mut file = File::create_new(path.join("limit"))?;
    file.write_all(limit.as_os_str().as_encoded_bytes())?;
    file.sync_all()?;
    for directory in [Some(path), path.parent()].into_iter().flatten() {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}
