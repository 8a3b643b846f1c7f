//! Owners of a confined program's files. Ensured at each start of the program, while it does not run: a data disk of a
//! release that ran all programs as root gets its owners so, and after a power cut the next start completes the change.

use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use dir::{Dir, Mode, Name};
use nix::sys::stat::fchmod;

use crate::rights::Rights;

/// Gives the program's user its keys, its directories and its scratch directory. All of them exist. The error has its path.
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
