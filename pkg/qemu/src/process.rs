//! A QEMU process from its start to its end.

use std::fmt;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::sys;

const STDERR_LIMIT: usize = 16 << 10;

/// End of a QEMU process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Success if the guest powered off or requested a reset, or after `quit`.
    pub status: ExitStatus,
    /// The end of QEMU's standard error, at most 16 KiB.
    pub stderr: String,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status)?;
        match self.stderr.trim() {
            "" => Ok(()),
            said => write!(f, ": {said}"),
        }
    }
}

/// A QEMU process, which is killed and reaped on drop.
#[derive(Debug)]
pub(crate) struct Process {
    pid: Pid,
    end: Arc<End>,
    watcher: Option<JoinHandle<()>>,
}

/// End of a process. The process is reaped while `exit` is locked, so its PID is valid while `exit` is `None`.
#[derive(Debug, Default)]
struct End {
    exit: Mutex<Option<Exit>>,
    reached: Condvar,
}

impl End {
    fn lock(&self) -> MutexGuard<'_, Option<Exit>> {
        self.exit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    /// Starts the command in a process group of its own, so that Ctrl-C on a terminal interrupts only the parent. The
    /// child dies with the thread that started it, so a separate thread starts it and waits.
    pub(crate) fn spawn(mut command: Command, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        sys::tie(&mut command, descriptors);
        let end = Arc::new(End::default());
        let (started, start) = mpsc::sync_channel(1);
        let watched = Arc::clone(&end);
        let watcher = thread::Builder::new().name("qemu".into()).spawn(move || {
            let child = command.spawn();
            drop(command);
            match child {
                Ok(child) => {
                    let _ = started.send(Ok(child.id()));
                    watch(child, &watched);
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                }
            }
        })?;
        let pid = start.recv().map_err(|_| io::Error::other("the thread that starts QEMU panicked"))??;
        Ok(Self { pid: Pid::from_raw(pid.cast_signed()), end, watcher: Some(watcher) })
    }

    pub(crate) fn exit(&self) -> Option<Exit> {
        self.end.lock().clone()
    }

    pub(crate) fn wait(&self, limit: Duration) -> Option<Exit> {
        let deadline = Instant::now().checked_add(limit);
        let mut exit = self.end.lock();
        while exit.is_none() {
            let left = deadline.map_or(limit, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return None;
            }
            exit = self.end.reached.wait_timeout(exit, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        exit.clone()
    }

    /// Waits for the exit without a time limit.
    pub(crate) fn join(&self) -> Exit {
        let mut exit = self.end.lock();
        loop {
            if let Some(exit) = &*exit {
                return exit.clone();
            }
            exit = self.end.reached.wait(exit).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn kill(&self) {
        if self.end.lock().is_none() {
            // An error means that the process is already dead.
            let _ = kill(self.pid, Signal::SIGKILL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if let Some(watcher) = self.watcher.take() {
            // The watcher has printed its own panic.
            let _ = watcher.join();
        }
    }
}

fn watch(mut child: Child, end: &End) {
    let stderr = child.stderr.take().map(last_of).unwrap_or_default();
    // Waits without reaping.
    let _ = waitid(Id::Pid(Pid::from_raw(child.id().cast_signed())), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
    let mut exit = end.lock();
    let status = child.wait().unwrap_or_default();
    *exit = Some(Exit { status, stderr });
    end.reached.notify_all();
}

/// Returns the end of the stream, which the process closes at its end.
fn last_of(mut stream: impl Read) -> String {
    let mut last = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => {
                last.extend_from_slice(&piece[..count]);
                last.drain(..last.len().saturating_sub(STDERR_LIMIT));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&last).into_owned()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn sh(script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::spawn(command, Vec::new()).unwrap()
    }

    #[test]
    fn the_end_is_reported_with_the_output() {
        let exit = sh("echo trouble >&2; exit 3").wait(LONG).unwrap();
        assert_eq!(exit.status.code(), Some(3));
        assert_eq!(exit.to_string(), "exit status: 3: trouble");
    }

    #[test]
    fn only_the_end_of_a_flood_is_kept() {
        let exit = sh("yes 0123456 | head -c 1000000 >&2; echo end >&2").wait(LONG).unwrap();
        assert_eq!(exit.stderr.len(), STDERR_LIMIT);
        assert!(exit.stderr.ends_with("end\n"));
    }

    #[test]
    fn a_running_process_has_no_exit_until_it_is_killed() {
        let process = sh("exec sleep 1000");
        assert_eq!(process.wait(Duration::from_millis(10)), None);
        process.kill();
        process.kill();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&process.join().status), Some(9));
    }

    #[test]
    fn the_process_outlives_the_thread_that_asked_for_it() {
        let process = thread::spawn(|| sh("exec sleep 1000")).join().unwrap();
        assert_eq!(process.wait(Duration::from_millis(200)), None);
    }

    /// Ctrl-C on a terminal interrupts the process group of the parent.
    #[test]
    fn the_process_leads_a_group_of_its_own() {
        let process = sh("exec sleep 1000");
        assert_eq!(nix::unistd::getpgid(Some(process.pid)), Ok(process.pid));
    }

    #[test]
    fn dropping_kills() {
        let process = sh("exec sleep 1000");
        let pid = process.pid;
        drop(process);
        assert_eq!(kill(pid, None), Err(nix::errno::Errno::ESRCH));
    }

    /// The parent of the next test, which starts this program again.
    #[test]
    #[ignore = "ends only by a signal"]
    fn parent() {
        let process = sh("exec sleep 1000");
        println!("\n{}", process.pid);
        loop {
            thread::park();
        }
    }

    #[test]
    fn a_process_dies_with_its_parent() {
        let mut parent = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process::tests::parent", "--ignored", "--nocapture"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(parent.stdout.take().unwrap());
        let pid: u32 = said.lines().find_map(|line| line.unwrap().parse().ok()).unwrap();
        assert!(lives(pid));
        parent.kill().unwrap();
        parent.wait().unwrap();
        let start = Instant::now();
        while lives(pid) {
            assert!(start.elapsed() < LONG, "process {pid} is still there");
            thread::yield_now();
        }
    }

    /// Whether the process runs. Another process reaps it, so a zombie counts as ended.
    fn lives(pid: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let error = Process::spawn(Command::new("/nonexistent/qemu"), Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
