//! Owners of a confined program's files, set at each start before the program runs. The start thereby converts a data
//! disk of a release that ran all programs as root, and completes a change that a power cut interrupted.

use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use dir::{Dir, Mode, Name};
use nix::sys::stat::fchmod;

use crate::rights::Rights;

/// Changes the owner of the keys, directories and scratch directory to the program's user. All of them must exist. The
/// error contains the path.
pub(crate) fn ensure(rights: &Rights, scratch: &Path) -> Result<(), (PathBuf, io::Error)> {
    let owner = rights.user.owner();
    for key in &rights.keys {
        let failed = |error: dir::Error| (key.clone(), io::Error::from(error.errno()));
        let (Some(directory), Some(name)) = (key.parent(), key.file_name()) else {
            return Err((key.clone(), io::ErrorKind::InvalidFilename.into()));
        };
        let name = Name::try_from(name).map_err(|error| (key.clone(), io::Error::other(error)))?;
        Dir::open(directory).and_then(|directory| directory.give(&name, owner)).map_err(failed)?;
    }
    for path in rights.owns.iter().map(PathBuf::as_path).chain([scratch]) {
        let failed = |error: dir::Error| (path.to_owned(), io::Error::from(error.errno()));
        let directory = Dir::open(path).map_err(failed)?;
        directory.give_all(owner).map_err(failed)?;
        fchmod(directory.as_fd(), Mode::S_IRWXU).map_err(|errno| (path.to_owned(), errno.into()))?;
    }
    Ok(())
}
