//! The QEMU program of this host.

use std::env;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

const NAME: &str = "qemu-system-x86_64";

/// A version of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
    /// The third number.
    pub micro: u32,
}

impl Version {
    /// Oldest version that is supported. QEMU 7.2 emulates `cmpxchg16b` wrongly: Linux 6.12 ends in a double fault
    /// after seconds.
    pub const OLDEST: Self = Self { major: 8, minor: 0, micro: 0 };
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.micro)
    }
}

/// The text contains no version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no version of QEMU in {text:?}")]
pub struct VersionError {
    /// The text.
    pub text: String,
}

impl FromStr for Version {
    type Err = VersionError;

    /// Parses the output of `--version`, such as `QEMU emulator version 8.2.1 (Debian …)`.
    fn from_str(text: &str) -> Result<Self, VersionError> {
        let wrong = || VersionError { text: text.lines().next().unwrap_or_default().to_owned() };
        let (_, rest) = text.split_once("version ").ok_or_else(wrong)?;
        let numbers = rest.split(|c: char| !(c.is_ascii_digit() || c == '.')).next().unwrap_or_default();
        let mut numbers = numbers.split('.').map(str::parse::<u32>);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor)), Some(Ok(micro))) => Ok(Self { major, minor, micro }),
            (Some(Ok(major)), Some(Ok(minor)), None) => Ok(Self { major, minor, micro: 0 }),
            _ => Err(wrong()),
        }
    }
}

/// A QEMU program of a supported version.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    version: Version,
}

/// Reason why no QEMU can be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors describe the fields")]
pub enum FindError {
    /// No QEMU in the searched directories.
    #[error(
        "there is no {NAME} in PATH; install QEMU {} or newer (Debian: apt install qemu-system-x86), or run through \
         ./bazelw, which brings one",
        Version::OLDEST
    )]
    Missing,
    /// QEMU does not start.
    #[error("cannot run {path}")]
    Run { path: PathBuf, source: io::Error },
    /// The version of QEMU is not readable.
    #[error("cannot read the version of {path}")]
    Version { path: PathBuf, source: VersionError },
    /// QEMU is older than [`Version::OLDEST`].
    #[error(
        "{path} is version {version}: QEMU 7.2 crashes Linux 6.12 in emulation; install {} or newer, \
         or run through ./bazelw, which brings one",
        Version::OLDEST
    )]
    TooOld { path: PathBuf, version: Version },
}

impl Program {
    /// Finds `qemu-system-x86_64` in `PATH`, then in /usr/bin, and reads its version.
    pub fn find() -> Result<Self, FindError> {
        let search = env::var_os("PATH").unwrap_or_default();
        Self::find_in(env::split_paths(&search).chain([PathBuf::from("/usr/bin")]))
    }

    fn find_in(mut directories: impl Iterator<Item = PathBuf>) -> Result<Self, FindError> {
        let path = directories.find_map(|directory| Some(directory.join(NAME)).filter(|path| path.is_file()));
        let path = path.ok_or(FindError::Missing)?;
        let output = match Command::new(&path).arg("--version").output() {
            Ok(output) => output,
            Err(source) => return Err(FindError::Run { path, source }),
        };
        match String::from_utf8_lossy(&output.stdout).parse::<Version>() {
            Ok(version) if version < Version::OLDEST => Err(FindError::TooOld { path, version }),
            Ok(version) => Ok(Self { path, version }),
            Err(source) => Err(FindError::Version { path, source }),
        }
    }

