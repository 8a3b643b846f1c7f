//! Bazel's JSON profile: durations of actions and repository fetches.

use std::time::Duration;

use serde::Deserialize;

/// A build action or the fetch of a repository.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Mnemonic of the action, or [`FETCH`].
    pub(crate) kind: String,
    /// Target or repository.
    pub(crate) subject: String,
    pub(crate) time: Duration,
}

pub(crate) const FETCH: &str = "repository";

#[derive(Deserialize)]
struct Profile {
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Event {
    cat: String,
    name: String,
    /// Duration in microseconds.
    dur: u64,
    args: Arguments,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Arguments {
    mnemonic: String,
    target: String,
}

/// All steps except test runs, whose durations are in the build events.
pub(crate) fn steps(profile: &[u8]) -> Result<Vec<Step>, serde_json::Error> {
    let profile: Profile = serde_json::from_slice(profile)?;
    let step = |event: Event| {
        let (kind, subject) = match &*event.cat {
            "action processing" if event.args.mnemonic != "TestRunner" => (event.args.mnemonic, event.args.target),
            "Fetching repository" => (FETCH.to_owned(), event.name),
            _ => return None,
        };
        Some(Step { kind, subject, time: Duration::from_micros(event.dur) })
    };
    Ok(profile.events.into_iter().filter_map(step).collect())
}
