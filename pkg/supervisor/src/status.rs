//! Status of the tree for people and metrics, and its changes.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use crate::State;

/// A service and its children at one moment, in the order of their start. [`Display`](fmt::Display) writes one line per
/// service, [`Status::walk`] iterates over the services, and with the feature `serde` it serializes as a tree.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Status {
    /// Names from the root to the service, such as `node.etcd`.
    pub path: String,
    /// Name that the parent gave to the service.
    pub name: String,
    /// Current state.
    pub state: State,
    /// Number of starts, including the current one.
    pub attempts: u32,
    /// Time at which the service entered the state. Serialized as `seconds`, the time until now.
    #[cfg_attr(feature = "serde", serde(rename = "seconds", serialize_with = "seconds"))]
    pub since: Instant,
    /// Last failure with its causes. A later success does not clear it.
    pub last_error: Option<String>,
    /// How long the service has made no progress, if it is stalled, see [`Context::round`](crate::Context::round).
    /// Serialized as `stalled_seconds`.
    #[cfg_attr(feature = "serde", serde(rename = "stalled_seconds", serialize_with = "maybe_seconds"))]
    pub stalled: Option<Duration>,
    /// Children of the current attempt, in the order of their start.
    pub children: Vec<Status>,
}

impl Status {
    /// Iterates over this service and its descendants, parents before their children, each with its depth: 0 for this
    /// service.
    pub fn walk(&self) -> impl Iterator<Item = (usize, &Status)> {
        let mut left = vec![(0, self)];
        std::iter::from_fn(move || {
            let (depth, next) = left.pop()?;
            left.extend(next.children.iter().rev().map(|child| (depth + 1, child)));
            Some((depth, next))
        })
    }

    /// Adds the paths of the services that have a running attempt, children before their parents.
    pub(crate) fn running(&self, found: &mut Vec<String>) {
        for child in &self.children {
            child.running(found);
        }
        match self.state {
            State::Starting | State::Healthy | State::Stopping => found.push(self.path.clone()),
            State::Done | State::Failed | State::Stopped => {}
        }
    }
}

/// A change of a service's state.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Names from the root to the service, such as `node.etcd`.
    pub path: &'a str,
    /// Name of the service.
    pub name: &'a str,
    /// New state.
    pub state: State,
    /// Number of starts.
    pub attempts: u32,
    /// Last failure with its causes.
    pub error: Option<&'a str>,
}

/// One line per service, indented by its depth: name, state, seconds in that state, number of starts if more than one,
/// duration of a stall, and last failure. Line feeds in an error become spaces.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, service) in self.walk() {
            let space = 2 * depth;
            write!(f, "{:space$}{} {} {} s", "", service.name, service.state, service.since.elapsed().as_secs())?;
            if service.attempts > 1 {
                write!(f, ", started {} times", service.attempts)?;
            }
            if let Some(time) = service.stalled {
                write!(f, ", no progress for {} s", time.as_secs())?;
            }
            if let Some(error) = &service.last_error {
                write!(f, ", failed: {}", error.replace('\n', " "))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(feature = "serde")]
fn seconds<S: serde::Serializer>(since: &Instant, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(since.elapsed().as_secs())
}

#[cfg(feature = "serde")]
fn maybe_seconds<S: serde::Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    serde::Serialize::serialize(&time.map(|time| time.as_secs()), serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(path: &str, state: State, attempts: u32, error: Option<&str>, children: Vec<Status>) -> Status {
        let name = path.rsplit('.').next().unwrap_or_default().to_owned();
        let (last_error, since, stalled) = (error.map(str::to_owned), Instant::now(), None);
        Status { path: path.to_owned(), name, state, attempts, since, last_error, stalled, children }
    }

    async fn tree() -> Status {
        let etcd = service("node.storage.etcd", State::Failed, 3, Some("no disk:\n full"), Vec::new());
        let storage = service("node.storage", State::Starting, 1, None, vec![etcd]);
        let mut page = service("node.page", State::Healthy, 1, None, Vec::new());
        page.stalled = Some(Duration::from_millis(7999));
        let tree = service("node", State::Done, 1, None, vec![storage, page]);
        tokio::time::advance(Duration::from_millis(61_500)).await;
        tree
    }

    #[tokio::test(start_paused = true)]
    async fn a_walk_visits_parents_first_in_the_order_of_start() {
        let tree = tree().await;
        let found: Vec<_> = tree.walk().map(|(depth, service)| (depth, service.path.as_str())).collect();
        assert_eq!(found, [(0, "node"), (1, "node.storage"), (2, "node.storage.etcd"), (1, "node.page")]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_of_text_has_one_line_for_each_service() {
        assert_eq!(
            tree().await.to_string(),
            "node done 61 s\n  storage starting 61 s\n    etcd failed 61 s, started 3 times, failed: no disk:  full\n  \
             page healthy 61 s, no progress for 7 s\n"
        );
    }

    #[cfg(feature = "serde")]
    #[tokio::test(start_paused = true)]
    async fn a_serialized_status_is_a_tree_of_its_fields() {
        let found = serde_json::to_value(&tree().await.children[0]).unwrap();
        let expected = serde_json::json!({
            "path": "node.storage", "name": "storage", "state": "starting", "attempts": 1, "seconds": 61,
            "last_error": null, "stalled_seconds": null,
            "children": [{
                "path": "node.storage.etcd", "name": "etcd", "state": "failed", "attempts": 3, "seconds": 61,
                "last_error": "no disk:\n full", "stalled_seconds": null, "children": [],
            }],
        });
        assert_eq!(found, expected);
        assert_eq!(serde_json::to_value(&tree().await.children[1]).unwrap()["stalled_seconds"], 7);
    }
}