    /// Path of the program.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Version of the program.
    pub fn version(&self) -> Version {
        self.version
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    use std::time::{Duration, Instant};

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn the_version_of_a_distribution_is_read() {
        let text = "QEMU emulator version 11.1.2 (Debian 1:11.1.2+ds-3)\nCopyright (c) 2003-2026 Fabrice Bellard\n";
        assert_eq!(text.parse(), Ok(Version { major: 11, minor: 1, micro: 2 }));
    }

    #[test]
    fn a_text_without_a_version_is_refused_with_its_first_line() {
        let error = "hello\nworld".parse::<Version>().unwrap_err();
        assert_eq!(error, VersionError { text: "hello".into() });
        assert!("QEMU emulator version eleven".parse::<Version>().is_err());
    }

    #[test]
    fn seven_is_older_than_the_oldest() {
        let seven: Version = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)".parse().unwrap();
        assert!(seven < Version::OLDEST);
        let eight: Version = "QEMU emulator version 8.0".parse().unwrap();
        assert!(eight >= Version::OLDEST);
    }

    /// Time in which another test has to start a program.
    const LIMIT: Duration = Duration::from_secs(60);

    /// A directory with a program of this name that prints the text.
    fn that_says(text: &str) -> TempDir {
        let directory = tempfile::tempdir().unwrap();
        let mut file =
            File::options().write(true).create_new(true).mode(0o755).open(directory.path().join(NAME)).unwrap();
        write!(file, "#!/bin/sh\necho '{text}'\n").unwrap();
        directory
    }

    /// Searches these directories in order. If another test starts a program while a file is open for writing, that
    /// program inherits the descriptor until its exec, and the file cannot be executed (`ETXTBSY`).
    fn find(directories: &[&TempDir]) -> Result<Program, FindError> {
        let end = Instant::now() + LIMIT;
        loop {
            match Program::find_in(directories.iter().map(|directory| directory.path().to_owned())) {
                Err(FindError::Run { source, .. })
                    if source.kind() == io::ErrorKind::ExecutableFileBusy && Instant::now() < end => {}
                found => return found,
            }
        }
    }

    #[test]
    fn the_first_directory_that_has_it_counts() {
        let empty = tempfile::tempdir().unwrap();
        let (first, second) = (that_says("QEMU emulator version 9.1.0"), that_says("QEMU emulator version 8.0.0"));
        let found = find(&[&empty, &first, &second]).unwrap();
        assert_eq!(found.path(), first.path().join(NAME));
        assert_eq!(found.version(), Version { major: 9, minor: 1, micro: 0 });
    }

    #[test]
    fn a_missing_qemu_is_reported_with_the_remedy() {
        let error = find(&[&tempfile::tempdir().unwrap()]).unwrap_err();
        assert!(matches!(error, FindError::Missing), "{error:?}");
        assert_eq!(
            error.to_string(),
            "there is no qemu-system-x86_64 in PATH; install QEMU 8.0.0 or newer (Debian: apt install qemu-system-x86), \
             or run through ./bazelw, which brings one"
        );
    }

    #[test]
    fn an_old_qemu_is_rejected_with_its_version_and_the_remedy() {
        let old = that_says("QEMU emulator version 7.2.0");
        let error = find(&[&old]).unwrap_err();
        assert!(
            matches!(error, FindError::TooOld { version: Version { major: 7, minor: 2, micro: 0 }, .. }),
            "{error:?}"
        );
        assert_eq!(
            error.to_string(),
            format!(
                "{}/qemu-system-x86_64 is version 7.2.0: QEMU 7.2 crashes Linux 6.12 in emulation; install 8.0.0 or newer, \
                 or run through ./bazelw, which brings one",
                old.path().display()
            )
        );
    }

    #[test]
    fn a_program_without_a_version_is_rejected() {
        let error = find(&[&that_says("hello")]).unwrap_err();
        assert!(matches!(&error, FindError::Version { source, .. } if source.text == "hello"), "{error:?}");
    }

    proptest! {
        #[test]
        fn a_printed_version_is_read_back(major: u32, minor: u32, micro: u32, rest in "( .*)?") {
            let version = Version { major, minor, micro };
            prop_assert_eq!(format!("QEMU emulator version {version}{rest}").parse(), Ok(version));
        }

        #[test]
        fn any_text_is_read_or_refused(text: String) {
            let _ = text.parse::<Version>();
        }
    }
}
