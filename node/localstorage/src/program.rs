//! Third-party programs that the node runs on disks.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Paths of the programs. The default is their location in the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    pub mkfs: PathBuf,
    pub blkid: PathBuf,
}

impl Default for Programs {
    fn default() -> Self {
        Self { mkfs: "/usr/bin/mkfs.xfs".into(), blkid: "/usr/bin/blkid".into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) output: Vec<u8>,
    pub(crate) errors: Vec<u8>,
}

/// Limits of a program's run time and output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) time: Duration,
    pub(crate) bytes: usize,
}

/// A program could not be started, or exceeded its limits and was killed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("the program cannot be started")]
    Start(#[source] io::Error),
    #[error("cannot read the output of the program")]
    Read(#[source] io::Error),
    #[error("the program did not end within {} s", limit.as_secs())]
    Slow { limit: Duration },
    #[error("the program wrote more than {limit} bytes")]
    Long { limit: usize },
}

/// Runs a program to its end with an empty standard input and environment.
pub(crate) fn run(command: &mut Command, bounds: Bounds) -> Result<Ended, RunError> {
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(RunError::Start)?;
    match collect(&mut child, bounds) {
        Ok((output, errors)) => {
            let status = child.wait().map_err(RunError::Read)?;
            Ok(Ended { status, output, errors })
        }
        Err(error) => {
            // Does not wait for the child: a process that hangs in the kernel because of its disk does not end after
            // SIGKILL.
            let _ = child.kill();
            let _ = child.try_wait();
            Err(error)
        }
    }
}

fn collect(child: &mut Child, bounds: Bounds) -> Result<(Vec<u8>, Vec<u8>), RunError> {
    let output = Stream::new(child.stdout.take().map(OwnedFd::from));
    let errors = Stream::new(child.stderr.take().map(OwnedFd::from));
    let mut streams = [output, errors];
    let deadline = Instant::now() + bounds.time;
    while streams.iter().any(|stream| stream.open.is_some()) {
        wait(&mut streams, deadline).map_err(RunError::Read)?;
        if Instant::now() >= deadline {
            return Err(RunError::Slow { limit: bounds.time });
        }
        if streams.iter().map(|stream| stream.read.len()).sum::<usize>() > bounds.bytes {
            return Err(RunError::Long { limit: bounds.bytes });
        }
    }
    let [output, errors] = streams;
    Ok((output.read, errors.read))
}

/// Waits until an output is readable or the deadline has passed, and reads the available bytes.
fn wait(streams: &mut [Stream], deadline: Instant) -> io::Result<()> {
    let mut open: Vec<&mut Stream> = streams.iter_mut().filter(|stream| stream.open.is_some()).collect();
    let left = deadline.saturating_duration_since(Instant::now());
    let descriptors = open.iter().filter_map(|stream| stream.open.as_ref());
    let mut polled: Vec<_> = descriptors.map(|open| PollFd::new(open.as_fd(), PollFlags::POLLIN)).collect();
    match poll(&mut polled, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
        Ok(_) => {}
        Err(Errno::EINTR) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let ready: Vec<bool> = polled.iter().map(|one| one.any() == Some(true)).collect();
    open.iter_mut().zip(ready).filter(|(_, ready)| *ready).try_for_each(|(stream, _)| stream.take())
}

/// An output pipe of a program.
struct Stream {
    open: Option<File>,
    read: Vec<u8>,
}

impl Stream {
    fn new(open: Option<OwnedFd>) -> Self {
        Self { open: open.map(File::from), read: Vec::new() }
    }

    fn take(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        let Some(open) = &mut self.open else { return Ok(()) };
        match open.read(&mut buffer)? {
            0 => self.open = None,
            length => self.read.extend_from_slice(&buffer[..length]),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { time: Duration::from_secs(30), bytes: 1000 };

    fn shell(script: &str, bounds: Bounds) -> Result<Ended, RunError> {
        run(Command::new("/bin/sh").args(["-c", script]), bounds)
    }

    #[test]
    fn both_streams_and_the_status_are_kept() {
        let ended = shell("echo out; echo error >&2; exit 8", BOUNDS).unwrap();
        assert_eq!((ended.status.code(), &*ended.output, &*ended.errors), (Some(8), &b"out\n"[..], &b"error\n"[..]));
    }

    #[test]
    fn nothing_of_the_environment_gets_through() {
        let ended = shell("test -z \"$CARGO_MANIFEST_DIR$HOME\"", BOUNDS).unwrap();
        assert!(ended.status.success());
    }

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let bounds = Bounds { time: Duration::from_millis(50), ..BOUNDS };
        assert!(matches!(shell("exec sleep 600", bounds), Err(RunError::Slow { .. })));
    }

    #[test]
    fn a_program_that_does_not_stop_writing_is_killed() {
        assert!(matches!(shell("while :; do echo more; done", BOUNDS), Err(RunError::Long { limit: 1000 })));
    }
}
