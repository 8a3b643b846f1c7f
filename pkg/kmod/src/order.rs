//! The order in which the modules of a directory are loaded.

use std::ffi::CString;
use std::fmt;
use std::str::FromStr;

/// Name of the file that lists a directory's modules.
pub const ORDER: &str = "order";

/// Name of a module's file, `[A-Za-z0-9_-]+\.ko`: always one safe path component.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName(Box<str>);

impl FileName {
    /// The name with its suffix.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for FileName {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let stem = text.strip_suffix(".ko").ok_or(Problem::Suffix)?;
        let safe = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if stem.is_empty() || !stem.bytes().all(safe) {
            return Err(Problem::Name);
        }
        Ok(Self(text.into()))
    }
}

/// Why a line names no module file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Compressed modules are unpacked when the directory is built.
    #[error("a module's file name ends in .ko (unpack compressed modules)")]
    Suffix,
    /// Neither a path nor white space can be part of a name.
    #[error("a module's file name consists of letters, digits, '_' and '-'")]
    Name,
    /// The kernel takes the parameters as a C string.
    #[error("parameters of a module contain no NUL")]
    Parameters,
}

/// A line of [`ORDER`] that names no module file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the module order is {text:?}")]
pub struct OrderError {
    /// Counted from 1.
    pub line: usize,
    /// What stands there.
    pub text: String,
    /// What is wrong with it.
    #[source]
    pub problem: Problem,
}

/// A line of [`ORDER`]: a file name, and the module's parameters after a space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Name of the file.
    pub file: FileName,
    /// As modprobe(8) takes them, `max_loop=8 max_part=0`; empty for none. The kernel's command line
    /// (`loop.max_loop=8`) has no effect on a module that is loaded by `finit_module`.
    pub parameters: CString,
}

impl FromStr for Module {
    type Err = Problem;

    fn from_str(line: &str) -> Result<Self, Problem> {
        let (file, parameters) = line.split_once(' ').unwrap_or((line, ""));
        let parameters = CString::new(parameters).map_err(|_| Problem::Parameters)?;
        Ok(Self { file: file.parse()?, parameters })
    }
}

/// Reads the text of [`ORDER`]. Empty lines are skipped.
///
/// # Errors
/// [`OrderError`]: the first line that is not a file name of a module with its parameters.
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
    fn a_name_cannot_leave_the_directory() {
        let wrong = parse("xfs.ko\n../xfs.ko\n").unwrap_err();
        assert_eq!(wrong, OrderError { line: 2, text: "../xfs.ko".into(), problem: Problem::Name });
        for text in ["fs/xfs.ko", ".ko", "xfs.ko.ko", "a b.ko"] {
            assert_eq!(text.parse::<FileName>(), Err(Problem::Name), "{text}");
        }
    }

    #[test]
    fn parameters_follow_the_file_name() {
        let modules = parse("xfs.ko\nloop.ko max_loop=8 max_part=0\n").unwrap();
        let parameters: Vec<_> = modules.iter().map(|module| module.parameters.to_str().unwrap()).collect();
        assert_eq!(parameters, ["", "max_loop=8 max_part=0"]);
        assert_eq!("loop.ko max_loop=\0".parse::<Module>(), Err(Problem::Parameters));
        assert_eq!("max_loop=8 loop.ko".parse::<Module>(), Err(Problem::Suffix));
    }

    #[test]
    fn a_compressed_module_is_refused() {
        assert_eq!("xfs.ko.xz".parse::<FileName>(), Err(Problem::Suffix));
    }
}
