//! What a node tells the machine that runs it.
//!
//! The node writes one JSON object a line into a virtio-serial port named [`PORT`], if the machine
//! gave it one. The machine that runs the guest owns the guest's memory and disks anyway, so that
//! credentials may go this way; they never go to the console or a log.
//!
//! A reader meets lines of a newer node too: an unknown `kind` is an error of
//! [`Announcement::from_line`] that the reader may pass over.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use serde::{Deserialize, Serialize};

/// Name of the virtio-serial port, as in `/dev/virtio-ports/`.
pub const PORT: &str = "dev.granary.announce";

/// One thing that the node tells.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Announcement {
    /// A stage of the boot begins or ended.
    Stage {
        /// What it is about: `init`, `data-disk`, `network`, `etcd`, `kube-apiserver`, …, `node`.
        name: String,
        /// How far it is.
        state: StageState,
        /// Milliseconds since the guest's kernel started (`CLOCK_BOOTTIME`).
        at_ms: u64,
    },
    /// The API server answers, and this is an administrator's kubeconfig for it. Its server address
    /// is the guest's own; the machine puts the address of its port forwarding in.
    Credentials {
        /// A kubeconfig with certificates inside, in JSON (which is YAML too).
        kubeconfig: String,
    },
    /// The node cannot go on. It powers off after this.
    Fatal {
        /// What failed, why, and the remedy.
        message: String,
    },
}

/// How far a stage is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StageState {
    /// It began.
    Started,
    /// It does its work.
    Ready,
    /// It failed, and is tried again.
    Failed,
}

impl Announcement {
    /// The line for the port, with its line feed.
    ///
    /// # Errors
    /// Never for the values that exist; the type is serde's.
    pub fn to_line(&self) -> Result<String, serde_json::Error> {
        let mut line = serde_json::to_string(self)?;
        line.push('\n');
        Ok(line)
    }

    /// Reads one line.
    ///
    /// # Errors
    /// The line is no JSON object of a kind that is known here.
    pub fn from_line(line: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(line)
    }
}

// The kubeconfig holds a private key.
impl std::fmt::Debug for Announcement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stage { name, state, at_ms } => {
                f.debug_struct("Stage").field("name", name).field("state", state).field("at_ms", at_ms).finish()
            }
            Self::Credentials { .. } => f.debug_struct("Credentials").finish_non_exhaustive(),
            Self::Fatal { message } => f.debug_struct("Fatal").field("message", message).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_back_as_what_was_written() {
        let stage = Announcement::Stage { name: "etcd".into(), state: StageState::Ready, at_ms: 12_000 };
        let line = stage.to_line().unwrap();
        assert_eq!(line, "{\"kind\":\"stage\",\"name\":\"etcd\",\"state\":\"ready\",\"at_ms\":12000}\n");
        assert_eq!(Announcement::from_line(&line).unwrap(), stage);
    }

    #[test]
    fn credentials_do_not_show_in_debug_output() {
        let secret = Announcement::Credentials { kubeconfig: "client-key-data".into() };
        assert_eq!(format!("{secret:?}"), "Credentials { .. }");
    }

    #[test]
    fn an_unknown_kind_is_an_error_and_not_a_panic() {
        assert!(Announcement::from_line("{\"kind\":\"poem\"}").is_err());
    }
}
