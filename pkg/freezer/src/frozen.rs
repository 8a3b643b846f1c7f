//! The side of the program that starts a guard.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::time::TimeSpec;

use crate::cgroup::{Cgroup, thaw_all};
use crate::error::FreezeError;
use crate::message::{Connection, Reply, Request};

/// Time that the guard may take to start and to reply, beside the budget. The pause does not contain this time unless
/// the guard was stopped.
const PATIENCE: Duration = Duration::from_secs(10);

/// Starts a guard with `command`, which has to call [`guard`](crate::guard), and freezes the cgroups at these paths
/// with everything below them. Returns when no process in them runs. Blocks at most for the start of the guard, the
/// budget, and the wait for other guards that have one of the cgroups. That wait is as long as the budget, but at least
/// 5 s and at most 60 s.
///
/// The guard's standard input and output are replaced, and it gets a process group of its own.
///
/// # Errors
/// [`FreezeError`]. No cgroup that this call froze stays frozen, unless the kernel fails to thaw it.
pub fn freeze(mut command: Command, cgroups: &[impl AsRef<Path>], budget: Duration) -> Result<Frozen, FreezeError> {
    // Each guard locks the cgroups in this order, each once, so that guards do not wait for each other forever.
    let paths: BTreeSet<PathBuf> = cgroups.iter().map(|path| path.as_ref().to_owned()).collect();
    let request = Request { budget, cgroups: paths.into_iter().collect() };
    let mut opened = Vec::new();
    for path in &request.cgroups {
        opened.extend(Cgroup::open(path)?);
    }
    let start = |errno: Errno| FreezeError::Start(errno.into());
    let (socket, guard_end) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).map_err(start)?;
    command.stdin(guard_end).stdout(Stdio::null()).process_group(0);
    let child = command.spawn().map_err(FreezeError::Start)?;
    // `command` has the other end of the pair. As long as that is open here, the end of the guard is not reported.
    drop(command);
    let mut frozen =
        Frozen { cgroups: opened, budget, freeze: Duration::ZERO, end: Instant::now(), guard: Some((socket, child)) };
    // All other errors mean that the guard has ended, which the next call detects.
    if let Some(Err(Errno::EMSGSIZE)) = frozen.connection().map(|guard| guard.send_request(&request)) {
        return Err(frozen.release().err().unwrap_or(FreezeError::TooMany));
    }
    match frozen.receive() {
        Some(Reply::Frozen(freeze)) => {
            let now = Instant::now();
            frozen.freeze = freeze;
            frozen.end = now.checked_add(budget.saturating_sub(freeze)).unwrap_or(now);
            Ok(frozen)
        }
        reply => {
            let released = frozen.release();
            Err(error(reply, released, budget))
        }
    }
}

/// Duration of a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Time until no process ran any more.
    pub freeze: Duration,
    /// Time from the first request to freeze to the end of the last request to thaw.
    pub total: Duration,
}

/// Frozen cgroups. Dropping it thaws them.
#[derive(Debug)]
#[must_use = "dropping it thaws the cgroups"]
pub struct Frozen {
    cgroups: Vec<Cgroup>,
    budget: Duration,
    freeze: Duration,
    end: Instant,
    /// Socket and process of the guard; `None` when the cgroups are thawed.
    guard: Option<(OwnedFd, Child)>,
}

impl Frozen {
    /// Time at which the guard thaws the cgroups at the latest.
    pub fn deadline(&self) -> Instant {
        self.end
    }

    /// Thaws the cgroups. Returns when `0` is written; processes run a few milliseconds later.
    ///
    /// # Errors
    /// [`FreezeError::Late`], [`FreezeError::Thawed`] and [`FreezeError::Guard`]: the processes may have run before the
    /// call. [`FreezeError::Cgroup`]: the cgroup may still be frozen.
    pub fn thaw(mut self) -> Result<Pause, FreezeError> {
        if let Some(guard) = self.connection() {
            // If the guard has ended, the next call detects that.
            let _ = guard.send_thaw();
        }
        let reply = self.receive();
        let released = self.release();
        match reply {
            Some(Reply::Thawed(total)) => released.map(|()| Pause { freeze: self.freeze, total }),
            reply => Err(error(reply, released, self.budget)),
        }
    }

    fn connection(&self) -> Option<Connection<'_>> {
        self.guard.as_ref().map(|(socket, _)| Connection::new(socket))
    }

    /// Receives the next reply; `None` if the guard has ended or sends no reply in time.
    fn receive(&self) -> Option<Reply> {
        let (socket, _) = self.guard.as_ref()?;
        // The guard may have to wait for other guards first.
        let end = Instant::now().checked_add(self.budget.saturating_mul(2).saturating_add(PATIENCE));
        loop {
            let left = end.map_or(PATIENCE, |end| end.saturating_duration_since(Instant::now()));
            let mut polled = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
            match ppoll(&mut polled, Some(TimeSpec::from(left)), None) {
                Err(Errno::EINTR) => {}
                Err(_) | Ok(0) => return None,
                Ok(_) => return self.connection()?.receive_reply(),
            }
        }
    }

    /// Waits for the end of the guard. Thaws the cgroups if the guard was killed or does not end.
    fn release(&mut self) -> Result<(), FreezeError> {
        let Some((socket, mut guard)) = self.guard.take() else { return Ok(()) };
        drop(socket);
        match wait(&mut guard) {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => {
                let _ = guard.kill();
                let thawed = thaw_all(&self.cgroups);
                let _ = guard.wait();
                // The guard may have written once more before it was killed.
                thawed.and(thaw_all(&self.cgroups))
            }
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // `thaw` has returned its error to the caller already.
        let _ = self.release();
    }
}

/// Whether the guard thawed all cgroups and ended. The guard does so as soon as its socket is closed.
fn wait(guard: &mut Child) -> io::Result<bool> {
    let end = Instant::now() + PATIENCE;
    let mut pause = Duration::from_micros(100);
    loop {
        if let Some(status) = guard.try_wait()? {
            return Ok(status.success());
        }
        if Instant::now() > end {
            return Ok(false);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

fn error(reply: Option<Reply>, released: Result<(), FreezeError>, budget: Duration) -> FreezeError {
    match (released, reply) {
        (Err(error), _) => error,
        (Ok(()), Some(reply)) => reply.into_error(budget),
        (Ok(()), None) => FreezeError::Guard,
    }
}
