//! The guard's process.

use std::fs;
use std::io;
use std::mem;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::time::TimeSpec;

use crate::cgroup::{Cgroup, thaw_all};
use crate::error::{FreezeError, Operation};
use crate::message::{Connection, Reply, Request};

/// Interval at which the guard reads the state of a cgroup even without an event: removing a cgroup does not wake a
/// poll.
const STEP: Duration = Duration::from_millis(50);

/// Minimum and maximum time that the guard waits for other guards that have one of the cgroups. In between, the time is
/// the guard's own budget, because guards usually have similar budgets.
const TURN: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(60)];

/// Runs the guard: [`freeze`](crate::freeze) starts its process with a socket as standard input. Call this function
/// first in `main` if the arguments are those of the guard. The guard serves one freeze and returns; the code is a
/// failure if a cgroup may still be frozen.
///
/// Signals that can be blocked do not end the guard, and the OOM killer spares it if the process may lower its
/// `oom_score_adj`.
pub fn guard() -> ExitCode {
    // Additional protection, without which the guard works too.
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None);
    let _ = fs::write("/proc/self/oom_score_adj", "-1000");
    let socket = io::stdin();
    let program = Connection::new(&socket);
    let Some(request) = program.receive_request() else { return ExitCode::SUCCESS };
    let (reply, is_thawed) = match serve(&program, &request) {
        Ok(reply) => (Some(reply), true),
        Err(error) => {
            let is_thawed = !matches!(error, FreezeError::Cgroup { operation: Operation::Thaw, .. });
            (Reply::of(error), is_thawed)
        }
    };
    if let Some(reply) = reply {
        // If the reply cannot be sent, the program has ended.
        let _ = program.send_reply(&reply);
    }
    if is_thawed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The cgroups of the guard. Dropping the value thaws them, for example after a panic.
struct Hold(Vec<Cgroup>);

impl Hold {
    fn thaw(mut self) -> Result<(), FreezeError> {
        // Thaw once: another process may freeze the cgroups at any time after that.
        thaw_all(&mem::take(&mut self.0))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let _ = thaw_all(&self.0);
    }
}

/// The event that ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Message,
    Deadline,
    Changed,
}

/// The reason to thaw the cgroups, and the start of the pause.
enum PauseEnd {
    /// The program asked to thaw.
    Asked { begin: Instant },
    /// The budget was exceeded. Contains the time until all processes were frozen, if they were.
    Late { begin: Instant, freeze: Option<Duration> },
}

fn serve(program: &Connection<'_>, request: &Request) -> Result<Reply, FreezeError> {
    let hold = Hold(lock_all(program, request)?);
    let held = hold_frozen(program, request.budget, &hold.0);
    hold.thaw()?;
    Ok(match held? {
        PauseEnd::Asked { begin } => Reply::Thawed(begin.elapsed()),
        PauseEnd::Late { begin, freeze } => Reply::Late { total: begin.elapsed(), freeze },
    })
}

/// Opens and locks all cgroups. If one of them cannot be frozen, thaws those that an earlier run left frozen, before
/// and after it. This guard has frozen none yet, and another process may freeze those without a mark at any time.
fn lock_all(program: &Connection<'_>, request: &Request) -> Result<Vec<Cgroup>, FreezeError> {
    let mut turn = Instant::now() + request.budget.clamp(TURN[0], TURN[1]);
    let (mut cgroups, mut first) = (Vec::new(), Ok(()));
    for path in &request.cgroups {
        match open_locked(program, turn, path) {
            Ok(cgroup) => cgroups.extend(cgroup),
            Err(error) => {
                first = first.and(Err(error));
                // A guard that has the lock of a later cgroup thaws it.
                turn = Instant::now();
            }
        }
    }
    let Err(error) = first else { return Ok(cgroups) };
    let mut thawed = Ok(());
    for cgroup in &cgroups {
        thawed = thawed.and(cgroup.thaw_marked().map(drop));
    }
    thawed.and(Err(error))
}

