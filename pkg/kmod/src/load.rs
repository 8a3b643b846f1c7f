//! Giving modules to the kernel.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};

use crate::catalog::ModuleName;
use crate::order::{FileName, Module, ORDER, OrderError, parse};

/// What became of the modules, in the order in which they were loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Loaded by this call.
    pub loaded: Vec<FileName>,
    /// Were there before, as a module or built into the kernel.
    pub present: Vec<FileName>,
    /// Refused to start because the machine lacks what they drive, such as a CPU feature.
    pub without_hardware: Vec<FileName>,
}

/// Why not all modules are loaded. Those before the one that failed are.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The directory is missing or not a module directory.
    #[error("cannot read the module order {path}")]
    Order {
        /// The file that was looked for.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The order is not a list of module files.
    #[error("cannot understand the module order {path}")]
    Parse {
        /// The file that was read.
        path: PathBuf,
        /// The line at fault.
        #[source]
        source: OrderError,
    },
    /// A module of the order is not in the directory.
    #[error("cannot open the module {path}")]
    Open {
        /// The file that was looked for.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The directory was not built for a module that is named.
    #[error("there is no module {module} in {dir}")]
    Unknown {
        /// The module.
        module: ModuleName,
        /// The directory.
        dir: PathBuf,
    },
    /// The kernel refused the module; its log tells more, such as an unknown symbol.
    #[error("the kernel refused the module {module}")]
    Refused {
        /// The module's file.
        module: FileName,
        /// `ENOEXEC` for a module of another kernel, `ENOENT` for an unknown symbol, `EPERM` without the
        /// right to load modules.
        #[source]
        source: Errno,
    },
}

/// Loads all modules of the directory `dir`. Idempotent.
///
/// # Errors
/// [`LoadError`]: the first module that can be neither loaded nor left out.
///
/// `finit_module`, Linux 3.8.
pub fn load(dir: impl AsRef<Path>) -> Result<Report, LoadError> {
    let dir = dir.as_ref();
    let mut report = Report::default();
    for module in read_order(dir)? {
        match insert(dir, &module)? {
            Outcome::Loaded => report.loaded.push(module.file),
            Outcome::Present => report.present.push(module.file),
            Outcome::WithoutHardware => report.without_hardware.push(module.file),
        }
    }
    Ok(report)
}

pub(crate) fn read_order(dir: &Path) -> Result<Vec<Module>, LoadError> {
    let path = dir.join(ORDER);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(source) => return Err(LoadError::Order { path, source }),
    };
    parse(&text).map_err(|source| LoadError::Parse { path, source })
}

pub(crate) enum Outcome {
    Loaded,
    Present,
    WithoutHardware,
}

pub(crate) fn insert(dir: &Path, Module { file: module, parameters }: &Module) -> Result<Outcome, LoadError> {
    let path = dir.join(module.as_str());
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(source) => return Err(LoadError::Open { path, source }),
    };
    match finit_module(&file, parameters, ModuleInitFlags::empty()) {
        Ok(()) => Ok(Outcome::Loaded),
        Err(Errno::EEXIST) => Ok(Outcome::Present),
        Err(Errno::ENODEV) => Ok(Outcome::WithoutHardware),
        Err(source) => Err(LoadError::Refused { module: module.clone(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_an_order_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = load(dir.path()).unwrap_err();
        assert!(matches!(&error, LoadError::Order { path, .. } if *path == dir.path().join("order")), "{error:?}");
    }

    #[test]
    fn a_module_of_the_order_that_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(ORDER), "xfs.ko\n").unwrap();
        let error = load(dir.path()).unwrap_err();
        assert!(matches!(&error, LoadError::Open { path, .. } if *path == dir.path().join("xfs.ko")), "{error:?}");
    }

    #[test]
    fn a_file_that_is_no_module_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(ORDER), "xfs.ko\n").unwrap();
        fs::write(dir.path().join("xfs.ko"), "no module").unwrap();
        let error = load(dir.path()).unwrap_err();
        // EPERM without CAP_SYS_MODULE, ENOEXEC with it; some sandboxes have no such call.
        let refusals = [Errno::EPERM, Errno::ENOEXEC, Errno::ENOSYS];
        assert!(
            matches!(&error, LoadError::Refused { module, source }
                if module.as_str() == "xfs.ko" && refusals.contains(source)),
            "{error:?}"
        );
    }

    #[test]
    fn an_empty_order_loads_nothing() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(ORDER), "").unwrap();
        assert_eq!(load(dir.path()).unwrap(), Report::default());
    }
}
