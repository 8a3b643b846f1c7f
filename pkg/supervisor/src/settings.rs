//! Settings of a service.

use std::time::Duration;

use crate::Backoff;

/// Settings of a service, and of its children without settings of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Waiting times after failures.
    pub backoff: Backoff,
    /// Longest time from the cancellation of the service to its end, without the time that its children need. The
    /// supervisor then aborts the service.
    pub stop_deadline: Duration,
    /// Longest time without progress, see [`Context::round`](crate::Context::round). Longer than all timeouts of the
    /// calls that a round waits for.
    pub round_deadline: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            backoff: Backoff::default(),
            stop_deadline: Duration::from_secs(10),
            round_deadline: Duration::from_secs(5 * 60),
        }
    }
}
