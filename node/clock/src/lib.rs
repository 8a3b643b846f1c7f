//! Keeps the node's clock by SNTP, RFC 4330 (RFC 5905, section 14): certificates and etcd need it.
//!
//! A [`Keeper`] asks one server after the other until one answers, every 64 seconds to 17 minutes, and corrects the
//! clock. Before the node's programs run, the first answer may set it: a machine may start in any year. Under them a first
//! answer may still set it, but only forwards; later the clock is only made faster or slower, by the kernel, so that time
//! never goes back under the node's programs. Without an answer the clock goes on as it is.
//!
//! A clock jump is time that passed unseen by the clock or by timers: the machine is a VM that was restored from a saved
//! state, paused or migrated, or it slept. The service detects one within a second or two and asks the servers at once. Their
//! first answer may set the clock forwards; without one within seconds, the RTC sets it forwards by as much as passed. Timers,
//! which run on `CLOCK_MONOTONIC`, do not see that time: [`Keeper::missed`] is for those that need it.
//!
//! It refuses to believe a server that says of itself that it does not know the time, answers to nobody who asks it, and
//! has no server of its own.
//!
//! Needs Linux 2.6.39 (`clock_adjtime`), and `CAP_SYS_TIME`.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod ask;
mod correction;
mod jump;
mod keeper;
mod kernel;
mod packet;
mod sample;
#[expect(unsafe_code, reason = "clock_adjtime(2) has no wrapper in nix")]
mod sys;

pub use jump::{Difference, Look};
pub use keeper::{Comparison, CorrectError, Keeper, State};
pub use kernel::{Clock, Kernel};
pub use packet::Leap;
pub use sample::{Nanoseconds, Sample};
