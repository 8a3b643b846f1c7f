//! State of the mesh.

use std::time::Duration;

use serde::Serialize;
use units::Bytes;

use crate::seconds::maybe_seconds;

/// Peers renew their keys every two minutes while they send. After three minutes without renewal, packets are dropped:
/// WireGuard's `REJECT_AFTER_TIME`.
const KEYS_LAST: Duration = Duration::from_secs(180);

#[derive(Clone, Debug, Default, Serialize)]
pub struct Mesh {
    /// Peers without valid keys first, then by name. `None` if the peers could not be read, which is among the
    /// warnings.
    pub peers: Option<Vec<Peer>>,
    pub more: usize,
}

impl Mesh {
    /// Maximum number of peers on a page; metrics contain all.
    const MOST: usize = 1000;

    /// Sorts the peers, unreachable ones first, and omits those beyond the limit.
    pub fn new(mut peers: Vec<Peer>) -> Self {
        peers.sort_by(|one, other| one.order().cmp(&other.order()));
        let more = peers.len().saturating_sub(Self::MOST);
        peers.truncate(Self::MOST);
        Self { peers: Some(peers), more }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Peer {
    /// Node name; `None` before the Nodes of the cluster were listed.
    pub node: Option<String>,
    /// Public key in the format of wg(8).
    pub key: String,
    pub endpoint: Option<String>,
    pub pods: Vec<String>,
    /// Time since the last handshake; `None` if there was none.
    #[serde(rename = "handshake_seconds_ago", serialize_with = "maybe_seconds")]
    pub handshake: Option<Duration>,
    pub received: Bytes,
    pub sent: Bytes,
}

impl Peer {
    /// Whether the session keys are valid. Idle peers have none.
    pub(crate) fn has_keys(&self) -> bool {
        self.handshake.is_some_and(|ago| ago <= KEYS_LAST)
    }

    /// Prefix of the key that is long enough to distinguish nodes.
    pub(crate) fn short_key(&self) -> String {
        let mut letters = self.key.chars();
        let short: String = letters.by_ref().take(8).collect();
        if letters.next().is_some() { short + "…" } else { short }
    }

    fn order(&self) -> (bool, Option<&str>, &str) {
        (self.has_keys(), self.node.as_deref(), &self.key)
    }
}
