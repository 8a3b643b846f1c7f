//! Signals to this program and to programs of the node.

use crate::CheckError;
use crate::finding::Signalled;
use kernel::text::Stat;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io;
use std::path::Path;

/// Maximum length of a program's name: `TASK_COMM_LEN` without the zero byte.
const NAME: usize = 15;

/// Blocks SIGINT and SIGTERM for [`wait`], also in threads that are started later.
pub(crate) fn block() -> Result<SigSet, CheckError> {
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    signals.thread_block().map_err(CheckError::of("block", Path::new("signals")))?;
    Ok(signals)
}

pub(crate) fn wait(signals: &SigSet) -> Result<(), CheckError> {
    signals.wait().map(drop).map_err(CheckError::of("wait for", Path::new("signals")))
}

/// Sends SIGTERM to this program, for [`wait`].
pub(crate) fn end() -> io::Result<()> {
    Ok(kill(Pid::this(), Signal::SIGTERM)?)
}

/// Sends a signal to PID 1 or all processes with this name that PID 1 started. Signal 0 only finds them.
pub(crate) fn send(program: &str, number: i32) -> Result<Signalled, CheckError> {
    let proc = Path::new("/proc");
    let signal = match number {
        0 => None,
        number => Some(Signal::try_from(number).map_err(CheckError::of("send", Path::new("this signal")))?),
    };
    let name_of_program = program.get(..NAME).unwrap_or(program);
    let mut processes = Vec::new();
    for entry in fs::read_dir(proc).map_err(CheckError::of("list", proc))? {
        let name = entry.map_err(CheckError::of("list", proc))?.file_name();
        let Some(process) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // The process may end between the two system calls.
        let Ok(stat) = fs::read_to_string(proc.join(&name).join("stat")) else { continue };
        if Stat::parse(&stat).is_some_and(|stat| stat.name == name_of_program && (stat.parent == 1 || process == 1)) {
            kill(Pid::from_raw(process), signal).map_err(CheckError::of("signal", Path::new(program)))?;
            processes.push(process);
        }
    }
    if processes.is_empty() {
        return Err(CheckError::of("find", Path::new(program))(io::Error::from(Errno::ESRCH)));
    }
    Ok(Signalled { processes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_does_not_run_is_an_error() {
        assert_eq!(send("no-such-program", 15).unwrap_err().to_string(), "cannot find no-such-program");
    }
}
