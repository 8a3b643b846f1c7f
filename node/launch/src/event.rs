//! Events of a boot.

use cluster::announcement::StageState;
use qemu::{Accelerator, Version};
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Started {
        version: Version,
        accelerator: Accelerator,
    },
    /// A stage of the boot: `firmware`, `kernel`, or a stage that the node announces.
    Stage {
        name: String,
        state: StageState,
    },
    /// The API server serves requests. The registration of the node follows.
    Answers,
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
                    StageState::Failed => "failed, will retry",
                };
                write!(f, "{name}: {state}")
            }
            Self::Answers => f.write_str("the API server answers"),
            Self::NodeReady => f.write_str("the node is Ready"),
        }
    }
}

/// Stages that have started and are not ready yet, in the order of their start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unfinished(Vec<String>);

impl Unfinished {
    pub fn note(&mut self, event: &Event) {
        match event {
            Event::Stage { name, state: StageState::Started } if !self.0.contains(name) => self.0.push(name.clone()),
            Event::Stage { name, state: StageState::Ready } => self.0.retain(|started| started != name),
            // The node retries a failed stage.
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
    fn an_event_is_displayed_as_a_line() {
        assert_eq!(Event::stage("etcd", StageState::Ready).to_string(), "etcd: ready");
        assert_eq!(Event::stage("etcd", StageState::Failed).to_string(), "etcd: failed, will retry");
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
    fn a_stage_is_unfinished_until_it_is_ready() {
        use StageState::{Failed, Ready, Started};
        assert_eq!(after(&[("etcd", Started), ("containerd", Started)]), "etcd, containerd");
        assert_eq!(after(&[("etcd", Started), ("containerd", Started), ("etcd", Ready)]), "containerd");
        assert_eq!(after(&[("etcd", Started), ("etcd", Failed), ("etcd", Started)]), "etcd");
        assert_eq!(after(&[("etcd", Ready)]), "");
    }

    #[test]
    fn registration_follows_the_api_server_until_the_node_is_ready() {
        let mut unfinished = Unfinished::default();
        for (event, shown) in [
            (Event::stage("images", StageState::Started), "images"),
            (Event::Answers, "images, node Ready"),
            (Event::NodeReady, ""),
        ] {
            unfinished.note(&event);
            assert_eq!(unfinished.to_string(), shown, "{event}");
        }
    }
}