/// Opens and locks a cgroup; `None` if it does not exist.
fn open_locked(program: &Connection<'_>, turn: Instant, path: &Path) -> Result<Option<Cgroup>, FreezeError> {
    let Some(cgroup) = Cgroup::open(path)? else { return Ok(None) };
    let is_locked = lock(program, turn, &cgroup)?;
    // A cgroup with a mark was frozen by an earlier run, whose processes were killed.
    if !is_locked || cgroup.is_requested()? == Some(true) && !cgroup.is_marked()? {
        return Err(FreezeError::AlreadyFrozen { path: path.to_owned() });
    }
    Ok(Some(cgroup))
}

/// Waits until no other guard has the cgroup. Otherwise the first guard that thaws it would end the pause of both, and
/// a third guard that freezes it again would hide this from the second. Returns whether this guard has the cgroup.
fn lock(program: &Connection<'_>, turn: Instant, cgroup: &Cgroup) -> Result<bool, FreezeError> {
    while !cgroup.try_lock()? {
        let now = Instant::now();
        if now >= turn || wait(program.as_fd(), &[], Some(now + STEP)) == End::Message {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Freezes the cgroups until the program asks to thaw them, has ended, or exceeds the budget.
fn hold_frozen(program: &Connection<'_>, budget: Duration, cgroups: &[Cgroup]) -> Result<PauseEnd, FreezeError> {
    for cgroup in cgroups {
        cgroup.mark()?;
    }
    let begin = Instant::now();
    let deadline = begin.checked_add(budget);
    for cgroup in cgroups {
        cgroup.freeze()?;
    }
    if wait_until_frozen(program, deadline, cgroups)? != End::Changed {
        return Ok(PauseEnd::Late { begin, freeze: None });
    }
    let freeze = begin.elapsed();
    if program.send_reply(&Reply::Frozen(freeze)).is_err() || wait(program.as_fd(), &[], deadline) == End::Deadline {
        return Ok(PauseEnd::Late { begin, freeze: Some(freeze) });
    }
    // `is_frozen` is not used: a process that enters the cgroup, or is killed, clears that state for a moment without
    // running.
    for cgroup in cgroups {
        if cgroup.is_requested()? == Some(false) {
            return Err(FreezeError::Thawed { path: cgroup.path().to_owned() });
        }
    }
    // If the message is not a request to thaw, the program has ended, and the reply reaches no process.
    program.receive_thaw();
    Ok(PauseEnd::Asked { begin })
}

/// Waits until all cgroups are frozen ([`End::Changed`]), the program has ended ([`End::Message`]), or the deadline.
fn wait_until_frozen(
    program: &Connection<'_>,
    deadline: Option<Instant>,
    cgroups: &[Cgroup],
) -> Result<End, FreezeError> {
    loop {
        let mut running = Vec::new();
        for cgroup in cgroups {
            if !cgroup.is_frozen()? {
                running.push(cgroup.events());
            }
        }
        if running.is_empty() {
            return Ok(End::Changed);
        }
        match wait(program.as_fd(), &running, deadline) {
            End::Changed => {}
            end => return Ok(end),
        }
    }
}

/// Waits for a message or the end of the program, for a change, or for the deadline.
fn wait(program: BorrowedFd<'_>, events: &[BorrowedFd<'_>], deadline: Option<Instant>) -> End {
    loop {
        let left = deadline.map_or(STEP, |deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return End::Deadline;
        }
        let step = if events.is_empty() { left } else { left.min(STEP) };
        let mut polled = vec![PollFd::new(program, PollFlags::POLLIN)];
        polled.extend(events.iter().map(|events| PollFd::new(*events, PollFlags::POLLPRI)));
        match ppoll(&mut polled, Some(TimeSpec::from(step)), None) {
            // All signals are blocked, so an interruption needs no action.
            Err(Errno::EINTR) => {}
            // After any other error, the cgroups must not stay frozen either.
            Err(_) => return End::Deadline,
            Ok(_) if polled.first().is_some_and(|program| program.any() == Some(true)) => return End::Message,
            Ok(0) if events.is_empty() => {}
            Ok(_) => return End::Changed,
        }
    }
}
