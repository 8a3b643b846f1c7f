//! Waits for the work of other components: on a condition with a deadline, never for a fixed time.

use std::error::Error;
use std::fmt::Debug;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{Failure, PATIENCE};

/// First and longest interval between two looks. The interval grows, because each look takes CPU time from the observed
/// program.
const INTERVALS: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(300)];

#[derive(Debug)]
pub enum Seen<T> {
    Done(T),
    NotYet(String),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("waited {limit:?} for {what}; last seen: {last}")]
pub struct Late {
    pub what: String,
    pub limit: Duration,
    pub last: String,
}

/// Repeats `look` until it is done. An error of `look` counts as a state, because an API server may be busy.
pub async fn eventually<T, E, F>(limit: Duration, what: &str, mut look: impl FnMut() -> F) -> Result<T, Late>
where
    E: Error + 'static,
    F: Future<Output = Result<Seen<T>, E>>,
{
    let start = Instant::now();
    let [mut interval, longest] = INTERVALS;
    loop {
        let last = match look().await {
            Ok(Seen::Done(found)) => return Ok(found),
            Ok(Seen::NotYet(state)) => state,
            Err(error) => chain(&error),
        };
        if start.elapsed() >= limit {
            return Err(Late { what: what.to_owned(), limit, last });
        }
        sleep(interval).await;
        interval = (interval * 3 / 2).min(longest);
    }
}

/// Waits until `obstacle` returns `None`. The text of an obstacle describes the current state.
pub async fn until(what: &str, obstacle: impl AsyncFn() -> Result<Option<String>, kube::Error>) -> Result<(), Failure> {
    let look = async || Ok::<_, kube::Error>(obstacle().await?.map_or(Seen::Done(()), Seen::NotYet));
    Ok(eventually(PATIENCE, what, look).await?)
}

/// Reads a value until it fulfils the condition, and returns it.
pub async fn reached<T: Debug>(
    what: &str,
    read: impl AsyncFn() -> Result<T, kube::Error>,
    is_reached: impl Fn(&T) -> bool,
) -> Result<T, Failure> {
    let look = async || {
        let found = read().await?;
        Ok::<_, kube::Error>(if is_reached(&found) { Seen::Done(found) } else { Seen::NotYet(format!("{found:?}")) })
    };
    Ok(eventually(PATIENCE, what, look).await?)
}

pub fn chain(error: &dyn Error) -> String {
    causes::lines(error).to_string()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_comes_late_is_returned() {
        let mut looks = 0;
        let found = eventually(Duration::from_secs(60), "the third look", || {
            looks += 1;
            let seen = if looks == 3 { Seen::Done(looks) } else { Seen::NotYet(looks.to_string()) };
            async { Ok::<_, Infallible>(seen) }
        });
        assert_eq!(found.await, Ok(3));
    }

    #[tokio::test(start_paused = true)]
    async fn what_never_comes_ends_with_the_last_thing_seen() {
        let never =
            eventually(Duration::ZERO, "rain", async || Ok::<_, Infallible>(Seen::<()>::NotYet("sunshine".into())));
        assert_eq!(never.await.unwrap_err().to_string(), "waited 0ns for rain; last seen: sunshine");
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_is_a_state_and_not_the_end() {
        let mut looks = 0;
        let found = eventually(Duration::from_secs(60), "an answer", || {
            looks += 1;
            let seen = if looks == 1 { Err(std::io::Error::other("busy")) } else { Ok(Seen::Done(())) };
            async { seen }
        });
        assert_eq!(found.await, Ok(()));
    }
}
