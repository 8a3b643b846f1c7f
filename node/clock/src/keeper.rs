//! [`Keeper`].

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

/// Offsets above this that may not be stepped are logged as errors for the operator.
const WRONG: i64 = 1_000_000_000;

/// Interval of jump detection. Reading the RTC of a VM takes about a hundred microseconds.
const LOOK: Duration = Duration::from_secs(1);

/// Time for the time servers to answer after a jump, before the clock is set from the RTC.
const ANSWER: Duration = Duration::from_secs(3);

/// The kernel rejected a correction.
#[derive(Debug, thiserror::Error)]
#[error("cannot correct the clock")]
pub struct CorrectError(#[from] Errno);

/// State of the clock.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The last comparison since the last jump.
    pub last: Option<Comparison>,
    /// Error of the last attempt.
    pub problem: Option<Arc<str>>,
    /// Number of steps, including those by the kernel after a suspension.
    pub steps: u32,
    /// Number of jumps.
    pub jumps: u32,
}

/// A comparison with a time server.
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
    state: watch::Sender<State>,
    missed: watch::Sender<Duration>,
    /// Held during a query, so that only one runs at a time.
    turn: Mutex<()>,
}

impl Keeper {
    /// A keeper of `clock` with these servers in order of preference.
    pub fn new(servers: Vec<SocketAddr>, clock: impl Clock) -> Self {
        let (state, missed, turn) = Default::default();
        Self { servers, clock: Arc::new(clock), state, missed, turn }
    }

    pub fn servers(&self) -> &[SocketAddr] {
        &self.servers
    }

    /// The state, now and later.
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Sum of the clock jumps, which timers do not see.
    pub fn missed(&self) -> watch::Receiver<Duration> {
        self.missed.subscribe()
    }

    /// Queries the servers until one answers. Sets a clock that is far off to any time, so call it before other
    /// programs depend on the clock. Cancel-safe.
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

    /// Compares the clock immediately, as at startup: the first answer may set it forward. Without an answer, the RTC
    /// does.
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
            // A step by an answer was already counted.
            state.steps += u32::from(sample.is_none() || jump.suspended.is_some());
        });
        self.missed.send_modify(|missed| *missed += passed);
        Ok(sample)
    }

    /// Queries and corrects. The first correction is limited by `first`. Returns `None` if no server answered.
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
        let mut problem = error.to_string();
        if let Some(source) = error.source() {
            problem = format!("{problem}: {source}");
        }
        self.state.send_modify(|state| state.problem = Some(problem.into()));
    }
}

#[cfg(test)]
mod tests {
    use supervisor::{Settings, Supervisor};

    use super::*;
    use crate::{Difference, Nanoseconds};

    const SECOND: Nanoseconds = 1_000_000_000;
    const HOUR: Nanoseconds = 3600 * SECOND;

    /// A clock that records its steps, with an RTC and a suspension time.
    #[derive(Clone, Debug, Default)]
    struct FakeClock {
        set: watch::Sender<Nanoseconds>,
        rtc: watch::Sender<Nanoseconds>,
        suspended: watch::Sender<Nanoseconds>,
    }

    impl Clock for FakeClock {
        fn now(&self) -> Nanoseconds {
            0
        }

        fn step(&self, by: Nanoseconds) -> Result<(), Errno> {
            self.set.send_modify(|set| *set += by);
            Ok(())
        }

        fn slew(&self, _: Nanoseconds, _: u8, _: Leap) -> Result<(), Errno> {
            Ok(())
        }

        fn offsets(&self) -> ClockOffsets {
            let [set, rtc, suspended] = [&self.set, &self.rtc, &self.suspended].map(|time| *time.borrow());
            ClockOffsets {
                rtc: Some(Difference::new([rtc, rtc + SECOND], [set; 2])),
                suspended: Difference::new([suspended; 2], [0; 2]),
            }
        }
    }

    /// Result of a recovery without servers.
    async fn recovered(jump: impl FnOnce(&FakeClock)) -> (Nanoseconds, State, Duration) {
        let clock = FakeClock::default();
        let keeper = Arc::new(Keeper::new(Vec::new(), clock.clone()));
        let (state, mut missed) = (keeper.state(), keeper.missed());
        let tree = Supervisor::start("clock", Settings::default(), move |cx| Arc::clone(&keeper).run(cx));
        tree.handle().healthy().await.unwrap();
        jump(&clock);
        timeout(30 * LOOK, missed.changed()).await.unwrap().unwrap();
        tree.stop(Duration::from_secs(5)).await.unwrap();
        (*clock.set.borrow(), state.borrow().clone(), *missed.borrow())
    }

    #[tokio::test]
    async fn without_a_server_the_rtc_sets_the_clock_forward() {
        let (set, state, missed) = recovered(|clock| _ = clock.rtc.send_replace(HOUR)).await;
        assert!((set - HOUR).abs() <= SECOND, "{set}");
        assert_eq!((missed, state.steps, state.jumps), (Duration::from_nanos(set.unsigned_abs()), 1, 1));
    }

    #[tokio::test]
    async fn a_suspension_is_reported_as_a_jump_and_a_step() {
        let (set, state, missed) = recovered(|clock| _ = clock.suspended.send_replace(HOUR)).await;
        assert_eq!((set, state.steps, state.jumps), (0, 1, 1));
        assert_eq!(missed, Duration::from_secs(3600));
    }

    /// Total step and number of steps after answers with these offsets.
    fn set_by(first: Allowed, offsets: &[Nanoseconds]) -> (Nanoseconds, u32) {
        let clock = FakeClock::default();
        let keeper = Keeper::new(Vec::new(), clock.clone());
        let server = SocketAddr::from(([127, 0, 0, 1], 123));
        for &offset in offsets {
            let sample = Sample { offset, delay: 0, leap: Leap::None };
            keeper.correct(server, sample, Poll::default(), first).unwrap();
        }
        let steps = keeper.state.borrow().steps;
        let by = *clock.set.borrow();
        (by, steps)
    }

    #[test]
    fn before_programs_run_the_clock_is_set_once() {
        assert_eq!(set_by(Allowed::Any, &[HOUR, HOUR]), (HOUR, 1));
        assert_eq!(set_by(Allowed::Any, &[-HOUR, -HOUR]), (-HOUR, 1));
    }

    #[test]
    fn while_programs_run_the_clock_is_never_set_back() {
        assert_eq!(set_by(Allowed::Forwards, &[-HOUR, -HOUR]), (0, 0));
        assert_eq!(set_by(Allowed::Forwards, &[HOUR, HOUR, -HOUR]), (HOUR, 1));
    }
}
