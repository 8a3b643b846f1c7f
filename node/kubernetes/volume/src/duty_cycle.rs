//! Disk time that background copies leave to pods. Pure, except for the clock of the node.
//!
//! A piece of a copy ends when it is on the disk, so its duration is disk time. If pods use the disk, the piece takes
//! longer, and so does the rest that follows it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Longest rest. A piece may wait for minutes for a stalled disk, and the rest after it is part of the pass.
const LONGEST: Duration = Duration::from_secs(1);

/// Source of the time, and of pauses of the thread.
pub(crate) trait Clock {
    fn now(&self) -> Instant;
    fn sleep(&self, time: Duration);
}

pub(crate) struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, time: Duration) {
        thread::sleep(time);
    }
}

/// Copies that no pod waits for. Together, they use at most half of the disk's time.
#[derive(Debug, Default)]
pub(crate) struct BackgroundCopies(AtomicU32);

impl BackgroundCopies {
    /// Begins one pass over a background copy.
    pub(crate) fn begin(&self) -> DutyCycle<'_> {
        self.begin_with(SystemClock)
    }

    pub(crate) fn begin_with<C: Clock>(&self, clock: C) -> DutyCycle<'_, C> {
        self.0.fetch_add(1, Ordering::Relaxed);
        DutyCycle { copies: Some(self), clock }
    }
}

/// The pieces of one pass, and the rests between them.
pub(crate) struct DutyCycle<'a, C: Clock = SystemClock> {
    /// `None`: a pod waits for the copy, which does not rest.
    copies: Option<&'a BackgroundCopies>,
    clock: C,
}

impl DutyCycle<'_> {
    /// Duty cycle of a copy that a pod waits for.
    pub(crate) const fn full() -> Self {
        Self { copies: None, clock: SystemClock }
    }
}

impl<C: Clock> DutyCycle<'_, C> {
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Copies a piece, and rests.
    pub(crate) fn run<T>(&self, piece: impl FnOnce() -> T) -> T {
        let Some(copies) = self.copies else { return piece() };
        let begin = self.clock.now();
        let done = piece();
        let took = self.clock.now().saturating_duration_since(begin);
        self.clock.sleep(rest(took, copies.0.load(Ordering::Relaxed)));
        done
    }
}

impl<C: Clock> Drop for DutyCycle<'_, C> {
    fn drop(&mut self) {
        if let Some(copies) = self.copies {
            copies.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Rest after a piece, while so many copies have a pass. Each of `n` copies uses one part in `2n` of the time.
fn rest(took: Duration, copies: u32) -> Duration {
    took.saturating_mul(copies.saturating_mul(2).saturating_sub(1)).min(LONGEST)
}

/// A clock that only a test moves.
#[cfg(test)]
pub(crate) struct FakeClock(std::cell::Cell<Instant>);

#[cfg(test)]
impl FakeClock {
    pub(crate) fn start() -> Self {
        Self(std::cell::Cell::new(Instant::now()))
    }

    pub(crate) fn pass(&self, time: Duration) {
        self.0.set(self.0.get() + time);
    }
}

#[cfg(test)]
impl Clock for &FakeClock {
    fn now(&self) -> Instant {
        self.0.get()
    }

    fn sleep(&self, time: Duration) {
        self.pass(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// Duration of a piece with its rest. The duration of the piece and the result are in milliseconds.
    fn with_rest(cycle: &DutyCycle<'_, &FakeClock>, clock: &FakeClock, piece: u32) -> u128 {
        let begin = clock.now();
        cycle.run(|| clock.pass(MILLISECOND * piece));
        clock.now().duration_since(begin).as_millis()
    }

    #[test]
    fn a_copy_in_the_background_rests_as_long_as_each_piece_took() {
        let (clock, copies) = (FakeClock::start(), BackgroundCopies::default());
        let cycle = copies.begin_with(&clock);
        assert_eq!([0, 1, 20, 900].map(|piece| with_rest(&cycle, &clock, piece)), [0, 2, 40, 1800]);
        // The disk has stalled.
        assert_eq!(with_rest(&cycle, &clock, 60_000), 61_000);
    }

    #[test]
    fn copies_share_one_half_of_the_time() {
        let (clock, copies) = (FakeClock::start(), BackgroundCopies::default());
        let cycle = copies.begin_with(&clock);
        let others = [copies.begin_with(&clock), copies.begin_with(&clock)];
        assert_eq!(with_rest(&cycle, &clock, 10), 60);
        drop(others);
        assert_eq!(with_rest(&cycle, &clock, 10), 20, "the others have ended");
    }

    #[test]
    fn a_copy_that_a_pod_waits_for_does_not_rest() {
        let clock = FakeClock::start();
        assert_eq!(with_rest(&DutyCycle { copies: None, clock: &clock }, &clock, 20), 20);
        assert_eq!(DutyCycle::full().run(|| 1), 1);
    }
}
