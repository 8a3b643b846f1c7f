//! The test program and the processes that it leaves behind.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use ktest_init::{Outcome, Run, StepError, Word};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::Pid;

use crate::host::Host;
use crate::output::forward;
use crate::system::PROGRAMS;

const PROGRAM: &str = "/program";

/// Runs the program. When this returns, no other process is left, and all output is sent.
pub(crate) fn run(host: &Host, run: &Run, disks: &[PathBuf]) -> Result<Outcome, StepError> {
    let disks: Vec<_> = disks.iter().map(|path| path.to_string_lossy()).collect();
    let mut command = Command::new(PROGRAM);
    command
        .args(&run.arguments)
        .env_clear()
        .envs([("PATH", PROGRAMS), ("HOME", "/tmp"), ("TMPDIR", "/tmp"), ("LANG", "C.UTF-8")])
        .env("KTEST_DISKS", disks.join(","))
        .envs(&run.environment)
        .current_dir("/tmp")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(StepError::of(format!("start {PROGRAM}")))?;
    let pid = Pid::from_raw(child.id().cast_signed());
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        scope.spawn(|| stdout.map(|stream| forward(stream, |text| host.send(&Word::Stdout(text)))));
        scope.spawn(|| stderr.map(|stream| forward(stream, |text| host.send(&Word::Stderr(text)))));
        let outcome = reap(pid);
        // Processes that the program left behind keep its output open.
        kill_all();
        outcome
    })
}

/// Reaps orphans too, until the program itself has ended.
fn reap(program: Pid) -> Result<Outcome, StepError> {
    loop {
        match wait() {
            Ok(WaitStatus::Exited(pid, code)) if pid == program => return Ok(Outcome::Code(code)),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == program => return Ok(Outcome::Signal(signal as i32)),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(StepError::of(format!("wait for {PROGRAM}"))(errno)),
        }
    }
}

fn kill_all() {
    // kill(2) does not signal PID 1 itself, and fails if there is no other process.
    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
    while matches!(wait(), Ok(_) | Err(Errno::EINTR)) {}
}
