//! A tree of services that are restarted when they fail.
//!
//! A service is an async function that gets a [`Context`]. It says [`Context::healthy`] once it does
//! its work, starts children with [`Context::start`], and ends when [`Context::cancelled`] does. Its
//! parent awaits it: nothing outlives the [`Supervisor`].
//!
//! - `Err`, a panic, and an `Ok(())` without [`Context::done`] are failures: the children are stopped, and
//!   the service runs again after a [`Backoff`]. `Ok(())` after [`Context::done`] is an end for good.
//! - A stop goes against the order of the starts, children before their parent, each with a deadline.
//! - A service that does its work in rounds ([`Context::round`]) is stalled if it makes no progress within
//!   [`Settings::round_deadline`]. Its [`Status`] says so; nothing restarts it.
//!
//! Times are those of tokio's clock, `CLOCK_MONOTONIC` on Linux. It does not advance while the machine is suspended, and
//! does not follow changes of the wall clock: neither lengthens a round or a wait.
//!
//! Not supported: lookup by name, messages between services, threads. A service
//! that never yields to the runtime cannot be stopped, only left behind.
//!
//! ```
//! use std::convert::Infallible;
//! use supervisor::{Context, Settings, State, Supervisor};
//!
//! async fn clock(cx: Context) -> Result<(), Infallible> {
//!     cx.healthy();
//!     cx.cancelled().await;
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tree = Supervisor::start("node", Settings::default(), |cx| async move {
//!     cx.start("clock", clock).healthy().await?;
//!     cx.done();
//!     Ok::<(), supervisor::Ended>(())
//! });
//! tree.handle().healthy().await?;
//! assert_eq!(tree.status().children[0].state, State::Healthy);
//! tree.stop(std::time::Duration::from_secs(5)).await?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod backoff;
mod context;
mod failure;
mod node;
mod progress;
mod service;
mod state;
mod status;
mod tasks;
#[cfg(test)]
mod tests;
mod tree;

pub use backoff::Backoff;
pub use context::{Context, Ended, Handle};
pub use failure::BoxError;
pub use state::State;
pub use status::Status;
pub use tree::{Change, Overdue, Settings, Supervisor};
