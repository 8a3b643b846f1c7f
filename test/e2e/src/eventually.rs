//! Waiting for what another party does.

use crate::Failure;
use crate::failure::chain;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(300);

/// What one look saw.
#[derive(Debug)]
pub enum Seen<T> {
    /// It has come.
    Done(T),
    /// Not yet: this is there instead.
    NotYet(String),
}

/// Looks until it has come. An error of a look is a state as well: the API server may be busy.
///
/// # Errors
/// [`Failure::Late`] with the last state.
pub async fn eventually<T, F>(limit: Duration, what: &str, look: impl FnMut() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<Seen<T>, Failure>>,
{
    every(INTERVAL, limit, what, look).await
}

async fn every<T, F>(interval: Duration, limit: Duration, what: &str, mut look: impl FnMut() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<Seen<T>, Failure>>,
{
    let start = Instant::now();
    loop {
        let last = match look().await {
            Ok(Seen::Done(found)) => return Ok(found),
            Ok(Seen::NotYet(state)) => state,
            Err(error) => chain(&error),
        };
        if start.elapsed() >= limit {
            return Err(Failure::Late { what: what.to_owned(), limit, last });
        }
        sleep(interval).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_comes_late_is_returned() {
        let mut looks = 0;
        let found = every(Duration::ZERO, Duration::from_secs(60), "the third look", || {
            looks += 1;
            let seen = if looks == 3 { Seen::Done(looks) } else { Seen::NotYet(looks.to_string()) };
            async { Ok(seen) }
        });
        assert_eq!(found.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn what_never_comes_ends_with_the_last_thing_seen() {
        let never = every::<(), _>(Duration::ZERO, Duration::ZERO, "rain", || async {
            Ok(Seen::NotYet("sunshine".to_owned()))
        });
        let message = never.await.unwrap_err().to_string();
        assert_eq!(message, "waited 0ns for rain; last seen: sunshine");
    }
}
