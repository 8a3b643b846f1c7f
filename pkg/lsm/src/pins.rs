//! [`Pins`]: names of maps and links in a bpffs. Pinned objects outlive the process.

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::maps::c_path;
use crate::sys;

/// Location of the pins of a [`Guard`](crate::Guard): a directory of the host's bpffs.
#[derive(Clone, Copy, Debug)]
pub struct Pins<'a> {
    /// Mount point of the host's `/sys`, with bpffs on `fs/bpf` and securityfs on `kernel/security`.
    pub sys: &'a Path,
    /// Name of the directory, which is created if it is missing.
    pub directory: &'a str,
}

impl Pins<'_> {
    /// Path of the directory.
    pub fn path(&self) -> PathBuf {
        self.sys.join("fs/bpf").join(self.directory)
    }

    /// Removes the pins, which detaches the programs unless a process has them open. Idempotent.
    pub fn remove(&self) -> Result<(), Error> {
        let path = self.path();
        for name in names(&path)? {
            remove_file(&path.join(name))?;
        }
        match fs::remove_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &path)(error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    pub(crate) fn active_lsms(&self) -> PathBuf {
        self.sys.join("kernel/security/lsm")
    }

    /// Pins these objects, each atomically in place of the former one. Then removes all other pins, which are those of
    /// hooks that this release does not use.
    pub(crate) fn replace<'fd>(
        &self,
        objects: impl IntoIterator<Item = (&'static str, BorrowedFd<'fd>)>,
    ) -> Result<(), Error> {
        let path = self.path();
        match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed("create", &path)(error)),
            Ok(()) | Err(_) => {}
        }
        let mut pinned = Vec::new();
        for (name, object) in objects {
            let (new, place) = (path.join(format!("{name}-new")), path.join(name));
            // An earlier process may have ended between the pin and the rename.
            remove_file(&new)?;
            sys::pin(object, &c_path(&new)?).map_err(|errno| failed("pin an object at", &new)(errno.into()))?;
            fs::rename(&new, &place).map_err(failed("replace", &place))?;
            pinned.push(name);
        }
        for name in names(&path)? {
            if !pinned.iter().any(|pinned| name == *pinned) {
                remove_file(&path.join(name))?;
            }
        }
        Ok(())
    }
}

/// The names in a directory; none if it is missing.
fn names(directory: &Path) -> Result<Vec<std::ffi::OsString>, Error> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed("read", directory))?,
    };
    entries.map(|entry| entry.map(|entry| entry.file_name()).map_err(failed("read", directory))).collect()
}

fn remove_file(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Pin { step, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_that_do_not_exist_are_removed_already() {
        let scratch = std::env::temp_dir().join(format!("lsm-pins-{}", std::process::id()));
        let pins = Pins { sys: &scratch, directory: "granary" };
        pins.remove().unwrap();
        fs::create_dir_all(pins.path()).unwrap();
        fs::write(pins.path().join("file_ioctl"), "").unwrap();
        pins.remove().unwrap();
        assert!(!pins.path().exists());
        pins.remove().unwrap();
        fs::remove_dir_all(&scratch).unwrap();
    }
}
