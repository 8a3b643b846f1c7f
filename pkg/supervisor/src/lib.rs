//! A tree of services that are restarted when they fail.
//!
//! A service is an async function that receives a [`Context`]. The service calls [`Context::healthy`] once it does its
//! work, starts children with [`Context::start`], and returns when [`Context::cancelled`] completes. Each parent awaits
//! its children, so no service outlives the [`Supervisor`].
//!
//! - `Err`, a panic, and an `Ok(())` without [`Context::done`] are failures: the supervisor stops the children, and
//!   starts the service again after a [`Backoff`]. `Ok(())` after [`Context::done`] completes the service for good.
//! - Services stop in the reverse order of their starts, children before their parent, each with a deadline.
//! - A service that does its work in rounds ([`Context::round`]) is stalled if it makes no progress within
//!   [`Settings::round_deadline`]. Its [`Status`] reports the stall; the supervisor does not restart it.
//!
//! Times are those of tokio's clock, `CLOCK_MONOTONIC` on Linux. Neither a suspended machine nor a change of the wall
//! clock lengthens a round or a wait, because the clock stops during a suspend and is independent of the wall clock.
//!
//! Not supported: lookup by name, messages between services, threads. The supervisor cannot stop a service that never
//! yields to the runtime, and leaves it behind.
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
mod settings;
mod state;
mod status;
mod tasks;
#[cfg(test)]
mod tests;
mod tree;

pub use backoff::Backoff;
pub use context::{Context, Ended, Handle};
pub use failure::BoxError;
pub use settings::Settings;
pub use state::State;
pub use status::{Change, Status};
pub use tree::{Overdue, Supervisor};
