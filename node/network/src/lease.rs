//! What a DHCP server gives.

use std::net::Ipv4Addr;
use std::time::Duration;

use config::Interface;

/// An address for some time, with what one needs to use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub interface: Interface,
    /// The server that gave it.
    pub server: Ipv4Addr,
    /// A router in the same network.
    pub gateway: Option<Ipv4Addr>,
    /// Name servers, the preferred one first.
    pub name_servers: Vec<Ipv4Addr>,
    /// Servers that clocks are set by, the preferred one first.
    pub time_servers: Vec<Ipv4Addr>,
    /// The largest packet in bytes, at least 576.
    pub mtu: Option<u16>,
    /// For how long; without an end if absent.
    pub time: Option<Duration>,
    /// When to ask the server for more time, if it says so.
    pub renewal: Option<Duration>,
    /// When to ask any server, if it says so.
    pub rebinding: Option<Duration>,
}

/// A server that lends for less makes us ask all the time.
const SHORTEST: Duration = Duration::from_secs(60);

/// Three moments of a lease, since it began, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) renewal: Duration,
    pub(crate) rebinding: Duration,
    pub(crate) end: Duration,
}

impl Lease {
    /// Its moments, of which the server's are taken if they are in order; those of RFC 2131 else. `None`: for ever.
    pub(crate) fn times(&self) -> Option<Times> {
        let end = self.time?.max(SHORTEST);
        let usual = Times { renewal: end / 2, rebinding: end / 8 * 7, end };
        let renewal = self.renewal.unwrap_or(usual.renewal);
        let rebinding = self.rebinding.unwrap_or(usual.rebinding);
        let in_order = SHORTEST / 2 <= renewal && renewal < rebinding && rebinding < end;
        Some(if in_order { Times { renewal, rebinding, end } } else { usual })
    }
}
