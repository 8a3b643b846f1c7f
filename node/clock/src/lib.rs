//! Synchronizes the node's clock by SNTP, RFC 4330 (RFC 5905, section 14); certificates and etcd need a correct clock.
//!
//! A [`Keeper`] queries the servers in order until one answers, every 64 seconds to 17 minutes, and corrects the clock.
//! Before the node's programs run, the first answer may set the clock to any time, because a machine may boot with any
//! date. While they run, a first answer may only set it forward; later answers only slew it, so that time never goes
//! back for the node's programs. Without an answer, the clock runs unsynchronized.
//!
//! A clock jump is time during which the clock or timers stopped: a VM was restored from a saved state, paused or
//! migrated, or the machine slept. The service detects jumps within two seconds and queries the servers immediately.
//! The first answer may set the clock forward; without one within seconds, the clock is set forward by the RTC. Timers
//! run on `CLOCK_MONOTONIC` and do not see that time; [`Keeper::missed`] provides it.
//!
//! Answers of servers that are unsynchronized, or that reject the request (kiss of death), are not used.
//!
//! Requires `CAP_SYS_TIME` and Linux 2.6.39 (`clock_adjtime`).
#![deny(unsafe_code)]

mod correction;
mod jump;
mod keeper;
mod kernel;
mod packet;
mod query;
mod sample;
#[expect(unsafe_code, reason = "clock_adjtime(2) has no wrapper in nix")]
mod sys;

pub use jump::{ClockOffsets, Difference};
pub use keeper::{ClockState, Comparison, CorrectError, Keeper};
pub use kernel::{Clock, Kernel};
pub use packet::Leap;
pub use sample::{Nanoseconds, Sample};
