//! Programs whose output is words: the guest, and the one that serves bursts of claims.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use bench::{Sample, Word};
use serde::de::DeserializeOwned;

#[derive(Debug, Default)]
pub(crate) struct Measurement {
    pub(crate) kernel: String,
    pub(crate) samples: Vec<Sample>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum GuestError {
    #[error("cannot start {program}")]
    Start { program: PathBuf, source: io::Error },
    #[error("cannot wait for the guest")]
    Wait(#[source] io::Error),
    #[error("cannot listen to the guest")]
    Listen(#[source] io::Error),
    #[error("the guest sent an invalid message: {line:?}")]
    Word { line: String, source: serde_json::Error },
    #[error("the guest ended with {0}; its output is above")]
    Failed(ExitStatus),
}

/// Boots the guest, lets it measure everything so often, and listens to its end.
pub(crate) fn measure(program: &Path, runs: u32) -> Result<Measurement, GuestError> {
    let start = |source| GuestError::Start { program: program.to_path_buf(), source };
    let mut child = Command::new(program)
        .args(["measure", &format!("--runs={runs}")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(start)?;
    let measured =
        child.stdout.take().map_or_else(|| Ok(Measurement::default()), |stdout| listen(BufReader::new(stdout), runs));
    let status = child.wait().map_err(GuestError::Wait)?;
    match measured {
        // A line may be cut off then.
        Ok(_) | Err(GuestError::Word { .. }) if !status.success() => Err(GuestError::Failed(status)),
        measured => measured,
    }
}

/// Starts a program that prints one sample per line, and reads to its end.
pub(crate) fn samples<T: DeserializeOwned>(
    program: &Path,
    arguments: &[String],
    mut show: impl FnMut(&T),
) -> Result<Vec<T>, GuestError> {
    let start = |source| GuestError::Start { program: program.to_path_buf(), source };
    let mut child =
        Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(start)?;
    let (mut samples, mut wrong) = (Vec::new(), None);
    for line in child.stdout.take().into_iter().flat_map(|stdout| BufReader::new(stdout).lines()) {
        let line = line.map_err(GuestError::Listen)?;
        match serde_json::from_str(&line) {
            Ok(sample) => {
                show(&sample);
                samples.push(sample);
            }
            Err(source) => wrong = wrong.or(Some(GuestError::Word { line, source })),
        }
    }
    let status = child.wait().map_err(GuestError::Wait)?;
    if status.success() { wrong.map_or(Ok(samples), Err) } else { Err(GuestError::Failed(status)) }
}

/// Reads to the end, also after an error, so that the guest does not block.
fn listen(lines: impl BufRead, runs: u32) -> Result<Measurement, GuestError> {
    let mut measured = Measurement::default();
    let mut wrong = None;
    for line in lines.lines() {
        let line = line.map_err(GuestError::Listen)?;
        match serde_json::from_str(&line) {
            Ok(Word::Kernel(release)) => measured.kernel = release,
            Ok(Word::Sample(sample)) => {
                if measured.samples.last().is_none_or(|last| last.run != sample.run) {
                    eprintln!("run {} of {runs}", sample.run);
                }
                measured.samples.push(sample);
            }
            Err(source) => wrong = wrong.or(Some(GuestError::Word { line, source })),
        }
    }
    wrong.map_or(Ok(measured), Err)
}

#[cfg(test)]
mod tests {
    use bench::Operation;

    use super::*;

    #[test]
    fn words_become_samples() {
        let lines = concat!(
            r#"{"kernel":"6.12"}"#,
            "\n",
            r#"{"sample":{"operation":"get","present":0,"run":1,"syscalls":{"ioctl":1},"flushes":0}}"#,
            "\n"
        );
        let measured = listen(lines.as_bytes(), 1).unwrap();
        assert_eq!(measured.kernel, "6.12");
        assert_eq!((measured.samples.len(), measured.samples[0].operation), (1, Operation::Get));
    }

    #[test]
    fn an_invalid_message_is_shown() {
        let error = listen("Segmentation fault\nand more\n".as_bytes(), 1).unwrap_err();
        assert_eq!(error.to_string(), r#"the guest sent an invalid message: "Segmentation fault""#);
    }
}
