//! The mesh, as plain data.

use std::time::Duration;

use serde::Serialize;
use units::Bytes;

use crate::model::maybe_seconds;

/// Two nodes that speak agree on keys every two minutes. Without new ones nothing passes after three: WireGuard's
/// `REJECT_AFTER_TIME`.
const KEYS_LAST: Duration = Duration::from_secs(180);

/// The other nodes that this one exchanges pod traffic with.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Mesh {
    /// Those that somebody should look at first, then by name; nothing if they could not be read, which is among the
    /// warnings.
    pub peers: Option<Vec<Peer>>,
    /// Further ones, which are left out.
    pub more: usize,
}

impl Mesh {
    /// Peers that a page shows; metrics tell of all.
    const MOST: usize = 1000;

    /// Puts those first that nothing can be sent to now, and leaves out what would make the page too long.
    pub fn new(mut peers: Vec<Peer>) -> Self {
        peers.sort_by(|one, other| one.order().cmp(&other.order()));
        let more = peers.len().saturating_sub(Self::MOST);
        peers.truncate(Self::MOST);
        Self { peers: Some(peers), more }
    }
}

/// Another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Peer {
    /// Its name; nothing before the cluster's nodes are known.
    pub node: Option<String>,
    /// Its public key, as wg(8) shows it.
    pub key: String,
    /// Address and port that packets to it go to.
    pub endpoint: Option<String>,
    /// What its pods have.
    pub pods: Vec<String>,
    /// How long ago both agreed on keys the last time; nothing if they never did.
    #[serde(rename = "handshake_seconds_ago", serialize_with = "maybe_seconds")]
    pub handshake: Option<Duration>,
    /// What came from it.
    pub received: Bytes,
    /// What was sent to it.
    pub sent: Bytes,
}

impl Peer {
    /// Whether both have keys that are still good. Two that have nothing to say to each other have none.
    pub(crate) fn has_keys(&self) -> bool {
        self.handshake.is_some_and(|ago| ago <= KEYS_LAST)
    }

    /// As much of the key as tells two nodes apart.
    pub(crate) fn short_key(&self) -> String {
        let mut letters = self.key.chars();
        let short: String = letters.by_ref().take(8).collect();
        if letters.next().is_some() { short + "…" } else { short }
    }

    fn order(&self) -> (bool, Option<&str>, &str) {
        (self.has_keys(), self.node.as_deref(), &self.key)
    }
}
