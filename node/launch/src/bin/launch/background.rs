//! Start of a launcher in the background. The first launcher waits until the cluster is ready.

use crate::error::LaunchError;
use crate::interrupts::{Interrupt, Interrupts, Source};
use crate::output::Output;
use crate::place::Place;
use crate::record::{Phase, Record};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, setsid};
use std::env;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, ExitStatus};
use std::time::Duration;

/// Hidden option that marks the launcher in the background.
const DETACHED: &str = "--detached";
const INTERVAL: Duration = Duration::from_millis(100);

/// Starts this program again with the same arguments, shows its output, and returns when the cluster is ready.
pub(crate) async fn start(place: &Place, output: &Output) -> Result<(), LaunchError> {
    let mut interrupts =
        Interrupts::watch(output, Source::Terminal).map_err(LaunchError::prepare("wait for signals"))?;
    let lock = place.lock()?;
    let failed = || {
        LaunchError::prepare(format!("start a launcher in the background with its output in {}", place.log().display()))
    };
    let (mut child, mut log) = spawn(&place.log(), lock.into_file()).map_err(failed())?;
    let mut interrupt: Option<Interrupt> = None;
    // The last line of the log may be incomplete.
    let mut unprinted = Vec::new();
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        let first = interrupt;
        let woken = async {
            match first {
                None => Some(interrupts.first().await),
                Some(_) => {
                    interrupts.second().await;
                    None
                }
            }
        };
        tokio::select! {
            _ = ticks.tick() => {}
            end = woken => match end {
                Some(_) => {
                    interrupt = end;
                    // The process is an unreaped child, so no other process can have its PID. The process may have
                    // ended.
                    _ = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM);
                }
                // The launcher in the background continues the shutdown.
                None => return Err(LaunchError::Interrupted),
            },
        }
        // Check the process and the record before reading the log: the output is then complete.
        let ended = child.try_wait().map_err(failed())?;
        let is_ready = is_ready(place, &child);
        log.read_to_end(&mut unprinted).map_err(failed())?;
        let complete = match ended {
            Some(_) => unprinted.len(),
            None => unprinted.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1),
        };
        if complete > 0 {
            let lines: Vec<u8> = unprinted.drain(..complete).collect();
            let lines = String::from_utf8_lossy(&lines);
            output.print(lines.strip_suffix('\n').unwrap_or(&lines));
        }
        if let Some(outcome) = outcome(place, ended, is_ready, interrupt) {
            return outcome;
        }
    }
}

/// The result of a start; `None` while the launcher in the background boots the cluster or shuts it down.
fn outcome(
    place: &Place,
    ended: Option<ExitStatus>,
    is_ready: bool,
    interrupt: Option<Interrupt>,
) -> Option<Result<(), LaunchError>> {
    match (ended, interrupt) {
        (None, None) => is_ready.then_some(Ok(())),
        (None, Some(_)) => None,
        (Some(_), Some(interrupt)) => Some(Err(interrupt.into())),
        (Some(status), None) => {
            Some(Err(LaunchError::NotStarted { name: place.name.clone(), status, log: place.log() }))
        }
    }
}

/// Starts the launcher in the background. The returned log is open at its start.
fn spawn(log: &Path, lock: File) -> io::Result<(Child, File)> {
    File::create(log)?;
    let append = File::options().append(true).open(log)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("launch").args(env::args_os().skip(1)).arg(DETACHED);
    let child = command.stdin(lock).stdout(append.try_clone()?).stderr(append).spawn()?;
    Ok((child, File::open(log)?))
}

fn is_ready(place: &Place, child: &Child) -> bool {
    let record = Record::read(&place.record());
    record.phase == Phase::Ready && record.process.is_some_and(|process| process.pid == child.id())
}

/// Leaves the session, so that this process receives neither Ctrl-C nor the hang-up of the terminal.
pub(crate) fn detach() -> Result<(), LaunchError> {
    setsid().map(drop).map_err(|errno| LaunchError::prepare("start a session")(errno.into()))
}

/// Opens a file, and changes its path to one that leads to the open file even after its name was removed. The path is
/// valid for this process and processes of the same user, while the file is open (proc_pid_fd(5)).
pub(crate) fn pin(path: &mut PathBuf) -> Result<File, LaunchError> {
    let step =
        format!("read {}; start the node with `bazel run //:launch`, which builds missing files", path.display());
    let file = File::open(&*path).map_err(LaunchError::prepare(step))?;
    *path = format!("/proc/{}/fd/{}", process::id(), file.as_raw_fd()).into();
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::ClusterName;
    use std::fs;
    use std::os::unix::process::ExitStatusExt as _;

    /// Regression test: a `start` whose output was closed printed no error, and its exit status was that of Ctrl-C.
    #[test]
    fn a_start_ends_with_the_reason_of_its_interrupt() {
        let place = Place { name: ClusterName::default(), directory: "/state/granary".into() };
        let ended = Some(ExitStatus::from_raw(130 << 8));
        let status = |interrupt| outcome(&place, ended, false, interrupt).unwrap().unwrap_err().status();
        let interrupts = [None, Some(Interrupt::OutputClosed), Some(Interrupt::Interrupted)];
        assert_eq!(interrupts.map(status), [1, 1, 130]);
        assert!(outcome(&place, None, true, None).unwrap().is_ok());
        assert!(outcome(&place, None, false, None).is_none());
        assert!(outcome(&place, None, true, Some(Interrupt::Interrupted)).is_none());
    }

    #[test]
    fn a_pinned_file_is_read_after_its_name_was_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kernel");
        fs::write(&path, "first").unwrap();
        let mut pinned = path.clone();
        let _file = pin(&mut pinned).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "second").unwrap();
        // Read the file in another process, as QEMU does.
        let read = Command::new("cat").arg(&pinned).output().unwrap();
        assert_eq!(read.stdout, b"first");
        let missing = pin(&mut directory.path().join("missing")).unwrap_err();
        assert!(missing.to_string().contains("which builds missing files"), "{missing}");
    }
}
