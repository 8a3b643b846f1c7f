//! Announcements of a node to its host.
//!
//! The node writes one JSON object per line to the virtio-serial port [`PORT`], if the host provides it. The port may
//! carry credentials, because the host has access to the guest's memory and disks anyway; consoles and logs must not.
//!
//! A newer node may write an unknown `kind`, for which [`Announcement::from_line`] returns an error. Readers may skip
//! such lines.

use serde::{Deserialize, Serialize};

/// Name of the virtio-serial port, as in `/dev/virtio-ports/`.
pub const PORT: &str = "dev.granary.announce";

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Announcement {
    /// A boot stage started, is ready, or failed.
    Stage {
        /// Name of the stage: `init`, `data-disk`, `network`, `etcd`, `kube-apiserver`, …, `node`.
        name: String,
        state: StageState,
        /// Milliseconds since boot (`CLOCK_BOOTTIME`).
        at_ms: u64,
    },
    /// The API server is ready; credentials of an administrator. The server address is that of the guest, and the host
    /// replaces it with its port forwarding.
    Credentials {
        /// A kubeconfig with embedded certificates, in JSON (which is also YAML).
        kubeconfig: String,
    },
    /// The node cannot continue and powers off.
    Fatal { message: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StageState {
    Started,
    Ready,
    /// The stage failed and is retried.
    Failed,
}

impl Announcement {
    /// Serializes to a line including the line feed.
    pub fn to_line(&self) -> Result<String, serde_json::Error> {
        let mut line = serde_json::to_string(self)?;
        line.push('\n');
        Ok(line)
    }

    /// Parses a line. Fails if the line is not a JSON object of a known kind.
    pub fn from_line(line: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(line)
    }
}

// Omits the kubeconfig, which contains a private key.
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
    fn parsing_reverses_serialization() {
        let stage = Announcement::Stage { name: "etcd".into(), state: StageState::Ready, at_ms: 12_000 };
        let line = stage.to_line().unwrap();
        assert_eq!(line, "{\"kind\":\"stage\",\"name\":\"etcd\",\"state\":\"ready\",\"at_ms\":12000}\n");
        assert_eq!(Announcement::from_line(&line).unwrap(), stage);
    }

    #[test]
    fn debug_output_omits_credentials() {
        let secret = Announcement::Credentials { kubeconfig: "client-key-data".into() };
        assert_eq!(format!("{secret:?}"), "Credentials { .. }");
    }

    #[test]
    fn an_unknown_kind_is_an_error() {
        assert!(Announcement::from_line("{\"kind\":\"poem\"}").is_err());
    }
}
