//! What a person or a metric sees of the tree.

use tokio::time::Instant;

use crate::State;

/// A service and its children at one moment. Children stand in the order of their start.
#[derive(Clone, Debug)]
pub struct Status {
    /// The name that its parent gave it.
    pub name: String,
    /// Where it is in its life.
    pub state: State,
    /// How often it was started, this time included.
    pub attempts: u32,
    /// Since when it is in this state.
    pub since: Instant,
    /// Why it failed last, with causes. A later success does not clear it.
    pub last_error: Option<String>,
    /// The children of its present attempt.
    pub children: Vec<Status>,
}

impl Status {
    /// Paths (`node.etcd`) of the services that still have something running.
    pub(crate) fn running(&self, parent: &str, found: &mut Vec<String>) {
        let path = if parent.is_empty() { self.name.clone() } else { format!("{parent}.{}", self.name) };
        for child in &self.children {
            child.running(&path, found);
        }
        match self.state {
            State::Starting | State::Healthy | State::Stopping => found.push(path),
            State::Done | State::Failed | State::Stopped => {}
        }
    }
}
