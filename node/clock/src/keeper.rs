use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use supervisor::Context;
use tokio::sync::{Mutex, watch};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::correction::{Allowed, Correction, Poll};
use crate::jump::{ClockOffsets, Jump};
use crate::query::{QueryError, query};
use crate::{Clock, Leap, Sample};

/// Offsets above this limit that may not be stepped are logged for the operator.
const WRONG: i64 = 1_000_000_000;

/// Interval of jump detection. Reading the RTC of a VM takes about a hundred microseconds.
const LOOK: Duration = Duration::from_secs(1);

/// Time for the time servers to answer after a jump, before the clock is set from the RTC.
const ANSWER: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
#[error("cannot correct the clock")]
pub struct CorrectError(#[from] Errno);

#[derive(Clone, Debug, Default)]
pub struct ClockState {
    pub last: Option<Comparison>,
    pub problem: Option<Arc<str>>,
    /// Number of steps, including those by the kernel after a suspension.
    pub steps: u32,
    pub jumps: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    pub server: SocketAddr,
    pub sample: Sample,
    pub at: Instant,
}

/// Keeps a clock synchronized. It outlives restarts of the service that runs it.
pub struct Keeper {
    servers: Vec<SocketAddr>,
    clock: Arc<dyn Clock>,
    state: watch::Sender<ClockState>,
    missed: watch::Sender<Duration>,
    /// Held during a query, so that only one runs at a time.
    turn: Mutex<()>,
}

impl Keeper {
    /// A keeper with the servers in order of preference.
    pub fn new(servers: Vec<SocketAddr>, clock: impl Clock) -> Self {
        let (state, missed, turn) = Default::default();
        Self { servers, clock: Arc::new(clock), state, missed, turn }
    }

    pub fn servers(&self) -> &[SocketAddr] {
        &self.servers
    }

    pub fn state(&self) -> watch::Receiver<ClockState> {
        self.state.subscribe()
    }

    /// Sum of the clock jumps, which timers do not count.
    pub fn missed(&self) -> watch::Receiver<Duration> {
        self.missed.subscribe()
    }

    /// Queries the servers until one answers. Sets a wrong clock to any time, so the call must precede other programs
    /// that depend on the clock. Cancel-safe.
    pub async fn first(&self) -> Result<(), CorrectError> {
        while self.state.borrow().last.is_none() {
            if self.compare(Poll::default(), Allowed::Any).await?.is_none() {
                sleep(Duration::from_secs(1)).await;
            }
        }
        Ok(())
    }

    /// Runs until cancelled and never sets the clock back. Reports healthy once jumps are detected; it does not wait
    /// for a server, because the clock runs without one.
    pub async fn run(self: Arc<Self>, cx: Context) -> Result<(), CorrectError> {
        let mut seen = self.offsets().await;
        cx.healthy();
        let mut poll = Poll::default();
        let mut jump = None;
        loop {
            let compare = async {
                match jump {
                    Some(jump) => self.recover(jump).await,
                    None => self.compare(poll, Allowed::Forwards).await,
                }
            };
            let compared = tokio::select! {
                () = cx.cancelled() => return Ok(()),
                compared = compare => compared?,
            };
            let wait = poll.time();
            poll = compared.map_or(poll.longer(), |sample| poll.after(sample.offset));
            jump = tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = sleep(wait) => None,
                jump = self.jump(&mut seen) => Some(jump),
            };
            if jump.is_some() {
                poll = Poll::default();
            }
        }
    }

    async fn offsets(&self) -> ClockOffsets {
        let clock = Arc::clone(&self.clock);
        // The task does not panic. Without an RTC reading, no jump is detected.
        spawn_blocking(move || clock.offsets()).await.unwrap_or_default()
    }

    /// Waits for the next jump. Cancel-safe: `seen` contains the last reading.
    async fn jump(&self, seen: &mut ClockOffsets) -> Jump {
        loop {
            sleep(LOOK).await;
            let now = self.offsets().await;
            if let Some(jump) = Jump::between(std::mem::replace(seen, now), now) {
                return jump;
            }
        }
    }

    /// Compares the clock immediately, as at startup: the first answer may set the clock forward. Without an answer,
    /// the clock is set from the RTC.
    async fn recover(&self, jump: Jump) -> Result<Option<Sample>, CorrectError> {
        self.state.send_modify(|state| state.last = None);
        let compared = timeout(ANSWER, self.compare(Poll::default(), Allowed::Forwards)).await;
        let sample = compared.unwrap_or(Ok(None))?;
        let (source, behind) = match (sample, jump.behind) {
            (Some(sample), _) => ("time server", sample.offset.max(0)),
            (None, Some(behind)) => {
                self.clock.step(behind)?;
                ("RTC", behind)
            }
            (None, None) => ("kernel", 0),
        };
        let passed = Duration::from_nanos(behind.max(jump.suspended.unwrap_or(0)).unsigned_abs());
        info!(passed_seconds = passed.as_secs_f64(), source, "clock jumped");
        self.state.send_modify(|state| {
            state.jumps += 1;
            // The step from an answer was already counted.
            state.steps += u32::from(sample.is_none() || jump.suspended.is_some());
        });
        self.missed.send_modify(|missed| *missed += passed);
        Ok(sample)
    }

    /// Queries the servers and corrects the clock. `first` limits the first correction. Returns `None` if no server
    /// answered.
    async fn compare(&self, poll: Poll, first: Allowed) -> Result<Option<Sample>, CorrectError> {
        let _turn = self.turn.lock().await;
        let mut problem = None;
        for &server in &self.servers {
            match query(server, &*self.clock).await {
                Ok(sample) => {
                    self.correct(server, sample, poll, first)?;
                    return Ok(Some(sample));
                }
                Err(error) => problem = Some(error),
            }
        }
        if let Some(error) = problem {
            self.failed(&error);
        }
        Ok(None)
    }

    fn correct(&self, server: SocketAddr, sample: Sample, poll: Poll, first: Allowed) -> Result<(), CorrectError> {
        let Sample { offset, leap, .. } = sample;
        let before = self.state.borrow().clone();
        let is_first = before.last.is_none();
        let offset_seconds = offset as f64 / 1e9;
        let correction = Correction::of(offset, if is_first { first } else { Allowed::Slew });
        match correction {
            Correction::Step(by) => {
                self.clock.step(by)?;
                // Set the kernel's status to synchronized.
                self.clock.slew(0, poll.exponent(), Leap::None)?;
                info!(%server, offset_seconds, "clock set");
            }
            Correction::Slew(by) => {
                self.clock.slew(by, poll.exponent(), leap)?;
                if is_first || before.problem.is_some() {
                    info!(%server, offset_seconds, "clock compared");
                }
                if offset.abs() > WRONG {
                    warn!(%server, offset_seconds, "clock offset is too large to slew, and the clock is set only at startup; restart the node");
                }
            }
        }
        self.state.send_modify(|state| {
            state.last = Some(Comparison { server, sample, at: Instant::now() });
            state.problem = None;
            state.steps += u32::from(matches!(correction, Correction::Step(_)));
        });
        Ok(())
    }

    /// Logs the first failure after a success.
    fn failed(&self, error: &QueryError) {
        if self.state.borrow().problem.is_none() {
            let error: &dyn Error = error;
            warn!(error, "no time server answered; the clock is not synchronized");
        }
        self.state.send_modify(|state| state.problem = Some(causes::line(error).into()));
    }
}

#[cfg(test)]
mod tests;
