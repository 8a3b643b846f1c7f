//! The order in which the modules of a directory are loaded.

use std::ffi::CString;
use std::fmt;
use std::str::FromStr;

/// Name of the file that lists the modules of a directory.
pub const ORDER: &str = "order";

const COMPRESSED: &str = ".xz";

/// File name of a module, `[A-Za-z0-9_-]+\.ko` or `.ko.xz`: always one safe path component.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName(Box<str>);

impl FileName {
    /// The name including `.ko`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the kernel has to decompress the module: `CONFIG_MODULE_DECOMPRESS` and `CONFIG_MODULE_COMPRESS_XZ`,
    /// Linux 5.17.
    pub fn is_compressed(&self) -> bool {
        self.0.ends_with(COMPRESSED)
    }

    /// The module's name in `/sys/module`.
    pub(crate) fn module(&self) -> String {
        self.0.split('.').next().unwrap_or_default().replace('-', "_")
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for FileName {
    type Err = LineError;

    fn from_str(text: &str) -> Result<Self, LineError> {
        let stem = text.strip_suffix(COMPRESSED).unwrap_or(text).strip_suffix(".ko").ok_or(LineError::Suffix)?;
        let safe = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if stem.is_empty() || !stem.bytes().all(safe) {
            return Err(LineError::Name);
        }
        Ok(Self(text.into()))
    }
}

/// Reason why a line of [`ORDER`] is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The name ends in neither `.ko` nor `.ko.xz`.
    #[error("a module file name must end in .ko or .ko.xz; decompress other modules")]
    Suffix,
    /// The name contains other characters, for example `/` or white space.
    #[error("a module file name may only contain letters, digits, '_' and '-'")]
    Name,
    /// The parameters contain a NUL byte; the kernel takes a C string.
    #[error("module parameters must not contain NUL")]
    Parameters,
}

/// An invalid line of [`ORDER`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the module order is invalid: {text:?}")]
pub struct OrderError {
    /// Line number, from 1.
    pub line: usize,
    /// Text of the line.
    pub text: String,
    /// The reason.
    #[source]
    pub problem: LineError,
}

/// A line of [`ORDER`]: a file name, optionally followed by a space and the module's parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// File name.
    pub file: FileName,
    /// Parameters in the format of modprobe(8), such as `max_loop=8 max_part=0`. The kernel command line
    /// (`loop.max_loop=8`) has no effect on a module that `finit_module` loads.
    pub parameters: CString,
}

impl FromStr for Module {
    type Err = LineError;

    fn from_str(line: &str) -> Result<Self, LineError> {
        let (file, parameters) = line.split_once(' ').unwrap_or((line, ""));
        let parameters = CString::new(parameters).map_err(|_| LineError::Parameters)?;
        Ok(Self { file: file.parse()?, parameters })
    }
}

/// Parses the content of [`ORDER`]. Empty lines are skipped. [`OrderError`] names the first invalid line.
pub fn parse(text: &str) -> Result<Vec<Module>, OrderError> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
        .map(|(index, line)| {
            line.parse().map_err(|problem| OrderError { line: index + 1, text: line.to_owned(), problem })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_kept_and_empty_lines_are_skipped() {
        let names = parse("virtio_ring.ko\n\nvirtio.ko\ncrc32c-intel.ko\n").unwrap();
        let names: Vec<_> = names.iter().map(|module| module.file.as_str()).collect();
        assert_eq!(names, ["virtio_ring.ko", "virtio.ko", "crc32c-intel.ko"]);
    }

    #[test]
    fn a_file_name_with_a_path_is_rejected() {
        let wrong = parse("xfs.ko\n../xfs.ko\n").unwrap_err();
        assert_eq!(wrong, OrderError { line: 2, text: "../xfs.ko".into(), problem: LineError::Name });
        for text in ["fs/xfs.ko", ".ko", "xfs.ko.ko", "a b.ko"] {
            assert_eq!(text.parse::<FileName>(), Err(LineError::Name), "{text}");
        }
    }

    #[test]
    fn parameters_follow_the_file_name() {
        let modules = parse("xfs.ko\nloop.ko max_loop=8 max_part=0\n").unwrap();
        let parameters: Vec<_> = modules.iter().map(|module| module.parameters.to_str().unwrap()).collect();
        assert_eq!(parameters, ["", "max_loop=8 max_part=0"]);
        assert_eq!("loop.ko max_loop=\0".parse::<Module>(), Err(LineError::Parameters));
        assert_eq!("max_loop=8 loop.ko".parse::<Module>(), Err(LineError::Suffix));
    }

    #[test]
    fn the_kernel_decompresses_xz_only() {
        let compressed: FileName = "nvme-core.ko.xz".parse().unwrap();
        assert!(compressed.is_compressed());
        assert_eq!(compressed.module(), "nvme_core");
        assert!(!"xfs.ko".parse::<FileName>().unwrap().is_compressed());
        for other in ["xfs.ko.zst", "xfs.ko.gz", "xfs.xz"] {
            assert_eq!(other.parse::<FileName>(), Err(LineError::Suffix), "{other}");
        }
    }
}
