//! States of a service and their transitions.

use std::fmt;

/// State of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "lowercase"))]
pub enum State {
    /// The service runs and has not reported that it is healthy.
    Starting,
    /// The service does its work.
    Healthy,
    /// The service completed for good, with success. Its children continue to run.
    Done,
    /// The service failed and waits for its next attempt.
    Failed,
    /// A stop was requested.
    Stopping,
    /// The service ended and will not run again.
    Stopped,
}

/// An event that can change the state of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// An attempt begins.
    Begun,
    /// The service reported that it does its work.
    Healthy,
    /// The service returned `Ok(())` after it called `done`.
    Done,
    /// The service failed.
    Failed,
    /// A stop was requested.
    Stop,
    /// All tasks of the service have ended, and no attempt follows.
    Ended,
}

impl State {
    /// The state after `event`. An event that is not possible in this state changes nothing.
    pub(crate) fn after(self, event: Event) -> Self {
        match (self, event) {
            (_, Event::Ended) | (Self::Stopped, _) => Self::Stopped,
            (_, Event::Stop) | (Self::Stopping, _) => Self::Stopping,
            (Self::Failed, Event::Begun) => Self::Starting,
            (Self::Starting, Event::Healthy) => Self::Healthy,
            (Self::Starting | Self::Healthy, Event::Done) => Self::Done,
            (Self::Starting | Self::Healthy | Self::Done, Event::Failed) => Self::Failed,
            (same, Event::Begun | Event::Healthy | Event::Done | Event::Failed) => same,
        }
    }

    /// Name for logs, status pages and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Healthy => "healthy",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            Just(Event::Begun),
            Just(Event::Healthy),
            Just(Event::Done),
            Just(Event::Failed),
            Just(Event::Stop),
            Just(Event::Ended),
        ]
    }

    proptest! {
        #[test]
        fn what_was_asked_to_stop_never_runs_again(before in prop::collection::vec(event(), 0..20), after in prop::collection::vec(event(), 0..20)) {
            let asked = before.into_iter().fold(State::Starting, State::after).after(Event::Stop);
            let end = after.into_iter().fold(asked, State::after);
            prop_assert!(matches!(end, State::Stopping | State::Stopped), "{end}");
        }

        #[test]
        fn only_a_new_attempt_leads_out_of_failure(event in event()) {
            let next = State::Failed.after(event);
            prop_assert_eq!(next == State::Starting, event == Event::Begun);
            prop_assert!(!matches!(next, State::Healthy | State::Done));
        }

        #[test]
        fn an_event_twice_is_the_event_once(events in prop::collection::vec(event(), 0..20), event in event()) {
            let once = events.into_iter().fold(State::Starting, State::after).after(event);
            prop_assert_eq!(once.after(event), once);
        }
    }

    #[test]
    fn an_ordinary_life() {
        let life =
            [Event::Begun, Event::Healthy, Event::Failed, Event::Begun, Event::Healthy, Event::Stop, Event::Ended];
        let mut state = State::Starting;
        let states: Vec<&str> = life
            .into_iter()
            .map(|event| {
                state = state.after(event);
                state.as_str()
            })
            .collect();
        assert_eq!(states, ["starting", "healthy", "failed", "starting", "healthy", "stopping", "stopped"]);
    }
}
