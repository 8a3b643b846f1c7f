//! Runs programs that print one JSON message per line: the guest, and the program that serves bursts of claims.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitStatus, Stdio};

use bench::{Sample, TimeSample, Word};
use serde::de::DeserializeOwned;

#[derive(Debug, Default)]
pub(crate) struct Measurement {
    pub(crate) kernel: String,
    pub(crate) samples: Vec<Sample>,
    pub(crate) times: Vec<TimeSample>,
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

/// Boots the guest, which measures every operation `runs` times, and reads its output to the end. Without times, the
/// guest only counts.
pub(crate) fn measure(program: &Path, runs: u32, with_times: bool) -> Result<Measurement, GuestError> {
    let mut shown = 0;
    let show = |word: &Word| {
        if let Word::Sample(sample) = word
            && sample.run != shown
        {
            shown = sample.run;
            eprintln!("run {shown} of {runs}");
        }
    };
    let mut arguments = vec!["measure".to_owned(), runs.to_string()];
    if with_times {
        arguments.push("--times".to_owned());
    }
    let mut measured = Measurement::default();
    for word in samples(program, &arguments, show)? {
        match word {
            Word::Kernel(release) => measured.kernel = release,
            Word::Sample(sample) => measured.samples.push(sample),
            Word::Time(sample) => measured.times.push(sample),
        }
    }
    Ok(measured)
}

/// The command of a program. If the program boots a guest, the guest ends with this process, also by a signal.
pub(crate) fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("KTEST_PARENT", process::id().to_string());
    command
}

/// Starts a program that prints one sample per line, and reads its output to the end.
pub(crate) fn samples<T: DeserializeOwned>(
    program: &Path,
    arguments: &[String],
    show: impl FnMut(&T),
) -> Result<Vec<T>, GuestError> {
    let start = |source| GuestError::Start { program: program.to_path_buf(), source };
    let mut child =
        command(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(start)?;
    let samples = child.stdout.take().map_or_else(|| Ok(Vec::new()), |stdout| read(BufReader::new(stdout), show));
    let status = child.wait().map_err(GuestError::Wait)?;
    match samples {
        // A program that fails may cut off its last line.
        Ok(_) | Err(GuestError::Word { .. }) if !status.success() => Err(GuestError::Failed(status)),
        samples => samples,
    }
}

/// Reads the output to its end, even after an error, so that the guest does not block.
fn read<T: DeserializeOwned>(lines: impl BufRead, mut show: impl FnMut(&T)) -> Result<Vec<T>, GuestError> {
    let (mut samples, mut wrong) = (Vec::new(), None);
    for line in lines.lines() {
        let line = line.map_err(GuestError::Listen)?;
        match serde_json::from_str(&line) {
            Ok(sample) => {
                show(&sample);
                samples.push(sample);
            }
            Err(source) => wrong = wrong.or(Some(GuestError::Word { line, source })),
        }
    }
    wrong.map_or(Ok(samples), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_message_is_shown_after_the_end() {
        let mut runs = Vec::new();
        let error = read("1\nSegmentation fault\n2\n".as_bytes(), |run: &u32| runs.push(*run)).unwrap_err();
        assert_eq!(error.to_string(), r#"the guest sent an invalid message: "Segmentation fault""#);
        assert_eq!(runs, [1, 2]);
    }
}
