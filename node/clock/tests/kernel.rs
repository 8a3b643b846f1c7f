//! Corrections by the kernel. Runs only in a VM, because it changes the clock of the machine.

use std::env;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clock::{Clock, Keeper, Kernel, Leap};
use nix::time::{ClockId, clock_gettime};
use supervisor::{Settings, Supervisor};
use tokio::time::timeout;

const SECOND: i64 = 1_000_000_000;

/// A time by `CLOCK_REALTIME`, and by `CLOCK_MONOTONIC_RAW`, which is not slewed.
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

    fn gained(self) -> f64 {
        let now = Self::now();
        ((now.clock - self.clock) - (now.raw - self.raw)) as f64 / SECOND as f64
    }
}

/// The tests share the machine's clock, so they run one after another.
static CLOCK: Mutex<()> = Mutex::new(());

#[test]
fn a_step_is_immediate_and_a_slew_gradual() {
    assert!(env::var_os("KTEST_DISKS").is_some(), "this test sets the clock; run it in a ktest VM");
    let _turn = CLOCK.lock().unwrap_or_else(PoisonError::into_inner);
    for by in [3600 * SECOND + SECOND / 4, -3600 * SECOND - SECOND / 4] {
        let before = Moment::now();
        Kernel.step(by).unwrap();
        let beside = before.gained() - by as f64 / SECOND as f64;
        assert!(beside.abs() < 0.1, "{beside} s beside the step by {by} ns");
    }

    let before = Moment::now();
    // With the shortest time constant, the kernel corrects a quarter of the remaining offset per second.
    Kernel.slew(SECOND / 2, 0, Leap::None).unwrap();
    let at_once = before.gained();
    assert!(at_once.abs() < 0.1, "the slew was a step: {at_once} s");
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let gained = before.gained();
        assert!(gained < 0.6, "more than the slew: {gained} s");
        if gained > 0.3 {
            break;
        }
        assert!(Instant::now() < end, "the clock gained {gained} s");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A VM that was saved an hour ago and restored: the RTC shows the time of the host, the clock that of the save.
#[test]
fn after_a_jump_the_clock_is_set_from_the_rtc() {
    assert!(env::var_os("KTEST_DISKS").is_some(), "this test sets the clock; run it in a ktest VM");
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
        assert!(off.abs() < 2.0, "the clock differs from the RTC by {off} s");
        let off = missed.borrow().abs_diff(Duration::from_secs(3600));
        assert!(off < Duration::from_secs(2), "the missed time is wrong by {off:?}");
        tree.stop(Duration::from_secs(5)).await.unwrap();
    });
}
