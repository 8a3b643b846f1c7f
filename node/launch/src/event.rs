//! What happens during a boot.

use cluster::announcement::StageState;
use qemu::{Accelerator, Version};
use std::fmt;

/// What happens during the boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// QEMU runs the guest.
    Started {
        /// Its version.
        version: Version,
        /// What executes the guest.
        accelerator: Accelerator,
    },
    /// A stage of the boot: `firmware`, `kernel`, and what the node tells of (see [`cluster::announcement`]).
    Stage {
        /// What it is about.
        name: String,
        /// How far it is.
        state: StageState,
    },
    /// The API server answers; what is left is the node's registration.
    Answers,
    /// The cluster calls the node ready.
    NodeReady,
}

impl Event {
    pub(crate) fn stage(name: &str, state: StageState) -> Self {
        Self::Stage { name: name.to_owned(), state }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { version, accelerator } => write!(f, "QEMU {version} runs the guest with {accelerator}"),
            Self::Stage { name, state } => {
                let state = match state {
                    StageState::Started => "started",
                    StageState::Ready => "ready",
                    StageState::Failed => "failed, tried again",
                };
                write!(f, "{name}: {state}")
            }
            Self::Answers => f.write_str("the API server answers"),
            Self::NodeReady => f.write_str("the node is Ready"),
        }
    }
}

/// The stages that have begun and are not done, in the order of their begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unfinished(Vec<String>);

impl Unfinished {
    /// Keeps up with an event.
    pub fn note(&mut self, event: &Event) {
        match event {
            Event::Stage { name, state: StageState::Started } if !self.0.contains(name) => self.0.push(name.clone()),
            Event::Stage { name, state: StageState::Ready } => self.0.retain(|begun| begun != name),
            // What failed is tried again: it is still waited for.
            Event::Started { .. } | Event::Stage { .. } => {}
            Event::Answers => self.0.push("node Ready".to_owned()),
            Event::NodeReady => self.0.clear(),
        }
    }
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_reads_as_a_line() {
        assert_eq!(Event::stage("etcd", StageState::Ready).to_string(), "etcd: ready");
        assert_eq!(Event::stage("etcd", StageState::Failed).to_string(), "etcd: failed, tried again");
        assert_eq!(Event::NodeReady.to_string(), "the node is Ready");
    }

    fn after(events: &[(&str, StageState)]) -> String {
        let mut unfinished = Unfinished::default();
        for (name, state) in events {
            unfinished.note(&Event::stage(name, *state));
        }
        unfinished.to_string()
    }

    #[test]
    fn what_began_is_unfinished_until_it_is_ready() {
        use StageState::{Failed, Ready, Started};
        assert_eq!(after(&[("etcd", Started), ("containerd", Started)]), "etcd, containerd");
        assert_eq!(after(&[("etcd", Started), ("containerd", Started), ("etcd", Ready)]), "containerd");
        assert_eq!(after(&[("etcd", Started), ("etcd", Failed), ("etcd", Started)]), "etcd");
        assert_eq!(after(&[("etcd", Ready)]), "");
    }

    #[test]
    fn a_cluster_that_answers_waits_for_its_node() {
        let mut unfinished = Unfinished::default();
        unfinished.note(&Event::Answers);
        assert_eq!(unfinished.to_string(), "node Ready");
    }

    #[test]
    fn nothing_is_unfinished_on_a_node_that_is_ready() {
        let mut unfinished = Unfinished::default();
        unfinished.note(&Event::stage("images", StageState::Started));
        unfinished.note(&Event::NodeReady);
        assert_eq!(unfinished, Unfinished::default());
    }
}
