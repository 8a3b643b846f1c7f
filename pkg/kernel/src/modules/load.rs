//! Loads modules into the kernel.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};

use crate::modules::catalog::ModuleName;
use crate::modules::order::{FileName, Module, ORDER, OrderError, parse};

/// The result for each module, in load order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Modules that this call loaded.
    pub loaded: Vec<FileName>,
    /// Modules that were loaded before or are built into the kernel (`EEXIST`).
    pub present: Vec<FileName>,
    /// Modules whose hardware, such as a CPU feature, the machine lacks (`ENODEV`).
    pub without_hardware: Vec<FileName>,
}

/// A module cannot be loaded. The modules before it in the order are loaded.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum LoadError {
    /// The order file cannot be read.
    #[error("cannot read the module order {path}")]
    Order { path: PathBuf, source: io::Error },
    /// The order file has an invalid line.
    #[error("cannot parse the module order {path}")]
    Parse { path: PathBuf, source: OrderError },
    /// A module that the order lists cannot be opened.
    #[error("cannot open module {path}")]
    Open { path: PathBuf, source: io::Error },
    /// The module directory has no such module.
    #[error("there is no module {module} in {dir}")]
    Unknown { module: ModuleName, dir: PathBuf },
    /// The kernel rejected the module. The kernel log has the details, such as the name of an unknown symbol.
    #[error("the kernel rejected module {module}; the kernel log has the details")]
    Rejected {
        module: FileName,
        /// `ENOEXEC` for a module of another kernel, `ENOENT` for an unknown symbol, `EPERM` without `CAP_SYS_MODULE`.
        source: Errno,
    },
}

/// Loads all modules of the directory `dir`. Idempotent. `finit_module`, Linux 3.8.
///
/// # Errors
/// [`LoadError`] for the first module that fails for another reason than missing hardware.
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
    parse(&read(&path)?).map_err(|source| LoadError::Parse { path, source })
}

/// Reads a list of modules.
pub(crate) fn read(path: &Path) -> Result<String, LoadError> {
    fs::read_to_string(path).map_err(|source| LoadError::Order { path: path.to_owned(), source })
}

/// `MODULE_INIT_COMPRESSED_FILE` of include/uapi/linux/module.h, which nix does not have.
const DECOMPRESS: ModuleInitFlags = ModuleInitFlags::from_bits_retain(4);

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
    let flags = if module.is_compressed() { DECOMPRESS } else { ModuleInitFlags::empty() };
    match finit_module(&file, parameters, flags) {
        Ok(()) => Ok(Outcome::Loaded),
        Err(Errno::EEXIST) => Ok(Outcome::Present),
        Err(Errno::ENODEV) => Ok(Outcome::WithoutHardware),
        Err(source) => Err(LoadError::Rejected { module: module.clone(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_order_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = load(dir.path()).unwrap_err();
        assert!(matches!(&error, LoadError::Order { path, .. } if *path == dir.path().join("order")), "{error:?}");
    }

    #[test]
    fn a_missing_module_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(ORDER), "xfs.ko\n").unwrap();
        let error = load(dir.path()).unwrap_err();
        assert!(matches!(&error, LoadError::Open { path, .. } if *path == dir.path().join("xfs.ko")), "{error:?}");
    }

    #[test]
    fn an_invalid_module_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(ORDER), "xfs.ko\n").unwrap();
        fs::write(dir.path().join("xfs.ko"), "no module").unwrap();
        let error = load(dir.path()).unwrap_err();
        // EPERM without CAP_SYS_MODULE, ENOEXEC with it; ENOSYS in some sandboxes.
        let expected = [Errno::EPERM, Errno::ENOEXEC, Errno::ENOSYS];
        assert!(
            matches!(&error, LoadError::Rejected { module, source }
                if module.as_str() == "xfs.ko" && expected.contains(source)),
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
