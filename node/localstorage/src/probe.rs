//! `blkid`, which detects the signatures of about a hundred formats.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use crate::program::{Bounds, Ended, RunError, run};
use crate::signature::{MalformedLine, Mark};

/// Time and output limit. A disk that has to spin up takes some seconds.
const BOUNDS: Bounds = Bounds { time: Duration::from_secs(60), bytes: 64 << 10 };

/// Exit status for contradictory signatures.
const AMBIVALENT: i32 = 8;

/// The content of a disk is unknown. The node does not change the disk in this case.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("cannot run {}", program.display())]
    Run { program: PathBuf, source: RunError },
    #[error("{} ended with {status}: {said:?}", program.display())]
    Failed { program: PathBuf, status: ExitStatus, said: String },
    #[error("invalid output of {}", program.display())]
    Malformed { program: PathBuf, source: MalformedLine },
}

/// Signatures on a block device; empty if `blkid` detects none. Reads only.
pub(crate) fn probe(blkid: &Path, device: &Path) -> Result<Vec<Mark>, ProbeError> {
    // The options read the device instead of the cache; select this format, the only one that names all of several
    // signatures; and print the sector sizes, without which the output for a device that `blkid` cannot open is the
    // same as for an empty one.
    let mut command = Command::new(blkid);
    command.args(["--probe", "--output", "udev", "--info"]).arg(device);
    let ended = run(&mut command, BOUNDS).map_err(|source| ProbeError::Run { program: blkid.to_owned(), source })?;
    answer(blkid, &ended)
}

fn answer(blkid: &Path, ended: &Ended) -> Result<Vec<Mark>, ProbeError> {
    let program = || blkid.to_owned();
    let output = String::from_utf8_lossy(&ended.output);
    let marks = Mark::parse(&output).map_err(|source| ProbeError::Malformed { program: program(), source })?;
    let was_read = output.lines().any(|line| line.starts_with("ID_IOLIMIT_LOGICAL_SECTOR_SIZE="));
    match ended.status.code() {
        Some(0) if was_read => Ok(marks),
        Some(AMBIVALENT) if !marks.is_empty() => Ok(marks),
        _ => {
            let said = String::from_utf8_lossy(&ended.errors).trim().to_owned();
            Err(ProbeError::Failed { program: program(), status: ended.status, said })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn ended(code: i32, output: &str) -> Ended {
        Ended { status: ExitStatus::from_raw(code << 8), output: output.into(), errors: b"oops\n".to_vec() }
    }

    fn answer_to(code: i32, output: &str) -> Result<Vec<Mark>, ProbeError> {
        answer(Path::new("blkid"), &ended(code, output))
    }

    const LIMITS: &str = "ID_IOLIMIT_MINIMUM_IO_SIZE=512\nID_IOLIMIT_LOGICAL_SECTOR_SIZE=512\n";

    #[test]
    fn a_device_without_marks_was_read_all_the_same() {
        assert_eq!(answer_to(0, LIMITS).unwrap(), []);
    }

    #[test]
    fn a_device_that_was_not_read_is_not_empty() {
        for (code, output) in [(0, ""), (2, ""), (2, LIMITS), (4, LIMITS), (8, ""), (8, LIMITS), (1, LIMITS)] {
            let failed = answer_to(code, output);
            assert!(matches!(failed, Err(ProbeError::Failed { said, .. }) if said == "oops"), "{code} {output}");
        }
    }

    #[test]
    fn a_killed_program_gives_an_error() {
        let killed = Ended { status: ExitStatus::from_raw(11), ..ended(0, LIMITS) };
        assert!(matches!(answer(Path::new("blkid"), &killed), Err(ProbeError::Failed { .. })));
    }

    #[test]
    fn several_formats_are_an_answer() {
        let marks = answer_to(8, "ID_FS_AMBIVALENT=filesystem:xfs filesystem:ext2:1.0\n").unwrap();
        assert_eq!(marks.len(), 2);
    }
}
