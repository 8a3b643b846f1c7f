//! What the kernel makes of corrections. In a VM only: they change the machine's clock.

use std::env;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clock::{Clock, Keeper, Kernel, Leap};
use nix::time::{ClockId, clock_gettime};
use supervisor::{Settings, Supervisor};
use tokio::time::timeout;

const SECOND: i64 = 1_000_000_000;

/// A moment by the clock, and by the one that nobody corrects: also `CLOCK_MONOTONIC` is slewed.
#[derive(Clone, Copy)]
struct Moment {
    clock: i64,
    raw: i64,
}

impl Moment {
    fn now() -> Self {
        let raw = clock_gettime(ClockId::CLOCK_MONOTONIC_RAW).unwrap();
        Self { clock: Kernel.now(), raw: raw.tv_sec() * SECOND + raw.tv_nsec() }
    }

    /// What the clock has gone since then beside the time that passed, in seconds.
    fn gained(self) -> f64 {
        let now = Self::now();
        ((now.clock - self.clock) - (now.raw - self.raw)) as f64 / SECOND as f64
    }
}

/// The machine has one clock: one test after the other.
static CLOCK: Mutex<()> = Mutex::new(());

#[test]
fn a_step_sets_the_clock_at_once_and_a_slew_makes_up_by_and_by() {
    assert!(env::var_os("KTEST_DISKS").is_some(), "this sets the clock: only in a guest of ktest");
    let _turn = CLOCK.lock().unwrap_or_else(PoisonError::into_inner);
    for by in [3600 * SECOND + SECOND / 4, -3600 * SECOND - SECOND / 4] {
        let before = Moment::now();
        Kernel.step(by).unwrap();
        let beside = before.gained() - by as f64 / SECOND as f64;
        assert!(beside.abs() < 0.1, "{beside} s beside the step by {by} ns");
    }

    let before = Moment::now();
    // With the shortest time constant the kernel makes up for a quarter of the rest in each second.
    Kernel.slew(SECOND / 2, 0, Leap::None).unwrap();
    let at_once = before.gained();
    assert!(at_once.abs() < 0.1, "a slew is no step: {at_once} s");
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let gained = before.gained();
        assert!(gained < 0.6, "more than was asked for: {gained} s");
        if gained > 0.3 {
            break;
        }
        assert!(Instant::now() < end, "the clock has made up for {gained} s");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// As in a VM that was saved an hour ago and restored: the RTC shows the host's time, the clock that of the save.
#[test]
fn a_clock_that_is_behind_the_rtc_after_a_jump_is_right_within_seconds() {
    assert!(env::var_os("KTEST_DISKS").is_some(), "this sets the clock: only in a guest of ktest");
    let _turn = CLOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let keeper = Arc::new(Keeper::new(Vec::new(), Kernel));
        let (mut state, missed) = (keeper.state(), keeper.missed());
        let tree = Supervisor::start("clock", Settings::default(), move |cx| Arc::clone(&keeper).run(cx));
        tree.handle().healthy().await.unwrap();

        let before = Moment::now();
        Kernel.step(-3600 * SECOND).unwrap();
        let jumped = timeout(Duration::from_secs(30), state.wait_for(|state| state.jumps == 1)).await;
        assert_eq!(jumped.expect("the jump is detected").unwrap().steps, 1);
        let off = before.gained();
        assert!(off.abs() < 2.0, "the clock is right again, but for the RTC's seconds: {off} s");
        let off = missed.borrow().abs_diff(Duration::from_secs(3600));
        assert!(off < Duration::from_secs(2), "the time that was missed is off by {off:?}");
        tree.stop(Duration::from_secs(5)).await.unwrap();
    });
}
