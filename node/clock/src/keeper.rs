//! Who asks, corrects, and asks again.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use supervisor::Context;
use tokio::sync::{Mutex, watch};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::ask::{AskError, ask};
use crate::correction::{Allowed, Correction, Poll};
use crate::{Clock, Leap, Sample};

/// A clock that is off by more, and is not set any more, is a person's business.
const WRONG: i64 = 1_000_000_000;

/// The kernel does not let the clock be corrected.
#[derive(Debug, thiserror::Error)]
#[error("cannot correct the clock")]
pub struct CorrectError(#[from] Errno);

/// How good the clock is.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The last comparison.
    pub last: Option<Comparison>,
    /// Why the last attempt failed, if it did.
    pub problem: Option<Arc<str>>,
    /// How often the clock was set.
    pub steps: u32,
}

/// A comparison with a server.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// With which.
    pub server: SocketAddr,
    /// What it told.
    pub sample: Sample,
    /// When.
    pub at: Instant,
}

/// Keeps a clock by servers. It outlives the service that it runs as.
pub struct Keeper {
    servers: Vec<SocketAddr>,
    clock: Box<dyn Clock>,
    state: watch::Sender<State>,
    /// One question at a time.
    turn: Mutex<()>,
}

impl Keeper {
    /// Keeps `clock` by these servers, the preferred one first.
    pub fn new(servers: Vec<SocketAddr>, clock: impl Clock) -> Self {
        Self { servers, clock: Box::new(clock), state: watch::Sender::default(), turn: Mutex::default() }
    }

    /// Who is asked.
    pub fn servers(&self) -> &[SocketAddr] {
        &self.servers
    }

    /// How good the clock is, now and later.
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Asks until one of the servers has answered, and sets a clock that is far off to any time: before others rely on
    /// it. Cancel-safe.
    ///
    /// # Errors
    /// [`CorrectError`].
    pub async fn first(&self) -> Result<(), CorrectError> {
        while self.state.borrow().last.is_none() {
            if self.compare(Poll::default(), Allowed::Any).await?.is_none() {
                sleep(Duration::from_secs(1)).await;
            }
        }
        Ok(())
    }

    /// The service: keeps the clock until it is cancelled, and never sets it back. Healthy from the start, since the
    /// clock goes on alone.
    ///
    /// # Errors
    /// [`CorrectError`].
    pub async fn run(self: Arc<Self>, cx: Context) -> Result<(), CorrectError> {
        cx.healthy();
        let mut poll = Poll::default();
        loop {
            let compared = tokio::select! {
                () = cx.cancelled() => return Ok(()),
                compared = self.compare(poll, Allowed::Forwards) => compared?,
            };
            let wait = poll.time();
            poll = compared.map_or(poll.longer(), |sample| poll.after(sample.offset));
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = sleep(wait) => {}
            }
        }
    }

    /// Compares and corrects, the `first` time by what is allowed then; nothing if no server told the time.
    async fn compare(&self, poll: Poll, first: Allowed) -> Result<Option<Sample>, CorrectError> {
        let _turn = self.turn.lock().await;
        let mut problem = None;
        for &server in &self.servers {
            match ask(server, &*self.clock).await {
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
                // It is right now, and the kernel is told so.
                self.clock.slew(0, poll.exponent(), Leap::None)?;
                info!(%server, offset_seconds, "clock set");
            }
            Correction::Slew(by) => {
                self.clock.slew(by, poll.exponent(), leap)?;
                if is_first || before.problem.is_some() {
                    info!(%server, offset_seconds, "clock compared");
                }
                if offset.abs() > WRONG {
                    warn!(%server, offset_seconds, "the clock is wrong and set only at a start; restart the node");
                }
            }
        }
        let steps = before.steps + u32::from(matches!(correction, Correction::Step(_)));
        let last = Some(Comparison { server, sample, at: Instant::now() });
        self.state.send_replace(State { last, problem: None, steps });
        Ok(())
    }

    /// Told once, until it goes well again.
    fn failed(&self, error: &AskError) {
        if self.state.borrow().problem.is_none() {
            let error: &dyn Error = error;
            warn!(error, "no server tells the time; the clock goes on as it is");
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
    use super::*;
    use crate::Nanoseconds;

    const HOUR: Nanoseconds = 3600 * 1_000_000_000;

    /// A clock that tells by how much it was set.
    struct FakeClock(watch::Sender<Nanoseconds>);

    impl Clock for FakeClock {
        fn now(&self) -> Nanoseconds {
            0
        }

        fn step(&self, by: Nanoseconds) -> Result<(), Errno> {
            self.0.send_modify(|set| *set += by);
            Ok(())
        }

        fn slew(&self, _: Nanoseconds, _: u8, _: Leap) -> Result<(), Errno> {
            Ok(())
        }
    }

    /// By how much the answers set a clock, the first with what is allowed then.
    fn set_by(first: Allowed, offsets: &[Nanoseconds]) -> (Nanoseconds, u32) {
        let set = watch::Sender::new(0);
        let keeper = Keeper::new(Vec::new(), FakeClock(set.clone()));
        let server = SocketAddr::from(([127, 0, 0, 1], 123));
        for &offset in offsets {
            let sample = Sample { offset, delay: 0, leap: Leap::None };
            keeper.correct(server, sample, Poll::default(), first).unwrap();
        }
        let steps = keeper.state.borrow().steps;
        let by = *set.borrow();
        (by, steps)
    }

    #[test]
    fn before_the_nodes_programs_run_the_clock_is_set_to_any_time_once() {
        assert_eq!(set_by(Allowed::Any, &[HOUR, HOUR]), (HOUR, 1));
        assert_eq!(set_by(Allowed::Any, &[-HOUR, -HOUR]), (-HOUR, 1));
    }

    #[test]
    fn under_the_nodes_programs_the_clock_is_never_set_back() {
        assert_eq!(set_by(Allowed::Forwards, &[-HOUR, -HOUR]), (0, 0));
        assert_eq!(set_by(Allowed::Forwards, &[HOUR, HOUR, -HOUR]), (HOUR, 1));
    }
}
